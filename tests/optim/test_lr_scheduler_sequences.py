"""Every schedule gives PyTorch's sequence of learning rates, and of momenta."""

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.optim import lr_scheduler as ours

torch = pytest.importorskip("torch", reason="compares with PyTorch")

SCHEDULES = [
    ("StepLR", dict(step_size=3, gamma=0.5)),
    ("MultiStepLR", dict(milestones=[2, 2, 4])),
    ("ConstantLR", dict(factor=0.1, total_iters=2)),
    ("ExponentialLR", dict(gamma=0.9)),
    ("LinearLR", dict(start_factor=0.25, total_iters=4)),
    ("LambdaLR", dict(lr_lambda=lambda step: 0.9**step + 0.1)),
    ("MultiplicativeLR", dict(lr_lambda=lambda step: 1 - 0.05 * step)),
    ("PolynomialLR", dict(total_iters=4, power=2.0)),
    ("CosineAnnealingLR", dict(T_max=4, eta_min=0.01)),
    ("CosineAnnealingWarmRestarts", dict(T_0=2, T_mult=2)),
    ("CosineAnnealingWarmRestarts", dict(T_0=3, eta_min=0.02)),
    ("CyclicLR", dict(base_lr=0.1, max_lr=1.0, step_size_up=2)),
    ("CyclicLR", dict(base_lr=0.2, max_lr=0.9, step_size_up=1, step_size_down=4,
                      mode="triangular2", base_momentum=0.5)),
    ("CyclicLR", dict(base_lr=0.2, max_lr=0.9, step_size_up=3, mode="exp_range", gamma=0.9)),
    ("CyclicLR", dict(base_lr=0.2, max_lr=0.9, step_size_up=3, scale_fn=lambda c: 1 / c)),
    ("CyclicLR", dict(base_lr=0.2, max_lr=0.9, step_size_up=2, scale_fn=lambda i: 1 / (1 + i),
                      scale_mode="iterations", cycle_momentum=False)),
    ("OneCycleLR", dict(max_lr=1.0, total_steps=12)),
    ("OneCycleLR", dict(max_lr=1.0, epochs=4, steps_per_epoch=3, three_phase=True)),
    ("OneCycleLR", dict(max_lr=0.5, total_steps=13, anneal_strategy="linear", pct_start=0.5)),
]
# a sum of a dozen roundings of float64
CLOSE = dict(rtol=1e-12, atol=1e-14)


def optimizers(name="SGD", **options):
    theirs = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(2))], lr=0.3, **options)
    mine = getattr(optim, name)([minidl.tensor([0.0, 0.0], requires_grad=True)], lr=0.3, **options)
    return mine, theirs


def sequence(optimizer, scheduler, n=12, step=lambda scheduler, i: scheduler.step()):
    """(lr, momentum or first beta) at the start and after each of n steps."""
    found = []
    for i in range(n + 1):
        group = optimizer.param_groups[0]
        found.append((group["lr"], group.get("momentum", group.get("betas", [0])[0])))
        if i < n:
            optimizer.step()
            step(scheduler, i)
    return found


@pytest.mark.parametrize("name, options", SCHEDULES)
def test_the_sequence_is_pytorchs(name, options):
    mine, theirs = optimizers(momentum=0.5)
    got = sequence(mine, getattr(ours, name)(mine, **options))
    wanted = sequence(theirs, getattr(torch.optim.lr_scheduler, name)(theirs, **options))
    np.testing.assert_allclose(got, wanted, **CLOSE)


@pytest.mark.parametrize("options", [{}, dict(cooldown=3), dict(mode="max", patience=1),
                                     dict(threshold=0.5, threshold_mode="abs"),
                                     dict(min_lr=0.1, factor=0.5)])
def test_a_plateau_cuts_when_pytorchs_does(options):
    options = {"patience": 2, **options}
    metrics = [3, 2, 2, 2.5, 2, 2, 2.1, 1.9999, 1.0, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1]
    mine, theirs = optimizers()
    got = sequence(mine, ours.ReduceLROnPlateau(mine, **options), len(metrics),
                   lambda s, i: s.step(metrics[i]))
    wanted = sequence(theirs, torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options),
                      len(metrics), lambda s, i: s.step(metrics[i]))
    np.testing.assert_allclose(got, wanted, **CLOSE)
    assert len({lr for lr, _ in wanted}) > 1, "nothing was cut"


