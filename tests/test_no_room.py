"""Tests a full disk: when a compiled kernel cannot be stored anywhere, the program continues with
NumPy and prints one warning (minidl/mode.py)."""

import warnings

import numpy as np
import pytest

import minidl
from minidl import mode
from minidl.comm import codec
from minidl.cuda import dispatch, grad_norm
from minidl.cuda.host.compiler import NoSpace
from minidl.cuda.run import Kernel
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel.data import compress, flat, topk_mask
from minidl.precision.grad_scaler import GradScaler
from minidl.tensor import Tensor
from tests.ops.test_one_function import _every_product_is_ours  # noqa: F401
from tests.ops.test_one_function import CLOSE, FORMS, inputs
from tests.ops.test_one_function import run as forward_and_backward
from tests.optim import every

pytestmark = pytest.mark.usefixtures("needs_compiler")


@pytest.fixture
def room_for(monkeypatch):
    """Returns the function room_for. After room_for(n), only the first n kernels can be compiled.
    Every other kernel raises NoSpace before it runs."""
    allowed, compiled, launch, load = [0], set(), Kernel.__call__, Kernel.on_cpu.fget

    def compile_or_raise(kernel):
        key = kernel.path, kernel.name, tuple(kernel.defines.items())
        if key not in compiled and len(compiled) >= allowed[0]:
            raise NoSpace("compiled kernels cannot be written anywhere")
        compiled.add(key)

    def call(kernel, *args, **options):
        compile_or_raise(kernel)
        return launch(kernel, *args, **options)

    def on_cpu(kernel):
        compile_or_raise(kernel)
        return load(kernel)

    def start(n):
        allowed[0] = n
        compiled.clear()
        dispatch.can_launch.cache_clear()
        mode.kernels_given_up = False

    monkeypatch.setattr(Kernel, "__call__", call)
    monkeypatch.setattr(Kernel, "on_cpu", property(on_cpu))
    start(0)
    yield start
    start(0)


def said_once(function, *args):
    """Calls function(*args). Returns (result, True if there was a warning). Checks that there is at
    most one warning, and that it names the reason."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = function(*args)
    texts = [str(w.message) for w in said]
    assert len(texts) <= 1
    assert all("cannot be written anywhere. From now on this process computes" in t for t in texts)
    return result, bool(texts)


@pytest.mark.parametrize("op", FORMS)
def test_every_op_goes_on_with_numpy(op, room_for):
    form = FORMS[op][1][0]
    _, want = forward_and_backward(form, inputs(op), False, False)
    n_kernels = 0
    while True:
        room_for(n_kernels)
        (_, got), warned = said_once(forward_and_backward, form, inputs(op))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE["f4"])
        if not warned:  # there was room for all kernels
            break
        n_kernels += 1
    assert n_kernels >= 1


@pytest.mark.parametrize("name", every.FOUND)
def test_an_optimizer_takes_each_step_once(name, room_for):
    def steps(kernels=True):
        rng = np.random.default_rng(0)
        params = [minidl.nn.Parameter(rng.standard_normal(s).astype("f4")) for s in ((4, 5), (7,))]
        params = every.fitting(name, params)
        optimizer = every.make(name, params)
        for _ in range(2):
            for p in params:
                p.grad = rng.standard_normal(p.shape).astype("f4")
            with minidl.use_fused(kernels):
                optimizer.step()
        state = optimizer.state_dict()["state"]
        numbers = {(i, k): v for i, s in state.items() for k, v in s.items()}
        return [p.array for p in params], numbers

    weights, numbers = steps(kernels=False)
    n_kernels = 0
    while True:
        room_for(n_kernels)
        (got, state), warned = said_once(steps)
        for a, b in zip(got, weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert state.keys() == numbers.keys()
        for key, value in numbers.items():
            np.testing.assert_allclose(np.asarray(state[key]), np.asarray(value), rtol=1e-5,
                                       atol=1e-6)
        if not warned:
            break
        n_kernels += 1
    if name in ("SGD", "Adam", "AdamW", "LAMB", "LARS"):
        assert n_kernels >= 1


RNG = np.random.default_rng(3)
X = RNG.standard_normal(5000).astype("f4")
HALVES = [X[:1000].astype("f2"), X[1000:].astype("f2")]


def filled():
    target = np.zeros(X.size, np.float32)
    flat.fill(target, HALVES)
    back = [np.zeros_like(h) for h in HALVES]
    flat.unflatten(target, back)
    return [target, *back]


def unscaled():
    w = minidl.nn.Parameter(np.ones(X.size, np.float32))
    w.grad = X * 1024
    scaler, optimizer = GradScaler(init_scale=1024.0), minidl.optim.SGD([w], lr=1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    return [w.array]


def coded(code):
    def both():
        x = X.copy()
        payload = compress.BY_KERNELS[code].encode(x)
        return [payload, compress.BY_KERNELS[code].decode(payload, x.size)]

    return both


@pytest.mark.parametrize("function", [
    lambda: [grad_norm.square_sum_of([X, X[:10]])],
    lambda: list(topk_mask.top_k(X, 50)), filled, unscaled, coded(codec.FP16), coded(codec.INT8),
], ids=["norm", "top_k", "fill", "unscale", "fp16", "int8"])
def test_what_else_launches_kernels_goes_on_with_numpy(function, room_for):
    with minidl.use_fused(False):
        want = function()
    n_kernels = 0
    while True:
        room_for(n_kernels)
        got, warned = said_once(function)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        if not warned:
            break
        n_kernels += 1
    assert n_kernels >= 1


def test_the_second_run_of_recompute_draws_the_numbers_of_the_first(room_for):
    weight = X.reshape(50, 100)

    def step():
        x = Tensor(weight.copy(), requires_grad=True)
        y = recompute(lambda x: F.dropout(F.softmax(x, -1), 0.5), x)
        (y * Tensor(weight)).sum().backward()
        return y.array, x.grad.array

    s = np.exp(weight) / np.exp(weight).sum(1, keepdims=True)
    for n_kernels in range(3):
        room_for(n_kernels)
        (y, gradient), _ = said_once(step)
        assert 0.4 < (y == 0).mean() < 0.6
        gs = weight * (y != 0) * 2
        np.testing.assert_allclose(gradient, s * (gs - (gs * s).sum(1, keepdims=True)),
                                   rtol=1e-4, atol=1e-6)
