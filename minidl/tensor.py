"""A tensor: an array, a flag for its gradient, and the Function that made it.

    x = minidl.tensor([1.0, 2.0], requires_grad=True)     a leaf: grad_fn is None
    y = x * x                                             y.grad_fn is a node Mul; y is output 0
    y.sum().backward()                                    x.grad is tensor([2., 4.])

Backward first counts how many gradients will come to each leaf. So it calls the `on_grad_ready`
hook of a leaf exactly once, when the gradient is complete. Data parallelism and ZeRO rely on this.
The nodes of the graph are in minidl/function.py. Backward's walk through the graph is in
minidl/backward.py. All ops are in minidl/ops. The methods and operators of a Tensor are also there:
x.sum(dim=1), x + y, x += 1, x.item().
Test: tests/test_tensor.py   Tutorial: tutorials/01_autograd.py
"""

import builtins
import copy
import math

import numpy as np

from minidl import backend
from minidl.backend import DEFAULT_FLOAT, is_floating
from minidl.backward import refuse_create_graph, walk
from minidl.mode import is_grad_enabled
from minidl.saved import Memory


class Size(tuple):
    """A shape: a tuple of integers. It is printed like PyTorch's torch.Size."""

    __slots__ = ()

    def numel(self):
        return math.prod(self)

    def __getitem__(self, index):
        found = tuple.__getitem__(self, index)
        return Size(found) if type(index) is slice else found

    def __add__(self, other):
        return Size(tuple.__add__(self, tuple(other)))

    def __radd__(self, other):
        return Size(tuple(other) + tuple(self))

    def __mul__(self, times):
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self):
        return f"torch.Size({list(self)})"


