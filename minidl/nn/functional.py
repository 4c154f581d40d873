"""`minidl.nn.functional`: the ops that layers are made of, by PyTorch's names.

Everything here comes from the operator table, minidl/ops/__init__.py."""

from minidl import ops

globals().update(ops.namespace("f"))


def __getattr__(name):
    raise AttributeError(f"minidl.nn.functional has no {name!r}; it has: "
                         + " ".join(sorted(ops.namespace("f"))))
