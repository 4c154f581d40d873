"""A Function is one operation: its forward, its backward, and its place in the graph.

    a ──┐                        forward:  each Function is a node; it keeps one edge per input
        ├─► Mul ──► Sum ──► loss           (its producer, or a leaf) and only what it `save`d
    b ──┘                        backward: from the gradient of what it made, and what it saved,
                                           the gradient of each input

So activation memory is the sum of what Functions saved: countable, freed as backward passes.

    class Tanh(Function):
        def forward(self, x):
            y = self.xp.tanh(x)
            self.save(y)                   # y alone: d tanh / dx = 1 - y y
            return y

        def backward(self, gy):
            y, = self.saved
            return gy * (1 - y * y)

    y = Tanh.apply(x)                      # a Tensor whose grad_fn is that node

All of minidl/ops are such classes, 5-15 lines each.
Source: Griewank & Walther, "Evaluating Derivatives" (2008), reverse mode.
Test: tests/test_function.py   Tutorial: tutorials/01_autograd.py
"""

import re
from contextvars import ContextVar

import numpy as np

from minidl import backend, memory
from minidl.backward import is_grad_enabled
from minidl.precision import bf16
from minidl.tensor import Tensor

# How a forward runs: None is plainly, else run(node, arrays, options) -> result (recompute.py).
runner = ContextVar("minidl.runner", default=None)
# In which precision a forward runs: None is its inputs' own, else an amp.Autocast chooses.
autocasting = ContextVar("minidl.autocasting", default=None)
# Where what a forward saved waits: None is where it is, else an activation_offload.Host stores it.
storing = ContextVar("minidl.storing", default=None)


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
    precision = "grey"  # its class under autocast: white, black, grey or banned (amp.py)
    promotes = None  # "same": inputs cast to one dtype; "float": and integers to float32
    arithmetic = True  # False: elements only move, so any dtype will do as it is (bf16.py)
    edges = ()
    retained = {}  # slot -> Tensor whose `grad` is to be kept; replaced, never written into
    _saved = ()  # what `save` was given; a StandIn for what may be elsewhere by then

    @classmethod
    def apply(cls, *inputs, **options):
        """Run forward on the arrays of `inputs` (Tensors, arrays and numbers: the latter two are
        constants) and return the result as Tensor(s), recorded in the graph if need be."""
        node = cls()
        arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
        node.xp = backend.xp_of(arrays, cls.__name__)
        if cls.differentiable and is_grad_enabled():
            node.needs = [isinstance(x, Tensor) and x._requires_grad for x in inputs]
        else:
            node.needs = [False] * len(inputs)
        try:
            result = node._run(inputs, arrays, options)
        except (ValueError, IndexError, TypeError) as error:
            raise _explained(error, node, arrays) from error
        # NumPy turns 0-d results into scalars: back to arrays
        if type(result) is tuple:
            outputs = [y if type(y) is np.ndarray else node.xp.asarray(y) for y in result]
        else:
            outputs = [result if type(result) is np.ndarray else node.xp.asarray(result)]
        recorded = True in node.needs
        if recorded:
            node._link(inputs, arrays, outputs)
        if (ledger := memory.recording.get()) is not None:
            ledger.forward(node, arrays, outputs)
        made_by = node if recorded else None
        if type(result) is not tuple:
            return Tensor._from(outputs[0], made_by)
        return tuple(Tensor._from(y, made_by, slot) for slot, y in enumerate(outputs))

    def _run(self, inputs, arrays, options):
        """forward, in the precision and in the manner that the blocks around the call ask for."""
        cls = type(self)
        if (autocast := autocasting.get()) is not None:
            arrays = autocast.cast(cls, inputs, arrays)
        if cls.promotes:
            arrays = backend.promote(arrays, cls.promotes == "float")
        if cls.arithmetic and bf16.involved(arrays, options):
            self.__class__ = bf16.in_float32(cls)
        if (run := runner.get()) is not None:
            return run(self, arrays, options)
        return self.forward(*arrays, **options)

    def save(self, *arrays):
        self._saved = arrays

    @property
    def saved(self):
        """What forward saved, for backward."""
        if any(isinstance(s, StandIn) for s in self._saved):
            return tuple(s.array() if isinstance(s, StandIn) else s for s in self._saved)
        return self._saved

    def forward(self, *inputs, **options):
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *output_gradients):
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def _link(self, inputs, arrays, outputs):
        """Become a node: an edge per input, the shapes to sum gradients back to, the versions of
        the saved inputs, and a depth greater than every producer's."""
        self.edges, self.input_meta, self.saved_inputs = [], [], []
        depth = 0
        for x, array, needed in zip(inputs, arrays, self.needs):
            if self._saved and isinstance(x, Tensor):
                self._note_saved(x, array, by_name=needed and x.grad_fn is None)
            if not needed:
                self.edges.append(None)
                self.input_meta.append(None)
                continue
            if x.grad_fn is None:
                self.edges.append(x)
            else:
                self.edges.append((x.grad_fn, x.slot))
                depth = max(depth, x.grad_fn.depth)
            self.input_meta.append((array.shape, array.dtype))
        self.depth = depth + 1
        self.output_meta = [(y.shape, y.dtype) for y in outputs]
        if self._saved and (host := storing.get()) is not None:
            host.store(self, inputs)

    def _note_saved(self, x, array, by_name):
        """If input x was saved, remember its version. by_name: keep the leaf, not its array, which
        may be elsewhere between forward and backward (parallel/zero3.py frees weights)."""
        shared = False
        for i, s in enumerate(self._saved):
            if s is array or backend.same_memory(s, array):
                shared = True
                if by_name and (s is array or backend.is_reshaped(s, array)):
                    self._saved = (*self._saved[:i], Leaf(x, s.shape), *self._saved[i + 1:])
        if shared:
            self.saved_inputs.append((x, x.version))

    def _check(self):
        """Refuse to differentiate through what is gone or was overwritten."""
        if self._saved is None:
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


class StandIn:
    """In `_saved` in place of an array; `array()` gives it, for backward."""


class Leaf(StandIn):
    """The array that a leaf has by the time of backward, in this shape."""

    def __init__(self, tensor, shape):
        self.tensor, self.shape = tensor, shape

    def array(self):
        if self.tensor.bring is not None:
            self.tensor.bring()
        array = self.tensor._data
        return array if array.shape == self.shape else array.reshape(self.shape)


def op_name(cls):
    """The name under which a user knows a Function: LeakyRelu -> leaky_relu, or its `op`."""
    return vars(cls).get("op") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


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
