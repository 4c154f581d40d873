"""The learning rate for a larger batch.

    linear   lr = base * B / B0           k steps of B0 samples and one of k B0 go as far, while the
                                          gradient hardly turns in between           (SGD)
    sqrt     lr = base * sqrt(B / B0)     the noise of a step, lr^2 / B, stays as it was  (Adam,
                                          LAMB, whose steps have a length of their own)

At the beginning the gradient does turn fast, so the rate climbs to its value: from the small
batch's rate to the large one's during the first epochs (Goyal et al.: 5).

        lr = scaled_rate(0.1, batch=8192, base_batch=256)               # 3.2
        optimizer = optim.SGD(params, lr=lr, momentum=0.9)
        scheduler = warmed_up(optimizer, n_steps=5 * steps_per_epoch, start=0.1 / lr,
                              then=CosineAnnealingLR(optimizer, T_max=...))

Both rules end where the batch passes the gradient's noise scale (parallel/data/noise_scale.py).

Sources: Goyal et al. 2017 (arXiv 1706.02677); Krizhevsky 2014 (arXiv 1404.5997) for the root.
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
    """The rate for `batch` samples a step, where `rate` was right for `base_batch`: all ranks'
    samples, those of accumulated micro-batches too."""
    if batch < 1 or base_batch < 1:
        raise ValueError(f"want batches of at least one sample, got {batch} and {base_batch}")
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rule is 'linear' or 'sqrt', got {rule!r}")
    k = batch / base_batch
    return rate * (k if rule == "linear" else math.sqrt(k))


def warmed_up(optimizer: HasGroups, n_steps: int, then: LRScheduler | None = None,
              start: float = 1e-3) -> LRScheduler:
    """A schedule whose factor climbs from `start` to 1 in n_steps steps, and then follows `then`, a
    schedule of the same optimizer (None: stays)."""
    climb = LinearLR(optimizer, start_factor=start, total_iters=n_steps)
    return climb if then is None else SequentialLR(optimizer, [climb, then], [n_steps])
