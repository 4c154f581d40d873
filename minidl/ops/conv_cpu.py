"""Convolution on a CPU: chooses the kernel and the sizes of its blocks.

    3 x 3, stride 1            Winograd's F(2 x 2, 3 x 3): 16 products in place of 36
    few channels in a group    pixel by pixel (depthwise)
    all others                 a product with the columns of only some hundred pixels at a time

A block keeps its arrays on the stack of its thread. They take at most about 1 MiB. So there is
never an array of the size of the im2col matrix. The result does not depend on the number of
threads, because only the shape decides how sums are divided. float16 is computed in float32 and
rounded once.

Winograd adds and subtracts pixels before it multiplies, in float32. For C channels, a sum of
Winograd's form has C products, and a sum of the plain form has 9 C. So the rounding error of
Winograd's form is 0.6 to 1.05 times the error of the plain form, measured in
tests/ops/test_conv_cpu.py. But an infinite pixel turns all 2 x 2 results of a tile into NaN. The
plain form can give infinity for these results. `set_float32_matmul_precision("highest")` switches
Winograd off.

Kernel: kernels/cpu/conv.cu, kernels/cpu/conv_winograd.cu   Test: tests/ops/test_conv_cpu.py
"""

import math

import numpy as np

from minidl.cuda import dispatch, run
from minidl.cuda.device import winograd_is_on
from minidl.cuda.launch import scratch
from minidl.ops import conv_geometry

FILE, WINOGRAD_FILE = "cpu/conv.cu", "cpu/conv_winograd.cu"
TILE_ROWS = 6  # rows of a tile, as in kernels/cpu/product.cuh
TOGETHER = 16  # rows of weights that a block reorders
STACK = 2**17  # floats of a block's largest array: 512 KiB
LEAST_PIXELS, MOST_PIXELS = 64, 256  # pixels of a panel of columns
# The numbers of tiles and of channels that Winograd's form works on at a time. An array (16,
# CHANNELS, TILES) of floats has 512 KiB.
TILES, CHANNELS = 64, 128
FEW_TILES = 50  # with fewer tiles, Winograd is slower: see by_winograd
WIDE = 512  # the most pixels of a row. Wider rows are divided, as in the kernel
MOST_TAPS = 1024  # the most taps of a kernel. With more taps, a panel does not fit on the stack
UNITS = 4  # blocks for each thread, so that all threads finish at about the same time


def fits(w):
    """Returns True if a kernel of w has at most MOST_TAPS taps. Then the columns of one channel,
    for a block of pixels, fit on the stack."""
    return math.prod(w.shape[2:]) <= MOST_TAPS


def forward(x, w, b, options, out):
    """Returns y (N, O, *out). x (N, C, H, W), w (O, C / groups, kh, kw), b (O,) or None."""
    if x.dtype == np.float16:
        return _in_float32(forward, x, w, b, options, out)
    x, w = map(_in_order, (x, w))
    stride, padding, dilation, groups = options
    y = scratch(np.empty((x.shape[0], w.shape[0], *out), np.float32), "temporary")
    if not (y.size and w.size):
        y[...] = 0 if b is None else b[:, None, None]
    elif by_winograd(w.shape, options, x.shape[0], out):
        _winograd(y, x, w, False, b, padding[0][0], padding[1][0])
    else:
        phases = [conv_geometry.forward(n, k, s, p[0], d) for n, k, s, p, d in zip(
            out, w.shape[2:], stride, padding, dilation)]
        _product(y, x, w, b, groups, *phases)
    return y


