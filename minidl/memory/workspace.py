"""How much memory a convolution needs beside its inputs and results, as a formula.

    forward of s samples     pad x                    padded copy P = s C H' W'
                             lay out the columns      P and K = s C kh kw oh ow together
                             multiply                 K and the product Y = s O oh ow
    backward, the weight's   columns again            P + K, then K and the s products O C/G kh kw
                             and their sum in fp32
    backward, the input's    K = w^T gy, then K and the padded gradient P, that it is added to

Each is freed before the next block of samples (conv.samples_at_once) begins. So the most that is
held at once is the largest of these sums, whatever the batch; without the cut into blocks it would
grow with the batch, kh kw times as fast as the images. fp16 on a CPU is multiplied in fp32: casts
of both operands, and the product in both widths, are added. The ledger's counter: its kind
"workspace".           Test: tests/memory/test_workspace.py   Tutorial: tutorials/05_memory.py
"""

import math
from collections import namedtuple

import numpy as np

from minidl.backend import is_bfloat16
from minidl.backward import nodes
from minidl.ops.conv import Conv2d, samples_at_once
from minidl.ops.extra.conv_transpose import ConvTranspose2d
from minidl.ops.pool import AvgPool2d, MaxPool2d

# Elements of the arrays for one block of samples: padded images (0 if nothing is padded), columns,
# weight, images with their padding, results y (gy), the weight's gradient of each sample; width:
# bytes of one; half: multiplied in fp32; merged: the columns are a view of the padded images.
Sizes = namedtuple("Sizes", "padded columns weight images y each width half merged")


def workspace(*roots, rows=1):
    """The most bytes of workspace that forward and backward of the graph above `roots` need, if
    its batch were `rows` times as large. Nodes of other ops than convolution and pooling: none."""
    return max((f(node, rows) for node in nodes(roots) if (f := FORMULAS.get(type(node)))),
               default=0)


def conv(node, rows):
    """Of a Conv2d: the larger of forward and backward."""
    s = sizes(node, rows)
    return max(_forward(s), _weight_gradient(s) if node.needs[1] else 0,
               _input_gradient(s) if node.needs[0] else 0)


def conv_transpose(node, rows):
    """Of a ConvTranspose2d, which runs a convolution the other way round."""
    s = sizes(node, rows)
    backward = max(_weight_gradient(s) if node.needs[1] else 0, _forward(s))
    return max(_input_gradient(s), backward)


def pool(node, rows):
    """Of a pooling: its padded copy."""
    return node.padded_bytes * rows


FORMULAS = {Conv2d: conv, ConvTranspose2d: conv_transpose, MaxPool2d: pool, AvgPool2d: pool}


def sizes(node, rows):
    """The Sizes of a convolution for the largest block of a batch `rows` times as large."""
    (n, c, *image), w = node.shapes
    stride, padding, dilation, groups = node.options
    dtype, out = node.output_meta[0][1], node.out
    width = 4 if is_bfloat16(dtype) else np.dtype(dtype).itemsize  # computed in fp32
    s = min(n * rows, samples_at_once(c, w, out, node.xp is np))
    image = [size + sum(p) for size, p in zip(image, padding, strict=True)]
    padded = s * c * math.prod(image) if any(map(any, padding)) else 0
    # strides, in elements, of the view that is laid out, if the images lie in order
    height, width_in = image
    merged = (_mergeable((c // groups, *w[2:]),
                         (height * width_in, width_in * dilation[0], dilation[1]))
              and _mergeable(out, (width_in * stride[0], stride[1])))
    return Sizes(padded, s * c * math.prod(w[2:]) * math.prod(out), math.prod(w),
                 s * c * math.prod(image), s * w[0] * math.prod(out), s * math.prod(w), width,
                 dtype == np.float16 and node.xp is np, merged)


def _mergeable(shape, strides):
    """Whether NumPy's reshape joins these dimensions into one without a copy."""
    kept = [(n, step) for n, step in zip(shape, strides, strict=True) if n > 1]
    return all(step == n * inner for (_, step), (n, inner) in zip(kept, kept[1:]))


def _columns(s):
    """(while they are made, as long as they are used), bytes."""
    if s.merged:
        return s.padded * s.width, s.padded * s.width
    return (s.padded + s.columns) * s.width, s.columns * s.width


def _product(s, a, b, y):
    """Bytes of a product of a and b elements beside them."""
    return 4 * (a + b + y) + 2 * y if s.half else y * s.width


def _forward(s):
    making, held = _columns(s)
    return max(making, held + _product(s, s.weight, s.columns, s.y))


def _weight_gradient(s):
    making, held = _columns(s)
    accumulator = max(s.width, 4) * s.weight
    return max(making, held + _product(s, s.y, s.columns, s.each),
               held + s.each * s.width + accumulator)


def _input_gradient(s):
    return max(_product(s, s.weight, s.y, s.columns), (s.columns + s.images) * s.width)
