"""Linear layers and convolutions in whole numbers: 8 bits an operand, or 8 and 4 bits a weight.

The plain form, with what a zero point is: minidl/plain/quantize.py. Here: nodes of a graph, ranges
from calibration, convolutions, 4 bits, and training that knows of the rounding.

    q = infer.quantize(graph)                                        ranges of x when it runs
    q = infer.quantize(graph, calibrate=batches, method="mse")       ranges from these inputs

    weights    symmetric, a scale for each output:   w = s_w w_q,              -127 ... 127
    x          one scale and zero point for all:     x = s_x (x_q - zero),     0 ... 255
               a convolution's padding is the zero point; its ranges are calibrated, or it stays
               float. A batch norm behind it goes into its weights first
    y = s_x s_w (x_q w_q^T - zero sum_k w_q) + bias         the sum exact in 32 bits

The range of x: minmax, all that was seen; percentile, but for the rarest 0.01 per cent; mse, where
the rounding inside and what is cut off outside make the least squared error; kl, where the
histogram loses the least information. Rounding is to the nearest, ties to even: ONNX's rules.

    infer.quantize(graph, bits=8)    weights only: x stays float, nothing is calibrated. A step of
    infer.quantize(graph, bits=4)    text reads n k bits / 8 + 4 n ceil(k / group) bytes a layer

Training that knows of the rounding: fake_quantize. Source: Jacob et al. 2018 (arXiv 1712.05877);
Migacz 2017 (TensorRT's kl).   Test: tests/infer/test_quantize.py
"""

import math
from copy import copy

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.infer.graph import Graph, Node, Value, call
from minidl.ops.conv import Conv2d

METHODS = ("minmax", "percentile", "mse", "kl")
GROUP = 32  # values of k that share a scale of 4 bits
BINS = 2048
MAX_K = (2**31 - 1) // (255 * 127)  # above it a sum could leave 32 bits


def quantize(graph, calibrate=None, method="minmax", bits=None):
    """A Graph like this one, its linear layers in whole numbers; its convolutions, too, where there
    is `calibrate`: a list of inputs, each an array or a tuple; else the ranges of linear layers are
    found when it runs. bits: 8 or 4, of weights only."""
    if method not in METHODS or bits not in (None, 4, 8) or bits and calibrate is not None:
        raise ValueError(f"quantize: method {method!r}, bits {bits}; want {', '.join(METHODS)}; 8 "
                         "or 4 bits for weights alone, which want no calibration")
    if calibrate is not None:
        from minidl.infer.passes.batch_norm import batch_norm  # the passes know conv_int8

        graph = Graph(graph.inputs, [copy(n) for n in graph.nodes], graph.outputs, graph.guards,
                      graph.single)
        batch_norm(graph)
    ops = ("linear",) if calibrate is None else ("linear", "conv2d")
    chosen = [n for n in graph.nodes if n.op in ops and _fits(n, bits)]
    if not chosen:
        raise ValueError("quantize: no linear layer with constant float32 weights in the graph; "
                         "quantize what infer.trace gave")
    ranges = observed(graph, calibrate, chosen, method) if calibrate is not None else {}
    nodes = [_whole(n, ranges.get(n), bits) if n in chosen else n for n in graph.nodes]
    return Graph(graph.inputs, nodes, graph.outputs, graph.guards, graph.single).verify()


def _fits(node, bits):
    x, w = node.inputs[:2]
    if node.op == "conv2d" and (node.attributes["groups"] != 1
                                or node.attributes["dilation"] != (1, 1)):
        return False
    return w.array is not None and w.array.dtype == np.float32 and x.array is None and (
        bits is not None or math.prod(w.shape[1:]) <= MAX_K)


