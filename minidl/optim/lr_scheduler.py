"""Learning-rate schedules: lr = initial lr * factor(step), a function of the step count alone.

    scheduler = SequentialLR(optimizer, [LinearLR(optimizer, 0.01, total_iters=100),
                                         CosineAnnealingLR(optimizer, T_max=900)], [100])
    optimizer.step(); scheduler.step()

Names and defaults are PyTorch's. A resumed run needs only the step count. The one schedule that
looks at a loss, ReduceLROnPlateau, is in plateau.py. A parameter group that is added in mid-run
keeps its lr until the next step and then follows the schedule as the others do: see `_join`.
Test: tests/optim/test_lr_scheduler.py
"""

import bisect
import math

from minidl.optim.optimizer import wants_optimizer
from minidl.optim.plateau import ReduceLROnPlateau  # noqa: F401, found here by PyTorch's users


class LRScheduler:
    """Sets every group's lr to `value(initial_lr, steps so far)`, at once and after each step()."""

    may_join = True  # whether PyTorch's schedule of this name takes groups that come later

    def __init__(self, optimizer):
        self.optimizer = wants_optimizer(type(self).__name__, optimizer)
        self.last_epoch = 0  # PyTorch's name for the number of steps so far
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self._apply()

    def value(self, initial_lr, step):
        raise NotImplementedError(f"{type(self).__name__} has no value")

    def step(self):
        self._start_new_groups()
        self.last_epoch += 1
        self._apply()

    def _apply(self):
        for group in self.optimizer.param_groups:
            if "initial_lr" in group:
                group["lr"] = self.value(group["initial_lr"], self.last_epoch)

    def _start_new_groups(self):
        """Give each group that was added since then the initial lr from which the schedule has led
        to the lr it came with. `value` is a straight line in the initial lr: a factor, and eta_min.
        Where the factor is 0 and stays so, as after PolynomialLR's end, the group keeps its lr."""
        for i, group in enumerate(self.optimizer.param_groups):
            if "initial_lr" in group:
                continue
            at_0, factor = self.value(0.0, self.last_epoch), self._factor(self.last_epoch)
            if not self.may_join or factor == 0 != self._factor(self.last_epoch + 1):
                raise ValueError(
                    f"{type(self).__name__}: parameter group {i} was added after step "
                    f"{self.last_epoch} of the schedule, which cannot tell from the group's lr, "
                    f"{group['lr']}, how to go on. Add it with its initial_lr, the lr at step 0: "
                    'add_param_group({"params": ..., "initial_lr": ...}), or make the schedule '
                    "after adding it")
            if factor:
                group["initial_lr"] = (group["lr"] - at_0) / factor

    def _factor(self, step):
        return self.value(1.0, step) - self.value(0.0, step)

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state):
        self.last_epoch = state["last_epoch"]
        self._apply()


class LambdaLR(LRScheduler):
    """lr = initial * lr_lambda(step)."""

    may_join = False

    def __init__(self, optimizer, lr_lambda):
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * self.lr_lambda(step)


