"""From a file of ONNX to a Graph: the operators run once on example inputs, and are recorded.

    graph = infer.import_onnx("m.onnx", {"batch": 1, "mask": np.ones((1, 8)), "ids": (1, 8)})
                    a dimension of no fixed size ^      ^ this constant         ^ of this shape

Shapes are numbers in a Graph, and often computed in a file: Shape, Gather, Concat, Reshape. So what
depends on no input is computed at once, a Shape depends on none, and an operator that needs an
operand's numbers (a shape, an axis) refuses one that does depend on an input.
Source: onnx.ai/onnx/operators.   Test: tests/infer/onnx/test_load.py
"""

from collections import ChainMap

import numpy as np

from minidl.backend import optional
from minidl.infer.onnx.operator import Known, Raw, Refused, dtype_of, parameters
from minidl.infer.onnx.tables import TABLE
from minidl.infer.trace import recorded
from minidl.mode import running
from minidl.tensor import Tensor


def import_onnx(path, known=None, table=None):
    """The Graph of a file (or of onnx's ModelProto). known: {a dimension's name: its size, an
    input's name: its shape or, as an array, its value}; table: {operator: function}, of
    minidl.infer.onnx unless given. Refused, a NotImplementedError, names what is not here."""
    with optional("ONNX files", "onnx"):
        import onnx

    proto = path if hasattr(path, "graph") else onnx.load(path)
    with np.errstate(all="ignore"):  # the examples' numbers mean nothing
        model = Model(onnx, proto, dict(known or {}), table or TABLE)
        first, tensors = model.examples(0.5, 0), [True] * len(model.free)
        try:
            graph, _ = recorded(model, first, model.examples(1.5, 1), tensors)
        except IndexError:  # of one row, 1 is no index
            graph, _ = recorded(model, first, model.examples(1.5, 0), tensors)
    for value, name in zip(graph.inputs, model.free, strict=True):
        value.name = name
    return graph


