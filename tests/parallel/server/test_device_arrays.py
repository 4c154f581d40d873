"""Workers on GPUs, and servers on a GPU or in the host's memory: the bits and bytes of NumPy."""

import numpy as np
import pytest

from minidl import optim
from minidl.comm import simulate
from minidl.comm.observe.ledger import Ledger
from minidl.parallel.server.rules import ASYNC, GEO, SYNC, bounded
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.tensor import Tensor
from tests.devices import host, put

# kernels of the device and of the host may round otherwise, and whole numbers do not round: lr is
# a power of two
RULES = {"sync": SYNC, "async": ASYNC, "ssp": bounded(1), "geo": GEO}


def train(t, rule, servers, workers):
    """This rank's weights at the end, and its ledger. Three tensors; 2 servers."""
    place = servers if t.rank < 2 else workers
    ledger, start = Ledger(t), [np.arange(33.0).reshape(11, 3), np.ones((3, 2)), np.zeros(1)]
    params = [Tensor(put(a, place), requires_grad=True) for a in start]
    if t.rank < 2:
        make = None if rule is GEO else lambda shard: optim.SGD(shard, lr=0.5, momentum=0.5)
        Server(ledger, params, 2, rule, make).serve()
    else:
        local = optim.SGD(params, lr=0.25)
        with Worker(ledger, params, 2) as worker:
            for step in range(4):
                worker.pull()
                t.compute(1.0 + 0.3 * t.rank)
                for p in params:
                    p.grad = p.array + put(np.full(p.shape, t.rank + step - 8.0), place)
                if rule is GEO:
                    local.step()
                    worker.push_difference()
                else:
                    worker.push(t.rank)
    return [host(p) for p in params], [ledger.count(peer=p) for p in range(t.size)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("servers", ["cpu", "cuda"])
@pytest.mark.gpu
def test_the_bits_and_bytes_of_numpy(rule, servers):
    for n in (3, 4, 6):
        want = simulate(n, train, RULES[rule], "cpu", "cpu")
        got = simulate(n, train, RULES[rule], servers, "cuda")
        for (ours, our_bytes), (theirs, their_bytes) in zip(got, want, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
            assert our_bytes == their_bytes


@pytest.mark.gpu
def test_a_step_waits_for_the_device_once_for_each_push():
    stand_in = pytest.importorskip("cupy.stand_in", reason="the stand-in counts, a GPU does not")

    def body(t):
        params = [Tensor(put(np.ones(n), "cuda" if t.rank else "cpu"), requires_grad=True)
                  for n in (5, 7)]
        if t.rank == 0:
            Server(t, params, 1, ASYNC, lambda shard: optim.SGD(shard, lr=0.5)).serve()
            return None
        with Worker(t, params) as worker:
            with stand_in.counting() as count:
                for _ in range(3):
                    worker.pull()
                    for p in params:
                        p.grad = p.array * 2
                    worker.push()
        return sum(count.waits.values()), sum(count.uploads.values())

    assert simulate(2, body)[1] == (3, 0)
