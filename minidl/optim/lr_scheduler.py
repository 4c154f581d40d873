"""Learning-rate schedules: lr = initial lr * factor(step), a function of the step count alone.

    scheduler = SequentialLR(optimizer, [LinearLR(optimizer, 0.01, total_iters=100),
                                         CosineAnnealingLR(optimizer, T_max=900)], [100])
    optimizer.step(); scheduler.step()

Names and defaults are PyTorch's. A resumed run needs only the step count.
Test: tests/optim/test_lr_scheduler.py
"""

import bisect
import math


class LRScheduler:
    """Sets every group's lr to `value(initial_lr, steps so far)`, at once and after each step()."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.last_epoch = 0  # PyTorch's name for the number of steps so far
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self._apply()

    def value(self, initial_lr, step):
        raise NotImplementedError(f"{type(self).__name__} has no value")

    def step(self):
        self.last_epoch += 1
        self._apply()

    def _apply(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.value(group["initial_lr"], self.last_epoch)

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state):
        self.last_epoch = state["last_epoch"]
        self._apply()


class LambdaLR(LRScheduler):
    """lr = initial * lr_lambda(step)."""

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


def at_least_one(name, n_steps):
    """n_steps; ValueError if it is less than 1, since `value` divides by it."""
    if not n_steps >= 1:
        raise ValueError(f"the schedule wants {name} of at least 1 step, got {n_steps}")
    return n_steps
