"""A fused chain gives what its ops give one by one, forward and backward, in one launch each."""

import numpy as np
import pytest

import minidl
from minidl import backend, cuda
from minidl.cuda import fuse as fuse_module

CHAINS = {
    "gate": lambda x, y, b: (x + b).sigmoid() * y,
    "operators": lambda x, y, b: (2 * x - y / (3.0 + b * b)) - (1 - b) / 2 + -x,
    "reused": lambda x, y, b: (x * x + x) * x.tanh() + x.exp() * y,
    "power": lambda x, y, b: x**3 + (y**2 + 1.0).sqrt() * (b**2 + 0.5).rsqrt(),
    "kinks": lambda x, y, b: x.relu() + y.abs() + x.maximum(b) - y.minimum(0.25),
    "log": lambda x, y, b: (x * x + 1e-1).log() + abs(b) * y,
    "unused": lambda x, y, b: x * 0.5 + x.exp() * 0 + y,
}


def inputs(shape, dtype="f4", seed=0):
    rng = np.random.default_rng(seed)
    return [minidl.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
            for _ in range(3)]


def run(fn, args, seed=1):
    y = fn(*args)
    g = np.random.default_rng(seed).standard_normal(y.shape).astype(y.dtype)
    y.backward(g)
    return [y.array, *(backend.array_of(x.grad) for x in args)]


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1009])
@pytest.mark.parametrize("name", CHAINS)
def test_a_fused_chain_equals_its_ops(name, n):
    fused, plain = minidl.fuse(CHAINS[name]), CHAINS[name]
    for a, b in zip(run(fused, inputs(n)), run(plain, inputs(n))):
        # float32: a chain of at most ten roundings, in another order
        np.testing.assert_allclose(a, 0 if b is None else b, rtol=3e-6, atol=3e-6)


def test_half_precision_is_computed_in_single_and_rounded_once():
    fused = minidl.fuse(CHAINS["gate"])
    half = [x.array for x in inputs(500, "f2")]
    y = fused(*half).array
    exact = CHAINS["gate"](*(minidl.tensor(x.astype("f8")) for x in half)).array
    assert y.dtype == np.float16
    # one rounding to half, 2**-11, and float32's on the way
    np.testing.assert_allclose(y, exact, rtol=2**-11 * 1.01, atol=2**-24)


def test_inputs_broadcast_and_gradients_are_summed_back():
    def args():
        rng = np.random.default_rng(0)
        return [minidl.tensor(rng.standard_normal(s).astype("f4"), requires_grad=True)
                for s in ((4, 5), (4, 1), (5,))]

    for a, b in zip(run(minidl.fuse(CHAINS["gate"]), args()), run(CHAINS["gate"], args())):
        np.testing.assert_allclose(a, b, rtol=3e-6, atol=3e-6)
        assert a.shape == b.shape


def test_it_is_one_launch_forward_and_one_backward_and_saves_inputs_alone(monkeypatch):
    launches = []
    launch = fuse_module.elementwise
    monkeypatch.setattr(fuse_module, "elementwise",
                        lambda file, name, *a: (launches.append(name), launch(file, name, *a)))
    args = inputs(64)
    y = minidl.fuse(CHAINS["reused"])(*args)
    assert minidl.memory.saved_bytes(y) == 0  # the inputs are leaves: nothing else is kept
    y.sum().backward()
    assert launches == ["forward", "backward"]


def test_the_generated_kernel_is_sound_and_moves_what_it_says():
    fused = minidl.fuse(CHAINS["gate"])
    path = fuse_module.dispatch.generated(fused.source)
    n = 300
    x, y, b, out = (np.ones(n, np.float32) for _ in range(4))
    report = cuda.check(cuda.kernel(path, "forward"), 2, 256, (out, x, y, b, n))
    assert not report.findings
    assert sum(a.load_bytes + a.store_bytes for a in report.ledger.values()) == 16 * n


def test_double_and_the_switch_run_the_function_itself():
    fused = minidl.fuse(CHAINS["gate"])
    assert type(fused(*inputs(3, "f8")).grad_fn).__module__.startswith("minidl.ops.")
    with minidl.use_fused(False):
        assert type(fused(*inputs(3)).grad_fn).__module__.startswith("minidl.ops.")
    assert type(fused(*inputs(3)).grad_fn).__name__ == "FusedChain"


@pytest.mark.parametrize("fn, message", [
    (lambda x: x.softmax(), "no operation 'softmax'; it has"),
    (lambda x: x if x else x, "`if` cannot depend on an element"),
    (lambda x: x + np.ones(3), "one operand is a ndarray. Pass an array as an argument"),
    (lambda x: 3, "must return one result, computed from its arguments; got int"),
    (lambda x: x**0.5, "a whole number from 1 to 8, got 0.5"),
])
def test_what_cannot_be_fused_is_named_at_the_decorator(fn, message):
    with pytest.raises((TypeError, AttributeError), match=message.replace("`", "[`]")):
        minidl.fuse(fn)