class Tensor:
    """An array, its gradient, and the Function that made it.

    array:          the array (NumPy or CuPy). Code inside of minidl works on it.
    data:           a Tensor with the same memory, outside the graph. An assignment (`w.data = x`,
                    or `w.data -= lr * w.grad`) adds 1 to `version`. A write to some elements
                    (`w.data[0] = 1`) does not change `version`, as in PyTorch.
    grad:           a Tensor of the same shape and dtype, or None. Backward *adds* to it.
    requires_grad:  True if backward should compute a gradient for this tensor.
    grad_fn:        the Function that made this tensor. None for a leaf.
    slot:           the index of this tensor among the outputs of grad_fn."""

    __slots__ = ("array", "_grad", "_requires_grad", "grad_fn", "slot", "_memory", "_hooks",
                 "__weakref__")

    def __init__(self, data, requires_grad=False, *sizes):
        """data: an array. The tensor shares the memory of the array. (`minidl.tensor` makes a
        copy.) Two other forms of PyTorch also work: Tensor([1, 2]) makes a float32 copy of a list,
        and Tensor(2, 3) makes a float32 tensor of this shape, with undefined values."""
        if isinstance(data, (list, tuple)):
            data = np.array(data, DEFAULT_FLOAT)
        elif type(data) is int:
            sizes = (data,) if requires_grad is False else (data, requires_grad, *sizes)
            data, requires_grad, sizes = np.empty(sizes, DEFAULT_FLOAT), False, ()
        if sizes:
            raise TypeError(f"Tensor takes 2 arguments, (array, requires_grad); got {len(sizes)} "
                            "more. For a shape pass only sizes: Tensor(2, 3)")
        if not hasattr(data, "ndim") or isinstance(data, (np.generic, Tensor)):
            raise TypeError(f"Tensor wraps a NumPy or CuPy array, got {type(data).__name__}; "
                            "use minidl.tensor(...) for lists, numbers and copies")
        self.array = data
        self._grad = self.grad_fn = self._hooks = self._memory = None
        self.slot = 0
        self.requires_grad = requires_grad

    @staticmethod
    def _from(array, grad_fn=None, slot=0):
        """Returns a tensor with a result of an op. A result of integers gets no grad_fn."""
        self = object.__new__(Tensor)
        if grad_fn is not None and array.dtype is not DEFAULT_FLOAT:
            grad_fn = grad_fn if is_floating(array.dtype) else None
        self.array, self.grad_fn, self._requires_grad = array, grad_fn, grad_fn is not None
        self._grad = self._hooks = self._memory = None
        self.slot = slot
        return self

    @property
    def data(self):
        return Tensor._from(self.array)

    @data.setter
    def data(self, array):
        if isinstance(array, Tensor):
            array = array.array
        if not hasattr(array, "shape"):
            raise TypeError(f"data wants a Tensor or an array; got {type(array).__name__}. To "
                            "write a number into a tensor x, call x.fill_(number)")
        if array is not self.array and tuple(array.shape) != self.shape:
            raise ValueError(f"data wants the shape of its tensor, {tuple(self.shape)}; got shape "
                             f"{tuple(array.shape)}")
        self.array = array
        self.version += 1

    def array_to_change(self, who):
        """Returns the array of this tensor. Call this method before a write that the graph does not
        record, for example in a collective. Adds 1 to `version`. Raises RuntimeError if the graph
        needs to record the write. `who` is the name of the function in this error."""
        if self.grad_fn is not None or (self._requires_grad and is_grad_enabled()):
            kind = f"the result of {self.grad_fn}"
            if self.is_leaf:
                kind = "a leaf that wants a gradient"
            raise RuntimeError(f"{who} cannot write into {kind}, because the graph does not record "
                               "this write. Pass x.detach(), or use `with minidl.no_grad():`")
        self.version += 1
        return self.array

    @property
    def memory(self) -> Memory:
        """Returns the Memory object (saved.py) that this tensor shares with its views. Creates it
        on first use."""
        if self._memory is None:
            self._memory = Memory()
        return self._memory

    @property
    def version(self):
        """Returns the number of writes in place into this tensor's memory: through this tensor, its
        views, or the results of detach()."""
        return 0 if self._memory is None else self._memory.version

    @version.setter
    def version(self, n):
        self.memory.version = n

    @property
    def grad(self):
        return self._grad

    @grad.setter
    def grad(self, gradient):
        """Sets `grad`. gradient: None, or a Tensor or an array with the shape, dtype and device of
        this tensor."""
        if gradient is None or isinstance(gradient, Absent):
            self._grad = gradient
            return
        if not hasattr(gradient, "ndim"):
            raise TypeError("a gradient must be a Tensor, or an array of NumPy or CuPy; got "
                            f"{type(gradient).__name__}")
        if not isinstance(gradient, Tensor):
            gradient = Tensor(gradient)
        for name in ("shape", "dtype", "device"):
            wanted, got = getattr(self, name), getattr(gradient, name)
            if wanted != got:
                wanted, got = (tuple(v) if type(v) is Size else v for v in (wanted, got))
                raise ValueError(f"a gradient must have the {name} of its tensor, {wanted}; "
                                 f"got {name} {got}")
        self._grad = gradient

    def add_to_grad(self, gradient) -> None:
        """Adds a gradient array to `grad`. The first gradient becomes `grad` without a copy. Later
        gradients are added in place, so that views of `grad` stay valid."""
        if self._grad is None:
            self._grad = Tensor._from(gradient)
        else:
            self._grad.array += gradient

    @property
    def requires_grad(self):
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, flag):
        if flag and not backend.is_floating(self.dtype):
            raise TypeError("only floating-point tensors can require a gradient; this tensor has "
                            f"dtype {self.dtype}")
        if not flag and self.grad_fn is not None:
            raise RuntimeError("requires_grad cannot become False for the result of an op; use "
                               "x.detach()")
        self._requires_grad = bool(flag)

    def requires_grad_(self, requires_grad=True) -> "Tensor":
        self.requires_grad = requires_grad
        return self

    shape = property(lambda self: Size(self.array.shape))
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    device = property(lambda self: backend.device_of(self.array))
    is_leaf = property(lambda self: self.grad_fn is None)
    nbytes = property(lambda self: self.array.nbytes)

    def numel(self) -> builtins.int:  # `int` is also a method: minidl/ops/cast.py
        return int(self.array.size)

    nelement = numel

    def backward(self, gradient=None, retain_graph=False, create_graph=False) -> None:
        """Computes gradients. Adds d(loss)/d(leaf) to the `grad` of every leaf that requires a
        gradient.

        gradient: d(loss)/d(self), an array or a Tensor of this shape. If self has one element,
        `gradient` may be left out, and is then 1.
        retain_graph: keeps the saved arrays of the graph, so that backward can run again.
        create_graph: must be False, because minidl has no gradients of gradients."""
        refuse_create_graph(create_graph)
        walk([self], [gradient], retain_graph)

    def on_grad_ready(self, hook) -> "Handle":
        """Adds a hook to this leaf. Every backward that reaches the leaf calls `hook(leaf)` once,
        when the `grad` of the leaf is complete. Returns a Handle. handle.remove() removes the hook.
        Raises RuntimeError if this tensor is not a leaf that requires a gradient."""
        if not (self.is_leaf and self.requires_grad):
            raise RuntimeError("on_grad_ready is for leaves that require a gradient. For the "
                               "result of an op use register_hook")
        return self.add_leaf_hook(ReadyHook(hook))

    register_post_accumulate_grad_hook = on_grad_ready  # PyTorch's name

    def register_hook(self, hook) -> "Handle":
        """Adds a hook that may change the gradient of this tensor. Every backward that reaches the
        tensor calls `hook(gradient)` when the gradient is complete, before any other code uses it.
        If the hook returns a gradient, the returned gradient is used instead. Returns a Handle.
        handle.remove() removes the hook."""
        if not self.requires_grad:
            raise RuntimeError("register_hook: this tensor does not require a gradient")
        if self.grad_fn is not None:
            return self.grad_fn.add_gradient_hook(self.slot, GradientHook(hook))
        return self.add_leaf_hook(GradientHook(hook))

    def add_leaf_hook(self, hook) -> "Handle":
        """Adds a LeafHook to this leaf. Returns a Handle. handle.remove() removes the hook."""
        self._hooks = [*(self._hooks or ()), hook]

        def remove():
            self._hooks = [h for h in self._hooks or () if h is not hook]

        return Handle(remove)

    def retain_grad(self) -> None:
        """Makes backward keep the gradient of this tensor in `grad`. Without this call, backward
        keeps only the gradients of leaves."""
        if self.grad_fn is not None:
            self.grad_fn.retained = {**self.grad_fn.retained, self.slot: self}

    def detach(self) -> "Tensor":
        """Returns a tensor with the same memory, outside the graph. A write to one of the two
        tensors changes both."""
        x = Tensor._from(self.array)
        x._memory = self.memory
        return x

    def __deepcopy__(self, memo):
        """Returns a leaf with a copy of the array and of the gradient, and without hooks. Raises
        RuntimeError if this tensor is not a leaf."""
        if self.grad_fn is not None:
            raise RuntimeError(f"deepcopy wants a leaf; got the result of {self.grad_fn}. A copy "
                               "of this tensor would use the same graph as the tensor itself. "
                               "Copy x.detach()")
        twin = copy.copy(self)
        twin.array, twin._grad = copy.deepcopy((self.array, self._grad), memo)
        return twin

    def __getstate__(self):
        """Returns the part of a tensor that copy and pickle keep: the values. The gradient, the
        graph and the hooks are not kept, as in PyTorch."""
        slots = {"array": self.array, "_requires_grad": self._requires_grad, "_grad": None,
                 "grad_fn": None, "slot": 0, "_memory": None, "_hooks": None}
        return getattr(self, "__dict__", None), slots

    _xp = property(lambda self: backend.xp_of([self.array]))
    __hash__ = object.__hash__  # the object's identity, because == compares elements


