"""minidl/precision/loss_scale.py: the kernel moves the scale as its reference does, and a scaler
whose gradients are on a GPU takes and skips the same steps."""

import numpy as np
import pytest

from minidl import optim
from minidl.cuda import dispatch
from minidl.nn import Parameter
from minidl.precision import loss_scale
from minidl.precision.grad_scaler import GradScaler
from tests.devices import host, put

RULE = dict(growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, hysteresis=1,
            min_scale=0.0, max_scale=2.0**127)


@pytest.mark.parametrize("options", [
    {}, dict(growth_interval=3), dict(growth_interval=2, hysteresis=3),
    dict(init=4.0, min_scale=2.0, growth_interval=2),
    dict(init=8.0, max_scale=16.0, growth_interval=1),
    dict(growth_factor=3.0, backoff_factor=0.25, growth_interval=2),
], ids=str)
def test_the_kernel_moves_the_scale_as_its_reference_does(options, needs_compiler):
    rule = RULE | options
    start = rule.pop("init", 2.0**10)
    kernel = dispatch.kernel(loss_scale.FILE, "loss_scale_update")
    here, there = [(np.array([start], "f4"), np.array([0, rule["hysteresis"], 0], np.int32))
                   for _ in range(2)]
    for bad in np.random.default_rng(1).integers(0, 3, 60) == 0:
        found = np.array([bad], np.int32)
        loss_scale.update(*here, found, **rule)
        kernel(1, 1, (*there, found, *rule.values()))
        assert here[0][0] == there[0][0] and here[1].tolist() == there[1].tolist()
    assert 0 < here[1][2] < 60, "some steps are skipped, and not all"


@pytest.mark.parametrize("max_norm", [None, 0.5, 100.0])
@pytest.mark.parametrize("scale, norm", [(2.0**16, 3e5), (1.0, 0.0), (128.0, 127.0)])
def test_the_kernel_unscales_and_clips_by_one_factor(scale, norm, max_norm, needs_compiler):
    square_sum = None if max_norm is None else np.array([norm**2])
    scale, found = np.array([scale], "f4"), np.empty(1, np.float32)
    kernel = dispatch.kernel(loss_scale.FILE, "loss_scale_factor")
    kernel(1, 1, (found, scale, square_sum, max_norm or 0.0))
    assert found == loss_scale.factor(scale, square_sum, max_norm)


@np.errstate(over="ignore", invalid="ignore")
def run(device, optimizer, max_norm, unscale_first, n_steps=12):
    """(weights, steps that were taken, the scaler's state) after steps of which some overflow."""
    params = [Parameter(put(np.linspace(-1, 1, n, dtype="f4"), device)) for n in (5, 700)]
    optimizer = optimizer(params)
    scaler = GradScaler(init_scale=2.0**14, growth_interval=3, hysteresis=2)
    rng, taken = np.random.default_rng(2), []
    for i in range(n_steps):
        loss = sum((p * put(rng.standard_normal(p.shape).astype("f4"), device)).sum()
                   for p in params)
        loss = loss * (3e38 if i in (2, 5, 6, 9) else 1.0)  # times the scale: inf
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(params, max_norm or 1e9)
            taken.append(scaler.step(optimizer))
        else:
            taken.append(scaler.step(optimizer, max_norm))
        scaler.update()
    return ([host(p.array) for p in params], [bool(t) for t in taken], scaler.state_dict(),
            optimizer.state_dict()["state"])


OPTIMIZERS = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
}


@pytest.mark.gpu
@pytest.mark.parametrize("unscale_first", [False, True])
@pytest.mark.parametrize("max_norm", [None, 0.7])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_skipped_on_a_gpu_as_on_the_cpu(name, max_norm, unscale_first):
    here, there = (run(d, OPTIMIZERS[name], max_norm, unscale_first) for d in ("cpu", "cuda"))
    for a, b in zip(here[0], there[0], strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-6, atol=2e-6)  # sums of squares in another order
    assert here[1] == there[1] and False in here[1] and True in here[1]
    assert here[2] == there[2] and here[2]["skipped"] == 4
    for i, state in here[3].items():  # an Adam's step counts the steps that were taken
        assert state.keys() == there[3][i].keys()
        assert state.get("step") == there[3][i].get("step") in (None, 8)


@pytest.mark.gpu
def test_what_is_read_or_set_comes_back_from_the_gpu():
    params = [Parameter(put(np.ones(3, "f4"), "cuda"))]
    optimizer, scaler = optim.SGD(params, lr=0.1), GradScaler(init_scale=4.0, growth_interval=1)
    for scale in 4.0, 8.0, 16.0:
        assert scaler.get_scale() == scale
        optimizer.zero_grad()
        scaler.scale(params[0].sum()).backward()
        assert float(params[0].grad[0]) == scale
        assert bool(scaler.step(optimizer))
        scaler.update()
    scaler.scale(params[0].sum())
    scaler.factor = 2.0
    assert float(scaler.scale(params[0].sum()).array) == 2 * float(params[0].sum())
    state = scaler.state_dict()
    other = GradScaler()
    other.scale(params[0].sum())
    other.load_state_dict(state)
    assert other.state_dict() == {**state, **{k: getattr(other, k) for k in ("growth_factor",)}}


@pytest.mark.gpu
def test_two_optimizers_count_for_themselves():
    """Their steps start from equal tables; a parameter without a gradient waits with its step."""
    pairs = [[Parameter(put(np.ones(n, "f4"), "cuda")) for n in (3, 4)] for _ in range(2)]
    a, b = (optim.AdamW(params, lr=0.1) for params in pairs)
    for optimizer, params, used in [(a, pairs[0], 2), (b, pairs[1], 2), (a, pairs[0], 2),
                                    (a, pairs[0], 1), (a, pairs[0], 2)]:
        optimizer.zero_grad()
        sum((p * p).sum() for p in params[:used]).backward()
        optimizer.step()
    steps = [[s["step"] for s in o.state_dict()["state"].values()] for o in (a, b)]
    assert steps == [[4, 3], [1, 1]]
