"""Of a table only the rows travel that are used, and the bits are those of whole tables."""

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.comm import simulate
from minidl.comm.observe.ledger import Ledger
from minidl.nn import functional as F
from minidl.parallel.server.rules import ASYNC, SYNC
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.tensor import Tensor
from tests.conftest import ranks
from tests.parallel.server.test_server import OPTIMIZERS, SIZES, collect, half_as_many, weights


def train_on_rows(t, by_row, make_optimizer, n_servers):
    """(params, ledger): an embedding of 11 rows, of which each worker uses a few, some twice."""
    ledger = Ledger(t)
    minidl.manual_seed(3)
    table = Tensor(minidl.Generator(1).normal(11, 3, dtype=np.float64), requires_grad=True)
    dense = Tensor(np.ones((3, 2)), requires_grad=True)
    params, tables = [dense, table], [table] if by_row else []
    if t.rank < n_servers:
        Server(ledger, params, n_servers, SYNC, make_optimizer, tables).serve()
    else:
        with Worker(ledger, params, n_servers, tables) as worker:
            for step in range(3):
                ids = np.array([[0, t.rank, 10], [t.rank, 4, (t.rank + step) % 11]])
                worker.pull({table: ids} if by_row else None)
                (F.embedding(ids, table) @ dense).tanh().sum().backward()
                worker.push()
    return params, ledger


@pytest.mark.parametrize("name", OPTIMIZERS)
@ranks(*SIZES)
def test_rows_give_the_bits_of_whole_tables(t, name):
    n_servers = half_as_many(t)
    results = []
    for by_row in (True, False):
        params, _ = train_on_rows(t, by_row, OPTIMIZERS[name], n_servers)
        results.append(collect(t, n_servers, params))
    for sparse, dense in zip(*results):
        np.testing.assert_array_equal(sparse, dense)


@ranks(*SIZES)
def test_only_the_rows_used_travel_each_once(t):
    n_servers = half_as_many(t)
    params, ledger = train_on_rows(t, True, OPTIMIZERS["sgd"], n_servers)
    if t.rank >= n_servers:
        n_rows = [len({0, t.rank, 10, 4, (t.rank + step) % 11}) for step in range(3)]
        n_bytes = sum(params[0].nbytes + n * 3 * 8 for n in n_rows)
        assert ledger.count(label="param_server.pull").bytes_received == n_bytes
        assert ledger.count(label="param_server.push").bytes_sent == n_bytes
        ids = ledger.count(label="param_server.ids").bytes_sent
        assert ids == 2 * 8 * sum(1 + n for n in n_rows), "pull and push say which, how many"


@ranks(2)
def test_a_row_that_is_pushed_twice_adds_up(t):
    """Not by our worker, which adds before it sends; the server takes them from anybody."""
    table = Tensor(np.zeros((4, 2)), requires_grad=True)
    if t.rank == 0:
        Server(t, [table], 1, ASYNC, lambda shard: optim.SGD(shard, lr=1.0), [table]).serve()
        np.testing.assert_array_equal(table.data, [[0, 0], [-1, -1], [0, 0], [-5, -5]])
    else:
        with Worker(t, [table], 1, [table]) as worker:
            worker.rows = [[np.array([3, 1, 3])]]
            worker._push(0, np.array([2.0, 2, 1, 1, 3, 3]), 1)


@ranks(2, 3)
def test_rows_not_pulled_stay_as_they_were(t):
    table = Tensor(np.full((5, 2), float(t.rank)), requires_grad=True)
    if t.rank == 0:
        Server(t, [table], 1, ASYNC, lambda shard: optim.SGD(shard, lr=1.0), [table]).serve()
    else:
        with Worker(t, [table], 1, [table]) as worker:
            worker.pull({table: [4, 2, 4]})
        np.testing.assert_array_equal(table.data[:, 0] == 0, [False, False, True, False, True])


def test_rows_must_be_rows_of_a_table():
    def body(t):
        params = weights(4)
        if t.rank == 0:
            Server(t, params, 1, ASYNC, OPTIMIZERS["sgd"], params).serve()
            return
        with Worker(t, params, 1, params) as worker:
            for bad in ([4], [-1, 2], [0.5]):
                with pytest.raises(IndexError, match="rank 1: rows of this table"):
                    worker.pull({params[0]: bad})
            with pytest.raises(ValueError, match=r"rows for a tensor of shape \(3,\)"):
                worker.pull({weights(3)[0]: [0]})
            with pytest.raises(RuntimeError, match="pull before the first push_difference"):
                worker.push_difference()

    simulate(2, body)
