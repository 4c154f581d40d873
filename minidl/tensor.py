"""A tensor: an array, whether it wants a gradient, and which Function made it.

    x = minidl.tensor([1.0, 2.0], requires_grad=True)     a leaf: grad_fn is None
    y = x * x                                             y.grad_fn is the node Mul, of slot 0
    y.sum().backward()                                    x.grad is tensor([2., 4.])

Backward counts first how many functions feed each leaf, so `on_grad_ready` fires exactly once per
leaf, at the moment its gradient is complete: data parallelism and ZeRO live on it.
The nodes are minidl/function.py, the walk is minidl/backward.py; the ops, methods and operators
among them (x.sum(dim=1), x + y, x += 1, x.item()), are in minidl/ops.
Test: tests/test_tensor.py   Tutorial: tutorials/01_autograd.py
"""

import copy
import math

import numpy as np

from minidl import backend
from minidl.backend import DEFAULT_FLOAT, is_floating
from minidl.backward import refuse_create_graph, walk
from minidl.mode import is_grad_enabled
from minidl.saved import Memory


class Size(tuple):
    """A shape: a tuple of integers that prints as PyTorch's."""

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
    """An array, and the way back from it.

    array:          the array (NumPy or CuPy). Code inside of minidl works on it.
    data:           a Tensor of the same memory, outside the graph. Assigning to it moves `version`,
                    `w.data -= lr * w.grad` too; writing into it (`w.data[0] = 1`) does not, as in
                    PyTorch.
    grad:           a Tensor of the same shape and dtype, or None. Backward *adds* to it.
    requires_grad:  whether backward should reach it.
    grad_fn, slot:  the Function that made it and which of its outputs it is; None for a leaf."""

    __slots__ = ("array", "_grad", "_requires_grad", "grad_fn", "slot", "_memory", "_hooks",
                 "__weakref__")

    def __init__(self, data, requires_grad=False, *sizes):
        """`data`: an array, which is shared, not copied (`minidl.tensor` copies). PyTorch's two
        other forms are known: of a list, a float32 copy; of sizes, Tensor(2, 3), any values."""
        if isinstance(data, (list, tuple)):
            data = np.array(data, DEFAULT_FLOAT)
        elif type(data) is int:
            sizes = (data,) if requires_grad is False else (data, requires_grad, *sizes)
            data, requires_grad, sizes = np.empty(sizes, DEFAULT_FLOAT), False, ()
        if sizes:
            raise TypeError(f"Tensor(array, requires_grad): got {len(sizes)} arguments more")
        if not hasattr(data, "ndim") or isinstance(data, (np.generic, Tensor)):
            raise TypeError(f"Tensor wraps a NumPy or CuPy array, got {type(data).__name__}; "
                            "use minidl.tensor(...) for lists, numbers and copies")
        self.array = data
        self._grad = self.grad_fn = self._hooks = self._memory = None
        self.slot = 0
        self.requires_grad = requires_grad

    @staticmethod
    def _from(array, grad_fn=None, slot=0):
        """The tensor of a result; one of integers has no way back."""
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
            raise TypeError(f"data wants a Tensor or an array, got {type(array).__name__}; to "
                            "write a number into it: x.fill_(number)")
        if array is not self.array and tuple(array.shape) != self.shape:
            raise ValueError(f"data of shape {tuple(self.shape)} cannot become "
                             f"{tuple(array.shape)}")
        self.array = array
        self.version += 1

    def array_to_change(self, who):
        """Returns the array for `who`, a function that writes into it outside of the graph (a
        collective). Counts as a change in place. RuntimeError if a graph would not see it."""
        if self.grad_fn is not None or (self._requires_grad and is_grad_enabled()):
            kind = f"the result of {self.grad_fn}"
            if self.is_leaf:
                kind = "a leaf that wants a gradient"
            raise RuntimeError(f"{who} of {kind} would not be in the graph. Pass x.detach(), "
                               "or use `with minidl.no_grad():`")
        self.version += 1
        return self.array

    @property
    def memory(self) -> Memory:
        """The Memory (saved.py) that this tensor shares with its views; made when it is asked
        for."""
        if self._memory is None:
            self._memory = Memory()
        return self._memory

    @property
    def version(self):
        """How often this memory was written in place, through this tensor, a view or detach()."""
        return 0 if self._memory is None else self._memory.version

    @version.setter
    def version(self, n):
        self.memory.version = n

    @property
    def grad(self):
        return self._grad

    @grad.setter
    def grad(self, gradient):
        """gradient: a Tensor or an array of this shape, dtype and device; or None."""
        if gradient is None or isinstance(gradient, Absent):
            self._grad = gradient
            return
        if not hasattr(gradient, "ndim"):
            raise TypeError("a gradient is a Tensor or wraps a NumPy or CuPy array, got "
                            f"{type(gradient).__name__}")
        if not isinstance(gradient, Tensor):
            gradient = Tensor(gradient)
        for name in ("shape", "dtype", "device"):
            wanted, got = getattr(self, name), getattr(gradient, name)
            if wanted != got:
                wanted, got = (tuple(v) if type(v) is Size else v for v in (wanted, got))
                raise ValueError(f"a gradient has the {name} of its tensor: wants {name} {wanted}, "
                                 f"got {got}")
        self._grad = gradient

    def add_to_grad(self, gradient) -> None:
        """Adds a gradient array to `grad`, in place so that views of it stay views. The first one
        becomes `grad` without a copy."""
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
            raise TypeError(f"only floating tensors can require a gradient, this is {self.dtype}")
        if not flag and self.grad_fn is not None:
            raise RuntimeError("requires_grad of a result cannot be cleared; use x.detach()")
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

    def numel(self) -> int:
        return int(self.array.size)

    nelement = numel

    def backward(self, gradient=None, retain_graph=False, create_graph=False) -> None:
        """Add d(self)/d(leaf) to the `grad` of every leaf that requires it.

        gradient: array or Tensor of this shape, d(something)/d(self); 1 if self has one element.
        retain_graph: keep what the Functions saved, so that backward may run again.
        create_graph: refused if True, as there are no gradients of gradients here."""
        refuse_create_graph(create_graph)
        walk([self], [gradient], retain_graph)

    def on_grad_ready(self, hook) -> "Handle":
        """Call `hook(leaf)` once in every backward that reaches this leaf, when its `grad` is
        complete; returns a Handle, whose remove() ends that."""
        if not (self.is_leaf and self.requires_grad):
            raise RuntimeError("on_grad_ready is for leaves that require a gradient")
        self._hooks = [*(self._hooks or ()), hook]

        def remove():
            self._hooks = [h for h in self._hooks or () if h is not hook]

        return Handle(remove)

    register_post_accumulate_grad_hook = on_grad_ready  # PyTorch's name for it

    def register_hook(self, hook) -> "Handle":
        """Call `hook(gradient)` in every backward that reaches this tensor, when the gradient is
        complete and before anybody uses it. What the hook returns, if not None, takes its place.
        Returns a Handle, whose remove() ends that."""
        if not self.requires_grad:
            raise RuntimeError("register_hook: this tensor does not require a gradient")
        if self.grad_fn is not None:
            return self.grad_fn.add_gradient_hook(self.slot, GradientHook(hook))
        self._hooks = [*(self._hooks or ()), GradientHook(hook)]
        mine = self._hooks[-1]

        def remove():
            self._hooks = [h for h in self._hooks or () if h is not mine]

        return Handle(remove)

    def retain_grad(self) -> None:
        """Keep the gradient of this result, too, in `grad` (for looking at the graph)."""
        if self.grad_fn is not None:
            self.grad_fn.retained = {**self.grad_fn.retained, self.slot: self}

    def detach(self) -> "Tensor":
        """The same memory outside the graph. Writing into either of them is a change of both."""
        x = Tensor._from(self.array)
        x._memory = self.memory
        return x

    def __deepcopy__(self, memo):
        """A leaf with an array and a gradient of its own, outside of the graph; its hooks stay."""
        if self.grad_fn is not None:
            raise RuntimeError(f"deepcopy of the result of {self.grad_fn}: a copy would lead into "
                               "the graph of the original; copy x.detach()")
        twin = copy.copy(self)
        twin.array, twin._grad = copy.deepcopy((self.array, self._grad), memo)
        return twin

    def __getstate__(self):
        """What copy and pickle take, as PyTorch: the values, and no gradient, graph or hooks."""
        slots = {"array": self.array, "_requires_grad": self._requires_grad, "_grad": None,
                 "grad_fn": None, "slot": 0, "_memory": None, "_hooks": None}
        return getattr(self, "__dict__", None), slots

    _xp = property(lambda self: backend.xp_of([self.array]))
    __hash__ = object.__hash__  # by identity, although == compares elements


