"""Whole numbers: formula and kernels, calibration, the decoder's weights, training."""

import platform
from importlib import import_module

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.cuda import run
from minidl.infer.onnx.operator import number_of
from minidl.infer.onnx.quantized import ConvInteger, QLinearConv, QuantizeLinear
from minidl.nn import functional as F
from tests.infer.models import array, cnn, same
from tests.infer.onnx.files import onnxruntime, peer

q = import_module("minidl.infer.quantize")  # infer.quantize is its function


def layer(k, n, rows, seed=0):
    """(a linear layer with relu, its input, whose range is not symmetric)."""
    minidl.manual_seed(seed)
    return nn.Sequential(nn.Linear(k, n), nn.ReLU()).eval(), array(*rows, k, seed=seed) + 0.3


@pytest.mark.parametrize("bits, calibrate", [(None, False), (None, True), (8, False), (4, False)])
def test_a_plan_equals_the_formula(bits, calibrate):
    """Rows, k and n with all remainders of the tiles: 4, 6, 16 and 32 rows, 64 columns, 4 and 64
    of k."""
    parts = [layer(7, 5, (1,)), layer(64, 70, (2, 7)), layer(96, 130, (101,)),
             layer(160, 66, (27,))]
    nets, xs = [net for net, _ in parts], [x for _, x in parts]
    graph = infer.trace(lambda *xs: tuple(net(x) for net, x in zip(nets, xs)),
                        *map(minidl.tensor, xs))
    graph = infer.quantize(graph, [tuple(xs)] if calibrate else None, bits=bits)
    wanted = graph.run(*xs)
    assert infer.optimise(graph)["epilogue"] == 4
    plan = infer.compile(graph)
    for y, want in zip(plan(*xs), wanted, strict=True):
        same(y, want)
    eager = [line.op for line in plan.launches if line.eager]
    assert eager == (["linear_weights"] if bits == 4 else [])  # of k = 7


CONVOLUTIONS = [  # (C, O, kernel, stride, padding, size): remainders of 4 and 64, no square
    (3, 5, (3, 2), (2, 1), (1, 1), (7, 6)), (8, 70, (1, 1), (1, 1), (0, 0), (5, 4)),
    (16, 64, (3, 3), (1, 2), (2, 0), (6, 9))]


@pytest.mark.parametrize("largest", [127, 63])
@pytest.mark.parametrize("c, o, kernel, stride, padding, size", CONVOLUTIONS)
def test_a_convolution_is_exactly_onnxs(c, o, kernel, stride, padding, size, largest):
    """QuantizeLinear, ConvInteger, scaled; and rounded again QLinearConv, to one quantum. What is
    beyond the image is the zero point, not 0. Of weights up to 63 also onnxruntime's: of larger
    ones it adds two products in 16 bits where a processor has no VNNI, and they do not fit."""
    minidl.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(c, o, kernel, stride, padding, bias=False)).eval()
    x = array(2, c, *size) + 0.5
    graph = infer.quantize(infer.trace(net, minidl.tensor(x)), [x])
    line, = graph.nodes
    w, w_scale = (v.array for v in line.inputs[1:3])
    w[...] = w if largest == 127 else w // 2 * (w > -127)
    scale, zero = q.scale_of(*line.attributes["limits"])
    assert 0 < zero < 255
    zero = np.array(zero, np.uint8)
    pads = [*padding, *padding]
    whole = QuantizeLinear.__wrapped__(x, np.array(scale), zero)
    sums = ConvInteger.__wrapped__(whole, w, zero, pads=pads, strides=list(stride))
    want = sums.astype(np.float32) * (scale * w_scale[:, :, None])
    np.testing.assert_array_equal(graph.run(x), want)
    infer.optimise(graph)
    plan = infer.compile(graph)
    assert not [line.op for line in plan.launches if line.eager]
    y = plan(x).array
    np.testing.assert_array_equal(y, want)
    y_scale, y_zero = q.scale_of(y.min(), y.max())
    inputs = [whole, np.array(scale), zero, w, w_scale[:, 0], np.zeros(o, np.int8),
              np.array(y_scale), np.array(y_zero, np.uint8)]
    ours = q.in_8_bits(y, y_scale, y_zero).astype(int)
    theirs = [QLinearConv.__wrapped__(*inputs, pads=pads, strides=list(stride))]
    if onnxruntime is not None and np.abs(w).max() < 64:
        theirs.append(of_peer(inputs, pads, stride))
    for there in theirs:
        assert np.abs(ours - there).max() <= 1


def of_peer(inputs, pads, stride):
    """onnxruntime's QLinearConv."""
    import onnx

    names = [f"v{i}" for i in range(len(inputs))]
    node = onnx.helper.make_node("QLinearConv", names, ["y"], pads=pads, strides=stride)
    described = [onnx.helper.make_tensor_value_info(n, number_of(x.dtype), x.shape)
                 for n, x in [*zip(names, inputs), ("y", np.zeros((), np.uint8))]]
    described[-1] = onnx.helper.make_tensor_value_info("y", number_of(np.dtype("u1")), None)
    model = onnx.helper.make_model(onnx.helper.make_graph(
        [node], "", described[:-1], described[-1:]),
        opset_imports=[onnx.helper.make_opsetid("", 20)])
    model.ir_version = 9
    return peer(model, dict(zip(names, inputs)))[0].astype(int)


