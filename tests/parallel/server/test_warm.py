"""minidl/parallel/server/warm.py: after the cut all is as if the run had trained before it too."""

import math

import numpy as np
import pytest

from minidl import nn, snapshot
from minidl.comm import objects, simulate, tree
from minidl.comm.transport.scheduler import RankFailed
from minidl.data.stream import FolderLog, Source
from minidl.parallel.server.table import Table, adagrad, ftrl
from minidl.parallel.server.tables import Tables
from minidl.parallel.server.warm import taken_over, warm_start
from tests.conftest import dealt, ranks
from tests.parallel.server.test_tables import GRIDS, held, merged
from tests.snapshot.test_snapshot import common_folder

P, N, CUT = 3, 40, 1000  # partitions, records of each, ms: the first 20 are before it


def filled(folder):
    log = FolderLog(folder / "log", P)
    for p in range(P):
        log.append(p, [b"%d" % ((7 * k + p) % 31) for k in range(N)], 50 * np.arange(N))
    return log


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("warm"))


def make(t, servers, rule=adagrad):
    return Tables(t, [Table("user", 3, rule(), admit=2), Table("item", 1, ftrl(), ttl_s=1.5)],
                  servers, P)


def train(t, tables, log, start=None, until=None):
    """Gradients depend on the weights, so each step shows whether those before were the same."""
    source = Source(log, t, per_partition=5, block=5, start=start, until=until or [N] * P,
                    readers=range(tables.n_servers, t.size))
    for _ in tables.serve() if tables.serves else ():
        pass
    if not tables.serves:
        with tables:
            for parts, _ in source:
                for part in parts:
                    ids = np.unique([int(v) for v in part.values])
                    for name in tables.names:
                        rows = tables.pull(name, ids)
                        grads = np.sin(7 * rows + ids[:, None] + part.partition)
                        tables.push(name, ids, grads, part.partition, part.position,
                                    int(part.times.max()))
                tables.end_step(source.mine)
    return tables


def log_loss(t, tables):
    """A gate that serves and pulls: small where the rows of the ids 0 to 30 are large."""
    found = None
    for _ in tables.serve() if tables.serves else ():
        pass
    if not tables.serves:
        with tables:
            found = -float(np.abs(tables.pull("item", np.arange(31))).sum())
    return objects.broadcast(t, found, t.size - 1)


@pytest.mark.parametrize("servers", [1, 2])
@ranks(1, 2, 3, 4, 5, 8)
def test_a_run_from_the_cut_ends_in_the_bits_of_one_from_the_beginning(t, servers):
    """Offline on one rank, saved, and taken over on any number of servers."""
    servers, one = min(servers, t.size - 1), t.subgroup([0])
    with common_folder(t) as folder:
        if one:
            filled(folder)
            offline = train(one, make(one, 0), FolderLog(folder / "log"), until=[N // 2] * P)
            snapshot.save(folder / "offline", 1, one, model=nn.Linear(1, 1), tables=offline)
        tree.barrier(t)
        log, tables, loaded = FolderLog(folder / "log"), make(t, servers), make(t, servers)
        cut = [log.at_time(p, CUT) for p in range(P)]
        assert cut == [N // 2] * P
        snapshot.load(folder / "offline", t, model=nn.Linear(1, 1), tables=loaded)
        taken, before, after = warm_start(tables, loaded, lambda: log_loss(t, tables))
        assert taken and after < before == 0
        found = objects.gather(t, held(train(t, tables, log, start=cut)))
        if one:
            whole = held(train(one, make(one, 0), log))
            assert merged(found) == whole and len(whole) > 40
        log.close()


@pytest.mark.parametrize("size, servers", dealt(GRIDS, "refused"))
def test_worse_rows_are_refused_and_all_stays_as_it_was(log, size, servers):
    """Also nan, and a gate that fails at its second time."""
    def body(t, after):
        tables = train(t, make(t, servers), log, until=[20] * P)
        offline = train(t, make(t, servers), log, until=[9] * P)
        was, seen, losses = held(tables), tables.seen.copy(), [0.5, after]
        now = [table.now for table in tables.tables.values()]
        try:
            assert warm_start(tables, offline, lambda: losses.pop(0) / 1)[0] is False
        except TypeError:
            assert after is None
        assert held(tables) == was and np.array_equal(seen, tables.seen)
        assert now == [table.now for table in tables.tables.values()]

    for after in (0.6, math.nan, None):
        simulate(size, body, after)


@pytest.mark.parametrize("size, servers", [(1, 0), (3, 1)])
def test_pushes_count_anew_when_the_stream_is_read_from_the_cut_again(log, size, servers):
    def body(t):
        tables = train(t, make(t, servers), log)
        offline = train(t, make(t, servers), log, until=[20] * P)
        was = held(offline)
        assert warm_start(tables, offline, lambda: 0.5) == (True, 0.5, 0.5)
        now = held(tables)
        assert {key: now[key] for key in was if key[0] == "item"} == {
            key: row for key, row in was.items() if key[0] == "item"}
        again = held(train(t, tables, log, start=[20] * P))
        return not servers or tables.serves, again != now, tables.dropped

    for serves, changed, dropped in simulate(size, body):
        assert changed == serves and not dropped


def test_new_rows_stay_and_those_of_both_come_with_their_state():
    def table(ids, value, now):
        made = Table("user", 2, admit=2)
        for _ in range(2):
            made.push(np.array(ids), np.full((len(ids), 2), value), now)
        made.push(np.array([100 + now, 50]), np.ones((2, 2)), now)  # seen once, no rows
        return made

    here, offline = table([3, 1, 9, 100], 1.0, 7), table([1, 2, 3, 107], 2.0, 5)
    wanted = {id: [rows[k][rows["id"] == id][0].tolist() for k in ("seen", "weight", "n")]
              for rows in (here.rows(), offline.rows()) for id in rows["id"].tolist()}
    taken_over(here, offline)
    rows = here.rows()
    assert sorted(rows["id"].tolist()) == [1, 2, 3, 9, 100, 107] and here.now == 7
    assert {id: [rows[k][i].tolist() for k in ("seen", "weight", "n")]
            for i, id in enumerate(rows["id"].tolist())} == wanted
    assert here.waiting == {50: (1, 5), 105: (1, 5)}
    assert rows["seen"].tolist() == sorted(rows["seen"].tolist()), "the oldest first, for the ttl"


def test_what_does_not_fit_is_refused_by_name():
    def body(t, servers, rule):
        warm_start(make(t, 1), make(t, servers, rule), lambda: 0.0)

    with pytest.raises(RankFailed, match="wants offline Tables on 1 .* Tables on 2"):
        simulate(3, body, 2, adagrad)
    with pytest.raises(RankFailed, match="a snapshot of the same tables .*'z', 'n'"):
        simulate(3, body, 1, ftrl)
