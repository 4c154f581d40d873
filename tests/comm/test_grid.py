"""A grid of ranks: coordinates both ways, the groups of every axis, what an order costs."""

import itertools
import math

import numpy as np
import pytest

from minidl.comm import cost, grid, ring, simulate
from minidl.comm.grid import AXES, Grid
from minidl.comm.transport.links import Links
from tests.conftest import ranks

SHAPES = [{}, {"tp": 2}, {"dp": 3}, {"tp": 2, "dp": 2, "pp": 2}, {"tp": 3, "cp": 2, "ep": 2},
          {"tp": 2, "cp": 3, "ep": 4, "dp": 5, "pp": 6}]


@pytest.mark.parametrize("order", ["tp cp ep dp pp", "pp dp tp ep cp"])
@pytest.mark.parametrize("wanted", SHAPES)
def test_coordinates_are_the_digits_of_the_rank(wanted, order):
    sizes = grid.shape(order=order, **wanted)
    assert list(sizes) == order.split()
    # the definition: count with the fastest axis last
    digits = itertools.product(*(range(sizes[axis]) for axis in reversed(sizes)))
    for rank, number in enumerate(digits):
        where = dict(zip(reversed(sizes), number, strict=True))
        assert grid.coordinates(sizes, rank) == where
        assert grid.rank_of(sizes, where) == rank


@pytest.mark.parametrize("wanted", SHAPES)
def test_a_group_is_the_ranks_that_differ_in_its_axes_alone(wanted):
    sizes = grid.shape(**wanted)
    every = range(math.prod(sizes.values()))
    where = [grid.coordinates(sizes, rank) for rank in every]
    for axes in [*itertools.combinations(AXES, 1), *itertools.combinations(AXES, 2), (), AXES]:
        groups = grid.members(sizes, *axes)
        assert sorted(rank for group in groups for rank in group) == list(every)
        for group in groups:
            outside = {tuple(i for a, i in where[r].items() if a not in axes) for r in group}
            assert len(outside) == 1 and group == sorted(group)
            assert len(group) == math.prod(sizes[a] for a in axes)
            for rank in group:
                assert grid.group_of(sizes, rank, *axes) == group