class Model:
    """A file as a function of Tensors, its inputs without those that are known."""

    def __init__(self, onnx, proto, known, table):
        self.onnx, self.graph, self.table = onnx, proto.graph, table
        self.opset = {o.domain: o.version for o in proto.opset_import}.get("", 1)
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        missing = sorted({_name(n) for n in self._nodes(proto.graph)} - {*table} - {
            f"{d}:{n}" if d else n for d, n in self.functions})
        if missing:
            raise Refused(f"import_onnx: operators that are not here: {', '.join(missing)}; "
                          "print(infer.onnx.table()) lists those that are")
        self.constants = {t.name: self.array(t) for t in proto.graph.initializer}
        self.shapes, self.free = {}, []
        for v in proto.graph.input:
            if v.name in self.constants:
                continue
            value = known.get(v.name)
            if hasattr(value, "dtype"):
                self.constants[v.name] = np.asarray(value)
            else:
                self.shapes[v.name] = self._type(v, value, known)
                self.free.append(v.name)

    def _nodes(self, graph):
        for node in graph.node:
            yield node
            for a in node.attribute:
                for g in ([a.g] if a.HasField("g") else a.graphs):
                    yield from self._nodes(g)

    def _type(self, v, shape, known):
        """(shape, dtype) of an input of the graph."""
        kind = v.type.WhichOneof("value")
        if kind != "tensor_type":
            raise Refused(f"import_onnx: input {v.name} is an {kind}; pass its value in `known`")
        tensor = v.type.tensor_type
        if shape is None:
            shape = [d.dim_value if d.HasField("dim_value") else known.get(d.dim_param)
                     for d in tensor.shape.dim]
        if None in shape:
            names = [d.dim_param or "?" for d in tensor.shape.dim]
            raise ValueError(f"import_onnx: input {v.name} has no fixed shape, {names}; pass known="
                             f"{{{v.name!r}: (its shape)}}, or a size for each name")
        return tuple(shape), dtype_of(tensor.elem_type)

    def examples(self, number, whole):
        """Inputs to record with. Their numbers mean nothing, but of two sets they differ."""
        return [np.full(shape, number if dtype.kind == "f" else whole, dtype)
                for shape, dtype in (self.shapes[name] for name in self.free)]

    def array(self, tensor):
        dtype_of(tensor.data_type)
        return np.asarray(self.onnx.numpy_helper.to_array(tensor)).copy()

    def named_buffers(self):
        """What keeps its name in the graph: the file's constants."""
        return [(name, a) for name, a in self.constants.items() if a.ndim]

    def __call__(self, *inputs):
        scope = {"": None, **self.constants, **dict(zip(self.free, inputs, strict=True))}
        results = self.run(self.graph, scope)
        lists = [o.name for o, y in zip(self.graph.output, results) if isinstance(y, list)]
        if lists:
            raise Refused(f"import_onnx: result {lists[0]} is a sequence, not a tensor")
        results = tuple(y if isinstance(y, Tensor) else Tensor(np.asarray(y)) for y in results)
        return results[0] if len(results) == 1 else results

    def run(self, graph, scope):
        """The results of a graph, or of a function; scope: {name: value}, which it writes to."""
        scope.update({t.name: self.array(t) for t in getattr(graph, "initializer", ())
                      if t.name not in scope})
        for node in graph.node:
            made = self.apply(node, [scope[name] for name in node.input], scope)
            scope.update(zip(node.output, made))
        return [scope[getattr(o, "name", o)] for o in graph.output]

    def apply(self, node, values, scope):
        """The results of one operator on these values."""
        called = self.functions.get((node.domain, node.op_type))
        if called is not None and _name(node) not in self.table:
            if called.attribute or called.attribute_proto:
                raise Refused(f"{node.op_type}: a function of the file with attributes")
            return self.run(called, {"": None, **dict(zip(called.input, values))})
        operator = self.table[_name(node)]
        try:
            inputs, options = self._arguments(node, operator, values, scope)
            if "_run" in options:
                result = operator(*inputs, **options)
            elif all(map(_is_known, values)):
                with running(grad=False, around=None):
                    result = _plain(operator(*inputs, **options))
            else:
                result = operator(*inputs, **options)
        except (NotImplementedError, ValueError, TypeError, IndexError) as error:
            kind = Refused if isinstance(error, NotImplementedError) else (
                IndexError if isinstance(error, IndexError) else ValueError)
            raise kind(f"{node.op_type} ({node.name or node.output[0]}): {error}") from error
        result = result if isinstance(result, tuple) else (result,)
        asked = [i for i, name in enumerate(node.output) if name]
        if asked and asked[-1] >= len(result):
            raise Refused(f"{node.op_type}: result {asked[-1]} of it")
        return result

    def _arguments(self, node, operator, values, scope):
        wanted, options = parameters(operator)
        given = {a.name: self._attribute(a) for a in node.attribute}
        values = [*values, *[None] * (len(wanted) - len(values))]
        for i, p in enumerate(wanted):  # what is an input today was once an attribute
            if p.name in given and p.kind is not p.VAR_POSITIONAL and values[i] is None:
                values[i] = _numbers(given.pop(p.name))
        while len(values) > len(node.input) and values[-1] is None:
            values.pop()
        unknown = sorted(given.keys() - {p.name for p in options})
        if unknown:
            raise Refused(f"attribute {', '.join(unknown)}")
        given.update({k: v for k, v in self._own(node, scope).items()
                      if any(p.name == k for p in options)})
        several = wanted[-1:] if wanted and wanted[-1].kind is wanted[-1].VAR_POSITIONAL else ()
        if len(values) > len(wanted) and not several:
            raise Refused(f"{len(values)} inputs, here it takes {len(wanted)}")
        kinds = [*wanted, *several * len(values)]
        return [_as(p, x) for p, x in zip(kinds, values)], given

    def _own(self, node, scope):
        def run(graph, *values):
            inner = ChainMap({}, scope)
            inner.update(zip([v.name for v in graph.input], values, strict=True))
            return self.run(graph, inner)

        return {"_opset": self.opset, "_n": len(node.output), "_run": run}

    def _attribute(self, a):
        if a.ref_attr_name:
            raise Refused(f"attribute {a.name} taken from a function's")
        value = self.onnx.helper.get_attribute_value(a)
        if isinstance(value, self.onnx.TensorProto):
            return self.array(value)
        if a.type == a.STRINGS:
            return [s.decode() for s in value]
        return value.decode() if isinstance(value, bytes) else (
            list(value) if a.type in (a.INTS, a.FLOATS) else value)


def _name(node):
    return f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _numbers(x):
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.kind == "f" else x


def _is_known(x):
    return x is None or isinstance(x, np.ndarray) or isinstance(x, list) and all(map(_is_known, x))


def _plain(x):
    """Tensors as arrays, also in lists and tuples."""
    if isinstance(x, (list, tuple)):
        return tuple(map(_plain, x)) if isinstance(x, tuple) else [*map(_plain, x)]
    return x._data if isinstance(x, Tensor) else x


def _as(parameter, x):
    """A value as the parameter wants it."""
    if parameter.annotation is Known:
        if not _is_known(x):
            raise Refused(f"{parameter.name} depends on the graph's inputs; a graph has fixed "
                          "shapes. Pass the input that it comes from in `known`")
        return x
    if isinstance(x, list) and parameter.annotation is not Raw:
        raise Refused(f"a sequence as {parameter.name}")
    return Tensor(x) if isinstance(x, np.ndarray) and parameter.annotation is not Raw else x
