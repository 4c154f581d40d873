"""Stands in for the package onnx where it is not installed: the few names that minidl.infer.onnx
uses, over plain objects. `make onnx` runs the same tests on the package itself."""

import pickle
from types import SimpleNamespace as Names

import numpy as np

from minidl.infer.onnx.operator import dtype_of, number_of


class TensorProto:
    DataType = Names(Name=lambda n: {8: "STRING"}.get(n, f"number {n}"))

    def __init__(self, array, name):
        self.array, self.name = np.asarray(array), name
        self.data_type = number_of(self.array.dtype)


class Attribute:
    STRINGS, INTS, FLOATS, ref_attr_name, graphs = "strings", "ints", "floats", "", ()

    def __init__(self, name, value):
        value = value.encode() if isinstance(value, str) else value
        value = [v.encode() if isinstance(v, str) else v for v in value] if isinstance(
            value, (list, tuple)) else value
        self.name, self.value = name, value
        first = value[0] if isinstance(value, list) and value else None
        self.type = (None if not isinstance(value, list) else
                     self.STRINGS if isinstance(first, bytes) else
                     self.FLOATS if isinstance(first, float) else self.INTS)
        self.g = value

    def HasField(self, field):
        return field == "g" and hasattr(self.value, "node")


class Dim:
    def __init__(self, n):
        self.dim_value, self.dim_param = (n, "") if isinstance(n, int) else (0, n)

    def HasField(self, field):
        return bool(getattr(self, field)) or field == "dim_value" and not self.dim_param


def make_node(op_type, inputs, outputs, domain="", name="", **attributes):
    return Names(op_type=op_type, input=list(inputs), output=list(outputs), domain=domain,
                 name=name, attribute=[Attribute(k, v) for k, v in attributes.items()])


def make_tensor_value_info(name, elem_type, shape):
    tensor = Names(elem_type=elem_type, shape=Names(dim=[Dim(n) for n in shape]))
    return Names(name=name, type=Names(WhichOneof=lambda _: "tensor_type", tensor_type=tensor))


def make_graph(nodes, name, inputs, outputs, initializer=()):
    return Names(node=list(nodes), input=list(inputs), output=list(outputs),
                 initializer=list(initializer))


def make_model(graph, opset_imports=(), producer_name=""):
    return Names(graph=graph, opset_import=list(opset_imports), functions=[], ir_version=9)


def save(model, path):
    with open(path, "wb") as file:
        pickle.dump([(n.op_type, len(n.input)) for n in model.graph.node], file)


helper = Names(make_node=make_node, make_tensor_value_info=make_tensor_value_info,
               make_graph=make_graph, make_model=make_model,
               make_opsetid=lambda domain, version: Names(domain=domain, version=version),
               get_attribute_value=lambda a: a.value)
numpy_helper = Names(from_array=TensorProto, to_array=lambda t: t.array)
checker = Names(check_model=lambda model: None)
shape_inference = Names(infer_shapes=lambda model, check_type: None, InferenceError=ValueError)
__all__ = ["Attribute", "TensorProto", "checker", "dtype_of", "helper", "numpy_helper", "save",
           "shape_inference"]
