"""How much memory an op needs beside its inputs and results, as a formula.

    forward of s samples     pad x                    padded copy P = s C H' W'
                             lay out the columns      P and K = s C kh kw oh ow together
                             multiply                 K and the product Y = s O oh ow
    backward, the weight's   columns again            P + K, then K and the s products O C/G kh kw
                             and their sum in fp32
    backward, the input's    K = w^T gy, then K and the padded gradient P, that it is added to

Each is freed before the next block of samples (conv.samples_at_once) begins. So the most that is
held at once is the largest of these sums, whatever the batch; without the cut into blocks it would
grow with the batch, kh kw times as fast as the images. fp16 on a CPU is multiplied in fp32: casts
of both operands, and the product in both widths, are added.

    linear            by BLAS: nothing; fp16 on a CPU: both operands in fp32. By cpu/linear.cu
                      also what it packs: B, and A where its rows do not lie in order
    attention         by a kernel: gq in parts, one for each group of keys. By NumPy: the arrays of
                      one block, whatever the batch; for self-attention the gradients of the thirds
    cross entropy     by a kernel: nothing. By NumPy: the exponentials

One number a row, dropout's bits and a mask made into numbers are left out; a gradient counts as an
array in order. The ledger's counter: its kind "workspace".
Test: tests/memory/test_workspace.py   Tutorial: tutorials/06_memory.py
"""

import math
from collections import namedtuple

import numpy as np

from minidl.backend import accumulate_dtype, is_bfloat16
from minidl.backward import nodes
from minidl.cuda.dispatch import usable
from minidl.ops import conv_cpu
from minidl.ops import linear as kernel
from minidl.ops.attention import Attention, SelfAttention
from minidl.ops.attention_kernel import PARTS, block_of
from minidl.ops.conv import Conv2d
from minidl.ops.conv_columns import samples_at_once
from minidl.ops.cross_entropy import CrossEntropy
from minidl.ops.extra.conv_transpose import ConvTranspose2d
from minidl.ops.pool import AvgPool2d, MaxPool2d

# Elements of the arrays for one block of samples: padded images (0 if nothing is padded), columns,
# weight, images with their padding, results y (gy), the weight's gradient of each sample; width:
# bytes of one; half: multiplied in fp32; merged: the columns are a view of the padded images.
Sizes = namedtuple("Sizes", "padded columns weight images y each width half merged")


def workspace(*roots, rows=1):
    """The most bytes of workspace that forward and backward of the graph above `roots` need, if
    its batch were `rows` times as large. Nodes of other ops than those of FORMULAS: none."""
    return max((f(node, rows) for node in nodes(roots) if (f := FORMULAS.get(type(node)))),
               default=0)


def conv(node, rows):
    """Of a Conv2d: the larger of forward and backward."""
    if _by_cpu_kernels(node):
        forward, by_input, by_weight = _by_kernels(node, rows)
        return max(forward, by_input * node.needs[0], by_weight * node.needs[1])
    s = sizes(node, rows)
    return max(_forward(s), _weight_gradient(s) if node.needs[1] else 0,
               _input_gradient(s) if node.needs[0] else 0)


def conv_transpose(node, rows):
    """Of a ConvTranspose2d, which runs a convolution the other way round."""
    if _by_cpu_kernels(node):
        by_input, forward, by_weight = _by_kernels(node, rows)
        return max(by_input, forward * node.needs[0], by_weight * node.needs[1])
    s = sizes(node, rows)
    backward = max(_weight_gradient(s) if node.needs[1] else 0, _forward(s))
    return max(_input_gradient(s), backward)


def _by_cpu_kernels(node):
    w = np.broadcast_to(np.float32(0), node.shapes[1])
    return node.xp is np and usable(np.empty(0, _dtype(node))) and conv_cpu.fits(w)


def _by_kernels(node, rows):
    """Of a convolution's kernels: (what the node's forward takes, its gradient by the input, by the
    weight); float16 is cast, the bias in forward, too."""
    (n, *image), w = node.shapes
    x, out, dtype = (n * rows, *image), node.out, _dtype(node)
    forward, by_input, by_weight = conv_cpu.workspace(x, w, out, node.options)
    half = 4 * (dtype == np.float16)
    images, results = math.prod(x), n * rows * w[0] * math.prod(out)
    forward += half * (images + math.prod(w))
    by_input += half * (results + math.prod(w))
    by_weight += half * (images + results)
    if type(node) is ConvTranspose2d:
        return by_input + half * node.has_bias * image[0], forward, by_weight
    return forward + half * node.has_bias * w[0], by_input, by_weight


