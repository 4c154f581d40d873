"""A few of `make chaos`'s runs, and that its judge sees what is wrong."""

import ast
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos import chaos, script
from tests.conftest import whole_form
from tests.mpi.launch import PYTHONS, ROOT, require_mpi

SHORT = [("openmpi", "0.27"), ("mpi", "0.32"), ("mpi", "0.18")]
PLANNED = {"0.27": ("zero3", "flipped snapshot"), "0.32": ("dgc", "full disk"),
           "0.18": ("pipeline", "SIGKILL")}  # of each seed of SHORT


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{seed: a future of chaos.one}, two at a time."""
    folder = tmp_path_factory.mktemp("chaos")
    with ThreadPoolExecutor(2) as pool:
        yield {seed: pool.submit(chaos.one, folder / seed, seed, mpi, wanted)
               for mpi, seed in SHORT if Path(PYTHONS[mpi]).exists()}


def wanted(kind, n):
    """By a process of its own: simulated ranks are of one thread."""
    code = f"from tests.chaos import chaos; print(chaos.wanted({kind!r}, {n}))"
    return ast.literal_eval(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True,
                                           capture_output=True, text=True).stdout)


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mpi, seed", SHORT)
def test_a_run_that_is_hit_ends_in_the_same_bits(runs, mpi, seed):
    require_mpi(mpi)
    what, result, said = runs[seed].result()
    assert not what and result == "the same bits", said


def test_all_kinds_and_faults_are_planned():
    plans = [chaos.plan(f"0.{i}") for i in range(100)]
    assert {kind for kind, _, _ in plans} == set(chaos.runs.KINDS)
    assert {fault["how"] for _, _, faults in plans for fault in faults} == set(chaos.HOWS)
    assert plans == [chaos.plan(f"0.{i}") for i in range(100)], "a seed is the run"
    strange = set(chaos.HOWS) - {"exception", "full disk", *script.ENDS}
    assert not strange, f"tests/chaos/script.py: `end` and ENDS want {strange}, as HOWS has them"


def test_the_seeds_of_the_short_form_plan_what_is_written_next_to_them():
    for seed, wanted in PLANNED.items():
        kind, _, faults = chaos.plan(seed)
        found = kind, *(fault["how"] for fault in faults)
        assert found == wanted, (
            f"seed {seed} plans {found}, not {wanted}: a longer HOWS gives each seed another plan. "
            "Look for seeds of the wanted runs with chaos.plan, and write them into PLANNED and "
            "SHORT of tests/chaos/test_chaos.py")


def said(*attempts, end=""):
    rows = "".join(f"{i:>10}{2:>10}{begin:>10}{to:>10}{1.0:>10}{who:>10}  x\n"
                   for i, (begin, to, who) in enumerate(attempts, 1))
    return rows + end


@pytest.mark.parametrize("status, out, err, verdict", [
    (0, "ab", "", "the same bits"),
    (0, "aa", "", "other weights"),
    (0, "a", "", "other weights"),
    (1, "", "minidl run: all restarts are used: 1 (--restarts)", "refused"),
    (0, "ab", said((0, 13, "rank 1"), (12, 14, "-")), "the same bits"),
    (0, "ab", said((0, 13, "rank 1"), (0, 14, "-")), "lost steps"),
    (-9, "", "\nHUNG for 60 s", "hung"),
])
def test_the_judge(status, out, err, verdict, tmp_path, monkeypatch):
    class Done:
        returncode, stderr = status, err
        stdout = "".join(f"weights of rank {i}: {c}\n" for i, c in enumerate(out))

    monkeypatch.setattr(chaos, "minidl_run", lambda *words, **options: Done)
    seed = next(f"s{i}" for i in range(99) if chaos.plan(f"s{i}")[1] == 2)
    what, result, _ = chaos.one(tmp_path, seed, "mpi", lambda kind, n: ["a", "b"])
    assert result == verdict and bool(what) == (verdict not in ("the same bits", "refused"))


def test_a_failure_without_a_word_is_wrong(tmp_path, monkeypatch):
    class Done:
        returncode, stderr, stdout = 1, "", ""

    monkeypatch.setattr(chaos, "minidl_run", lambda *words, **options: Done)
    assert chaos.one(tmp_path, "x", "mpi", None)[0] == "no word"
