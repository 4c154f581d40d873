"""How minidl writes an operator of ONNX: as a small function of tensors with the same name.

    def Gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):      inputs, then attributes

    shape: Known      an array, never a Tensor, because its numbers are needed to make the graph
    xs: Raw           a Tensor, an array, or a list of Tensors and arrays, unchanged
    *, _opset         the version of ONNX's operators in the file
    *, _n             the number of results that the file asks for
    *, _run           a function that runs a graph inside of this graph (If, Loop)

An operator made of minidl's own ops is optimised and compiled like any traced model. If minidl has
no ops for an operator, the operator is a function of arrays with the decorator @from_arrays. Then
it is one line of the graph, and runs as an eager op.
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
    """Marks an input that the operator gets unchanged."""


class Refused(NotImplementedError, ValueError):
    """Raised if minidl does not support a part of a file, or if the file has an error. The message
    names this part or error."""


class ArrayFunction(Function):
    """Calls `function` with arrays and attributes. name: the operator's name."""
    differentiable = arithmetic = False

    def forward(self, *arrays, name, function, **attributes):
        # The operator is one line of the graph, so the ops that `function` calls are not recorded.
        # NumPy gives no warnings, for example for x / 0.
        with np.errstate(all="ignore"), running(grad=False, intercept=None):
            return function(*arrays, **attributes)


def from_arrays(function, name=None):
    """A decorator that makes an operator from a function of arrays. Each call of the operator is
    one line of the graph. name: the operator's name. None means the function's name."""
    name = name or function.__name__

    @functools.wraps(function)
    def operator(*inputs, **attributes):
        return ArrayFunction.apply(*inputs, name=name, function=function, **attributes)
    return operator


def operators(module):
    """Returns {name: function} of the operators in a module. module: the module's globals().
    A function of the module is an operator if its name begins with a capital letter."""
    return {name: f for name, f in module.items() if name[0].isupper() and inspect.isfunction(f)
            and f.__module__ == module["__name__"]}


@functools.cache
def parameters(function):
    """Returns two lists of inspect.Parameter for an operator's function: the parameters that are
    inputs, and the parameters that are attributes."""
    found = inspect.signature(function).parameters.values()
    return ([p for p in found if p.kind is not p.KEYWORD_ONLY],
            [p for p in found if p.kind is p.KEYWORD_ONLY])


def dtype_of(number):
    """Returns the NumPy dtype of an element type. number: ONNX's number of this type."""
    if number not in NAMES:
        import onnx
        raise Refused(f"tensors of {onnx.TensorProto.DataType.Name(number)} are not supported")
    if number == 16:
        return bf16.dtype()
    return np.dtype(NAMES[number])


def number_of(dtype):
    """Returns ONNX's number for a NumPy dtype."""
    wanted = np.dtype(dtype).name
    found = [k for k, name in NAMES.items() if name == wanted]
    if not found:
        raise Refused(f"tensors of {dtype} are not supported")
    return found[0]


def ints(array):
    """Returns the numbers of an array as a tuple of ints."""
    return tuple(int(i) for i in np.asarray(array).reshape(-1))