def composed(library, optimizer, kind):
    s = library
    if kind == "sequential":
        parts = [s.LinearLR(optimizer, 0.25, 1.0, 4), s.CosineAnnealingLR(optimizer, 4),
                 s.ExponentialLR(optimizer, 0.5)]
        return s.SequentialLR(optimizer, parts, [4, 8])
    parts = [s.ConstantLR(optimizer, 0.1, 2), s.ExponentialLR(optimizer, 0.9),
             s.MultiStepLR(optimizer, [3, 5])]
    return s.ChainedScheduler(parts)


@pytest.mark.parametrize("kind", ["sequential", "chained"])
def test_composed_schedules_are_pytorchs(kind):
    mine, theirs = optimizers()
    got = sequence(mine, composed(ours, mine, kind))
    np.testing.assert_allclose(
        got, sequence(theirs, composed(torch.optim.lr_scheduler, theirs, kind)), **CLOSE)


def test_one_cycle_moves_adams_first_beta_and_ends():
    mine, theirs = optimizers("AdamW")
    options = dict(max_lr=1.0, total_steps=10)
    schedule = ours.OneCycleLR(mine, **options)
    got = sequence(mine, schedule, 10)
    np.testing.assert_allclose(
        got, sequence(theirs, torch.optim.lr_scheduler.OneCycleLR(theirs, **options), 10), **CLOSE)
    with pytest.raises(ValueError, match="at most 10 steps, .* got step 11"):
        schedule.step()


def test_warm_restarts_take_a_position_between_two_epochs():
    mine, theirs = optimizers()
    at = [0, 0.5, 1.75, 2, 3.5, 6.25, 7]
    a = ours.CosineAnnealingWarmRestarts(mine, 2, 2)
    b = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(theirs, 2, 2)
    got = sequence(mine, a, len(at), lambda s, i: s.step(at[i]))
    np.testing.assert_allclose(got, sequence(theirs, b, len(at), lambda s, i: s.step(at[i])),
                               **CLOSE)


@pytest.mark.parametrize("make", [lambda o: ours.OneCycleLR(o, 1.0, 12, cycle_momentum=False),
                                  lambda o: ours.CyclicLR(o, 0.1, 1.0, 3, cycle_momentum=False),
                                  lambda o: ours.CosineAnnealingWarmRestarts(o, 2, 2),
                                  lambda o: ours.MultiStepLR(o, [2, 5])])
def test_a_resumed_schedule_goes_on(make):
    whole, _ = optimizers()
    all_of_it = sequence(whole, make(whole), 8)
    first, _ = optimizers()
    schedule = make(first)
    sequence(first, schedule, 4)
    second, _ = optimizers()
    resumed = make(second)
    resumed.load_state_dict(schedule.state_dict())
    np.testing.assert_array_equal(sequence(second, resumed, 4), all_of_it[4:])


def test_a_resumed_plateau_goes_on():
    mine, other = optimizers()[0], optimizers()[0]
    a = ours.ReduceLROnPlateau(mine, patience=2)
    for metric in (1, 1, 1):
        a.step(metric)
    b = ours.ReduceLROnPlateau(other, patience=2)
    b.load_state_dict(a.state_dict())
    b.step(1)
    assert b.get_last_lr() == [pytest.approx(0.03)]


def test_wrong_options_are_refused():
    mine, _ = optimizers()
    for make, message in [
            (lambda: ours.OneCycleLR(mine, 1.0), "wants total_steps"),
            (lambda: ours.OneCycleLR(mine, 1.0, 5, anneal_strategy="x"), "anneal_strategy must be"),
            (lambda: ours.CosineAnnealingWarmRestarts(mine, 2, 0.5), "T_mult must be an int"),
            (lambda: ours.CyclicLR(mine, 0.1, 1, mode="x"), "mode must be one of"),
            (lambda: ours.CyclicLR(mine, [0.1], 1), "one base_lr and one max_lr for all groups"),
            (lambda: ours.CyclicLR(mine, 0.1, 1, 0), "step_size_up of at least 1 step"),
            (lambda: ours.ReduceLROnPlateau(mine, factor=1.0), "factor below 1")]:
        with pytest.raises(ValueError, match=message):
            make()


JOINED = [case for case in SCHEDULES if case[0] not in (
    "LambdaLR", "MultiplicativeLR", "OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts")]
