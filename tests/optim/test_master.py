"""Master weights: what rounds to nothing in fp16 adds up in fp32."""

from functools import partial

import numpy as np
import pytest

from minidl import nn, optim, use_fused
from minidl.precision.grad_scaler import GradScaler
from tests.devices import host, put
from tests.optim import every

OPTIMIZERS = {name: partial(every.make, name) for name in every.FOUND} | {
    "SGD alone": lambda params: optim.SGD(params, lr=0.1),
    "SGD, decay": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam, decay": lambda params: optim.Adam(params, lr=0.01, weight_decay=0.01),
}


def parameters(dtype=np.float16, shapes=((5, 7), (3,), (257,)), seed=0, device="cpu"):
    rng = np.random.default_rng(seed)
    return [nn.Parameter(put(rng.standard_normal(s).astype(np.float16).astype(dtype), device))
            for s in shapes]


def set_gradients(params, step, scale=1.0):
    rng = np.random.default_rng(100 + step)
    for p in params:
        p.grad = put((rng.integers(-64, 65, p.shape) / 64 * scale).astype(p.dtype), p.device)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scale", [1.0, 256.0])
def test_masters_are_the_weights_of_fp32_training_and_the_fp16_ones_their_cast(
        name, fused, scale, device):
    low, wide = (every.fitting(name, parameters(dtype, device=device))
                 for dtype in (np.float16, np.float32))
    with_masters = optim.use_master_weights(OPTIMIZERS[name](low))
    plain = OPTIMIZERS[name](wide)
    with use_fused(fused):
        for step in range(4):
            set_gradients(low, step, scale)
            set_gradients(wide, step)
            with_masters.step(unscale=1 / scale)
            plain.step()
            for master, w, p in zip(with_masters.parameters(), wide, low, strict=True):
                # the scale is a power of two; norms of tensors are sums of float32, and those of
                # halves are added in another order: some ulps of 2^-23 in each of four steps
                rtol = 0 if name in every.BY_ELEMENTS else 2**-19
                np.testing.assert_allclose(host(master), host(w), rtol=rtol, atol=rtol / 100)
                assert p.dtype == np.float16
                assert np.array_equal(host(p), host(master).astype(np.float16))
                assert p.version == step + 1 and master.grad is None


def test_updates_below_half_an_ulp_add_up_only_in_the_master_copy():
    # |w| = 1: half an ulp of fp16 is 2**-12 below 1; lr * g = 2**-13
    def train(masters):
        p = nn.Parameter(np.ones(4, np.float16))
        optimizer = optim.SGD([p], lr=2.0**-13)
        if masters:
            optim.use_master_weights(optimizer)
        for _ in range(1024):
            p.grad = np.ones(4, np.float16)
            optimizer.step()
        return p.array

    assert np.all(train(masters=True) == 1 - 1024 * 2.0**-13)
    assert np.all(train(masters=False) == 1)


def test_float32_parameters_stay_as_they_are_beside_masters():
    half, single = parameters(), parameters(np.float32, seed=1)
    optimizer = optim.use_master_weights(optim.AdamW([*half, *single]))
    assert len(optimizer.low) == 3 and optimizer.parameters()[3:] == single
    set_gradients([*half, *single], 0)
    before = [p.array.copy() for p in single]
    optimizer.step()
    assert all(not np.array_equal(a, p.array) for a, p in zip(before, single, strict=True))
    optimizer.zero_grad()
    assert all(p.grad is None for p in [*half, *single])


def test_unscale_writes_float32_gradients_which_the_step_then_uses_and_drops(device):
    def train(early):
        params = parameters(device=device)
        optimizer = optim.use_master_weights(OPTIMIZERS["AdamW"](params))
        scaler = GradScaler(init_scale=1024.0)
        for step in range(3):
            set_gradients(params, step, 1024.0)
            if early:
                scaler.unscale_(optimizer)
                assert all(m.grad.dtype == np.float32 for m in optimizer.parameters())
                optim.clip_grad_norm_(optimizer.parameters(), 1e9)
            assert scaler.step(optimizer)
            scaler.update()
            assert all(m.grad is None for m in optimizer.parameters())
        return [host(p) for p in params]

    for a, b in zip(train(True), train(False), strict=True):
        assert np.array_equal(a, b)


