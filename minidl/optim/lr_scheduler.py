"""Learning-rate schedules: they set the lr of each parameter group at each step.

The plain form, warmup and half a cosine: minidl/plain/optimizers.py. This file has PyTorch's
schedules, with the same names, defaults and numbers. SequentialLR and ChainedScheduler combine
them.

    scheduler = SequentialLR(optimizer, [LinearLR(optimizer, 0.01, total_iters=100),
                                         CosineAnnealingLR(optimizer, T_max=900)], [100])
    optimizer.step(); scheduler.step()

    lr at step k = factor(k) / factor(k - 1) * lr at step k - 1       most schedules
    lr at step k = value(the initial lr, k)                           LambdaLR, cycles, restarts

Most schedules multiply the current lr, as PyTorch's schedules do. So if an optimizer has two
schedules, the lr is multiplied by the factors of both schedules. If a schedule follows another
schedule, it continues from the last lr of the earlier schedule. The only schedule that uses the
loss, ReduceLROnPlateau, is in plateau.py. A parameter group that is added during a run keeps its lr
until the next step. Then it follows the schedule, as the other groups do.
Test: tests/optim/test_lr_scheduler.py, test_lr_scheduler_pairs.py
Tutorial: tutorials/31_optimizers.py
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING

from minidl.optim.optimizer import SCHEDULED, wants_optimizer
from minidl.optim.plateau import ReduceLROnPlateau

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from minidl.hints import Factors, HasGroups, PerGroup


class LRScheduler:
    """Sets the lr of every group, when the schedule is made and at each step(). A subclass writes
    this method:

        value(initial_lr, step)      -> lr at a step, counted from 0

    If the lr depends on the lr of the previous step, the subclass also writes the methods first()
    and after()."""

    # False if PyTorch's schedule of this name refuses a group that is added later. minidl accepts
    # such a group, but only if the group has an initial_lr.
    may_join = True
    cycle_momentum = False
    schedulers = ()  # the schedules that this schedule combines

    def __init__(self, optimizer: HasGroups):
        self.optimizer = wants_optimizer(type(self).__name__, optimizer)
        self.last_epoch = 0  # PyTorch's name for the number of steps so far
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        # base_lrs is a copy, because another schedule may change the groups' initial_lr later.
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.start()

    def value(self, initial_lr, step):
        raise NotImplementedError(f"{type(self).__name__} must define the method "
                                  "value(initial_lr, step)")

    def first(self, group, base):
        """Returns the lr of a group at step 0, when the schedule is made. base: the initial lr of
        the group."""
        return self.value(base, 0)

    def enter(self, group, base):
        """Returns the lr of a group at step 0, if another schedule has run before this one."""
        return self.value(base, 0)

    def after(self, group, base, step):
        """Returns the lr of a group at this step. group["lr"] is still the lr of the previous step.
        base: the initial lr of the group."""
        return self.value(base, step)

    def start(self):
        """Goes to step 0. Called if no other schedule has run before this one."""
        self.last_epoch = 0
        self._apply(self.first)

    def take_over(self):
        """Goes to step 0. Called if another schedule has run before this one."""
        self.last_epoch = 0
        self._apply(self.enter)

    def step(self) -> None:
        self._start_new_groups()
        self.last_epoch += 1
        self._apply(lambda group, base: self.after(group, base, self.last_epoch))

    def _apply(self, rule):
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = rule(group, base)

    def _start_new_groups(self):
        """Prepares groups that were added since the last step. If a group has an initial_lr, its lr
        becomes the schedule's lr at this step. If a group has no initial_lr, the initial_lr is
        computed from the lr of the group by the equation lr = factor * initial_lr + constant. If
        the factor is 0 now and at the next step, as at the end of PolynomialLR, the group keeps its
        lr. Raises ValueError if the initial_lr is needed and cannot be computed."""
        bases = self.base_lrs[:]
        for i, group in list(enumerate(self.optimizer.param_groups))[len(bases):]:
            if "initial_lr" in group:
                group["lr"] = self.value(group["initial_lr"], self.last_epoch)
            else:
                factor = self._factor(self.last_epoch) if self.may_join else 0
                if not self.may_join or factor == 0 != self._factor(self.last_epoch + 1):
                    raise ValueError(
                        f"{type(self).__name__}: parameter group {i} was added after step "
                        f"{self.last_epoch} of the schedule. The schedule needs the group's lr at "
                        f"step 0, and cannot compute it from the present lr, {group['lr']}. Add "
                        'the group with add_param_group({"params": ..., "initial_lr": ...}), or '
                        "make the schedule after adding the group")
                if factor:
                    group["initial_lr"] = (
                        group["lr"] - self.value(0.0, self.last_epoch)) / factor
            bases.append(group.get("initial_lr", group["lr"]))
        if len(bases) > len(self.base_lrs):
            self._join(bases)

    def _join(self, bases):
        """Appends the initial lr of each new group to self.base_lrs. bases: a list with the initial
        lr of every group, old and new."""
        self.base_lrs += bases[len(self.base_lrs):]

    def _factor(self, step):
        return self.value(1.0, step) - self.value(0.0, step)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _parts(self):
        """Returns a list of this schedule and all schedules inside it."""
        return [self, *(part for scheduler in self.schedulers for part in scheduler._parts())]

    def state_dict(self) -> dict[str, Any]:
        """Returns a dict with everything that the schedule needs to continue. The dict also has the
        lr of each group (and the momentum, if the schedule sets it). load_state_dict() writes these
        numbers into the optimizer's groups."""
        parts = self._parts()
        state = {"last_epoch": self.last_epoch, "steps": [part.last_epoch for part in parts],
                 "base_lrs": [part.base_lrs[:] for part in parts], "lr": self.get_last_lr()}
        if any(part.cycle_momentum for part in parts):
            state["momentum"] = [momentum_of(group) for group in self.optimizer.param_groups]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        name, n_parts, n = type(self).__name__, len(self._parts()), len(self.get_last_lr())
        if not {"steps", "base_lrs", "lr"} <= state.keys():
            raise ValueError(f"load_state_dict: wanted the result of {name}.state_dict() in "
                             f"minidl; got a dict with the keys {sorted(state)}")
        if (len(state["steps"]), len(state["lr"])) != (n_parts, n):
            raise ValueError(f"load_state_dict: this {name} has {n_parts - 1} schedules inside and "
                             f"{n} parameter groups, but the state has {len(state['steps']) - 1} "
                             f"schedules inside and {len(state['lr'])} groups")
        for part, step, base in zip(self._parts(), state["steps"], state["base_lrs"], strict=True):
            part.last_epoch, part.base_lrs = step, list(base)
        for group, lr in zip(self.optimizer.param_groups, state["lr"], strict=True):
            group["lr"] = lr
        for group, momentum in zip(self.optimizer.param_groups, state.get("momentum", ())):
            set_momentum(group, momentum)


