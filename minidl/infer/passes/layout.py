"""Puts the channels last, (N, H, W, C), for convolutions and poolings, and adds their borders.

    %0 = conv2d(x, w) then relu          %0 = to_nhwc(x) pad 1
    %1 = max_pool2d(%0)            ->    %1 = conv_nhwc(%0, w) then relu
    %2 = conv2d(%1, v)                   %2 = max_pool_nhwc(%1) pad 1
                                         %3 = conv_nhwc(%2, v)
                                         %4 = to_nchw(%3)

With the channels last, the pixels under a row of the filter lie next to each other in memory. So a
convolution reads the pixels where they are (cpu/infer.cuh), and needs no copy of the patches. A
convolution reads the zeros of its border from memory, as it reads other pixels. The line that
writes the image also writes this border. If several lines read the image and want different
borders, the border is added to a copy of the image. The pass does not change convolutions with
groups or dilation, or poolings that return indices.
Source: Georganas et al. 2018 (arXiv 1808.05567).   Test: tests/infer/passes/test_layout.py
"""

import numpy as np

from minidl.infer import code
from minidl.infer.graph import Node, Value, call
from minidl.infer.quantize import conv_int8
from minidl.ops.conv import Conv2d
from minidl.ops.pool import AvgPool2d, MaxPool2d

NONE = (0, 0), (0, 0)
WRITE_BORDERS = ("conv_nhwc", "max_pool_nhwc", "avg_pool_nhwc", "to_nhwc")


