"""Writes minidl's ops as operators of ONNX. Each op has a function that writes its nodes.

    "rsqrt": lambda w, xs, o, node: w.add("Reciprocal", [w.add("Sqrt", xs)])

    w: the Writer of export.py     xs: names of the inputs     o: attributes     node: the line

A function returns the name of its result, or a list of names.

Test: tests/infer/onnx/test_every_writer.py, test_export.py, test_export_index.py
"""

import math

import numpy as np

from minidl.infer.onnx.operator import Refused
from minidl.ops.dims import normalize_dims
from minidl.ops.index import steps
from minidl.ops.pool import averaging

SAME = {  # {op of minidl: the operator of ONNX that computes the same}
    "abs": "Abs", "acos": "Acos", "add": "Add", "asin": "Asin", "atan": "Atan",
    "ceil": "Ceil", "clone": "Identity", "cos": "Cos", "cosh": "Cosh", "div": "Div",
    "equal": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "isinf": "IsInf", "isnan": "IsNaN",
    "less": "Less", "less_equal": "LessOrEqual", "log": "Log", "matmul": "MatMul", "mish": "Mish",
    "maximum": "Max", "minimum": "Min", "mul": "Mul", "neg": "Neg", "pow": "Pow",
    "reciprocal": "Reciprocal", "relu": "Relu", "rint": "Round", "sigmoid": "Sigmoid",
    "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan",
    "tanh": "Tanh"}
REDUCE = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd", "amax": "ReduceMax",
          "amin": "ReduceMin", "logsumexp": "ReduceLogSumExp"}
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_not": "Not"}
BITWISE = {"bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"),
           "bitwise_xor": ("Xor", "BitwiseXor"), "invert": ("Not", "BitwiseNot")}


def _same(operator):
    return lambda w, xs, o, node: w.add(operator, xs)


def _by(value, node):
    """Returns `value`, a number, as an array with the dtype of the node's result."""
    return np.asarray(value, node.output.dtype)


def _alike(w, xs, node):
    """Returns a list of the inputs, each cast to the result's dtype. An input that is None stays
    None."""
    return [None if v is None else w.cast(x, node.output.dtype, v.dtype) if hasattr(v, "dtype")
            else _by(v, node) for x, v in zip(xs, node.inputs)]


def _shape(w, x, node):
    """Writes a reshape of x to the result's shape."""
    return w.add("Reshape", [x, np.array(node.output.shape, np.int64)], allowzero=1)


def _reduction(operator):
    def write(w, xs, o, node):
        dims = normalize_dims(o.get("dim"), len(node.inputs[0].shape), node.op)
        x = w.cast(xs[0], node.output.dtype, node.inputs[0].dtype)
        return w.add(operator, [x, np.array(dims, np.int64)],
                     keepdims=int(bool(o.get("keepdim")))) if dims else w.add("Identity", [x])
    return write


def _logical(operator):
    return lambda w, xs, o, node: w.add(operator, [
        w.cast(x, bool, getattr(v, "dtype", None)) for x, v in zip(xs, node.inputs)])


def _bitwise(of_bool, of_int):
    return lambda w, xs, o, node: w.add(of_bool if node.output.dtype == bool else of_int, xs)


# ---- elements ----


def remainder(w, xs, o, node):
    if node.output.dtype.kind in "iu":
        return w.add("Mod", xs)
    return w.add("Sub", [xs[0], w.add("Mul", [xs[1], w.add("Floor", [w.add("Div", xs)])])])


def rounded_div(w, xs, o, node):
    if node.output.dtype.kind in "iu" and o["mode"] == "trunc":
        return w.add("Div", xs)
    if o["mode"] == "floor" and node.output.dtype.kind == "f":
        return w.add("Floor", [w.add("Div", xs)])
    raise Refused("export_onnx: div wants rounding_mode='floor' for floats or 'trunc' for "
                  f"integers; got {o['mode']!r} for {node.output.dtype}")


def trunc(w, xs, o, node):
    return w.add("Mul", [w.add("Sign", xs), w.add("Floor", [w.add("Abs", xs)])])


def clamp(w, xs, o, node):
    x, least, most = _alike(w, xs, node)
    x = x if least is None else w.add("Max", [x, least])
    return x if most is None else w.add("Min", [x, most])


