"""`minidl.nn.functional`: the ops that layers are made of, by PyTorch's names.

All of them are in the operator table, minidl/ops/__init__.py; which run a fused kernel is asked in
each op's forward (minidl/cuda/dispatch.py).   Test: tests/nn/test_functional.py
"""

from minidl import ops

globals().update(ops.namespace("f"))
