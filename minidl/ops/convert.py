"""Converts a tensor into a NumPy array, a number or a list.

The file also has the special methods of Tensor that Python itself calls. For example, Python calls
__len__ for len(x), and __float__ for float(x).

Test: tests/test_tensor.py
"""

import builtins
from typing import Any

import numpy as np

from minidl import backend, printing
from minidl.cuda.index_check import waiting
from minidl.forward import WrongValue
from minidl.tensor import Tensor

OF_UFUNC = {}  # {NumPy's name of an operator: the op}, filled by the table (ops/__init__.py)


def numpy(input) -> np.ndarray:
    """Returns the NumPy array itself, without a copy. Raises TypeError for a tensor on a GPU: call
    .cpu() first."""
    if not isinstance(input.array, np.ndarray):
        raise TypeError(f"numpy() wants a tensor on the CPU; got a tensor on {input.device}. "
                        "Call .cpu() first")
    return input.array


def item(input) -> Any:
    """Returns the only element as a Python number. Raises ValueError if the tensor has no element,
    or more than one."""
    if input.numel() != 1:
        raise WrongValue(f"item() wants a tensor of one element; got shape {tuple(input.shape)}")
    if type(input.array) is np.ndarray:
        return input.array.item()
    with waiting(input.array):
        return input.array.item()


def tolist(input) -> Any:
    with waiting(input.array):
        return input.array.tolist()


def size(input, dim=None) -> tuple[int, ...] | int:
    """Returns the shape if dim is None, else the size of dimension `dim`."""
    return input.shape if dim is None else input.array.shape[dim]


def dim(input) -> int:
    return input.ndim


def is_contiguous(input) -> bool:
    return bool(input.array.flags.c_contiguous)


def element_size(input) -> int:
    """Returns the number of bytes of an element."""
    return input.array.itemsize


def _array(self, dtype=None, copy=None):
    array = numpy(self)
    if dtype is not None and dtype != array.dtype:
        return array.astype(dtype)
    return array.copy() if copy else array


def _ufunc(self, ufunc, method, *inputs, **options):
    """NumPy calls this method for a * x, where a is an array and x is a Tensor. This method then
    runs the op mul(a, x), which the graph records. Other functions of NumPy, such as np.sqrt(x),
    return a tensor outside of the graph, as in PyTorch. They raise RuntimeError if x requires a
    gradient."""
    op = OF_UFUNC.get(ufunc.__name__)
    if method == "__call__" and op is not None and not options:
        return op(*inputs)
    arrays = []
    for x in inputs:
        if isinstance(x, Tensor):
            if x.requires_grad:
                raise RuntimeError(f"np.{ufunc.__name__} records no graph, but the tensor requires "
                                   "a gradient; use minidl's function, or pass x.detach()")
            x = numpy(x)
        arrays.append(x)
    result = getattr(ufunc, method)(*arrays, **options)
    if isinstance(result, np.generic):
        result = np.asarray(result)
    return Tensor(result) if isinstance(result, np.ndarray) else result


def _index(self):
    if self.dtype.kind not in "iu":
        raise TypeError(f"an index must be a tensor of integers; got {self.dtype}")
    return int(item(self))


def _len(self):
    if self.ndim == 0:
        raise TypeError("len() wants a tensor of at least one dimension; got a 0-d tensor")
    return self.shape[0]


def _repr(self):
    with waiting(self.array):
        host = backend.to_device(self.array, "cpu")
    notes = []
    if self.device != "cpu":
        notes.append(f"device='{self.device}'")
    usual = (np.float32, np.int64, np.bool_)
    if self.numel() == 0:  # there is no element that shows the dtype
        usual = (np.float32,)
        if self.ndim != 1:
            notes.append(f"size={tuple(self.shape)}")
    if self.dtype not in usual:
        notes.append(f"dtype=torch.{self.dtype}")
    if self.grad_fn is not None:
        notes.append(f"grad_fn={_node_name(self.grad_fn)}")
    elif self.requires_grad:
        notes.append("requires_grad=True")
    return printing.text(host, notes)


def _node_name(node):
    """Returns the name of a node as PyTorch prints it. The names of our ops end in 0, but the names
    of a user's Functions do not."""
    kind = builtins.type(node)
    ending = "Backward0" if kind.__module__.startswith("minidl.") else "Backward"
    return f"<{kind.__name__}{ending}>"


OPERATORS = {
    "__repr__": _repr,
    "__array__": _array,
    "__array_ufunc__": _ufunc,
    "__dlpack__": lambda self, **options: self.array.__dlpack__(**options),
    "__dlpack_device__": lambda self: self.array.__dlpack_device__(),
    "__float__": lambda self: float(item(self)),
    "__int__": lambda self: int(item(self)),
    "__bool__": lambda self: bool(item(self)),
    "__index__": _index,
    "__len__": _len,
    "__iter__": lambda self: (self[i] for i in range(len(self))),
    "__format__": lambda self, spec: format(item(self), spec) if self.ndim == 0 else repr(self),
    "__round__": lambda self, digits=None: self.round(decimals=digits or 0),
}
