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

All of minidl/ops are such classes. Source: Griewank & Walther, "Evaluating Derivatives" (2008).
Test: tests/test_function.py   Tutorial: tutorials/01_autograd.py
"""

import re
from functools import partial
from sys import modules

import numpy as np

from minidl import backend
from minidl.backend import DEFAULT_FLOAT
from minidl.mode import current
from minidl.precision import bf16
from minidl.saved import Saved, pack
from minidl.tensor import Tensor


class Function:
    """One operation; an instance is one node of the graph.

    A subclass writes two methods over arrays, with `self.xp` (numpy or cupy) as the library:

        forward(self, *inputs, **options)  -> array or tuple of arrays
        backward(self, *output_gradients)  -> one gradient per input, or None where there is none

    `self.save(...)` in forward keeps what `self.saved` gives back in backward, and nothing else is
    kept. `self.needs[i]` says whether input i wants a gradient (never under no_grad, so forward
    can skip what only backward uses). A gradient of a broadcast input may be returned in the
    broadcast shape and in the promoted dtype: the walk sums and casts it. Output gradients are
    read-only by convention: another node may hold the same array."""

    differentiable = True  # False: integer or bool results, no graph (argmax, comparisons)
    precision = "grey"  # its class under autocast: white, black, grey or banned (amp.py)
    promotes = None  # "same": inputs cast to one dtype; "float": and integers to float32
    arithmetic = True  # False: elements only move, so any dtype will do as it is (bf16.py)
    xp = np
    edges = saved_inputs = ()
    retained = {}  # slot -> Tensor whose `grad` is to be kept; replaced, never written into
    _saved = ()  # what `save` was given; a Pack for what may be elsewhere by then (saved.py)
    saved = Saved()  # the same, unpacked

    @classmethod
    def apply(cls, *inputs, **options):
        """Run forward on the arrays of `inputs` (Tensors, arrays and numbers: the latter two are
        constants) and return the result as Tensor(s), recorded in the graph if need be."""
        mode = current()
        node = cls()
        records = mode.grad and cls.differentiable
        arrays = []
        needs = []
        edges = []
        depth = 0  # of the deepest producer
        wanted = False  # whether any input wants a gradient
        # whether forward runs as it is: no block around asks for more, all arrays are float32
        plain = mode.autocast is None and mode.around is None

        for x in inputs:
            edge = None
            if isinstance(x, Tensor):
                array = x.array
                arrays.append(array)
                plain = plain and array.dtype is DEFAULT_FLOAT
                if records and x._requires_grad:
                    wanted = True
                    edge = x  # a leaf
                    producer = x.grad_fn
                    if producer is not None:
                        edge = producer, x.slot
                        if producer.depth > depth:
                            depth = producer.depth
            else:
                arrays.append(x)
                plain = plain and (x is None or type(x) is float)
            edges.append(edge)
            needs.append(edge is not None)
        node.needs = needs

        try:
            if plain and "cupy" not in modules and not (options and "ml_dtypes" in modules):
                if options:
                    result = node.forward(*arrays, **options)
                else:
                    result = node.forward(*arrays)
            else:
                run = node._run if "cupy" not in modules else backend.placed(node, arrays)
                result = run(mode, inputs, arrays, options)
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            explained = _explained(error, node, arrays)
            if explained is error:
                raise  # from itself would be a circle, which readers of causes never leave
            raise explained from error

        outputs = result if type(result) is tuple else (result,)
        if type(result) is not np.ndarray:  # NumPy makes 0-d results scalars
            as_array = np.asarray if node.xp is np else backend.an_array
            outputs = tuple(map(as_array, outputs))

        if wanted:  # the node joins the graph, deeper than every producer
            node.edges = edges
            node.depth = depth + 1
            if outputs[0] is result:
                node.output_meta = [(result.shape, result.dtype)]
            else:
                node.output_meta = [(y.shape, y.dtype) for y in outputs]
            if node._saved:
                pack(node, inputs, arrays, outputs, mode.packers)
        if mode.ledger is not None:
            mode.ledger.forward(node, arrays, outputs)

        grad_fn = node if wanted else None
        if type(result) is not tuple:
            return Tensor._from(outputs[0], grad_fn)
        return tuple(Tensor._from(y, grad_fn, i) for i, y in enumerate(outputs))

    def _run(self, mode, inputs, arrays, options):
        """forward, in the precision and in the manner that the blocks around the call ask for."""
        cls = type(self)
        forward = self.forward
        if mode.autocast is not None:
            arrays = mode.autocast.cast(cls, inputs, arrays)
        if cls.promotes is not None:
            arrays = backend.promote(arrays, cls.promotes == "float")
        if "ml_dtypes" in modules and cls.arithmetic and bf16.involved(arrays, options):
            forward = partial(bf16.forward, self)
        if mode.around is not None:
            return mode.around(self, forward, arrays, options)
        return forward(*arrays, **options)

    def save(self, *arrays):
        """In forward: keep these arrays (None for none); backward finds them in `self.saved`."""
        self._saved = arrays

    def forward(self, *inputs, **options):
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *output_gradients):
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def __repr__(self):
        return f"<{type(self).__name__}>"


def op_name(cls):
    """The name under which a user knows a Function: LeakyRelu -> leaky_relu, or its `op`."""
    return vars(cls).get("op") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def _explained(error, node, arrays):
    """The error of a forward, naming the op and the shapes it was given."""
    if getattr(error, "explained", False):  # by an op that ran inside this one
        return error
    if isinstance(error, AttributeError):  # a list has no shape
        kinds = [type(x).__name__ for x in arrays if isinstance(x, (list, tuple, str))]
        if not kinds:
            return error
        error = TypeError(f"wants tensors or arrays, got {kinds[0]}; minidl.tensor(...) makes one")
    op = getattr(node, "name", None) or op_name(type(node))
    text = str(error)
    shapes = " and ".join(str(tuple(x.shape)) for x in arrays if hasattr(x, "shape"))
    if node.promotes and "broadcast" in text:
        text = f"{op}: shapes {shapes} do not broadcast"
    elif not text.startswith(f"{op}:"):
        text = f"{op}: {text} (input shapes: {shapes})"
    kind = next(k for k in (IndexError, ValueError, TypeError) if isinstance(error, k))
    explained = kind(text)
    explained.explained = True
    return explained
