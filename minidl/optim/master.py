"""Master weights: the model is in fp16 or bf16, and the optimizer updates fp32 copies.

The plain form: minidl/plain/amp.py. This file works with every optimizer, and also with bf16. With
Adam, each number of a parameter takes 16 bytes: 2 for the parameter, 2 for its gradient, 4 for its
master copy, and 4 + 4 for m and v.

Without a master copy, rounding removes every update that is smaller than half a unit in the last
place of the weight: lr * g < 2^-12 |w| in fp16, or < 2^-9 |w| in bf16. In the master copy such
updates add up. For fp16 a kernel does unscaling, update and cast in one pass over memory (adam.py).
For bf16 NumPy does the same.
Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1.
Test: tests/optim/test_master.py   Tutorial: tutorials/05_amp.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import is_bfloat16
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.optim.optimizer import Optimizer


def use_master_weights(optimizer: Optimizer):
    """Replaces every float16 or bfloat16 parameter in `param_groups` by a float32 master copy.
    `optimizer.low` becomes {master: parameter}. Returns the optimizer. Raises RuntimeError after
    the first step, because the state then belongs to the 2-byte parameters."""
    if optimizer.state:
        raise RuntimeError("use_master_weights must come before the first step, but the optimizer "
                           "already has state for its 2-byte parameters")
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            if p.dtype == np.float16 or is_bfloat16(p.dtype):
                master = Tensor(p.array.astype(np.float32), requires_grad=True)
                optimizer.low[master] = p
                group["params"][i] = master
    optimizer.refresh()
    return optimizer


def take_changes(optimizer, masters):
    """Looks for 2-byte parameters that the user has changed since the last step, for example by
    loading or clamping. Copies the changed elements into the master weights. Call this before an
    update."""
    for p in masters:
        low = optimizer.low[p]
        if low.version != optimizer.seen[p]:
            unchanged = p.array.astype(low.dtype) == low.array
            p.array[...] = p._xp.where(unchanged, p.array, low.array)


def stepped(optimizer, masters):
    """Call this after an update has written the 2-byte parameters. Adds 1 to the version of each of
    these parameters, and clears the gradients of the masters. A master has a gradient only between
    GradScaler.unscale_ and step()."""
    for p in masters:
        low = optimizer.low[p]
        low.version += 1
        optimizer.seen[p] = low.version
        p.grad = None
