"""Formulas for the memory that an op needs in addition to its inputs and results.

    a convolution of s samples                        elements that are held
    forward                  pad x                    P = s C H' W', the padded copy
                             copy into columns        P + K, where K = s C kh kw oh ow
                             multiply                 K + Y, where Y = s O oh ow is the product
    gradient of the weight   copy into columns        P + K
                             multiply                 K + s products of O C/G kh kw elements each,
                                                      and the sum of these products in fp32
    gradient of the input    multiply gy by w         K
                             add the columns          K + P, the padded gradient
    C, O: channels of x and y. H', W': the padded size. kh, kw: the kernel. oh, ow: the size of y.
    G: groups

A convolution works on blocks of s samples (conv.samples_at_once), and frees these arrays before the
next block begins. So it holds at most the largest of the sums above, for any size of the batch.
Blocks are needed, because the columns have about kh kw times as many elements as the images. On a
CPU, fp16 arrays are multiplied in fp32. Then the convolution also holds fp32 copies of the two
operands, and the product in fp32 and in fp16.

    linear            BLAS needs no memory for fp32. For fp16 on a CPU the operands A and B are
                      copied in fp32. The kernel cpu/linear.cu also needs a packed copy of B. It
                      needs a packed copy of A if the rows of A are not contiguous
    attention         a kernel needs one partial sum of gq for each group of keys. NumPy needs the
                      arrays of one block, for any size of the batch. In self-attention it also
                      needs the gradients of q, k and v
    cross entropy     a kernel needs no memory. NumPy needs an array of the exponentials

Some arrays are not counted: arrays of one number for each row, the random bits of dropout, and a
mask that was converted into numbers. A gradient is counted as a contiguous array. The ledger counts
the arrays of these formulas under the kind "workspace".
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

# Sizes has the number of elements of each array for one block of samples. padded: the padded copy
# of the images, 0 if there is no padding. images: the images with their padding. y: the results, or
# gy, which has the same shape. each: the weight's gradients of the single samples, before they are
# added. Three fields are not numbers of elements. width: the bytes of an element. half: True if
# fp16 is multiplied in fp32. merged: True if the columns are a view of the padded images.
Sizes = namedtuple("Sizes", "padded columns weight images y each width half merged")


def workspace(*roots, rows=1):
    """Returns the largest workspace of an op in the graph of `roots`, in bytes. Forward and
    backward both count. rows: a factor. The result is for a batch that is `rows` times as large as
    the recorded batch. An op that is not in FORMULAS counts 0."""
    return max((f(node, rows) for node in nodes(roots) if (f := FORMULAS.get(type(node)))),
               default=0)


def conv(node, rows):
    """Returns the bytes of workspace that a Conv2d needs. Forward, the gradient of the input and
    the gradient of the weight run one after another, so the largest need counts."""
    if _by_cpu_kernels(node):
        forward, by_input, by_weight = _by_kernels(node, rows)
        return max(forward, by_input * node.needs[0], by_weight * node.needs[1])
    s = sizes(node, rows)
    return max(_forward(s), _weight_gradient(s) if node.needs[1] else 0,
               _input_gradient(s) if node.needs[0] else 0)


def conv_transpose(node, rows):
    """Returns the bytes of workspace that a ConvTranspose2d needs. Its forward is computed as the
    input gradient of a convolution, and its input gradient as the forward of a convolution."""
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
    """Returns the bytes that the CPU kernels of a convolution need: (forward, gradient of the
    input, gradient of the weight). The kernels cast float16 arrays to float32. In forward they also
    cast the bias."""
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
    """Returns the bytes of workspace that a pooling needs, for the padded copy of its input."""
    return node.padded_bytes * rows


def linear(node, rows):
    """Returns the bytes of workspace that a Linear needs. Its three products run one after another,
    so the largest need counts."""
    dtype, fan_out, fan_in = _dtype(node), node.output_meta[0][0][-1], node.x_shape[-1]
    n = math.prod(node.x_shape[:-1]) * rows
    half = dtype == np.float16 and node.xp is np
    ours = (node.xp is np and kernel.BEATS_BLAS and n * fan_in * fan_out >= kernel.MIN_WORK
            and usable(np.empty(0, dtype)))
    # An entry is a product of matrices (m, k) and (k, p): (m, k, p, in_order). in_order: True if
    # the first matrix is contiguous.
    products = [(n, fan_in, fan_out, True)]
    products += [(n, fan_out, fan_in, True)] * node.needs[0]
    products += [(fan_out, n, fan_in, False)] * node.needs[1]
    return max(half * 4 * (m * k + k * p) + ours * _packed(m, k, p, in_order)
               for m, k, p, in_order in products)


def _packed(m, k, p, in_order):
    """Returns the bytes of the packed copies of A (m, k) and B (k, p) that ops/linear.py makes."""
    a = 0 if in_order else (
        k * -(-m // kernel.ROWS) * kernel.ROWS + kernel.PAD + -(-k // kernel.CHUNK) * m)
    return 4 * (a + k * -(-p // kernel.COLS) * kernel.COLS + kernel.PAD)


def cross_entropy(node, rows):
    """Returns the bytes of workspace that a CrossEntropy with class ids as targets needs."""
    dtype = _dtype(node)
    if not node.weighted and usable(np.empty(0, dtype)):
        return 0
    width = accumulate_dtype(dtype).itemsize
    return math.prod(node.x_shape) * rows * width * (1 + (dtype == np.float16))


def attention(node, rows):
    """Returns the bytes of workspace that an Attention or a SelfAttention needs."""
    dtype, packed = _dtype(node), isinstance(node, SelfAttention)
    (n_batch, n_heads, length, e), n_keys = node.q_shape, node.n_keys
    n_batch *= rows
    q = n_batch * n_heads * length * e
    if node.ours and usable(np.empty(0, dtype)):
        gradient = 0 if packed else q * dtype.itemsize  # a copy of the gradient of the result
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
    """Returns (forward, backward): the largest numbers of elements that forward and backward hold
    for a block of scores. e, ev: the numbers of elements of a key and of a value. half: True if the
    arrays are cast before they are multiplied."""
    q, k, v, o = (heads * n * width for n, width in (
        (n_queries, e), (n_keys, e), (n_keys, ev), (n_queries, ev)))
    scores = heads * n_queries * n_keys
    making = q + half * k + scores  # half: casts k, v and go. go is the gradient of the result
    forward = scores + max(dropout * scores, half * v + o)
    held = q + 2 * scores + half * o  # q, the probabilities P, their gradient gP, and go
    # The last max() has three terms: gv; the product go * o; gq and gk together. The row sums of
    # go * o are called D in plain/flash.py.
    backward = held + max(half * v, dropout * scores + max(v, o, q + k))
    return max(making, forward), max(making, backward)


FORMULAS = {Conv2d: conv, ConvTranspose2d: conv_transpose, MaxPool2d: pool, AvgPool2d: pool,
            kernel.Linear: linear, CrossEntropy: cross_entropy, Attention: attention,
            SelfAttention: attention}


def _dtype(node):
    """Returns the dtype that a node computes in: float32 for bfloat16."""
    dtype = node.output_meta[0][1]
    return np.dtype(np.float32 if is_bfloat16(dtype) else dtype)


def sizes(node, rows):
    """Returns the Sizes of a convolution, for its largest block of samples. rows: a factor. The
    batch is `rows` times as large as the batch of the recorded node."""
    (n, c, *image), w = node.shapes
    stride, padding, dilation, groups = node.options
    dtype, out = node.output_meta[0][1], node.out
    width = 4 if is_bfloat16(dtype) else np.dtype(dtype).itemsize  # bfloat16 is computed in fp32
    s = min(n * rows, samples_at_once(c, w, out, node.xp is np))
    image = [size + sum(p) for size, p in zip(image, padding, strict=True)]
    padded = s * c * math.prod(image) if any(map(any, padding)) else 0
    # im2col copies a view of the images into the columns. _mergeable gets the sizes and the strides
    # (in elements) of this view. The images are contiguous.
    height, width_in = image
    merged = (_mergeable((c // groups, *w[2:]),
                         (height * width_in, width_in * dilation[0], dilation[1]))
              and _mergeable(out, (width_in * stride[0], stride[1])))
    return Sizes(padded, s * c * math.prod(w[2:]) * math.prod(out), math.prod(w),
                 s * c * math.prod(image), s * w[0] * math.prod(out), s * math.prod(w), width,
                 dtype == np.float16 and node.xp is np, merged)


def _mergeable(shape, strides):
    """Returns True if NumPy's reshape can join dimensions of this shape and these strides into one
    dimension, without a copy."""
    kept = [(n, step) for n, step in zip(shape, strides, strict=True) if n > 1]
    return all(step == n * inner for (_, step), (n, inner) in zip(kept, kept[1:]))


def _columns(s):
    """Returns two numbers of bytes: the bytes that are held while the columns are made, and the
    bytes that are held while the columns are used. s: the Sizes."""
    if s.merged:
        return s.padded * s.width, s.padded * s.width
    return (s.padded + s.columns) * s.width, s.columns * s.width


def _product(s, a, b, y):
    """Returns the bytes that a matrix product needs in addition to its operands. The operands have
    a and b elements, the product has y elements."""
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
