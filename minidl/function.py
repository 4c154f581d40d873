"""A Function is one operation: its forward, its backward, and its place in the graph.

The plain form: minidl/plain/autograd.py. Read it first: it shows what a graph is, and why gradients
are added. This file differs in three ways:

- forward and backward take and return arrays. So backward records no graph, and can free memory
  while it runs. But minidl has no gradients of gradients.
- a node keeps an edge to the node that made each input, not the input itself. It keeps only the
  arrays that forward gave to `save`. So the memory of activations is the sum of the saved arrays,
  and can be counted.
- a forward may have options and several results, and some inputs may need no gradient.

Two calls can be skipped on a first reading. `current()` returns the Mode, the settings under which
ops run (mode.py). `pack` may replace a saved array until backward, for example by a copy in the
host's memory (saved.py).

    class Tanh(Function):
        def forward(self, x):
            y = self.xp.tanh(x)
            self.save(y)                   # y is enough: d tanh / dx = 1 - y * y
            return y

        def backward(self, gy):
            y, = self.saved
            return gy * (1 - y * y)

    y = Tanh.apply(x)                      # a Tensor. Its grad_fn is the new node

All ops in minidl/ops are such classes.
Source: Griewank & Walther, "Evaluating Derivatives" (2008).
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
    """Runs forward on the arrays of `inputs`. Returns the result as a Tensor, or a tuple of
    Tensors. inputs: Tensors, arrays and numbers. Arrays and numbers are constants. If an input
    requires a gradient, the call is recorded in the graph."""
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
    """Returns the edge from a node to its input x: None for a constant, x itself for a leaf, else
    (Function, output slot). Raises RuntimeError if x is an old view, and a later write like
    x[index] = y has changed its memory (saved.py)."""
    if not isinstance(x, Tensor):
        return None
    if x._memory is not None and x._memory.replaced:
        raise RuntimeError(REPLACED)
    if not x.requires_grad:
        return None
    return x if x.is_leaf else (x.grad_fn, x.slot)


def join(node, edges, outputs):
    """Puts the node into the graph. Its depth is one more than the largest depth of the nodes that
    made its inputs."""
    producers = [edge[0] for edge in edges if type(edge) is tuple]
    node.edges = edges
    node.depth = 1 + max([producer.depth for producer in producers], default=0)
    node.output_meta = [(y.array.shape, y.dtype) for y in outputs]


class Function:
    """One operation. An instance is one node of the graph.

    A subclass writes two methods that work on arrays. The array library is `self.xp`, numpy or
    cupy:

        forward(self, *inputs, **options)  -> array or tuple of arrays
        backward(self, *output_gradients)  -> one gradient for each input, or None for no gradient

    forward passes the arrays that backward needs to `self.save(...)`. backward finds them in
    `self.saved`. No other array is kept. `self.needs[i]` is True if input i needs a gradient. It is
    always False under no_grad, so forward can skip work that only backward uses. If forward has
    broadcast or cast an input, backward may return this input's gradient in the broadcast shape and
    in the promoted dtype. The walk then sums and casts the gradient. Do not write into output
    gradients: another node may hold the same array.

    PyTorch's form also works: static methods with a ctx, on Tensors (static_forms.py)."""

    differentiable = True  # False if results are integers or bools (argmax, <): they need no graph
    precision = "grey"  # the op's list under autocast: white, black, grey or banned (amp.py)
    # promotes: "same" casts the inputs to one dtype. "float" also casts integer inputs to float32.
    promotes = None
    arithmetic = True  # False if forward only moves elements: no dtype is cast then (bf16.py)
    xp = np
    edges = saved_inputs = ()
    # The defaults below belong to the class. A node replaces them and never writes into them.
    retained = {}  # {index of an output: the Tensor whose `grad` is kept} (Tensor.retain_grad)
    gradient_hooks = ()  # pairs (index of an output, GradientHook), from Tensor.register_hook
    _saved = ()  # the arguments of `save`; `pack` replaces some entries (saved.py)
    saved = Saved()  # the arrays of `_saved`

    apply = classmethod(apply)

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        static_forms.adapt(cls)

    def save(self, *arrays: Any) -> None:
        """Keeps these arrays for backward, which finds them in `self.saved`. An entry may be None.
        Call it only once, in forward."""
        self._saved = arrays

    def forward(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define the method forward")

    def backward(self, *output_gradients: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define the method backward")

    def add_gradient_hook(self, slot, hook):
        """Adds a GradientHook, which may change the gradient of the output `slot`. Returns a
        Handle. handle.remove() removes the hook."""
        self.gradient_hooks = (*self.gradient_hooks, (slot, hook))

        def remove():
            self.gradient_hooks = tuple(h for h in self.gradient_hooks if h[1] is not hook)

        return Handle(remove)

    def __repr__(self):
        return f"<{type(self).__name__}>"


# This is the faster version of `apply`. No other function of minidl is written twice. The tests of
# the engine run with both versions.
Function.apply = classmethod(fast_apply.apply)
