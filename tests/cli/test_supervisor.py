"""Whatever ends a rank of `minidl run`, the run ends, names the rank, and has a true status."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minidl.cli import rank as rank_file
from minidl.cli import supervisor
from minidl.cli.supervisor import Supervisor
from minidl.comm.observe import door
from tests.cli.faults import SCRIPT, minidl_run, try_fault
from tests.conftest import some
from tests.mpi.launch import PYTHONS, ROOT, require_mpi

# Of faults.py's: others, and with other numbers of ranks, by `make faults`.
SHORT = [
    ("nothing", "ever", "mpi"), ("os._exit(4)", "before", "mpi"), ("sys.exit", "before", "mpi"),
    ("SIGKILL", "middle", "mpi"), ("SIGSTOP", "before", "mpi"), ("raw", "ever", "mpi"),
    ("return", "before", "mpi"), ("return", "before", "openmpi"),
    ("import", "before", "openmpi"), ("os._exit(0)", "middle", "openmpi"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{(how, when, mpi): a future of what is wrong}, two at a time: they mostly wait."""
    folder = tmp_path_factory.mktemp("supervised")
    (folder / "script.py").write_text(SCRIPT)
    with ThreadPoolExecutor(2) as pool:
        yield {(how, when, mpi): pool.submit(try_fault, folder, (how, when), mpi)
               for how, when, mpi in some(SHORT) if Path(PYTHONS[mpi]).exists()}


@pytest.mark.mpi
@pytest.mark.parametrize("how, when, mpi", some(SHORT))
def test_every_fault_ends_the_run_and_names_the_rank(runs, how, when, mpi):
    require_mpi(mpi)
    what, said = runs[how, when, mpi].result()
    assert not what, said


@pytest.mark.mpi
def test_ranks_that_all_leave_alike_end_by_themselves(tmp_path):
    require_mpi()
    script = tmp_path / "script.py"
    script.write_text("import os\nos._exit(7)")
    run = minidl_run("mpi", script)
    assert run.returncode == 7 and "minidl run:" not in run.stderr


def shared_memory_after(tmp_path, text):
    """(status, which of MPICH's files in /dev/shm are left) of a run, rank 0 of which has written
    its maps."""
    require_mpi()
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal; from minidl import comm; from minidl.comm import tree\n"
        "def write_maps():\n"
        f"    open({str(tmp_path / 'maps')!r}, 'w').write(open('/proc/self/maps').read())\n" + text)
    run = minidl_run("mpi", script)
    mapped = {line.split()[-1] for line in (tmp_path / "maps").read_text().splitlines()
              if "/dev/shm/mpich_" in line}
    assert mapped, "ranks share memory, or this test sees nothing"
    return run.returncode, [path for path in mapped if os.path.exists(path)]


has_shared_memory = pytest.mark.skipif(
    not os.path.isdir("/dev/shm"), reason="no /dev/shm, no shared memory to leave")