def where(w, xs, o, node):
    condition, *both = _alike(w, xs, node)
    return w.add("Where", [xs[0], *both])


def softplus(w, xs, o, node):
    scaled = w.add("Mul", [xs[0], _by(o["beta"], node)])
    soft = w.add("Div", [w.add("Softplus", [scaled]), _by(o["beta"], node)])
    return w.add("Where", [w.add("Greater", [scaled, _by(o["threshold"], node)]), xs[0], soft])


# ---- reductions, parts ----


def _rows(operator):
    """Returns the writer of Softmax or LogSoftmax. In ONNX these operators do not take a tensor
    without dimensions, so a single number is first reshaped to (1,)."""
    def write(w, xs, o, node):
        x = w.cast(xs[0], node.output.dtype, node.inputs[0].dtype)
        if node.output.shape:
            return w.add(operator, [x], axis=o["dim"])
        return _shape(w, w.add(operator, [w.add("Reshape", [x, np.array([1])])], axis=0), node)
    return write


def cumsum(w, xs, o, node):
    x = w.cast(xs[0], node.output.dtype, node.inputs[0].dtype)
    x = x if node.output.shape else w.add("Reshape", [x, np.array([1])])
    return _shape(w, w.add("CumSum", [x, np.array(o["dim"], np.int64)]), node)


def expand(w, xs, o, node):
    """Writes the op expand. An empty result is written as a constant, because onnxruntime computes
    a wrong shape for it."""
    shape = node.output.shape
    return w.add("Identity", [np.empty(shape, node.output.dtype)]) if 0 in shape else w.add(
        "Expand", [xs[0], np.array(shape, np.int64)])


def var(w, xs, o, node):
    x = node.inputs[0]
    axes = np.array(normalize_dims(o["dim"], len(x.shape), "var"), np.int64)
    centred = w.add("Sub", [xs[0], w.add("ReduceMean", [xs[0], axes], keepdims=1)])
    total = w.add("ReduceSumSquare", [centred, axes], keepdims=int(o["keepdim"]))
    n = math.prod(x.shape[i] for i in axes) - o["correction"]
    return w.add("Div", [total, _by(max(n, 0), node)])


def argmax(w, xs, o, node):
    x, dim = xs[0], o["dim"]
    if node.inputs[0].dtype == bool:
        x = w.cast(x, np.uint8)
    if dim is None:
        x, dim = w.add("Reshape", [x, np.array([-1])]), 0
    y = w.add("ArgMin" if o.get("smallest") else "ArgMax", [x], axis=dim, keepdims=0)
    return _shape(w, y, node)


def flip(w, xs, o, node):
    dims = np.array(normalize_dims(o["dims"], len(node.output.shape), "flip"), np.int64)
    back = np.full(len(dims), -1)
    return w.add("Slice", [xs[0], back, np.full(len(dims), np.iinfo(np.int64).min), dims, back])


def pad(w, xs, o, node):
    widths = list(zip(o["pad"][::2], o["pad"][1::2]))[::-1]
    widths = [(0, 0)] * (len(node.output.shape) - len(widths)) + widths
    return w.add("Pad", [xs[0], np.array(_pads(widths)), _by(o["value"] or 0, node)])


def getitem(w, xs, o, node):
    """Writes x[index] in the same steps as minidl's op (ops/index.py): first numbers, slices and
    None, then arrays."""
    x, like = xs[0], np.broadcast_to(np.float32(0), node.inputs[0].shape)
    for step in steps(like, o["index"]):
        write = _gathered if any(hasattr(i, "dtype") for i in step) else _sliced
        x = write(w, x, step, like.shape)
        like = like[step]
    return x