def test_an_unscaled_gradient_that_no_step_used_is_not_used_later():
    params = parameters()
    optimizer = optim.use_master_weights(optim.SGD(params, lr=1.0))
    scaler = GradScaler(init_scale=4.0)
    set_gradients(params, 0, 4.0)
    scaler.unscale_(optimizer)
    scaler.update()
    before = [m.array.copy() for m in optimizer.parameters()]
    set_gradients(params, 1, 4.0)
    scaler.step(optimizer)
    for m, b, p in zip(optimizer.parameters(), before, params, strict=True):
        assert np.array_equal(m.array, b - p.grad.array.astype(np.float32) / 4)


def test_state_holds_the_masters_and_comes_back_to_the_same_bits(device):
    def build():
        params = parameters(device=device)
        return params, optim.use_master_weights(OPTIMIZERS["AdamW"](params))

    params, optimizer = build()
    for step in range(2):
        set_gradients(params, step)
        optimizer.step()
    again, restored = build()
    restored.load_state_dict(optimizer.state_dict())
    for a, b in zip(params, again, strict=True):
        assert np.array_equal(host(a), host(b))
    for ps, o in ((params, optimizer), (again, restored)):
        set_gradients(ps, 2)
        o.step()
    for a, b in zip(optimizer.parameters(), restored.parameters(), strict=True):
        assert np.array_equal(host(a), host(b))
    with pytest.raises(ValueError, match="a master copy in the state, but none here"):
        optim.AdamW(parameters()).load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="but none in the state"):
        wide = optim.AdamW(parameters(np.float32))
        set_gradients(wide.parameters(), 0)
        wide.step()
        restored.load_state_dict(wide.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_state_goes_from_one_device_to_another(name, dtype):
    """Three steps here; or one here, one on the GPU, one here again."""
    def build(device):
        params = every.fitting(name, parameters(dtype, device=device))
        return params, optim.use_master_weights(OPTIMIZERS[name](params))

    straight, traveller = build("cpu"), build("cpu")
    for step, device in enumerate(["cpu", "cuda", "cpu"]):
        params, optimizer = build(device)
        optimizer.load_state_dict(traveller[1].state_dict())
        for p, q in zip(params, traveller[0], strict=True):
            p.data = put(host(q), device)
        traveller = params, optimizer
        for ps, o in (straight, traveller):
            set_gradients(ps, step)
            o.step()
    for p, q in zip(straight[0], traveller[0], strict=True):
        # norms and products are sums of float32, which a GPU adds in another order
        rtol = 0 if name in every.BY_ELEMENTS else 2**-19
        np.testing.assert_allclose(p.array, q.array, rtol=rtol, atol=rtol / 100)


def test_masters_come_before_the_first_step():
    params = parameters()
    optimizer = OPTIMIZERS["SGD"](params)
    set_gradients(params, 0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="before the first step"):
        optim.use_master_weights(optimizer)


def test_sixteen_bytes_a_parameter():
    p = nn.Parameter(np.ones(1000, np.float16))
    optimizer = optim.use_master_weights(optim.AdamW([p]))
    p.grad = np.ones(1000, np.float16)
    optimizer.step()
    master, = optimizer.parameters()
    state = optimizer.state[master]
    held = [p.array, p.grad, master.array, state["exp_avg"], state["exp_avg_sq"]]
    assert [a.nbytes for a in held] == [2000, 2000, 4000, 4000, 4000]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_loaded_into_the_model_are_not_reverted_by_the_next_step(name):
    """The master must follow its parameter where the user has overwritten that."""
    params, fresh = (every.fitting(name, parameters(seed=seed)) for seed in (0, 1))
    optimizer = optim.use_master_weights(OPTIMIZERS[name](params))
    for p, loaded in zip(params, fresh, strict=True):
        p.data = loaded.array.copy()  # as load_state_dict does: a new version
    expected = optim.use_master_weights(OPTIMIZERS[name](fresh))
    for one, other in ((params, optimizer), (fresh, expected)):
        set_gradients(one, 0)
        other.step()
    for p, q in zip(params, fresh, strict=True):
        # norms and products are sums of float32, which a GPU adds in another order
        rtol = 0 if name in every.BY_ELEMENTS else 2**-19
        np.testing.assert_allclose(p.array, q.array, rtol=rtol, atol=rtol / 100)
