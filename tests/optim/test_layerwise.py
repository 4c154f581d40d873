"""LARS and LAMB: the papers' numbers, with kernels and without, and the published variants."""

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.precision import amp
from minidl.tensor import Tensor
from tests.kernel_arrays import normal
from tests.optim.test_lamb_kernel import reference as lamb_by_hand

SHAPES = [(3, 5), (), (257,), (0, 2), (100, 90)]
each_way = pytest.mark.parametrize("fused", [True, False])
# float32: a rounding of w near 4; the goldens have 9 digits
CLOSE = {"f8": dict(rtol=3e-9), "f4": dict(rtol=2e-7)}


def steps(make, gradients, dtype="f8", start=(3, 4)):
    """The weights after a step with each gradient."""
    p = Tensor(np.array(start, dtype), requires_grad=True)
    optimizer = make([p])
    for g in gradients:
        p.grad = np.array(g, dtype)
        optimizer.step()
    return p.array


G = (0.6, 0.8)
GOLDENS = {
    "LARS": (lambda p: optim.LARS(p), [G], (2.997, 3.996)),
    "LARS, two steps": (lambda p: optim.LARS(p), [G, (0.1, 0.2)], (2.99205774, 3.98793755)),
    "LARC": (lambda p: optim.LARS(p, lr=0.1, trust_coefficient=0.02, eps=1e-8, clip=True), [G],
             (2.94, 3.92)),
    "LAMB": (lambda p: optim.LAMB(p, lr=0.01), [G], (2.96481588, 3.96447427)),
    "LAMB without decay": (lambda p: optim.LAMB(p, lr=0.01, weight_decay=0), [G],
                           (2.964645, 3.964645)),
    "apex without decay": (lambda p: optim.LAMB(p, lr=0.01, weight_decay=0, adapt=False), [G],
                           (2.99, 3.99)),
    "DeepSpeed": (lambda p: optim.LAMB(p, lr=0.01, bias_correction="step", clamp=(0.01, 10)), [G],
                  (2.988837, 3.988802)),
}


@each_way
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", GOLDENS)
def test_numbers_by_hand(name, dtype, fused):
    make, gradients, want = GOLDENS[name]
    with minidl.use_fused(fused):
        got = steps(make, gradients, dtype)
    digits = 1e-8 if len(str(want[0])) > 9 else 5e-7
    np.testing.assert_allclose(got, want, atol=digits, rtol=CLOSE[dtype]["rtol"])


def lars_by_hand(w, g, v, lr=0.5, mu=0.9, decay=0.1, trust=0.01, eps=1e-3):
    length, slope = (np.sqrt((a**2).sum()) for a in (w, g))
    local = trust * length / (slope + decay * length + eps) if length and slope else 1.0
    v = mu * v + lr * local * (g + decay * w)
    return w - v, v


@each_way
@pytest.mark.parametrize("which", ["LARS", "LAMB"])
def test_ten_steps_equal_the_formula_tensor_by_tensor(which, fused):
    """Shapes of no dimension, without elements, and of more than one chunk of a kernel; a tensor of
    zeros, whose ratio is 1 until it has left them."""
    data = [normal(s, "f4", i) for i, s in enumerate(SHAPES)] + [np.zeros(7, "f4")]
    params = [Tensor(a.copy(), requires_grad=True) for a in data]
    want = [a.astype("f8") for a in data]
    v = [np.zeros_like(a) for a in want]
    m = [np.zeros_like(a) for a in want]
    if which == "LARS":
        optimizer = optim.LARS(params, lr=0.5, weight_decay=0.1, trust_coefficient=0.01, eps=1e-3)
    else:
        optimizer = optim.LAMB(params, lr=0.05, weight_decay=0.1)
    with minidl.use_fused(fused):
        for t in range(1, 11):
            for i, p in enumerate(params):
                p.grad = normal(p.shape, "f4", 50 * t + i)
                g = p.grad.array.astype("f8")
                if which == "LARS":
                    want[i], v[i] = lars_by_hand(want[i], g, v[i])
                else:
                    want[i], m[i], v[i] = lamb_by_hand(
                        want[i], g, m[i], v[i], step=t, lr=0.05, weight_decay=0.1)
            optimizer.step()
    for p, w in zip(params, want):  # ten steps, each of a few roundings of a number near 1
        np.testing.assert_allclose(p.array, w, rtol=4e-6, atol=2e-6)


@pytest.mark.parametrize("make", [
    lambda p: optim.LARS(p, lr=2.0, momentum=0.0),
    lambda p: optim.LAMB(p, lr=0.05, eps_inside_root=True),
    lambda p: optim.LAMB(p, lr=0.05, bias_correction=False, clamp=(0.5, 2)),
    lambda p: optim.LAMB(p, lr=0.05, bias_correction="step"),
    lambda p: optim.LAMB(optim.groups_by_ndim(p), lr=0.05),
    lambda p: optim.LARS(optim.groups_by_ndim(p), lr=0.05, clip=True)])
def test_every_option_is_the_same_with_and_without_kernels(make):
    results = []
    for fused in (True, False):
        with minidl.use_fused(fused):
            params = [Tensor(normal(s, "f4", i), requires_grad=True) for i, s in enumerate(SHAPES)]
            optimizer = make(params)
            for t in range(5):
                for i, p in enumerate(params):
                    p.grad = normal(p.shape, "f4", 50 * t + i)
                optimizer.step()
            results.append([p.array for p in params])
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


