"""Runs linear layers and convolutions in integers.

The input x and the weights w have 8 bits, or only w has 8 or 4 bits. The plain form, which explains
the zero point: minidl/plain/quantize.py. This file adds quantized lines of a graph, ranges from
calibration, convolutions, 4 bits, and training with rounded numbers.

    q = infer.quantize(graph)                                        range of x found in each run
    q = infer.quantize(graph, calibrate=batches, method="mse")       range of x from these inputs

    weights    a scale for each output, zero point 0    w = s_w w_q            w_q: -127 ... 127
    x          one scale and one zero point             x = s_x (x_q - zero)   x_q: 0 ... 255
    y = s_x s_w (x_q w_q^T - zero sum_k w_q) + bias         the sum is exact in 32 bits

Without calibration, convolutions are not quantized. With calibration, a batch norm after a
convolution is first folded into the convolution's weights. The border of the image is filled with
the zero point.

There are four methods to choose the range of x:

    minmax       from the smallest to the largest value of x
    percentile   0.005 per cent of the values are below the range, and 0.005 per cent above
    mse          the range with the least squared error. Values inside the range are rounded, and
                 values outside are clipped. Both cause errors
    kl           the range for which the histogram of x loses the least information

A number is rounded to the nearest integer, and a tie to the even integer, as in ONNX.

    infer.quantize(graph, bits=8)    rounds only the weights. x is not rounded, so no calibration is
    infer.quantize(graph, bits=4)    needed. A layer with weights (n, k) reads `n k bits / 8` bytes
                                     of weights and `4 n ceil(k / group)` bytes of scales. `group`
                                     is the number of weights that share a scale

fake_quantize rounds numbers during training. Source: Jacob et al. 2018 (arXiv 1712.05877); Migacz
2017 (TensorRT's kl).   Test: tests/infer/test_quantize.py
"""

import math
from copy import copy

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.infer.graph import Graph, Node, Value, call
from minidl.ops.conv import Conv2d

METHODS = ("minmax", "percentile", "mse", "kl")
GROUP = 32  # with 4 bits, GROUP neighbouring weights of an output share a scale
BINS = 2048  # the number of bins in a histogram of x
MAX_K = (2**31 - 1) // (255 * 127)  # with more products, a sum could overflow 32 bits


def quantize(graph, calibrate=None, method="minmax", bits=None):
    """Returns a copy of the Graph in which the linear layers compute in integers. With `calibrate`
    the convolutions compute in integers, too.

    calibrate: a list of inputs of the graph. Each input is an array or a tuple of arrays. The range
               of each layer's x is found from these inputs. If None, each run of a layer uses the
               range of its own x.
    method:    how a range is chosen: "minmax", "percentile", "mse" or "kl".
    bits:      None, 8 or 4. With 8 or 4 only the weights are rounded, to this many bits, and x
               stays in float32.

    Raises ValueError if the graph has no layer to quantize, or if `calibrate` is empty. Also raises
    ValueError if the x of a layer has nan or inf for one of the inputs in `calibrate`."""
    if method not in METHODS or bits not in (None, 4, 8) or bits and calibrate is not None:
        raise ValueError(f"quantize: got method={method!r} and bits={bits}; want a method of "
                         f"{', '.join(METHODS)}, and bits=None, 8 or 4. With bits=8 or 4 only the "
                         "weights are rounded. This needs no calibration, so leave out `calibrate`")
    if calibrate is not None:
        # This import is inside of the function, because the passes import this file.
        from minidl.infer.passes.batch_norm import batch_norm

        graph = Graph(graph.inputs, [copy(n) for n in graph.nodes], graph.outputs, graph.guards,
                      graph.single)
        batch_norm(graph)
    ops = ("linear",) if calibrate is None else ("linear", "conv2d")
    chosen = [n for n in graph.nodes if n.op in ops and _fits(n, bits)]
    if not chosen:
        raise ValueError("quantize: the graph has no linear layer with constant float32 weights. "
                         "Quantize the graph that infer.trace returned, before infer.optimise "
                         "changes it")
    ranges = observed(graph, calibrate, chosen, method) if calibrate is not None else {}
    nodes = [_whole(n, ranges.get(n), bits) if n in chosen else n for n in graph.nodes]
    return Graph(graph.inputs, nodes, graph.outputs, graph.guards, graph.single).verify()


def _fits(node, bits):
    """Returns True if the layer can be quantized."""
    x, w = node.inputs[:2]
    if node.op == "conv2d" and (node.attributes["groups"] != 1
                                or node.attributes["dilation"] != (1, 1)):
        return False
    return w.array is not None and w.array.dtype == np.float32 and x.array is None and (
        bits is not None or math.prod(w.shape[1:]) <= MAX_K)


