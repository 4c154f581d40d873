"""Ranks of a parameter server that fail, die or fall silent: who goes on, and what is said."""

import contextlib
import time

import pytest

from minidl import optim
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel.server.rules import ASYNC, SYNC, bounded
from minidl.parallel.server.server import Server, WorkerLost
from minidl.parallel.server.worker import Refused, Worker
from tests.conftest import ranks
from tests.mpi.launch import mpiexec
from tests.parallel.server.test_server import OPTIMIZERS, weights


def work_for(t, seconds):
    """Be busy, on either clock."""
    t.compute(seconds)
    if not t.simulated:
        time.sleep(seconds)


class Planted(Exception):
    pass


@pytest.mark.parametrize("rule", [ASYNC, bounded(1)], ids=lambda rule: rule.name)
@ranks(3, 4, 5)
def test_a_dead_worker_does_not_stop_the_others(t, rule):
    params = weights(3)
    if t.rank == 0:
        server = Server(t, params, 1, rule, OPTIMIZERS["sgd"])
        report = server.serve()
        died, others = t.size - 1, range(1, t.size - 1)
        assert [server.staleness(w).total() for w in others] == [9] * len(others)
        assert server.staleness(died).total() == 2
        assert "Planted: out of memory" in report.splitlines()[-1]
        return
    try:
        with Worker(t, params) as worker:
            for step in range(9):
                worker.pull()
                t.compute(1.0)
                if t.rank == t.size - 1 and step == 2:
                    raise Planted("out of memory")
                params[0].grad = params[0].array
                worker.push()
    except Planted:
        pass


@ranks(3, 4)
def test_sync_cannot_do_without_a_dead_worker_and_says_whose_death_it_was(t):
    params = weights(3)
    if t.rank == 0:
        with pytest.raises(WorkerLost, match=r"worker 2 is lost \(.*Planted.*sync needs every"):
            Server(t, params, 1, SYNC, OPTIMIZERS["sgd"]).serve()
        return
    expected = Planted if t.rank == 2 else Refused
    with pytest.raises(expected, match="^me$|server on rank 0 does not answer .*worker 2 is lost"):
        with Worker(t, params) as worker:
            for _ in range(3):
                worker.pull()
                if t.rank == 2:
                    work_for(t, 0.05)  # the others wait for it by then
                    raise Planted("me")
                params[0].grad = params[0].array
                worker.push()


@ranks(3, 4)
def test_a_failed_server_refuses_everybody_by_name_and_reason(t):
    params = weights(3)

    def explode(shard):
        optimizer = optim.SGD(shard, lr=1.0)
        optimizer.step = lambda: 1 / 0
        return optimizer

    if t.rank == 0:
        with pytest.raises(ZeroDivisionError):
            Server(t, params, 1, ASYNC, explode).serve()
        return
    with pytest.raises(Refused, match=f"{t.rank}: the server on rank 0 .*: ZeroDivisionError"):
        with Worker(t, params) as worker:
            worker.pull()
            if t.rank == 1:
                params[0].grad = params[0].array
                worker.push()
            t.compute(1.0)
            worker._receive(0)  # as a pull, whose request nobody would take


@ranks(3, 4)
def test_a_silent_worker_is_dropped_and_told_so(t):
    params = weights(3)
    if t.rank == 0:
        server = Server(t, params, 1, ASYNC, OPTIMIZERS["sgd"], silence_s=0.5)
        assert "silent for " in server.serve().splitlines()[2]
        assert server.staleness(1).total() == 1
        return
    told = pytest.raises(Refused, match="worker 1 was silent for")
    with told if t.rank == 1 else contextlib.nullcontext():
        with Worker(t, params) as worker:
            for _ in range(30 if t.rank > 1 else 2):
                worker.pull()
                work_for(t, 0.05)
                params[0].grad = params[0].array
                worker.push()
                if t.rank == 1:
                    work_for(t, 1.0)


@ranks(3, 4)
def test_a_worker_that_waits_for_the_server_is_not_silent(t):
    """Longer than silence_s, for worker 2, which pulls now and then but does not push."""
    params, second = weights(3), 1 if t.simulated else 3  # a busy machine may keep a rank waiting
    if t.rank == 0:
        server = Server(t, params, 1, bounded(0), OPTIMIZERS["sgd"],
                        silence_s=0.5 * second)
        server.serve()
        assert set(server.state.values()) == {"left"}
        return
    with Worker(t, params) as worker:
        for _ in range(10 if t.rank == 2 else 1):
            worker.pull()
            work_for(t, 0.1 * second if t.rank == 2 else 0.0)
        worker.push()
        worker.pull()


@pytest.mark.parametrize("silence_s", [None, 0.5])
def test_a_rule_that_stops_everybody_is_an_error_and_no_hang(silence_s):
    rule = bounded(0)._replace(may_pull=lambda clocks, worker: clocks[worker] < 2)

    def body(t):
        params = weights(3)
        if t.rank == 0:
            Server(t, params, 1, rule, OPTIMIZERS["sgd"], silence_s=silence_s).serve()
        else:
            with Worker(t, params) as worker:
                for _ in range(3):
                    worker.pull()
                    worker.push()

    with pytest.raises(RankFailed, match=r"rank 0: all workers wait, .*\{1: 2, 2: 2\}"):
        simulate(3, body)


KILLED = """
import os
import numpy as np
from minidl import optim
from minidl.comm import world
from minidl.parallel.server.rules import ASYNC
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.tensor import Tensor

t = world()
params = [Tensor(np.ones(4), requires_grad=True)]
if t.rank == 0:
    server = Server(t, params, 1, ASYNC, lambda shard: optim.SGD(shard, lr=0.1))
    apply, count = server.update, []
    def update(values):
        count.append(1)
        if len(count) == 5:
            {how}
        apply(values)
    server.update = update
    server.serve()
else:
    with Worker(t, params) as worker:
        while True:
            worker.pull()
            params[0].grad = params[0].data
            worker.push()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("how", ["raise OSError('disk full')", "os._exit(9)"])
def test_a_dead_server_ends_the_job(tmp_path, how):
    path = tmp_path / "killed.py"
    path.write_text(KILLED.replace("{how}", how))
    run = mpiexec(3, path, timeout=30)
    assert run.returncode != 0
    if "raise" in how:  # of a killed process mpiexec alone can speak, and does
        assert "rank 0: OSError: disk full" in run.stderr


def test_a_dead_server_ends_a_simulated_job_and_is_named():
    def body(t):
        params = weights(2)
        if t.rank == 1:
            server = Server(t, params, 2, ASYNC, OPTIMIZERS["sgd"])
            server.shard = None  # a bug
            server.serve()
        if t.rank == 0:
            Server(t, params, 2, ASYNC, OPTIMIZERS["sgd"]).serve()
        if t.rank == 2:
            with Worker(t, params, 2) as worker:
                worker.pull()

    with pytest.raises(RankFailed, match="^rank 1: "):
        simulate(3, body)