@pytest.mark.mpi
@has_shared_memory
def test_ranks_that_are_killed_leave_no_shared_memory(tmp_path):
    """Red before: each run that failed left 2 MB for ever."""
    assert shared_memory_after(tmp_path, (
        "t = comm.world(); tree.barrier(t)\n"
        "if t.rank == 0:\n"
        "    write_maps()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "while True: t.time()\n")) == (137, [])


@pytest.mark.mpi
@has_shared_memory
def test_ranks_that_are_interrupted_inside_of_world_leave_no_shared_memory(tmp_path):
    """All at once: nobody that is alive holds it when the launcher looks."""
    assert shared_memory_after(tmp_path, (
        "from mpi4py import MPI\n"  # as world() does, which removes the name after this
        "MPI.COMM_WORLD.Barrier()\n"
        "if MPI.COMM_WORLD.rank == 0: write_maps()\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "raise KeyboardInterrupt\n")) == (130, [])


# -- the supervisor alone, with ranks that are a few lines over TCP


class Mpiexec:
    """Instead of a process."""

    def __init__(self):
        self.pid = -1
        self.returncode, self.ends_at, self.ends_with = None, time.monotonic() + 20, 0

    def poll(self):
        if time.monotonic() > self.ends_at:
            self.returncode = self.ends_with
        return self.returncode

    def terminate(self):
        self.returncode = -15

    kill = terminate

    def wait(self):
        return self.returncode


@pytest.fixture(autouse=True)
def killed_soon(monkeypatch):
    """No rank here has to be killed: mpiexec is told at once."""
    monkeypatch.setattr(supervisor, "KILLED_S", 0.1)


def supervise(lines, n=2, keep=None, ends_s=20, ends_with=0, signals=(), **settings):
    """(status, what was said) of a supervisor that hears these lines, each (rank, which, line).
    keep: a list, which gets the supervisor. signals: what its process has got."""
    said = []
    s = Supervisor(n, say=said.append, **settings)
    if keep is not None:
        keep.append(s)
    links = {}
    for rank, which, line in lines:
        if (rank, which) not in links:
            links[rank, which] = connected(s, say=which, rank=rank, host="a", hydra=False)
        links[rank, which].say(**line)
    child = Mpiexec()
    child.ends_at, child.ends_with = time.monotonic() + ends_s, ends_with
    if any(line.get("say") == "exit" for _, _, line in lines):
        child.ends_at = time.monotonic() + 0.7
    status = run_and_close(s, child, signals)
    for link in links.values():
        link.close()
    return status, "".join(said)


def connected(s, **line):
    """The Lines of a caller that knows the token."""
    address, port, token = s.environment[rank_file.SUPERVISOR].split(",")
    shown = door.proof(token, door.new_caller(), 0)
    return door.call([(address, int(port))], shown, 5.0, **line)[0]


def run_and_close(s, child, signals=()):
    woken, wakes = socket.socketpair()
    with woken, wakes:
        wakes.send(bytes(signals))
        status = s.run(child, woken)
    s.close()
    return status


END = {"say": "finished", "mpi": True}


def lives(rank, *states):
    return [(rank, "guard", {"say": "runs", "pid": 100 + rank}),
            *((rank, "born", {"say": state, "rank": rank, "mpi": True}) for state in states)]


def test_a_rank_that_never_starts_is_named():
    status, said = supervise(lives(0, "joining"), start_s=0.3, n=3)
    assert status == 1 and said.startswith("minidl run: ranks 1, 2: not started 0.3 s after")
    assert rank_file.__file__ in said


@pytest.mark.parametrize("mpi", [False, True])
def test_a_rank_that_ends_well_before_world_is_named(mpi):
    """Red before: the others were, at the deadline. mpi: it used MPI by itself, nobody waits."""
    lines = [*lives(0, "joining"), *lives(1), (1, "born", {"say": "finished", "mpi": mpi}),
             *lives(2)]
    start = time.monotonic()
    status, said = supervise(lines, n=3, ends_s=0 if mpi else 9, ends_with=7)
    if mpi:
        assert (status, said) == (7, "")
    else:
        assert status == 1 and time.monotonic() - start < 8
        assert said == ("minidl run: rank 1 (process 101 on a) ended its script before world(), "
                        "where rank 0 would wait forever\n")


def test_a_crash_after_the_script_is_a_failure():
    lines = [*lives(0, "finished"), *lives(1, "finished")]
    lines += [(rank, "guard", {"say": "exit", "status": -11 * rank}) for rank in (0, 1)]
    status, said = supervise(lines)
    assert status == 139
    assert "rank 1 (process 101 on a) was killed by SIGSEGV after its script" in said


@pytest.mark.parametrize("number, name", [(9, "SIGKILL"), (40, "signal 40")])
def test_every_signal_has_a_name(number, name):
    """Red before: Python has no name for real-time signals, and the launcher ended with a
    traceback."""
    lines = [*lives(0, "joined"), (0, "guard", {"say": "exit", "status": -number})]
    status, said = supervise(lines, n=1)
    assert status == 128 + number and f"was killed by {name} in the middle" in said


@pytest.mark.parametrize("ends_s", [20, 0])
def test_the_first_signal_ends_the_run(ends_s):
    """ends_s = 0: Ctrl-C in a terminal has ended mpiexec, too, before this process looked."""
    signals = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT]
    status, said = supervise(lives(0, "joined"), n=1, ends_s=ends_s, signals=signals)
    assert (status, said) == (143, "minidl run: ended by SIGTERM\n")


def test_the_end_of_a_child_is_no_signal_that_ends_the_run():
    lines = [*lives(0, "joined", "finished"), (0, "guard", {"say": "exit", "status": 0})]
    assert supervise(lines, n=1, signals=[signal.SIGCHLD]) == (0, "")


def test_status_0_in_the_middle_of_the_script_is_a_failure():
    lines = [*lives(0, "joined"), *lives(1, "joined"), (1, "guard", {"say": "exit", "status": 0})]
    status, said = supervise(lines)
    assert status == 1 and "rank 1 (process 101 on a) ended in the middle of its script" in said


def test_an_mpiexec_that_ends_well_before_its_ranks_is_a_failure():
    """Red before: Open MPI's ends with status 0 when a host is gone, and so did the run."""
    lines = [*lives(0, "finished"), *lives(1, "joined"), *lives(2, "joined")]
    status, said = supervise(lines, n=3, ends_s=0.5)
    assert status == 1 and "ranks 1, 2: mpiexec ended, with status 0, in the middle" in said


def test_a_rank_that_stands_still_is_named_at_the_deadline():
    lines = [*lives(0, "joined"), *lives(1, "joined"), (1, "guard", {"say": "stopped"})]
    status, said = supervise(lines, deadline_s=0.4)
    assert status == 1 and "rank 1 (process 101 on a) was stopped by a signal" in said


def test_two_ranks_that_end_well_are_a_success():
    lines = [*lives(0, "finished"), *lives(1, "finished")]
    lines += [(rank, "guard", {"say": "exit", "status": 0}) for rank in (0, 1)]
    assert supervise(lines) == (0, "")


def test_another_program_is_not_heard():
    s = Supervisor(1)
    s.environment[rank_file.SUPERVISOR] = s.environment[rank_file.SUPERVISOR][:-1] + "x"
    child = Mpiexec()
    with connected(s, say="born", rank=0, host="a", hydra=False):
        child.ends_at = time.monotonic() + 0.3
        assert run_and_close(s, child) == 0 and not s.ranks


@pytest.mark.parametrize("line", [
    b"GET / HTTP/1.0", b"7", b"[" * 10_000, b"a" * (2 * door.LINE_BYTES), b'{"say": "runs"}',
    b'{"say": ["exit"]}', b'{"say": "exit", "status": "0"}', b'{"say": "born"}'],
    ids=lambda line: line[:24].decode())
def test_a_line_that_is_not_ours_ends_its_connection_and_nothing_else(line):
    """Red before: each of them ended the launcher with a traceback."""
    said = []
    s, child = Supervisor(2, say=said.append), Mpiexec()
    callers = [connected(s, say="born", rank=rank, host="a", hydra=False) for rank in (0, 1)]
    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(run_and_close, s, child)
        with contextlib.suppress(OSError):  # it closes in the middle of the longest
            callers[1].connection.sendall(line + b"\n")
        callers[0].say(say="finished", mpi=True)
        until = time.monotonic() + 10
        while not (said and s.ranks[0].state == "finished") and time.monotonic() < until:
            time.sleep(0.01)
        child.ends_at = time.monotonic()
        assert ends.result() == 0
    for caller in callers:
        caller.close()
    assert [rank.state for rank in s.ranks] == ["finished", "born"]
    (text,) = said
    assert text.startswith("minidl run: rank 1 (process 0 on a) has sent a line ")
    assert len(text) < 300


def test_a_process_that_a_rank_starts_does_not_speak_for_it(monkeypatch):
    from minidl.comm.transport import supervised

    reads, writes = os.pipe()
    monkeypatch.setenv(supervised.LINK, f"{writes}:{os.getpid()}")
    assert supervised.say("joined", rank=3)
    assert json.loads(os.read(reads, 100)) == {"say": "joined", "rank": 3}
    monkeypatch.setenv(supervised.LINK, f"{writes}:{os.getpid() + 1}")
    assert not supervised.say("joined")
    os.close(writes)
    assert os.read(reads, 100) == b""
    os.close(reads)


def test_minidl_is_found_from_the_parent_of_a_folder_of_that_name(tmp_path):
    """A rank's path ends with the folder of the real package, so a namespace never wins."""
    (tmp_path / "minidl").mkdir()
    script = tmp_path / "script.py"
    script.write_text("import minidl\nprint(minidl.__file__)")
    packages = [p for p in sys.path if "site-packages" in p]  # NumPy's, but no finder of minidl
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "-S", "-c", "import sys, runpy\n"
                          f"sys.argv = ['rank.py', {str(script)!r}]\n"
                          f"sys.path[0:0] = ['x', *{packages}]\n"
                          f"runpy.run_path({rank_file.__file__!r}, run_name='__main__')"],
                         cwd=tmp_path, env=env, text=True, capture_output=True)
    assert run.stdout.strip() == str(Path(ROOT) / "minidl" / "__init__.py"), run.stderr


def test_a_rank_whose_launcher_is_gone_does_not_begin(tmp_path):
    """Red before: it went on without one, and after kill -9 of a launcher ranks ran for ever."""
    (script := tmp_path / "script.py").write_text("print('begins')")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    run = subprocess.run([sys.executable, rank_file.__file__, script], text=True, timeout=60,
                         env=os.environ | {rank_file.SUPERVISOR: f"127.0.0.1,{port},token"},
                         capture_output=True)
    assert run.returncode == 1 and "begins" not in run.stdout
    assert "the launcher has ended, so this rank ends" in run.stderr


@pytest.mark.parametrize("error, ends", [
    (ConnectionRefusedError, True), (ConnectionResetError, True), (BrokenPipeError, True),
    (TimeoutError, False), (OSError, False)])
def test_a_rank_whose_launcher_ends_during_its_call_ends(error, ends, monkeypatch, capfd):
    """Red before: a launcher was killed while a rank called it. The host reset the connection, and
    the rank went on alone and waited for ever in world()."""
    def call(*_, **__):
        raise error("no")

    def leave(status):
        raise SystemExit(status)

    monkeypatch.setattr(rank_file.runpy, "run_path", lambda _: vars(door) | {"call": call})
    monkeypatch.setattr(rank_file.os, "_exit", leave)
    if not ends:
        assert rank_file._links("127.0.0.1,1,token") is None
        assert "cannot reach the launcher (no)" in capfd.readouterr().err
        return
    with pytest.raises(SystemExit, match="1"):
        rank_file._links("127.0.0.1,1,token")
    assert "the launcher has ended, so this rank ends" in capfd.readouterr().err


# -- a run that heals


def test_a_run_that_heals_goes_on_without_those_that_are_killed_or_leave():
    lines = [*lives(0, "joined"), *lives(1, "joined"), *lives(2, "joined"),
             (1, "guard", {"say": "exit", "status": -9}),
             (2, "guard", {"say": "exit", "status": 3}),
             (0, "born", {"say": "trained", "first": True}),
             (0, "born", END), (0, "guard", {"say": "exit", "status": 0})]
    status, said = supervise(lines, n=3, heal=True)
    assert status == 0
    assert "rank 1 (process 101 on a) was killed by SIGKILL in the middle of its script" in said
    assert "rank 2 (process 102 on a) ended in the middle of its script with status 3" in said


@pytest.mark.parametrize("first, status", [(0, 1), (2, 0)])
def test_a_first_rank_that_dies_after_training_has_not_written_the_result(first, status):
    """Red before: the status was 0, and no model was written."""
    lines = [line for rank in (0, 1, 2) for line in (
        *lives(rank, "joined"), (rank, "born", {"say": "step", "step": 0}),
        (rank, "born", {"say": "trained", "first": rank == first}))]
    lines += [(0, "guard", {"say": "exit", "status": -9})]
    lines += [line for rank in (1, 2) for line in (
        (rank, "born", END), (rank, "guard", {"say": "exit", "status": 0}))]
    got, said = supervise(lines, n=3, heal=True)
    assert got == status and "rank 0 (process 100 on a) was killed by SIGKILL" in said
    assert ("the first rank of the group has died after elastic.run" in said) == bool(status)


@pytest.mark.parametrize("states, ended", [
    (["born", "joining", "joining"], True), (["joining", "joining", "joined"], True),
    (["joining", "joined", "joined"], False)])  # it was in MPI already
def test_a_death_before_world_ends_a_run_that_heals(states, ended, monkeypatch):
    """Red before: the others waited for the dead rank until --deadline."""
    monkeypatch.setattr(supervisor, "STARTING_S", 0.3)
    monkeypatch.setattr(supervisor, "KILLED_S", 0.5)
    lines = [line for rank, state in enumerate(states) for line in (
        lives(rank, state) if state != "born" else lives(rank))]
    lines += [(0, "guard", {"say": "exit", "status": -9})]
    start = time.monotonic()
    status, said = supervise(lines, n=3, heal=True, deadline_s=20)
    words = ("rank 0 (process 100 on a) is missing: the other ranks can continue without "
             "it only if it dies after world()")
    assert (words in said) == ended and time.monotonic() - start < 10
    assert status or not ended


@pytest.mark.parametrize("done", [False, True])
def test_healing_has_its_time(done):
    """Red before: it had none."""
    lines = [line for rank in (0, 1, 2) for line in (
        *lives(rank, "joined"), (rank, "born", {"say": "step", "step": 3}))]
    lines += [(2, "guard", {"say": "exit", "status": -9})]
    lines += [(rank, "born", {"say": "heals"}) for rank in (0, 1)]
    lines += [(rank, "born", {"say": "step", "step": 3}) for rank in (0, 1) if done]
    lines += [(rank, "guard", {"say": "exit", "status": 0}) for rank in (0, 1) if done]
    status, said = supervise(lines, n=3, heal=True, start_s=0.4)
    words = "the ranks have not healed within 0.4 s (--start-limit)\n  rank 0 (process 100 on a) is"
    assert (words in said) != done


def test_a_run_that_heals_fails_when_nobody_is_left():
    lines = [*lives(0, "joined"), (0, "guard", {"say": "exit", "status": -9})]
    status, said = supervise(lines, n=1, heal=True)
    assert status == 1 and "no rank is left" in said
