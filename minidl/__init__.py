"""minidl: a deep-learning framework to read. Every technique of fast and distributed training,
written out. The map of concepts and files is in README.md.

    import minidl
    x = minidl.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    x.grad                      # array([2., 4.], dtype=float32)
"""

import importlib as _importlib

import numpy as _np

from minidl import ops
from minidl.backward import (
    enable_grad,
    grad,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from minidl.creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    tensor,
    zeros,
    zeros_like,
)
from minidl.function import Function
from minidl.fused.dispatch import use_fused
from minidl.fused.fuse import fuse
from minidl.graph import leaf_uses, saved_bytes
from minidl.random import Generator, manual_seed
from minidl.tensor import Tensor

__version__ = "0.1.0"

float16, float32, float64 = (_np.dtype(t) for t in ("f2", "f4", "f8"))
int8, int16, int32, int64 = (_np.dtype(t) for t in ("i1", "i2", "i4", "i8"))
uint8, bool_ = _np.dtype("u1"), _np.dtype("?")

globals().update(ops.namespace("t"))


def __getattr__(name):
    """`minidl.nn` without importing it first, as `torch.nn`; loaded on first use."""
    if name == "bfloat16":  # not with the others: NumPy has it from another package
        return _importlib.import_module("minidl.bf16").dtype()
    if name == "kernel":  # minidl.kernel("add3.cu", "add3")(grid, block, args)
        return _importlib.import_module("minidl.cuda").kernel
    if name in ("amp", "comm", "cuda", "data", "nn", "optim", "parallel", "snapshot"):
        return _importlib.import_module(f"minidl.{name}")
    raise AttributeError(f"module 'minidl' has no attribute {name!r}")