def test_the_step_of_a_layer_does_not_depend_on_the_scale_of_its_gradient():
    """What SGD lacks: with gradients a thousand times as long, the same step."""
    for make in (lambda p: optim.LARS(p, weight_decay=0), lambda p: optim.LAMB(p, eps=0)):
        small, large = steps(make, [G]), steps(make, [(600, 800)])
        np.testing.assert_allclose(small, large, rtol=1e-12)
    assert not np.allclose(steps(lambda p: optim.SGD(p, lr=1e-3), [G]),
                           steps(lambda p: optim.SGD(p, lr=1e-3), [(600, 800)]), rtol=1e-3)


def test_a_group_that_does_not_adapt_has_the_steps_of_sgd_and_adamw():
    for mine, theirs in (
            (lambda p: optim.LARS(p, lr=0.1, weight_decay=0.01, adapt=False),
             lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
            (lambda p: optim.LAMB(p, lr=0.1, weight_decay=0.01, adapt=False, eps=1e-8),
             lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.01))):
        np.testing.assert_allclose(steps(mine, [G, (0.1, 0.2)]), steps(theirs, [G, (0.1, 0.2)]),
                                   rtol=1e-12)


def test_vectors_do_not_adapt_by_custom():
    w, b = (Tensor(np.ones(s), requires_grad=True) for s in ((2, 2), (2,)))
    matrices, vectors = optim.groups_by_ndim([w, b])
    assert matrices == {"params": [w]}
    assert vectors == {"params": [b], "adapt": False, "weight_decay": 0.0}


@pytest.mark.parametrize("make", [optim.LARS, optim.LAMB])
def test_fp16_gradients_are_unscaled_before_their_norm_is_taken(make):
    """fp32 masters of an fp16 model, loss scale 1024; the kernels write the fp16 weights too."""
    results = []
    for scale in (1.0, 1024.0):
        p = Tensor(normal((40, 30), "f2", 1), requires_grad=True)
        optimizer = optim.use_master_weights(make([p], lr=0.5))
        p.grad = (normal((40, 30), "f2", 2) * 0.01 * scale).astype("f2")
        optimizer.step(unscale=1 / scale)
        (master,) = optimizer.low
        np.testing.assert_array_equal(p.array, master.array.astype("f2"))
        results.append(master.array)
    np.testing.assert_allclose(*results, rtol=1e-3)  # fp16 rounds the small gradients
    assert abs(results[0] - normal((40, 30), "f2", 1)).max() > 1e-5


@pytest.mark.parametrize("make", [optim.LARS, optim.LAMB])
def test_bfloat16_is_computed_in_float32(make):
    p = Tensor(minidl.tensor(normal((4, 3), "f4", 1)).to(minidl.bfloat16).array, requires_grad=True)
    wide = Tensor(np.asarray(p.array, np.float32), requires_grad=True)
    g = normal((4, 3), "f4", 2).astype(p.dtype)
    for q in (p, wide):
        q.grad = g.astype(q.dtype)
        make([q], lr=0.5).step()
    np.testing.assert_allclose(p.array.astype("f4"), wide.array, rtol=2**-8)


@pytest.mark.parametrize("make", [optim.LARS, optim.LAMB])
def test_an_overflow_skips_the_step(make):
    p = Tensor(np.ones(5, np.float32), requires_grad=True)
    optimizer = make([p])
    p.grad = np.full(5, np.inf, np.float32)
    optimizer.step(skip=np.array([1], np.int32))
    np.testing.assert_array_equal(p.array, 1)
    state = optimizer.state[p]
    assert all((state[name] == 0).all() for name in optimizer.state_arrays)


@pytest.mark.parametrize("make", [optim.LARS, optim.LAMB])
def test_a_loaded_state_goes_on_to_the_same_bits(make):
    def run(p, optimizer, seeds):
        for seed in seeds:
            p.grad = normal(p.shape, "f4", seed)
            optimizer.step()

    p = Tensor(normal((9, 4), "f4", 0), requires_grad=True)
    optimizer = make([p], lr=0.1)
    run(p, optimizer, [1, 2])
    q = Tensor(p.array.copy(), requires_grad=True)
    other = make([q])
    other.load_state_dict(optimizer.state_dict())
    run(p, optimizer, [3])
    run(q, other, [3])
    np.testing.assert_array_equal(p.array, q.array)


def test_a_weight_that_is_not_contiguous_is_written_in_place():
    array = normal((4, 6), "f4", 0)
    p = Tensor(array.T, requires_grad=True)
    p.data = array.T
    for make in (optim.LARS, optim.LAMB):
        before = p.array.copy()
        p.grad = normal((6, 4), "f4", 1)
        make([p], lr=0.5).step()
        assert not np.array_equal(p.array, before)


def test_grad_scaler_steps_them():
    p = Tensor(np.ones((3, 3), np.float32), requires_grad=True)
    optimizer, scaler = optim.LAMB([p], lr=0.1), amp.GradScaler(init_scale=4.0)
    scaler.scale((p * p).sum()).backward()
    assert scaler.step(optimizer, max_norm=1.0)
    want, _, _ = lamb_by_hand(np.ones((3, 3)), np.full((3, 3), 1 / 3.0), 0.0, 0.0, step=1, lr=0.1)
    np.testing.assert_allclose(p.array, want, rtol=1e-6)


@pytest.mark.parametrize("make, message", [
    (lambda p: optim.LARS(p, lr=-1), "LARS wants lr, momentum"),
    (lambda p: optim.LAMB(p, betas=(1, 0)), "betas in"),
    (lambda p: optim.LAMB(p, bias_correction="no"), "True, False or 'step'"),
    (lambda p: optim.LAMB(p, clamp=(2, 1)), "least, most")])
def test_wrong_options_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make([Tensor(np.ones(2), requires_grad=True)])
