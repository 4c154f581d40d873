"""RMSprop, Adagrad, Adadelta, and the options amsgrad and maximize: PyTorch's weights after several
steps."""

import numpy as np
import pytest

import minidl
from minidl import optim

CASES = [
    ("RMSprop", {}), ("RMSprop", dict(momentum=0.9, weight_decay=0.1)),
    ("RMSprop", dict(centered=True, momentum=0.5, alpha=0.9)), ("RMSprop", dict(maximize=True)),
    ("Adagrad", {}), ("Adagrad", dict(lr_decay=0.1, weight_decay=0.1)),
    ("Adagrad", dict(initial_accumulator_value=0.5, maximize=True)),
    ("Adadelta", {}), ("Adadelta", dict(rho=0.5, weight_decay=0.1, eps=1e-3)),
    ("Adadelta", dict(maximize=True)),
    ("Adam", dict(amsgrad=True)), ("AdamW", dict(amsgrad=True, maximize=True)),
    ("Adam", dict(maximize=True)), ("SGD", dict(maximize=True, momentum=0.9)),
    ("SGD", dict(maximize=True, weight_decay=0.1, nesterov=True, momentum=0.9)),
]
# Two steps from w = (1, -2) with gradients (.5, -1), then (.1, .2)
GOLDEN = [("RMSprop", (0.880293438, -1.919706594)), ("Adagrad", (0.988038839, -1.991961161)),
          ("AdamW", (0.998176969, -1.998448984))]


def gradients(n=6):
    rng = np.random.default_rng(4)
    return [(10 if i == 1 else 1) * rng.standard_normal((3, 2)) for i in range(n)]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name, options", CASES)
def test_weights_and_state_equal_pytorchs(name, options, dtype, kernels):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    start = np.random.default_rng(3).standard_normal((3, 2)).astype(dtype)
    p, q = minidl.tensor(start, requires_grad=True), torch.nn.Parameter(torch.tensor(start))
    mine = getattr(optim, name)([p], lr=0.05, **options)
    theirs = getattr(torch.optim, name)([q], lr=0.05, **options)
    with minidl.use_fused(kernels):
        for g in gradients():
            p.grad, q.grad = g.astype(dtype), torch.tensor(g.astype(dtype))
            mine.step()
            theirs.step()
    # float32: some ten roundings a step
    close = dict(rtol=1e-11, atol=1e-12) if dtype == "f8" else dict(rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(p.array, q.detach().numpy(), **close)
    for key, wanted in theirs.state[q].items():
        np.testing.assert_allclose(mine.state[p][key], wanted.numpy() if hasattr(
            wanted, "numpy") else wanted, **close, err_msg=key)


@pytest.mark.parametrize("name, wanted", GOLDEN)
def test_two_steps_by_hand(name, wanted):
    p = minidl.tensor(np.array([1.0, -2.0]), requires_grad=True)
    optimizer = getattr(optim, name)([p])
    for g in ((0.5, -1.0), (0.1, 0.2)):
        p.grad = np.array(g)
        optimizer.step()
    np.testing.assert_allclose(p.array, wanted, rtol=0, atol=1e-9)  # the digits that are given


@pytest.mark.parametrize("name", ["RMSprop", "Adagrad"])
def test_a_resumed_optimizer_goes_on_to_the_same_bits(name):
    def run(steps, p, optimizer):
        for g in steps:
            p.grad = g.copy()
            optimizer.step()
        return p.array

    def new(start):
        p = minidl.tensor(start, requires_grad=True)
        options = {"momentum": 0.9, "centered": True} if name == "RMSprop" else {"lr_decay": 0.1}
        return p, getattr(optim, name)([p], **options)

    whole = run(gradients(), *new(np.ones((3, 2))))
    first = new(np.ones((3, 2)))
    middle = run(gradients()[:3], *first)
    second = new(middle)
    second[1].load_state_dict(first[1].state_dict())
    np.testing.assert_array_equal(run(gradients()[3:], *second), whole)


@pytest.mark.parametrize("name", ["RMSprop", "Adagrad"])
def test_negative_options_are_refused(name):
    with pytest.raises(ValueError, match="no argument may be negative; got lr -1"):
        getattr(optim, name)([minidl.zeros(2, requires_grad=True)], lr=-1)
