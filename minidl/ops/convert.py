"""A tensor as something else: an array of NumPy, a number, a list; and what Python asks of it.

Test: tests/test_tensor.py
"""

from typing import Any

import numpy as np

from minidl import backend
from minidl.cuda.index_check import waiting


def numpy(input) -> np.ndarray:
    """The array itself, no copy; a CUDA tensor wants .cpu() first."""
    if not isinstance(input.array, np.ndarray):
        raise TypeError(f"numpy() of a tensor on {input.device}; call .cpu() first")
    return input.array


def item(input) -> Any:
    """The only element as a Python number."""
    if input.numel() != 1:
        raise ValueError(f"item() wants one element, this tensor has shape {input.shape}")
    if type(input.array) is np.ndarray:
        return input.array.item()
    with waiting(input.array):
        return input.array.item()


def tolist(input) -> Any:
    with waiting(input.array):
        return input.array.tolist()


def size(input, dim=None) -> tuple[int, ...] | int:
    """The shape as a tuple, or one dimension of it."""
    return input.shape if dim is None else input.shape[dim]


def dim(input) -> int:
    return input.ndim


def is_contiguous(input) -> bool:
    return bool(input.array.flags.c_contiguous)


def element_size(input) -> int:
    """Bytes of an element."""
    return input.array.itemsize


def _array(self, dtype=None, copy=None):
    array = numpy(self)
    if dtype is not None and dtype != array.dtype:
        return array.astype(dtype)
    return array.copy() if copy else array


def _index(self):
    if self.dtype.kind not in "iu":
        raise TypeError(f"only integer tensors can be an index, this is {self.dtype}")
    return int(item(self))


def _len(self):
    if self.ndim == 0:
        raise TypeError("len() of a 0-d tensor")
    return self.shape[0]


def _repr(self):
    with waiting(self.array):
        host = backend.to_device(self.array, "cpu")
    body = np.array2string(host, separator=", ", prefix="tensor(")
    notes = [] if self.dtype in (np.float32, np.int64, np.bool_) else [f"dtype={self.dtype}"]
    if self.device != "cpu":
        notes.append(f"device={self.device!r}")
    if self.grad_fn is not None:
        notes.append(f"grad_fn={self.grad_fn}")
    elif self.requires_grad:
        notes.append("requires_grad=True")
    return f"tensor({', '.join([body, *notes])})"


OPERATORS = {
    "__repr__": _repr,
    "__array__": _array,
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
