"""Ranks die under Open MPI, by SIGKILL and otherwise; the others go on to the bits that they must.

Oracle: simulated ranks that load a snapshot of the interrupted step (as many as are left), or that
were never interrupted (a replacement). Every run has a limit, and afterwards nothing is left of it.
"""

import os
import pickle
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from minidl import snapshot
from minidl.comm import simulate
from minidl.snapshot import folder as snapshot_folder
from tests.chaos.chaos import shared
from tests.conftest import some, whole_form
from tests.elastic.bodies import state_of, train, weights
from tests.mpi.launch import PYTHONS, ROOT, require_mpi

# A run takes seconds. A busy disk may let a snapshot wait for half a minute; a hang has no end.
LIMIT_S = 120  # as many times that as tasks share a core
AFTER_S = 10  # likewise, from the death on, where no snapshot is written
pytestmark = pytest.mark.timeout(600)
# Each run takes a few seconds: those that show no further mechanism are for `make chaos`.
also = pytest.mark.skipif(os.environ.get("MINIDL_CHAOS") != "1", reason="set MINIDL_CHAOS=1")
N, N_STEPS, AT = 4, 8, 5  # ranks; steps; the one in which ranks die


def heal(folder, stage, where, *doomed, every=0, options=(), refused=False, after_s=LIMIT_S,
         at=AT):
    """(stdout, stderr, {first rank of a process: what it left}) of healing.py with N ranks;
    refused: it is to fail, and only stderr is wanted. after_s: the limit from the first death on.
    """
    require_mpi("openmpi")
    run = Path(__file__).with_name("healing.py")
    command = [PYTHONS["openmpi"], "-m", "minidl", "run", "-n", N, "--heal", *options, run, folder,
               stage, N_STEPS, every, where, at, *doomed]
    with subprocess.Popen(
            list(map(str, command)), cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True) as process:
        try:
            out, err = until_its_end(process, after_s)
        finally:
            left = of_session(process.pid) if process.poll() is not None else []
            with_limit = process.poll() is None
            for pid in [process.pid, *of_session(process.pid), *of_folder(folder)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
    assert not with_limit, "over the limit"
    assert (process.returncode != 0) == refused, err[-4000:]
    assert not left and not of_folder(folder), "processes are left"
    return err if refused else (out, err, {path.stem: pickle.loads(path.read_bytes())
                      for path in Path(folder).glob("*.pickle")})


def until_its_end(process, after_s):
    """(stdout, stderr); TimeoutExpired after LIMIT_S, or after_s from the first death on."""
    until, dead = time.monotonic() + LIMIT_S * shared(), False
    while True:
        try:
            return process.communicate(timeout=1)
        except subprocess.TimeoutExpired as running:
            if not dead and "killed " in str(running.stdout):
                dead, until = True, min(until, time.monotonic() + after_s * shared())
            if time.monotonic() > until:
                raise


def of_session(session):
    """Processes of this session that still run."""
    return [pid for pid, fields in stats() if int(fields[3]) == session and fields[0] != "Z"]


def stats():
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            pass


def of_folder(folder):
    """Processes that have the folder among their arguments, in whatever session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def bits(stage, step, m, folder):
    """Weights of m simulated ranks at the end, which load N ranks' state at `step`."""
    def before(t):
        named = state_of(stage)(t)
        for k in range(step):
            train(t, k, **named)
        snapshot.save(folder, step, t, **named)

    def after(t):
        named = state_of(stage)(t)
        snapshot.load(folder, t, step=step, **named)
        for k in range(step, N_STEPS):
            train(t, k, **named)
        return weights(named)

    simulate(N, before)
    return simulate(m, after)


def seconds_lost(out, after):
    """From the (last) death to the end of the next step on all ranks."""
    killed = max(float(at) for at in re.findall(r"killed ([\d.]+)", out))
    finished = [float(at) for at in re.findall(rf"finished {after} \d ([\d.]+)", out)]
    return max(at for at in finished if at > killed) - killed


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("stage, where, doomed", [
    pytest.param("dp", "reduce", [2], marks=whole_form),
    pytest.param("zero2", "reduce", [0], marks=also),
    pytest.param("zero3", "step", [1, 3], marks=also),
    pytest.param("zero1", "exit", [3], marks=whole_form)])
def test_survivors_do_the_step_again(stage, where, doomed, tmp_path):
    out, err, left = heal(tmp_path, stage, where, *doomed, after_s=AFTER_S)
    m = N - len(doomed)
    assert sorted(each["first"] for each in left.values()) == sorted(set(range(N)) - set(doomed))
    step = int(re.search(rf"{m} ranks go on from step (\d)", err)[1])
    # with shards, and death before they had travelled, the step before
    assert step == AT or stage != "dp" and step == AT - 1
    want = bits(stage, step, m, tmp_path / "oracle")
    for each in left.values():
        assert each["weights"] == want[each["rank"]]
    for k in range(step, N_STEPS):  # each sample once
        numbers = sum(([*each["log"][k]] for each in left.values()), [])
        assert sorted(numbers) == list(range(k * 24, (k + 1) * 24))
    assert seconds_lost(out, step) < 5 + 1
    for rank in doomed:
        how = "killed by SIGKILL" if where != "exit" else "ended .* with status 3"
        assert re.search(rf"minidl run: rank {rank} .*{how}", err)


@pytest.mark.mpi
@pytest.mark.slow
@also
@pytest.mark.parametrize("seed", range(int(os.environ.get("MINIDL_CHAOS_RUNS", 10))))
def test_a_death_at_any_moment_of_a_run(seed, tmp_path):
    draw = random.Random(seed)
    stage, doomed = draw.choice(["dp", "zero1", "zero2", "zero3"]), draw.randrange(N)
    replacements = int(draw.random() < 0.2)
    m = N - 1 + replacements
    _, err, left = heal(tmp_path, stage, f"{draw.random() * 0.06:.4f}", doomed, at=2,
                        options=["--replacements", replacements] if replacements else [])
    step = int(re.search(rf"{m} ranks go on from step (\d)", err)[1])
    want = bits(stage, 0 if replacements else step, m, tmp_path / "oracle")
    assert len(left) == m and all(each["weights"] == want[each["rank"]] for each in left.values())


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("stage, where", [("zero1", "reduce"), ("grid", "step")])
def test_with_a_replacement_nothing_has_happened(stage, where, tmp_path):
    """"grid": tensor and pipeline parallelism; the new rank takes the dead one's place in it."""
    out, err, left = heal(tmp_path, stage, where, 1, options=["--replacements", 1])
    want = bits(stage, 0, N, tmp_path / "oracle")
    assert sorted((each["rank"], each["newcomer"]) for each in left.values()) == [
        (0, False), (1, True), (2, False), (3, False)]
    for each in left.values():
        assert each["weights"] == want[each["rank"]]


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
def test_a_rank_and_its_buddy_take_the_state_with_them(tmp_path):
    _, err, left = heal(tmp_path, "zero1", "reduce", 1, 2, every=2)
    found = re.search("ranks 1, 2 lost; 2 ranks go on from step ([24]), .*A rank and its buddy "
                      "died together, so all ranks go back to the snapshot in", err)
    assert found, err  # on a busy machine step 4's snapshot may still be under way
    want = bits("zero1", int(found[1]), 2, tmp_path / "oracle")
    for each in left.values():
        assert each["weights"] == want[each["rank"]]


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("doomed, step", [([1, 2], 2), pytest.param([1], 6, marks=also)])
def test_a_death_in_the_middle_of_a_snapshot_that_is_written_behind(doomed, step, tmp_path):
    """Of step 4's there are halves of files: with its buddy gone, too, a rank's state is from step
    2's. Alone it is healed at the step before which the others waited for the writing; and the
    folder takes the next snapshot."""
    _, err, left = heal(tmp_path, "zero1", "write", *doomed, every=2)
    assert re.search(rf"{N - len(doomed)} ranks go on from step {step}", err)
    assert ("go back to the snapshot in" in err) == (len(doomed) == 2)
    want = bits("zero1", step, N - len(doomed), tmp_path / "oracle")
    for each in left.values():
        assert each["weights"] == want[each["rank"]]
    folder = tmp_path / "runs"
    assert snapshot.steps(folder)[-1] == 6 and not list(folder.glob("*.tmp"))
    assert not any(snapshot_folder.damage(folder, k) for k in snapshot.steps(folder))


@pytest.mark.mpi
@pytest.mark.slow
@also
def test_a_grid_without_a_replacement_is_refused_with_the_remedies(tmp_path):
    err = heal(tmp_path, "grid", "step", 1, every=2, refused=True)
    assert re.search("RuntimeError: rank [012]: a model that is divided over 4 ranks cannot be "
                     "healed on 3 ranks: state.. fails .* = 4 ranks; got 3.*"
                     "--replacements 1 .*minidl run --restarts", err)
    assert snapshot.latest(tmp_path / "runs") == 4


@pytest.mark.mpi
@pytest.mark.slow
@also
def test_a_second_death_while_the_state_is_made_anew(tmp_path):
    _, err, left = heal(tmp_path, "dp", "state", 1, 3)
    want = bits("dp", AT, 2, tmp_path / "oracle")
    assert len(left) == 2
    for each in left.values():
        assert each["weights"] == want[each["rank"]]


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("where", ["all", "pair"])
def test_a_death_before_a_group_is_made_is_healed(where, tmp_path):
    """Red before: MPI's Create_group waited for the dead rank, for ever."""
    _, err, left = heal(tmp_path, "zero1", where, 1)
    found = re.search("rank 1 lost; 3 ranks go on from step ([45]),", err)
    assert found, err  # 4: somebody had not begun step 5 yet
    want = bits("zero1", int(found[1]), 3, tmp_path / "oracle")
    for each in left.values():
        assert each["weights"] == want[each["rank"]]


@pytest.mark.mpi
@pytest.mark.slow
@whole_form
def test_a_death_in_the_instant_in_which_a_group_is_made_ends_who_is_in_it_too(tmp_path):
    """The group is of ranks 1 and 2: the others go on. (The random numbers of a rank whose buddy
    died, too, are others.)"""
    _, err, left = heal(tmp_path, "dp", "instant", 1)
    assert "rank 2: another rank died while MPI made a group of that rank" in err, err
    found = re.search("ranks 1, 2 lost; 2 ranks go on from step ([45]),", err)
    assert found, err
    for k in range(int(found[1]), N_STEPS):  # each sample once
        numbers = sum(([*each["log"][k]] for each in left.values()), [])
        assert sorted(numbers) == list(range(k * 24, (k + 1) * 24))
    one, other = ({name: value for name, value in each["weights"].items() if "running" not in name}
                  for each in left.values())
    assert one == other and one


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("where, words", some([
    ("early", "is missing: the other ranks can continue without it only if it dies after world"),
    ("late", "the first rank of the group has died after elastic.run")]))
def test_a_death_that_nobody_can_heal_ends_the_run_with_a_status(where, words, tmp_path):
    """Red before: the first waited for --deadline, the second had status 0."""
    start = time.monotonic()
    err = heal(tmp_path, "dp", where, 0, refused=True)
    assert words in err and "rank 0 (process" in err, err
    assert time.monotonic() - start < 60, "seconds, and what a busy machine takes; not --deadline"


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
def test_a_death_after_the_last_step_is_healed_though_some_have_not_seen_it(tmp_path):
    """Whose buddy it was sees an error; the others ask at that time whether all have ended."""
    _, err, left = heal(tmp_path, "zero1", "shard", 1, at=N_STEPS - 1)
    assert re.search(f"rank 1 lost; 3 ranks go on from step {N_STEPS - 1}", err), err
    want = bits("zero1", N_STEPS - 1, 3, tmp_path / "oracle")
    assert len(left) == 3
    for each in left.values():
        assert each["weights"] == want[each["rank"]]