def _sliced(w, x, index, shape):
    """Writes x[index] for an index of numbers, slices, None and an Ellipsis. shape: the shape of
    x."""
    n_given = sum(i is not None and i is not Ellipsis for i in index)
    at = index.index(...) if ... in index else len(index)
    rest = [slice(None)] * (len(shape) - n_given)
    parts = list(enumerate(i for i in (*index[:at], *rest, *index[at + 1:]) if i is not None))
    cut = [(d, *i.indices(shape[d])) for d, i in parts
           if isinstance(i, slice) and i != slice(None)]
    if cut:
        dims, starts, ends, step = (np.array(v, np.int64) for v in zip(*cut))
        ends = np.where((step < 0) & (ends < 0), np.iinfo(np.int64).min, ends)
        x = w.add("Slice", [x, starts, ends, dims, step])
    for d, i in reversed(parts):
        if not isinstance(i, slice):
            x = w.add("Gather", [x, np.asarray(i, np.int64)], axis=d)
    made = np.broadcast_to(np.float32(0), shape)[index].shape
    return w.add("Reshape", [x, np.array(made, np.int64)], allowzero=1)


def _gathered(w, x, index, shape):
    """Writes x[index] for an index of arrays and slice(None). The dimensions that are indexed by
    arrays are merged into one dimension, so one Gather is enough. shape: the shape of x."""
    if any(getattr(i, "dtype", None) == bool for i in index):
        (mask,) = (i for i in index if hasattr(i, "dtype"))
        d = next(d for d, i in enumerate(index) if hasattr(i, "dtype"))
        index = (*index[:d], *mask.nonzero(), *index[d + 1:])
    index = (*index, *[slice(None)] * (len(shape) - len(index)))
    dims = [d for d, i in enumerate(index) if hasattr(i, "dtype")]
    places = np.zeros((), np.int64)
    for d in dims:
        places = places * shape[d] + index[d] % max(shape[d], 1)
    at = dims[0]
    if dims != list(range(at, at + len(dims))):
        order = [*dims, *(d for d in range(len(shape)) if d not in dims)]
        x = w.add("Transpose", [x], perm=order)
        shape, at = [shape[d] for d in order], 0
    if len(dims) > 1:
        merged = [*shape[:at], math.prod(shape[at:at + len(dims)]), *shape[at + len(dims):]]
        x = w.add("Reshape", [x, np.array(merged, np.int64)], allowzero=1)
    return w.add("Gather", [x, np.asarray(places, np.int64)], axis=at)


def take_places(w, xs, o, node):
    x = xs[0]
    for d, places in o["places"].items():
        x = w.add("Gather", [x, np.asarray(places, np.int64)], axis=d)
    return x


def sort(w, xs, o, node):
    """Writes sort and topk as TopK. TopK returns the k largest or smallest elements, in order."""
    x = node.inputs[0]
    if o.get("start") or o.get("squeeze") or not x.shape:
        raise Refused(f"export_onnx: {node.op} cannot be written with these arguments. ONNX's TopK "
                      "wants an input of 1 or more dimensions. It keeps all dimensions, and "
                      "returns only the first elements of the sorted order")
    stop = x.shape[o["dim"]] if o.get("stop") is None else o["stop"]
    return w.add("TopK", [xs[0], np.array([stop])], 2, axis=o["dim"],
                 largest=int(bool(o.get("descending"))))


# ---- layers ----


def linear(w, xs, o, node):
    if len(node.inputs[0].shape) == 2:
        return w.add("Gemm", xs, transB=1)
    weight = node.inputs[1]
    is_known = weight.array is not None
    turned = weight.array.T if is_known else w.add("Transpose", [xs[1]], perm=[1, 0])
    y = w.add("MatMul", [xs[0], turned])
    return y if len(xs) < 3 or xs[2] is None else w.add("Add", [y, xs[2]])


def _pads(padding):
    return [*(before for before, _ in padding), *(after for _, after in padding)]


def _window(o):
    return {"strides": o["stride"], "pads": _pads(o["padding"])} | (
        {"dilations": o["dilation"]} if "dilation" in o else {}) | (
        {"group": o["groups"]} if "groups" in o else {})


def conv_transpose2d(w, xs, o, node):
    x, weight = node.inputs[:2]
    extra = [size - ((n - 1) * s + d * (k - 1) + 1 - sum(p)) for size, n, s, d, k, p in zip(
        o["size"], x.shape[2:], o["stride"], o["dilation"], weight.shape[2:], o["padding"])]
    if any(e >= s for e, s in zip(extra, o["stride"])):
        raise Refused("export_onnx: conv_transpose2d wants an output_padding below the stride, "
                      "because onnxruntime refuses other values; got output_padding "
                      f"{extra} and stride {o['stride']}")
    return w.add("ConvTranspose", xs, output_padding=extra, **_window(o))


