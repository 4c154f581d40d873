"""The rungs that `minidl kernel bench` runs, and the results that each rung should give.

Each kernel file has one function in this file. The function returns a list of Cases. Its arguments
are: `op`, the file of minidl/ops/ that launches the kernels; draw(*shape), which makes an input;
and the sizes. To add a kernel file, write its function and add an entry to SIZES.

Test: tests/cli/test_kernel_bench.py   Used by: kernel_bench.py
"""

import functools
import math
from collections import namedtuple

import numpy as np

from minidl import backend
from minidl.ops import conv_columns, conv_cpu
from minidl.ops import softmax as softmax_op

# {name: (sizes for a CPU, sizes for a GPU)}. The sizes of a kernel are one of these: (elements);
# (rows, columns); (m, n, k) for the product of matrices (m, k) and (k, n); (batch, heads, length,
# width); (samples, channels, elements of a channel); (samples, channels, height, width); (images,
# channels, height = width, channels out)
SIZES = {"add3": ((1 << 22,), (1 << 26,)), "gelu": ((1 << 20,), (1 << 24,)),
         "relu": ((1 << 22,), (1 << 26,)), "batch_norm": ((8, 64, 256), (64, 256, 784)),
         "pool": ((8, 64, 16, 16), (64, 256, 28, 28)),
         "softmax": ((256, 1024), (16384, 1024)), "layer_norm": ((256, 1024), (16384, 1024)),
         "cross_entropy": ((256, 1024), (16384, 1024)), "matmul": ((256,) * 3, (2048,) * 3),
         "attention": ((1, 2, 256, 64), (8, 12, 1024, 64)),
         "conv": ((1, 16, 28, 32), (32, 128, 56, 128))}
# {name: the file of minidl/ that launches the kernels}, if this is not the file ops/<name>.py
FILES = {"attention": "ops.attention_kernel", "conv": "ops.conv_kernel", "relu": "ops.activations"}
# A Case: some rungs with the same result. Its fields:
#   calls    one function for each rung, without arguments
#   wanted   the result that each rung should return
#   n_terms  how many terms the longest sum has
#   flop     the number of operations of a matrix product; 0 for other kernels
#   rounding the rounding error of the results
#   n_bytes  the bytes moved, if the kernel gets its arrays by tables of addresses; otherwise 0
Case = namedtuple("Case", "calls wanted n_terms flop rounding n_bytes", defaults=(1, 0, 6e-8, 0))
HALF = dict(n_terms=1, rounding=2**-11)  # float16 results; tensor cores sum in float32


def add3(op, draw, n):
    arrays = [draw(n) for _ in range(3)]
    naive, fused = (functools.partial(elementwise, op, k) for k in ("add3_naive", "add3"))
    calls = [lambda: naive(naive(arrays[0], arrays[1]), arrays[2]), lambda: fused(*arrays)]
    cols = 64
    bias = draw(cols)

    def packs():
        out = arrays[0].copy()
        op.packs(out, *arrays)
        return out

    def relu_bias():
        out = arrays[0].copy()
        op.elementwise(op.FILE, "add3_relu_bias", out.dtype, n, (out, *arrays, bias, n, cols))
        return out

    total = sum(exact(*arrays))
    shifted = total + np.resize(*exact(bias), n)
    return [Case([*calls, *[packs] * on_gpu(bias)], total),
            Case([relu_bias] * on_gpu(bias), np.maximum(shifted, 0))]


def gelu(op, draw, n):
    x, gy = draw(n), draw(n)
    macros = dict(TANH=op.MACROS["tanh"], ACC="float")
    naive = [lambda: elementwise(op, "gelu", x, **macros)] * on_gpu(x)
    naive_backward = [lambda: elementwise(op, "gelu_backward", gy, x, **macros)] * on_gpu(x)
    return [Case([*naive, lambda: op.by_kernel(x, "tanh")], op.by_numpy(*exact(x), "tanh")),
            Case([*naive_backward, lambda: op.by_kernel_backward(x, "tanh", gy)],
                 op.by_numpy(*exact(x), "tanh", *exact(gy)))]


def relu(op, draw, n):
    x, gy = draw(n), draw(n)
    y = op.relu_by_kernel(x)
    naive = [lambda: elementwise(op, "relu", x)] * on_gpu(x)
    naive_backward = [lambda: elementwise(op, "relu_backward", gy, y)] * on_gpu(x)
    return [Case([*naive, lambda: op.relu_by_kernel(x)], op.relu_by_numpy(*exact(x))),
            Case([*naive_backward, lambda: op.relu_by_kernel_backward(gy, y)],
                 op.relu_by_numpy_backward(*exact(gy, y)))]