class StepLR(LRScheduler):
    """lr = initial * gamma^(step // step_size)."""

    def __init__(self, optimizer, step_size, gamma=0.1):
        self.step_size, self.gamma = at_least_one("step_size", step_size), gamma
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * self.gamma ** (step // self.step_size)


class LinearLR(LRScheduler):
    """Warm-up: the factor goes from start_factor to end_factor in total_iters steps, then stays."""

    def __init__(self, optimizer, start_factor=1 / 3, end_factor=1.0, total_iters=5):
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = at_least_one("total_iters", total_iters)
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        way = min(step / self.total_iters, 1.0)
        return initial_lr * (self.start_factor + (self.end_factor - self.start_factor) * way)


class CosineAnnealingLR(LRScheduler):
    """lr falls from initial to eta_min along half a cosine in T_max steps.
    Source: Loshchilov & Hutter 2016 (arXiv 1608.03983)."""

    def __init__(self, optimizer, T_max, eta_min=0.0):
        self.T_max, self.eta_min = at_least_one("T_max", T_max), eta_min
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        way = (1 + math.cos(math.pi * step / self.T_max)) / 2
        return self.eta_min + (initial_lr - self.eta_min) * way


class MultiStepLR(LRScheduler):
    """lr = initial * gamma^(how many milestones are reached)."""

    def __init__(self, optimizer, milestones, gamma=0.1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * self.gamma ** sum(m <= step for m in self.milestones)


class ConstantLR(LRScheduler):
    """lr = initial * factor for total_iters steps, then initial."""

    def __init__(self, optimizer, factor=1 / 3, total_iters=5):
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * (self.factor if step < self.total_iters else 1.0)


class ExponentialLR(LRScheduler):
    """lr = initial * gamma^step."""

    def __init__(self, optimizer, gamma):
        self.gamma = gamma
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * self.gamma**step


class PolynomialLR(LRScheduler):
    """lr = initial * (1 - step / total_iters)^power, and 0 from there on."""

    def __init__(self, optimizer, total_iters=5, power=1.0):
        self.total_iters, self.power = at_least_one("total_iters", total_iters), power
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * (1 - min(step / self.total_iters, 1.0)) ** self.power


class MultiplicativeLR(LRScheduler):
    """lr = the lr before * lr_lambda(step)."""

    may_join = False

    def __init__(self, optimizer, lr_lambda):
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        return initial_lr * math.prod(self.lr_lambda(i) for i in range(1, step + 1))


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine in T_0 steps, then the same again, each time T_mult times as long.
    Source: Loshchilov & Hutter 2016 (arXiv 1608.03983)."""

    may_join = False

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0):
        self.T_0, self.T_mult, self.eta_min = at_least_one("T_0", T_0), T_mult, eta_min
        if T_mult < 1 or T_mult != int(T_mult):
            raise ValueError(f"CosineAnnealingWarmRestarts: T_mult is an int of 1 or more, got "
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

    def step(self, epoch=None):
        """One further, or to `epoch`, which may lie between two whole ones."""
        self._start_new_groups()
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._apply()


class _WithMomentum(LRScheduler):
    """A schedule of two numbers: `at(step)` gives the lr and the momentum (Adam's first beta),
    which is set if cycle_momentum."""

    may_join = False

    def value(self, initial_lr, step):
        return self.at(step)[0]

    def _apply(self):
        super()._apply()
        momentum = self.at(self.last_epoch)[1]
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif "momentum" in group:
                group["momentum"] = momentum
            else:
                raise ValueError(f"{type(self).__name__}: the optimizer has neither momentum nor "
                                 "betas; pass cycle_momentum=False")


class OneCycleLR(_WithMomentum):
    """Up from max_lr / div_factor to max_lr in pct_start of the steps, then down to initial lr /
    final_div_factor; three_phase: down to the initial lr first, in equal time. Momentum (Adam's
    first beta) goes the other way. Replaces the optimizer's lr; total_steps, or epochs and
    steps_per_epoch. Source: Smith & Topin 2017 (arXiv 1708.07120)."""

    def __init__(self, optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None,
                 pct_start=0.3, anneal_strategy="cos", cycle_momentum=True, base_momentum=0.85,
                 max_momentum=0.95, div_factor=25.0, final_div_factor=1e4, three_phase=False):
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("OneCycleLR wants total_steps, or epochs and steps_per_epoch")
        if anneal_strategy not in ANNEAL:
            raise ValueError(f"anneal_strategy is one of {[*ANNEAL]}, got {anneal_strategy!r}")
        n = self.total_steps = at_least_one("total_steps", total_steps or epochs * steps_per_epoch)
        up = pct_start * n - 1
        top, bottom = max_lr, max_lr / div_factor
        low, high = base_momentum, max_momentum
        end = bottom / final_div_factor
        # (last step, lr at its start and end, momentum at its start and end) of each phase
        self.phases = [(up, bottom, top, high, low), (n - 1, top, end, low, high)]
        if three_phase:
            self.phases[1:] = [(2 * up, top, bottom, low, high), (n - 1, bottom, end, high, high)]
        self.anneal, self.cycle_momentum = ANNEAL[anneal_strategy], cycle_momentum
        for group in optimizer.param_groups:
            group["initial_lr"] = bottom
        super().__init__(optimizer)

    def at(self, step):
        """(lr, momentum) of this step."""
        if step > self.total_steps:
            raise ValueError(f"OneCycleLR: step {step} of a cycle of {self.total_steps} steps")
        start = 0.0
        for last, lr0, lr1, m0, m1 in self.phases:
            if step <= last or last == self.phases[-1][0]:
                part = (step - start) / (last - start)
                return self.anneal(lr0, lr1, part), self.anneal(m0, m1, part)
            start = last


ANNEAL = {"cos": lambda a, b, part: b + (a - b) / 2 * (1 + math.cos(math.pi * part)),
          "linear": lambda a, b, part: a + (b - a) * part}


class CyclicLR(_WithMomentum):
    """From base_lr straight up to max_lr in step_size_up steps, down in step_size_down (as many
    unless given), and again without end; momentum goes the other way. The height of the peaks:
    mode "triangular": max_lr - base_lr; "triangular2": half of it in each further cycle;
    "exp_range": times gamma^step; or scale_fn, of the cycle (1, 2, ...) or, with
    scale_mode="iterations", of the step.     Source: Smith 2017 (arXiv 1506.01186)."""

    def __init__(self, optimizer, base_lr, max_lr, step_size_up=2000, step_size_down=None,
                 mode="triangular", gamma=1.0, scale_fn=None, scale_mode="cycle",
                 cycle_momentum=True, base_momentum=0.8, max_momentum=0.9):
        heights = {"triangular": (lambda cycle: 1.0, "cycle"),
                   "triangular2": (lambda cycle: 0.5 ** (cycle - 1), "cycle"),
                   "exp_range": (lambda step: gamma**step, "iterations")}
        if scale_fn is None and mode not in heights:
            raise ValueError(f"CyclicLR: mode is one of {[*heights]}, got {mode!r}; another "
                             "height is a scale_fn")
        if not all(isinstance(x, float | int) for x in (base_lr, max_lr)):
            raise ValueError(f"CyclicLR wants one base_lr and one max_lr for all groups, got "
                             f"{base_lr} and {max_lr}; for several make a LambdaLR")
        self.height, of = heights[mode] if scale_fn is None else (scale_fn, scale_mode)
        self.of_cycle = of == "cycle"
        self.up = at_least_one("step_size_up", step_size_up)
        self.length = self.up + at_least_one("step_size_down", step_size_down or step_size_up)
        self.lrs, self.momenta = (base_lr, max_lr), (base_momentum, max_momentum)
        self.cycle_momentum = cycle_momentum
        for group in optimizer.param_groups:
            group["initial_lr"] = base_lr
        super().__init__(optimizer)

    def at(self, step):
        """(lr, momentum) of this step."""
        cycles, place = divmod(step, self.length)
        rise = place / self.up if place <= self.up else (self.length - place) / (
            self.length - self.up)
        rise *= self.height(cycles + 1 if self.of_cycle else step)
        (base, top), (low, high) = self.lrs, self.momenta
        return base + (top - base) * rise, high - (high - low) * rise


class SequentialLR(LRScheduler):
    """One schedule after another: schedulers[i] from step milestones[i-1] on, counted from 0."""

    def __init__(self, optimizer, schedulers, milestones):
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"SequentialLR wants one milestone fewer than schedulers, got "
                             f"{len(milestones)} for {len(schedulers)}")
        self.schedulers, self.milestones = schedulers, milestones
        super().__init__(optimizer)

    def value(self, initial_lr, step):
        i = bisect.bisect_right(self.milestones, step)
        return self.schedulers[i].value(initial_lr, step - (self.milestones[i - 1] if i else 0))


class ChainedScheduler(LRScheduler):
    """Several schedules at once: each takes what the one before it gives, so factors multiply."""

    def __init__(self, schedulers, optimizer=None):
        self.schedulers = schedulers
        super().__init__(optimizer or schedulers[0].optimizer)

    def value(self, initial_lr, step):
        for scheduler in self.schedulers:
            initial_lr = scheduler.value(initial_lr, step)
        return initial_lr


def at_least_one(name, n_steps):
    """n_steps; ValueError if it is less than 1, since `value` divides by it."""
    if not n_steps >= 1:
        raise ValueError(f"the schedule wants {name} of at least 1 step, got {n_steps}")
    return n_steps
