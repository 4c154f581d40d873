"""A Function is one operation: its forward, its backward, and its place in the graph.

The plain form: minidl/plain/autograd.py. Read it first: it shows what a graph is, and why gradients
are added. Here:

- forward and backward take and return arrays. So backward records no graph and can free memory
  while it runs; in exchange there are no gradients of gradients.
- a node keeps an edge to the producer of each input, not the input, and of the arrays only those
  that it `save`d. So activation memory is the sum of what Functions saved, and can be counted.
- options, several results, and inputs that need no gradient.

On a first reading two things may stay closed: `current()` gives the Mode, the settings under which
ops run (mode.py), and `pack` lets a saved array wait elsewhere until backward (saved.py).

    class Tanh(Function):
        def forward(self, x):
            y = self.xp.tanh(x)
            self.save(y)                   # y alone: d tanh / dx = 1 - y y
            return y

        def backward(self, gy):
            y, = self.saved
            return gy * (1 - y * y)

    y = Tanh.apply(x)                      # a Tensor whose grad_fn is that node

All of minidl/ops are such classes. Source: Griewank & Walther, "Evaluating Derivatives" (2008).
Test: tests/test_function.py   Tutorial: tutorials/01_autograd.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl import fast_apply, static_forms
from minidl.forward import REPLACED, as_arrays, run, share_memory
from minidl.mode import current
from minidl.saved import Saved, pack
from minidl.tensor import Handle, Tensor

if TYPE_CHECKING:
    from typing import Any


def apply(cls, *inputs, **options) -> Tensor:
    """Run forward on the arrays of `inputs` (Tensors, arrays and numbers: the latter two are
    constants) and return the result as Tensor(s), recorded in the graph if need be."""
    mode = current()
    node = cls()
    arrays = [x.array if isinstance(x, Tensor) else x for x in inputs]
    records = mode.grad and cls.differentiable
    edges = [edge_from(x) if records else None for x in inputs]
    node.needs = [edge is not None for edge in edges]
    wanted = any(node.needs)

    result = run(node, mode, inputs, arrays, options)

    outputs = [Tensor._from(y, node if wanted else None, slot)
               for slot, y in enumerate(as_arrays(node, result))]
    share_memory(outputs, inputs)
    if wanted:
        join(node, edges, outputs)
        pack(node, inputs, arrays, outputs, mode.packers)
    if mode.ledger is not None:
        mode.ledger.forward(node, arrays, [y.array for y in outputs])
    return tuple(outputs) if type(result) is tuple else outputs[0]


def edge_from(x):
    """The way back from an input: None for a constant, a leaf, or (Function, output slot)."""
    if not isinstance(x, Tensor):
        return None
    if x._memory is not None and x._memory.replaced:
        raise RuntimeError(REPLACED)
    if not x.requires_grad:
        return None
    return x if x.is_leaf else (x.grad_fn, x.slot)


def join(node, edges, outputs):
    """The node joins the graph, deeper than the producers of all its inputs."""
    producers = [edge[0] for edge in edges if type(edge) is tuple]
    node.edges = edges
    node.depth = 1 + max([producer.depth for producer in producers], default=0)
    node.output_meta = [(y.array.shape, y.dtype) for y in outputs]


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

    PyTorch's form, static methods of a ctx on Tensors, works as well (static_forms.py)."""

    differentiable = True  # False: integer or bool results, no graph (argmax, comparisons)
    precision = "grey"  # its class under autocast: white, black, grey or banned (amp.py)
    promotes = None  # "same": inputs cast to one dtype; "float": and integers to float32
    arithmetic = True  # False: elements only move, so any dtype will do as it is (bf16.py)
    xp = np
    edges = saved_inputs = ()
    retained = {}  # slot -> Tensor whose `grad` is to be kept; replaced, never written into
    gradient_hooks = ()  # (slot, GradientHook) of Tensor.register_hook; replaced, not written into
    _saved = ()  # what `save` was given; a Pack for what may be elsewhere by then (saved.py)
    saved = Saved()  # the same, unpacked

    apply = classmethod(apply)

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        static_forms.adapt(cls)

    def save(self, *arrays: Any) -> None:
        """In forward: keep these arrays (None for none); backward finds them in `self.saved`."""
        self._saved = arrays

    def forward(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *output_gradients: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def add_gradient_hook(self, slot, hook):
        """The hook may change the gradient of an output. Returns a Handle, to remove() it."""
        self.gradient_hooks = (*self.gradient_hooks, (slot, hook))

        def remove():
            self.gradient_hooks = tuple(h for h in self.gradient_hooks if h[1] is not hook)

        return Handle(remove)

    def __repr__(self):
        return f"<{type(self).__name__}>"


# The same in one loop, for speed: the only function of minidl that is written twice. The tests of
# the engine run with both.
Function.apply = classmethod(fast_apply.apply)
