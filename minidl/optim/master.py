"""Master weights: the model in fp16 or bf16, what the optimizer updates in fp32.

    fp16 parameter ─► forward, backward ─► fp16 gradient    2 + 2 bytes a parameter
          ▲                                     │
          └── cast ◄── fp32 master ◄── update ◄─┘           4, m and v of Adam 4 + 4: 16 in all

An update smaller than half a unit in the last place of the weight (lr * g < 2^-12 |w| in fp16,
2^-9 |w| in bf16) rounds to nothing, every time; in the master copy it adds up. Where kernels run,
unscaling, update and cast are one pass over memory (minidl/fused/adamw.py): for fp16 only, they do
not know bf16, whose masters are updated in NumPy.

Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1.
Test: tests/optim/test_master.py   Tutorial: tutorials/04_amp.py
"""

import numpy as np

from minidl.backend import is_bfloat16
from minidl.tensor import Tensor


def use_master_weights(optimizer):
    """Give every float16 or bfloat16 parameter of the optimizer a float32 master copy, which takes
    its place in `param_groups`; `optimizer.low` leads back. To be called before the first step.
    Returns the optimizer."""
    if optimizer.state:
        raise RuntimeError("use_master_weights must come before the first step: the optimizer "
                           "already has state for its 2-byte parameters")
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            if p.dtype == np.float16 or is_bfloat16(p.dtype):
                master = Tensor(p.data.astype(np.float32), requires_grad=True)
                optimizer.low[master] = p
                group["params"][i] = master
    return optimizer
