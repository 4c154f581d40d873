"""Writes a Graph to an ONNX file. A small function writes each op (writers.py).

    infer.export_onnx(graph, "m.onnx")        a traced model, before infer.optimise

    %1 = linear(x, 0.weight, 0.bias)          Gemm(x, 0.weight, 0.bias, transB=1)
    %2 = std(%1, dim=1)                       ONNX has no std: several operators compute it

Parameters keep their names. If ONNX has no operators for an op, the error names this op. The file
uses version 20 of the operators, the last version that most runtimes can read.
Test: tests/infer/onnx/test_export.py, test_every_writer.py
"""

import numpy as np

from minidl.backend import optional
from minidl.infer.graph import Value
from minidl.infer.onnx.operator import ArrayFunction, Refused, number_of
from minidl.infer.onnx.writers import WRITERS

VERSION = 20


def export_onnx(graph, path=None):
    """Writes a traced graph to the file `path`. If path is None, no file is written. Returns the
    model as onnx's ModelProto. Raises Refused with the op's name if an op cannot be written. Also
    raises Refused if infer.optimise has changed the graph."""
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
    model.ir_version = 9  # the version of the file format that belongs to VERSION
    onnx.checker.check_model(model)
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True)
    except onnx.shape_inference.InferenceError as error:  # an operator does not accept a dtype
        raise Refused(f"export_onnx: ONNX has no operator for these dtypes: {error}") from error
    if path is not None:
        onnx.save(model, path)
    return model


class Writer:
    """Collects the nodes and constants of a file."""

    def __init__(self, onnx):
        self.onnx, self.nodes, self.constants, self.names = onnx, [], [], {}

    def describe(self, v, name):
        """Returns onnx's description of an input or a result: name, dtype and shape."""
        return self.onnx.helper.make_tensor_value_info(name, number_of(v.dtype), v.shape)

    def name(self, v):
        """Returns the name of a Value in the file. The first call for a constant also writes the
        constant."""
        if v not in self.names:
            is_input = v.array is None
            self.names[v] = self._fresh(v.name) if is_input else self.constant(v.array, v.name)
        return self.names[v]

    def _fresh(self, wish=None):
        return f"{wish or 'v'}" if wish and wish not in self.names.values() else (
            f"v{len(self.nodes)}_{len(self.constants)}_{len(self.names)}")

    def constant(self, x, name=None):
        """Writes an array, or numbers, as a constant. Returns its name."""
        x = np.ascontiguousarray(x).reshape(np.shape(x))
        number_of(x.dtype)
        name = self._fresh(name) if name else f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(x, name))
        return name

    def add(self, operator, inputs, outputs=None, **attributes):
        """Writes one operator. Returns the name of its result. If `outputs` is a number, returns a
        list with the names of this many results.

        inputs: a list of names, arrays and None. An array is written as a constant. None stands for
            an input that is left out.
        outputs: the name of the result, or None for a new name, or the number of results."""
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
        """Writes the operators of one line of the graph."""
        if node.kind is None or node.steps or node.pad:
            raise Refused(f"export_onnx: {node.op} is a line of an optimised graph. Export the "
                          "graph that infer.trace returned, before infer.optimise changes it")
        values = [v for v in node.inputs if isinstance(v, Value)]
        dtype = node.output.dtype if node.op == "where" or not values else values[0].dtype
        xs = [self.name(x) if isinstance(x, Value) else x if x is None else np.asarray(x, dtype)
              for x in node.inputs]
        o = node.attributes
        if node.kind is ArrayFunction:
            if not node.op[0].isupper():
                raise Refused(f"export_onnx: {node.op} is only a part of an imported operator, and "
                              "ONNX has no operator for this part alone")
            kept = {k: v for k, v in o.items() if k not in ("name", "function") and v is not None}
            made = self.add(node.op, xs, len(node.outputs), **kept)
        else:
            write = WRITERS.get(node.op) or WRITERS.get(node.kind.__name__)
            if write is None:
                raise Refused(f"export_onnx: {node.op} cannot be written, because "
                              "minidl/infer/onnx/writers.py has no function for this op")
            made = write(self, xs, o, node)
        made = made if isinstance(made, (list, tuple)) else [made]
        for v, name in zip(node.outputs, made, strict=True):
            self.names[v] = name

    def cast(self, x, dtype, of=None):
        """Writes a cast of x to this dtype. Returns the name of the result. of: the present dtype
        of x, or None if it is not known. If no cast is needed, returns x."""
        return x if of is not None and of == dtype else self.add("Cast", [x], to=number_of(dtype))