def by_input(gy, w, x_shape, options, b=None):
    """Returns gx, of shape x_shape. gy (N, O, oh, ow). b: None, or the bias (C,) that a transposed
    convolution adds to the result."""
    if gy.dtype == np.float16:
        return _in_float32(by_input, gy, w, x_shape, options, b)
    gy, w = map(_in_order, (gy, w))
    stride, padding, dilation, groups = options
    gx = scratch(np.empty(x_shape, np.float32), "temporary")
    if not (gx.size and gy.size and w.size):
        gx[...] = 0 if b is None else b[:, None, None]
    elif by_winograd(w.shape, options, *_n_and_size(x_shape)):
        _winograd(gx, gy, w, True, b, *(2 - p[0] for p in padding))
    else:
        rows, columns = (conv_geometry.phases(n, k, s, p[0], d) for n, k, s, p, d in zip(
            x_shape[2:], w.shape[2:], stride, padding, dilation))
        for i in rows:
            for j in columns:
                _product(gx, gy, _weights_of_phase(w, groups, i, j), b, groups, i, j)
    return gx


def by_weight(gy, x, w, options):
    """Returns gw, of w's shape. gy (N, O, oh, ow), x (N, C, H, W)."""
    if gy.dtype == np.float16:
        shape = np.broadcast_to(np.float32(0), w.shape)  # by_weight uses only the shape of w
        return _in_float32(lambda gy, x: by_weight(gy, x, shape, options), gy, x)
    gy, x = map(_in_order, (gy, x))
    stride, padding, dilation, groups = options
    gw = scratch(np.empty(w.shape, np.float32), "temporary")
    if not (gw.size and gy.size and x.size):
        gw[...] = 0
    elif by_winograd(w.shape, options, *_n_and_size(gy.shape)):
        _winograd_weight(gw, gy, x, padding[0][0], padding[1][0])
    else:
        phases = [conv_geometry.forward(n, k, s, p[0], d) for n, k, s, p, d in zip(
            gy.shape[2:], w.shape[2:], stride, padding, dilation)]
        _product_weight(gw, gy, x, groups, *phases)
    return gw


def by_bias(gy):
    """Returns gb (O,): the sum of gy over images and places."""
    gb = np.empty(gy.shape[1], np.float32)
    if gy.dtype == np.float16 or not gy.size:
        return gy.sum(axis=(0, 2, 3), dtype=np.float32)
    n, channels, *size = gy.shape
    dispatch.kernel(FILE, "conv_bias")(channels, 1, (
        gb, _in_order(gy), n, channels, math.prod(size)))
    return gb


def _in_order(a):
    return scratch(np.ascontiguousarray(a), of=a)


def _in_float32(function, *args):
    args = [scratch(a.astype(np.float32)) if isinstance(a, np.ndarray) else a for a in args]
    with np.errstate(over="ignore"):  # gives inf without a warning, as other ops do
        return function(*args).astype(np.float16)