def test_a_network_of_images_in_whole_numbers():
    """Batch norms go into the weights first; each line by a kernel, relu and sums behind it."""
    x = array(2, 3, 12, 13)
    graph = infer.trace(cnn(), minidl.tensor(x))
    want, text = graph.run(x), str(graph)
    whole = infer.quantize(graph, [x])
    assert str(graph) == text and whole.count("conv_int8") == 3 and not whole.count("batch_norm")
    formula = whole.run(x)
    assert 1e-4 < np.abs(formula - want).max() / np.abs(want).max() < 0.03
    assert infer.optimise(whole)["epilogue"] == 4
    plan = infer.compile(whole, poison=True)
    assert not [line.op for line in plan.launches if line.eager]
    # a last digit may take a number to the next quantum
    assert np.abs(plan(x).array - formula).max() < 5e-3 * np.abs(formula).max()
    assert infer.quantize(graph).count("conv2d") == 3  # no ranges: they stay float


def test_the_error_is_that_of_the_rounding():
    """Uniform errors of half a step at most: 8 bits of x and w, or of w, or 4 bits in groups."""
    net, x = layer(256, 64, (32,))
    graph = infer.trace(net, x)
    want = graph.run(x)
    errors = {}
    for name, options in (("int8", {}), ("w8", {"bits": 8}), ("w4", {"bits": 4})):
        errors[name] = np.abs(infer.quantize(graph, **options).run(x) - want).std() / want.std()
    assert errors["w8"] < errors["int8"] < 0.02 and 8 * errors["w8"] < errors["w4"] < 0.2


def test_ties_go_to_even_and_what_is_beyond_saturates():
    x = np.array([0.5, 1.5, 2.5, 300, -3], np.float32)
    np.testing.assert_array_equal(q.in_8_bits(x, np.float32(1), np.float32(0)), [0, 2, 2, 255, 0])
    assert q.scale_of(-1, 3) == (np.float32(4 / 255), 64)  # 63.75 rounded; 0 is exact
    assert q.scale_of(0, 0) == (0, 0) and q.scale_of(2, 3) == (np.float32(3 / 255), 0)


def test_weights_are_symmetric_with_a_scale_for_each_output():
    w = array(5, 70) * np.array([1, 10, 0, 0.1, 5], np.float32)[:, None]
    for bits, top in ((8, 127), (4, 7)):
        whole, scale = q.weights_of(w, bits)
        assert whole.dtype == np.int8 and np.abs(whole).max() == top
        wide = np.repeat(scale, 70 if bits == 8 else q.GROUP, 1)[:, :70]
        assert (np.abs(whole * wide - w) <= wide / 2 * (1 + 1e-5)).all()


@pytest.mark.parametrize("processor", [None, "x86-64", "x86-64-v3"])
def test_sums_are_exact_at_the_largest_numbers(processor, monkeypatch):
    """255 x 127 in each of 3,000 places: float32 cannot hold the sum, nor 16 bits two products."""
    if processor is not None:
        if processor not in compiled_for():
            pytest.skip(f"this processor cannot run code for {processor}")
        monkeypatch.setenv("MINIDL_CPU", processor)
    run._library.cache_clear()
    w = np.full((64, 3000), 1, np.float32)
    w[:, 1] = -1
    x = np.full((6, 3000), 255, np.float32)
    graph = infer.quantize(infer.trace(lambda x: F.linear(x, minidl.tensor(w)), minidl.tensor(x)))
    total = 255 * 127 * 2998
    scale = graph.nodes[0].inputs[2].array[0, 0]
    assert graph.run(x)[0, 0] == np.float32(total) * (np.float32(1) * scale)
    plain = graph.run(x)
    mixed = np.where(np.arange(6)[:, None] < 3, x, -x)  # 255 and 0 in whole numbers
    want = graph.run(mixed)
    infer.optimise(graph)
    plan = infer.compile(graph)
    run._library.cache_clear()
    np.testing.assert_array_equal(plan(x).array, plain)
    np.testing.assert_array_equal(plan(mixed).array, want)


