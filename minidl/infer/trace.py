"""Makes the graph of a model: runs the model once, and records every Function that it applies.

The plain form: minidl/plain/compiler.py, `trace`. This file records the model's own Tensors and
ops. A second run shows if the model applies the same ops to other numbers.

    graph = infer.trace(model.eval(), x)

A recorder intercepts every op (Mode.intercept) and sees the arrays that the op reads. If an earlier
op made the array, the graph refers to the result of the earlier op. If the array belongs to a
parameter, the graph refers to the parameter. Every other array is a constant. Such a graph is right
only if the model applies the same ops to every input of this shape. So the model runs a second
time, with other numbers. If an op, an attribute or a constant differs, trace raises an error that
names the difference. Last, trace runs the graph by eager ops on the second input, and compares the
results with the model's results. The results differ if the model writes into an array in place.
Such a write is not a Function, so the graph does not contain it.

Test: tests/infer/test_trace.py
"""

import numpy as np

from minidl import backend
from minidl.cuda.launch import contiguous
from minidl.infer.graph import Graph, Node, Value, name_of
from minidl.mode import current, running
from minidl.tensor import Tensor

RANDOM = ("dropout", "bernoulli", "multinomial")


def trace(model, *inputs, other=None):
    """Returns the Graph of model(*inputs).

    model: any function of Tensors, or a Module in eval mode, on the CPU.
    inputs: Tensors or NumPy arrays.
    other: the inputs of the second run, with the same shapes and dtypes. The default is `inputs`
           with the elements in another order. Pass `other` if a new order changes nothing, for
           example if all elements are 0.

    Raises ValueError if the two runs differ, if the model is in training mode, or if the model
    draws random numbers. Raises TypeError if the model or an input is on a GPU."""
    refuse_gpu("trace", model, *inputs)
    arrays = [contiguous(np, np.asarray(backend.array_of(x))) for x in inputs]
    if other is None:
        rng = np.random.default_rng(0)
        other = [rng.permutation(x.reshape(-1)).reshape(x.shape) for x in arrays]
    other = [np.asarray(backend.array_of(x)) for x in other]
    training = [name for name, m in _modules(model) if m.training]
    if training:
        raise ValueError("trace: the model is in training mode (first module: "
                         f"{training[0] or 'the model itself'}); a plan is for inference. Call "
                         "model.eval() first")
    graph, expected = recorded(model, arrays, other, [isinstance(x, Tensor) for x in inputs])
    graph.guards, single = Guards(model), graph.single
    again = graph.run(*other)
    for y, want in zip((again,) if single else again, expected, strict=True):
        if y.shape != want.shape or not np.allclose(y, want, 1e-4, 1e-5, equal_nan=True):
            raise ValueError("trace: the recorded operations and the model give different results. "
                             "So the model changes an array in place, or computes outside of "
                             "minidl's ops. Use only minidl's ops, and do not write to an array")
    return graph


def recorded(model, arrays, other, are_tensors):
    """Returns two things: the Graph of model(*arrays), without guards, and the model's results for
    the inputs `other`. are_tensors: for each input True if the model gets a Tensor, False if it
    gets an array."""
    first, results, single = _record(model, arrays, are_tensors)
    second, expected, _ = _record(model, other, are_tensors)
    _compare(first, second)
    return Graph(first.inputs, first.nodes, [first.value(y) for y in results],
                 single=single).verify(), expected


def refuse_gpu(what, model, *inputs):
    """Raises TypeError if the model or an input is on a GPU."""
    arrays = *inputs, *(p for _, p in getattr(model, "named_parameters", list)())
    if any(hasattr(backend.array_of(x), "__cuda_array_interface__") for x in arrays):
        raise TypeError(f"{what}: wanted a model and inputs on the CPU, because a plan runs there; "
                        "got arrays on a GPU. Pass model.cpu() and x.cpu(). Or stay on the GPU: "
                        "under no_grad(), minidl.graphed(lambda: model(x)) replays the model as a "
                        "CUDA graph")


def _modules(model):
    return list(model.named_modules()) if hasattr(model, "named_modules") else []


def _record(model, arrays, are_tensors):
    """Runs the model and records it. Returns (the Recorder, the results, True if the model returned
    one Tensor and not a tuple)."""
    arrays = [x.copy() for x in arrays]
    recorder = Recorder(model, arrays)
    given = [Tensor(x) if is_one else x for x, is_one in zip(arrays, are_tensors, strict=True)]
    if current().autocast is not None:
        raise ValueError("trace: autocast is on, but a plan computes in float32. Call trace "
                         "outside of the autocast block")
    with running(grad=False, intercept=recorder):
        result = model(*given)
    results = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(y, Tensor) for y in results):
        raise TypeError("trace: the model returns a "
                        f"{type(result).__name__}; want a Tensor or a tuple of Tensors")
    return recorder, [y.array for y in results], not isinstance(result, tuple)


