"""A learning rate that falls when the loss stops falling.

    loss   3  2  2  2  2  ...       patience 2: two steps without a better loss do not change the
    bad    0  0  1  2  3            lr. After the third such step, the lr becomes factor * lr

The schedules of lr_scheduler.py depend on the step count. This schedule depends on the loss.
Test: tests/optim/test_lr_scheduler_sequences.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from minidl.hints import HasGroups, Number, PerGroup


class ReduceLROnPlateau:
    """Multiplies the lr by `factor` if the metric did not get better in more than `patience` calls
    of step(metric).

    mode: "min" if a lower metric is better, "max" if a higher metric is better.
    threshold: the metric is better only if it differs from the best metric so far by more than
        this. threshold_mode: "rel" if the threshold is a fraction of the best metric, "abs" if it
        is a difference.
    cooldown: a number N of calls. In the N calls after a change of the lr, steps without a better
        metric are not counted.
    min_lr: the lower limit of the lr.
    eps: the lr changes only if the change is larger than eps.

    All ranks must pass the same number to step(), such as the all-reduced loss."""

    def __init__(self, optimizer: HasGroups, mode: str = "min", factor: float = 0.1,
                 patience: int = 10, threshold: float = 1e-4, threshold_mode: str = "rel",
                 cooldown: int = 0, min_lr: PerGroup = 0.0, eps: float = 1e-8):
        if factor >= 1 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError("ReduceLROnPlateau wants a factor below 1, mode 'min' or 'max', and "
                             f"threshold_mode 'rel' or 'abs'; got factor={factor}, mode={mode!r}, "
                             f"threshold_mode={threshold_mode!r}")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: Number) -> None:
        self.last_epoch += 1
        metric = float(metrics)
        if self._is_better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            for group in self.optimizer.param_groups:
                lower = max(group["lr"] * self.factor, self.min_lr)
                if group["lr"] - lower > self.eps:
                    group["lr"] = lower

    def _is_better(self, metric):
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "abs":
            return sign * (metric - self.best) > self.threshold
        return sign * metric > sign * self.best * (1 + sign * self.threshold)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("best", "num_bad_epochs", "cooldown_counter",
                                              "last_epoch")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.num_bad_epochs = state["best"], state["num_bad_epochs"]
        self.cooldown_counter, self.last_epoch = state["cooldown_counter"], state["last_epoch"]
