"""What `minidl kernel bench` runs: the rungs of a kernel file, and what each should give.

One function for each file. Arguments: its launches, minidl/fused/<name>.py, called `f` here;
draw(*shape), which makes an input; sizes. To add a file: such a function, and its SIZES.

Test: tests/cli/test_kernel_bench.py   Used by: kernel_bench.py
"""

import functools
from collections import namedtuple

import numpy as np

from minidl import backend

# sizes for a CPU and for a GPU: elements; rows, columns; m, n, k; batch, heads, length, width
SIZES = {"add3": ((1 << 22,), (1 << 26,)), "gelu": ((1 << 20,), (1 << 24,)),
         "softmax": ((256, 1024), (16384, 1024)), "layer_norm": ((256, 1024), (16384, 1024)),
         "cross_entropy": ((256, 1024), (16384, 1024)), "matmul": ((256,) * 3, (2048,) * 3),
         "attention": ((1, 2, 256, 64), (8, 12, 1024, 64))}
ROWS = 1, 2, 3, 4, 5  # the rungs of a row kernel: cuda/rows.py
# calls: functions of no argument, one for each rung, whose results should be `wanted`;
# n_terms: of the longest sum; flop: operations of a product, else 0
Case = namedtuple("Case", "calls wanted n_terms flop", defaults=(1, 0))


def add3(f, draw, n):
    arrays = [draw(n) for _ in range(3)]
    naive, fused = (functools.partial(elementwise, f, k) for k in ("add3_naive", "add3"))
    calls = [lambda: naive(naive(arrays[0], arrays[1]), arrays[2]), lambda: fused(*arrays)]
    return [Case(calls, f.reference(*exact(*arrays)))]


def gelu(f, draw, n):
    x, gy = draw(n), draw(n)
    y, slope = f.reference(*exact(x), "tanh")
    return [Case([lambda: f.gelu(x, "tanh")], y),
            Case([lambda: f.gelu_backward(x, "tanh", gy)], exact(gy)[0] * slope)]


def softmax(f, draw, rows, cols):
    x, gy = draw(rows, cols), draw(rows, cols)
    y = f.forward(x)
    return [Case(ladder(f.forward, ROWS, x), f.reference(*exact(x)), cols),
            Case(ladder(f.backward, ROWS, gy, y), f.reference_backward(*exact(gy, y)), cols)]


def layer_norm(f, draw, rows, cols):
    x, gy, w, b = draw(rows, cols), draw(rows, cols), draw(cols), draw(cols)
    x *= 0.1  # with a variance of 1 a forgotten eps would not show
    kept = f.forward(x, w, b, 1e-5)[1:]
    return [Case(ladder(f.forward, ROWS, x, w, b, 1e-5), f.reference(*exact(x, w, b), 1e-5),
                 cols),
            Case(ladder(f.backward, ROWS, gy, x, w, *kept),
                 f.reference_backward(*exact(gy, x, w, *kept)), max(rows, cols))]


def cross_entropy(f, draw, rows, cols):
    x, g, classes = draw(rows, cols), draw(rows), np.arange(rows) * 7 % cols
    target = backend.to_device(classes, backend.device_of(x))
    lse = f.forward(x, target)[1]
    return [Case(ladder(f.forward, ROWS, x, target), f.reference(*exact(x), classes), cols),
            Case(ladder(f.backward, (1, 2, 4, 5), g, x, lse, target),
                 f.reference_backward(*exact(g, x, lse), classes), cols)]


def matmul(f, draw, m, n, k):
    a, b = draw(m, k), draw(k, n)
    return [Case(ladder(f.matmul, (1, 2, 3), a, b), f.reference(*exact(a, b)), k, 2 * m * n * k)]


def attention(f, draw, n_batch, n_heads, length, width):
    q, k, v, go = (draw(n_batch, n_heads, length, width) for _ in range(4))
    rungs = ["naive", "shared", "warp", *["tile"] * isinstance(q, np.ndarray)]
    options = False, width**-0.5  # not causal; scale
    o, lse = f.forward(q, k, v, *options)
    product = 2 * n_batch * n_heads * length**2 * width
    return [Case(ladder(f.forward, rungs, q, k, v, *options), f.reference(*exact(q, k, v)),
                 length, 2 * product),
            Case(ladder(f.backward, rungs, go, q, k, v, o, lse, *options),
                 f.reference_backward(*exact(go, q, k, v)), length, 5 * product)]


def exact(*arrays):
    """The arrays in float64 on the CPU, for a reference."""
    return [backend.to_device(a, "cpu").astype(np.float64) for a in arrays]


def elementwise(f, kernel, *arrays, **options):
    out = arrays[0].copy()
    f.elementwise(f.FILE, kernel, out.dtype, out.size, (out, *arrays, out.size), **options)
    return out


def ladder(function, rungs, *args):
    return [functools.partial(function, *args, rung=rung) for rung in rungs]
