"""Hierarchical all-reduce: most bytes are sent inside the nodes, few between them.

The plain form, for nodes of one size: minidl/plain/hierarchical.py. Here: nodes of different sizes.
Then the cuts of all nodes together divide x into pieces: with 2 and 3 ranks the cuts 1/2 and 1/3,
2/3 make 4. Each piece has one owner in every node, and its owners all-reduce it; a rank of a
smaller node owns more pieces. And: any all-reduce between the nodes, other operations, the formula
of the bytes, and a second form, of leaders: it reduces onto one rank of each node, all-reduces
among these, and broadcasts. That takes fewer messages, but all bytes between nodes leave from one
rank.

    sent per rank, g ranks in each of m nodes:
        inside    2 (g-1)/g K          between nodes    2 (m-1)/m K/g

Sources: Mikami et al. 2018 (arXiv 1811.05233) and Horovod's NCCLHierarchicalAllreduce; the leader
form, Jia et al. 2018 (arXiv 1807.11205). The pieces are ours.
Test: tests/comm/test_hierarchical.py   Tutorial: tutorials/09_topologies.py   Time: cost.py
"""

from __future__ import annotations

import functools
import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from minidl.comm import chunks, ring, ring_blocks, tree
from minidl.comm.collective import collective
from minidl.comm.transport.protocol import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from minidl.hints import Nodes, Op, SameArray


class Groups(NamedTuple):
    """Who talks to whom; made once by `groups`.

    world     the ranks (world ranks) that take part
    inside    the transport of this rank's node
    leaders   the transport of the first ranks of all nodes; None on the other ranks
    pieces    (first unit, end unit, transport of its owners or None) of every piece of x
    n_units   into so many units x is cut; every node's chunks are whole units"""

    world: tuple
    inside: Transport
    leaders: Transport | None
    pieces: list
    n_units: int


def by_node_size(n: int, node_size: int) -> list[list[int]]:
    """[[0, 1, ...], [node_size, ...], ...]: consecutive ranks share a node; the last may be
    smaller."""
    return [list(range(first, min(first + node_size, n))) for first in range(0, n, node_size)]


def groups(t: Transport, nodes: Nodes) -> Groups:
    """The groups of a hierarchy; all ranks of t call it, with the same nodes.

    nodes   ranks of each node, [[0, 1], [2, 3, 4]], or how many consecutive ranks share one"""
    nodes = nodes if isinstance(nodes, int) else tuple(map(tuple, nodes))
    plan = _plan(t.size, nodes)
    if plan is None:
        raise ValueError(f"rank {t.rank}: every rank from 0 to {t.size - 1} must be in one node, "
                         f"and no node empty; got {[list(node) for node in nodes]}")
    node_of, leaders, n_units, pieces = plan
    inside = t.subgroup(node_of[t.rank])
    leaders = t.subgroup(leaders)
    pieces = [(first, end, t.subgroup(owners)) for first, end, owners in pieces]
    return Groups(t.ranks, inside, leaders, pieces, n_units)


@functools.lru_cache(10)  # simulated ranks share it: else n of them would list n ranks each
def _plan(n, nodes):
    """(node of each rank, first rank of each node, units, pieces); None if the nodes do not fit."""
    nodes = tuple(map(tuple, by_node_size(n, nodes))) if isinstance(nodes, int) else nodes
    if sorted(rank for node in nodes for rank in node) != list(range(n)) or () in nodes:
        return None
    n_units, pieces = cut(nodes)
    pieces = [(first, end, tuple(owners)) for first, end, owners in pieces]
    node_of = {rank: node for node in nodes for rank in node}
    return node_of, tuple(node[0] for node in nodes), n_units, pieces


def cut(nodes):
    """(units in x, [(first unit, end unit, its owner in every node)]) of the pieces of x."""
    n_units = math.lcm(*map(len, nodes))
    cuts = sorted({i * n_units // len(node) for node in nodes for i in range(len(node) + 1)})
    return n_units, [(first, end, [node[first * len(node) // n_units] for node in nodes])
                     for first, end in itertools.pairwise(cuts)]


@collective(own_args=("groups",))
def all_reduce(t: Transport, x: SameArray, op: Op = np.add, *, groups: Groups,
               across: Callable[..., Any] = ring.all_reduce) -> SameArray:
    """The elementwise op of all ranks' x, on every rank, in place like `ring.all_reduce`.

    groups   `groups(t, nodes)`; as an argument for others: `partial(all_reduce, groups=...)`
    across   the all-reduce between nodes, any `f(t, array, op)` that works in place

    All ranks end with the same bits if `across` leaves its own with the same."""
    _check(t, groups)
    flat = chunks.flat(x)
    unit = chunks.bounds(len(flat), groups.n_units)
    bounds = unit[:: groups.n_units // groups.inside.size]
    ring_blocks.reduce_scatter(groups.inside, flat, bounds, op)
    for first, end, owners in groups.pieces:  # in one order on all ranks: no deadlock
        if owners is not None:
            across(owners, flat[unit[first] : unit[end]], op)
    ring_blocks.all_gather(groups.inside, flat, bounds)
    return flat.reshape(x.shape)


@collective(own_args=("groups",))
def leader_all_reduce(t: Transport, x: SameArray, op: Op = np.add, *, groups: Groups,
                      across: Callable[..., Any] = ring.all_reduce) -> SameArray:
    """The leader form: reduce inside each node, all-reduce among the leaders, broadcast inside.

    The time of a tree all-reduce of g ranks on the inner links, then of `across` on the others.
    In place like `ring.all_reduce`, the same bits on all ranks."""
    _check(t, groups)
    flat = chunks.flat(x)
    tree.reduce(groups.inside, flat, 0, op)
    if groups.leaders is not None:
        across(groups.leaders, flat, op)
    tree.broadcast(groups.inside, flat)
    return flat.reshape(x.shape)


def bytes_sent(length: int, itemsize: int, nodes: Sequence[Sequence[int]],
               rank: int) -> tuple[int, int]:
    """(inside, between): what `rank` sends in `all_reduce` by rings, inside its node and between
    nodes, for any length. Over all ranks 2(n-1)K in sum."""
    n_units, pieces = cut(nodes)
    unit = chunks.bounds(length, n_units)
    i, node = next((i, node) for i, node in enumerate(nodes) if rank in node)
    inside = ring_blocks.bytes_sent(unit[:: n_units // len(node)], itemsize, node.index(rank))
    between = sum(ring.bytes_sent(unit[end] - unit[first], itemsize, len(nodes), i)
                  for first, end, owners in pieces if owners[i] == rank)
    return inside, between


def on_nodes(t: Transport, nodes: Nodes,
             across: Callable[..., Any] = ring.all_reduce) -> Callable[..., Any]:
    """`all_reduce` with its groups, for `DataParallel(model, t, all_reduce=on_nodes(t, 4))`."""
    return partial(all_reduce, groups=groups(t, nodes), across=across)


def _check(t, groups):
    if t.ranks != groups.world:
        raise ValueError(
            f"rank {t.rank}: these groups were made for the world ranks {groups.world}; got the "
            f"transport of {t.ranks}. Make groups(t, nodes) for it.")
