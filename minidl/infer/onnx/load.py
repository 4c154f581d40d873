"""Reads an ONNX file into a Graph: runs the file's operators on example inputs and records the ops.

    graph = infer.import_onnx("m.onnx", {"batch": 1, "mask": np.ones((1, 8)), "ids": (1, 8)})
                    a dimension without a size ^        ^ a constant            ^ an input's shape

In a Graph all shapes are fixed. A file often computes shapes by operators: Shape, Gather, Concat,
Reshape. So values that do not depend on an input are computed while the file is read. The shape of
an input is fixed, so the result of Shape does not depend on an input. Some operators need the
numbers of an operand, for example a shape or an axis. They refuse this operand if it depends on an
input.

A file may come from anybody. So the number of operators is limited, and the operators of a loop
count once for each round. The bytes of a result are limited, too. They are checked before the
result is computed (sizes.py). Every error in a file raises Refused.
Source: onnx.ai/onnx/operators.   Test: tests/infer/onnx/test_load.py
"""

import math
from collections import ChainMap

import numpy as np

from minidl.backend import array_of, optional
from minidl.infer.onnx.operator import Known, Raw, Refused, dtype_of, parameters
from minidl.infer.onnx.sizes import most
from minidl.infer.onnx.tables import TABLE
from minidl.infer.trace import recorded
from minidl.mode import running
from minidl.nest import each
from minidl.tensor import Tensor

MOST_OPERATORS = 50_000  # the most operators in a file. A large language model has about 5,000
# MOST_BYTES: the default of most_bytes. The largest result of a large network for a batch of 32
# images of full size has half of these bytes.
MOST_BYTES = 4 << 30

MOST_RESULTS = 16  # all results of a model together may have MOST_RESULTS * most_bytes bytes


def import_onnx(path, known=None, table=None, most_bytes=MOST_BYTES):
    """Returns the Graph of an ONNX file.

    path: the file, or onnx's ModelProto.
    known: a dict. Three kinds of entries are possible. {name of a dimension: its size}. {name of an
           input: its shape}. {name of an input: its value, an array}. A known value becomes a
           constant.
    table: {operator: function}. The default is the table of minidl.infer.onnx.
    most_bytes: the most bytes that one result may have.

    Raises Refused, which is a NotImplementedError and a ValueError. The message names the part that
    minidl does not support, or the error in the file."""
    with optional("ONNX files", "onnx"):
        import onnx

    try:
        return _imported(onnx, path, known, table, most_bytes)
    except (Refused, OSError):  # OSError: the file is missing or cannot be read
        raise
    except Exception as error:  # a damaged file may cause any error, in any operator
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise Refused(f"import_onnx: {kind}{error}") from error


def _imported(onnx, path, known, table, most_bytes):
    proto = path if hasattr(path, "graph") else onnx.load(path)
    with np.errstate(all="ignore"):  # the examples are arbitrary numbers and may give inf or nan
        model = Model(onnx, proto, dict(known or {}), table or TABLE, most_bytes)
        first, tensors = model.examples(0.5, 0), [True] * len(model.free)
        try:
            graph, _ = recorded(model, first, model.examples(1.5, 1), tensors)
        except IndexError:  # 1 is not a valid index if a table has only one row
            graph, _ = recorded(model, first, model.examples(1.5, 0), tensors)
    for value, name in zip(graph.inputs, model.free, strict=True):
        value.name = name
    return graph


