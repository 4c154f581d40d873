"""`minidl.nn.functional`: the ops that layers use, with PyTorch's names.

The table of all ops is in minidl/ops/__init__.py. The forward of each op decides whether it runs a
fused kernel (minidl/cuda/dispatch.py).   Test: tests/nn/test_functional.py
"""

from minidl import ops

globals().update(ops.namespace("f"))