def compiled_for():
    """For which PCs' processors code can run here."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    found = np.show_config(mode="dicts")["SIMD Extensions"]
    wide = {"X86_V3", "AVX2"} & {*found.get("baseline", ()), *found.get("found", ())}
    return ("x86-64", "x86-64-v3") if wide else ("x86-64",)


def test_methods_of_calibration():
    """Numbers of a bell and one far out: minmax keeps it, percentile cuts it off and loses less of
    the others; mse has the least squared error of all, kl the least information lost."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 40)).astype(np.float32)
    x[0, 0] = 60
    minidl.manual_seed(0)
    graph = infer.trace(nn.Sequential(nn.Linear(40, 30)).eval(), x)
    limits, errors = {}, {}
    for method in q.METHODS:
        made = infer.quantize(graph, [x], method)
        limits[method] = made.nodes[0].attributes["limits"]
        errors[method] = np.abs(made.run(x) - graph.run(x))[1:].mean()
    assert limits["minmax"] == (float(x.min()), 60)
    assert limits["percentile"][1] < 30 and errors["percentile"] < errors["minmax"] / 2
    counts = np.histogram(x, q.BINS, (x.min(), 60))[0]
    at = x.min() + (np.arange(q.BINS) + 0.5) * (60 - x.min()) / q.BINS
    for loss, best in ((q.squared_error, "mse"), (q.information_lost, "kl")):
        assert loss(counts, at, *limits[best]) <= loss(counts, at, *limits["minmax"])


def test_what_cannot_be_quantised_is_refused():
    net, x = layer(8, 4, (2,))
    graph = infer.trace(net, x)
    with pytest.raises(ValueError, match="method='best'"):
        infer.quantize(graph, [x], "best")
    with pytest.raises(ValueError, match="needs no calibration"):
        infer.quantize(graph, [x], bits=8)
    with pytest.raises(ValueError, match="no linear layer"):
        infer.quantize(infer.trace(lambda x: x + 1.0, minidl.tensor(x)))


def test_a_decoder_of_8_and_4_bits():
    """Steps equal the whole text computed anew with the same weights; and the bytes of a token."""
    minidl.manual_seed(1)
    gpt = nn.GPT(40, 32, n_layers=2, n_heads=2, width=64).eval()
    ids = np.random.default_rng(0).integers(0, 40, (1, 12))
    float_logits = infer.decoder(gpt).prefill(ids)
    for weights, bits, most in (("int8", 8, 0.05), ("int4", 4, 0.5)):
        decoder = infer.decoder(gpt, weights=weights)
        whole = decoder.prefill(ids)
        decoder.prefill(ids[:, :9])
        for i in range(9, 12):
            stepped = decoder.step(ids[:, i])
        np.testing.assert_allclose(stepped, whole, rtol=0, atol=1e-5 * np.abs(whole).max())
        assert np.abs(whole - float_logits).max() < most * np.abs(float_logits).max()
        layers = [m.weight for _, m in gpt.named_modules() if isinstance(m, nn.Linear)]
        read = sum(n * k * bits // 8 + 4 * n * (1 if bits == 8 else k // 32)
                   for n, k in (w.shape for w in layers))
        assert q.bytes_read(decoder.plans[1].graph) == read
    with pytest.raises(ValueError, match="weights 'int2'"):
        infer.decoder(gpt, weights="int2")


def test_fake_quantisation_rounds_forward_and_passes_the_gradient_inside():
    x = minidl.tensor(np.array([0.24, 0.26, -200.0, 200.0, 63.5], np.float32), requires_grad=True)
    y = infer.fake_quantize(x, 0.5)
    np.testing.assert_array_equal(y.array, [0, 0.5, -63.5, 63.5, 63.5])
    (y * minidl.tensor(np.arange(1, 6, dtype=np.float32))).sum().backward()
    np.testing.assert_array_equal(x.grad, [1, 2, 0, 0, 5])


def test_training_that_knows_of_the_rounding_loses_less():
    """4 bits for each weight of a layer: trained through fake_quantize it fits better than rounded
    afterwards."""
    rng = np.random.default_rng(0)
    x, w = (minidl.tensor(rng.standard_normal(s).astype("f4")) for s in ((200, 8), (1, 8)))
    y = x @ w.T

    def loss(v):
        return F.mse_loss(F.linear(x, infer.fake_quantize(v, 0.3, bits=3)), y)

    v = minidl.tensor(w.array + 0.14, requires_grad=True)
    before = loss(v).item()
    for _ in range(60):
        loss(v).backward()
        v.data = v.array - 0.05 * v.grad
        v.grad = None
    assert loss(v).item() < before


@pytest.mark.parametrize("method", q.METHODS)
def test_calibration_by_nothing_or_by_what_is_not_finite_is_refused(method):
    net, x = layer(16, 8, (64,))
    graph = infer.trace(net, minidl.tensor(x))
    for batches in ([], iter([])):
        with pytest.raises(ValueError, match="calibrate has no inputs; wanted a list of one or"):
            infer.quantize(graph, batches, method)
    for bad in (np.nan, np.inf):
        y = x.copy()
        y[3, 2] = bad
        with pytest.raises(ValueError, match="has values from .*(nan|inf)"):
            infer.quantize(graph, [x, y], method)


@pytest.mark.parametrize("method", q.METHODS)
def test_calibration_by_a_generator_is_that_by_a_list(method):
    net, x = layer(16, 8, (64,))
    graph = infer.trace(net, minidl.tensor(x))
    wanted = infer.quantize(graph, [x, 2 * x], method).run(x)
    same(infer.quantize(graph, (k * x for k in (1, 2)), method).run(x)[0], wanted[0])
