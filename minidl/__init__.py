"""minidl is a deep-learning framework to read. It shows every technique of fast and distributed
training in plain code. docs/map.md tells which file has which concept.

    import minidl
    x = minidl.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    x.grad                      # array([2., 4.], dtype=float32)
"""

import importlib as _importlib
import sys as _sys

import numpy as _np

from minidl import ops
from minidl.backend import device
from minidl.backward import leaf_uses
from minidl.creation import (
    FloatTensor, LongTensor, arange, as_tensor, empty, empty_like, eye, from_dlpack, from_numpy,
    full, full_like, linspace, ones, ones_like, rand, rand_like, randint, randn, randn_like,
    randperm, tensor, zeros, zeros_like,
)
from minidl.cuda.fuse import fuse
from minidl.function import Function
from minidl.gradcheck import grad
from minidl.mode import (
    enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled, use_fused,
)
from minidl.printing import printoptions, set_printoptions
from minidl.random import Generator, manual_seed
from minidl.tensor import Size, Tensor

__version__ = "0.2.0"

float16, float32, float64 = (_np.dtype(t) for t in ("f2", "f4", "f8"))
int8, int16, int32, int64 = (_np.dtype(t) for t in ("i1", "i2", "i4", "i8"))
uint8, bool_ = _np.dtype("u1"), _np.dtype("?")
half, float, double = float16, float32, float64  # PyTorch's short names
short, int, long, bool = int16, int32, int64, bool_

globals().update(ops.namespace("t"))


def compile(model, **options):
    """Returns the model unchanged, so that a program written for PyTorch runs. `options` are
    ignored. PyTorch's compile makes a model faster and keeps its results. In minidl you choose what
    becomes faster. minidl.fuse turns a function into one kernel. minidl.graphed records the kernels
    of a training step, and then starts all of them with one launch."""
    return model



# The modules in _PARTS are imported on first use. So `import minidl` takes a quarter of a second,
# and needs only NumPy.
_PARTS = ("accelerator", "backends", "comm", "cuda", "data", "elastic", "infer", "memory", "nn",
          "optim", "parallel", "precision", "profile", "snapshot")
_LATER = {  # {name: the module that has it}
    "autocast": "minidl.precision.amp",
    "load": "minidl.snapshot.one_file",
    "save": "minidl.snapshot.one_file",
    "graphed": "minidl.cuda.cuda_graph",
    "kernel": "minidl.cuda",
    "get_float32_matmul_precision": "minidl.cuda",
    "set_float32_matmul_precision": "minidl.cuda",
}


def __getattr__(name):
    """Imports a part of minidl, such as `minidl.nn`, when a program first uses this part. Python's
    PEP 562 describes such a function."""
    if name in _PARTS:
        return _importlib.import_module(f"minidl.{name}")
    if name == "amp":
        return _importlib.import_module("minidl.precision.amp")
    if name in _LATER:
        return getattr(_importlib.import_module(_LATER[name]), name)
    if name == "bfloat16":  # NumPy has no such dtype, but ml_dtypes has it
        return _importlib.import_module("minidl.precision.bf16").dtype()
    raise AttributeError(f"module 'minidl' has no attribute {name!r}", name=name,
                         obj=_sys.modules[__name__])


def __dir__():
    return sorted({*globals(), *_PARTS, *_LATER, "amp", "bfloat16"})