def _whole(node, limits, bits):
    """Returns the quantized line. limits: the calibrated range (low, high) of x, or None."""
    x, w, bias = (*node.inputs[:node.n_own], None)[:3]
    q, scale = weights_of(w.array.reshape(w.shape[0], -1), bits or 8)
    made = [Value(a.shape, a.dtype, None, a) for a in (q.reshape(w.shape), scale)]
    kind, attributes = (linear_int8, {"limits": limits}) if bits is None else (
        linear_weights, {"bits": bits})
    if node.op == "conv2d":
        kind = conv_int8
        attributes.update({k: node.attributes[k] for k in ("stride", "padding")})
    return Node(kind.__name__, kind, [x, *made, bias, *node.inputs[node.n_own:]], attributes,
                node.outputs, node.steps, 4)


def weights_of(w, bits=8):
    """Rounds w (n, k). Returns (int8 weights (n, k), scales (n, groups)). The zero point is 0. With
    8 bits each output has one scale. With 4 bits each output has one scale for each group of GROUP
    weights."""
    n, k = w.shape
    group, top = (k, 127) if bits == 8 else (GROUP, 7)
    padded = np.zeros((n, -(-k // group), group), np.float32)
    padded.reshape(n, -1)[:, :k] = w
    scale = np.abs(padded).max(-1) / np.float32(top)
    q = np.rint(padded / np.where(scale > 0, scale, 1)[..., None]).clip(-top, top)
    return q.reshape(n, -1)[:, :k].astype(np.int8), scale


def scale_of(low, high):
    """Returns (scale, zero point) for x from `low` to `high`. If 0 is not in this range, the range
    is widened to include 0, as in ONNX's DynamicQuantizeLinear."""
    low, high = np.float32(min(low, 0)), np.float32(max(high, 0))
    scale = np.float32((high - low) / np.float32(255))
    return scale, np.float32(np.clip(np.rint(-low / scale), 0, 255) if scale else 0)


def in_8_bits(x, scale, zero):
    """Returns x rounded to uint8."""
    return np.clip(np.rint(x / (scale or np.float32(1))) + zero, 0, 255).astype(np.uint8)


def linear_int8(x, w, w_scale, bias, limits):
    """A linear layer in integers. Returns (..., n) float32.

    x: (..., k) float32. w: (n, k) int8. w_scale: (n, 1). bias: (n,) or None.
    limits: the range (low, high) of x. None means the minimum and the maximum of x."""
    scale, zero = scale_of(*(limits or ((x.min(), x.max()) if x.size else (0, 0))))
    total = in_8_bits(x, scale, zero).astype(np.int32) @ w.T.astype(np.int32)
    total -= np.int32(zero) * w.sum(1, dtype=np.int32)
    y = total.astype(np.float32) * (scale * w_scale[:, 0])
    return y if bias is None else y + bias


def conv_int8(x, w, w_scale, bias, limits, stride, padding):
    """A convolution in integers. Returns (N, O, OH, OW) float32. The sums fit in 32 bits, so
    float64 computes them exactly.

    x: (N, C, H, W) float32. w: (O, C, KH, KW) int8. w_scale: (O, 1). bias: (O,) or None. limits:
    the range (low, high) of x."""
    scale, zero = scale_of(*limits)
    whole = in_8_bits(x, scale, zero).astype(np.float64) - zero
    total, = call(Conv2d, [whole, w.astype(np.float64), None],
                  dict(stride=stride, padding=padding, dilation=(1, 1), groups=1))
    y = total.astype(np.float32) * (scale * w_scale[:, :, None])
    return y if bias is None else y + bias[:, None, None]


def linear_weights(x, w, w_scale, bias, bits):
    """A linear layer with rounded weights. Returns (..., n) float32. The arguments are as in
    linear_int8, but x is not rounded, and w_scale is (n, groups)."""
    n, k = w.shape
    wide = w * np.repeat(w_scale, k if bits == 8 else GROUP, 1)[:, :k]
    y = x @ wide.T
    return y if bias is None else y + bias


def bytes_read(graph):
    """Returns the number of bytes of weights and scales that the quantized linear layers read in
    one run of the graph."""
    return sum(math.ceil(n.inputs[1].array.size * n.attributes.get("bits", 8) / 8)
               + n.inputs[2].n_bytes for n in graph.nodes if n.op.startswith("linear_"))


# ---- calibration ----


def observed(graph, batches, nodes, method):
    """Returns {node: (low, high)}, the range of x of each node. Runs the graph on all batches. The
    method "minmax" needs one run on each batch. The other methods need two.

    Raises ValueError if there is no batch, or if an input of a layer has nan or inf."""
    batches = list(batches)  # a generator can be read only once, but the graph may run twice
    if not batches:
        raise ValueError("quantize: calibrate has no inputs; wanted a list of one or more inputs. "
                         "An iterator gives its inputs only once, so pass a list")
    ends = {n: [0.0, 0.0] for n in nodes}
    _run(graph, batches, nodes, lambda n, x: ends.update(  # np.minimum and np.maximum keep nan
        {n: [float(np.minimum(ends[n][0], x.min())), float(np.maximum(ends[n][1], x.max()))]}))
    wrong = [n for n in nodes if not np.isfinite(ends[n]).all()]
    if wrong:
        raise ValueError("quantize: with the inputs in calibrate, the input x of a "
                         f"{wrong[0].op} layer has values from {ends[wrong[0]][0]} to "
                         f"{ends[wrong[0]][1]}; wanted finite values. Remove nan and inf from the "
                         "inputs")
    if method == "minmax":
        return {n: tuple(e) for n, e in ends.items()}
    counts = {n: np.zeros(BINS) for n in nodes}
    _run(graph, batches, nodes, lambda n, x: counts[n].__iadd__(
        np.histogram(x, BINS, ends[n] if ends[n][0] < ends[n][1] else (-1, 1))[0]))
    return {n: clipped(counts[n], *ends[n], method) for n in nodes}


def _run(graph, batches, nodes, see):
    for batch in batches:
        batch = batch if isinstance(batch, tuple) else (batch,)
        known = dict(zip(graph.inputs, [np.asarray(backend.array_of(x)) for x in batch],
                         strict=True))
        for node in graph.nodes:
            arrays = [Graph._array(x, known) for x in node.inputs]
            if node in nodes and arrays[0].size:
                see(node, arrays[0])
            known.update(zip(node.outputs, node.evaluate(arrays)))


def clipped(counts, low, high, method):
    """Returns the range (low, high) that a method chooses. counts: a histogram of x with BINS bins
    from low to high."""
    at = low + (np.arange(BINS) + 0.5) * (high - low) / BINS
    if method == "percentile":
        part = np.cumsum(counts) / counts.sum()
        return (min(at[np.searchsorted(part, 5e-5)], 0.0), max(at[np.searchsorted(
            part, 1 - 5e-5)], 0.0))
    loss = {"mse": squared_error, "kl": information_lost}[method]
    tried = [(low * r, high * r) for r in np.linspace(1, 0.1, 91)]
    return min(tried, key=lambda limits: loss(counts, at, *limits))


def squared_error(counts, at, low, high):
    """Returns the sum of the squared errors if x is rounded to 8 bits with the range low to high.
    counts: the histogram of x. at: the centres of its bins."""
    scale, zero = scale_of(low, high)
    q = np.clip(np.rint(at / (scale or 1)) + zero, 0, 255)
    return (counts * (at - (q - zero) * scale) ** 2).sum()


def information_lost(counts, at, low, high):
    """Returns the KL divergence KL(p | q). p is the part of the histogram inside the range. The
    counts below the range are added to the first bin of p, and the counts above the range to the
    last bin. q is the same part of the histogram after rounding to the 256 steps of uint8, without
    the counts outside of the range. The bins that round to the same step share the count of this
    step equally. Empty bins get no share."""
    scale, zero = scale_of(low, high)
    inside = (at >= low) & (at <= high)
    if not scale or not counts[inside].sum():
        return math.inf
    p = counts[inside].copy()
    p[0] += counts[at < low].sum()
    p[-1] += counts[at > high].sum()
    step = np.clip(np.rint(at[inside] / scale) + zero, 0, 255).astype(int)
    full = counts[inside] > 0
    held = np.bincount(step, counts[inside], 256) / np.maximum(np.bincount(step, full, 256), 1)
    q = np.where(full, held[step], 0)
    p, q = p / p.sum(), q / q.sum()
    some = p > 0
    return (p[some] * np.log(p[some] / np.maximum(q[some], 1e-10))).sum()


# ---- training ----


class FakeQuantize(Function):
    """Rounds x as quantization does, and returns floats:
    (clip(round(x / scale) + zero, low, high) - zero) scale.

    The true derivative is 0 nearly everywhere. Backward uses 1 where x is inside the range, and 0
    where x is outside (a straight-through estimator). Forward saves a mask of the elements inside.
    Source: Bengio et al. 2013 (arXiv 1308.3432)"""

    def forward(self, x, scale, zero, low, high):
        q = self.xp.rint(x / scale) + zero
        self.save((q >= low) & (q <= high))
        return ((q.clip(low, high) - zero) * scale).astype(x.dtype)

    def backward(self, gy):
        inside, = self.saved
        return gy * inside, None, None


def fake_quantize(x, scale, zero=0, bits=8):
    """Returns x rounded to `bits` bits, as a float Tensor. If a model calls this function in
    training, the model's weights adapt to the rounding. scale, zero: numbers, or arrays that
    broadcast to x. An array (n, 1) gives each output its own scale."""
    high = 2 ** (bits - 1) - 1
    return FakeQuantize.apply(x, scale, zero, low=-high, high=high)