def momentum_of(group):
    """Returns the first beta of a group (Adam), or its momentum. Returns None if the group has
    neither."""
    return group["betas"][0] if "betas" in group else group.get("momentum")


def set_momentum(group, momentum):
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    elif "momentum" in group:
        group["momentum"] = momentum


class _Factor(LRScheduler):
    """lr = initial * factor(step). Each step multiplies the current lr by factor(step) /
    factor(step - 1). So if other code has multiplied the lr, this change is kept."""

    def factor(self, step):
        raise NotImplementedError(f"{type(self).__name__} must define the method factor(step)")

    def value(self, initial_lr, step):
        return initial_lr * self.factor(step)

    def first(self, group, base):
        return group["lr"] * self.factor(0)

    def after(self, group, base, step):
        before, now = self.factor(step - 1), self.factor(step)
        if before == now:
            return group["lr"]
        return group["lr"] * (now / before) if before else base * now


class LambdaLR(LRScheduler):
    """lr = initial * lr_lambda(step)."""

    may_join = False

    def __init__(self, optimizer: HasGroups,
                 lr_lambda: Factors):
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * self.lr_lambda(step)


class StepLR(_Factor):
    """lr = initial * gamma^(step // step_size)."""

    def __init__(self, optimizer: HasGroups, step_size: int, gamma: float = 0.1):
        self.step_size, self.gamma = at_least_one("step_size", step_size), gamma
        super().__init__(optimizer)

    def factor(self, step):
        return self.gamma ** (step // self.step_size)


class LinearLR(_Factor):
    """Warm-up. lr = initial * factor. The factor goes from start_factor to end_factor in
    total_iters steps, and then does not change."""

    def __init__(self, optimizer: HasGroups, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5):
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = at_least_one("total_iters", total_iters)
        super().__init__(optimizer)

    def factor(self, step):
        way = min(step / self.total_iters, 1.0)
        return self.start_factor + (self.end_factor - self.start_factor) * way


class CosineAnnealingLR(LRScheduler):
    """lr falls from initial to eta_min along half a cosine in T_max steps.
    Source: Loshchilov & Hutter 2016 (arXiv 1608.03983)."""

    def __init__(self, optimizer: HasGroups, T_max: int, eta_min: float = 0.0):
        self.T_max, self.eta_min = at_least_one("T_max", T_max), eta_min
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        way = (1 + math.cos(math.pi * step / self.T_max)) / 2
        return self.eta_min + (initial_lr - self.eta_min) * way

    def first(self, group, base):
        return group["lr"]

    def after(self, group, base, step):
        if (step - 1 - self.T_max) % (2 * self.T_max) == 0:  # the lr is eta_min, and now rises
            return group["lr"] + (base - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        growth = (1 + math.cos(math.pi * step / self.T_max)) / (
            1 + math.cos(math.pi * (step - 1) / self.T_max))
        return growth * (group["lr"] - self.eta_min) + self.eta_min


class MultiStepLR(_Factor):
    """lr = initial * gamma^(number of milestones that are reached)."""

    def __init__(self, optimizer: HasGroups, milestones: Sequence[int], gamma: float = 0.1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def factor(self, step):
        return self.gamma ** sum(m <= step for m in self.milestones)


class ConstantLR(_Factor):
    """lr = initial * factor for total_iters steps, then initial."""

    def __init__(self, optimizer: HasGroups, factor: float = 1 / 3, total_iters: int = 5):
        self.reduced, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def factor(self, step):
        return self.reduced if step < self.total_iters else 1.0


class ExponentialLR(_Factor):
    """lr = initial * gamma^step."""

    def __init__(self, optimizer: HasGroups, gamma: float):
        self.gamma = gamma
        super().__init__(optimizer)

    def factor(self, step):
        return self.gamma**step


class PolynomialLR(_Factor):
    """lr = initial * (1 - step / total_iters)^power, and 0 after total_iters steps."""

    def __init__(self, optimizer: HasGroups, total_iters: int = 5, power: float = 1.0):
        self.total_iters, self.power = at_least_one("total_iters", total_iters), power
        super().__init__(optimizer)

    def factor(self, step):
        return (1 - min(step / self.total_iters, 1.0)) ** self.power


class MultiplicativeLR(LRScheduler):
    """Each step multiplies the lr by lr_lambda(step)."""

    may_join = False

    def __init__(self, optimizer: HasGroups,
                 lr_lambda: Factors):
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * math.prod(self.lr_lambda(i) for i in range(1, step + 1))

    def first(self, group, base):
        return group["lr"]

    def enter(self, group, base):
        return group["lr"] * self.lr_lambda(0)

    def after(self, group, base, step):
        return group["lr"] * self.lr_lambda(step)


class CosineAnnealingWarmRestarts(LRScheduler):
    """lr falls from initial to eta_min along half a cosine in T_0 steps. Then it starts again from
    initial. Each cycle has T_mult times as many steps as the previous cycle.
    Source: Loshchilov & Hutter 2016 (arXiv 1608.03983)."""

    may_join = False

    def __init__(self, optimizer: HasGroups, T_0: int, T_mult: int = 1, eta_min: float = 0.0):
        self.T_0, self.T_mult, self.eta_min = at_least_one("T_0", T_0), T_mult, eta_min
        if T_mult < 1 or T_mult != int(T_mult):
            raise ValueError(f"CosineAnnealingWarmRestarts: T_mult must be an int >= 1; got "
                             f"{T_mult}")
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step -= length
            length *= self.T_mult
        way = (1 + math.cos(math.pi * step / length)) / 2
        return self.eta_min + (initial_lr - self.eta_min) * way

    def step(self, epoch: float | None = None) -> None:
        """Goes to the next step, or to `epoch`, which may be a fraction such as 3.5."""
        self._start_new_groups()
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._apply(lambda group, base: self.value(base, self.last_epoch))


class _WithMomentum(LRScheduler):
    """A schedule of the lr. With cycle_momentum it also sets the momentum (Adam's first beta). As
    in PyTorch, the limits of these numbers are stored in the optimizer's groups. So two such
    schedules of one optimizer share their limits."""

    may_join = False

    def _keep(self, **numbers):
        """Writes numbers into the groups. numbers: {name: a list with one number for each group}.
        With cycle_momentum, also sets the momentum of each group to its maximum. Raises ValueError
        if a group has no momentum."""
        for i, group in enumerate(self.optimizer.param_groups):
            group.update({name: values[i] for name, values in numbers.items()})
            if self.cycle_momentum:
                if momentum_of(group) is None:
                    raise ValueError(f"{type(self).__name__}: the optimizer has neither momentum "
                                     "nor betas; pass cycle_momentum=False")
                set_momentum(group, group["max_momentum"])

    def momentum(self, group, step):
        raise NotImplementedError(f"{type(self).__name__} must define the method "
                                  "momentum(group, step)")

    def _join(self, bases):
        super()._join(bases)
        first, *others = self.optimizer.param_groups
        for group in others:
            group.update({name: first[name] for name in SCHEDULED
                          if name in first and name not in group})

    def _apply(self, rule):
        super()._apply(rule)
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            set_momentum(group, self.momentum(group, self.last_epoch))


def for_each_group(name, value, optimizer):
    """Returns a list with a number for each parameter group. value: such a list, or one number for
    all groups. Raises ValueError for a list of another length."""
    n = len(optimizer.param_groups)
    values = list(value) if isinstance(value, (list, tuple)) else [value] * n
    if len(values) != n:
        raise ValueError(f"{name}: wanted one number, or a list with a number for each of the {n} "
                         f"parameter groups; got {value}")
    return values


class OneCycleLR(_WithMomentum):
    """The lr rises once and falls once. The initial lr is max_lr / div_factor. The lr rises to
    max_lr in the first part of the steps. pct_start is the length of this part, as a fraction of
    all steps (0.3 is 30 %). Then the lr falls to the initial lr / final_div_factor. With
    three_phase the lr falls in two phases. First it falls to the initial lr. This phase has the
    same number of steps as the rise. Then it falls to the initial lr / final_div_factor. The
    momentum (Adam's first beta) falls when the lr rises, and rises when the lr falls.

    The optimizer's own lr is not used. Pass total_steps, or epochs and steps_per_epoch.
    Source: Smith & Topin 2017 (arXiv 1708.07120)."""

    def __init__(self, optimizer: HasGroups, max_lr: PerGroup,
                 total_steps: int | None = None, epochs: int | None = None,
                 steps_per_epoch: int | None = None, pct_start: float = 0.3,
                 anneal_strategy: str = "cos", cycle_momentum: bool = True,
                 base_momentum: PerGroup = 0.85,
                 max_momentum: PerGroup = 0.95, div_factor: float = 25.0,
                 final_div_factor: float = 1e4, three_phase: bool = False):
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("OneCycleLR wants total_steps, or epochs and steps_per_epoch")
        if anneal_strategy not in ANNEAL:
            raise ValueError(f"anneal_strategy must be one of {[*ANNEAL]}; got "
                             f"{anneal_strategy!r}")
        n = self.total_steps = at_least_one("total_steps", total_steps or epochs * steps_per_epoch)
        up = pct_start * n - 1
        # For each phase: its last step, the lr at its start and end, the momentum at start and end.
        self.phases = [
            (up, "initial_lr", "max_lr", "max_momentum", "base_momentum"),
            (n - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        if three_phase:
            self.phases[1:] = [
                (2 * up, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                (n - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")]
        ends = [0.0, *(phase[0] for phase in self.phases)]
        if any(a == b for a, b in zip(ends, ends[1:])):
            raise ValueError(f"OneCycleLR: with pct_start {pct_start} and {n} steps, one phase has "
                             "no step; use another pct_start, or more steps")
        self.optimizer = wants_optimizer("OneCycleLR", optimizer)
        self.anneal, self.cycle_momentum = ANNEAL[anneal_strategy], cycle_momentum
        top = for_each_group("max_lr", max_lr, optimizer)
        bottom = [lr / div_factor for lr in top]
        momenta = {name: for_each_group(name, value, optimizer) for name, value in (
            ("max_momentum", max_momentum), ("base_momentum", base_momentum))}
        self._keep(initial_lr=bottom, max_lr=top, min_lr=[lr / final_div_factor for lr in bottom],
                   **momenta if cycle_momentum else {})
        super().__init__(optimizer)

    def _now(self, group, step, which):
        """Returns the lr (which = 0) or the momentum (which = 1) of a group at this step."""
        if step > self.total_steps:
            raise ValueError(f"OneCycleLR wants at most {self.total_steps} steps, because its "
                             f"cycle has this length; got step {step}")
        start = 0.0
        for last, *names in self.phases:
            if step <= last or last == self.phases[-1][0]:
                a, b = (group[name] for name in names[2 * which:2 * which + 2])
                return self.anneal(a, b, (step - start) / (last - start))
            start = last

    def value(self, initial_lr, step):
        return self._now({**self.optimizer.param_groups[0], "initial_lr": initial_lr}, step, 0)

    def first(self, group, base):
        return self._now(group, 0, 0)

    def enter(self, group, base):
        return self._now(group, 0, 0)

    def after(self, group, base, step):
        return self._now(group, step, 0)

    def momentum(self, group, step):
        return self._now(group, step, 1)


ANNEAL = {"cos": lambda a, b, part: b + (a - b) / 2 * (1 + math.cos(math.pi * part)),
          "linear": lambda a, b, part: a + (b - a) * part}


class CyclicLR(_WithMomentum):
    """The lr rises in a straight line from base_lr to max_lr in step_size_up steps. Then it falls
    back in step_size_down steps (default: step_size_up). This cycle repeats for ever. The momentum
    moves in the opposite direction. The rise above base_lr is multiplied by a factor, so that a
    peak is at base_lr + factor * (max_lr - base_lr):

        mode "triangular"     1
        mode "triangular2"    1, 1/2, 1/4, ... in cycles 1, 2, 3, ...
        mode "exp_range"      gamma^step
        scale_fn              scale_fn(cycle), or scale_fn(step) with scale_mode="iterations"

    Source: Smith 2017 (arXiv 1506.01186)."""

    def __init__(self, optimizer: HasGroups, base_lr: PerGroup,
                 max_lr: PerGroup, step_size_up: int = 2000,
                 step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
                 scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
                 cycle_momentum: bool = True, base_momentum: PerGroup = 0.8,
                 max_momentum: PerGroup = 0.9):
        heights = {"triangular": (lambda cycle: 1.0, "cycle"),
                   "triangular2": (lambda cycle: 0.5 ** (cycle - 1), "cycle"),
                   "exp_range": (lambda step: gamma**step, "iterations")}
        if scale_fn is None and mode not in heights:
            raise ValueError(f"CyclicLR: mode must be one of {[*heights]}; got {mode!r}. For "
                             "other heights of the peaks pass scale_fn")
        if not all(isinstance(x, float | int) for x in (base_lr, max_lr)):
            raise ValueError(f"CyclicLR wants one base_lr and one max_lr for all groups; got "
                             f"{base_lr} and {max_lr}. If groups differ, use LambdaLR")
        self.height, of = heights[mode] if scale_fn is None else (scale_fn, scale_mode)
        self.of_cycle = of == "cycle"
        self.up = at_least_one("step_size_up", step_size_up)
        self.length = self.up + at_least_one("step_size_down", step_size_down or step_size_up)
        self.max_lr, self.momenta = max_lr, (base_momentum, max_momentum)
        self.optimizer = wants_optimizer("CyclicLR", optimizer)
        self.cycle_momentum = cycle_momentum
        n = len(optimizer.param_groups)
        self._keep(lr=[base_lr] * n, **{"base_momentum": [base_momentum] * n, "max_momentum":
                                        [max_momentum] * n} if cycle_momentum else {})
        super().__init__(optimizer)
        # base_lrs is set last, because step 0 uses each group's initial lr, as in PyTorch.
        self.base_lrs = [base_lr] * n

    def rise(self, step):
        """Returns how far the lr is above base_lr at this step: 0 at base_lr, 1 at max_lr."""
        cycles, place = divmod(step, self.length)
        rise = place / self.up if place <= self.up else (self.length - place) / (
            self.length - self.up)
        return rise * self.height(cycles + 1 if self.of_cycle else step)

    def value(self, initial_lr, step):
        return initial_lr + (self.max_lr - initial_lr) * self.rise(step)

    def momentum(self, group, step):
        low, high = self.momenta
        return high - (high - low) * self.rise(step)


class _Composed(LRScheduler):
    """A schedule that combines other schedules of the same optimizer."""

    def __init__(self, optimizer: HasGroups, schedulers: Sequence[LRScheduler]):
        name = type(self).__name__
        self.optimizer, self.schedulers = wants_optimizer(name, optimizer), list(schedulers)
        for i, scheduler in enumerate(self.schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(f"{name}: schedule {i} is a ReduceLROnPlateau. Its step() wants a "
                                 "loss, so call step(loss) of this schedule yourself")
            if scheduler.optimizer is not optimizer:
                raise ValueError(f"{name}: schedule {i}, a {type(scheduler).__name__}, was made "
                                 "for another optimizer; make all schedules for one optimizer")
        self.last_epoch = 0
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.may_join = all(scheduler.may_join for scheduler in self.schedulers)

    def _join(self, bases):
        for scheduler in self.schedulers:
            scheduler._join(bases)
        super()._join(bases)


class SequentialLR(_Composed):
    """Runs one schedule after another. schedulers[i] begins at step milestones[i - 1], counted from
    0. Each schedule begins at its own step 0, with the initial lr. MultiplicativeLR instead begins
    with the current lr."""

    def __init__(self, optimizer: HasGroups, schedulers: Sequence[LRScheduler],
                 milestones: Sequence[int]):
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"SequentialLR: for n schedulers, want n - 1 milestones; got "
                             f"{len(milestones)} milestones for {len(schedulers)} schedulers")
        super().__init__(optimizer, schedulers)
        self.milestones = milestones
        self.start()

    def _at(self, step):
        """Returns the schedule that runs at this step."""
        return self.schedulers[bisect.bisect_right(self.milestones, step)]

    def start(self):
        self.last_epoch = 0
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]  # undoes what the schedules' constructors changed
        self._at(0).start()

    def take_over(self):
        self.last_epoch = 0
        self._at(0).take_over()

    def step(self) -> None:
        self._start_new_groups()
        self.last_epoch += 1
        now = self._at(self.last_epoch)
        if self.last_epoch in self.milestones:
            now.take_over()
        else:
            now.step()

    def value(self, initial_lr, step):
        i = bisect.bisect_right(self.milestones, step)
        return self.schedulers[i].value(initial_lr, step - (self.milestones[i - 1] if i else 0))


class ChainedScheduler(_Composed):
    """Runs several schedules at every step, in order. Each schedule changes the lr that the
    previous schedule has set, so the lr is multiplied by all factors."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: HasGroups | None = None):
        super().__init__(optimizer or schedulers[0].optimizer, schedulers)

    def start(self):
        self.last_epoch = 0
        for scheduler in self.schedulers:
            scheduler.start()

    def take_over(self):
        self.last_epoch = 0
        first, *others = self.schedulers
        first.take_over()
        for scheduler in others:
            scheduler.start()

    def step(self) -> None:
        self._start_new_groups()
        self.last_epoch += 1
        for scheduler in self.schedulers:
            scheduler.step()

    def value(self, initial_lr, step):
        for scheduler in self.schedulers:
            initial_lr = scheduler.value(initial_lr, step)
        return initial_lr


def at_least_one(name, n_steps):
    """Returns n_steps. Raises ValueError if it is less than 1: schedules divide by it."""
    if not n_steps >= 1:
        raise ValueError(f"the schedule wants {name} of at least 1 step, got {n_steps}")
    return n_steps
