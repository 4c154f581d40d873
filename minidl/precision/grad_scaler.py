"""Loss scaling: multiply the loss so that fp16 gradients do not vanish; divide before the step.

The plain form: minidl/plain/amp.py. This file has PyTorch's class, for any optimizer.

    scale(loss).backward()   multiplies every gradient by the scale S
    step(optimizer)          skips the step if a gradient is inf or nan on any rank. Otherwise it
                             multiplies the gradients by 1/S, clips them if max_norm is given, and
                             calls optimizer.step()
    update()                 halves S after a skipped step, doubles S after 2000 good steps

The scale is an array of one number. Another array has three counts: the good steps, the patience
(the number of overflows after which the scale falls), and the skipped steps. Both arrays are on the
device of the gradients, and the same rule changes them on a CPU and a GPU (loss_scale.py). On a GPU
the host does not wait to learn whether a gradient is inf: the optimizer's kernel decides whether to
skip. If ranks hold shards of the gradients (Parameter.sharded_by), all ranks must make the same
choice, to skip the step or not. The ranks agree on this on the host, so the arrays move to the
host. With data parallelism all ranks have the same gradients after the all-reduce, so all ranks
make the same choice.

`step` reads the gradients once, and the optimizer multiplies them by 1/S. To read the unscaled
float32 gradients, call `unscale_` before `step`.
Sources: Micikevicius et al. 2018 (arXiv 1710.03740); defaults and state of PyTorch's GradScaler;
hysteresis and minimum as in Megatron-LM and DeepSpeed.
Test: tests/precision/test_grad_scaler.py   Tutorial: tutorials/05_amp.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch, grad_norm, unscale_check
from minidl.mode import or_numpy
from minidl.optim import over_ranks
from minidl.optim.clip import clip_factor
from minidl.optim.optimizer import Optimizer
from minidl.precision import loss_scale
from minidl.tensor import Tensor

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-126  # the smallest scale: 1 / scale must also be a float32
RULE = ("growth_factor", "backoff_factor", "growth_interval", "hysteresis", "min_scale",
        "max_scale")


def _number(array, index):
    """Returns a property that reads and writes one number of an array of the scaler. If the array
    is on a GPU, reading the number makes the host wait."""
    def read(scaler):
        return vars(scaler)[array][index].item()

    def write(scaler, value):
        vars(scaler)[array][index] = value

    return property(read, write)


class GradScaler:
    """The loss scale, and the rule that changes it.

    device:       ignored. PyTorch has this argument. Here the scale is kept on the device of the
                  gradients.
    init_scale, growth_factor, backoff_factor, growth_interval: as in PyTorch.
    hysteresis:   the scale falls for the first time at overflow number `hysteresis`. After that it
                  falls at every overflow. After growth_interval good steps in a row, the count
                  starts again at 0.
    min_scale, max_scale:  limits of the scale.
    raise_at_min: if True, an overflow at min_scale raises OverflowError.
    enabled:      if False, the scale is 1, and no gradient is checked.

    Megatron: init_scale=2**32, growth_interval=1000, hysteresis=2, min_scale=1.
    DeepSpeed: the same, but init_scale=2**16 and raise_at_min=True."""

    def __init__(self, device="cuda", init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5,
                 growth_interval=2000, *, hysteresis=1, min_scale=0.0, max_scale=LARGEST,
                 raise_at_min=False, enabled=True):
        if not isinstance(device, str):
            raise TypeError(f"GradScaler wants the name of a device; got {device!r}. To set the "
                            f"scale, write GradScaler(init_scale={device!r})")
        if not growth_factor > 1 or not 0 < backoff_factor < 1:
            raise ValueError("GradScaler wants growth_factor > 1 and backoff_factor between 0 and "
                             f"1; got growth_factor={growth_factor}, "
                             f"backoff_factor={backoff_factor}")
        if not 0 < min(growth_interval, hysteresis) or not min_scale <= init_scale <= max_scale:
            raise ValueError("GradScaler wants growth_interval >= 1, hysteresis >= 1 and min_scale "
                             f"<= init_scale <= max_scale; got growth_interval={growth_interval}, "
                             f"hysteresis={hysteresis}, init_scale={init_scale}, "
                             f"min_scale={min_scale}, max_scale={max_scale}")
        self._scale = np.array([init_scale], np.float32)
        self._counts = np.array([0, hysteresis, 0], np.int32)  # good_steps, patience and skipped
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.hysteresis = growth_interval, hysteresis
        self.min_scale, self.max_scale, self.raise_at_min = min_scale, max_scale, raise_at_min
        self.on_host = raise_at_min  # True if the host must know at once whether gradients are bad
        self.enabled = enabled
        self._stepped = []  # the optimizers that stepped since the last update
        # _found: {optimizer: (bad, factor)} for each optimizer that was checked since the last
        # update. If a gradient is inf or nan, bad is not 0. factor is 1 / scale, or 1 if the
        # gradients are unscaled already. On a GPU, bad is an array of one number. There, factor is
        # the array of the scale itself, or None if the gradients are unscaled already.
        self._found = {}

    factor = _number("_scale", 0)
    good_steps, patience = _number("_counts", 0), _number("_counts", 1)
    skipped = _number("_counts", 2)  # how many updates found bad gradients

    def _move_to(self, array):
        """Moves the scale and its counts to the device of `array`. Moves them to the host if
        `array` is None, or if `on_host` is True. Returns True if they are on a GPU afterwards."""
        device = "cpu" if array is None or self.on_host else backend.device_of(array)
        self._scale = backend.to_device(self._scale, device)
        self._counts = backend.to_device(self._counts, device)
        return device != "cpu"

    def _move_for(self, optimizer):
        """Moves the scale to the device of this optimizer's gradients. Moves the scale to the host
        instead, if the optimizer's step does not accept arrays on the GPU as `unscale` and `skip`.
        Returns True if the scale is on a GPU afterwards."""
        grads = optimizer.gradients()
        return self._move_to(grads[0] if grads and _takes_arrays(optimizer, grads) else None)

    def get_scale(self):
        return self.factor if self.enabled else 1.0

    def scale(self, loss):
        """Returns the loss times the scale, in float32. loss: a Tensor, or a list or tuple of
        Tensors. Returns the loss itself if the scaler is disabled."""
        if not self.enabled:
            return loss
        if isinstance(loss, (list, tuple)):
            return type(loss)(self.scale(x) for x in loss)
        there = self._move_to(loss.array)
        return loss.float() * (self._scale.reshape(()) if there else self.factor)

    def unscale_(self, optimizer):
        """Divides the optimizer's gradients by the scale, in float32 and in place. If a parameter
        has a master weight, the result is the `grad` of the master. Raises RuntimeError if
        unscale_() or step() was called for this optimizer already since the last update()."""
        if not self.enabled:
            return
        self._check(optimizer)
        if optimizer in self._found:
            raise RuntimeError("unscale_() was already called on this optimizer after the last "
                               "update(). A second call would divide the gradients twice")
        there, grads = self._move_for(optimizer), []
        for p in optimizer.parameters():
            low = optimizer.low.get(p)
            if low is not None:
                p.grad = None if low.grad is None else low.grad.array.astype(np.float32)
            if p.grad is not None:
                self._check_dtype(p.grad.array)
                grads.append(p.grad.array)
        bad = _unscale(grads, loss_scale.factor(self._scale))
        self._found[optimizer] = (bad, None) if there else (_agreed(bad, optimizer), 1.0)

    def step(self, optimizer, max_norm=None):
        """Calls optimizer.step(), unless a gradient is inf or nan on any rank. A skipped step
        changes nothing. After it, do not step the learning-rate schedule. Returns True if the step
        was taken. If the gradients are on a GPU, the result is a Tensor on the GPU. The host waits
        only if a program reads the result, for example in an `if`.

        max_norm: after unscaling, the norm of all gradients is clipped to this number. None means
        no clipping. Raises RuntimeError if step() was called for this optimizer already since the
        last update()."""
        self._check(optimizer)
        if not self.enabled:
            optimizer.step(unscale=self._clip_factor(optimizer, 1.0, max_norm))
            return True
        if optimizer in self._stepped:
            raise RuntimeError("step() was already called on this optimizer after the last "
                               "update(), so the check of the gradients may be out of date. Call "
                               "update() after each step()")
        self._stepped.append(optimizer)
        if optimizer not in self._found:
            for p in optimizer.low:
                p.grad = None  # removes the gradient of an earlier unscale_ without a step
            grads = optimizer.gradients()
            for g in grads:
                self._check_dtype(g, optimizer.low)
            self._found[optimizer] = self._look(grads, optimizer)
        bad, inverse = self._found[optimizer]
        if hasattr(bad, "dtype"):
            return self._step_there(optimizer, bad, inverse, max_norm)
        if bad:
            return False
        optimizer.step(unscale=self._clip_factor(optimizer, inverse, max_norm))
        return True

    def _check(self, optimizer):
        """Raises TypeError if the gradients may have more than one scale. If other ranks hold
        shards of the gradients, moves the scale to the host, because there the ranks agree whether
        to skip."""
        if self.enabled and getattr(optimizer, "compressed_by", None) is not None:
            raise TypeError(
                "wanted gradients without a loss scale: parallel.Compressed keeps a part of the "
                "gradients for later steps, when the scale may be different. Use bfloat16, "
                "which needs no scale, or GradScaler(enabled=False)")
        if optimizer.sharded_by and not self.on_host:
            self.on_host = True
            self._move_to(None)

    def _look(self, grads, optimizer):
        """Checks the gradients for inf and nan. If the gradients are on a GPU, returns two arrays
        of one number: `bad`, which is not 0 if a gradient is bad, and the scale. Otherwise returns
        a bool and a float: True if a gradient is bad on any rank, and 1 / scale."""
        if self._move_for(optimizer):
            return _bad(grads), self._scale
        return _agreed(_bad(grads), optimizer), 1.0 / self.factor

    def _step_there(self, optimizer, bad, scale, max_norm):
        """Does the work of `step` for gradients on a GPU. scale: an array, or None if the gradients
        are unscaled already."""
        square_sum = None
        if max_norm is not None:
            square_sum = grad_norm.square_sum_of(optimizer.gradients())
        if scale is not None or square_sum is not None:
            factor = loss_scale.factor(scale, square_sum, max_norm)
            optimizer.step(unscale=factor, skip=bad)
        else:
            optimizer.step(skip=bad)
        return Tensor((bad == 0).reshape(()))

    def update(self, new_scale=None):
        """Changes the scale: it falls if a step since the last update found bad gradients, and
        grows after growth_interval good steps. new_scale: if given, this becomes the scale. Raises
        RuntimeError if no gradients were checked since the last update, and OverflowError if the
        scale cannot fall further."""
        if not self.enabled:
            return
        if new_scale is None and not self._found:
            raise RuntimeError("update() needs a step() or unscale_() before it: no gradients were "
                               "checked since the last update")
        found = [bad for bad, _ in self._found.values()]
        self._found.clear()
        self._stepped.clear()
        if new_scale is not None:
            self.factor = float(new_scale)
            return
        rule = {name: getattr(self, name) for name in RULE}
        if not any(isinstance(bad, bool) for bad in found):  # all results are on a GPU: do not wait
            # On a GPU no error is raised if the scale falls below SMALLEST. So the rule must not
            # let the scale fall so far.
            rule["min_scale"] = max(self.min_scale, SMALLEST)
            loss_scale.update(self._scale, self._counts, sum(found[1:], found[0]), **rule)
            return
        self._move_to(None)
        bad, before = any(map(bool, found)), self.factor
        loss_scale.update(self._scale, self._counts, np.array([bad], np.int32), **rule)
        if bad:
            self._check_overflow(before)

    def _check_overflow(self, before):
        """Raises OverflowError if the scale cannot fall further. before: the scale at the
        overflow."""
        if self.raise_at_min and self.patience <= 0 and before <= self.min_scale:
            raise OverflowError(
                f"the gradients overflow at the smallest loss scale, {self.min_scale}, because "
                "training has diverged. Look for the first layer with a non-finite output")
        if self.factor < SMALLEST:
            raise OverflowError(
                f"the gradients hold inf or nan at every loss scale, down to {self.factor:.3g}, "
                f"and {self.skipped} steps were skipped. So the scale is not the cause. Look for "
                "the first layer with a non-finite output, or for nan in the data")

    def state_dict(self):
        """Returns a dict with the keys of PyTorch's scaler, and also the keys "patience" and
        "skipped". The dict is empty if the scaler is disabled."""
        return {"scale": self.factor, "growth_factor": self.growth_factor,
                "backoff_factor": self.backoff_factor, "growth_interval": self.growth_interval,
                "_growth_tracker": self.good_steps, "patience": self.patience,
                "skipped": self.skipped} if self.enabled else {}

    def load_state_dict(self, state):
        if not self.enabled:
            return
        if not state:
            raise ValueError("load_state_dict wants the state of an enabled scaler; got an empty "
                             "dict, the state of a disabled scaler")
        self.factor = float(state["scale"])
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval, self.good_steps = state["growth_interval"], state["_growth_tracker"]
        self.patience = state.get("patience", self.hysteresis)
        self.skipped = state.get("skipped", 0)

    def _clip_factor(self, optimizer, inverse, max_norm):
        """Returns one factor that unscales the gradients and clips their norm. The optimizer
        multiplies the gradients by this factor in its own pass, so they need no extra pass."""
        if max_norm is None:
            return inverse
        grads = optimizer.gradients()
        if grads and not self.on_host and _takes_arrays(optimizer, grads):
            square_sum = grad_norm.square_sum_of(grads)
            return loss_scale.factor(None, square_sum, max_norm)
        if optimizer.sharded_by:
            square_sum = over_ranks.square_sum(optimizer.parameters(), optimizer.gradient,
                                               optimizer.leaf_of)
        else:
            square_sum = grad_norm.two_norm(grads) ** 2
        return inverse * clip_factor(math.sqrt(square_sum) * inverse, max_norm)

    def _check_dtype(self, grad, low=()):
        if grad.dtype == np.float16 and not low:
            raise ValueError(
                "loss scaling wants float32 gradients or float32 master weights; got float16 "
                "gradients without master weights. If a small float16 gradient is divided by the "
                "scale, it becomes 0. Keep the model in float32 under autocast (O1), or call "
                "optim.use_master_weights(optimizer) (O2)")


def _agreed(bad, optimizer):
    """Returns True if a gradient is bad on this rank, or on any rank that holds shards."""
    return over_ranks.on_any_rank(optimizer.sharded_by, bool(bad[0]))


def _takes_arrays(optimizer, grads):
    """Returns True if two conditions are met. The gradients must be on a GPU, and the optimizer's
    step must accept arrays on the GPU as its arguments `unscale` and `skip`."""
    return type(optimizer).step is Optimizer.step and not isinstance(grads[0], np.ndarray)


@or_numpy
def _bad(grads):
    """Returns an array (1,) int32 on the device of the gradients. It is not 0 if an element of a
    gradient is inf or nan."""
    if dispatch.usable(*grads):
        return unscale_check.count_bad(grads)
    xp = backend.xp_of(grads)
    return sum(((~xp.isfinite(g)).any() for g in grads), xp.zeros(1, np.int32)).astype(np.int32)


@or_numpy
def _unscale(grads, inverse):
    """Computes grads *= inverse in place. inverse: a (1,) float32 array. Returns _bad(grads)."""
    if grads:  # the gradients may be on a GPU while the scale is on the host
        inverse = backend.to_device(inverse, backend.device_of(grads[0]))
    if dispatch.usable(*grads) and all(g.flags.c_contiguous for g in grads):
        return unscale_check.unscale_check(grads, 1.0, inverse)
    for g in grads:
        g *= inverse.reshape(()).astype(g.dtype)
    return _bad(grads)
