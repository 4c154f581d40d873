"""More rungs for `minidl kernel bench`: optimizers, passes over many arrays, compression, and the
kernels of tutorial 03. The functions have the same form as in kernel_rungs.py.

On a GPU every kernel of a file is a rung. On a CPU a file has two kinds of rungs: the kernel that
training uses on a CPU, and the kernels that need no table of GPU addresses.

Test: tests/cli/test_kernel_bench.py   Used by: kernel_bench.py
"""

import functools
from unittest import mock

import numpy as np

from minidl import backend, random
from minidl.cli.kernel_rungs import Case, exact
from minidl.cuda import dispatch
from minidl.cuda.index_check import C_TYPES
from minidl.cuda.launch import BLOCK
from minidl.ops import softmax as softmax_op

# {name: (sizes for a CPU, sizes for a GPU)}. The sizes of a kernel are one of these: (arrays,
# elements of each array); (elements); (rows, columns); (rows, columns out, columns in); (positions,
# columns, rows of the table)
SIZES = {"adamw": ((8, 1 << 16), (32, 1 << 19)), "sgd": ((8, 1 << 16), (32, 1 << 19)),
         "lamb": ((8, 1 << 16), (32, 1 << 19)), "grad_norm": ((8, 1 << 16), (32, 1 << 19)),
         "unscale_check": ((8, 1 << 16), (32, 1 << 19)), "pack": ((8, 1 << 16), (32, 1 << 19)),
         "topk_mask": ((1 << 20,), (1 << 26,)), "dropout": ((1 << 20,), (1 << 25,)),
         "philox": ((1 << 20,), (1 << 25,)), "index_check": ((1 << 13,), (1 << 24,)),
         "loss_scale": ((1,), (1,)), "quantize": ((256, 1024), (16384, 1024)),
         "tour": ((256, 1024), (8192, 8192)), "int8_linear": ((64, 64, 256), (2048,) * 3),
         "embedding_grad": ((512, 64, 128), (8192, 768, 2000))}
FILES = {"adamw": "optim.adam", "sgd": "optim.sgd", "lamb": "optim.lamb",
         "grad_norm": "cuda.grad_norm", "unscale_check": "cuda.unscale_check",
         "pack": "parallel.data.flat", "topk_mask": "parallel.data.topk_mask",
         "philox": "cuda.philox", "index_check": "cuda.index_check",
         "loss_scale": "precision.loss_scale", "quantize": "ops.extra.quantize",
         "tour": "ops.softmax", "int8_linear": "ops.extra.int8_linear",
         "embedding_grad": "ops.embedding"}
BETAS, EPS, LR, DECAY = (0.9, 0.999), 1e-8, 1e-2, 0.1


# ---- the same launch with another kernel


def instead(call, x, *endings):
    """Returns a list of calls: one call for each pair in `endings`, and then `call` itself.
    endings: pairs (old, new). The call of a pair replaces each kernel whose name ends in `old`. The
    new kernel's name ends in `new`. On a CPU the list is only [call], because a CPU runs other
    kernels. x: an array on the device."""
    others = [] if isinstance(x, np.ndarray) else endings
    return [*(functools.partial(replaced, call, *ending) for ending in others), call]


def replaced(call, old, new):
    """Runs call(), and returns its result. During the call each kernel whose name ends in `old` is
    replaced by the kernel whose name ends in `new`."""
    kernel = dispatch.kernel

    def other(file, name, *args, **defines):
        return kernel(file, name.removesuffix(old) + new * name.endswith(old), *args, **defines)

    with mock.patch.object(dispatch, "kernel", other):
        return call()