def softmax(op, draw, rows, cols):
    x, gy = draw(rows, cols), draw(rows, cols)
    y = op.by_kernel(x)
    wanted = op.by_numpy_backward(*exact(gy, y))
    return [Case(ladder(op.by_kernel, row_rungs(x), x), op.by_numpy(*exact(x)), cols),
            Case(ladder(op.by_kernel_backward, row_rungs(x), gy, y), wanted, cols)]


def layer_norm(op, draw, rows, cols):
    x, gy, w, b = draw(rows, cols), draw(rows, cols), draw(cols), draw(cols)
    x *= 0.1  # the variance is small, so a kernel without eps has a wrong result
    kept = op.by_kernel(x, w, b, 1e-5)[1:]
    return [Case(ladder(op.by_kernel, row_rungs(x), x, w, b, 1e-5),
                 op.by_numpy(*exact(x, w, b), 1e-5), cols),
            Case(ladder(op.by_kernel_backward, row_rungs(x), gy, x, w, *kept),
                 op.by_numpy_backward(*exact(gy, x, w, *kept)), max(rows, cols))]


def batch_norm(op, draw, samples, channels, places):
    x, gy, w, b = draw(samples, channels, places), draw(samples, channels, places), *(
        draw(channels) for _ in range(2))
    x *= 0.1  # the variance is small, so a kernel without eps has a wrong result
    w, b = (a.astype(backend.accumulate_dtype(a.dtype)) for a in (w, b))
    kept = op.by_kernel(x, w, b, 1e-5)
    kept, n = (kept[1], kept[3]), samples * places
    return [Case(ladder(op.by_kernel, row_rungs(x, (1, 2)), x, w, b, 1e-5),
                 op.by_numpy(*exact(x, w, b), 1e-5), n),
            Case(ladder(op.by_kernel_eval, row_rungs(x, (1,)), x, w, b, *kept),
                 op.by_numpy_eval(*exact(x, w, b, *kept))),
            Case(ladder(op.by_kernel_backward, row_rungs(x, (1, 2)), gy, x, w, *kept),
                 op.by_numpy_backward(*exact(gy, x, w, *kept)), n)]


def pool(op, draw, *shape):
    """Returns Cases for windows of 3 x 3 with stride 2 and padding 1. These windows overlap."""
    x = draw(*shape)
    out, padding = op.fit(shape, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), False)
    window = op.Window((3, 3), (2, 2), padding, (1, 1), out)
    gy, winner = draw(*shape[:2], *out), op.max_by_kernel(x, window)[1]
    numbers = np.full(out, 9, backend.accumulate_dtype(x.dtype))
    divisor = backend.to_device(numbers, backend.device_of(x))
    rungs = row_rungs(x, (1,))
    return [Case(ladder(lambda *args, rung: op.max_by_kernel(*args, rung)[0], rungs, x, window),
                 op.max_by_numpy(*exact(x), window)[0]),
            Case(ladder(op.max_by_kernel_backward, rungs, gy, winner, shape, window),
                 op.max_by_numpy_backward(*exact(gy), backend.to_device(winner, "cpu"), shape,
                                          window), 9),
            Case(ladder(op.avg_by_kernel, rungs, x, divisor, window),
                 op.avg_by_numpy(*exact(x), numbers.astype(np.float64), window), 9),
            Case(ladder(op.avg_by_kernel_backward, rungs, gy, divisor, shape, window),
                 op.avg_by_numpy_backward(*exact(gy), numbers.astype(np.float64), shape, window),
                 9)]


def cross_entropy(op, draw, rows, cols):
    x, g, classes = draw(rows, cols), draw(rows), np.arange(rows) * 7 % cols
    target = backend.to_device(classes, backend.device_of(x))
    lse = op.by_kernel(x, target)[1]
    return [Case(ladder(op.by_kernel, row_rungs(x), x, target),
                 op.by_numpy(*exact(x), classes), cols),
            Case(ladder(op.by_kernel_backward, row_rungs(x, (1, 2, 4, 5)), g, x, lse, target),
                 op.by_numpy_backward(*exact(g, x, lse), classes), cols)]


def matmul(op, draw, m, n, k):
    """Returns a Case in float32, and on a GPU one more Case in float16. The functions attention()
    and conv() below use the same dtypes."""
    a, b = draw(m, k), draw(k, n)
    cases = [Case(ladder(op.by_kernel, (1, 2, 3), a, b), np.matmul(*exact(a, b)), k,
                  2 * m * n * k)]
    if on_gpu(a):
        a, b = halves(a, b)
        cases.append(Case(ladder(op.by_kernel, (4,), a, b), np.matmul(*exact(a, b)),
                          flop=2 * m * n * k, **HALF))
    return cases


