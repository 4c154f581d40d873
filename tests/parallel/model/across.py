"""Gradients across ranks against central differences: the loss is summed over the ranks."""

import numpy as np

from minidl.comm import ring_blocks, tree
from minidl.gradcheck import STEP
from minidl.mode import no_grad
from minidl.plain import naive
from minidl.tensor import Tensor

ELEMENTS = 4  # of each rank are stepped, by chance


def gradcheck_across(t, fn, x, replicated_in, replicated_out, seed=0, tol=1e-8):
    """Compare the gradient of `fn(tensor)` on every rank with differences of the loss of all ranks,
    sum over ranks of <c, fn(x)>, c random.

    x: this rank's float64 array. replicated_in: all ranks hold the same x, so a step is one of all
    ranks together; else each rank's x is stepped by itself. replicated_out: the results are the
    same, so c is the same and the loss counts once."""
    leaf = Tensor(x.copy(), True)
    y = fn(leaf)
    c = np.random.default_rng([seed, 0 if replicated_out else t.rank]).normal(size=y.shape)
    if replicated_out:
        first = tree.broadcast(t, y.array.copy())
        assert (first == y.array).all(), "the results are not the same on all ranks"
    y.backward(c)
    assert leaf.grad.shape == x.shape

    def loss(stepped):
        with no_grad():
            mine = float((c * fn(Tensor(stepped)).array).sum())
        mine = mine if not replicated_out or t.rank == 0 else 0.0
        return float(naive.all_reduce(t, np.array([mine]))[0])

    wrong = []  # raised when all ranks are through: nobody is left waiting
    sizes = np.diff(ring_blocks.bounds_of(t, x.size))  # blocks may be uneven
    for rank in [0] if replicated_in else range(t.size):
        for i in np.random.default_rng(rank).permutation(sizes[rank])[:ELEMENTS]:
            steps = []
            for h in (STEP, -STEP):
                stepped = x.copy()
                if replicated_in or rank == t.rank:
                    stepped.reshape(-1)[i] += h
                steps.append(loss(stepped))
            numeric = (steps[0] - steps[1]) / (2 * STEP)
            if replicated_in or rank == t.rank:
                got = leaf.grad.reshape(-1)[i]
                if not abs(got - numeric) <= tol * (1 + abs(numeric)):
                    wrong.append(f"element {i}: backward says {got}, differences say {numeric}")
    assert not wrong, f"rank {t.rank}: {wrong}"
    return leaf.grad
