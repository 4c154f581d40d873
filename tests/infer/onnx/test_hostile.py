"""A file of ONNX from anybody: it is read, or refused by one class, in bounded memory and time."""

import numpy as np
import pytest

from minidl import infer
from minidl.infer.onnx import load, sizes, tables
from minidl.infer.onnx.operator import Refused
from tests.conftest import some
from tests.damaged import N, at_most, damaged
from tests.infer.models import array
from tests.infer.onnx.files import REAL, file_of, one, onnx

X = array(2, 3)
BIG = 1 << 40


def whole(*numbers):
    return np.array(numbers, np.int64)


def body_of(nodes, constants=None):
    """A Loop's: a round's number, a condition, one carried value."""
    h = onnx.helper
    described = [h.make_tensor_value_info(k, t, s) for k, t, s in (
        ("i", 7, []), ("go", 9, []), ("v", 1, [2, 3]))]
    return h.make_graph([h.make_node(*node) for node in nodes], "body", described, [
        h.make_tensor_value_info("go2", 9, []), h.make_tensor_value_info("v2", 1, [2, 3])],
        [onnx.numpy_helper.from_array(v, k) for k, v in (constants or {}).items()])


def loop_of(n, nodes, constants=None):
    return file_of([("Loop", ["n", "c", "x"], ["y"], {"body": body_of(nodes, constants)})],
                   {"x": X}, {"n": np.array(n), "c": np.array(True)})


ONE_MORE = [("Add", ["v", "one"], ["v2"]), ("Identity", ["go"], ["go2"])]
ONES = {"one": np.ones((2, 3), np.float32)}


def test_a_loop_of_few_rounds_is_unrolled():
    graph = infer.import_onnx(loop_of(3, ONE_MORE, ONES))
    np.testing.assert_allclose(graph.run(X), X + 3, rtol=1e-6)


@pytest.mark.parametrize(
    "nodes", some([ONE_MORE, [("Identity", ["v"], ["v2"]), ONE_MORE[1]]]))
@pytest.mark.timeout(60)
def test_a_loop_of_2_to_the_40_is_not(nodes):
    with pytest.raises(Refused, match="at most 50,000 operators, if its loops are unrolled"):
        infer.import_onnx(loop_of(BIG, nodes, ONES))


@pytest.mark.timeout(60)
def test_a_loop_that_does_nothing_for_ever_ends():
    described = [onnx.helper.make_tensor_value_info(k, t, []) for k, t in (("i", 7), ("go", 9))]
    body = onnx.helper.make_graph([], "body", described, described[1:])
    with pytest.raises(Refused, match="at most 50,000 operators, if its loops are unrolled"):
        one("Loop", np.array(BIG), np.array(True), known=[0, 1], n_out=0, body=body)


@pytest.mark.parametrize("nodes, words", [
    ([("Relu", ["nope"], ["y"], {})], "Relu reads 'nope', but no operator before it makes"),
    ([("Relu", ["x"], ["z"], {})], "the result reads 'y'"),
    ([("Add", ["x", "b"], ["a"], {}), ("Relu", ["a"], ["b"], {}), ("Relu", ["b"], ["y"], {})],
     "Add reads 'b'"),
    ([("Relu", ["y"], ["y"], {})], "Relu reads 'y'"),
    ([("Relu", ["x"], ["y"], {}), ("Abs", ["x"], ["y"], {})],
     "Abs makes 'y', which an operator before it has already made"),
], ids=["dangling", "no result", "a cycle", "of itself", "twice"])
def test_names_that_nothing_makes_and_cycles(nodes, words):
    with pytest.raises(Refused, match=words):
        infer.import_onnx(file_of(nodes, {"x": X}))


LARGE = {  # operator, inputs of which all but the first are known, attributes
    "ConstantOfShape": ([whole(BIG)], {}),
    "Expand": ([X, whole(BIG, 2, 3)], {}),
    "Tile": ([X, whole(BIG, 1)], {}),
    "Range": ([whole(0)[0], whole(BIG)[0], whole(1)[0]], {}),
    "Pad": ([X, whole(0, 0, BIG, 0)], {}),
    "OneHot": ([whole(1, 2), whole(BIG), array(2)], {}),
    "Resize": ([X, None, np.array([1, 2.0**40], np.float32)], {}),
    "Upsample": ([X, np.array([2.0**40, 1], np.float32)], {}),
    "Gather": ([np.zeros((4096, 4096), np.float32), np.zeros((1024, 1024), np.int64)], {}),
    "MatMul": ([array(1 << 17, 1), array(1, 1 << 17)], {}),
    "Gemm": ([array(1 << 17, 1), array(1, 1 << 17)], {}),
    "Add": ([array(1 << 17, 1), array(1 << 17)], {}),
    "Max": ([array(1 << 17, 1), array(1 << 17)], {}),
    "Where": ([array(1 << 17, 1) > 0, array(1 << 17), X[0, 0].reshape(1)], {}),
    "Einsum": ([array(1 << 17), array(1 << 17)], {"equation": "i,j->ij"}),
    "Conv": ([array(1, 1, 4, 4), array(1, 1, 1, 1)], {"pads": [0, 0, BIG, 0]}),
    "MaxPool": ([array(1, 1, 4, 4)], {"kernel_shape": [1, 1], "pads": [0, 0, BIG, 0]}),
    "AveragePool": ([array(1, 1, 4, 4)], {"kernel_shape": [BIG, 1]}),
    "ConvTranspose": ([array(1, 1, 4, 4), array(1, 1, 1, 1)], {"strides": [BIG, 1]}),
    "LRN": ([array(1, 4, 2, 2)], {"size": BIG}),
    "Split": ([X], {"num_outputs": BIG}),
    "RNN": ([array(2, 1, 3), array(1, 2, 3), array(1, 2, 2)], {"hidden_size": BIG}),
    "QLinearMatMul": ([np.ones((1 << 17, 1), np.uint8), np.float32(1).reshape(1),
                       np.uint8([0]), np.ones((1, 1 << 17), np.uint8),
                       np.float32(1).reshape(1), np.uint8([0]), np.float32(1).reshape(1),
                       np.uint8([0])], {}),
}