def attention(op, draw, n_batch, n_heads, length, width):
    arrays = [draw(n_batch, n_heads, length, width) for _ in range(4)]
    rungs = ["naive", "shared", "warp", *["tile"] * (not on_gpu(arrays[0]))]
    cases = attention_cases(op, rungs, *arrays, dict(n_terms=length))
    if on_gpu(arrays[0]):
        cases += attention_cases(op, ["mma"], *halves(*arrays), HALF)
    return cases


def attention_cases(op, rungs, q, k, v, go, precision):
    """Returns two Cases: forward and backward. precision: a dict with the fields `n_terms` and
    `rounding` of the Cases."""
    n_batch, n_heads, length, width = q.shape
    options = False, width**-0.5  # causal, scale
    o, lse = op.by_kernel(q, k, v, *options)
    product = 2 * n_batch * n_heads * length**2 * width
    wanted = plain_attention(*exact(q, k, v, go), width**-0.5)
    return [Case(ladder(op.by_kernel, rungs, q, k, v, *options), wanted[:1], flop=2 * product,
                 **precision),
            Case(ladder(op.by_kernel_backward, rungs, go, q, k, v, o, lse, *options), wanted[1:],
                 flop=5 * product, **precision)]


def plain_attention(q, k, v, go, scale):
    """Returns (o, gq, gk, gv), computed by NumPy with the complete matrix P of probabilities."""
    p = softmax_op.by_numpy(scale * q @ k.swapaxes(2, 3))
    gs = scale * softmax_op.by_numpy_backward(go @ v.swapaxes(2, 3), p)
    return p @ v, gs @ k, gs.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ go


def conv(op, draw, n_images, n_in, size, n_out):
    """Returns Cases for two convolutions with filters of 3 x 3: an ordinary convolution, and a
    depthwise convolution with n_in groups."""
    same = (1, 1), ((1, 1), (1, 1)), (1, 1), 1  # stride, padding, dilation, groups
    return [*convolution(op, draw, (n_images, n_in, size, size), (n_out, n_in, 3, 3), same,
                         (1, 2, 3, 4, "winograd"), (1, 2, 3)),
            *convolution(op, draw, (n_images, n_in, size, size), (n_in, 1, 3, 3),
                         (*same[:3], n_in), (1, "depthwise"), (1, "depthwise"))]


def convolution(op, draw, x_shape, w_shape, options, rungs, weight_rungs):
    """Returns Cases for forward and for the gradient of the weight. On a CPU the first rung is a
    kernel that runs only on CPUs. On a GPU the last rung uses tensor cores."""
    x, w, b = draw(*x_shape), draw(*w_shape), draw(w_shape[0])
    gy, out = draw(x_shape[0], w_shape[0], *x_shape[2:]), x_shape[2:]
    cases = []
    for name, args, each, n_terms in (
            ("forward", (x, w, b, options, out), rungs, math.prod(w_shape[1:])),
            ("by_weight", (gy, x, w, options), weight_rungs, gy.size // w_shape[0])):
        flop = 2 * gy.size * math.prod(w_shape[1:])
        calls = ladder(getattr(op, name), each, *args)
        if not on_gpu(x):
            calls.insert(0, functools.partial(getattr(conv_cpu, name), *args))
        cases.append(Case(calls, columns(name, args), n_terms, flop))
        if on_gpu(x) and "depthwise" not in each:
            args = [*halves(*args[:3]), *args[3:]]
            cases.append(Case(ladder(getattr(op, name), (5,), *args), columns(name, args),
                              flop=flop, **HALF))
    return cases


def columns(name, args):
    """Returns the reference for a convolution: the result of the function `name` of conv_columns,
    in float64. args: the arguments of this function, three arrays and then options."""
    return getattr(conv_columns, name)(*exact(*args[:3]), *args[3:])


def on_gpu(x):
    """Returns True if x is an array on a GPU."""
    return not isinstance(x, np.ndarray)


def halves(*arrays):
    """Returns the arrays as float16."""
    return [a.astype(np.float16) for a in arrays]


def exact(*arrays):
    """Returns the arrays as float64 on the CPU, for a reference."""
    return [backend.to_device(a, "cpu").astype(np.float64) for a in arrays]


def elementwise(op, kernel, *arrays, **options):
    """Launches an elementwise kernel of `op`. Returns the result. options: the kernel's macros."""
    out = arrays[0].copy()
    op.elementwise(op.FILE, kernel, out.dtype, out.size, (out, *arrays, out.size), **options)
    return out


def row_rungs(x, rungs=(1, 2, 3, 4, 5)):
    """Returns the rungs of a row kernel (cuda/rows.py) for the device of x."""
    return [*["cpu"] * isinstance(x, np.ndarray), *rungs]


def ladder(function, rungs, *args):
    """Returns a list with one function for each rung. Each of them calls function(*args,
    rung=...)."""
    return [functools.partial(function, *args, rung=rung) for rung in rungs]
