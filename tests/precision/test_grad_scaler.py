"""The scale moves as PyTorch's, Megatron's and DeepSpeed's do; a skipped step changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring, simulate
from minidl.nn import functional as F
from minidl.precision.grad_scaler import GradScaler
from tests.conftest import n_drawn
from tests.devices import host, put


class Gradients:
    """An optimizer whose gradients the test chooses."""

    low = {}

    sharded_by = ()

    def __init__(self, *grads):
        self.params = [nn.Parameter(put(np.zeros(g.shape, g.dtype), minidl.Tensor(g).device))
                       for g in grads]
        self.steps = []
        self.set(*grads)

    def set(self, *grads):
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g.copy()

    def parameters(self):
        return self.params

    def gradients(self):
        return [p.grad.array for p in self.params]

    def step(self, unscale=1.0, skip=None):
        """On a GPU both are arrays there."""
        late = hasattr(unscale, "dtype")
        self.steps.append([p.grad.array * (unscale if late else np.float32(unscale))
                           for p in self.params])


def trace(scaler, pattern):
    """The scale after each step; pattern: '.' a good step, 'x' one with an inf."""
    scales = []
    for mark in pattern:
        grad = np.full(3, np.inf if mark == "x" else 1, np.float32)
        assert scaler.step(Gradients(grad)) == (mark == ".")
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


PATTERNS = ["........", "x.......x", "..x..x...x....", "xxx...", "...x......x..xx......."]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("options", [{}, {"init_scale": 8.0, "growth_interval": 3},
                                     {"init_scale": 2.0**126, "growth_interval": 1},
                                     {"growth_factor": 3.0, "backoff_factor": 0.25,
                                      "growth_interval": 2}])
def test_scales_are_pytorchs(pattern, options):
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", **options)
    ours = GradScaler(**options)
    p = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.0)
    for mark, scale in zip(pattern, trace(ours, pattern), strict=True):
        theirs.scale(torch.zeros(()))
        p.grad = torch.full((3,), np.inf if mark == "x" else 1.0)
        theirs.step(optimizer)
        theirs.update()
        assert theirs.get_scale() == scale
    state = theirs.state_dict()
    assert {k: v for k, v in ours.state_dict().items() if k in state} == state


def test_the_two_golden_updates():
    # PyTorch's `_amp_update_scale_`: (tracker, inf) -> (scale, tracker)
    for tracker, mark, scale, after in [(1999, ".", 131072, 0), (500, "x", 32768, 0)]:
        scaler = GradScaler()
        scaler.good_steps = tracker
        assert trace(scaler, mark) == [scale] and scaler.good_steps == after


def test_megatrons_hysteresis_falls_at_the_second_overflow_and_then_at_each():
    scaler = GradScaler(init_scale=8, growth_interval=3, hysteresis=2, min_scale=1)
    #                  x  .  .  x  x  .  .  .  x  x  x  x  x  x
    assert trace(scaler, "x..xx...xxxxxx") == [8, 8, 8, 4, 2, 2, 2, 4, 4, 2, 1, 1, 1, 1]


def deepspeed(scale, outcomes, window, hysteresis, smallest):
    """The scale after each step by the rule of DeepSpeed's DynamicLossScaler, in its own terms: an
    iteration counter and the iteration of the last overflow."""
    iteration, last_overflow, patience, scales = 0, -1, hysteresis, []
    for outcome in outcomes:
        if outcome == "x":
            if patience == 1:
                scale = max(scale / 2, smallest)
            else:
                patience -= 1
            last_overflow = iteration
        elif (iteration - last_overflow) % window == 0:
            patience, scale = hysteresis, scale * 2
        scales.append(scale)
        iteration += 1
    return scales


@pytest.mark.parametrize("seed", range(n_drawn(10)))
def test_deepspeeds_recipe_gives_its_traces(seed):
    rng = np.random.default_rng(seed)
    outcomes = "".join(rng.choice(["x", "."], 60, p=[0.2, 0.8]))
    scaler = GradScaler(init_scale=64, growth_interval=3, hysteresis=2, min_scale=1)
    assert trace(scaler, outcomes) == deepspeed(64, outcomes, 3, 2, 1)


def test_an_overflow_at_the_minimum_is_an_error():
    scaler = GradScaler(
        init_scale=64, growth_interval=3, hysteresis=2, min_scale=1, raise_at_min=True)
    assert trace(scaler, "xxxxxxx") == [64, 32, 16, 8, 4, 2, 1]
    with pytest.raises(OverflowError, match="smallest loss scale"):
        trace(scaler, "x")


def test_endless_nan_ends_in_a_sentence():
    scaler = GradScaler(init_scale=2.0**16)
    with pytest.raises(OverflowError, match=r"at every loss scale, down to .* steps were skipped"):
        trace(scaler, "x" * 2000)


def test_a_second_step_before_update_is_refused():
    scaler, optimizer = GradScaler(init_scale=8), Gradients(np.ones(2, np.float32))
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="step.. was already called on this optimizer"):
        scaler.step(optimizer)
    scaler.update()
    scaler.step(optimizer)


def test_a_maximum_is_not_passed():
    scaler = GradScaler(init_scale=4, growth_interval=1, max_scale=16)
    assert trace(scaler, "....") == [8, 16, 16, 16]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_the_gradient_is_divided_by_the_scale_of_its_backward_then_clipped(early, fused, device):
    grad = np.array([3.0, -4.0], np.float32)
    for max_norm, wanted in [(None, grad), (10, grad), (1, grad / (5 + 1e-6))]:
        scaler, optimizer = GradScaler(init_scale=1024.0), Gradients(put(grad * 1024, device))
        with minidl.use_fused(fused):
            if early:
                scaler.unscale_(optimizer)
                np.testing.assert_array_equal(host(optimizer.gradients()[0]), grad)
            assert scaler.step(optimizer, max_norm=max_norm)
        # one factor 1/1024 * clip instead of two roundings
        np.testing.assert_allclose(host(optimizer.steps[0][0]), wanted, rtol=3e-7)
        scaler.update()


def test_an_fp16_loss_is_scaled_in_fp32():
    loss = minidl.tensor(3.0, dtype=np.float16, requires_grad=True)
    scaled = GradScaler(init_scale=2.0**16).scale(loss)  # 3 * 2^16 is above 65504
    assert scaled.dtype == np.float32 and scaled.item() == 3 * 2**16


def test_wrong_orders_are_refused():
    scaler, optimizer = GradScaler(), Gradients(np.ones(2, np.float32))
    with pytest.raises(RuntimeError, match="no gradients were checked"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="divide the gradients twice"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    half = Gradients(np.ones(2, np.float16))
    for method in (scaler.unscale_, scaler.step):
        with pytest.raises(ValueError, match="use_master_weights"):
            method(half)
    for wrong in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(ValueError, match="growth_factor > 1"):
            GradScaler(**wrong)
    with pytest.raises(ValueError, match="hysteresis >= 1"):
        GradScaler(hysteresis=0)


def test_a_disabled_scaler_does_nothing():
    scaler, optimizer = GradScaler(enabled=False), Gradients(np.array([np.inf], np.float32))
    loss = minidl.tensor(2.0)
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1 and scaler.state_dict() == {}
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer) and len(optimizer.steps) == 1
    scaler.update()


def train(fused, device, poison=None, n_steps=6):
    minidl.manual_seed(0)
    model = nn.MLP(4, 8, 3).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = GradScaler(init_scale=16.0, growth_interval=4)
    x, y = minidl.randn(5, 4).to(device), minidl.tensor([0, 1, 2, 0, 1], device=device)
    history = []
    with minidl.use_fused(fused):
        for step in range(n_steps):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if step == poison:
                next(model.parameters()).grad[0, 0] = np.inf
            if scaler.step(optimizer):
                schedule.step()
            scaler.update()
            history.append([host(p).copy() for p in model.parameters()])
    steps = {int(state["step"]) for state in optimizer.state.values()}
    return history, steps, schedule.get_last_lr(), scaler


@pytest.mark.parametrize("fused", [True, False])
def test_a_skipped_step_moves_neither_weights_nor_adams_t_nor_the_schedule(fused, device):
    good, steps, lr, _ = train(fused, device, n_steps=5)
    bad, bad_steps, bad_lr, scaler = train(fused, device, poison=3, n_steps=6)
    for a, b in zip(bad[2], bad[3], strict=True):
        assert np.array_equal(a, b)
    assert steps == bad_steps == {5} and lr == bad_lr and scaler.skipped == 1
    for a, b in zip(good[-1], bad[-1], strict=True):  # powers of two: the scale leaves no trace
        assert np.array_equal(a, b)


def test_ranks_skip_together():
    def body(t):
        def any_rank(bad):
            return ring.all_reduce(t, np.array([bad]), np.logical_or)[0]

        taken = []
        for groups in ((SimpleNamespace(on_any_rank=any_rank),), ()):
            for looks in (False, True):
                grad = np.array([np.nan if t.rank == 1 else 1.0], np.float32)
                scaler, optimizer = GradScaler(), Gradients(grad)
                optimizer.sharded_by = groups
                if looks:
                    scaler.unscale_(optimizer)
                taken.append(scaler.step(optimizer))
        return taken

    alone = [False, False, True, True]
    assert simulate(3, body) == [alone, [False] * 4, alone]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_overflow_is_found_in_whichever_gradient(bad, looks, fused, device):
    params = [nn.Parameter(put(np.ones(2, np.float32), device)) for _ in range(3)]
    for i, p in enumerate(params):
        p.grad = put(np.array([1, np.inf if i == bad else 1], np.float32), device)
    scaler, optimizer = GradScaler(), optim.SGD(params, lr=1.0)
    with minidl.use_fused(fused):
        if looks:
            scaler.unscale_(optimizer)
        assert not scaler.step(optimizer)


def test_a_saved_scaler_goes_on_as_the_first():
    first = GradScaler(init_scale=64, growth_interval=3, hysteresis=2)
    trace(first, ".x.")
    second = GradScaler(growth_interval=7, hysteresis=2)
    second.load_state_dict(first.state_dict())
    assert trace(first, ".x..x....") == trace(second, ".x..x....")
    with pytest.raises(ValueError, match="disabled"):
        second.load_state_dict({})


class FourAlike:
    """A group of four ranks whose numbers are all as here."""

    t = SimpleNamespace(size=4)

    def on_any_rank(self, flag):
        return flag

    def sum_over_ranks(self, x):
        return 4 * x


def test_max_norm_is_of_all_ranks_shares_together():
    """Here as if three more ranks had the same squares; the norm is twice as long."""
    steps = []
    for groups in ((), (FourAlike(),)):
        p = nn.Parameter(np.zeros(4, np.float32))
        p.grad = np.full(4, 8.0, np.float32)  # unscaled 2, norm 4
        p.sharded_by = groups
        assert GradScaler(init_scale=4.0).step(optim.SGD([p], lr=1.0), max_norm=1.0)
        steps.append(-p.array)
    # the 1e-6 beside the norm of 4 or 8, and roundings of float32
    np.testing.assert_allclose(steps[0], 0.5, rtol=5e-7)
    np.testing.assert_allclose(steps[1], 0.25, rtol=5e-7)
