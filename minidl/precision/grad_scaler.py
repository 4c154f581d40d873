"""Loss scaling: multiply the loss so that fp16 gradients do not vanish, divide before the step.

    fp16 gradient        2^-24 ........ 2^-14 ............... 65504
    what is below 2^-25 becomes 0; what is above 65504 becomes inf

    scale(loss).backward()   every gradient times S
    step(optimizer)          unscale by 1/S; inf or nan on any rank: skip the step; else clip, step
    update()                 S / 2 after a skipped step, S * 2 after 2000 good ones

The scale rises until it overflows, which costs one skipped step, and so stays close to the largest
that fits. `step` alone reads the gradients once, and the optimizer multiplies them by 1/S; with
`unscale_` before it the unscaled float32 gradients can be looked at.
Sources: Micikevicius et al. 2018 (arXiv 1710.03740); defaults and state of PyTorch's GradScaler;
hysteresis, minimum and lag as in Megatron-LM and DeepSpeed.
Test: tests/precision/test_grad_scaler.py   Tutorial: tutorials/04_amp.py
"""

import math

import numpy as np

from minidl.fused import dispatch, norm, unscale_check

LARGEST = float(np.finfo(np.float32).max)


class GradScaler:
    """init_scale, growth_factor, backoff_factor, growth_interval: PyTorch's.
    hysteresis:   overflows until the scale first falls; counted anew when it grows.
    min_scale, max_scale:  the bounds of the scale.
    lag:          good steps after an overflow, and at the start, that do not count.
    raise_at_min: an overflow at min_scale is an error.
    agree:        function of a bool: whether it is true on any rank. Ranks that share a model must
                  skip together: `lambda bad: ring.all_reduce(t, np.array(bad), np.logical_or)`.
    all_sum:      function of a float: its sum over the ranks that hold shares of the gradients, so
                  that `max_norm` bounds the norm of all shares together (parallel/zero/zero.py).
    enabled:      False: as if there were no scaler.

    Megatron: init_scale=2**32, growth_interval=1000, hysteresis=2, min_scale=1.
    DeepSpeed: the same but init_scale=2**16, and lag=1, raise_at_min=True."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5,
                 growth_interval=2000, *, hysteresis=1, min_scale=0.0, max_scale=LARGEST, lag=0,
                 raise_at_min=False, agree=None, all_sum=None, enabled=True):
        if not growth_factor > 1 or not 0 < backoff_factor < 1:
            raise ValueError("GradScaler wants growth_factor > 1 and backoff_factor between 0 and "
                             f"1; got {growth_factor} and {backoff_factor}")
        if not 0 < min(growth_interval, hysteresis) or not min_scale <= init_scale <= max_scale:
            raise ValueError("GradScaler wants growth_interval, hysteresis >= 1 and init_scale "
                             f"between min_scale and max_scale; got {growth_interval}, "
                             f"{hysteresis}, {init_scale}, {min_scale}, {max_scale}")
        self.factor = float(init_scale)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.hysteresis, self.lag = growth_interval, hysteresis, lag
        self.min_scale, self.max_scale, self.raise_at_min = min_scale, max_scale, raise_at_min
        self.agree = agree or (lambda bad: bad)
        self.all_sum = all_sum or (lambda x: x)
        self.enabled = enabled
        self.good_steps, self.patience = -lag, hysteresis
        self.skipped = 0  # steps that were not taken
        self._found = {}  # optimizer -> whether its gradients are bad, since the last update

    def get_scale(self):
        return self.factor if self.enabled else 1.0

    def scale(self, loss):
        """loss (a Tensor, or a list of them) times the scale."""
        if not self.enabled:
            return loss
        if isinstance(loss, (list, tuple)):
            return type(loss)(self.scale(x) for x in loss)
        return loss.float() * self.factor

    def unscale_(self, optimizer):
        """Divide the optimizer's gradients by the scale, in float32: in place, or for parameters
        with a master copy into the master's `grad`. Once between two updates."""
        if not self.enabled:
            return
        if optimizer in self._found:
            raise RuntimeError("unscale_() was called on this optimizer already since the last "
                               "update(): the gradients would be divided twice")
        bad = False
        for p in optimizer.parameters():
            low = optimizer.low.get(p)
            if low is not None:
                p.grad = None if low.grad is None else low.grad.astype(np.float32)
            if p.grad is not None:
                self._check_dtype(p.grad)
                bad |= _unscale(p.grad, 1.0 / self.factor)
        self._found[optimizer] = bool(self.agree(bad)), 1.0

    def step(self, optimizer, max_norm=None):
        """optimizer.step(), unless a gradient is inf or nan on any rank. Returns whether it was
        taken; a step not taken changes nothing, so do not step the schedule either. max_norm: clip
        the gradients' common norm to it, after unscaling."""
        if not self.enabled:
            optimizer.step(unscale=self._clip_factor(optimizer.gradients(), 1.0, max_norm))
            return True
        if optimizer not in self._found:
            for p in optimizer.low:
                p.grad = None  # left from an unscale_ that no step followed
            grads = optimizer.gradients()
            for g in grads:
                self._check_dtype(g, optimizer.low)
            self._found[optimizer] = bool(self.agree(_any_bad(grads))), 1.0 / self.factor
        bad, inverse = self._found[optimizer]
        if bad:
            self.skipped += 1
            return False
        optimizer.step(unscale=self._clip_factor(optimizer.gradients(), inverse, max_norm))
        return True

    def update(self, new_scale=None):
        """Adjust the scale by what the steps since the last update found."""
        if not self.enabled:
            return
        if new_scale is None and not self._found:
            raise RuntimeError("update() needs a step() or unscale_() before it: nothing was "
                               "checked since the last update")
        bad = any(found for found, _ in self._found.values())
        self._found.clear()
        if new_scale is not None:
            self.factor = float(new_scale)
        elif bad:
            self._shrink()
        else:
            self._grow()

    def _shrink(self):
        self.good_steps = -self.lag
        self.patience -= 1
        if self.patience > 0:
            return
        if self.raise_at_min and self.factor <= self.min_scale:
            raise OverflowError(
                f"the gradients overflow at the smallest loss scale, {self.min_scale}: training "
                "has diverged. Look for the first layer with a non-finite output")
        self.factor = max(self.factor * self.backoff_factor, self.min_scale)

    def _grow(self):
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.good_steps, self.patience = 0, self.hysteresis
            if self.factor * self.growth_factor <= self.max_scale:
                self.factor *= self.growth_factor

    def state_dict(self):
        """PyTorch's keys, and what its scaler does not have."""
        return {"scale": self.factor, "growth_factor": self.growth_factor,
                "backoff_factor": self.backoff_factor, "growth_interval": self.growth_interval,
                "_growth_tracker": self.good_steps, "patience": self.patience,
                "skipped": self.skipped} if self.enabled else {}

    def load_state_dict(self, state):
        if not self.enabled:
            return
        if not state:
            raise ValueError("load_state_dict: the state is empty, it is a disabled scaler's")
        self.factor = float(state["scale"])
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval, self.good_steps = state["growth_interval"], state["_growth_tracker"]
        self.patience = state.get("patience", self.hysteresis)
        self.skipped = state.get("skipped", 0)

    def _clip_factor(self, grads, inverse, max_norm):
        """What unscales the gradients and clips their norm: one factor, no pass to write them."""
        if max_norm is None:
            return inverse
        total = math.sqrt(self.all_sum(norm.two_norm(grads) ** 2))
        return inverse * min(1.0, max_norm / (total * inverse + 1e-6))

    def _check_dtype(self, grad, low=()):
        if grad.dtype == np.float16 and not low:
            raise ValueError(
                "loss scaling wants float32 gradients, or float16 ones with a float32 master "
                "weight: unscaled in float16 they vanish again. Keep the model in float32 under "
                "autocast (O1), or call optim.use_master_weights(optimizer) (O2)")


def _any_bad(grads):
    """Whether an element of the arrays is inf or nan."""
    if dispatch.usable(*grads):
        return bool(unscale_check.count_bad(grads)[0])
    return any(not np.isfinite(float(abs(g).max(initial=0))) for g in grads)


def _unscale(grad, inverse):
    """grad *= inverse in place; whether an element is then inf or nan."""
    if dispatch.usable(grad) and grad.flags.c_contiguous:
        return bool(unscale_check.unscale_check([grad], inverse)[0])
    grad *= inverse
    return _any_bad([grad])
