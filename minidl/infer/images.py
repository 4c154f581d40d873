"""Adds launches of convolutions and poolings with the channels last. cpu/infer.cuh has the loops.

    conv_nhwc    a block computes one row of an image, for 32 channels of the result. If the last
                 step is a pooling of 2 x 2, a block computes two rows.
                 If the filters are 3 x 3, the stride is 1, and the number of input channels is a
                 multiple of 16, Winograd's algorithm is used (infer_winograd.cuh). A block then
                 computes some tiles of 2 x 2 pixels. If a pixel is infinite, all tiles that read
                 this pixel become NaN
    *_pool_nhwc  a block computes one row of an image

The result may have a border of zeros (`Node.pad`). The blocks that write the result also write its
border.
Test: tests/infer/test_lower.py
"""

import numpy as np

from minidl.infer import lower
from minidl.ops.pool import fit

# The most input channels for Winograd's algorithm. A block of 14 tiles with this number of channels
# takes 900 KB of a thread's stack.
WIDEST = 1024
# If a convolution by Winograd's algorithm has at least this many blocks of tiles, each block
# computes all channels. Else each block computes only some of the channels.
ENOUGH = 16


def where(node):
    """Returns three things. The first is (N, H, W, C), the shape of the result without its border.
    The second is the name of a C++ type that computes addresses in the result. The third is a
    function border(first, last, row). border() returns a list with one C++ line. This line writes
    the border of a row, for the channels from first to last - 1. If the result has no border, the
    list is empty. row: the name of the C++ variable that holds the number of the row."""
    n, h, w, c = node.output.shape
    (top, bottom), (left, right) = node.pad or ((0, 0), (0, 0))
    h, w = h - top - bottom, w - left - right
    image = f"Image<{h}, {w}, {c}, {top}, {bottom}, {left}, {right}>"

    def border(first, last, row="h"):
        return [f"  {image}::border(out, n, {row}, {first}, {last});"] if node.pad else []

    return (n, h, w, c), image, border


