"""Hierarchical all-reduce: most bytes are sent inside nodes, and few bytes between nodes.

The plain form, for nodes of one size: minidl/plain/hierarchical.py. Here nodes may have different
sizes. Each node cuts x into chunks, one chunk for each rank of the node. The cuts of all nodes
together divide x into pieces. Example: a node of 2 ranks cuts x at 1/2, and a node of 3 ranks cuts
x at 1/3 and 2/3. Together the cuts make 4 pieces. Each piece has one owner in every node, and an
all-reduce of its owners sums the piece. A rank of a smaller node owns more pieces. This file also
accepts any all-reduce between the nodes, and any operation, not only a sum. `bytes_sent` is a
formula for the bytes.

A second form, `leader_all_reduce`, has three steps. Each node reduces its arrays onto one of its
ranks, the leader. The leaders run an all-reduce. Each leader broadcasts the result inside its node.
This form sends fewer messages, but only the leader sends bytes to other nodes.

    bytes sent per rank by `all_reduce`, if each of m nodes has g ranks, and x has K bytes:
        inside    2 (g-1)/g K          between nodes    2 (m-1)/m K/g

Sources: Mikami et al. 2018 (arXiv 1811.05233) and Horovod's NCCLHierarchicalAllreduce; the leader
form, Jia et al. 2018 (arXiv 1807.11205). The division into pieces is ours.
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
    """The transports of a hierarchy. The function `groups` makes them.

    world     the world ranks that take part
    inside    the transport of this rank's node
    leaders   the transport of the first ranks of all nodes; None on the other ranks
    n_units   the number of equal units into which x is cut. A chunk or a piece is a whole number of
              units
    pieces    a list with a tuple (first unit, end unit, transport of the owners) for every piece of
              x. The transport is None if this rank is not an owner
    """

    world: tuple
    inside: Transport
    leaders: Transport | None
    pieces: list
    n_units: int


def by_node_size(n: int, node_size: int) -> list[list[int]]:
    """Returns a list with the ranks of each node, [[0, 1, ...], [node_size, ...], ...]. A node has
    node_size consecutive ranks. The last node may be smaller."""
    return [list(range(first, min(first + node_size, n))) for first in range(0, n, node_size)]


def groups(t: Transport, nodes: Nodes) -> Groups:
    """Returns the Groups of a hierarchy. All ranks of t must call this function, with the same
    nodes.

    nodes   the ranks of each node, [[0, 1], [2, 3, 4]], or the number of consecutive ranks that
            share a node

    Raises ValueError unless every rank is in exactly one node."""
    nodes = nodes if isinstance(nodes, int) else tuple(map(tuple, nodes))
    plan = _plan(t.size, nodes)
    if plan is None:
        raise ValueError(f"rank {t.rank}: every rank from 0 to {t.size - 1} must be in "
                         "exactly one node, and no node may be empty; got "
                         f"{[list(node) for node in nodes]}")
    node_of, leaders, n_units, pieces = plan
    inside = t.subgroup(node_of[t.rank])
    leaders = t.subgroup(leaders)
    pieces = [(first, end, t.subgroup(owners)) for first, end, owners in pieces]
    return Groups(t.ranks, inside, leaders, pieces, n_units)


@functools.lru_cache(10)  # a plan has an entry for each rank, so all simulated ranks share it
def _plan(n, nodes):
    """Returns ({rank: the ranks of its node}, first rank of each node, number of units, pieces).
    `cut` explains the last two. Returns None if the nodes do not contain each of the n ranks
    exactly once, or if a node is empty."""
    nodes = tuple(map(tuple, by_node_size(n, nodes))) if isinstance(nodes, int) else nodes
    if sorted(rank for node in nodes for rank in node) != list(range(n)) or () in nodes:
        return None
    n_units, pieces = cut(nodes)
    pieces = [(first, end, tuple(owners)) for first, end, owners in pieces]
    node_of = {rank: node for node in nodes for rank in node}
    return node_of, tuple(node[0] for node in nodes), n_units, pieces


def cut(nodes):
    """Divides x into units and pieces. Returns (the number of units, the list of the pieces). A
    piece is a tuple (first unit, end unit, owners). The owners are a list with one rank of every
    node. nodes: a list with the ranks of each node."""
    n_units = math.lcm(*map(len, nodes))
    cuts = sorted({i * n_units // len(node) for node in nodes for i in range(len(node) + 1)})
    return n_units, [(first, end, [node[first * len(node) // n_units] for node in nodes])
                     for first, end in itertools.pairwise(cuts)]


@collective(own_args=("groups",))
def all_reduce(t: Transport, x: SameArray, op: Op = np.add, *, groups: Groups,
               across: Callable[..., Any] = ring.all_reduce) -> SameArray:
    """Combines all ranks' x element by element with op. Returns the result on every rank. Works in
    place if x is contiguous, as `ring.all_reduce` does.

    groups   the result of `groups(t, nodes)`. `partial(all_reduce, groups=...)` can be passed to
             functions that have an argument `all_reduce`
    across   the all-reduce between nodes, any function `f(t, array, op)` that works in place

    If `across` gives the same bits on all its ranks, this all-reduce also gives the same bits on
    all ranks."""
    _check(t, groups)
    flat = chunks.flat(x)
    unit = chunks.bounds(len(flat), groups.n_units)
    bounds = unit[:: groups.n_units // groups.inside.size]
    ring_blocks.reduce_scatter(groups.inside, flat, bounds, op)
    for first, end, owners in groups.pieces:  # the same order on all ranks avoids a deadlock
        if owners is not None:
            across(owners, flat[unit[first] : unit[end]], op)
    ring_blocks.all_gather(groups.inside, flat, bounds)
    return flat.reshape(x.shape)


@collective(own_args=("groups",))
def leader_all_reduce(t: Transport, x: SameArray, op: Op = np.add, *, groups: Groups,
                      across: Callable[..., Any] = ring.all_reduce) -> SameArray:
    """The leader form: reduces inside each node, all-reduces among the leaders, then broadcasts
    inside each node. Returns the result on every rank. Works in place if x is contiguous, as
    `ring.all_reduce` does. If `across` gives the same bits on all leaders, all ranks get the same
    bits.

    The time is the sum of two times. The first is the time of a tree all-reduce of g ranks on the
    links inside a node. The second is the time of `across` on the links between nodes. groups,
    across: as for `all_reduce`."""
    _check(t, groups)
    flat = chunks.flat(x)
    tree.reduce(groups.inside, flat, 0, op)
    if groups.leaders is not None:
        across(groups.leaders, flat, op)
    tree.broadcast(groups.inside, flat)
    return flat.reshape(x.shape)


def bytes_sent(length: int, itemsize: int, nodes: Sequence[Sequence[int]],
               rank: int) -> tuple[int, int]:
    """Returns (inside, between), the numbers of bytes that `rank` sends in `all_reduce`, for any
    length. inside: the bytes that it sends inside its node. between: the bytes that it sends to
    other nodes, if `across` is a ring. All ranks together send 2(n-1)K bytes, where n is the number
    of ranks, and K is the bytes of x."""
    n_units, pieces = cut(nodes)
    unit = chunks.bounds(length, n_units)
    i, node = next((i, node) for i, node in enumerate(nodes) if rank in node)
    inside = ring_blocks.bytes_sent(unit[:: n_units // len(node)], itemsize, node.index(rank))
    between = sum(ring.bytes_sent(unit[end] - unit[first], itemsize, len(nodes), i)
                  for first, end, owners in pieces if owners[i] == rank)
    return inside, between


def on_nodes(t: Transport, nodes: Nodes,
             across: Callable[..., Any] = ring.all_reduce) -> Callable[..., Any]:
    """Returns a function f(t, x, op) that calls `all_reduce` with the groups of these nodes. All
    ranks of t must call on_nodes. nodes: as for `groups`. across: as for `all_reduce`.

    Example: `DataParallel(model, t, all_reduce=on_nodes(t, 4))`."""
    return partial(all_reduce, groups=groups(t, nodes), across=across)


def _check(t, groups):
    if t.ranks != groups.world:
        raise ValueError(
            f"rank {t.rank}: these groups were made for the world ranks {groups.world}; got a "
            f"transport of the world ranks {t.ranks}. Call groups(t, nodes) with this transport.")
