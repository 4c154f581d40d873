"""minidl/parallel/server/tables.py: the same bits on any servers and workers, replays and cuts."""

import numpy as np
import pytest

from minidl import nn, snapshot
from minidl.comm import objects, ring, simulate
from minidl.comm.framing import HEADER_BYTES
from minidl.comm.observe.ledger import Ledger
from minidl.parallel.server.rules import ASYNC, SYNC, bounded
from minidl.parallel.server.table import Table, adagrad, ftrl, mixed
from minidl.parallel.server.tables import Tables
from tests.conftest import n_drawn, ranks

P = 5
GRIDS = [(1, 0), (2, 1), (3, 1), (3, 2), (4, 1), (5, 3), (8, 2)]  # (ranks, servers)
ALL = np.arange(60)


def make(t, servers, rule=SYNC):
    tables = [Table("user", 3, admit=2, ttl_s=4), Table("item", 1, ftrl(l1=0.01))]
    return Tables(t, tables, servers, P, rule)


def batch(partition, step):
    """Of partition 1 nothing in some steps."""
    rng = np.random.default_rng([partition, step])
    n = 0 if partition == 1 and step % 3 else int(rng.integers(1, 9))
    return {name: np.unique(rng.integers(0, 60, n)) for name in ("user", "item")}


def train(t, tables, steps, servers, cut=None, again=()):
    """The workers' steps: gradients depend on the weights, as those of a model do. again: steps
    whose pushes are sent twice."""
    mine = list(range(P))[t.rank - servers::t.size - servers]
    for step in steps:
        pulled = {(p, name): tables.pull(name, ids) for p in mine
                  for name, ids in batch(p, step).items()}
        t.compute(1e-3 * (t.size - t.rank))  # the last worker's pushes are the first to arrive
        for (p, name), weights in pulled.items():
            ids = batch(p, step)[name]
            if not len(ids):
                continue
            # with p: equal gradients of a row have the same sum in any order
            grads = np.sin(7 * weights + ids[:, None] + step + p).astype(np.float32)
            for _ in range(2 if step in again else 1):
                tables.push(name, ids, grads, p, step + 1, 1000 * step)
        tables.end_step(mine)
        if cut is not None:
            tables.cut(step + 1)
            cut(step + 1)


STEPS = range(9)


def run(t, servers, steps=STEPS, folder=None, rule=SYNC, again=()):
    """Train, and save after each step where there is a folder."""
    tables, model, first = make(t, servers, rule), nn.Linear(1, 1), steps[0]
    if folder is not None and snapshot.latest(folder) is not None:
        first = snapshot.load(folder, t, model=model, tables=tables)

    def save(step):
        snapshot.save(folder, step, t, model=model, tables=tables)

    cut = save if folder is not None else None
    if tables.serves:
        for step in tables.serve():
            save(step)
    else:
        with tables:
            train(t, tables, range(first, steps[-1] + 1), servers, cut, again)
    return held(tables)


def held(tables):
    """{(table, id): (weights, state)} of this rank, and ids that wait."""
    found = {}
    for name, table in tables.tables.items():
        rows = table.rows()
        for i, id in enumerate(rows["id"].tolist()):
            found[name, id] = tuple(rows[k][i].tobytes() for k in ("seen", *table.arrays))
        found |= {(name, id, "waits"): one for id, one in table.waiting.items()}
    return found


def merged(parts):
    whole = {}
    for part in parts:
        assert not whole.keys() & part.keys(), "each row has one server"
        whole |= part
    return whole


@pytest.fixture(scope="module")
def alone():
    return simulate(1, run, 0)[0]


@pytest.mark.parametrize("size, servers", GRIDS)
def test_sync_gives_the_same_bits_on_any_servers_and_workers(alone, size, servers):
    found = simulate(size, run, servers)
    assert merged(found) == alone and len(alone) > 60
    assert not any(found[servers:]) or not servers, "workers hold no rows"


