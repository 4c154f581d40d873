"""A tensor: an array, whether it wants a gradient, and which Function made it.

    x = minidl.tensor([1.0, 2.0], requires_grad=True)     a leaf: grad_fn is None
    y = x * x                                             y.grad_fn is the node Mul, of slot 0
    y.sum().backward()                                    x.grad is the array [2., 4.]

Backward takes and returns arrays, never Tensors, and the walk is a loop, not a recursion. It counts
first how many functions feed each leaf, so `on_grad_ready` fires exactly once per leaf, at the
moment its gradient is complete (data parallelism and ZeRO live on it).

The nodes are minidl/function.py, the walk is minidl/backward.py, the ops are in minidl/ops.
Test: tests/test_tensor.py   Tutorial: tutorials/01_autograd.py
"""

import numpy as np

from minidl import backend
from minidl.backward import walk
from minidl.mode import is_grad_enabled


class Tensor:
    """An array, and the way back from it.

    data:           the array (NumPy or CuPy). Assigning to it, `w.data -= lr * w.grad` included,
                    moves `version`; writing into `w.data[...]` does not, as in PyTorch.
    grad:           array of the same shape and dtype, or None. Backward *adds* to it.
    requires_grad:  whether backward should reach it.
    grad_fn, slot:  the Function that made it and which of its outputs it is; None for a leaf.

    Operators and methods (x + y, x.sum(dim=1), ...) are attached by minidl/ops/__init__.py.
    """

    __slots__ = ("_data", "grad", "_requires_grad", "grad_fn", "slot", "version", "_hooks",
                 "__weakref__")
    __array_ufunc__ = None  # array * tensor asks the tensor, so the graph sees it

    def __init__(self, data, requires_grad=False):
        """`data`: an array, which is shared, not copied (`minidl.tensor` copies)."""
        if not hasattr(data, "ndim") or isinstance(data, (np.generic, Tensor)):
            raise TypeError(f"Tensor wraps a NumPy or CuPy array, got {type(data).__name__}; "
                            "use minidl.tensor(...) for lists, numbers and copies")
        self._data = data
        self.grad = None
        self.grad_fn = None
        self.slot = 0
        self.version = 0
        self._hooks = None
        self.requires_grad = requires_grad

    @staticmethod
    def _from(array, grad_fn=None, slot=0):
        self = Tensor.__new__(Tensor)
        self._data = array
        self.grad = self._hooks = None
        self._requires_grad = grad_fn is not None and (
            array.dtype.kind == "f" or backend.is_bfloat16(array.dtype))
        self.grad_fn = grad_fn if self._requires_grad else None  # an index has no way back
        self.slot = slot
        self.version = 0
        return self

    @property
    def data(self):
        return self._data

    @data.setter
    def data(self, array):
        if isinstance(array, Tensor):
            array = array._data
        if array is not self._data and tuple(array.shape) != self.shape:
            raise ValueError(f"data of shape {self.shape} cannot become {tuple(array.shape)}")
        self._data = array
        self.version += 1

    @property
    def requires_grad(self):
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, flag):
        if flag and not backend.is_floating(self.dtype):
            raise TypeError(f"only floating tensors can require a gradient, this is {self.dtype}")
        if not flag and self.grad_fn is not None:
            raise RuntimeError("requires_grad of a result cannot be cleared; use x.detach()")
        self._requires_grad = bool(flag)

    def requires_grad_(self, flag=True):
        self.requires_grad = flag
        return self

    shape = property(lambda self: tuple(self._data.shape))
    dtype = property(lambda self: self._data.dtype)
    ndim = property(lambda self: self._data.ndim)
    device = property(lambda self: backend.device_of(self._data))
    is_leaf = property(lambda self: self.grad_fn is None)
    nbytes = property(lambda self: self._data.nbytes)

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        return self.ndim

    def numel(self):
        return int(self._data.size)

    def is_contiguous(self):
        return bool(self._data.flags.c_contiguous)

    def element_size(self):
        return self._data.itemsize

    # -- gradients

    def backward(self, gradient=None, retain_graph=False):
        """Add d(self)/d(leaf) to the `grad` of every leaf that requires it.

        gradient: array or Tensor of this shape, d(something)/d(self); 1 if self has one element.
        retain_graph: keep what the Functions saved, so that backward may run again."""
        walk([self], [gradient], retain_graph)

    def on_grad_ready(self, hook):
        """Call `hook(leaf)` once in every backward that reaches this leaf, when its `grad` is
        complete. Returns a function that removes the hook."""
        if not (self.is_leaf and self.requires_grad):
            raise RuntimeError("on_grad_ready is for leaves that require a gradient")
        self._hooks = [*(self._hooks or ()), hook]

        def remove():
            self._hooks = [h for h in self._hooks or () if h is not hook]

        return remove

    register_post_accumulate_grad_hook = on_grad_ready  # PyTorch's name for it

    def retain_grad(self):
        """Keep the gradient of this result, too, in `grad` (for looking at the graph)."""
        if self.grad_fn is not None:
            self.grad_fn.retained = {**self.grad_fn.retained, self.slot: self}

    def detach(self):
        """The same array outside the graph."""
        return Tensor._from(self._data)

    # -- in place, outside the graph

    def _write(self, op, value):
        """self.data = op(self.data, value), into the same memory."""
        if is_grad_enabled() and self.requires_grad:
            raise RuntimeError("in-place change of a tensor that requires a gradient; "
                               "do it under `with minidl.no_grad():`, or build a new tensor")
        if isinstance(value, Tensor):
            value = value._data
        op(self._data, value, out=self._data, casting="same_kind")
        self.version += 1
        return self

    def copy_(self, source):
        """Overwrite with `source` (Tensor, array or number), broadcast to this shape."""
        return self._write(_copy, source)

    def zero_(self):
        return self.copy_(0)

    def fill_(self, value):
        return self.copy_(value)

    # Where a graph is recorded, x += y makes a new tensor like x = x + y; elsewhere it is in place.
    def __iadd__(self, value):
        return self + value if self._records(value) else self._write(self._xp.add, value)

    def __isub__(self, value):
        return self - value if self._records(value) else self._write(self._xp.subtract, value)

    def __imul__(self, value):
        return self * value if self._records(value) else self._write(self._xp.multiply, value)

    def __itruediv__(self, value):
        return self / value if self._records(value) else self._write(self._xp.divide, value)

    def _records(self, value):
        return is_grad_enabled() and not (self.is_leaf and self.requires_grad) and (
            self.requires_grad or getattr(value, "requires_grad", False))

    def __setitem__(self, index, value):
        if is_grad_enabled() and (self.requires_grad or getattr(value, "requires_grad", False)):
            raise RuntimeError("assignment to elements is not recorded in the graph; use "
                               "minidl.where or masked_fill, or write under minidl.no_grad()")
        self._data[index_of_arrays(index)] = value._data if isinstance(value, Tensor) else value
        self.version += 1

    # -- to NumPy, to Python

    _xp = property(lambda self: backend.xp_of([self._data]))

    def numpy(self):
        """The array itself, no copy; a CUDA tensor wants .cpu() first."""
        if not isinstance(self._data, np.ndarray):
            raise TypeError(f"numpy() of a tensor on {self.device}; call .cpu() first")
        return self._data

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None and dtype != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **kwargs):
        return self._data.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._data.__dlpack_device__()

    def item(self):
        if self.numel() != 1:
            raise ValueError(f"item() wants one element, this tensor has shape {self.shape}")
        return self._data.item()

    def tolist(self):
        return self._data.tolist()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __index__(self):
        if self.dtype.kind not in "iu":
            raise TypeError(f"only integer tensors can be an index, this is {self.dtype}")
        return int(self.item())

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __format__(self, spec):
        return format(self.item(), spec) if self.ndim == 0 and spec else repr(self)

    __hash__ = object.__hash__  # by identity, although == compares elements

    def __repr__(self):
        host = backend.to_device(self._data, "cpu")
        body = np.array2string(host, separator=", ", prefix="tensor(")
        notes = [] if self.dtype in (np.float32, np.int64, np.bool_) else [f"dtype={self.dtype}"]
        if self.device != "cpu":
            notes.append(f"device={self.device!r}")
        if self.grad_fn is not None:
            notes.append(f"grad_fn={self.grad_fn}")
        elif self.requires_grad:
            notes.append("requires_grad=True")
        return f"tensor({', '.join([body, *notes])})"


def index_of_arrays(index):
    """An index as the array library takes it: tensors become arrays, also inside a tuple."""
    if isinstance(index, tuple):
        return tuple(i._data if isinstance(i, Tensor) else i for i in index)
    return index._data if isinstance(index, Tensor) else index


def _copy(_, value, out, casting):
    """`value` into `out`, called as a ufunc. A number takes the dtype of `out`, whatever it is."""
    if isinstance(out, np.ndarray):
        np.copyto(out, value, casting=casting if hasattr(value, "dtype") else "unsafe")
    else:
        out[...] = value
