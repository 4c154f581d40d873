"""Geo: every worker's own progress counts one part in N."""

import numpy as np
import pytest

from minidl import optim
from minidl.comm import simulate
from minidl.nn import functional as F
from minidl.parallel.server.rules import GEO
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from tests.conftest import ranks
from tests.parallel.server.test_server import (
    CLOSE, OPTIMIZERS, SIZES, collect, data, half_as_many, network, weights,
)


@ranks(*SIZES)
def test_geo_adds_every_workers_progress_over_n(t):
    """Constant gradients: the order of arrival does not matter, and powers of two are exact."""
    n_servers, rounds, k, lr = half_as_many(t), 3, 4, 1 / 8
    n_workers = t.size - n_servers
    params = weights(5, 2)
    if t.rank < n_servers:
        server = Server(t, params, n_servers, GEO)
        server.serve()
        assert server.version == rounds * n_workers
    else:
        with Worker(t, params, n_servers) as worker:
            local = optim.SGD(params, lr=lr)
            for _ in range(rounds):
                worker.pull()
                for _ in range(k):
                    for p in params:
                        p.grad = np.full(p.shape, float(t.rank))
                    local.step()
                worker.push_difference()
    mean = sum(range(n_servers, t.size)) / n_workers
    for after, before in zip(collect(t, n_servers, params), weights(5, 2)):
        # N that is no power of two rounds each of the few additions
        np.testing.assert_allclose(after, before.array - rounds * k * lr * mean,
                                   rtol=0, atol=1e-14)


def test_geo_with_one_worker_is_local_training():
    def body(t):
        net, twin = network(), network()
        params = list(net.parameters())
        if t.rank == 0:
            Server(t, params, 1, GEO).serve()
            return
        opts = [OPTIMIZERS["sgd"](list(n.parameters())) for n in (net, twin)]
        with Worker(t, params) as worker:
            for step in range(8):
                if step % 2 == 0:
                    worker.pull()
                x, y = data(step)
                for model, opt in zip((net, twin), opts):
                    F.cross_entropy(model(x), y).backward()
                    opt.step()
                    opt.zero_grad()
                if step % 2:
                    worker.push_difference()
            worker.pull()
        for p, q in zip(params, twin.parameters()):
            np.testing.assert_allclose(p.array, q.array, **CLOSE)  # w + (v - w) rounds

    simulate(2, body)


def test_a_difference_to_nothing_is_refused():
    def body(t):
        params = weights(4)
        if t.rank == 0:
            Server(t, params, 1, GEO).serve()
            return
        with Worker(t, params) as worker:
            with pytest.raises(RuntimeError, match="rank 1: push_difference.. .* got no pulled"):
                worker.push_difference()

    simulate(2, body)