class Absent:
    """Base class of objects that replace an array or a gradient if this rank does not hold it now
    (ZeRO). Using such an object raises an error, which tells where the array is."""


class LeafHook:
    """A hook on the gradient of a leaf. It has three methods, which are called at different times.
    A subclass replaces the methods that it needs.

    Add it with leaf.add_leaf_hook(hook). Data parallelism and ZeRO have such hooks (bucket.py,
    zero.py). A user's function is wrapped in a ReadyHook or a GradientHook."""

    def change(self, gradient):
        """Backward calls change() when the gradient is complete. Returns the array that backward
        then adds to `leaf.grad`, in place of `gradient`."""
        return gradient

    def gradient_ready(self, leaf):
        """Backward calls gradient_ready() after it has added the gradient to `leaf.grad`."""

    def cleared(self, leaf):
        """zero_grad() calls cleared() after it has cleared `leaf.grad`."""


class ReadyHook(LeafHook):
    """The hook of Tensor.on_grad_ready."""

    def __init__(self, hook):
        self.hook = hook

    def gradient_ready(self, leaf):
        self.hook(leaf)


class GradientHook(LeafHook):
    """The hook of Tensor.register_hook. A leaf keeps this hook in its list of hooks. A node keeps
    it by Function.add_gradient_hook."""

    def __init__(self, hook):
        self.hook = hook

    def change(self, gradient):
        """Calls the user's hook with `gradient`. Returns the array that backward then uses: the
        result of the hook, or `gradient` if the hook returns None."""
        changed = self.hook(Tensor._from(gradient))
        if changed is None:
            return gradient
        changed = backend.array_of(changed)
        if changed.shape != gradient.shape:
            raise RuntimeError(f"register_hook: the hook must return a gradient of shape "
                               f"{tuple(gradient.shape)}; got {tuple(changed.shape)}")
        return changed.astype(gradient.dtype, copy=False)


class Handle:
    """The result of adding a hook. handle.remove() or handle() removes the hook."""

    def __init__(self, remove):
        self.removing = remove

    def remove(self) -> None:
        self.removing()

    __call__ = remove


def wrapped(x) -> Tensor:
    """Returns x if it is a Tensor. Else returns a constant Tensor that shares the array x."""
    return x if isinstance(x, Tensor) else Tensor(x)
