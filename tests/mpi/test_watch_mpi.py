"""No run hangs, and each says why it ended: under both MPIs, on real processes."""

import os
import re
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.comm.observe.test_watch import MISMATCHES
from tests.conftest import EVERY, some
from tests.mpi.launch import PYTHONS, mpiexec, under_both

pytestmark = pytest.mark.mpi


# As no payload has moved, ranks that catch a mismatch are in step again: all cases fit in one run.
CATCHING = r"""
    import numpy as np
    from minidl.comm import ring, tree, world
    from minidl.comm.call_code import CallMismatch
    from minidl.comm.observe.watch import Watch
    from tests.comm.observe.test_watch import MISMATCHES

    t = Watch(world())
    for case, (wrong, words) in MISMATCHES.items():
        tree.barrier(t)
        pair = t.subgroup([0, 1])  # a fresh group: its first collective
        if pair is not None:
            try:
                wrong(pair)
            except CallMismatch as error:
                text = str(error)
                assert words in text and "collective 1 of ranks 0, 1" in text, text
                assert " on rank 0, " in text and " on rank 1" in text, text
                print(f"caught {case}\n", end="", flush=True)
        tree.barrier(t)
    try:  # ranks 0 and 2 agree with their left neighbour or with their right one: all must know
        ring.all_reduce(t, np.ones(10 + (t.rank == 1)))
    except CallMismatch as error:
        assert "ranks 0, 2: ring.all_reduce(x float64 (10,)" in str(error), str(error)
        print("caught by all\n", end="", flush=True)
"""


ENDING = """
    import os, pathlib, re, signal, sys, time
    import numpy as np
    from minidl.comm import ring, scatter_gather, tree, world
    from minidl.comm.transport.background import Background
    from minidl.comm.observe.watch import Watch

    t = Watch(world(), deadline_s={deadline_s})
    r, right, left = t.rank, (t.rank + 1) % t.size, (t.rank - 1) % t.size
    x = np.zeros(1_000_000)
    ring.all_reduce(t, x)
    note = pathlib.Path(f"{{__file__}}.{{t.rank}}")
    tree.barrier(t)
    note.write_text(f"{{time.time()}} {{os.getpid()}}")
    {body}
"""

# name: (deadline_s, what the ranks do, patterns of the report)
CASES = {
    "a cycle of sends": (
        60,
        "t.send(x, right); t.recv(x, left)",
        [
            r"rank 0: watch: deadlock: ranks 0-2 can never go on",
            r"rank 2 waits to send 8,000,000 bytes to rank 0, tag 0.*at .*script.py:15",
            r"wait-for cycle: rank 0 -> rank 1 -> rank 2 -> rank 0",
        ],
    ),
    "a collective and a receive": (
        60,
        "ring.all_reduce(t, x) if r != 1 else t.recv(x, 0, 5)",
        [
            r"rank 0 waits for all ranks to begin ring.all_reduce, at .*script.py:15",
            r"rank 1 waits for a message from rank 0, tag 5, in point-to-point, at .*script.py:15",
            r"wait-for cycle: rank 0 -> rank 1 -> rank 0",
        ],
    ),
    "a cycle inside of a background job": (
        60,
        "Background(t).submit(lambda t: t.recv(x, right)).wait()",
        [
            r"rank 0 \(a background thread\) waits for a message from rank 1, .* at .*script.py:15",
            r"rank 0 waits for an event of its own rank, at .*script.py:15",
            r"wait-for cycle: rank 0 -> rank 1 -> rank 2 -> rank 0",
        ],
    ),
    "a rank returns": (
        60,
        "scatter_gather.gather(t, x) if r != 1 else None",
        [
            r"deadlock: ranks 0, 2 can never go on",
            r"rank 1 has ended \(its last collective: tree.barrier at .*script.py:13\)",
            r"waits for rank 1, which has ended: rank 0 -> rank 1",
        ],
    ),
    "a rank calls sys.exit(1)": (
        60,
        "sys.exit(1) if r == 0 else ring.all_reduce(t, x)",
        [
            r"rank 1: watch: deadlock: ranks 1, 2 can never go on",
            r"rank 0 has ended \(its last collective: tree.barrier at .*script.py:13\)",
        ],
    ),
    "a rank is killed": (
        60,
        "os.kill(os.getpid(), signal.SIGKILL) if r == 1 else ring.all_reduce(t, x)",
        [r"rank 0: watch: rank 1 has died without a message: killed|Killed \(signal 9\)"],
    ),
    "a rank computes, one cannot answer": (
        2,
        # sum(range) never lets another thread have the interpreter
        "[lambda: ring.all_reduce(t, x), lambda: time.sleep(60), lambda: sum(range(10**11))][r]()",
        [
            r"rank 0: watch: waited \d+ s \(deadline_s 2\) for ranks 1, 2",
            r"rank 1 computes: has not arrived, last seen at .*script.py:15 \(its last collective: "
            r"tree.barrier at",
            r"rank 2 does not answer: its C code",
        ],
    ),
    "a rank does not come to shared memory": (
        2,
        "[w := t.shared(64), time.sleep(60) if r == 1 else (w.signal(0, 0), w.wait(0))]",
        [
            r"watch: waited \d+ s \(deadline_s 2\) for rank 1",
            r"rank [02] waits for all ranks' pieces of shared memory, .* at .*script.py:15",
        ],
    ),
    "a rank raises": (
        60,
        "1 / 0 if r == 1 else ring.all_reduce(t, x)",
        [r"rank 1: ZeroDivisionError"],
    ),
}