NOT_JOINED = [case for case in SCHEDULES if case not in JOINED]


def with_a_late_group(optimizer, schedule, leaf, n=3):
    """lr of both groups after each of 9 steps, the second one added after step n."""
    found = []
    for i in range(9):
        if i == n:
            optimizer.add_param_group({"params": [leaf], "lr": 0.7})
        optimizer.step()
        schedule.step()
        found.append([group["lr"] for group in optimizer.param_groups])
    return np.array([lrs + [0] * (2 - len(lrs)) for lrs in found])


@pytest.mark.parametrize("n", [0, 1, 3, 6])
@pytest.mark.parametrize("name, options", JOINED)
def test_a_group_that_comes_later_follows_the_schedule_as_pytorchs_does(name, options, n):
    if name == "CosineAnnealingLR":  # after T_max steps PyTorch cannot go on with such a group
        options = {**options, "T_max": 9}
    mine, theirs = optimizers()
    got = with_a_late_group(mine, getattr(ours, name)(mine, **options), minidl.zeros(2), n)
    wanted = with_a_late_group(theirs, getattr(torch.optim.lr_scheduler, name)(theirs, **options),
                               torch.nn.Parameter(torch.zeros(2)), n)
    np.testing.assert_allclose(got, wanted, **CLOSE)


@pytest.mark.parametrize("name, options", JOINED)
def test_a_group_that_comes_later_gets_the_initial_lr_that_leads_to_its_own(name, options):
    mine, _ = optimizers()
    schedule = getattr(ours, name)(mine, **options)
    for _ in range(3):
        schedule.step()
    mine.add_param_group({"params": [minidl.zeros(2)], "lr": 0.7})
    schedule.step()
    late = mine.param_groups[1]
    assert schedule.value(late["initial_lr"], 3) == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("kind", ["sequential", "chained"])
def test_a_group_that_comes_later_follows_composed_schedules(kind):
    mine, theirs = optimizers()
    got = with_a_late_group(mine, composed(ours, mine, kind), minidl.zeros(2))
    if kind == "chained":
        wanted = with_a_late_group(theirs, composed(torch.optim.lr_scheduler, theirs, kind),
                                   torch.nn.Parameter(torch.zeros(2)))
        np.testing.assert_allclose(got, wanted, **CLOSE)
    # PyTorch cannot go over a milestone with it. Both groups have one schedule: one ratio.
    ratios = got[3:, 1] / got[3:, 0]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)


@pytest.mark.parametrize("name, options", NOT_JOINED)
def test_a_group_that_comes_later_is_refused_where_pytorch_breaks(name, options):
    mine, theirs = optimizers(momentum=0.5)
    schedule = getattr(ours, name)(mine, **options)
    with pytest.raises((ValueError, KeyError)):
        with_a_late_group(theirs, getattr(torch.optim.lr_scheduler, name)(theirs, **options),
                          torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(ValueError, match=f"{name}: parameter group 1 was added after step 3.*"
                       '"initial_lr"'):
        with_a_late_group(mine, schedule, minidl.zeros(2))
    assert schedule.last_epoch == 3, "nothing has changed"
    mine.param_groups[1]["initial_lr"] = mine.param_groups[0]["initial_lr"]
    schedule.step()
    assert schedule.get_last_lr()[0] == schedule.get_last_lr()[1]


def test_a_group_that_comes_where_the_factor_is_zero_is_refused():
    mine, _ = optimizers()
    schedule = ours.CosineAnnealingLR(mine, T_max=3)
    with pytest.raises(ValueError, match="added after step 3 of the schedule"):
        with_a_late_group(mine, schedule, minidl.zeros(2))


def test_a_plateau_cuts_groups_that_come_later():
    mine, theirs = optimizers()
    pairs = [(mine, ours.ReduceLROnPlateau(mine, patience=1), minidl.zeros(2)),
             (theirs, torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, patience=1),
              torch.nn.Parameter(torch.zeros(2)))]
    for optimizer, schedule, leaf in pairs:
        optimizer.add_param_group({"params": [leaf], "lr": 0.7})
        for _ in range(3):
            schedule.step(1.0)
    assert [g["lr"] for g in mine.param_groups] == [g["lr"] for g in theirs.param_groups] \
        == [pytest.approx(0.03), pytest.approx(0.07)]