class Absent:
    """Base of what takes the place of an array or a gradient that is elsewhere (ZeRO). Its use
    raises an error that says where."""


class GradientHook:
    """A hook of Tensor.register_hook. It stands among the hooks of a leaf, or in a node, and acts
    in `change`."""

    def __init__(self, hook):
        self.hook = hook

    def change(self, gradient):
        """Returns the gradient array that goes on: what the hook made of this one."""
        changed = self.hook(Tensor._from(gradient))
        if changed is None:
            return gradient
        changed = backend.array_of(changed)
        if changed.shape != gradient.shape:
            raise RuntimeError(f"register_hook: the hook returned a gradient of shape "
                               f"{tuple(changed.shape)}, wanted {tuple(gradient.shape)}")
        return changed.astype(gradient.dtype, copy=False)

    def __call__(self, leaf):
        """Does nothing: the gradient was changed before it was added to the leaf's."""


class Handle:
    """What the registration of a hook returns: handle.remove(), or handle(), removes the hook."""

    def __init__(self, remove):
        self.removing = remove

    def remove(self) -> None:
        self.removing()

    __call__ = remove


def wrapped(x) -> Tensor:
    """Returns x if it is a Tensor, else a constant Tensor of the array x, in the same memory."""
    return x if isinstance(x, Tensor) else Tensor(x)
