"""Convolution by the kernels of a GPU: forward, and the gradients of the input and the weight.

One kernel, `gather`, computes forward and also the gradient of the input. For each element of the
result, the kernel reads the pixels that the taps need. (A tap is an element of the kernel w, at one
row and one column.) The gradient of the input differs from forward in two things. The input and
output channels of w are exchanged (a small copy). And if the stride is larger than 1, the places of
gx are in several phases, which use different taps (conv_geometry.py). There is one launch for each
pair (phase of the rows, phase of the columns).

    rungs   1 naive   2 tiles in shared memory   3 also in registers   4 also 16 bytes a load
            5 tensor cores (float16)   "winograd" 3 x 3, stride 1   "depthwise" one channel a group
            gradient of the weight: 1, 2, 3, 5, "depthwise"

The functions take the same arguments as the functions of conv_columns.py, and two more. rung: one
of the rungs above; the default is the best rung for the device. form: the keyword arguments `form`
and `order`, which are passed to `cuda.kernel`.
`options` is a tuple (stride, padding, dilation, groups), and padding is ((top, bottom), (left,
right)).

Kernels: kernels/conv.cu, kernels/conv_weight.cu
Op: minidl/ops/conv.py   Test: tests/ops/test_conv_kernel.py
"""

import itertools
from collections import namedtuple

import numpy as np

from minidl.cuda import dispatch, rows
from minidl.cuda.device import winograd_is_on
from minidl.cuda.launch import BLOCK, LARGEST, contiguous, scratch
from minidl.ops import conv_columns, conv_geometry

FILE, WEIGHT_FILE = "conv.cu", "conv_weight.cu"
TENSOR_CORES = 5
# ENOUGH_BLOCKS blocks keep a large GPU busy. An H100 has 132 processors, and each of them runs 2
# blocks. With fewer than FEWEST_PIXELS pixels, one more partial result costs more time than it
# saves. These two numbers do not depend on the device. So all GPUs round sums in the same way.
ENOUGH_BLOCKS = 264
FEWEST_PIXELS = 512
# With 5 channels, rungs 4 and 1 are equally fast. Rung 1 reaches 5 % of the peak. Rung 4 reaches
# 60 % with a full tile of 64 channels, but with 5 channels its tile is mostly empty.
FEW_CHANNELS = 6
MAX_GRID = 65535  # the most blocks of a GPU's grid along y and z

# The arguments that the kernels call SHAPE (kernels/conv.cuh), in the same order.
Shape = namedtuple("Shape", "N G C M H W U V R Q fy sy ey fx sx ex HY WY oy ty ox tx")


