"""Two schedules on one optimizer, one after the other or at once, give PyTorch's numbers for every
pair: the lr and the momentum after each of 200 steps, whole and resumed in the middle."""

import random

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.optim import lr_scheduler as ours
from tests.conftest import some

torch = pytest.importorskip("torch", reason="compares with PyTorch")
theirs = torch.optim.lr_scheduler
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, on the order of steps

N_STEPS = 200
NAMES = ["StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR",
         "LambdaLR", "MultiplicativeLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
         "CyclicLR", "OneCycleLR"]


def options_of(name, rng):
    """Random arguments of the schedule of this name."""
    a, b = rng.randrange(1, 30), rng.randrange(1, 30)
    f = round(rng.uniform(0.3, 0.99), 3)
    momenta = dict(base_momentum=round(rng.uniform(0.5, 0.8), 3),
                   max_momentum=round(rng.uniform(0.85, 0.99), 3),
                   cycle_momentum=rng.random() < 0.8)
    return {
        "StepLR": lambda: dict(step_size=a, gamma=f),
        "MultiStepLR": lambda: dict(milestones=sorted(rng.choices(range(120), k=4)), gamma=f),
        "ConstantLR": lambda: dict(factor=f, total_iters=a),
        "LinearLR": lambda: dict(start_factor=f, end_factor=rng.choice([1.0, 0.5]), total_iters=a),
        "ExponentialLR": lambda: dict(gamma=0.95 + f / 20),
        "PolynomialLR": lambda: dict(total_iters=a + 50, power=rng.choice([1.0, 2.0])),
        "LambdaLR": lambda: dict(lr_lambda=lambda step: f ** (step / 50)),
        "MultiplicativeLR": lambda: dict(lr_lambda=lambda step: 1 - f / (step + 10)),
        "CosineAnnealingLR": lambda: dict(T_max=a + 1, eta_min=rng.choice([0.0, 0.01])),
        "CosineAnnealingWarmRestarts": lambda: dict(T_0=a, T_mult=rng.choice([1, 2]),
                                                    eta_min=rng.choice([0.0, 0.01])),
        "CyclicLR": lambda: dict(base_lr=f / 10, max_lr=f, step_size_up=a, step_size_down=b,
                                 mode=rng.choice(["triangular", "triangular2"]), **momenta),
        "OneCycleLR": lambda: dict(max_lr=f, total_steps=N_STEPS + a, three_phase=a % 2 == 0,
                                   anneal_strategy=rng.choice(["cos", "linear"]), **momenta),
    }[name]()


def made(library, optimizer, kind, parts, milestone):
    """The composed schedule of `library`, minidl's lr_scheduler or PyTorch's."""
    schedules = [getattr(library, name)(optimizer, **options) for name, options in parts]
    if kind == "sequential":
        return library.SequentialLR(optimizer, schedules, [milestone])
    if kind == "chained":
        return library.ChainedScheduler(schedules)
    return Both(schedules)


class Both:
    """Two schedules that know nothing of each other."""

    def __init__(self, schedules):
        self.schedules = schedules

    def step(self):
        for schedule in self.schedules:
            schedule.step()

    def state_dict(self):
        return [schedule.state_dict() for schedule in self.schedules]

    def load_state_dict(self, state):
        for schedule, one in zip(self.schedules, state, strict=True):
            schedule.load_state_dict(one)


def optimizers(name):
    """minidl's and PyTorch's, of two groups."""
    extra = dict(momentum=0.7) if name == "SGD" else dict(betas=(0.7, 0.9))
    mine = [{"params": [minidl.zeros(1, requires_grad=True)], "lr": lr} for lr in (0.3, 0.05)]
    other = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.3, 0.05)]
    return (getattr(optim, name)(mine, lr=0.1, **extra),
            getattr(torch.optim, name)(other, lr=0.1, **extra))


def numbers(optimizer):
    return [(group["lr"], *group.get("betas", [group.get("momentum")])[:1])
            for group in optimizer.param_groups]


def sequence(optimizer, schedule, n):
    found = [numbers(optimizer)]
    for _ in range(n):
        optimizer.step()
        schedule.step()
        found.append(numbers(optimizer))
    return found