class Recorder:
    """A Recorder is called instead of the forward of each Function (Mode.intercept). The call runs
    this forward and records a Node.

    inputs: the Values of the inputs. nodes: the Nodes so far. known: {id of an array: its
    Value}."""

    def __init__(self, model, arrays):
        # alive: holds the arrays, so that no new array gets the id of an old array
        self.nodes, self.known, self.alive = [], {}, []
        self.inputs = [self._know(x, Value(x.shape, x.dtype, name)) for x, name in zip(
            arrays, ["x"] if len(arrays) == 1 else [f"x{i}" for i in range(len(arrays))])]
        for table in ("named_parameters", "named_buffers"):
            for name, p in getattr(model, table, lambda: ())():
                data = backend.array_of(p)
                self._know(data, Value(data.shape, data.dtype, name, data))

    def _know(self, array, value):
        self.known[id(array)] = value
        self.alive.append(array)
        return value

    def value(self, x):
        """Returns the Value of an input of an op. An array that is not known yet becomes a
        constant. A Python number is returned unchanged."""
        if isinstance(x, np.generic):
            x = np.asarray(x)
        if not isinstance(x, np.ndarray):
            return x
        found = self.known.get(id(x))
        return found or self._know(x, Value(x.shape, x.dtype, None, x))

    def __call__(self, node, forward, arrays, options):
        cls = type(node)
        if name_of(cls, options) in RANDOM:
            raise ValueError(f"trace: the model draws random numbers ({name_of(cls, options)}), "
                             "and a plan cannot draw. Call model.eval(), or draw the numbers "
                             "outside of the model and pass them as an input")
        before = [self.value(x) for x in arrays]
        result = forward(*arrays, **options)
        outputs = [np.asarray(y) for y in (result if type(result) is tuple else (result,))]
        values = [self._know(y, Value(y.shape, y.dtype)) for y in outputs]
        self.nodes.append(Node(name_of(cls, options), cls, before, options, values))
        return tuple(outputs) if type(result) is tuple else outputs[0]


class Guards:
    """Stores the state of the model at the trace: the versions of its parameters, and the bytes of
    its buffers. A plan is valid only if the model does not change afterwards."""

    def __init__(self, model):
        self.modules = _modules(model)
        tables = [getattr(model, t, list)() for t in ("named_parameters", "named_buffers")]
        self.parameters = [(p, p.version, p.array, name) for name, p in tables[0]]
        # A write to running statistics does not change a version. So the few bytes of the buffers
        # are compared.
        buffers = [(backend.array_of(b), name) for name, b in tables[1]]
        self.buffers = [(b, b.tobytes(), name) for b, name in buffers]

    def changed(self):
        """Returns a sentence that names the change, or None if the model has not changed. A call
        takes some tenths of a microsecond for each layer."""
        for name, m in self.modules:
            if m.training:
                return f"the model is in training mode (module: {name or 'the model itself'})"
        for p, version, data, name in self.parameters:
            if p.version != version or p.array is not data:
                return f"{name} has changed since the model was traced"
        for b, kept, name in self.buffers:
            if b.tobytes() != kept:
                return f"{name} has changed since the model was traced"
        return None


def _compare(first, second):
    """Raises ValueError unless two recordings have the same operations on the same constants."""
    numbers = [{v: (i, k) for i, node in enumerate(r.nodes) for k, v in enumerate(node.outputs)}
               for r in (first, second)]
    for r, number in zip((first, second), numbers):
        number.update({v: ("input", i) for i, v in enumerate(r.inputs)})
    if len(first.nodes) != len(second.nodes):
        raise ValueError(f"trace: the model applied {len(first.nodes)} operations to the first "
                         f"input, but {len(second.nodes)} operations to a second input. In the "
                         "model an `if` or a loop depends on the numbers in the input. But a graph "
                         "has the same operations for every input")
    for i, (a, b) in enumerate(zip(first.nodes, second.nodes)):
        where = f"trace: operation {i}, {a.op}"
        if a.op != b.op or not _equal(a.attributes, b.attributes):
            raise ValueError(f"{where} with {a.attributes}, became {b.op} with {b.attributes} when "
                             "the model ran on a second input. In the model an `if` depends on the "
                             "numbers in the input, or a number was read from a tensor")
        for x, y in zip(a.inputs, b.inputs, strict=True):
            same = _equal(x, y) if not isinstance(x, Value) else isinstance(y, Value) and (
                numbers[0].get(x) == numbers[1].get(y)
                and (x.array is None) == (y.array is None) and _equal(x.array, y.array))
            if not same:
                raise ValueError(
                    f"{where}: an operand depends on the input in a way that trace cannot see. "
                    "Three causes are possible: the operator `+` casts integers to float, NumPy "
                    "computes on x.array, or .item() reads a number. Cast with x.float(), and use "
                    "minidl's ops")


def _equal(a, b):
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(
            a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and (a is b or bool(a == b))
