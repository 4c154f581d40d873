"""minidl: a deep-learning framework to read. Every technique of fast and distributed training,
written out. The map of concepts and files is docs/map.md.

    import minidl
    x = minidl.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    x.grad                      # array([2., 4.], dtype=float32)
"""

import importlib as _importlib
import sys as _sys
from importlib.machinery import ModuleSpec as _ModuleSpec

import numpy as _np

from minidl import ops
from minidl.backward import leaf_uses
from minidl.creation import (
    arange, as_tensor, empty, empty_like, eye, from_dlpack, from_numpy, full, full_like, linspace,
    ones, ones_like, rand, rand_like, randint, randn, randn_like, randperm, tensor, zeros,
    zeros_like,
)
from minidl.function import Function
from minidl.fused.fuse import fuse
from minidl.gradcheck import grad
from minidl.mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled, use_fused
from minidl.ops.extra import keywords as _keywords
from minidl.random import Generator, manual_seed
from minidl.tensor import Tensor

__version__ = "0.1.0"

float16, float32, float64 = (_np.dtype(t) for t in ("f2", "f4", "f8"))
int8, int16, int32, int64 = (_np.dtype(t) for t in ("i1", "i2", "i4", "i8"))
uint8, bool_ = _np.dtype("u1"), _np.dtype("?")

globals().update(ops.namespace("t"))

_OF_CUDA = "kernel set_float32_matmul_precision get_float32_matmul_precision".split()
_PARTS = ("comm cuda data elastic infer memory nn optim parallel precision profile "
          "snapshot").split()

# Modules that a user finds under a shorter name than their file's: {folder: names in its parent}.
SHORT = {
    "minidl.precision": "amp bf16 grad_scaler",
    "minidl.memory": "recompute recompute_plan fragmentation host_memory",
    "minidl.course": "tutorial exercise",
    "minidl.cli": "launcher doctor",
    "minidl.comm.transport": "mpi sim scheduler links links_text throttled window background device"
                             " nccl abort",
    "minidl.comm.observe": "ledger watch",
    "minidl.parallel.data": "data_parallel bucket flat",
    "minidl.parallel.zero": "zero3 offload lanes",
    "minidl.cuda.host": "cpu includes source compiler",
}
ALIASES = {f"{folder.rpartition('.')[0]}.{name}": f"{folder}.{name}"
           for folder, names in SHORT.items() for name in names.split()}
ALIASES |= {  # and those that have another name there
    "minidl.memory_predict": "minidl.memory.predict",
    "minidl.activation_offload": "minidl.memory.offload",
    "minidl.tutorial_table": "minidl.course.table",
    "minidl.exercise_grade": "minidl.course.grade",
    "minidl.graph": "minidl.memory.saved_bytes",
    "minidl.parallel.zero1": "minidl.parallel.zero.zero",
    "minidl.parallel.zero2": "minidl.parallel.zero.zero",
    "minidl.parallel.param_server": "minidl.parallel.server.server",
    "minidl.parallel.param_worker": "minidl.parallel.server.worker",
    "minidl.parallel.param_rules": "minidl.parallel.server.rules",
    "minidl.parallel.param_shards": "minidl.parallel.server.shards",
}


class _Aliases:
    """Lets `import` find a module under its short name: the same module object."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return _ModuleSpec(name, _Aliases) if name in ALIASES else None

    @staticmethod
    def create_module(spec):
        return None  # a new, empty one

    @staticmethod
    def exec_module(module):
        name = module.__name__
        _sys.modules[name] = _importlib.import_module(ALIASES[name])  # instead of the empty one


_sys.meta_path.append(_Aliases)
_keywords.install()


def __getattr__(name):
    """`minidl.nn` without importing it first, as `torch.nn`; loaded on first use."""
    if name == "bfloat16":  # not with the others: NumPy has it from another package
        return _importlib.import_module("minidl.precision.bf16").dtype()
    if name == "graphed":  # a step as one launch, on a GPU
        return _importlib.import_module("minidl.fused.graph").graphed
    if name == "saved_bytes":
        return _importlib.import_module("minidl.memory").saved_bytes
    if name in _OF_CUDA:  # minidl.kernel("add3.cu", "add3")(grid, block, args)
        return getattr(_importlib.import_module("minidl.cuda"), name)
    if name in _PARTS or f"minidl.{name}" in ALIASES:
        return _importlib.import_module(f"minidl.{name}")
    raise ops.missing("minidl", name, globals())
