"""The engine: tensors, functions, and a backward pass that walks the graph in reverse.

    a ──┐                        forward:  each Function is a node; it keeps one edge per input
        ├─► Mul ──► Sum ──► loss           (its producer, or a leaf) and only what it `save`d
    b ──┘                        backward: nodes in order of decreasing depth; gradients that meet
                                           at a node or a leaf are added

Three rules make the rest of the framework possible:
  - activation memory is the sum of what Functions saved: countable, freed as backward passes;
  - backward takes and returns arrays, never Tensors, and the walk is a loop, not a recursion;
  - the walk counts first how many functions feed each leaf, so `on_grad_ready` fires exactly
    once per leaf, at the moment its gradient is complete (data parallelism and ZeRO live on it).

The walk is minidl/backward.py; ops are in minidl/ops, 5-15 lines each.
Source: Griewank & Walther, "Evaluating Derivatives" (2008), reverse mode.
Test: tests/test_tensor.py   Tutorial: tutorials/01_autograd.py
"""

import re

import numpy as np

from minidl import backend
from minidl.backward import is_grad_enabled, walk


class Function:
    """One operation; an instance is one node of the graph.

    A subclass writes two methods over arrays, with `self.xp` (numpy or cupy) as the library:

        forward(self, *inputs, **options)  -> array or tuple of arrays
        backward(self, *output_gradients)  -> one gradient per input, or None where there is none

    `self.save(...)` in forward keeps what `self.saved` gives back in backward, and nothing else is
    kept. `self.needs[i]` says whether input i wants a gradient (never under no_grad, so forward
    can skip what only backward uses). A gradient of a broadcast input may be returned in the
    broadcast shape and in the promoted dtype: the walk sums and casts it. Output gradients are
    read-only by convention: another node may hold the same array.
    """

    differentiable = True  # False: integer or bool results, no graph (argmax, comparisons)
    promotes = None  # "same": inputs cast to one dtype; "float": and integers to float32
    edges = ()
    saved = ()

    @classmethod
    def apply(cls, *inputs, **options):
        """Run forward on the arrays of `inputs` (Tensors, arrays and numbers: the latter two are
        constants) and return the result as Tensor(s), recorded in the graph if need be."""
        node = cls()
        given = arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
        node.xp = xp = backend.xp_of(arrays, cls.__name__)
        if cls.differentiable and is_grad_enabled():
            node.needs = needs = [isinstance(x, Tensor) and x._requires_grad for x in inputs]
        else:
            node.needs = needs = [False] * len(inputs)
        try:
            if cls.promotes:
                arrays = backend.promote(arrays, cls.promotes == "float")
            result = node.forward(*arrays, **options)
        except (ValueError, IndexError, TypeError) as error:
            raise _explained(error, node, given) from error
        # NumPy turns 0-d results into scalars: back to arrays
        if type(result) is not tuple:
            y = result if type(result) is np.ndarray else xp.asarray(result)
            if True in needs:
                node._link(inputs, given, (y,))
                return Tensor._from(y, node)
            return Tensor._from(y)
        outputs = [y if type(y) is np.ndarray else xp.asarray(y) for y in result]
        if True in needs:
            node._link(inputs, given, outputs)
            return tuple(Tensor._from(y, node, i) for i, y in enumerate(outputs))
        return tuple(Tensor._from(y) for y in outputs)

    def save(self, *arrays):
        self.saved = arrays

    def forward(self, *inputs, **options):
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *output_gradients):
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def _link(self, inputs, arrays, outputs):
        """Become a node: an edge per input, the shapes to sum gradients back to, the versions of
        the saved inputs, and a depth greater than every producer's."""
        depth = 0
        self.edges = edges = []
        self.input_meta = meta = []
        self.saved_inputs = []
        for x, array, needed in zip(inputs, arrays, self.needs):
            if self.saved and isinstance(x, Tensor):
                if any(_same_memory(s, array) for s in self.saved):
                    self.saved_inputs.append((x, x.version))
            if not needed:
                edges.append(None)
                meta.append(None)
                continue
            if x.grad_fn is None:
                edges.append(x)
            else:
                edges.append((x.grad_fn, x.slot))
                depth = max(depth, x.grad_fn.depth)
            meta.append((array.shape, array.dtype))
        self.depth = depth + 1
        self.output_meta = [(y.shape, y.dtype) for y in outputs]

    def _check(self):
        """Refuse to differentiate through what is gone or was overwritten."""
        if self.saved is None:
            raise RuntimeError(
                f"backward through {type(self).__name__} a second time: what it saved was freed. "
                "Pass retain_graph=True to the first backward"
            )
        for x, version in self.saved_inputs:
            if x.version != version:
                kind = "leaf" if x.is_leaf else "tensor"
                raise RuntimeError(
                    f"a {kind} of shape {x.shape} that {type(self).__name__} saved was changed in "
                    f"place between forward and backward (version {version} then, {x.version} "
                    "now): the gradient would be wrong. Step the optimizer after backward"
                )

    def __repr__(self):
        return f"<{type(self).__name__}>"


def op_name(cls):
    """The name under which a user knows a Function: LeakyRelu -> leaky_relu."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def _explained(error, node, arrays):
    """The error of a forward, naming the op and the shapes it was given."""
    if getattr(error, "explained", False):  # by an op that ran inside this one
        return error
    op = getattr(node, "name", None) or op_name(type(node))
    shapes = [tuple(x.shape) for x in arrays if hasattr(x, "shape")]
    listed = " and ".join(map(str, shapes))
    text = str(error)
    if not text.startswith(f"{op}:"):
        text = f"{op}: {text} (input shapes: {listed})"
    if node.promotes:
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            text = f"{op}: shapes {listed} do not broadcast"
    kind = next(k for k in (IndexError, ValueError, TypeError) if isinstance(error, k))
    error = kind(text)
    error.explained = True
    return error


def _same_memory(a, b):
    """Whether array a is b or a view of the same buffer; False for None and numbers."""
    if a is None or b is None or a is b:
        return a is not None and a is b
    base_a, base_b = getattr(a, "base", None), getattr(b, "base", None)
    return base_a is b or base_b is a or (base_a is not None and base_a is base_b)


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
        self._requires_grad = grad_fn is not None and array.dtype.kind == "f"
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
        if flag and self.dtype.kind != "f":
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
            self.grad_fn.__dict__.setdefault("retained", {})[self.slot] = self

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
        return self._write(lambda _, v, out, casting: _copyto(out, v), source)

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


def _copyto(out, value):
    if isinstance(out, np.ndarray):
        np.copyto(out, value, casting="same_kind" if hasattr(value, "dtype") else "unsafe")
    else:
        out[...] = value