def max_pool2d(w, xs, o, node):
    if o.get("indices"):
        raise Refused("export_onnx: max_pool2d with indices is not supported")
    return w.add("MaxPool", xs, kernel_shape=o["kernel"], ceil_mode=int(o["ceil_mode"]),
                 **_window(o))


def avg_pool2d(w, xs, o, node):
    if o["divisor"] is not None:
        raise Refused("export_onnx: avg_pool2d with divisor_override is not supported")
    return w.add("AveragePool", xs, kernel_shape=o["kernel"], ceil_mode=int(o["ceil_mode"]),
                 count_include_pad=int(o["count_include_pad"]), **_window(o))


def adaptive_avg_pool2d(w, xs, o, node):
    if tuple(o["size"]) == (1, 1):
        return w.add("GlobalAveragePool", xs)
    sizes = zip(node.inputs[0].shape[2:], o["size"])
    return _along(w, xs[0], [averaging(np, n, m, node.output.dtype) for n, m in sizes])


def _along(w, x, matrices):
    """Writes one product for each matrix. Matrix d (n_out, n_in) is multiplied by x (N, C, ...)
    along dimension 2 + d of x. Returns the name of the last result."""
    n = 2 + len(matrices)
    for d, a in enumerate(matrices):
        order = [i for i in range(n) if i != 2 + d] + [2 + d]
        x = w.add("MatMul", [w.add("Transpose", [x], perm=order), a.T.copy()])
        x = w.add("Transpose", [x], perm=np.argsort(order).tolist())
    return x


def _affine(xs, shape, node):
    """Returns [scale, shift]. xs: the names of the input, the scale and the shift. If the scale is
    missing, returns ones instead. If the shift is missing, returns zeros instead. shape: the shape
    of these ones and zeros."""
    return [np.full(shape, i, node.output.dtype) if v is None else v
            for v, i in zip((*xs, None)[1:3], (1, 0))]


def batch_norm(w, xs, o, node):
    if o["training"]:
        raise Refused("export_onnx: batch_norm in training is not supported. Call model.eval()")
    running = [v.astype(node.output.dtype) for v in o["running"]]
    return w.add("BatchNormalization", [
        xs[0], *_affine(xs, node.output.shape[1], node), *running], epsilon=o["eps"])


def layer_norm(w, xs, o, node):
    shape = tuple(o["shape"])
    scale, shift = _affine(xs, shape, node)
    if o.get("centered", True):
        return w.add("LayerNormalization", [xs[0], scale, shift], axis=-len(shape),
                     epsilon=o["eps"])
    mean = w.add("ReduceMean", [w.add("Mul", [xs[0], xs[0]]), np.arange(-len(shape), 0)])
    root = w.add("Sqrt", [w.add("Add", [mean, _by(o["eps"], node)])])
    return w.add("Mul", [w.add("Div", [xs[0], root]), scale])


def group_norm(w, xs, o, node):
    """Writes an InstanceNormalization in which each group is one channel, then multiplies by the
    scale and adds the shift."""
    n, c = node.output.shape[:2]
    size = math.prod(node.output.shape[1:]) // o["n_groups"]
    rows = w.add("Reshape", [xs[0], np.array([n, o["n_groups"], size])], allowzero=1)
    ones = np.ones(o["n_groups"], node.output.dtype)
    y = _shape(w, w.add("InstanceNormalization", [rows, ones, ones * 0], epsilon=o["eps"]), node)
    column = np.array([c, *[1] * (len(node.output.shape) - 2)])
    for operator, v in zip(("Mul", "Add"), (*xs, None)[1:3]):
        y = y if v is None else w.add(operator, [y, w.add("Reshape", [v, column])])
    return y


def rotary(w, xs, o, node):
    """Writes operators that rotate the halves of x (nn.llama). Version 20 of ONNX's operators has
    no single operator for this rotation."""
    x, cos, sin = xs
    a, b = w.add("Split", [x], 2, axis=-1, num_outputs=2)
    products = [w.add("Mul", pair) for pair in ((a, cos), (b, sin), (b, cos), (a, sin))]
    return w.add("Concat", [w.add("Sub", products[:2]), w.add("Add", products[2:])], axis=-1)