SLOW = """
    import os, time
    import numpy as np
    from minidl.comm import ring, tree, world
    from minidl.comm.observe.watch import Watch

    class Slow:  # a network on which a large message takes 2.5 s
        def __init__(self, comm):
            self.comm = comm
        def __getattr__(self, name):
            return getattr(self.comm, name)
        def Sendrecv(self, *message):
            time.sleep(2.5 if message[0][0].nbytes > 100 else 0)
            self.comm.Sendrecv(*message)

    t = world()
    t._comm = Slow(t._comm)
    t = Watch(t)
    other = 1 - t.rank
    t.sendrecv(np.full(1000, t.rank), other, np.empty(1000, int), other)
    if t.rank == 1:
        time.sleep(2.5)  # rank 0 waits longer than it takes to be suspected
    tree.barrier(t)
    if t.rank == 0:
        t.isend(np.ones(2), 1).wait()  # small: it does not wait for the receive
    else:
        time.sleep(2.5)
        assert t.recv(np.zeros(2), 0)[0] == 1  # from a rank that has ended
    print("done", flush=True)
"""


# Under Open MPI three kinds of end: ranks that wait, one that is gone, one that ends well. All in
# `make test-mpi`; the watch is the same code under both.
ON_OPEN_MPI = {"a cycle of sends", "a rank is killed", "a rank returns"}
ENDINGS = [(case, "mpi") for case in some(CASES)] + [
    (case, "openmpi") for case in CASES if EVERY or case in ON_OPEN_MPI]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{(name, mpi): a future of (its run, when it ended, its script)}, three at a time: they mostly
    wait."""
    scripts = {"slow": (2, SLOW), "mismatches": (3, CATCHING)}
    for case, (deadline_s, body, _) in CASES.items():
        scripts[case] = (3, textwrap.dedent(ENDING).format(deadline_s=deadline_s, body=body))

    def start(name, mpi, folder):
        n, text = scripts[name]
        path = folder / "script.py"
        path.write_text(textwrap.dedent(text))
        return mpiexec(n, path, timeout=60, mpi=mpi), time.time(), path

    with ThreadPoolExecutor(3) as pool:
        pairs = [(name, mpi) for name in ("slow", "mismatches") for mpi in PYTHONS] + ENDINGS
        # folders are made here: pytest's first one is not safe in threads
        yield {pair: pool.submit(start, *pair, tmp_path_factory.mktemp("run")) for pair in pairs}


@under_both
def test_every_mismatch_is_raised_on_every_rank_before_the_payload(runs, mpi):
    run, _, _ = runs["mismatches", mpi].result()
    assert run.returncode == 0, run.stderr
    for case in MISMATCHES:
        assert run.stdout.count(f"caught {case}\n") == 2, case
    assert run.stdout.count("caught by all\n") == 3


@pytest.mark.parametrize("mpi", some(PYTHONS))
def test_under_plain_mpiexec_ranks_are_watched_unless_told_otherwise(mpi, tmp_path):
    """Red before: a script that did not name Watch hung for ever without a word."""
    script = tmp_path / "script.py"
    script.write_text("import sys\nimport numpy as np\nfrom minidl.comm import world\nt = world()\n"
                      "print(type(t).__name__)\n"
                      "if len(sys.argv) > 1: t.recv(np.zeros(1), (t.rank + 1) % t.size)\n")
    run = mpiexec(3, script, "hang", timeout=60, mpi=mpi, env={"MINIDL_WATCH": ""})
    assert run.returncode != 0
    assert "rank 0: watch: deadlock: ranks 0-2 can never go on" in run.stderr
    assert "script.py:6" in run.stderr
    run = mpiexec(3, script, timeout=60, mpi=mpi, check=True)  # MINIDL_WATCH=no
    assert run.stdout.count("MPITransport") == 3


@pytest.mark.parametrize("case, mpi", ENDINGS)
def test_a_run_that_cannot_go_on_ends_and_says_why(runs, case, mpi):
    run, ended, script = runs[case, mpi].result()
    patterns = CASES[case][-1]
    assert run.returncode != 0
    # From files: what a rank printed just before, an mpiexec that ends the others may drop, or mix
    # with what another rank printed.
    notes = [note.read_text().split() for note in script.parent.glob("script.py.*")]
    assert len(notes) == 3
    started = max(float(when) for when, _ in notes)
    assert ended - started < 15  # far from the deadline of 60, and from the 2 s without other runs
    # MPICH's mpiexec ends the others within milliseconds after a death, and reports it on stdout:
    # there rank 0 may be too late.
    outpaced = case == "a rank is killed" and mpi == "mpi"
    for pattern in patterns:
        assert re.search(pattern, run.stderr + run.stdout * outpaced), run.stderr
    reports = re.findall(r"watch: \w+", run.stderr)
    speaks = case != "a rank raises"  # that is abort.py's
    assert len(reports) == speaks or outpaced, "one rank speaks for all"
    for _, pid in notes:
        assert gone(int(pid)), "no process is left behind"


def gone(pid):
    """Whether the process ends within 3 s: a killed one takes its time to die."""
    return any(not alive(pid) or time.sleep(0.1) for _ in range(30))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as f:  # a zombie is its parent's business
        return f.read().rpartition(")")[2].split()[0] != "Z"


@under_both
def test_slow_networks_slow_ranks_and_early_ends_are_no_deadlocks(runs, mpi):
    run, _, _ = runs["slow", mpi].result()
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("done") == 2 and "watch" not in run.stderr


@under_both
def test_shared_memory_goes_on_under_a_watch(tmp_path, mpi):
    """All lengths, again and again: each window is watched by one object, however often it is used.
    The watch's thread ends with the last Watch."""
    path = tmp_path / "shared.py"
    path.write_text(textwrap.dedent("""
        import gc, threading, time
        import numpy as np
        from minidl.comm import shared_memory, world
        from minidl.comm.observe.watch import Watch

        inner = world()
        t = Watch(inner)
        for length in (5, 70_000, 5, 2_000_000, 70_000, 5):
            x = np.arange(length) + float(t.rank)
            got = shared_memory.all_reduce(t, x)
            assert got[-1] == 2 * (length - 1) + 1 and got[0] == 1, (length, got)
        assert t.shared(64) is t.shared(64)
        here = threading.active_count()
        del t
        gc.collect()
        until = time.monotonic() + 30
        while threading.active_count() >= here and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.active_count() < here, threading.enumerate()
        print("end", flush=True)
        """))
    run = mpiexec(2, path, timeout=60, mpi=mpi, check=True)
    assert run.stdout.count("end") == 2
