"""The page and the real engine: the same values and gradients. Second derivatives, which the real
one does not have, agree with central differences of first ones."""

import numpy as np
import pytest

import minidl
from minidl.plain.autograd import Tensor, grad, order

RNG = np.random.default_rng(3)
A, B, C = RNG.uniform(0.5, 2, (2, 3, 4)), RNG.uniform(0.5, 2, (4, 3)), RNG.uniform(0.5, 2, (3, 1))
PICK = np.array([0, 2, 0])

# (the page's, the real one's) of the leaves a (2, 3, 4), b (4, 3), c (3, 1)
PROGRAMS = {
    "add": (lambda a, b, c: a + c + 2, None),
    "multiply": (lambda a, b, c: 3 * a * c * a, None),
    "subtract": (lambda a, b, c: (1 - a) - c, None),
    "divide": (lambda a, b, c: a / c / 3, None),
    "power": (lambda a, b, c: a**3 * c**-0.5, None),
    "matmul": (lambda a, b, c: a @ b @ c, None),
    "elementwise": (lambda a, b, c: (-a).exp() + c.log() * a.tanh(), None),
    "relu": (lambda a, b, c: (a - c).relu(), None),
    "sum": (lambda a, b, c: a / a.sum(1) + c.sum((0, 1)),
            lambda a, b, c: a / a.sum(1, keepdim=True) + c.sum((0, 1), keepdim=True)),
    "expand": (lambda a, b, c: c.expand((2, 3, 5)) * 2, lambda a, b, c: c.expand(2, 3, 5) * 2),
    "reshape": (lambda a, b, c: a.reshape(6, 4) @ b, None),
    "transpose": (lambda a, b, c: a.transpose(2, 0, 1) @ c,
                  lambda a, b, c: a.permute(2, 0, 1) @ c),
    "index": (lambda a, b, c: a[:, PICK] * b[PICK, 1].sum(), None),
    "used twice": (lambda a, b, c: (a * c).tanh() * (a * c), None),
}


def weights(shape):
    """Distinct, so that no gradient is right by symmetry."""
    return np.random.default_rng(1).uniform(1, 2, shape)


def plain(program, arrays):
    leaves = [Tensor(x) for x in arrays]
    y = program(*leaves)
    return y.array, grad((y * weights(y.array.shape)).sum(), leaves_used(y, leaves))


def leaves_used(y, leaves):
    return [leaf for leaf in leaves if leaf in order(y)]


def real(program, arrays):
    leaves = [minidl.tensor(x, requires_grad=True) for x in arrays]
    y = program(*leaves)
    (y * weights(y.shape)).sum().backward()
    return y.detach().numpy(), [x.grad.numpy() for x in leaves if x.grad is not None]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_the_real_ones(name):
    ours, theirs = PROGRAMS[name]
    (y, gradients), (want, wanted) = (plain(ours, (A, B, C)), real(theirs or ours, (A, B, C)))
    np.testing.assert_allclose(y.reshape(want.shape), want, rtol=1e-15)
    assert len(gradients) == len(wanted)
    for g, w in zip(gradients, wanted):  # sums of at most 24 terms, in another order
        np.testing.assert_allclose(g.array, w, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", PROGRAMS)
def test_second_derivatives_are_differences_of_first_ones(name):
    program = PROGRAMS[name][0]

    def slope(arrays):
        """A function of the first derivatives of all leaves, one number, and its gradients."""
        leaves = [Tensor(x) for x in arrays]
        y = program(*leaves)
        used = leaves_used(y, leaves)
        first = grad((y * y * weights(y.array.shape)).sum(), used)
        total = sum(((g * weights(g.array.shape)).sum().reshape() for g in first), Tensor(0.0))
        return total, leaves, [leaf for leaf in used if leaf in leaves_used(total, leaves)]

    total, leaves, used = slope((A, B, C))
    for leaf, second in zip(used, grad(total, used)):
        place, h = tuple(0 for _ in leaf.array.shape), 1e-5
        ends = []
        for sign in (1, -1):
            moved = [x.copy() for x in (A, B, C)]
            moved[leaves.index(leaf)][place] += sign * h
            ends.append(slope(moved)[0].array)
        assert second.array[place] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


def test_order_has_every_tensor_once_and_after_its_parents():
    y = Tensor(0.0)
    for _ in range(200):  # 2^200 paths
        y = y * y + y
    nodes = order(y)
    place = {node: i for i, node in enumerate(nodes)}
    assert len(place) == len(nodes) == 401 and nodes[-1] is y
    assert all(place[parent] < place[node] for node in nodes for parent in node.parents)