def to_nhwc(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def to_nchw(x):
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def pad_nhwc(x):
    """Returns the image unchanged. Afterwards Node.evaluate adds the border `pad` of the line."""
    return x


def conv_nhwc(x, w, b, stride):
    return _by(Conv2d, x, w, b, stride=stride, padding=NONE, dilation=(1, 1), groups=1)


def conv_int8_nhwc(x, *others, **options):
    return to_nhwc(conv_int8(to_nchw(x), *others, **options))


def max_pool_nhwc(x, **options):
    return _by(MaxPool2d, x, **options)


def avg_pool_nhwc(x, kernel, stride):
    return _by(AvgPool2d, x, kernel=kernel, stride=stride, padding=NONE, ceil_mode=False,
               count_include_pad=True, divisor=None)


def _by(kind, x, *others, **options):
    return to_nhwc(call(kind, [to_nchw(x), *others], options)[0])


def layout(graph):
    """Puts the channels last in every line that allows this. Returns the number of these lines."""
    lasts, nodes, wanted, n = {}, [], [], 0  # lasts: {Value (N, C, H, W): its Value (N, H, W, C)}

    def last(x):
        if x not in lasts:
            lasts[x] = Value(_moved(x.shape), x.dtype)
            nodes.append(Node("to_nhwc", to_nhwc, [x], {}, [lasts[x]]))
        return lasts[x]

    for node in graph.nodes:
        new, pad = rewritten(node, lasts)
        if new is None:
            nodes.append(node)
            continue
        new.inputs = [operand(x, node.output.shape, last) if i or node.op not in IMAGES
                      else last(x) for i, x in enumerate(new.inputs)]
        if node.op in WEIGHTS:
            new.inputs[1:WEIGHTS[node.op]] = node.inputs[1:WEIGHTS[node.op]]
        lasts[node.output] = new.output
        nodes.append(new)
        wanted.append((new, new.inputs[0], pad))
        n += 1
    graph.nodes = nodes
    _back(graph, lasts)
    _pad(graph, wanted)
    return n


IMAGES = ("conv2d", "conv_int8", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")
WEIGHTS = {"conv2d": 3, "conv_int8": 4}  # {operation: n}. Inputs 1 to n - 1 keep their layout


def _moved(shape):
    return shape[0], *shape[2:], shape[1]


def operand(x, shape, last):
    """Returns x with its channels last. x is an operand of a line: a number, an image of `shape`
    (N, C, H, W), or a constant with one number for each channel. last: a function that returns an
    image with its channels last."""
    if not isinstance(x, Value) or x.array is not None and x.array.size == 1:
        return x
    if x.shape == shape and x.array is None:
        return last(x)
    data = x.array.reshape(-1) if x.shape != shape else to_nhwc(x.array)
    return Value(data.shape, data.dtype, None, data)


def rewritten(node, lasts):
    """Returns (the line with the channels last, the border that this line wants around its input).
    Returns (None, None) if the line must not change. lasts: {Value (N, C, H, W): its Value
    (N, H, W, C)}."""
    found, o = None, node.attributes
    if node.output.dtype != np.float32 or not node.output.n_bytes:
        return None, None
    if node.op in IMAGES and node.inputs[0].array is None:
        of = {"conv2d": _conv, "conv_int8": _conv_int8, "max_pool2d": _max_pool}
        found = of.get(node.op, _avg_pool)(node, lasts, o)
    elif node.kind and not node.steps and len(node.output.shape) == 4 and node.values and all(
            v in lasts and v.shape == node.output.shape for v in node.values) and (
            code.is_elementwise(node.op, o, node.inputs, node.output.dtype)):
        found = node.op, node.kind, node.inputs, o, NONE
    if found is None:
        return None, None
    op, kind, inputs, attributes, pad = found
    y = node.output
    return Node(op, kind, [*inputs, *node.inputs[node.n_own:]], attributes,
                [Value(_moved(y.shape), y.dtype)], node.steps, len(inputs)), pad


def _conv(node, lasts, o):
    x, w, b = node.inputs[:3]
    if o["groups"] != 1 or o["dilation"] != (1, 1) or w.array is None or (
            b is not None and b.array is None):
        return None
    return "conv_nhwc", conv_nhwc, [x, w, b], {"stride": o["stride"]}, o["padding"]


def _conv_int8(node, lasts, o):
    """Returns (name, function, inputs, attributes, border) of the new line. The border is NONE,
    because the convolution itself adds a border of zero points."""
    return "conv_int8_nhwc", conv_int8_nhwc, node.inputs[:4], o, NONE


def _max_pool(node, lasts, o):
    if o["indices"] or o["dilation"] != (1, 1) or node.inputs[0] not in lasts:
        return None
    return "max_pool_nhwc", max_pool_nhwc, node.inputs[:1], o, NONE


def _avg_pool(node, lasts, o):
    """Returns (name, function, inputs, attributes, border) of the new line, or None if the pooling
    must not change. An adaptive_avg_pool2d changes only if its result is one pixel, the mean of the
    whole image."""
    x = node.inputs[0]
    if x not in lasts:
        return None
    kernel, stride = (o.get(k, x.shape[2:]) for k in ("kernel", "stride"))
    if node.op == "adaptive_avg_pool2d":
        if tuple(o["size"]) != (1, 1):
            return None
    elif o["padding"] != NONE or o["ceil_mode"] or o["divisor"] is not None:
        return None
    return "avg_pool_nhwc", avg_pool_nhwc, [x], {"kernel": kernel, "stride": stride}, NONE


def _back(graph, lasts):
    """Adds to_nchw lines: one for each image that is now written with the channels last, but is
    still read with the channels first."""
    made = {v for node in graph.nodes for v in node.outputs} | {*graph.inputs}
    read = {v for node in graph.nodes for v in node.values} | {*graph.outputs}
    for x, moved in lasts.items():
        if x in read and x not in made:
            at = next(i for i, node in enumerate(graph.nodes) if moved in node.outputs)
            graph.nodes.insert(at + 1, Node("to_nchw", to_nchw, [moved], {}, [x]))


def _pad(graph, wanted):
    """Adds the borders. If all readers of an image want the same border, the line that writes the
    image also writes the border. Otherwise the border is added to a copy of the image. wanted:
    [(line, its image, the border that the line wants around this image)]."""
    users, producers = graph.users(), graph.producers()
    for v in dict.fromkeys(v for _, v, pad in wanted if pad != NONE):
        readers = [(node, pad) for node, w, pad in wanted if w is v]
        maker = producers[v]
        same = len({pad for _, pad in readers}) == 1 and len(users[v]) == len(readers)
        if same and maker.op in WRITE_BORDERS and v not in graph.outputs:
            maker.pad, v.shape = readers[0][1], _padded(v.shape, readers[0][1])
            continue
        for pad in dict.fromkeys(pad for _, pad in readers if pad != NONE):
            y = Value(_padded(v.shape, pad), v.dtype)
            copy = Node("pad_nhwc", pad_nhwc, [v], {}, [y], pad=pad)
            graph.nodes.insert(graph.nodes.index(maker) + 1, copy)
            for node, its_pad in readers:
                if its_pad == pad:
                    node.inputs[0] = y


def _padded(shape, pad):
    n, h, w, c = shape
    return n, h + sum(pad[0]), w + sum(pad[1]), c