def _whole(node, limits, bits):
    """The line in whole numbers."""
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
    """(whole numbers (n, k) int8, scales (n, groups)) of w (n, k): symmetric, one scale for each
    output; of 4 bits, for each GROUP of its k."""
    n, k = w.shape
    group, top = (k, 127) if bits == 8 else (GROUP, 7)
    padded = np.zeros((n, -(-k // group), group), np.float32)
    padded.reshape(n, -1)[:, :k] = w
    scale = np.abs(padded).max(-1) / np.float32(top)
    q = np.rint(padded / np.where(scale > 0, scale, 1)[..., None]).clip(-top, top)
    return q.reshape(n, -1)[:, :k].astype(np.int8), scale


def scale_of(low, high):
    """(scale, zero point) of x between two numbers, 0 among them: ONNX's DynamicQuantizeLinear."""
    low, high = np.float32(min(low, 0)), np.float32(max(high, 0))
    scale = np.float32((high - low) / np.float32(255))
    return scale, np.float32(np.clip(np.rint(-low / scale), 0, 255) if scale else 0)


def in_8_bits(x, scale, zero):
    """x as uint8."""
    return np.clip(np.rint(x / (scale or np.float32(1))) + zero, 0, 255).astype(np.uint8)


def linear_int8(x, w, w_scale, bias, limits):
    """x (..., k) float32, w (n, k) int8, w_scale (n, 1); limits: of x, or None: its own."""
    scale, zero = scale_of(*(limits or ((x.min(), x.max()) if x.size else (0, 0))))
    total = in_8_bits(x, scale, zero).astype(np.int32) @ w.T.astype(np.int32)
    total -= np.int32(zero) * w.sum(1, dtype=np.int32)
    y = total.astype(np.float32) * (scale * w_scale[:, 0])
    return y if bias is None else y + bias


def conv_int8(x, w, w_scale, bias, limits, stride, padding):
    """x (N, C, H, W), w (O, C, KH, KW) int8, w_scale (O, 1). Sums of 32 bits: exact in float64."""
    scale, zero = scale_of(*limits)
    whole = in_8_bits(x, scale, zero).astype(np.float64) - zero
    total, = call(Conv2d, [whole, w.astype(np.float64), None],
                  dict(stride=stride, padding=padding, dilation=(1, 1), groups=1))
    y = total.astype(np.float32) * (scale * w_scale[:, :, None])
    return y if bias is None else y + bias[:, None, None]


def linear_weights(x, w, w_scale, bias, bits):
    """As linear_int8, but x stays float32; w_scale (n, groups)."""
    n, k = w.shape
    wide = w * np.repeat(w_scale, k if bits == 8 else GROUP, 1)[:, :k]
    y = x @ wide.T
    return y if bias is None else y + bias


def bytes_read(graph):
    """Bytes of weights and scales that one run of the quantised layers reads."""
    return sum(math.ceil(n.inputs[1].array.size * n.attributes.get("bits", 8) / 8)
               + n.inputs[2].n_bytes for n in graph.nodes if n.op.startswith("linear_"))


# ---- calibration ----


def observed(graph, batches, nodes, method):
    """{node: (low, high)} of the nodes' inputs x, seen in two runs over the batches.

    Raises ValueError if there is no batch, or if an input of a layer is nan or inf."""
    batches = list(batches)  # a generator could be read once only
    if not batches:
        raise ValueError("quantize: calibrate has no inputs; wanted a list of one or more. Has an "
                         "iterator been used up?")
    ends = {n: [0.0, 0.0] for n in nodes}
    _run(graph, batches, nodes, lambda n, x: ends.update(  # NumPy's: nan stays nan
        {n: [float(np.minimum(ends[n][0], x.min())), float(np.maximum(ends[n][1], x.max()))]}))
    wrong = [n for n in nodes if not np.isfinite(ends[n]).all()]
    if wrong:
        raise ValueError(f"quantize: with these inputs of calibrate the input of {wrong[0].op} has "
                         f"values from {ends[wrong[0]][0]} to {ends[wrong[0]][1]}; wanted finite "
                         "ones")
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
    """The limits that a method chooses, from a histogram of x between low and high."""
    at = low + (np.arange(BINS) + 0.5) * (high - low) / BINS
    if method == "percentile":
        part = np.cumsum(counts) / counts.sum()
        return (min(at[np.searchsorted(part, 5e-5)], 0.0), max(at[np.searchsorted(
            part, 1 - 5e-5)], 0.0))
    loss = {"mse": squared_error, "kl": information_lost}[method]
    tried = [(low * r, high * r) for r in np.linspace(1, 0.1, 91)]
    return min(tried, key=lambda limits: loss(counts, at, *limits))


def squared_error(counts, at, low, high):
    scale, zero = scale_of(low, high)
    q = np.clip(np.rint(at / (scale or 1)) + zero, 0, 255)
    return (counts * (at - (q - zero) * scale) ** 2).sum()


def information_lost(counts, at, low, high):
    """KL of the histogram, its ends cut off and added to the last bins, and of its 256 steps, each
    spread over those of its bins that hold anything."""
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
    """x rounded to what `bits` bits hold, and still float: (clip(round(x / scale) + zero) - zero)
    scale. Its slope is 0 nearly everywhere; the gradient is passed on as if it were 1, where x is
    inside (straight-through). Saves a mask.   Source: Bengio et al. 2013 (arXiv 1308.3432)"""

    def forward(self, x, scale, zero, low, high):
        q = self.xp.rint(x / scale) + zero
        self.save((q >= low) & (q <= high))
        return ((q.clip(low, high) - zero) * scale).astype(x.dtype)

    def backward(self, gy):
        inside, = self.saved
        return gy * inside, None, None


def fake_quantize(x, scale, zero=0, bits=8):
    """x as training sees it that will be quantised; scale, zero: numbers, or arrays that broadcast
    (a scale for each output: (n, 1))."""
    high = 2 ** (bits - 1) - 1
    return FakeQuantize.apply(x, scale, zero, low=-high, high=high)