def conv(low, node):
    """Adds the launch of a conv_nhwc line. Returns False if the line must run as an eager op."""
    x, w, bias = node.inputs[:3]
    (n, rows, columns, o), image, border = where(node)
    (_, h, wide, c), (_, _, kh, kw), stride = x.shape, w.shape, node.attributes["stride"]
    oh, ow = (h - kh) // stride[0] + 1, (wide - kw) // stride[1] + 1
    pooled = bool(node.steps) and node.steps[-1].op == "max_pool_nhwc"
    steps = node.steps[:-1] if pooled else node.steps
    found = lower.steps_of(low, node, (n, oh, ow, o), bias, steps)
    if found is None:
        return False
    text, result, args = found
    panels, of_block = -(-o // lower.PANEL), "blockIdx.y, blockIdx.y + 1"
    panel = "blockIdx.y * PANEL", f"min(blockIdx.y * PANEL + PANEL, {o}u)", "row"
    if (kh, kw, *stride) == (3, 3, 1, 1) and c % 16 == 0 and o >= 16 and c <= WIDEST:
        n_tiles = -(-oh // 2) * -(-ow // 2)
        # m is the number of tiles in a block. It is from 8 to 14, or less if there are fewer tiles.
        # The best m has the fewest unused tiles in the last block.
        m = min(range(min(n_tiles, 8), min(n_tiles, 14) + 1), key=lambda m: (-n_tiles % m, -m))
        blocks, matrix = -(-n_tiles // m), winograd_filters(w.array)
        if n * blocks >= ENOUGH:  # a block computes all panels, and transforms each tile once
            panels, of_block = 1, f"0, {panels}"
            panel = "0", o, "row"
        body = [f"  // {h} x {wide} x {c} with its border: {n_tiles} tiles of 2 x 2 pixels",
                "  const int n = blockIdx.z;",
                f"  winograd<{m}, {oh}, {ow}, {o}, {h}, {wide}, {c}>(image, w, blockIdx.x,",
                f"      {of_block}, n, [=](float {lower.SINK}, int h, int pixel, int col) {{"]
        borders = f"  if (blockIdx.x == 0) for (int row = 0; row < {rows}; ++row)"
    else:
        blocks, matrix = rows, w.array.transpose(0, 2, 3, 1).reshape(o, -1)
        sizes = oh, ow, o, h, wide, c, kh, kw, *stride
        each = "for (int h = 2 * row; h < 2 * row + 2; ++h)" if pooled else "const int h = row;"
        body = [f"  // {h} x {wide} x {c} with its border, {kh} x {kw}: rows of {kw * c} numbers",
                "  const int row = blockIdx.x, n = blockIdx.z;", f"  {each}",
                f"  conv_row<{', '.join(map(str, sizes))}>(image, w, h, blockIdx.y, n,",
                f"      [=](float {lower.SINK}, int pixel, int col) {{"]
        borders = ""
    written = [f"out[{image}::at(n, h, pixel) + col] = {result};"]
    # Stores the first pixel of a window. Each larger pixel of the window then replaces the stored
    # pixel.
    if pooled:
        inside = f"if (h < {2 * rows} && pixel < {2 * columns}) "
        written = [f"float* kept = out + {image}::at(n, h / 2, pixel / 2) + col;",
                   f"{inside if (2 * rows, 2 * columns) != (oh, ow) else ''}*kept = "
                   f"(h | pixel) % 2 ? larger(*kept, {result}) : {result};"]
    body += [f"        const long long at = ((n * {oh}LL + h) * {ow} + pixel) * {o} + col;",
             *("        " + line for line in [*text, *written]), "      });"]
    body += [borders + line for line in border(*panel)]
    args = [("float* out", low.own(node.output)), ("const float* image", low.contiguous(x)),
            ("const float* w", lower.packed(matrix)), *args]
    return low.add(node.op, [node.output], "\n".join(body), args,
                   (blocks, panels, n))


def winograd_filters(w):
    """Returns the filters (O, C, 3, 3), transformed for kernels/cpu/infer_winograd.cuh: (O, 16 C)
    float32."""
    g = np.array([[1, 0, 0], [.5, .5, .5], [.5, -.5, .5], [0, 0, 1]])
    u = np.einsum("pi,ocij,qj->opqc", g, w.astype(np.float64), g)
    return u.reshape(len(w), -1).astype(np.float32)


def pool(low, node):
    """Adds the launch of a pooling with the channels last."""
    x, = node.inputs
    (n, oh, ow, c), image, border = where(node)
    (kh, kw), (down, right) = node.attributes["kernel"], node.attributes["stride"]
    largest, pad = node.op == "max_pool_nhwc", ((0, 0), (0, 0))
    if largest:
        nchw = x.shape[0], c, *x.shape[1:3]
        keys = "kernel", "stride", "padding", "dilation", "ceil_mode"
        pad = fit(nchw, *(node.attributes[k] for k in keys))[1]
    (_, h, w, _), words = x.shape, ("false", "true")
    cut = any(map(sum, pad)) or (oh - 1) * down + kh > h or (ow - 1) * right + kw > w
    sizes = ow, h, w, c, kh, kw, down, right, pad[0][0], pad[1][0], words[cut], words[largest]
    text = ("  const int h = blockIdx.x, n = blockIdx.y;\n"
            f"  pool_row<{', '.join(map(str, sizes))}>(image, h, n,\n"
            f"      [=](float x, int w, int c) {{ out[{image}::at(n, h, w) + c] = x; }});")
    args = [("float* out", low.own(node.output)), ("const float* image", low.contiguous(x))]
    return low.add(node.op, [node.output], "\n".join([text, *border(0, c)]), args, (oh, n))


def moved(low, node):
    """Adds a launch that copies an image row by row. to_nhwc puts the channels last, and pad_nhwc
    adds a border. Returns False if the line must run as an eager op."""
    x, = node.inputs
    if x.array is not None or x.dtype != np.float32:
        return False
    (n, h, w, c), image, border = where(node)
    by_row, by_pixel, by_channel = (w, 1, h * w) if node.op == "to_nhwc" else (w * c, c, 1)
    text = ["  const int h = blockIdx.x, n = blockIdx.y;",
            f"  image += n * {h * w * c}LL + h * {by_row}LL;",
            f"  {'SIMD ' * (c == 1)}for (int w = 0; w < {w}; ++w)",
            f"    {'SIMD ' * (c > 1)}for (int c = 0; c < {c}; ++c)",
            f"      out[{image}::at(n, h, w) + c] = image[w * {by_pixel}LL + c * {by_channel}LL];",
            *border(0, c)]
    args = [("float* out", low.own(node.output)), ("const float* image", low.contiguous(x))]
    return low.add(node.op, [node.output], "\n".join(text), args, (h, n))


def turned(low, node):
    """Makes the output of to_nchw a view of the input's bytes, with other strides. No launch is
    needed."""
    x, = node.inputs
    y = low.dummies[x].transpose(0, 3, 1, 2)
    base = low.layouts[x]
    low.dummies[node.output] = y
    low.layouts[node.output] = lower.Layout(base.root, base.offset, y.strides)
    return True


LOWER = {**lower.LOWER, "conv_nhwc": conv, "max_pool_nhwc": pool, "avg_pool_nhwc": pool,
         "to_nhwc": moved, "pad_nhwc": moved, "to_nchw": turned}