def forward(x, w, b, options, out, rung=None, **form):
    """Returns y (N, O, *out). x (N, C, H, W), w (O, C / groups, kh, kw), b (O,) or None."""
    xp, n_out, groups = rows.backend_of(x), w.shape[0], options[3]
    y = scratch(xp.empty((x.shape[0], n_out, *out), x.dtype), "temporary")
    matrix = contiguous(xp, w).reshape(groups, n_out // groups, *w.shape[1:])
    gather(y, contiguous(xp, x), matrix, b, whole(out, w, options), rung, form)
    return y


def by_input(gy, w, x_shape, options, b=None, rung=None, **form):
    """Returns gx, of shape x_shape. gy (N, O, oh, ow). b: None, or the bias (C,) that a transposed
    convolution adds to the result."""
    xp, (stride, padding, dilation, groups) = rows.backend_of(gy), options
    gx = scratch(xp.empty(x_shape, gy.dtype), "temporary")
    gy = contiguous(xp, gy)
    # C and O are exchanged in `turned`. Its shape is (groups, C / groups, O / groups, kh, kw).
    turned = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    phases = [conv_geometry.phases(n, k, s, before, d) for n, k, s, (before, _), d in zip(
        x_shape[2:], w.shape[2:], stride, padding, dilation, strict=True)]
    for phase in itertools.product(*phases):
        if all(p.n_taps for p in phase):
            taps = turned[(..., *(slice(p.tap, None, p.tap_step) for p in phase))]
            taps = scratch(xp.ascontiguousarray(taps[..., ::-1, ::-1]))
            gather(gx, gy, taps, b, [reverse(p) for p in phase], rung, form)
        else:  # no output of forward reads these places, so their gradient is 0
            places = gx[(..., *(slice(p.first, None, p.step) for p in phase))]
            places[...] = 0 if b is None else b[:, None, None]
    return gx


def by_weight(gy, x, w, options, rung=None, **form):
    """Returns gw, of w's shape. gy (N, O, oh, ow), x (N, C, H, W)."""
    xp, groups = rows.backend_of(x), options[3]
    gw = scratch(xp.empty(w.shape, x.dtype), "temporary")
    w_shape = groups, w.shape[0] // groups, *w.shape[1:]
    shape = shape_of(x.shape, gy.shape, w_shape, whole(gy.shape[2:], w, options))
    rung = rung or best_weight_rung(xp, x.dtype, shape)
    check(shape, rung, x.dtype)
    gy, x = contiguous(xp, gy), contiguous(xp, x)
    n_taps, channels = shape.C * shape.U * shape.V, shape.G * shape.M
    args = gw, gy, x, *shape
    if not gy.size:
        gw[...] = 0
    elif rung == 1:
        grid = rows.blocks(n_taps, 32), rows.blocks(channels, 8)
        launch(WEIGHT_FILE, "conv_weight_v1", x.dtype, grid, (32, 8), args, form)
    elif rung == 2:
        grid = rows.blocks(n_taps, 16), rows.blocks(shape.M, 16), shape.G
        launch(WEIGHT_FILE, "conv_weight_v2", x.dtype, grid, (16, 16), args, form)
    elif rung == "depthwise":
        launch(WEIGHT_FILE, "conv_weight_depthwise", x.dtype, (gw.size,), BLOCK, args, form)
    else:
        in_shares(gw, gy, x, shape, rung, form)
    return gw


by_bias = conv_columns.by_bias  # the gradient of the bias is a single sum, which needs no kernel


def whole(out, w, options):
    """Returns [phase of the rows, phase of the columns] of forward. The phases cover the whole
    result, of size `out`."""
    stride, padding, dilation, _ = options
    return [conv_geometry.forward(n, k, s, before, d) for n, k, s, (before, _), d in zip(
        out, w.shape[2:], stride, padding, dilation, strict=True)]


def in_shares(gw, gy, x, shape, rung, form):
    """Computes the gradient of the weight by rung 3 or 5. First computes a partial result for each
    share of the pixels, then the sum of the partial results. If there are several shares, the
    partial results have at most 2 * ENOUGH_BLOCKS tiles: 33 MiB for rung 5, 9 MiB for rung 3."""
    xp, n_taps = rows.backend_of(x), shape.C * shape.U * shape.V
    macros, side, block = tile_of(rung, shape)
    grid = rows.blocks(n_taps, side[1]), rows.blocks(shape.M, side[0])
    n_pixels = shape.N * shape.R * shape.Q
    share, n_shares = shares(n_pixels, grid[0] * grid[1] * shape.G)
    partial = scratch(xp.empty((n_shares, gw.size), dispatch.SUM_DTYPES[gw.dtype]))
    launch(WEIGHT_FILE, f"conv_weight_v{rung}", x.dtype, (*grid, shape.G * n_shares), block,
           (partial, gy, x, share, *shape), {**macros, **form})
    launch(WEIGHT_FILE, "conv_weight_sum", x.dtype, (rows.blocks(gw.size, BLOCK),), BLOCK,
           (gw, partial, n_shares, gw.size), form)


def shares(n_pixels, n_blocks):
    """Returns (pixels of a share, number of shares) for a product of n_blocks tiles. There are
    enough shares to keep a GPU busy, but no share has fewer than FEWEST_PIXELS pixels. The
    number of pixels of a share is a multiple of 32. A tile on tensor cores takes 32 pixels in a
    step."""
    wanted = min(rows.blocks(ENOUGH_BLOCKS, n_blocks), n_pixels // FEWEST_PIXELS)
    share = rows.blocks(rows.blocks(n_pixels, max(wanted, 1)), 32) * 32
    return share, rows.blocks(n_pixels, share)


def reverse(phase):
    """Returns the phase with its taps (the rows or columns of the kernel w) in reverse order. The
    sum over the taps is the same. The kernels need this order, because they read the columns of an
    image from left to right."""
    last = phase.read + phase.read_tap * (phase.n_taps - 1)
    return phase._replace(read=last, read_tap=-phase.read_tap)


def gather(y, x, w, bias, phase, rung, form):
    """Computes the elements of y that belong to `phase`, a pair (phase of the rows, phase of the
    columns). w: (groups, M, C, taps of the rows, taps of the columns). A group has M channels of y
    and C channels of x."""
    xp = rows.backend_of(x)
    shape = pointwise(shape_of(x.shape, y.shape, w.shape, phase))
    rung = rung or best_rung(xp, x.dtype, shape)
    check(shape, rung, x.dtype)
    if bias is not None and bias.dtype != x.dtype:
        bias = bias.astype(x.dtype)
    n_pixels = shape.N * shape.R * shape.Q
    if not n_pixels:
        return
    name, macros, shared = f"conv_v{rung}", {}, 0
    if rung == 1:
        grid = rows.blocks(n_pixels, 32), rows.blocks(shape.G * shape.M, 8)
        block = 32, 8
    elif rung == "depthwise":
        name = "conv_depthwise"
        block = min(BLOCK, rows.blocks(shape.R * shape.Q, 32) * 32)
        grid = shape.N * shape.G, rows.blocks(shape.R * shape.Q, block)
        shared = shape.U * shape.V * dispatch.SUM_DTYPES[x.dtype].itemsize
    elif rung == "winograd":
        name, block = "conv_winograd", (16, 16)
        n_tiles = shape.N * rows.blocks(shape.R, 2) * rows.blocks(shape.Q, 2)
        grid = rows.blocks(n_tiles, 32), rows.blocks(shape.M, 32), shape.G
    else:
        macros, side, block = tile_of(rung, shape)
        grid = rows.blocks(n_pixels, side[1]), rows.blocks(shape.M, side[0]), shape.G
    launch(FILE, name, x.dtype, grid, block, (y, x, w, bias, *shape), {**macros, **form}, shared)


def launch(file, name, dtype, grid, block, args, macros, shared_mem=0):
    """Launches a kernel. macros: the macros of the kernel, and the keyword arguments `form` and
    `order` of `cuda.kernel`. Raises ValueError if the grid is too large for a GPU."""
    if max(grid[1:], default=0) > MAX_GRID:
        raise ValueError(f"convolution: a GPU takes at most {MAX_GRID} blocks along the last two "
                         f"dimensions of a grid; got the grid {grid} for {name}. Use fewer groups "
                         "or channels, or rung 1")
    rows.kernel(file, name, dtype, **macros)(grid, block, args, shared_mem=shared_mem)


def tile_of(rung, shape):
    """Returns (macros, tile, threads). tile: (rows, columns), the size of the part of the result
    that a block computes. threads: the number of threads of a block."""
    if rung == TENSOR_CORES:
        n_rows = 64 if shape.M <= 64 else 128
        return {"ROWS": n_rows}, (n_rows, 128), BLOCK
    return {}, {2: (16, 16), 3: (64, 64), 4: (64, 64)}[rung], (16, 16)


def shape_of(x_shape, y_shape, w_shape, phase):
    """Returns the Shape of a launch. x (N, G C, H, W), y (N, G M, HY, WY), w (G, M, C, U, V): G
    groups, each with C channels of x and M channels of y, and a kernel of U x V taps."""
    row, column = phase
    return Shape(x_shape[0], *(w_shape[i] for i in (0, 2, 1)), *x_shape[2:], *w_shape[3:], row.n,
                 column.n, row.read, row.read_step, row.read_tap, column.read, column.read_step,
                 column.read_tap, *y_shape[2:], row.first, row.step, column.first, column.step)


def pointwise(s):
    """Returns a Shape for the same computation. If a 1 x 1 kernel reads each pixel once, the new
    Shape has images of a single row. Then more accesses of 16 bytes are aligned. For other kernels,
    returns s."""
    plain = s.U == s.V == s.sy == s.sx == s.ty == s.tx == 1 and s.fy == s.fx == s.oy == s.ox == 0
    if plain and (s.H, s.W) == (s.R, s.Q) == (s.HY, s.WY):
        size = s.H * s.W
        return s._replace(H=1, W=size, R=1, Q=size, HY=1, WY=size)
    return s


def fits_winograd(s):
    return (s.U, s.V, s.sy, s.sx, s.ey, s.ex) == (3, 3, 1, 1, 1, 1)


def fits_depthwise(s):
    return s.C == s.M == 1


def best_rung(xp, dtype, shape):
    """Returns the best rung. For a GPU this is the fastest rung according to the computations at
    the top of the .cu files. For a CPU this is rung 1, the only rung without barriers. A block of
    Winograd has 32 channels. Winograd is chosen only if a group has at least 16 input channels and
    at least 16 output channels."""
    if xp is np:
        return 1
    if fits_depthwise(shape):
        return "depthwise"
    if dtype == np.float16:
        return TENSOR_CORES
    if shape.M < FEW_CHANNELS:
        return 1
    winograd = winograd_is_on() and fits_winograd(shape) and min(shape.C, shape.M) >= 16
    return "winograd" if winograd else 4


def best_weight_rung(xp, dtype, shape):
    if xp is np:
        return 1
    if fits_depthwise(shape):
        return "depthwise"
    return TENSOR_CORES if dtype == np.float16 else 3


def check(shape, rung, dtype):
    """Raises TypeError or ValueError if the rung does not support this shape or dtype. Raises
    ValueError if the sizes of the launch do not fit in an int."""
    if rung == TENSOR_CORES and dtype != np.float16:
        raise TypeError(f"convolution: rung 5 (tensor cores) wants float16; got {dtype}. Use one "
                        "of the rungs 1 to 4")
    if rung == "winograd" and not fits_winograd(shape):
        raise ValueError("convolution: rung 'winograd' wants a 3 x 3 kernel, stride 1 and dilation "
                         f"1; got a {shape.U} x {shape.V} kernel, stride {shape.sy, shape.sx}, "
                         f"dilation {shape.ey, shape.ex}. Use one of the rungs 1 to 5")
    if rung == "depthwise" and not fits_depthwise(shape):
        raise ValueError("convolution: rung 'depthwise' wants one input channel and one output "
                         f"channel in each group; got {shape.C} and {shape.M}. Use one of the "
                         "rungs 1 to 5")
    s = shape
    if max(s.N * s.R * s.Q, s.C * s.H * s.W, s.G * s.M * s.C * s.U * s.V) > LARGEST:
        raise ValueError(f"convolution: a launch can have at most {LARGEST} pixels, {LARGEST} "
                         f"weights, and {LARGEST} elements in one group of an image; got {shape}. "
                         "Use a smaller batch")
