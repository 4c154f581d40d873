"""What a file may ask for, and what is refused, by name."""

import numpy as np
import pytest

from minidl import infer
from minidl.infer import onnx as files
from minidl.infer.onnx.operator import Refused
from tests.infer.models import array
from tests.infer.onnx.files import file_of, one

X = array(2, 3)


def test_operators_attributes_and_dtypes_are_refused_by_name():
    with pytest.raises(Refused, match="does not have the operators Foo, Zoo"):
        infer.import_onnx(file_of([("Zoo", ["x"], ["a"], {}), ("Foo", ["a"], ["y"], {})], {"x": X}))
    with pytest.raises(Refused, match="Relu .*attribute slope"):
        one("Relu", X, slope=1.0)
    with pytest.raises(Refused, match="Cast .*tensors of STRING"):
        one("Cast", X, to=8)
    with pytest.raises(Refused, match="Relu .*3 inputs; want at most 1"):
        one("Relu", X, X, X)
    with pytest.raises(Refused, match="GlobalMaxPool: result 1"):
        one("GlobalMaxPool", array(1, 2, 3, 3), n_out=2)


def test_shapes_are_computed_when_the_graph_is_made():
    """Reshape to (last, first) sizes of x: three operators, none of them in the graph."""
    model = file_of([("Shape", ["x"], ["s"], {}), ("Gather", ["s", "order"], ["t"], {}),
                     ("Reshape", ["x", "t"], ["y"], {})], {"x": X}, {"order": np.array([1, 0])})
    graph = infer.import_onnx(model)
    assert graph.count() == graph.count("reshape") == 1
    np.testing.assert_array_equal(graph.run(X), X.reshape(3, 2))


def test_a_shape_that_depends_on_an_input_is_refused_and_may_be_known():
    with pytest.raises(Refused, match="shape depends on the graph's inputs"):
        one("Reshape", X, np.array([3, 2]))
    np.testing.assert_array_equal(one("Reshape", X, np.array([3, 2]), known=[1]), X.reshape(3, 2))


def test_a_dimension_without_a_size_wants_one():
    model = file_of([("Relu", ["x"], ["y"], {})], {"x": (np.float32, ["batch", 3])})
    with pytest.raises(ValueError, match="input x has no fixed shape: .* \\['batch'"):
        infer.import_onnx(model)
    for known in ({"batch": 2}, {"x": (2, 3)}):
        np.testing.assert_array_equal(infer.import_onnx(model, known).run(X), np.maximum(X, 0))


def test_what_once_was_an_attribute_is_an_input():
    want = X.sum(1, keepdims=True)
    for opset, xs, known, attributes in ((11, [X], [], {"axes": [1]}),
                                         (20, [X, np.array([1])], [1], {})):
        y = one("ReduceSum", *xs, known=known, opset=opset, **attributes)
        np.testing.assert_allclose(y, want, rtol=1e-6)


def test_a_cast_that_is_no_line_is_noticed():
    """Whole numbers that an op makes floating before the recorder sees them."""
    table = {**files.TABLE, "Add": lambda a, b: a + b}
    model = file_of([("Add", ["x", "i"], ["y"], {})], {"x": X, "i": np.arange(3)})
    with pytest.raises(ValueError, match="depends on the input in a way"):
        infer.import_onnx(model, table=table)


def test_the_table_is_printable_and_names_every_operator_once():
    text = files.table()
    names = [line.split()[0] for line in text.splitlines()]
    assert sorted(names) == sorted(files.TABLE) and len(names) > 120
    assert "Gemm                      layers    a, b, c; alpha, beta, transA, transB" in text