def plain_launch(file, name, arrays, *numbers, n=None, block=BLOCK, **defines):
    """Launches a kernel with one thread for each of n elements."""
    n = n or arrays[0].size
    dispatch.kernel(file, name, **defines)(-(-n // block), block, (*arrays, *numbers))


def copies(*lists):
    """Returns copies of lists of arrays, because a rung changes its arrays in place."""
    return [[a.copy() for a in arrays] for arrays in lists]


# ---- optimizers


def adamw(op, draw, n_arrays, n):
    w, g, m, v = ([draw(n) for _ in range(n_arrays)] for _ in range(4))
    v = [a * a for a in v]

    def many():
        w1, m1, v1 = copies(w, m, v)
        steps = [1] * n_arrays
        if not isinstance(w[0], np.ndarray):  # on a GPU the kernel counts the steps, from 0
            steps = backend.to_device(np.zeros(n_arrays, np.int32), "cuda")
        op.by_kernel(w1, g, m1, v1, steps, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
        return [*w1, *m1, *v1]

    def naive():
        w1, m1, v1 = copies(w[:1], m[:1], v[:1])
        plain_launch("adamw.cu", "adamw_naive", (w1[0], g[0], m1[0], v1[0]), n, *rates, *numbers)
        return [w1[0], m1[0], v1[0]]

    b1, b2 = BETAS
    rates, shrink = (LR / (1 - b1), 1 / (1 - b2)**0.5), 1 - LR * DECAY
    numbers = b1, 1 - b1, b2, 1 - b2, EPS, shrink, 0.0, 1.0
    new = [adamw_step(*exact(*arrays), *rates, shrink) for arrays in zip(w, g, m, v, strict=True)]
    return [Case([naive], list(new[0])),
            Case(instead(many, w[0], ("_many", "_blocks")), [a for each in zip(*new) for a in each],
                 n_bytes=28 * n_arrays * n)]


def adamw_step(w, g, m, v, step, inverse_root, shrink):
    """Returns (w, m, v) after one step of AdamW, by NumPy."""
    (b1, b2), m_and_v = BETAS, []
    for old, b, x in ((m, b1, g), (v, b2, g * g)):
        m_and_v.append(b * old + (1 - b) * x)
    m, v = m_and_v
    return shrink * w - step * m / (np.sqrt(v) * inverse_root + EPS), m, v


def sgd(op, draw, n_arrays, n):
    w, g, v = ([draw(n) for _ in range(n_arrays)] for _ in range(3))
    b, options = BETAS[0], dict(lr=LR, momentum=BETAS[0], weight_decay=DECAY)

    def many():
        w1, v1 = copies(w, v)
        op.by_kernel(w1, g, v1, [False] * n_arrays, **options)
        return [*w1, *v1]

    def naive():
        (new,), = copies(w[:1])
        plain_launch("sgd.cu", "sgd_naive", (new, g[0]), n, LR, DECAY)
        return new

    decayed = [x + DECAY * y for x, y in zip(exact(*g), exact(*w), strict=True)]
    moved = [b * x + y for x, y in zip(exact(*v), decayed, strict=True)]
    wanted = [x - LR * y for x, y in zip(exact(*w), moved, strict=True)]
    return [Case([naive], [exact(w[0])[0] - LR * decayed[0]]),
            Case(instead(many, w[0], ("_many", "_blocks")), [*wanted, *moved],
                 n_bytes=20 * n_arrays * n)]


def lamb(op, draw, n_arrays, n):
    w, g, m, v = ([draw(n) for _ in range(n_arrays)] for _ in range(4))
    v = [a * a for a in v]
    device, (b1, b2), eps = backend.device_of(w[0]), BETAS, 1e-6
    rates = backend.to_device(np.full((n_arrays, 2), 1.5), device)
    steps = backend.to_device(np.full(n_arrays, LR), device)

    def moments():
        m1, v1 = copies(m, v)
        norms = op.moments_by_kernel(w, g, m1, v1, rates, betas=BETAS, eps=eps, weight_decay=DECAY)
        return [*norms, *m1, *v1]

    def update():
        (w1,) = copies(w)
        op.update_by_kernel(w1, m, v, rates, steps, eps=eps, weight_decay=DECAY)
        return w1

    def ratio(w, m, v):
        return 1.5 * m / (1.5 * np.sqrt(v) + eps) + DECAY * w

    w64, g64, m64, v64 = (exact(*arrays) for arrays in (w, g, m, v))
    new_m = [b1 * a + (1 - b1) * b for a, b in zip(m64, g64, strict=True)]
    new_v = [b2 * a + (1 - b2) * b * b for a, b in zip(v64, g64, strict=True)]
    r = [ratio(*each) for each in zip(w64, new_m, new_v, strict=True)]
    norms = [np.array([a @ a for a in arrays]) for arrays in (w64, r)]
    wanted = [a - LR * ratio(a, b, c) for a, b, c in zip(w64, m64, v64, strict=True)]
    total = n_arrays * n
    return [Case([moments], [*norms, *new_m, *new_v], n, n_bytes=24 * total),
            Case([update], wanted, n_bytes=16 * total)]


# ---- passes over many arrays


def grad_norm(op, draw, n_arrays, n):
    arrays = [draw(n) for _ in range(n_arrays)]
    wanted = np.array([a @ a for a in exact(*arrays)])
    n_bytes = 4 * n_arrays * n
    return [Case(instead(lambda: op.square_sum(arrays), arrays[0], ("_many", "_blocks")),
                 [np.sum(wanted, keepdims=True)], n, n_bytes=n_bytes),
            Case(instead(lambda: op.square_sums(arrays), arrays[0], ("chunk_sums_many",
                 "chunk_sums")), [wanted], n, n_bytes=n_bytes)]


def unscale_check(op, draw, n_arrays, n):
    arrays, last = [draw(n) for _ in range(n_arrays)], draw(n)
    last[-1] = np.inf

    def unscale():
        (given,) = copies(arrays)
        return [op.unscale_check(given, 0.5), *given]

    wanted = [np.zeros(1), *(0.5 * a for a in exact(*arrays))]
    endings, total = ("_many", "_blocks"), n_arrays * n
    return [Case(instead(unscale, last, endings), wanted, n_bytes=8 * total),
            Case(instead(lambda: op.count_bad([*arrays, last]), last, endings), [np.ones(1)],
                 n_bytes=4 * (total + n))]


def pack(op, draw, n_arrays, n):
    arrays, whole = [draw(n) for _ in range(n_arrays)], draw(n_arrays * n)

    def packed():
        flat = whole.copy()
        op.pack(arrays, flat)
        return flat

    def unpacked():
        (given,) = copies(arrays)
        op.unpack(whole, given)
        return given

    endings, n_bytes = ("_many", "_blocks"), 8 * n_arrays * n
    return [Case(instead(packed, whole, endings), [np.concatenate(exact(*arrays))],
                 n_bytes=n_bytes),
            Case(instead(unpacked, whole, endings), list(exact(whole)[0].reshape(n_arrays, n)),
                 n_bytes=n_bytes)]


def loss_scale(op, draw, n):
    """Returns Cases for kernels with one thread, because the loss scale is one number."""
    device = backend.device_of(draw(1))
    scale, square_sum, counts, bad, out = (backend.to_device(np.array(x), device) for x in (
        [8.0], [9.0], [3, 2, 0], [1], [0.0]))
    scale, out, counts, bad = (a.astype(t) for a, t in (
        (scale, "f4"), (out, "f4"), (counts, "i4"), (bad, "i4")))
    rule = dict(growth_factor=2.0, backoff_factor=0.5, growth_interval=5, hysteresis=1,
                min_scale=1.0, max_scale=64.0)

    def factor():
        dispatch.kernel(op.FILE, "loss_scale_factor")(1, 1, (out, scale, square_sum, 0.1))
        return out

    def update():
        (scale1, counts1), = copies([scale, counts])
        args = scale1, counts1, bad, *rule.values()
        dispatch.kernel(op.FILE, "loss_scale_update")(1, 1, args)
        return scale1, counts1

    wanted = op.reference_update(8.0, [3, 2, 0], 1, **rule)
    return [Case([factor], [np.array([op.reference_factor(8.0, 9.0, 0.1)])]),
            Case([update], [np.array([wanted[0]]), np.array(wanted[1])])]


# ---- random bits, indices


def dropout(op, draw, n):
    x, state, p = draw(n), (1, 2, 3), 0.25

    def naive():
        out = x.copy()
        plain_launch(op.FILE, "dropout_naive", (out, x), n, *state, *op.limits(p))
        return out

    return [Case([naive, lambda: op.by_kernel(x, p, state)], [op.by_numpy(*exact(x), p, state)])]


def philox(op, draw, n):
    xp, state = backend.xp_of([draw(1)]), (1, 2, 3)
    return [Case([lambda: op.bits(state, n, xp)], [random.host_bits(state, n)])]


def index_check(op, draw, n):
    """Returns a Case in which one index in 100 is wrong. The kernel replaces a wrong index by 0."""
    device, n_rows = backend.device_of(draw(1)), 1000
    index = np.arange(n) * 7 % n_rows
    index[::100] = n_rows
    there, out, note = (backend.to_device(a, device) for a in (
        index, np.empty_like(index), np.zeros(2, np.uint64)))

    def check():
        plain_launch("index_check.cu", "index_check", (out, note, there), n, 0, n_rows, op.NOBODY,
                     0, 1, I=C_TYPES["int64"])
        return out

    return [Case([check], [op.reference(index, n_rows)[0]])]


def embedding_grad(op, draw, n, width, n_rows):
    gy, index = draw(n, width), np.arange(n) * 7919 % n_rows
    there, xp = backend.to_device(index, backend.device_of(gy)), backend.xp_of([gy])

    def atomic():
        out = xp.zeros((n_rows, width), np.float32)
        kernel = dispatch.kernel(op.FILE, "embedding_grad_atomic", ACC="float")
        kernel((-(-width // BLOCK), min(n, 65535)), BLOCK, (out, gy, there, n, width))
        return out

    def owners():
        out, first = xp.zeros((n_rows, width), np.float32), xp.full(n_rows, n, np.int32)
        plain_launch(op.FILE, "embedding_grad_first", (first, there), n, n=n)
        op.owners(out, gy, there, first, 1)
        return out

    wanted = np.zeros((n_rows, width))
    np.add.at(wanted, index, *exact(gy))
    calls = [atomic, owners, lambda: op.by_kernel(there, gy, n_rows)]
    return [Case(calls, [wanted], -(-n // n_rows))]


# ---- compression


def topk_mask(op, draw, n):
    x, threshold = draw(n), 2.5

    def drop():
        left = x.copy()
        op.drop(left, threshold)
        return left

    (x64,) = exact(x)
    return [Case(instead(lambda: op.compact(x, threshold), x, ("_warps", "")),
                 op.by_numpy(x64, threshold)),
            Case([drop], [np.where(np.abs(x64) >= threshold, 0, x64)])]


def quantize(op, draw, rows, cols):
    x, endings = draw(rows, cols), [("_packs", ""), ("_packs", "_warps")]
    q, scale = op.quantize(x, True)
    wanted = op.by_numpy(backend.to_device(x, "cpu"), True)
    return [Case(instead(lambda: op.quantize(x, True), x, *endings), wanted),
            Case(instead(lambda: op.dequantize(q, scale), x, *endings),
                 [wanted[0] * wanted[1].astype(np.float64)[:, None]])]


def int8_linear(op, draw, rows, outs, k):
    x, w = (np.rint(40 * a).clip(-127, 127).astype(np.int8) for a in (draw(rows, k), draw(outs, k)))
    like = backend.device_of(draw(1))
    x_scale, w_scale = (backend.to_device(np.full(n, 0.01, np.float32), like) for n in (1, outs))
    args = x, w, x_scale, w_scale
    x64, w64, *scales = exact(*args)  # whole numbers, so x64 @ w64.T is exact
    wanted = x64 @ w64.T * scales[0] * scales[1]
    rungs = [*["cpu"] * isinstance(x, np.ndarray), 1, 2, 3]
    calls = [functools.partial(op.int8_linear, *args, rung=rung) for rung in rungs]
    return [Case(calls, [wanted], flop=2 * rows * outs * k)]


# ---- tutorial 03


def tour(op, draw, rows, cols):
    """Returns Cases for two kinds of kernels. Some kernels have one block for each row of an array
    (rows, cols). The others transpose an array (cols, cols)."""
    x, square, block = draw(rows, cols), draw(cols, cols), 256

    def by_row(name):
        y = x.copy()
        dispatch.kernel("tour.cu", name)(rows, block, (y, x, cols), shared_mem=8 * block)
        return y

    def transpose(name):
        out, n_tiles = square.copy(), -(-cols // 32)
        dispatch.kernel("tour.cu", name)((n_tiles, n_tiles), (32, 32), (out, square, cols))
        return out

    (x64,) = exact(x)
    return [Case([lambda: by_row("center")], [x64 - x64.mean(1, keepdims=True)], cols),
            Case([lambda: by_row("softmax_online")], [softmax_op.by_numpy(x64)], cols),
            Case([lambda: transpose("transpose_naive"), lambda: transpose("transpose_tile")],
                 [exact(square)[0].T])]
