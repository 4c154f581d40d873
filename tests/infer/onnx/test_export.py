"""Graphs to files of ONNX and back; with onnxruntime, what that makes of the file."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer.onnx.operator import Refused
from minidl.nn import functional as F
from tests.infer.models import array, cnn, random_model, same
from tests.infer.onnx.files import close, has_peer, peer
from tests.ops import samples, samples_composed, samples_extra, samples_nn

ROWS = {r.name: r for module in (samples, samples_nn, samples_extra, samples_composed)
        for r in module.ROWS}
# ops that ONNX has no operator for, or that no model in eval mode has: losses, training, places
# of largest elements, scatters by several arrays
REFUSED = {"cross_entropy", "nll_loss", "norm", "huber", "diagonal", "median", "max_along", "roll",
           "binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss",
           "scatter", "repeat_each", "adaptive_max_pool2d", "kl_div", "kthvalue", "scatter_add",
           "scatter_reduce",
           "index_add", "index_copy", "index_fill", "min_along", "nonzero", "fmod",
           "unfold", "fold"}


def there_and_back(graph, arrays):
    """Export, import; all results are equal."""
    wanted = graph.run(*arrays)
    wanted = (wanted,) if graph.single else wanted
    model = infer.export_onnx(graph)
    again = infer.import_onnx(model)
    feed = {v.name: x for v, x in zip(graph.inputs, arrays, strict=True)}
    results = again.run(*(feed[v.name] for v in again.inputs))
    close((results,) if again.single else results, wanted)
    if has_peer():
        close(peer(model, feed), wanted)
    return model


def a_tuple(y):
    return tuple(y) if isinstance(y, (tuple, list)) else y


def test_every_op_is_exported_or_refused_by_name():
    """The first samples of all ops, as float32. What is written: test_every_writer.py."""
    refused, n = set(), 0
    for row in ROWS.values():
        xs = [minidl.tensor(x.astype("f4") if x.dtype == "f8" else x) for x in row.inputs[0]]
        try:
            graph = infer.trace(lambda *a, f=row.fn: a_tuple(f(*a)), *xs)
        except (TypeError, ValueError):  # no op of inference: training, an index that is an input
            continue
        try:
            infer.export_onnx(graph)
            n += 1
        except Refused as error:
            refused.add(str(error).split()[1].rstrip(","))
    new = refused - {"an", "batch_norm", "avg_pool2d", "max_pool2d", "div", "sort",
                     "conv_transpose2d"} - REFUSED
    assert not new, (f"ONNX: no export of {sorted(new)}: give it a function in "
                     "minidl/infer/onnx/writers.py, or name it in REFUSED of this file")
    assert n > 200


@pytest.mark.parametrize("f, operator", [
    (lambda a, b: a & b, "And"), (lambda a, b: a | b, "Or"), (lambda a, b: a ^ b, "Xor"),
    (lambda a, b: ~a, "Not")])
def test_bits_of_bool_are_not_bitwise_operators(f, operator):
    """ONNX has BitwiseAnd for whole numbers alone."""
    for dtype, wanted in ((bool, operator), (np.int32, f"Bitwise{operator}")):
        a, b = np.array([0, 1, 0, 1]).astype(dtype), np.array([0, 0, 1, 1]).astype(dtype)
        graph = infer.trace(f, minidl.tensor(a), minidl.tensor(b))
        model = there_and_back(graph, [a, b])
        assert [node.op_type for node in model.graph.node][0] == wanted


MODELS = {
    "mlp": (lambda: nn.MLP(6, 8, 3), array(4, 6)),
    "cnn": (cnn, array(2, 3, 12, 13)),
    "gpt": (lambda: nn.GPT(30, 8, n_layers=2, n_heads=2, width=16), np.arange(8).reshape(1, 8)),
    "llama": (lambda: nn.Llama(30, 8, n_layers=2, n_heads=4, width=16, n_kv_heads=2),
              np.arange(8).reshape(1, 8)),
    "lstm": (lambda: _First(nn.LSTM(5, 6, num_layers=2)), array(4, 2, 5)),
    "gru": (lambda: _First(nn.GRU(5, 6)), array(4, 2, 5)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), array(2, 5, 8))}


class _First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("name", MODELS)
def test_models_there_and_back(name):
    make, x = MODELS[name]
    minidl.manual_seed(3)
    model = there_and_back(infer.trace(make().eval(), x if x.dtype.kind == "i" else
                                       minidl.tensor(x)), [x])
    assert len(model.graph.initializer) > 2


def test_parameters_keep_their_names():
    model = infer.export_onnx(infer.trace(nn.MLP(6, 8, 3).eval(), array(4, 6)))
    names = [t.name for t in model.graph.initializer]
    assert {n for n, _ in nn.MLP(6, 8, 3).named_parameters()} <= set(names)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 20)]


def test_random_graphs_there_and_back_and_compiled():
    for seed in range(6):
        x = array(2, 3, 8, seed=seed)
        graph = infer.trace(random_model(seed), minidl.tensor(x))
        there_and_back(graph, [x])
        again = infer.import_onnx(infer.export_onnx(graph))
        infer.optimise(again)
        same(again.run(x), graph.run(x))


def test_an_imported_model_becomes_a_plan():
    net, x = cnn(), array(2, 3, 12, 13)
    graph = infer.import_onnx(infer.export_onnx(infer.trace(net, minidl.tensor(x))))
    assert infer.optimise(graph)["batch_norm"] == 2
    same(infer.compile(graph)(x), net(minidl.tensor(x)))


def test_what_has_no_operators_and_optimised_graphs_are_refused():
    x = minidl.tensor(array(3, 4))
    with pytest.raises(Refused, match="roll cannot be written"):
        infer.export_onnx(infer.trace(lambda x: minidl.roll(x, 1), x))
    w = minidl.tensor(array(5, 4))
    for model in (lambda x: F.relu(x) + 1.0, lambda x: F.relu(F.linear(x, w))):  # chain, epilogue
        graph = infer.trace(model, x)
        infer.optimise(graph)
        with pytest.raises(Refused, match="optimised"):
            infer.export_onnx(graph)
