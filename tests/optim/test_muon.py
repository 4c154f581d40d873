"""Muon: formulas by hand, PyTorch's weights to bfloat16's accuracy, and what it refuses."""

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.optim.muon import orthogonal


def test_diag_1_2_by_hand():
    # 5 steps in float64, as computed by a program of its own: 1.11416, .68876 in size order
    got = orthogonal(np.diag([1.0, 2.0]))
    np.testing.assert_allclose(np.sort(np.diag(got)), [0.68876, 1.11416], atol=1e-5)
    np.testing.assert_allclose(got - np.diag(np.diag(got)), 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6)])
def test_singular_values_come_near_one_and_singular_vectors_stay(shape):
    rng = np.random.default_rng(0)
    u, _, v = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    s = np.geomspace(1, 0.05, min(shape))
    found = u.T @ orthogonal((u * s) @ v) @ v.T
    assert (0.65 < np.diag(found)).all() and (np.diag(found) < 1.15).all()
    np.testing.assert_allclose(found - np.diag(np.diag(found)), 0, atol=1e-10)


@pytest.mark.parametrize("options, shape", [
    ({}, (4, 6)), ({}, (9, 2)), (dict(nesterov=False, weight_decay=0.0), (4, 6)),
    (dict(adjust_lr_fn="match_rms_adamw", momentum=0.8), (5, 3))])
def test_weights_equal_pytorchs_up_to_its_bfloat16(options, shape):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    rng = np.random.default_rng(1)
    start = rng.standard_normal(shape).astype("f4")
    p, q = minidl.tensor(start, requires_grad=True), torch.nn.Parameter(torch.tensor(start))
    mine, theirs = optim.Muon([p], lr=0.1, **options), torch.optim.Muon([q], lr=0.1, **options)
    steps = 3
    for _ in range(steps):
        g = rng.standard_normal(shape).astype("f4")
        p.grad, q.grad = g.copy(), torch.tensor(g)
        mine.step()
        theirs.step()
    factor = 0.2 * max(shape) ** 0.5 if options.get("adjust_lr_fn") else max(
        1, shape[0] / shape[1]) ** 0.5
    # a step is at most lr * factor * 1.15 long in every direction; bfloat16 errs by 4 % of it
    off = np.linalg.norm(p.array - q.detach().numpy(), 2)
    assert off < 0.04 * steps * 0.1 * factor * 1.15
    np.testing.assert_allclose(mine.state[p]["momentum_buffer"],
                               theirs.state[q]["momentum_buffer"].numpy(), rtol=1e-5, atol=1e-6)


def test_decay_is_by_the_unscaled_learning_rate():
    p = minidl.tensor(np.full((8, 2), 3.0), requires_grad=True)
    p.grad = np.zeros((8, 2))
    optim.Muon([p], lr=0.1, weight_decay=0.5).step()
    np.testing.assert_allclose(p.array, 3.0 * (1 - 0.1 * 0.5), rtol=1e-15)


def test_vectors_are_refused_and_the_remedy_is_named():
    with pytest.raises(ValueError, match=r"matrices; got a parameter of shape \(3,\).*AdamW"):
        optim.Muon([minidl.zeros(3, requires_grad=True)])
    with pytest.raises(ValueError, match="adjust_lr_fn must be None"):
        optim.Muon([minidl.zeros(3, 3, requires_grad=True)], adjust_lr_fn="x")