PAIRS = [(kind, a, b) for a in NAMES for b in NAMES for kind in ("sequential", "chained", "both")]


@pytest.mark.parametrize("kind, first, second", some(PAIRS, of=12))
def test_a_pair_is_pytorchs_and_goes_on_after_a_stop(kind, first, second):
    rng = random.Random(f"{kind} {first} {second}")
    parts = [(name, options_of(name, rng)) for name in (first, second)]
    milestone, stop = rng.randrange(1, 100), rng.randrange(N_STEPS)
    name = rng.choice(["SGD", "AdamW"])
    mine, other = optimizers(name)
    schedule = made(ours, mine, kind, parts, milestone)
    wanted = sequence(other, made(theirs, other, kind, parts, milestone), N_STEPS)

    before = sequence(mine, schedule, stop)
    states = mine.state_dict(), schedule.state_dict()
    rest = sequence(mine, schedule, N_STEPS - stop)
    # 200 multiplications: PyTorch's recursion and ours round in other places. On the way up from
    # its least value a cosine's growth is large: what has cancelled before is multiplied.
    close = dict(rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(before + rest[1:], wanted, **close)

    for with_optimizer in True, False:
        again, _ = optimizers(name)
        resumed = made(ours, again, kind, parts, milestone)
        if with_optimizer:
            again.load_state_dict(states[0])
        resumed.load_state_dict(states[1])
        assert sequence(again, resumed, N_STEPS - stop) == rest


def test_three_in_sequence_and_a_chain_inside():
    """PyTorch's SequentialLR cannot take over with a composed schedule: by hand."""
    mine, _ = optimizers("SGD")
    chain = ours.ChainedScheduler([ours.ConstantLR(mine, 0.5, 2), ours.ExponentialLR(mine, 0.5)])
    schedule = ours.SequentialLR(mine, [ours.ConstantLR(mine, 0.1, 9), chain], [2])
    lrs = [lr for (lr, _), _ in sequence(mine, schedule, 5)]
    np.testing.assert_allclose(np.array(lrs) / 0.3, [0.1, 0.1, 0.5, 0.25, 0.25, 0.125], rtol=1e-12)


def test_what_cannot_be_composed_is_refused():
    mine, _ = optimizers("SGD")
    other, _ = optimizers("SGD")
    plateau, step = ours.ReduceLROnPlateau(mine), ours.StepLR(mine, 3)
    with pytest.raises(ValueError, match="schedule 1 is a ReduceLROnPlateau"):
        ours.SequentialLR(mine, [step, plateau], [3])
    with pytest.raises(ValueError, match="schedule 0 is a ReduceLROnPlateau"):
        ours.ChainedScheduler([plateau])
    with pytest.raises(ValueError, match="schedule 0, a StepLR, was made for another optimizer"):
        ours.SequentialLR(other, [step, ours.StepLR(other, 3)], [3])


def test_one_cycle_has_a_max_lr_for_each_group_and_no_phase_without_a_step():
    mine, other = optimizers("SGD")
    options = dict(max_lr=[0.1, 1.0], total_steps=10)
    np.testing.assert_allclose(sequence(mine, ours.OneCycleLR(mine, **options), 9), sequence(
        other, theirs.OneCycleLR(other, **options), 9), rtol=1e-12)
    with pytest.raises(ValueError, match="a number for each of the 2 parameter groups"):
        ours.OneCycleLR(mine, [0.1], total_steps=10)
    with pytest.raises(ValueError, match="pct_start 0.1 and 10 steps, one phase has no step"):
        ours.OneCycleLR(mine, 1.0, total_steps=10, pct_start=0.1)


def test_a_state_of_another_schedule_is_refused():
    mine, other = optimizers("SGD")
    step = ours.StepLR(mine, 3)
    chain = ours.ChainedScheduler([step, ours.ExponentialLR(mine, 0.9)])
    with pytest.raises(ValueError, match="ChainedScheduler has 2 schedules inside and 2 .* "
                                         "groups, but the state has 0 .* inside and 2 groups"):
        chain.load_state_dict(step.state_dict())
    with pytest.raises(ValueError, match="wanted the result of StepLR.state_dict.. in minidl"):
        step.load_state_dict(theirs.StepLR(other, 3).state_dict())