@pytest.mark.parametrize("operator", LARGE)
@pytest.mark.timeout(60)
def test_a_result_of_terabytes_is_refused_before_it_is_made(operator):
    xs, attributes = LARGE[operator]
    known = [i for i, x in enumerate(xs) if i and x is not None or operator in (
        "ConstantOfShape", "Range")]
    with at_most(300 << 20), pytest.raises(Refused):
        one(operator, *xs, known=known, opset=18 if operator == "Split" else 9 if operator in (
            "Upsample",) else 20, **attributes)


def test_an_input_of_terabytes_is_refused():
    with pytest.raises(Refused, match="input x needs .* bytes, but at most"):
        infer.import_onnx(file_of([("Relu", ["x"], ["y"], {})], {"x": (np.float32, [BIG, 1])}))
    with pytest.raises(Refused):
        infer.import_onnx(file_of([("Relu", ["x"], ["y"], {})], {"x": (np.float32, [-1, 3])}))


def test_most_bytes_is_what_the_user_says():
    model = file_of([("Relu", ["x"], ["y"], {})], {"x": array(100, 100)})
    with pytest.raises(Refused, match="needs 40,000 bytes, but at most 39,999 are allowed"):
        infer.import_onnx(model, most_bytes=39_999)
    infer.import_onnx(model, most_bytes=80_000)


def test_the_size_of_a_transposed_convolution_is_exact_without_padding():
    x, w = array(2, 3, 4, 5), array(3, 6, 3, 2)
    for options in ({}, {"strides": [2, 3]}, {"dilations": [2, 1]},
                    {"strides": [2, 2], "output_padding": [1, 0]}):
        y = one("ConvTranspose", x, w, **options)
        assert sizes.most("ConvTranspose", [x, w], options) == np.asarray(y).size


def test_every_size_is_of_an_operator_that_is_there():
    assert set(sizes.OF) | sizes.REDUCING <= set(tables.TABLE)
    assert load.MOST_OPERATORS == 50_000


def functions_of(depth):
    """A file whose function f0 calls f1 twice, and so on: 2 ** depth operators."""
    h, ids = onnx.helper, [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("own", 1)]
    made = [h.make_function(
        "own", f"f{i}", ["x"], ["y"],
        [h.make_node(f"f{i + 1}", ["x"], ["a"], domain="own"),
         h.make_node(f"f{i + 1}", ["a"], ["y"], domain="own")] if i < depth else
        [h.make_node("Relu", ["x"], ["y"])], ids) for i in range(depth + 1)]
    graph = h.make_graph([h.make_node("f0", ["x"], ["y"], domain="own")], "g", [
        h.make_tensor_value_info("x", 1, [2])], [h.make_tensor_value_info("y", 1, [2])])
    return h.make_model(graph, opset_imports=ids, functions=made)


needs_onnx = pytest.mark.skipif(not REAL, reason="the package onnx: make onnx")


@needs_onnx
@pytest.mark.timeout(120)
def test_functions_that_call_each_other_twice_are_bounded():
    assert infer.import_onnx(functions_of(3)).count() == 8
    with pytest.raises(Refused, match="at most 50,000"):
        infer.import_onnx(functions_of(40))


@needs_onnx
def test_a_function_that_calls_itself_is_refused():
    model = functions_of(0)
    model.functions[0].node[0].CopyFrom(
        onnx.helper.make_node("f0", ["x"], ["y"], domain="own"))
    with pytest.raises(Refused):
        infer.import_onnx(model)


@needs_onnx
@pytest.mark.timeout(600)
def test_a_damaged_file_is_read_or_refused_by_one_class(tmp_path):
    """What is read need not be the model that was written: nothing in a file says that a weight or
    a name was altered."""
    h = onnx.helper
    model = loop_of(3, ONE_MORE, ONES)
    for node in (h.make_node("Gemm", ["y", "w", "b"], ["z"], alpha=1.0, transB=1),
                 h.make_node("Reshape", ["z", "s"], ["r"]),
                 h.make_node("Resize", ["r", "", "scales"], ["q"], mode="linear"),
                 h.make_node("Pad", ["q", "pads"], ["p"]),
                 h.make_node("Softmax", ["p"], ["out"], axis=1)):
        model.graph.node.append(node)
    for name, x in {"w": array(4, 3), "b": array(4), "s": whole(1, 2, 4), "pads": whole(*[1] * 6),
                    "scales": np.array([1, 2, 2], np.float32)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(x, name))
    model.graph.output[0].name = "out"
    path, good, n_read = tmp_path / "m.onnx", model.SerializeToString(), 0
    path.write_bytes(good)
    assert infer.import_onnx(str(path)).run(X).shape == (3, 6, 10)
    for data in damaged(good):
        path.write_bytes(data)
        try:
            with at_most(64 << 20):
                infer.import_onnx(str(path), most_bytes=1 << 20)
            n_read += 1
        except Refused as error:
            assert len(str(error)) < 2000
    assert N // 20 < n_read < N