class Model:
    """A file as a function of Tensors. The arguments of the function are the file's inputs without
    a known value."""

    def __init__(self, onnx, proto, known, table, most_bytes):
        self.onnx, self.graph, self.table, self.most_bytes = onnx, proto.graph, table, most_bytes
        self.n_left, self.bytes_left = MOST_OPERATORS, MOST_RESULTS * most_bytes
        self.opset = {o.domain: o.version for o in proto.opset_import}.get("", 1)
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        graphs = proto.graph, *proto.functions
        missing = sorted({_name(n) for g in graphs for n in self._nodes(g)} - {*table} - {
            f"{d}:{n}" if d else n for d, n in self.functions})
        if missing:
            raise Refused(f"import_onnx: minidl does not have the operators {', '.join(missing)}; "
                          "print(infer.onnx.table()) lists the operators that it has")
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
        """Returns (shape, dtype) of an input of the graph."""
        kind = v.type.WhichOneof("value")
        if kind != "tensor_type":
            raise Refused(f"import_onnx: input {v.name} has the type {kind}; want a tensor. Pass "
                          "its value in `known`")
        tensor = v.type.tensor_type
        if shape is None:
            shape = [d.dim_value if d.HasField("dim_value") else known.get(d.dim_param)
                     for d in tensor.shape.dim]
        if None in shape:
            names = [d.dim_param or "?" for d in tensor.shape.dim]
            raise Refused(f"import_onnx: input {v.name} has no fixed shape: the sizes are {names}. "
                          f"Pass known={{{v.name!r}: (its shape)}}, or known={{name: size}} for "
                          "each of these names")
        return tuple(shape), dtype_of(tensor.elem_type)

    def examples(self, number, whole):
        """Returns example inputs. All floats are `number`, and all integers are `whole`. The model
        is recorded twice, and the two recordings get different numbers."""
        for name in self.free:
            shape, dtype = self.shapes[name]
            self.check_size(f"import_onnx: input {name}", math.prod(shape) * dtype.itemsize)
        return [np.full(shape, number if dtype.kind == "f" else whole, dtype)
                for shape, dtype in (self.shapes[name] for name in self.free)]

    def check_size(self, what, n_bytes):
        if n_bytes > self.most_bytes:
            raise Refused(f"{what} needs {n_bytes:,} bytes, but at most {self.most_bytes:,} are "
                          "allowed. If the file is right, pass a larger most_bytes")

    def array(self, tensor):
        dtype_of(tensor.data_type)
        return np.asarray(self.onnx.numpy_helper.to_array(tensor)).copy()

    def named_buffers(self):
        """Returns [(name, array)] of the file's constants, except single numbers. These constants
        keep their names in the graph."""
        return [(name, a) for name, a in self.constants.items() if a.ndim]

    def __call__(self, *inputs):
        self.n_left, self.bytes_left = MOST_OPERATORS, MOST_RESULTS * self.most_bytes
        scope = {"": None, **self.constants, **dict(zip(self.free, inputs, strict=True))}
        results = self.run(self.graph, scope)
        lists = [o.name for o, y in zip(self.graph.output, results) if isinstance(y, list)]
        if lists:
            raise Refused(f"import_onnx: result {lists[0]} is a sequence; want a tensor")
        results = tuple(y if isinstance(y, Tensor) else Tensor(np.asarray(y)) for y in results)
        return results[0] if len(results) == 1 else results

    def run(self, graph, scope):
        """Runs a graph, or a function of the file. Returns a list of its results. scope: a dict
        {name: value} of the values so far. All computed values are added to `scope`."""
        self._count(1)  # counts the graph itself, so that a loop without operators has a limit, too
        # `given` has the names of this graph, without the names of the graphs around it.
        given = scope.maps[0] if isinstance(scope, ChainMap) else scope
        scope.update({t.name: self.array(t) for t in getattr(graph, "initializer", ())
                      if t.name not in given})
        made = set()
        for node in graph.node:
            self._count(1)
            results = self.apply(node, [_value(scope, name, node.op_type) for name in node.input],
                                 scope)
            for name, y in zip(node.output, results):
                if name in made:
                    raise Refused(f"import_onnx: {node.op_type} makes {name!r}, which an operator "
                                  "before it has already made")
                made.update([name] if name else [])
                scope[name] = y if name else None
                self.bytes_left -= getattr(array_of(y), "nbytes", 0)
            if self.bytes_left < 0:
                raise Refused(f"import_onnx: all results together have more than {MOST_RESULTS} "
                              f"times {self.most_bytes:,} bytes. If the file is right, pass a "
                              "larger most_bytes")
        return [_value(scope, getattr(o, "name", o), "the result") for o in graph.output]

    def _count(self, n):
        self.n_left -= n
        if self.n_left < 0:
            raise Refused(f"import_onnx: a model can have at most {MOST_OPERATORS:,} operators, if "
                          "its loops are unrolled; this model has more")

    def apply(self, node, values, scope):
        """Returns the results of one operator on these values, as a tuple or a list."""
        called = self.functions.get((node.domain, node.op_type))
        if called is not None and _name(node) not in self.table:
            if called.attribute or called.attribute_proto:
                raise Refused(f"{node.op_type}: this is a function in the file, and it has "
                              "attributes; only functions without attributes are supported")
            return self.run(called, {"": None, **dict(zip(called.input, values))})
        operator = self.table[_name(node)]
        try:
            inputs, options = self._arguments(node, operator, values, scope)
            if self.table is TABLE and "_run" not in options:
                itemsize = max([8, *(x.dtype.itemsize for x in inputs if hasattr(x, "dtype"))])
                self.check_size("its result", most(_name(node), inputs, options) * itemsize)
            if "_run" in options:
                result = operator(*inputs, **options)
            elif all(map(_is_known, values)):
                with running(grad=False, intercept=None):
                    result = each(array_of, operator(*inputs, **options))
            else:
                result = operator(*inputs, **options)
        except Exception as error:  # an operator may raise any error for the numbers of a file
            kind = IndexError if isinstance(error, IndexError) else Refused
            name = node.name or next(iter(node.output), "")
            if isinstance(error.__cause__, Refused):  # drops the text that Function.apply added
                error = error.__cause__
            raise kind(f"{node.op_type} ({name}): {error}") from error
        result = result if isinstance(result, tuple) else (result,)
        asked = [i for i, name in enumerate(node.output) if name]
        if asked and asked[-1] >= len(result):
            raise Refused(f"{node.op_type}: result {asked[-1]} is not supported; minidl computes "
                          f"the results 0 to {len(result) - 1}")
        return result

    def _arguments(self, node, operator, values, scope):
        """Returns (the inputs, {name: value} of the attributes) for a call of the operator."""
        wanted, options = parameters(operator)
        given = {a.name: self._attribute(a) for a in node.attribute}
        values = [*values, *[None] * (len(wanted) - len(values))]
        for i, p in enumerate(wanted):  # in old versions of ONNX some inputs were attributes
            if p.name in given and p.kind is not p.VAR_POSITIONAL and values[i] is None:
                values[i] = _numbers(given.pop(p.name))
        while len(values) > len(node.input) and values[-1] is None:
            values.pop()
        unknown = sorted(given.keys() - {p.name for p in options})
        if unknown:
            raise Refused(f"attribute {', '.join(unknown)} is not supported")
        given.update({k: v for k, v in self._own(node, scope).items()
                      if any(p.name == k for p in options)})
        several = wanted[-1:] if wanted and wanted[-1].kind is wanted[-1].VAR_POSITIONAL else ()
        if len(values) > len(wanted) and not several:
            raise Refused(f"got {len(values)} inputs; want at most {len(wanted)}")
        kinds = [*wanted, *several * len(values)]
        return [_as(p, x) for p, x in zip(kinds, values)], given

    def _own(self, node, scope):
        """Returns the arguments that are not attributes in the file: _opset, _n and _run (see
        operator.py)."""
        def run(graph, *values):
            inner = ChainMap({}, scope)
            inner.update(zip([v.name for v in graph.input], values, strict=True))
            return self.run(graph, inner)

        return {"_opset": self.opset, "_n": len(node.output), "_run": run}

    def _attribute(self, a):
        if a.ref_attr_name:
            raise Refused(f"attribute {a.name} takes its value from an attribute of a function; "
                          "this is not supported")
        value = self.onnx.helper.get_attribute_value(a)
        if isinstance(value, self.onnx.TensorProto):
            return self.array(value)
        if a.type == a.STRINGS:
            return [s.decode() for s in value]
        return value.decode() if isinstance(value, bytes) else (
            list(value) if a.type in (a.INTS, a.FLOATS) else value)


def _name(node):
    return f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _value(scope, name, reader):
    """Returns scope[name], a value that an earlier operator has computed. Raises Refused if there
    is no such value, for example in a file with a cycle. reader: the operator that reads the value,
    or "the result", for the error message."""
    if name not in scope:
        raise Refused(f"import_onnx: {reader} reads {name!r}, but no operator before it makes "
                      f"{name!r}")
    return scope[name]


def _numbers(x):
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.kind == "f" else x


def _is_known(x):
    return x is None or isinstance(x, np.ndarray) or isinstance(x, list) and all(map(_is_known, x))


def _as(parameter, x):
    """Returns the value x in the form that the operator's parameter wants: as an array, as a
    Tensor, or unchanged."""
    if parameter.annotation is Known:
        if not _is_known(x):
            raise Refused(f"{parameter.name} depends on the graph's inputs, but it must be known "
                          "while the graph is made. Pass the values of these inputs in `known`")
        return x
    if isinstance(x, list) and parameter.annotation is not Raw:
        raise Refused(f"{parameter.name} is a sequence; want a tensor")
    return Tensor(x) if isinstance(x, np.ndarray) and parameter.annotation is not Raw else x
