"""From a Graph to a file of ONNX: a small function for each op, the other way round.

    infer.export_onnx(graph, "m.onnx")        a traced model, before infer.optimise

    %1 = linear(x, 0.weight, 0.bias)          Gemm(x, 0.weight, 0.bias, transB=1)
    %2 = std(%1, dim=1)                       ONNX has none: written in other operators

Parameters keep their names. What ONNX has no operators for is refused by name. Version 20 of the
operators: the last that most runtimes read.
Test: tests/infer/onnx/test_export.py, test_every_writer.py
"""

import numpy as np

from minidl.backend import optional
from minidl.infer.graph import Value
from minidl.infer.onnx.operator import ArrayFunction, Refused, number_of
from minidl.infer.onnx.writers import WRITERS

VERSION = 20


def export_onnx(graph, path=None):
    """Write the graph to a file, unless path is None; onnx's ModelProto."""
    with optional("ONNX files", "onnx"):
        import onnx
    writer = Writer(onnx)
    inputs = [writer.describe(v, writer.name(v)) for v in graph.inputs]
    for node in graph.nodes:
        writer.node(node)
    outputs = []
    for i, v in enumerate(graph.outputs):
        outputs.append(writer.describe(v, writer.add("Identity", [writer.name(v)], f"y{i}")))
    made = onnx.helper.make_graph(writer.nodes, "minidl", inputs, outputs, writer.constants)
    model = onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", VERSION)], producer_name="minidl")
    model.ir_version = 9  # that came with version 20
    onnx.checker.check_model(model)
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True)
    except onnx.shape_inference.InferenceError as error:  # an operator has no such dtype
        raise Refused(f"export_onnx: what ONNX does not have: {error}") from error
    if path is not None:
        onnx.save(model, path)
    return model


class Writer:
    """Collects the nodes and constants of a file."""

    def __init__(self, onnx):
        self.onnx, self.nodes, self.constants, self.names = onnx, [], [], {}

    def describe(self, v, name):
        return self.onnx.helper.make_tensor_value_info(name, number_of(v.dtype), v.shape)

    def name(self, v):
        if v not in self.names:
            is_input = v.array is None
            self.names[v] = self._fresh(v.name) if is_input else self.constant(v.array, v.name)
        return self.names[v]

    def _fresh(self, wish=None):
        return f"{wish or 'v'}" if wish and wish not in self.names.values() else (
            f"v{len(self.nodes)}_{len(self.constants)}_{len(self.names)}")

    def constant(self, x, name=None):
        """The name of an array, or of numbers, as a constant."""
        x = np.ascontiguousarray(x).reshape(np.shape(x))
        number_of(x.dtype)
        name = self._fresh(name) if name else f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(x, name))
        return name

    def add(self, operator, inputs, outputs=None, **attributes):
        """The name, or the names, of what an operator makes of these inputs: names, None, or
        arrays. outputs: how many, or the name of one."""
        inputs = [x if isinstance(x, str) else "" if x is None else self.constant(x)
                  for x in inputs]
        while inputs and not inputs[-1]:
            inputs.pop()
        n = outputs if isinstance(outputs, int) else 1
        made = [outputs] if isinstance(outputs, str) else [
            f"n{len(self.nodes)}.{i}" for i in range(n)]
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, made, **attributes))
        return made if isinstance(outputs, int) else made[0]

    def node(self, node):
        if node.kind is None or node.steps or node.pad:
            raise Refused(f"export_onnx: a line of an optimised graph ({node.op}); export the "
                          "graph that infer.trace gave")
        values = [v for v in node.inputs if isinstance(v, Value)]
        dtype = node.output.dtype if node.op == "where" or not values else values[0].dtype
        xs = [self.name(x) if isinstance(x, Value) else x if x is None else np.asarray(x, dtype)
              for x in node.inputs]
        o = node.attributes
        if node.kind is ArrayFunction:
            if not node.op[0].isupper():
                raise Refused(f"export_onnx: {node.op}, a part of an imported operator")
            kept = {k: v for k, v in o.items() if k not in ("name", "function") and v is not None}
            made = self.add(node.op, xs, len(node.outputs), **kept)
        else:
            write = WRITERS.get(node.op) or WRITERS.get(node.kind.__name__)
            if write is None:
                raise Refused(f"export_onnx: {node.op} has no operators of ONNX here")
            made = write(self, xs, o, node)
        made = made if isinstance(made, (list, tuple)) else [made]
        for v, name in zip(node.outputs, made, strict=True):
            self.names[v] = name

    def cast(self, x, dtype, of=None):
        """x in this dtype; as it is if that is its own, `of`."""
        return x if of is not None and of == dtype else self.add("Cast", [x], to=number_of(dtype))
