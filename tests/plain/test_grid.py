"""The page and the real one: the same groups. A step on any grid has the gradients of the engine on
one rank, and the bytes of the real collectives' formulas."""

import numpy as np
import pytest

from minidl.comm import Grid, Ledger
from minidl.comm import grid as real
from minidl.comm import ring
from minidl.nn import functional as F
from minidl.plain import grid, tensor_parallel
from minidl.tensor import Tensor
from tests.conftest import ranks

WIDTH, HIDDEN, N_MICRO, N_ROWS = 3, 9, 3, 2
SHAPES = {1: [(1, 1, 1)], 2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)], 3: [(1, 1, 3), (3, 1, 1)],
          4: [(2, 2, 1), (2, 1, 2), (1, 2, 2)], 5: [(1, 5, 1)], 8: [(2, 2, 2), (4, 1, 2)]}
NAMES = {"tensor": "tp", "data": "dp", "pipeline": "pp"}


def sizes_of(n):
    return [dict(zip(NAMES, shape)) for shape in SHAPES.get(n, [(n, 1, 1), (1, n, 1), (1, 1, n)])]


@ranks(1, 2, 3, 4, 5, 8)
def test_places_and_groups_are_the_real_ones(t):
    for sizes in sizes_of(t.size):
        axes = {NAMES[axis]: length for axis, length in sizes.items()}
        where = real.coordinates(real.shape(t.size, **axes), t.rank)
        assert grid.place(t.rank, sizes) == {axis: where[NAMES[axis]] for axis in sizes}
        whole = Grid(t, **axes)
        for axis, name in NAMES.items():
            group, theirs = grid.group(t, sizes, axis), getattr(whole, name)
            assert (group.ranks, group.rank) == (list(theirs.ranks), theirs.rank)


def network(n_stages):
    rng = np.random.default_rng(3)
    return [(rng.normal(size=(WIDTH, HIDDEN)), rng.normal(size=(HIDDEN, WIDTH)))
            for _ in range(n_stages)]


def batches(replica):
    """(micro-batches, targets) of a replica."""
    return np.random.default_rng([4, replica]).normal(size=(2, N_MICRO, N_ROWS, WIDTH))


def engine(n_stages, n_replicas):
    """(the mean loss of all samples, the gradients of each stage's A and B) by the real engine."""
    weights = [[Tensor(w, True) for w in pair] for pair in network(n_stages)]
    xs, targets = np.concatenate([batches(d) for d in range(n_replicas)], axis=1)
    y = Tensor(xs.reshape(-1, WIDTH))
    for a, b in weights:
        y = F.relu(y @ a) @ b
    loss = F.mse_loss(y, Tensor(targets.reshape(-1, WIDTH))) * 0.5
    loss.backward()
    return loss.item(), [[w.grad.array for w in pair] for pair in weights]


@ranks(1, 2, 3, 4, 5, 8)
def test_a_step_has_the_gradients_of_the_engine_on_one_rank(t):
    for sizes in sizes_of(t.size):
        at = grid.place(t.rank, sizes)
        tensor = grid.group(t, sizes, "tensor")
        a, b = network(sizes["pipeline"])[at["pipeline"]]
        a, b = tensor_parallel.columns(tensor, a), tensor_parallel.rows(tensor, b)
        losses, got = grid.step(t, sizes, a, b, *batches(at["data"]))
        loss, wanted = engine(sizes["pipeline"], sizes["data"])
        want = wanted[at["pipeline"]]
        want = tensor_parallel.columns(tensor, want[0]), tensor_parallel.rows(tensor, want[1])
        for g, w in zip(got, want, strict=True):
            # float64, sums of at most 30 samples in another order, through at most 3 stages
            np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-11)
        if sizes["data"] == 1 and losses:
            assert np.mean(losses) == pytest.approx(loss, rel=1e-12)


@ranks(1, 2, 3, 4, 5, 8)
def test_the_bytes_are_those_of_the_three_axes(t):
    for sizes in sizes_of(t.size):
        at, ledger = grid.place(t.rank, sizes), Ledger(t)
        tensor = grid.group(t, sizes, "tensor")
        a, b = network(1)[0]
        a, b = tensor_parallel.columns(tensor, a), tensor_parallel.rows(tensor, b)
        grid.step(ledger, sizes, a, b, *batches(at["data"]))

        n_elems = N_ROWS * WIDTH  # activations of a micro-batch
        sums = N_MICRO * 2 * ring.bytes_sent(n_elems, 8, sizes["tensor"], at["tensor"])
        means = sum(ring.bytes_sent(length, 8, sizes["data"], at["data"])
                    for length in (1, a.size, b.size))  # 1: the number of samples
        neighbours = (at["pipeline"] > 0) + (at["pipeline"] < sizes["pipeline"] - 1)
        assert ledger.bytes_sent == sums + means + neighbours * N_MICRO * n_elems * 8