def pool(node, rows):
    """Of a pooling: its padded copy."""
    return node.padded_bytes * rows


def linear(node, rows):
    """Of a Linear: the largest of its three products."""
    dtype, fan_out, fan_in = _dtype(node), node.output_meta[0][0][-1], node.x_shape[-1]
    n = math.prod(node.x_shape[:-1]) * rows
    half = dtype == np.float16 and node.xp is np
    ours = (node.xp is np and kernel.BEATS_BLAS and n * fan_in * fan_out >= kernel.MIN_WORK
            and usable(np.empty(0, dtype)))
    products = [(n, fan_in, fan_out, True)]  # (rows, depth, columns, whether A's rows lie in order)
    products += [(n, fan_out, fan_in, True)] * node.needs[0]
    products += [(fan_out, n, fan_in, False)] * node.needs[1]
    return max(half * 4 * (m * k + k * p) + ours * _packed(m, k, p, in_order)
               for m, k, p, in_order in products)


def _packed(m, k, p, in_order):
    """The bytes of the copies that ops/linear.py packs of A (m, k) and B (k, p)."""
    a = 0 if in_order else (
        k * -(-m // kernel.ROWS) * kernel.ROWS + kernel.PAD + -(-k // kernel.CHUNK) * m)
    return 4 * (a + k * -(-p // kernel.COLS) * kernel.COLS + kernel.PAD)


def cross_entropy(node, rows):
    """Of a CrossEntropy of classes."""
    dtype = _dtype(node)
    if not node.weighted and usable(np.empty(0, dtype)):
        return 0
    width = accumulate_dtype(dtype).itemsize
    return math.prod(node.x_shape) * rows * width * (1 + (dtype == np.float16))


def attention(node, rows):
    """Of an Attention or a SelfAttention."""
    dtype, packed = _dtype(node), isinstance(node, SelfAttention)
    (n_batch, n_heads, length, e), n_keys = node.q_shape, node.n_keys
    n_batch *= rows
    q = n_batch * n_heads * length * e
    if node.ours and usable(np.empty(0, dtype)):
        gradient = 0 if packed else q * dtype.itemsize  # brought into the kernels' order
        if node.xp is not np:
            return 3 * q * dtype.itemsize if packed else gradient
        parts = min(-(-n_keys // block_of("tile", e)[0]), PARTS)
        return gradient + 4 * q * (packed * (parts + (parts > 1)) or (parts > 1) * parts)
    width, half = node.dtype.itemsize, dtype != node.dtype
    ev = e if packed else node.output_meta[0][0][-1]
    sizes = {(r[1].stop - r[1].start, r[2].stop - r[2].start, k[2].stop)
             for r, k in node.blocks()}
    blocks = [_block(*size, e, ev, half, bool(node.dropout_p)) for size in sizes]
    triangle = node.block_size()[1] ** 2 if node.is_causal else 0
    return width * (triangle + max((max(forward, backward + 3 * q * packed)
                                    for forward, backward in blocks), default=0))


def _block(heads, n_queries, n_keys, e, ev, half, dropout):
    """(forward, backward), elements held at most for a block of scores."""
    q, k, v, o = (heads * n * width for n, width in (
        (n_queries, e), (n_keys, e), (n_keys, ev), (n_queries, ev)))
    scores = heads * n_queries * n_keys
    making = q + half * k + scores  # half: k, v and go are cast before they are multiplied
    forward = scores + max(dropout * scores, half * v + o)
    held = q + 2 * scores + half * o  # the queries, P, gP and go
    backward = held + max(half * v, dropout * scores + max(v, o, q + k))  # gv, D, gq and gk
    return max(making, forward), max(making, backward)


FORMULAS = {Conv2d: conv, ConvTranspose2d: conv_transpose, MaxPool2d: pool, AvgPool2d: pool,
            kernel.Linear: linear, CrossEntropy: cross_entropy, Attention: attention,
            SelfAttention: attention}


def _dtype(node):
    """The dtype that a node computes in: bfloat16 is widened."""
    dtype = node.output_meta[0][1]
    return np.dtype(np.float32 if is_bfloat16(dtype) else dtype)


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
