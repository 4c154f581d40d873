"""What the tests of ONNX share: the package, or its stand-in, and files of one operator."""

import sys

import numpy as np

from minidl import infer
from minidl.infer.onnx.operator import number_of
from tests.infer.onnx import stand_in

try:
    import onnx
except ImportError:
    onnx = sys.modules["onnx"] = stand_in  # for import_onnx, too
try:
    import onnxruntime
except ImportError:
    onnxruntime = None
REAL = onnx is not stand_in


def file_of(nodes, inputs, constants=None, opset=20, outputs=("y",)):
    """A ModelProto: nodes [(operator, inputs, outputs, attributes)]; inputs {name: array, or
    (dtype, shape)}; constants {name: array}."""
    described = [onnx.helper.make_tensor_value_info(k, number_of(v[0] if isinstance(
        v, tuple) else v.dtype), v[1] if isinstance(v, tuple) else v.shape)
        for k, v in inputs.items()]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, ins, outs, **attributes)
         for op, ins, outs, attributes in nodes], "test", described,
        [onnx.helper.make_tensor_value_info(name, 1, ["n"]) for name in outputs],
        [onnx.numpy_helper.from_array(v, k) for k, v in (constants or {}).items()])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])


def info(name, dtype, shape):
    return onnx.helper.make_tensor_value_info(name, number_of(dtype), shape)


def branch(operator, number):
    """x operator a constant of the branch, which both branches give the same name."""
    return onnx.helper.make_graph(
        [onnx.helper.make_node(operator, ["x0", "c"], ["made"])], operator, [],
        [info("made", np.float32, [2])], [onnx.numpy_helper.from_array(np.float32(number), "c")])


def one(operator, *xs, opset=20, known=(), n_out=1, **attributes):
    """The results, as arrays, of one operator on these arrays; those at `known` are constants."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(xs)]
    given = {k: x for k, x in zip(names, xs) if x is not None}
    outs = [f"y{i}" for i in range(n_out)]
    model = file_of([(operator, names, outs, attributes)], given, outputs=outs, opset=opset)
    graph = infer.import_onnx(model, {names[i]: xs[i] for i in known})
    results = graph.run(*(given[v.name] for v in graph.inputs))
    return results if graph.single else list(results)


def has_peer():
    return onnxruntime is not None


def peer(model, feed):
    """onnxruntime's results; where it has no code for an operator's dtypes, those of the slow
    evaluator in the package onnx."""
    feed = {v.name: feed[v.name] for v in model.graph.input if v.name in feed}
    wish = onnxruntime.SessionOptions()
    wish.log_severity_level, wish.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), wish,
                                               ["CPUExecutionProvider"])
        return session.run(None, feed)
    except Exception as error:
        if not any(words in str(error) for words in ("NOT_IMPLEMENTED", "not support")):
            raise
    from onnx.reference import ReferenceEvaluator
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feed)


def tolerance(dtype):
    """float16: two steps at 1, as sums are in another order. Others: what `close` takes."""
    return {"rtol": 2e-3, "atol": 2e-3} if dtype == "f2" else {}


def close(results, wanted, rtol=1e-4, atol=1e-5, about=""):
    """Equal shapes, dtypes and, to rounding of float32 sums in another order, numbers."""
    for y, want in zip(results, wanted, strict=True):
        assert (y.shape, y.dtype) == (want.shape, want.dtype), about
        np.testing.assert_allclose(y, want, rtol, atol, err_msg=about)
