"""The ranks as a grid: one axis for each way to divide the work, and a group of ranks for each row.

The plain form, with three axes and a step that uses them: minidl/plain/grid.py. This file has five
axes in any order, and groups along several axes. It models the communication time of each order.

    tp 2, dp 2, pp 2; tp is fastest        dp 0      dp 1
                                  pp 0     0  1      2  3      tensor-parallel groups  01 23 45 67
                                  pp 1     4  5      6  7      data-parallel groups    02 13 46 57
                                                               pipelines               04 15 26 37

    rank = tp + 2 (dp + 2 pp)              here tp, dp and pp are the coordinates of the rank

Along the fastest axis, neighbours in a group have consecutive ranks. The five axes are tensor (tp),
context (cp), expert (ep), data (dp) and pipeline (pp) parallelism:

    axis    ranks of a group share     they divide              they send each other
    tp      the batch                  the weights              activations, to be summed
    cp      the sequences              a sequence's tokens      keys, values; gradients
    ep      the dense weights          the experts, the batch   tokens; dense gradients
    dp      all weights                the batch                gradients
    pp      the batch                  the layers               activations, stage to stage

So dense gradients are averaged over `grid.group("dp", "ep", "cp")`. The gradients of experts are
averaged over ("dp", "cp"). The batch is divided over ("dp", "ep").

The order of the axes decides which groups lie inside a node. Tensor parallelism sends the most
bytes (four all-reduces in each layer), so its axis comes first. Pipelines send the fewest bytes, so
their axis comes last. `traffic` computes the times for a network.

The argument `sizes` of the functions is the dict that `shape` returns, {axis: number of ranks}. The
first axis of the dict is the fastest. The functions need no transport, so a planner can use them
for 100,000 ranks.

Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3; the order is Megatron's.
Test: tests/comm/test_grid.py   Tutorial: tutorials/13_tensor_parallel.py, 15_hybrid_3d.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minidl.comm import cost

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport

ORDER = "tp cp ep dp pp"
AXES = tuple(ORDER.split())


def shape(n_ranks=None, order: str | Sequence[str] = ORDER, **sizes):
    """Returns {axis: number of ranks along the axis}, with the axes in the given order. An axis
    that is not in `sizes` has 1 rank.

    n_ranks: the product of all sizes must be this number. If None, any product is allowed. order:
    the names of all axes. Along the first axis, neighbours in a group have consecutive ranks. This
    axis is called the fastest. sizes: {axis: number of ranks}, as keyword arguments. Raises
    ValueError for a wrong order, axis, size or product."""
    order = order.split() if isinstance(order, str) else list(order)
    if sorted(order) != sorted(AXES):
        raise ValueError(f"the order of a grid must list each axis ({', '.join(AXES)}) once, the "
                         f"fastest axis first; got {order}")
    _check_axes(sizes)
    for axis, size in sizes.items():
        if size < 1 or int(size) != size:
            raise ValueError(f"a grid wants 1 rank or more along {axis}; got {size}")
    sizes = {axis: int(sizes.get(axis, 1)) for axis in order}
    if n_ranks is not None and math.prod(sizes.values()) != n_ranks:
        product = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise ValueError(f"wanted {product} = {math.prod(sizes.values())} ranks; got {n_ranks}. "
                         f"Change the size of an axis, or start {math.prod(sizes.values())} ranks")
    return sizes


def coordinates(sizes, rank):
    """Returns the coordinates of a rank in the grid, {axis: index}. Raises ValueError if there is
    no such rank.

    sizes: the result of `shape`."""
    if not 0 <= rank < math.prod(sizes.values()):
        raise ValueError(f"wanted a rank from 0 to {math.prod(sizes.values()) - 1}; got {rank}")
    where = {}
    for axis, size in sizes.items():
        rank, where[axis] = divmod(rank, size)
    return where


def rank_of(sizes, where):
    """Returns the rank with the coordinates `where`, {axis: index}. If `where` has no index for an
    axis, the index is 0. Raises ValueError for an unknown axis, or for an index outside of its
    axis. sizes: the result of `shape`."""
    _check_axes(where)
    rank, stride = 0, 1
    for axis, size in sizes.items():
        index = where.get(axis, 0)
        if not 0 <= index < size:
            raise ValueError(f"wanted an index from 0 to {size - 1} along {axis}; got {index}")
        rank, stride = rank + index * stride, stride * size
    return rank


def members(sizes, *axes):
    """Returns a list of all groups along these axes. A group is a sorted list of ranks. The ranks
    of one group have equal coordinates along all other axes. sizes: the result of `shape`."""
    return _table(sizes, axes).tolist()


def group_of(sizes, rank, *axes):
    """Returns the list of ranks in one group, the group along these axes that contains `rank`. This
    function does not compute the other groups, so it is faster than `members`."""
    _check_axes(axes)
    where, group = coordinates(sizes, rank), [0]
    stride = 1
    for axis, size in sizes.items():
        digits = range(size) if axis in axes else [where[axis]]
        group = [low + digit * stride for digit in digits for low in group]
        stride *= size
    return group


def _table(sizes, axes):
    """Returns the groups of `members` as an array. Its shape is (groups, ranks of a group)."""
    _check_axes(axes)
    slowest_first = list(sizes)[::-1]
    ranks = np.arange(math.prod(sizes.values())).reshape([sizes[a] for a in slowest_first])
    inner = [a for a in slowest_first if a in axes]
    outer = [a for a in slowest_first if a not in axes]
    ranks = ranks.transpose([slowest_first.index(a) for a in outer + inner])
    return ranks.reshape(-1, math.prod(sizes[a] for a in inner))


def _check_axes(axes):
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown:
        raise ValueError(f"the axes of a grid are {', '.join(AXES)}; got {', '.join(unknown)}")


# -- the modelled time of the messages, for an order of the axes


class Traffic(NamedTuple):
    """The modelled communication along one axis of a grid.

    crosses    True if a group of this axis has ranks on several nodes
    share      how many messages of this axis one port of a node sends at the same time
    time_s     the modelled time in seconds, if all groups of the axis send at the same time"""

    crosses: bool
    share: int
    time_s: float


def traffic(sizes, links, n_bytes):
    """Returns a dict {axis: Traffic} for the network `links`, a links.Links object.

    n_bytes: {axis: bytes of the array on one rank}. In the model each group along an axis does a
    ring all-reduce (cost.py). The axis "pp" is different. Along this axis a rank sends the array
    once, to the next stage. All groups of an axis send at the same time, and each rank sends to its
    right neighbour. The slowest link decides the time. If several messages leave a node through the
    same network card, they wait for each other.

    The time is exact if all links of a group are alike and no message waits. Otherwise the real
    time may be shorter, for two reasons. First, a chunk also goes over links that are faster than
    the slowest link. Second, the latency of a message passes while the message waits, but the model
    adds the two times."""
    n = math.prod(sizes.values())
    node = np.array([links.node_of(rank) for rank in range(n)])
    result = {}
    for axis, amount in n_bytes.items():
        table = _table(sizes, (axis,))
        if table.shape[1] == 1:
            result[axis] = Traffic(False, 0, 0.0)
            continue
        source, right = table.ravel(), np.roll(table, -1, axis=1).ravel()
        if axis == "pp":  # the last stage does not send
            source, right = table[:, :-1].ravel(), table[:, 1:].ravel()
        leaves = node[source] != node[right]
        share = int(np.bincount(node[source[leaves]]).max()) if leaves.any() else 1
        share = share if links.shared_nic else 1
        used = [(links.intra, 1)] * (not leaves.all()) + [(links.inter, share)] * bool(leaves.any())
        pairs = set(zip(source.tolist(), right.tolist(), strict=True)) if links.pairs else ()
        used += [(link, 1) for pair, link in links.pairs if pair in pairs]
        formula = _send if axis == "pp" else cost.ring_all_reduce
        times = [formula(table.shape[1], amount, link.alpha, share * link.beta).time_s
                 for link, share in used]
        result[axis] = Traffic(bool(leaves.any()), share, max(times))
    return result


def _send(n, n_bytes, alpha, beta):
    return cost.Cost(1, n_bytes, alpha + n_bytes * beta)


class Grid:
    """A grid of all ranks of t, with the coordinates and the groups of this rank. All ranks of t
    must make the Grid.

    tp, cp, ep, dp, pp    the transport of this rank's group along an axis; the group may have only
                          one rank
    sizes                 {axis: number of ranks along the axis}, in the order of the argument
                          `order` (see `shape`)
    coordinate            {axis: index} of this rank

    Raises ValueError unless the product of the sizes is t.size."""

    def __init__(self, t: Transport, dp: int = 1, pp: int = 1, tp: int = 1, cp: int = 1,
                 ep: int = 1, order: str | Sequence[str] = ORDER):
        try:
            self.sizes = shape(t.size, order, dp=dp, pp=pp, tp=tp, cp=cp, ep=ep)
        except ValueError as error:
            raise ValueError(f"rank {t.rank}: {error}") from None
        self.t: Any = t  # Any: t may be a Ledger, with more methods than a Transport
        self.coordinate = coordinates(self.sizes, t.rank)
        self._groups = {}
        self.tp, self.cp, self.ep, self.dp, self.pp = map(self.group, AXES)

    def group(self, *axes: str) -> Any:
        """Returns the transport of this rank's group along these axes. The ranks of this group have
        the same coordinates as this rank along all other axes. They are in rank order.

        The first call for these axes makes the group. So all ranks of the group must make their
        first calls in the same order."""
        key = tuple(axis for axis in self.sizes if axis in axes)
        if key not in self._groups or len(set(axes)) != len(key):
            self._groups[key] = self.t.subgroup(group_of(self.sizes, self.t.rank, *axes))
        return self._groups[key]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Returns the coordinates of any rank of t, {axis: index}."""
        return coordinates(self.sizes, rank)

    def rank_of(self, **where: int) -> int:
        """Returns the rank with these coordinates, which are passed as axis=index. For each other
        axis, the coordinate of this rank is used. Example: grid.rank_of(pp=0) is the rank of the
        first stage in this rank's pipeline."""
        return rank_of(self.sizes, {**self.coordinate, **where})

    def members(self, *axes: str) -> list[list[int]]:
        """Returns all groups along these axes, as lists of ranks of t. Groups without this rank are
        in the list, too."""
        return members(self.sizes, *axes)

    def __repr__(self):
        place = ", ".join(f"{axis} {self.coordinate[axis]} of {size}"
                          for axis, size in self.sizes.items() if size > 1)
        return f"Grid(rank {self.t.rank} of {self.t.size}: {place or 'alone'})"
