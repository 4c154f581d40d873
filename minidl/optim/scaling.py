"""The learning rate for a larger batch.

`base` is the right rate for a batch of B0 samples. lr is the rate for a batch of B samples:

    linear   lr = base * B / B0           for SGD. One step with k B0 samples goes as far as k steps
                                          with B0 samples, if the gradient changes little in between
    sqrt     lr = base * sqrt(B / B0)     for Adam and LAMB, where the length of a step does not
                                          depend on the length of the gradient. The noise of a step,
                                          lr^2 / B, does not change

At the beginning of training the gradient changes fast. So training begins with the rate for the
small batch. The rate rises to the rate for the large batch during the first epochs (5 epochs in
Goyal et al.).

        lr = scaled_rate(0.1, batch=8192, base_batch=256)               # 3.2
        optimizer = optim.SGD(params, lr=lr, momentum=0.9)
        scheduler = warmed_up(optimizer, n_steps=5 * steps_per_epoch, start=0.1 / lr,
                              then=CosineAnnealingLR(optimizer, T_max=...))

Both rules fail if the batch is larger than the gradient's noise scale
(parallel/data/noise_scale.py).

Sources: Goyal et al. 2017 (arXiv 1706.02677); Krizhevsky 2014 (arXiv 1404.5997) for sqrt.
Test: tests/optim/test_scaling.py   Tutorial: tutorials/18_large_batch.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minidl.optim.lr_scheduler import LinearLR, SequentialLR

if TYPE_CHECKING:
    from minidl.hints import HasGroups
    from minidl.optim.lr_scheduler import LRScheduler


def scaled_rate(rate: float, batch: int, base_batch: int = 256, rule: str = "linear") -> float:
    """Returns the learning rate for `batch` samples a step, if `rate` is right for `base_batch`
    samples a step. Count the samples of all ranks and of all accumulated micro-batches. rule:
    "linear" or "sqrt"."""
    if batch < 1 or base_batch < 1:
        raise ValueError("scaled_rate wants batch >= 1 and base_batch >= 1; got "
                         f"batch={batch}, base_batch={base_batch}")
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"scaled_rate: rule must be 'linear' or 'sqrt'; got {rule!r}")
    k = batch / base_batch
    return rate * (k if rule == "linear" else math.sqrt(k))


def warmed_up(optimizer: HasGroups, n_steps: int, then: LRScheduler | None = None,
              start: float = 1e-3) -> LRScheduler:
    """Returns a schedule that multiplies the lr by a factor. The factor rises from `start` to 1 in
    n_steps steps. After that the schedule runs `then`, a schedule of the same optimizer. If `then`
    is None, the lr does not change any more."""
    climb = LinearLR(optimizer, start_factor=start, total_iters=n_steps)
    return climb if then is None else SequentialLR(optimizer, [climb, then], [n_steps])
