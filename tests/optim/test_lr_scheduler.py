"""Schedules give PyTorch's learning rates at every step."""

import numpy as np
import pytest

from minidl import nn, optim
from minidl.optim import lr_scheduler as ours


def sgd(lr=0.2):
    return optim.SGD([nn.Parameter(np.ones(1))], lr=lr)


SCHEDULES = {
    "step": lambda m, o: m.StepLR(o, step_size=3, gamma=0.5),
    "linear": lambda m, o: m.LinearLR(o),
    "warm-up": lambda m, o: m.LinearLR(o, start_factor=0.01, total_iters=7),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, T_max=10, eta_min=0.01),
    "lambda": lambda m, o: m.LambdaLR(o, lambda step: 0.9**step),
    "sequential": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=4), m.CosineAnnealingLR(o, T_max=16)], [4]),
    # the rate jumps where the second takes over
    "sequential, jump": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=9), m.StepLR(o, step_size=3)], [4]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_learning_rate_equals_pytorchs(name):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    a = sgd()
    b = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.2)
    s, t = SCHEDULES[name](ours, a), SCHEDULES[name](torch.optim.lr_scheduler, b)
    for _ in range(10 if name == "cosine" else 20):
        # PyTorch's recursions round at every step
        assert s.get_last_lr() == pytest.approx(t.get_last_lr(), rel=1e-12, abs=1e-15)
        b.step()
        s.step()
        t.step()


def test_a_schedule_resumes_from_its_state_alone():
    opt = sgd()
    s = SCHEDULES["sequential"](ours, opt)
    for _ in range(9):
        s.step()
    fresh = sgd()
    t = SCHEDULES["sequential"](ours, fresh)
    t.load_state_dict(s.state_dict())
    assert t.get_last_lr() == s.get_last_lr() == [fresh.param_groups[0]["lr"]]


def test_sequential_wants_one_milestone_fewer_than_schedules():
    opt = sgd()
    with pytest.raises(ValueError, match="want n - 1 milestones"):
        ours.SequentialLR(opt, [ours.LinearLR(opt)], [3])


@pytest.mark.parametrize("schedule", [ours.StepLR, ours.CosineAnnealingLR])
def test_a_period_of_no_steps_is_an_error(schedule):
    with pytest.raises(ValueError, match="wants (step_size|T_max) of at least 1 step, got 0"):
        schedule(sgd(), 0)
