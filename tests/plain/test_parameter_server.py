"""The page and the real one: the same bits. Together is the rule SYNC, in turn is ASYNC where the
workers' gradients come in turn, as they do on workers of one speed that do not begin together."""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.parallel.server.rules import ASYNC, SYNC
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.plain import parameter_server
from tests.conftest import ranks

START, N_STEPS, RATE = np.linspace(-2, 3, 7), 4, 0.1


def gradient_at(t, weights):
    """Of sum((r+1) (w - r)^4): another one on each rank, and not linear in the weights."""
    return 4 * (t.rank + 1) * (weights - t.rank)**3 / 100


def ours(t, serve):
    weights = START.copy()
    if t.rank == 0:
        serve(t, weights, N_STEPS, RATE)
    else:
        parameter_server.work(t, weights, lambda w: gradient_at(t, w), N_STEPS)
    return weights


def real(t, rule, late):
    """The weights at the end, and the log of the server. late: the worker's delay before it
    begins, in modelled seconds; a step takes 1."""
    param = nn.Parameter(minidl.tensor(START))
    if t.rank == 0:
        server = Server(t, [param], 1, rule, lambda shard: optim.SGD(shard, lr=RATE))
        server.serve()
        return param.detach().numpy(), server.log
    with Worker(t, [param]) as worker:
        for step in range(N_STEPS):
            worker.pull()
            t.compute(1.0 + late * (step == 0))
            param.grad = minidl.tensor(gradient_at(t, param.detach().numpy()))
            worker.push()
        worker.pull()
    return param.detach().numpy(), None


@ranks(2, 3, 4, 5, 8)
def test_together_has_the_bits_of_the_real_one(t):
    weights, _ = real(t, SYNC, late=0)
    np.testing.assert_array_equal(ours(t, parameter_server.serve_together), weights)


@ranks(2, 3, 4, 5, 8, mpi=False)
def test_in_turn_has_the_bits_of_the_real_one_and_its_staleness(t):
    weights, log = real(t, ASYNC, late=t.rank / t.size)
    mine = ours(t, parameter_server.serve_in_turn)
    if t.rank == 0:
        workers = list(range(1, t.size))
        assert [worker for worker, *_ in log] == workers * N_STEPS
        np.testing.assert_array_equal(mine, weights)
        later = log[len(workers):]  # in the first round a worker's weights are younger
        assert {met - read for _, read, met, _ in later} == {len(workers) - 1}


@ranks(3, 4, 5)
def test_the_two_ways_differ(t):
    together, in_turn = (ours(t, serve) for serve in (
        parameter_server.serve_together, parameter_server.serve_in_turn))
    assert abs(together - in_turn).max() > 0.01
