"""What an operator of ONNX is here: a small function of tensors, whose name is ONNX's.

    def Gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):      inputs, then attributes

    shape: Known      its numbers are needed when the graph is made: an array, never a Tensor
    xs: Raw           a Tensor, an array or a list of them, as it is
    *, _opset         the version of ONNX's operators that the file is written for
    *, _n             how many results are asked for
    *, _run           runs a graph inside of this one (If, Loop)

What is made of minidl's own ops is optimised and compiled like any traced model. What has none is a
function of arrays behind @from_arrays: one line of the graph, run as it is.
Test: tests/infer/onnx/
"""

import functools
import inspect
from types import SimpleNamespace

import numpy as np

from minidl import creation, ops
from minidl.function import Function
from minidl.mode import running
from minidl.precision import bf16

m = SimpleNamespace(**ops.namespace("t"), zeros=creation.zeros, ones=creation.ones)  # minidl's ops

NAMES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
         9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"}
Known = np.ndarray


class Raw:
    """Marks an input that is taken as it is."""


class Refused(NotImplementedError, ValueError):
    """What a file asks for and is not here, by name; or what is wrong with the file."""


class ArrayFunction(Function):
    """`function` of arrays and attributes; `name` is the operator's."""
    differentiable = arithmetic = False

    def forward(self, *arrays, name, function, **attributes):
        # one line of the graph, whatever it calls; x / 0 is infinite, without a warning
        with np.errstate(all="ignore"), running(grad=False, intercept=None):
            return function(*arrays, **attributes)


def from_arrays(function, name=None):
    """A decorator: the operator is this function of arrays, one line of the graph."""
    name = name or function.__name__

    @functools.wraps(function)
    def operator(*inputs, **attributes):
        return ArrayFunction.apply(*inputs, name=name, function=function, **attributes)
    return operator


def operators(module):
    """{name: function} of the operators in a module's globals()."""
    return {name: f for name, f in module.items() if name[0].isupper() and inspect.isfunction(f)
            and f.__module__ == module["__name__"]}


@functools.cache
def parameters(function):
    """(inputs, attributes) that a function takes: lists of inspect.Parameter."""
    found = inspect.signature(function).parameters.values()
    return ([p for p in found if p.kind is not p.KEYWORD_ONLY],
            [p for p in found if p.kind is p.KEYWORD_ONLY])


def dtype_of(number):
    """The NumPy dtype of ONNX's number of an element type."""
    if number not in NAMES:
        import onnx
        raise Refused(f"tensors of {onnx.TensorProto.DataType.Name(number)}")
    if number == 16:
        return bf16.dtype()
    return np.dtype(NAMES[number])


def number_of(dtype):
    """ONNX's number of a NumPy dtype."""
    found = [k for k, name in NAMES.items() if name == np.dtype(dtype).name]
    if not found:
        raise Refused(f"tensors of {dtype}")
    return found[0]


def ints(array):
    return tuple(int(i) for i in np.asarray(array).reshape(-1))