@ranks(2, 3, 4, 5, 8)
def test_pushes_that_come_in_any_order_give_the_bits_of_one_rank(t):
    """In the simulator a worker with a higher rank is faster; under MPI whoever is."""
    servers = max(1, t.size // 4)
    found = objects.gather(t, run(t, servers))
    if t.rank == 0:
        assert merged(found) == run(t.subgroup([0]), 0)


def test_pushes_of_a_step_are_applied_in_the_order_of_the_partitions():
    """Not of their coming: AdaGrad's second update of a row is smaller than its first."""
    def body(t, order):
        tables = make(t, 0)
        for step in range(3):
            for p in order:
                for name in ("user", "item"):
                    grads = np.full((3, tables.tables[name].dim), 1.0 + p, np.float32)
                    tables.push(name, np.arange(3), grads, p, step + 1, 1000 * step)
            tables.end_step(range(P))
        return held(tables)

    (wanted,) = simulate(1, body, range(P))
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        assert simulate(1, body, order) == [wanted]


def test_rows_are_forgotten_at_the_same_step_on_any_number_of_servers():
    """Id 1 is pushed at 0 and forgotten after 2 s; later pushes are of ids of other servers."""
    pushes = [(1, 0), (2, 1000), (2, 5000), (3, 9000), (4, 9100)]

    def body(t, servers):
        tables = Tables(t, [Table("u", 1, adagrad(0.1, scale=0.0), ttl_s=2.0)], servers, 1)
        if tables.serves:
            return list(tables.serve())
        weights = []
        with tables:
            for step, (id, now) in enumerate(pushes):
                weights.append(float(tables.pull("u", [1])[0, 0]))
                tables.push("u", [id], np.ones((1, 1)), 0, step + 1, now)
                tables.end_step([0])
            return [*weights, float(tables.pull("u", [1])[0, 0])]

    for servers in (0, 1, 2, 3, 5):
        weights = simulate(servers + 1, body, servers)[-1]
        np.testing.assert_allclose(weights, [0, -0.1, -0.1, 0, 0, 0], atol=1e-7)


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_servers_without_an_id_of_a_replayed_push_drop_it_too(servers):
    """Else they would take it for the push of the next step."""
    def body(t, again):
        tables = Tables(t, [Table("u", 1, adagrad(0.1, scale=0.0))], servers, 2)
        if tables.serves:
            return list(tables.serve())
        with tables:
            for step in range(6):
                for partition in range(2):
                    g = 1 + tables.pull("u", [7]) + partition
                    for _ in range(2 if again else 1):
                        tables.push("u", [7 + partition], g, partition, step + 1, 0)
                tables.end_step([0, 1])
            return tables.pull("u", [7, 8]).tolist()

    once, twice = (simulate(servers + 1, body, again)[-1] for again in (False, True))
    assert once == twice


@pytest.mark.parametrize("size, servers", [(1, 0), (3, 1), (4, 2)])
def test_a_replayed_push_changes_no_bit(alone, size, servers):
    """With ASYNC, too: each is dropped by what it says of its partition."""
    if servers == 0:
        assert merged(simulate(size, lambda t: run(t, servers, again=(2, 5)))) == alone
    rules = simulate(size, lambda t: run(t, servers, rule=ASYNC, again=range(9)))
    once = simulate(size, lambda t: run(t, servers, rule=ASYNC))
    if size == 1:
        assert rules == once
    assert merged(rules).keys() == merged(once).keys()


@pytest.mark.parametrize("grids", [[(3, 1), (4, 2), (1, 0), (2, 1)], [(1, 0), (5, 3)]])
def test_a_cut_resumes_on_other_servers_and_workers(alone, tmp_path, grids):
    """All ranks save at one cut; the next run begins with its bits."""
    at = 0
    for i, (size, servers) in enumerate(grids):
        end = 9 if i == len(grids) - 1 else at + 2
        found = simulate(size, lambda t, servers=servers, at=at, end=end: run(
            t, servers, range(at, end), tmp_path))
        at = end
        assert snapshot.latest(tmp_path) == end
    assert merged(found) == alone


def test_a_run_that_dies_goes_on_to_the_same_bits(alone, tmp_path):
    """At any message of any rank: a fault in each run of a loop, until one gets through."""
    for seed in range(n_drawn(200)):
        rng = np.random.default_rng(seed)
        size, servers = GRIDS[1:5][rng.integers(4)]
        rank, left = int(rng.integers(size)), [int(rng.integers(400))]

        def body(t, rank=rank, left=left, servers=servers):
            if t.rank == rank:
                isend = t.isend

                def dying(*args, left=left, isend=isend, **kwargs):
                    left[0] -= 1
                    if not left[0]:
                        raise KeyboardInterrupt("planted")
                    return isend(*args, **kwargs)

                t.isend = dying
            return run(t, servers, range(9), tmp_path)

        try:
            found = simulate(size, body)
        except BaseException as error:
            assert "planted" in str(error) or isinstance(error, KeyboardInterrupt), error
            continue
        break
    assert merged(found) == alone


@pytest.mark.parametrize("size, servers", [(3, 1), (4, 2)])
def test_bytes_are_the_formula_over_touched_rows(size, servers):
    """Nothing grows with the table: ids of a push up, rows of a pull down."""
    def body(t):
        ledger = Ledger(t)
        tables = make(ledger, servers)
        if tables.serves:
            assert list(tables.serve()) == []
        else:
            with tables:
                train(t, tables, range(4), servers)
        return {label: ledger.count(label=label).bytes_sent for label in
                ("table.ids", "table.pull", "table.push", "table.header")}

    sent = simulate(size, body)
    ids = pull = push = headers = 0
    for p in range(P):
        for step in range(4):
            for name, dim in (("user", 3), ("item", 1)):
                which = batch(p, step)[name]
                there = np.bincount((mixed(which) % np.uint64(servers)).astype(int),
                                    minlength=servers)
                ids += 8 * len(which) + 8 * (len(which) + servers)
                pull += 4 * dim * len(which)
                push += 4 * dim * len(which)
                headers += HEADER_BYTES * (2 * (there > 0).sum() + servers)
    headers += 2 * HEADER_BYTES * servers * (size - servers)  # of leaving, and its answer
    total = {label: sum(rank[label] for rank in sent) for label in sent[0]}
    assert total == {"table.ids": ids, "table.pull": pull, "table.push": push,
                     "table.header": headers}


def test_wrong_use_is_refused():
    with pytest.raises(RuntimeError, match="Tables wants rule=SYNC .* from 1 to 1 servers"):
        simulate(2, lambda t: make(t, 2))
    with pytest.raises(RuntimeError, match="got rule=ssp"):
        simulate(1, lambda t: make(t, 0, bounded(1)))
    with pytest.raises(RuntimeError, match="push wants each id once; got 2 ids"):
        simulate(1, lambda t: make(t, 0).push("item", [3, 3], np.ones((2, 1)), 0, 1, 0))

    def failing(t):
        tables = make(t, 1)
        if tables.serves:
            list(tables.serve())
        with tables:
            raise KeyError("planted")

    with pytest.raises(RuntimeError, match="worker 1 stopped with an error|planted"):
        simulate(2, failing)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_after_a_worker_has_left_nothing_waits_unread(servers):
    """Each server's answer to the worker's leaving has been taken: the group is free again. A
    server that leaves tells nobody."""
    def body(t):
        with Tables(t, [Table("u", 1)], servers, 1) as tables:
            if tables.serves:
                assert list(tables.serve()) == []
            else:
                tables.push("u", [1], np.ones((1, 1)), 0, 1, 0)
                tables.end_step([0])
        return ring.all_reduce(tables.t, np.ones(5)).tolist()

    assert simulate(servers + 1, body) == [[servers + 1.0] * 5] * (servers + 1)