def _per_part(n, n_parts, multiple):
    """Returns the size of a part if n things are divided into n_parts. The size is rounded up to a
    multiple of `multiple`."""
    return -(-n // (n_parts * multiple)) * multiple


def _units_for_threads():
    """Returns the number of blocks that a launch needs, so that all threads have enough work."""
    return UNITS * run.n_threads() if run.n_threads() > 1 else 1


def _parts_for_threads(n_blocks, n_rows):
    """Returns the number of parts into which n_rows rows are divided. With n_blocks blocks for each
    part, there are then enough blocks for all threads. A part has at least 8 tiles of rows."""
    return max(1, min(-(-_units_for_threads() // n_blocks), n_rows // (8 * TILE_ROWS)))


# -- Winograd


def by_winograd(w_shape, options, n_images, size):
    """Returns True if Winograd's form is possible for this convolution, and faster than the other
    forms. size: (height, width) of the result. The transformation of a weight takes as long as the
    products of about 50 tiles. So with fewer tiles Winograd's form is slower."""
    stride, _, dilation, groups = options
    return (winograd_is_on() and w_shape[2:] == (3, 3) and stride == dilation == (1, 1)
            and groups == 1 and min(w_shape[:2]) >= 8 and size[1] <= WIDE
            and _n_tiles(n_images, size) >= FEW_TILES)


def _n_and_size(shape):
    return shape[0], shape[2:]


def _n_tiles(n, size):
    return n * -(-size[0] // 2) * -(-size[1] // 2)


def _chunk(depth):
    """Returns the number of input channels that are summed at a time. depth: the number of all
    input channels. The channels of a chunk are contiguous in U, the transformed weights."""
    return min(CHANNELS, -(-depth // TOGETHER) * TOGETHER)


def _winograd(y, x, w, turned, b, top, left):
    """Writes y, the convolution of x and w. turned: True for the gradient of the input. Then the
    input and output channels of w are exchanged. top, left: the padding of x. Works on at most
    CHANNELS output channels at a time, so that their transformed weights stay in the cache."""
    (n, n_in, *size), (_, all_outs, *out) = x.shape, y.shape
    n_tiles = _n_tiles(n, out)
    group = min(TILES, -(-n_tiles // 16) * 16)
    n_blocks = -(-n_tiles // group)
    for first in range(0, all_outs, CHANNELS):
        n_out = min(CHANNELS, all_outs - first)
        u = _weights_of_winograd(w, turned, first, n_out)
        chunk = u.shape[-1]
        outs = _per_part(n_out, _parts_for_threads(n_blocks, n_out), TILE_ROWS)
        outs_at_once = TILE_ROWS if n_in <= chunk else outs
        dispatch.kernel(WINOGRAD_FILE, "winograd")((n_blocks, -(-n_out // outs)), 1, (
            y.reshape(-1)[first * math.prod(out):], x, u, None if b is None else b[first:], n, n_in,
            n_out, all_outs, *size, *out, top, left, group, outs, outs_at_once, chunk))


def _weights_of_winograd(w, turned, first, n_rows):
    """Returns U, the transformed weights: (chunks, 16, n_rows, input channels of a chunk). U has
    n_rows output channels, from channel `first` on, and all input channels. _chunk() gives the size
    of a chunk."""
    o, c = w.shape[:2]
    depth, row, step = (o, 9, 9 * c) if turned else (c, 9 * c, 9)  # strides in elements
    chunk = _chunk(depth)
    u = scratch(np.empty((-(-depth // chunk), 16, n_rows, chunk), np.float32))
    dispatch.kernel(WINOGRAD_FILE, "winograd_weights")(-(-n_rows // TOGETHER), 1, (
        u, w.reshape(-1)[first * row:], n_rows, depth, chunk, row, step, turned))
    return u


def _winograd_parts(gw_size, n, size):
    """Returns (tiles at a time, tiles of a part, number of parts). The gradient of the weight is a
    sum over all tiles, and this sum is divided into parts. gw_size: the number of weights. n, size:
    the number of images, and the (height, width) of the result."""
    n_tiles = _n_tiles(n, size)
    group = min(TILES, -(-n_tiles // 16) * 16)
    tiles = _per_part(n_tiles, _parts_of_gradient(gw_size, n_tiles // (4 * group)), group)
    return group, tiles, -(-n_tiles // tiles)


def _winograd_weight(gw, gy, x, top, left):
    n, n_in, *size = x.shape
    n_out, *out = gy.shape[1:]
    group, tiles, n_parts = _winograd_parts(gw.size, n, out)
    outs = min(-(-n_out // 16) * 16, CHANNELS)
    out_parts = -(-n_out // outs)
    most = STACK // (16 * outs)
    ins = _per_part(n_in, max(-(-n_in // most), _parts_for_threads(n_parts * out_parts, n_in)), 1)
    parts = _parts(gw, n_parts)
    dispatch.kernel(WINOGRAD_FILE, "winograd_weight")((n_parts, -(-n_in // ins), out_parts), 1, (
        parts, x, gy, n, n_in, n_out, *size, *out, top, left, group, ins, outs, tiles))
    _sum(gw, parts)


def _parts_of_gradient(gw_size, most):
    """Returns the number of parts in which the gradient of the weight is summed, at least 1. The
    number is at most `most` and at most 8, and all parts together have at most 2 MiB."""
    return max(1, min(8, 2**19 // max(gw_size, 1), most))


def _parts(gw, n_parts):
    return gw if n_parts == 1 else scratch(np.empty((n_parts, gw.size), np.float32))


def _sum(gw, parts):
    if parts is not gw:
        np.add.reduce(parts, axis=0, out=gw.reshape(-1))


# -- the product with columns that are never stored all at once


def _geometry(x, y, groups, rows, columns):
    """Returns the arguments that tell the kernel which pixels of x it must read for each pixel of
    y: the fields of the struct Geometry in the .cu file, in order."""
    return (x.shape[0], x.shape[1], y.shape[1], *x.shape[2:], rows.n, columns.n, rows.n_taps,
            columns.n_taps, rows.read_step, columns.read_step, rows.read, columns.read,
            rows.read_tap, columns.read_tap, *y.shape[2:], rows.step, columns.step, rows.first,
            columns.first)


def _pixels_at_once(depth):
    return max(LEAST_PIXELS, min(MOST_PIXELS, STACK // max(depth, 1) // 64 * 64))


def _is_few(n_in, n_out):
    """Returns True if a group has so few channels that most tiles of a product would be empty."""
    return n_in * n_out <= 2


def _part_at_once(rows, columns, n_in):
    """Returns (rows, columns): how many rows and columns of the result a block computes. The input
    rows that the block reads then fit on the stack. The arguments `rows` and `columns` are phases,
    and n_in is the number of input channels."""
    wide = min(columns.n, WIDE)
    line = n_in * columns.read_step * (wide + columns.n_taps + 64)
    return min(rows.n, max(4, STACK // (line * rows.read_step))), wide


def _product(y, x, w, b, groups, rows, columns):
    """Writes the pixels of a phase into y (conv_geometry.py explains phases). w: the weights of
    this phase, with the taps in the order in which the phase reads x. rows, columns: the phase of
    the rows, and the phase of the columns."""
    if not rows.n_taps * columns.n_taps:
        here = y[:, :, rows.first::rows.step, columns.first::columns.step]
        here[...] = 0 if b is None else b[:, None, None]
        return
    n_pixels = x.shape[0] * rows.n * columns.n
    n_in, n_out = x.shape[1] // groups, y.shape[1] // groups
    geometry = _geometry(x, y, groups, rows, columns)
    if _is_few(n_in, n_out):
        height, width = _part_at_once(rows, columns, n_in)
        n_blocks = -(-rows.n // height) * -(-columns.n // width)
        dispatch.kernel(FILE, "conv_few")((n_blocks, y.shape[1], x.shape[0]), 1, (
            y, x, w, b, groups, height, width, *geometry))
        return
    taps = rows.n_taps * columns.n_taps
    in_chunks = n_in * taps * LEAST_PIXELS > STACK
    chunk = max(1, STACK // (MOST_PIXELS * taps)) if in_chunks else n_in
    pixels = MOST_PIXELS if in_chunks else _pixels_at_once(n_in * taps)
    pixels = min(pixels, -(-n_pixels // 16) * 16)
    # If there are too few blocks for the threads, a block gets fewer pixels. If this is not enough,
    # a block also gets fewer output channels. Fewer channels cost more, because several blocks then
    # copy the same pixels.
    while pixels > LEAST_PIXELS and -(-n_pixels // pixels) * groups < _units_for_threads():
        pixels = -(-pixels // 32) * 16
    n_blocks = -(-n_pixels // pixels)
    outs = _per_part(n_out, _parts_for_threads(n_blocks * groups, n_out), TILE_ROWS)
    outs_at_once = TILE_ROWS
    if chunk < n_in:
        outs = outs_at_once = min(outs, 2 * CHANNELS)
    dispatch.kernel(FILE, "conv_product")((n_blocks, -(-n_out // outs), groups), 1, (
        y, x, w, b, groups, pixels, outs, outs_at_once, chunk, *geometry))


def _weights_of_phase(w, groups, rows, columns):
    """Returns the weights that one phase uses: (groups, C / groups, O / groups, taps of the rows,
    taps of the columns). The gradient of the input is computed phase by phase. w: (O, C / groups,
    kh, kw). rows, columns: the phase of the rows, and the phase of the columns."""
    o, c, kh, kw = w.shape
    per_group = o // groups
    phase = scratch(np.empty((groups, c, per_group, rows.n_taps, columns.n_taps), np.float32))
    if phase.size:
        start = w.reshape(-1)[rows.tap * kw + columns.tap:]
        dispatch.kernel(FILE, "conv_weights")((-(-c // TOGETHER), groups), 1, (
            phase, start, c, per_group, rows.n_taps, columns.n_taps, kh * kw, c * kh * kw,
            rows.tap_step * kw, columns.tap_step))
    return phase


def _product_parts(gw_size, n, size):
    """Returns (pixels of a part, number of parts). The gradient of the weight is a sum over all
    pixels, and this sum is divided into parts. The arguments are as in _winograd_parts."""
    n_pixels = n * math.prod(size)
    n_parts = _parts_of_gradient(gw_size, n_pixels // (4 * MOST_PIXELS))
    part = _per_part(n_pixels, n_parts, MOST_PIXELS)
    return part, -(-n_pixels // part)


def _product_weight(gw, gy, x, groups, rows, columns):
    n_in, n_out = x.shape[1] // groups, gy.shape[1] // groups
    geometry = _geometry(x, gy, groups, rows, columns)
    if _is_few(n_in, n_out):
        dispatch.kernel(FILE, "conv_few_weight")((gy.shape[1], n_in), 1, (
            gw, x, gy, groups, *_part_at_once(rows, columns, 1), *geometry))
        return
    part, n_parts = _product_parts(gw.size, *_n_and_size(gy.shape))
    taps, outs = rows.n_taps * columns.n_taps, min(-(-n_out // 16) * 16, 2 * CHANNELS)
    out_parts, at_least = -(-n_out // outs), -(-n_in * taps * MOST_PIXELS // STACK)
    for_threads = _parts_for_threads(n_parts * groups * out_parts, n_in * taps)
    ins = _per_part(n_in, max(at_least, for_threads), 1)
    parts = _parts(gw, n_parts)
    dispatch.kernel(FILE, "conv_weight")((n_parts, -(-n_in // ins) * out_parts, groups), 1, (
        parts, x, gy, groups, MOST_PIXELS, ins, outs, part, *geometry))
    _sum(gw, parts)


# -- the memory ledger's formulas


def workspace(x_shape, w_shape, out, options):
    """Returns three numbers of bytes: the workspace of forward, of by_input and of by_weight, for
    float32."""
    (n, c), (o, _, kh, kw), groups = x_shape[:2], w_shape, options[3]
    forward = 0
    if by_winograd(w_shape, options, n, out):
        forward = _winograd_weights_bytes(o, c)
    if by_winograd(w_shape, options, *_n_and_size(x_shape)):
        by_input = _winograd_weights_bytes(c, o)
    else:
        stride, padding, dilation, _ = options
        rows, columns = (max(phase.n_taps for phase in conv_geometry.phases(n, k, s, p[0], d))
                         for n, k, s, p, d in zip(x_shape[2:], (kh, kw), stride, padding, dilation))
        by_input = 4 * c * o // groups * rows * columns
    n_parts = 1
    if by_winograd(w_shape, options, n, out):
        n_parts = _winograd_parts(math.prod(w_shape), n, out)[2]
    elif not _is_few(c // groups, o // groups):
        n_parts = _product_parts(math.prod(w_shape), n, out)[1]
    by_weight = 4 * math.prod(w_shape) * n_parts * (n_parts > 1)
    return forward, by_input, by_weight


def _winograd_weights_bytes(rows, depth):
    chunk = _chunk(depth)
    return 4 * 16 * min(rows, CHANNELS) * -(-depth // chunk) * chunk