def test_the_default_order_has_tensor_parallel_neighbours():
    sizes = grid.shape(8, dp=2, pp=2, tp=2)
    assert grid.members(sizes, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert grid.members(sizes, "dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.members(sizes, "pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("wanted, message", [
    ({"dp": 2, "tp": 2}, "tp 2 x cp 1 x ep 1 x dp 2 x pp 1 = 4 ranks; got 6"),
    ({"xp": 6}, "the axes of a grid are tp, cp, ep, dp, pp; got xp"),
    ({"dp": 6, "order": "tp dp pp"}, "each axis .tp, cp, ep, dp, pp. once.*got .'tp', 'dp', 'pp'"),
    ({"dp": 6, "order": "tp tp cp ep dp pp"}, "once"),
    ({"dp": 0}, "1 rank or more along dp; got 0"),
    ({"dp": 1.5, "tp": 4}, "1 rank or more along dp; got 1.5"),
])
def test_what_does_not_fit_is_refused_by_name(wanted, message):
    with pytest.raises(ValueError, match=message):
        grid.shape(6, **wanted)


def test_wrong_places_are_refused():
    sizes = grid.shape(dp=2)
    with pytest.raises(ValueError, match="wanted an index from 0 to 1 along dp; got 2"):
        grid.rank_of(sizes, {"dp": 2})
    with pytest.raises(ValueError, match="wanted a rank from 0 to 1; got 2"):
        grid.coordinates(sizes, 2)
    with pytest.raises(ValueError, match="got mp"):
        grid.group_of(sizes, 0, "mp")


def cut(n):
    """A few grids of n ranks."""
    return {1: [{}], 2: [{"tp": 2}, {"dp": 2}], 3: [{"pp": 3}], 4: [{"tp": 2, "dp": 2}, {"cp": 4}],
            5: [{"ep": 5}], 8: [{"tp": 2, "dp": 2, "pp": 2}, {"tp": 2, "cp": 2, "ep": 2}]}[n]


@pytest.mark.parametrize("order", ["tp cp ep dp pp", "dp pp ep tp cp"])
@ranks(1, 2, 3, 4, 5, 8)
def test_every_group_sums_over_its_own_ranks(t, order):
    for sizes in cut(t.size):
        g = Grid(t, order=order, **sizes)
        assert g.rank_of() == t.rank and g.coordinates(t.rank) == g.coordinate
        assert g.rank_of(dp=0) == grid.rank_of(g.sizes, {**g.coordinate, "dp": 0})
        for axes in [("tp",), ("cp",), ("ep",), ("dp",), ("pp",), ("dp", "ep"), ("tp", "pp")]:
            group = g.group(*axes)
            mine, = [m for m in g.members(*axes) if t.rank in m]
            assert group is g.group(*reversed(axes)) and group.ranks == tuple(mine)
            assert ring.all_reduce(group, np.array([2 ** t.rank]))[0] == sum(2**r for r in mine)
        assert g.tp is g.group("tp") and f"rank {t.rank} of {t.size}" in repr(g)


@ranks(2, 3, 4, mpi=False)
def test_a_grid_of_another_size_is_refused_on_every_rank(t):
    want = f"rank {t.rank}: wanted tp 1 x .* = 6 ranks; got {t.size}"
    with pytest.raises(ValueError, match=want):
        Grid(t, dp=6)
    with pytest.raises(ValueError, match="got xp"):
        Grid(t, dp=t.size).group("xp")


NODES = Links.nodes(4, intra=(1e-6, 1e-10), inter=(50e-6, 8e-9))


def measured(sizes, links, axis, n_elems):
    """The time of a ring all-reduce of float64 in all groups of an axis, by the simulator."""
    def body(t):
        ring.all_reduce(Grid(t, **sizes).group(axis), np.ones(n_elems))
        return t.time()

    n = math.prod(s for a, s in sizes.items() if a != "order")
    return max(simulate(n, body, links=links))


@pytest.mark.parametrize("order", ["tp cp ep dp pp", "dp cp ep tp pp"])
@pytest.mark.parametrize("nic", ["node", "rank"])
def test_an_order_costs_what_the_simulator_says(order, nic):
    links = Links.nodes(4, intra=(1e-6, 1e-10), inter=(50e-6, 8e-9), nic=nic)
    sizes = grid.shape(8, order, tp=4, dp=2)
    found = grid.traffic(sizes, links, {"tp": 8 * 840, "dp": 8 * 840})
    for axis, (crosses, share, time_s) in found.items():
        really = measured({"tp": 4, "dp": 2, "order": order}, links, axis, 840)
        if share == 1 and (axis == "tp") == order.startswith("tp"):  # links alike, none queue
            assert time_s == pytest.approx(really, rel=1e-12)
        else:  # an upper bound
            assert really * (1 - 1e-12) <= time_s <= 2 * really
        assert crosses == (share > 1 or time_s > 1e-4)
    inside = "tp" if order.startswith("tp") else "dp"
    assert not found[inside].crosses
    assert found["tp" if inside == "dp" else "dp"].crosses


def test_tensor_parallelism_belongs_inside_a_node():
    """The same bytes, the two orders: which axis pays the slow link."""
    n_bytes = {"tp": 1 << 20, "dp": 1 << 20}
    first = grid.traffic(grid.shape(8, tp=4, dp=2), NODES, n_bytes)
    last = grid.traffic(grid.shape(8, "dp cp ep pp tp", tp=4, dp=2), NODES, n_bytes)
    assert first["tp"].time_s < last["tp"].time_s / 50
    assert first["dp"].share == 4 and last["tp"].share == 2
    assert first["tp"].time_s == cost.ring_all_reduce(4, 1 << 20, 1e-6, 1e-10).time_s


def test_pipelines_send_to_the_next_stage_and_single_pairs_count():
    links = Links.uniform(1e-6, 1e-9, pairs={(0, 1): (1e-3, 1e-9)})
    found = grid.traffic(grid.shape(4, pp=4), links, {"pp": 1000, "tp": 1000})
    assert found["pp"].time_s == pytest.approx(1e-3 + 1e-6) and found["tp"] == (False, 0, 0.0)
    back = Links.uniform(1e-6, 1e-9, pairs={(3, 0): (1.0, 0.0)})  # the last stage sends nowhere
    assert grid.traffic(grid.shape(4, pp=4), back, {"pp": 1000})["pp"].time_s < 1e-3


def test_a_hundred_thousand_ranks_are_only_numbers():
    sizes = grid.shape(100_000, tp=8, cp=5, dp=250, pp=10)
    for axis in AXES:
        assert len(grid.members(sizes, axis)) == 100_000 // sizes[axis]
    where = {"tp": 7, "cp": 4, "dp": 3, "pp": 9}
    assert grid.coordinates(sizes, grid.rank_of(sizes, where)) == {**where, "ep": 0}
    assert len(grid.group_of(sizes, 99_999, "dp", "ep")) == 250
    grid.traffic(sizes, NODES, dict.fromkeys(AXES, 1 << 20))
