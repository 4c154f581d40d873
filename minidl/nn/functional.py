"""`minidl.nn.functional`: the ops that layers are made of, by PyTorch's names.

All of them are in the operator table, minidl/ops/__init__.py. Those below have a fused kernel, too,
which runs where it can (minidl/fused/dispatch.py): less memory traffic, fewer activations saved.
`with minidl.use_fused(False):` goes back to the plain ops.   Test: tests/nn/test_functional.py
"""

from minidl import ops
from minidl.fused import bias_gelu
from minidl.fused.dispatch import either

globals().update(ops.namespace("f"))

gelu = either(bias_gelu.gelu, ops.activations.gelu)


def __getattr__(name):
    raise AttributeError(f"minidl.nn.functional has no {name!r}; it has: "
                         + " ".join(sorted(ops.namespace("f"))))
