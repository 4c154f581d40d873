"""A throttled transport keeps the transport's rules, and takes the time that its links say."""

import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from minidl.cli import main as cli
from minidl.comm import simulate
from minidl.comm.transport.links import Links, Port
from minidl.comm.transport.throttled import SharedPort, Throttled, links_of
from tests.mpi.launch import ROOT, mpiexec, require_mpi

RULES = """
import warnings
from minidl.comm import tree, world
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.links import Links
from minidl.comm.transport.throttled import Throttled, links_of
from tests.mpi.run_bodies import ROOT, bodies_of

warnings.simplefilter("error")
t = world()
assert links_of(t) is None
quick = (1e-6, 1e-11)
count = 0
for links in (Links.uniform(*quick), Links.nodes([[0, 2], [1]], quick, quick)):
    slow = Throttled(t, links)
    assert links_of(Ledger(slow)) is links
    for file in ("transport/test_protocol", "transport/test_background", "test_ring",
                 "observe/test_ledger"):
        for name, body, arguments in bodies_of(ROOT / f"tests/comm/{file}.py", t.size):
            if t.rank == 0:
                print(name, flush=True)
            body(slow, **arguments)
            tree.barrier(t)
            count += 1
if t.rank == 0:  # after the last barrier
    print("passed", count, flush=True)
"""


@pytest.mark.mpi
def test_the_rules_of_every_transport_are_kept(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(RULES)
    run = mpiexec(3, path, timeout=60, check=True)
    assert int(run.stdout.split("passed")[1]) > 50


TIMES = """
import time

import numpy as np
from minidl.comm import cost, ring, tree, world
from minidl.comm.transport.background import Background
from minidl.comm.transport.links import Links
from minidl.comm.transport.throttled import Throttled, links_of

t = world()
assert str(links_of(t)) == "20 Mbit/s, 5 ms"
plain = t.inner
ALPHA, BETA = t.links.intra


def check(what, work, modelled, times=2.0):
    '''Clocks sleep until the model's moment, so nothing is ever faster. How much slower a round is,
    other programs decide, so one round of twenty must stay below so many `times`: 0.1 s and
    more above the model.'''
    for _ in range(20):
        tree.barrier(plain)
        start = time.perf_counter()
        work()
        moments = np.array([time.perf_counter(), -start, start])
        end, first, last = ring.all_reduce(plain, moments, np.maximum)
        assert end + first > 0.9999 * modelled, (what, end + first, modelled)
        if end - last < times * modelled:  # the same figures, and so the same answer, on all ranks
            break
    else:
        raise AssertionError(f"{what}: {end - last} s, wanted at most {times} x {modelled}")
    if t.rank == 0:
        print(f"{what}: measured / modelled = {(end - last) / modelled:.3f}", flush=True)


x = np.zeros(1 << 16, "u1")
ring_s = cost.ring_all_reduce(t.size, x.nbytes, ALPHA, BETA).time_s
assert 0.1 < 2 * ring_s < 0.2
check("ring", lambda: [ring.all_reduce(t, x) for _ in range(2)], 2 * ring_s)


def overlapped():
    with Background(t) as background:
        jobs = [background.submit(ring.all_reduce, x) for _ in range(2)]
        time.sleep(2 * ring_s)  # a computation that leaves the core to others


check("overlapped with as long a computation", overlapped, 2 * ring_s, times=1.8)  # else 2


# Small messages on a slower network: MPI moves large ones only while both sides call it.
small = np.zeros(1000, "u1")
slower = Throttled(plain, Links.uniform(ALPHA, 2e-5))


def late():
    '''What arrived during a computation costs nothing.'''
    request = slower.irecv(np.empty_like(small), (t.rank - 1) % t.size)
    slower.send(small, (t.rank + 1) % t.size)
    time.sleep(0.2)
    request.wait()


check("a receive that waits late", late, 0.02 + 0.2)


def by_two_threads():
    '''Two tasks, each in a group of its own: one port.'''
    def swap(group):
        group.sendrecv(x, t.rank ^ 1, np.empty_like(x), t.rank ^ 1)
    threads = [t.spawn(swap, t.subgroup(range(t.size))) for _ in range(4)]
    for thread in threads:
        thread.wait()


check("four threads, one port", by_two_threads, ALPHA + 4 * x.nbytes * BETA)


def to_anybody():
    if t.rank:
        t.send(x, 0)
    else:
        for _ in range(t.size - 1):
            t.recv_any()


check("receive from anybody", to_anybody, ALPHA + 3 * x.nbytes * BETA)


def across(transport):
    '''Ranks 0 and 1 send to 2 and 3, on the other node, four times.'''
    for _ in range(4):
        if t.rank < 2:
            transport.send(x, t.rank + 2)
        else:
            transport.recv(np.empty_like(x), t.rank - 2)


own, shared = (
    Throttled(plain, Links.nodes(2, (0.0, 0.0), (ALPHA, BETA), nic=nic)) for nic in ("rank", "node")
)
check("across, a NIC per rank", lambda: across(own), ALPHA + 4 * x.nbytes * BETA)
check("across, a NIC per node", lambda: across(shared), ALPHA + 8 * x.nbytes * BETA)
straggler = Throttled(plain, Links.uniform(0.0, 0.0, straggler={1: 3.0}))
check("a straggler", lambda: straggler.compute(0.1), 0.2)  # beside the 0.1 of the work
"""


@pytest.mark.mpi
def test_measured_times_are_the_models(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(TIMES)
    run = mpiexec(4, path, timeout=60, env={"MINIDL_NET": "20Mbit,5ms"}, check=True)
    print(run.stdout)  # pytest -s shows the ratios
    assert run.stdout.count("measured / modelled") == 8


@pytest.mark.mpi
def test_minidl_run_takes_a_network(tmp_path):
    require_mpi()
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(
            """
            from minidl.comm import world
            from minidl.comm.observe.ledger import Ledger
            from minidl.course.tutorial import Table

            Table(Ledger(world())).finish()
            """
        )
    )
    run = subprocess.run(
        [*(sys.executable, "-m", "minidl.cli.main", "run", "-n", "2"), "--net", "1Gbit,50us", path],
        **{"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("messages were slowed down to 1 Gbit/s, 50 us\n") == 1


def test_a_network_that_cannot_be_read_starts_nothing(tmp_path, capsys):
    pytest.importorskip("mpi4py")
    path = tmp_path / "script.py"
    path.touch()
    assert cli.main(["run", "-n", "2", "--net", "fast", str(path)]) == 2
    assert "--net: the network 'fast' for 2 ranks: wanted a rate" in capsys.readouterr().err


def test_a_simulated_transport_has_a_clock_of_its_own():
    def body(t):
        with pytest.raises(ValueError, match=r"rank 0: Throttled sleeps.*simulate\(n, fn, links="):
            Throttled(t, Links.uniform(0.0, 0.0))

    simulate(1, body)


def test_links_of_an_unthrottled_transport_is_none():
    assert simulate(1, lambda t: links_of(t) is None) == [True]


def test_a_shared_port_is_one_port_in_two_places(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "clocks"
    path.write_bytes(bytes(24))
    with open(path, "r+b") as one, open(path, "r+b") as other:
        ends = [SharedPort(file, np.memmap(file, np.float64)) for file in (one, other)]
        plain = Port()
        now = time.perf_counter()
        for k, (at, seconds) in enumerate([(now, 4.0), (now + 1, 4.0), (now + 20, 1.0)]):
            assert ends[k % 2].send(at, seconds) == plain.send(at, seconds)
            assert ends[k % 2].receive(at, seconds) == plain.receive(at, seconds)
