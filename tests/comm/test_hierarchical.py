"""Hierarchies: every piece has one owner in every node, and the bytes go where they should.

The sum itself: test_every_all_reduce.py.
"""

import time
from functools import partial

import numpy as np
import pytest

from minidl import Tensor, nn
from minidl.comm import double_tree, halving_doubling, hierarchical, ring, simulate
from minidl.comm.hierarchical import groups
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel import DataParallel
from tests.conftest import ranks

NODES = {  # of 8 ranks
    "1 x 8": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "2 x 4": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "4 x 2, dealt": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "8 x 1": [[r] for r in range(8)],
    "3 + 3 + 2": [[0, 1, 2], [3, 4, 5], [6, 7]],
    "1 + 4 + 3": [[7], [0, 2, 4, 6], [1, 3, 5]],
}


def by_hand(nodes):
    """The pieces of ragged nodes, unit by unit: who owns each in every node."""
    n_units, pieces = hierarchical.cut(nodes)
    return n_units, [owners for first, end, owners in pieces for _ in range(first, end)]


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_every_unit_has_one_owner_in_every_node_and_every_rank_owns_its_share(nodes):
    n_units, owners = by_hand(nodes)
    assert len(owners) == n_units
    for i, node in enumerate(nodes):
        own = [of_unit[i] for of_unit in owners]
        assert own == [rank for rank in node for _ in range(n_units // len(node))]


def test_golden_pieces():
    assert hierarchical.cut([[0, 1], [2, 3]]) == (2, [(0, 1, [0, 2]), (1, 2, [1, 3])])
    ragged = [(0, 2, [0, 2]), (2, 3, [0, 3]), (3, 4, [1, 3]), (4, 6, [1, 4])]
    assert hierarchical.cut([[0, 1], [2, 3, 4]]) == (6, ragged)


def test_a_node_size_takes_ranks_in_a_row():
    assert hierarchical.by_node_size(8, 4) == NODES["2 x 4"]
    assert hierarchical.by_node_size(5, 2) == [[0, 1], [2, 3], [4]]
    assert hierarchical.by_node_size(2, 4) == [[0, 1]]
    start = time.process_time()
    assert len(hierarchical.by_node_size(30_000, 1)) == 30_000
    assert time.process_time() - start < 1, "time that grows with the square of the ranks: 15 s"


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 240, 1001])
@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_bytes_inside_and_between_equal_the_formula(nodes, length):
    def body(t):
        ledger = Ledger(t)
        all_reduce = hierarchical.on_nodes(ledger, nodes)
        all_reduce(ledger, np.ones(length, "f4"))
        mine = next(node for node in nodes if t.rank in node)
        inside = sum(ledger.count(peer=peer).bytes_sent for peer in mine)
        formula = hierarchical.bytes_sent(length, 4, nodes, t.rank)
        assert (inside, ledger.bytes_sent - inside) == formula
        return formula

    inside, between = zip(*simulate(8, body), strict=True)
    assert sum(inside) == 2 * (8 - len(nodes)) * length * 4
    assert sum(between) == 2 * (len(nodes) - 1) * length * 4


def test_golden_bytes():
    # 8 ranks, 9,600 float32, nodes of 2: inside 2 (1/2) K = 38,400, between 2 (3/4) K/2 = 28,800.
    nodes = hierarchical.by_node_size(8, 2)
    for rank in range(8):
        assert hierarchical.bytes_sent(9600, 4, nodes, rank) == (38400, 28800)


@pytest.mark.parametrize("across", [ring, halving_doubling, double_tree])
def test_messages_between_nodes_are_those_of_the_chosen_all_reduce(across):
    def body(t):
        ledger = Ledger(t)
        all_reduce = hierarchical.on_nodes(ledger, 2, across.all_reduce)
        all_reduce(ledger, np.ones(64, "f4"))
        peers = {row.peer for row in ledger.rows}
        return peers - {t.rank ^ 1}

    # 4 nodes: rank 2i+j talks to the ranks 2k+j alone.
    for rank, peers in enumerate(simulate(8, body)):
        assert peers and all(peer % 2 == rank % 2 for peer in peers)


@ranks(4, 5, 8)
def test_leaders_alone_send_between_nodes(t):
    nodes = hierarchical.by_node_size(t.size, 3)
    ledger = Ledger(t)
    made = groups(ledger, nodes)
    hierarchical.leader_all_reduce(ledger, np.ones(60, "f4"), groups=made)
    mine = next(node for node in nodes if t.rank in node)
    inside = sum(ledger.count(peer=peer).bytes_sent for peer in mine)
    between = ledger.bytes_sent - inside
    place = t.rank // 3
    expected = 0 if t.rank % 3 else ring.bytes_sent(60, 4, len(nodes), place)
    assert between == expected


@ranks(2, 3, 4, mpi=False)
def test_data_parallel_takes_it_as_its_all_reduce(t):
    def gradients(**options):
        model = nn.Linear(3, 2)
        for i, p in enumerate(model.parameters()):
            p.data = np.arange(p.array.size, dtype=p.array.dtype).reshape(p.shape) + i
        parallel = DataParallel(model, t, **options)
        x = np.arange(12.0, dtype="f4").reshape(4, 3) + t.rank
        (parallel(Tensor(x)) * 1.0).sum().backward()
        parallel.close()
        return [p.grad.array.copy() for p in model.parameters()]

    # Small whole numbers: all orders of addition agree.
    plain, by_nodes = gradients(), gradients(all_reduce=hierarchical.on_nodes(t, 2))
    for one, other in zip(plain, by_nodes, strict=True):
        assert one.any() and (one == other).all()


@pytest.mark.parametrize("nodes", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0, 1], [2, 3]]])
def test_nodes_that_are_no_partition_are_refused(nodes):
    with pytest.raises(RankFailed, match="rank 0: every rank from 0 to 2 must be in exactly"):
        simulate(3, groups, nodes)


def test_groups_of_another_transport_are_refused():
    def body(t):
        made = groups(t, 2)
        half = t.subgroup([0, 1]) or t.subgroup([2, 3])
        turned = t.subgroup([3, 2, 1, 0])  # the same ranks, other neighbours
        for fn in (hierarchical.all_reduce, hierarchical.leader_all_reduce):
            for other in (half, turned):
                with pytest.raises(ValueError, match=r"made for the world ranks \(0, 1, 2, 3\)"):
                    partial(fn, groups=made)(other, np.ones(4))

    simulate(4, body)