def self_attention(w, xs, o, node):
    n_batch, length, width = node.output.shape
    shape = [n_batch, length, 3, o["n_heads"], width // o["n_heads"]]
    turned = w.add("Transpose", [w.add("Reshape", [xs[0], np.array(shape)])], perm=[2, 0, 3, 1, 4])
    q, k, v = (w.add("Gather", [turned, np.array(i)], axis=0) for i in range(3))
    y = _attend(w, q, k, v, (*xs, None)[1], node, (4, 4), shape[1], shape[1], shape[-1])
    return _shape(w, w.add("Transpose", [y], perm=[0, 2, 1, 3]), node)


def scaled_dot_product_attention(w, xs, o, node):
    q, k = (v.shape for v in node.inputs[:2])
    return _attend(w, *xs[:3], (*xs, None)[3], node, (len(q), len(k)), q[-2], k[-2], q[-1])


def _attend(w, q, k, v, mask, node, n_dims, n_queries, n_keys, width):
    o, n = node.attributes, n_dims[1]
    if o["dropout_p"]:
        raise Refused("export_onnx: dropout in attention is not supported. Call model.eval()")
    s = w.add("MatMul", [q, w.add("Transpose", [k], perm=[*range(n - 2), n - 1, n - 2])])
    s = w.add("Mul", [s, _by(o.get("scale") or 1 / math.sqrt(width), node)])
    seen = np.tri(n_queries, n_keys, dtype=bool)
    if o["is_causal"]:
        s = w.add("Add", [s, _by(np.where(seen, 0, -np.inf), node)])
    if mask is None:
        return w.add("MatMul", [w.add("Softmax", [s]), v])
    if node.inputs[-1].dtype == bool:
        mask = w.add("Where", [mask, _by(0, node), _by(-np.inf, node)])
    p = w.add("Softmax", [w.add("Add", [s, mask])])
    p = w.add("Where", [w.add("IsNaN", [p]), _by(0, node), p])  # p is NaN if all keys are masked
    return w.add("MatMul", [p, v])


def _recurrent(w, operator, xs, node, n_gates, order, **attributes):
    """Writes a recurrent layer. In minidl another op has already multiplied x by the input weights.
    So ONNX's input weights are the unit matrix. order: ONNX's gate j is minidl's gate order[j]."""
    x, *states, weight, bias = xs
    n = node.inputs[1].shape[-1]
    rows = np.concatenate([np.arange(i * n, i * n + n) for i in order])

    def first(v):
        return w.add("Unsqueeze", [v, np.array([0])])

    unit = np.eye(n_gates * n, dtype=node.output.dtype)[rows][None]
    inner, b = (w.add("Gather", [v, rows], axis=0) for v in (weight, bias))
    zero = np.zeros(n_gates * n, node.output.dtype)
    y, *ends = w.add(operator, [x, unit, first(inner), first(w.add("Concat", [zero, b], axis=0)),
                                None, *map(first, states)], 1 + len(states), hidden_size=n,
                     **attributes)
    return [w.add("Squeeze", [y, np.array([1])]), *(w.add("Squeeze", [e, np.array([0])])
                                                     for e in ends)]


LAMBDAS = {
    "cast": lambda w, xs, o, node: w.cast(xs[0], node.output.dtype),
    "expm1": lambda w, xs, o, node: w.add("Sub", [w.add("Exp", xs), _by(1, node)]),
    "exp2": lambda w, xs, o, node: w.add("Pow", [_by(2, node), xs[0]]),
    "gelu": lambda w, xs, o, node: w.add("Gelu", xs, approximate=o.get("approximate", "none")),
    "elu": lambda w, xs, o, node: w.add("Elu", xs, alpha=float(o["alpha"])),
    "isfinite": lambda w, xs, o, node: w.add("Not", [
        w.add("Or", [w.add("IsNaN", xs), w.add("IsInf", xs)])]),
    "leaky_relu": lambda w, xs, o, node: w.add("LeakyRelu", xs, alpha=o["negative_slope"]),
    "log1p": lambda w, xs, o, node: w.add("Log", [w.add("Add", [xs[0], _by(1, node)])]),
    "log2": lambda w, xs, o, node: w.add("Div", [w.add("Log", xs), _by(math.log(2), node)]),
    "log10": lambda w, xs, o, node: w.add("Div", [w.add("Log", xs), _by(math.log(10), node)]),
    "not_equal": lambda w, xs, o, node: w.add("Not", [w.add("Equal", xs)]),
    "rsqrt": lambda w, xs, o, node: w.add("Reciprocal", [w.add("Sqrt", xs)]),
    "silu": lambda w, xs, o, node: w.add("Mul", [xs[0], w.add("Sigmoid", xs)]),
    "square": lambda w, xs, o, node: w.add("Mul", [xs[0], xs[0]]),
    "std": lambda w, xs, o, node: w.add("Sqrt", [var(w, xs, o, node)]),
    "softmax": _rows("Softmax"),
    "log_softmax": _rows("LogSoftmax"),
    "Reshape": lambda w, xs, o, node: _shape(w, xs[0], node),
    "Expand": expand,
    "Permute": lambda w, xs, o, node: w.add("Transpose", xs, perm=list(normalize_dims(
        o["dims"], len(node.output.shape), "permute"))) if node.output.shape else xs[0],
    "cat": lambda w, xs, o, node: w.add("Concat", xs, axis=o["dim"]),
    "stack": lambda w, xs, o, node: w.add("Concat", [
        w.add("Unsqueeze", [x, np.array([o["dim"]])]) for x in xs], axis=o["dim"]),
    "split": lambda w, xs, o, node: w.add("Split", [xs[0], np.array(
        [v.shape[o["dim"]] for v in node.outputs], np.int64)], len(node.outputs), axis=o["dim"]),
    "unbind": lambda w, xs, o, node: [w.add("Gather", [xs[0], np.array(i)], axis=o["dim"])
                                      for i in range(len(node.outputs))],
    "tril": lambda w, xs, o, node: w.add("Trilu", [xs[0], np.array(o["diagonal"])], upper=0),
    "triu": lambda w, xs, o, node: w.add("Trilu", [xs[0], np.array(o["diagonal"])], upper=1),
    "gather": lambda w, xs, o, node: w.add("GatherElements", xs, axis=o["dim"]),
    "index_select": lambda w, xs, o, node: w.add("Gather", [
        xs[0], w.add("Reshape", [xs[1], np.array([-1])])], axis=o["dim"]),
    "embedding": lambda w, xs, o, node: w.add("Gather", [xs[1], xs[0]]),
    "topk": sort,
    "prelu": lambda w, xs, o, node: w.add("PRelu", [xs[0], w.add("Reshape", [xs[1], np.array(
        [-1, *[1] * (len(node.output.shape) - 2)] if node.output.shape else [], np.int64)])]),
    "conv2d": lambda w, xs, o, node: w.add("Conv", xs, **_window(o)),
    "interpolate": lambda w, xs, o, node: _along(w, xs[0], [
        a.astype(node.output.dtype) for a in o["matrices"]]),
    "rms_norm": layer_norm,
    "rnn": lambda w, xs, o, node: _recurrent(w, "RNN", xs, node, 1, (0,), activations=[
        "Tanh" if o["nonlinearity"] == "tanh" else "Relu"]),
    "lstm": lambda w, xs, o, node: _recurrent(w, "LSTM", xs, node, 4, (0, 3, 1, 2)),
    "gru": lambda w, xs, o, node: _recurrent(w, "GRU", xs, node, 3, (1, 0, 2),
                                             linear_before_reset=1)}
FUNCTIONS = (remainder, rounded_div, trunc, clamp, where, softplus, cumsum, var, argmax, flip, pad,
             getitem, take_places, sort, linear, conv_transpose2d, max_pool2d, avg_pool2d,
             adaptive_avg_pool2d, batch_norm, layer_norm, group_norm, rotary, self_attention,
             scaled_dot_product_attention)
WRITERS = {**{k: _same(v) for k, v in SAME.items()}, **LAMBDAS,
           **{k: _reduction(v) for k, v in REDUCE.items()},
           **{k: _logical(v) for k, v in LOGICAL.items()},
           **{k: _bitwise(*v) for k, v in BITWISE.items()}, **{f.__name__: f for f in FUNCTIONS}}
