"""Batch norm: each channel of a batch gets mean 0 and variance 1.

    y = (x - mean) * r * w + b      r = 1 / sqrt(var + eps), one number for each channel
    gb, gw = sum of gy, sum of gy * xhat             xhat = (x - mean) * r
    gx = w * r * (gy - gb / n - xhat * gw / n)       n elements in each channel

norm.py explains the gradient. Saved for backward: x, mean and r. x is saved, and not xhat, because
in half precision x takes half of the bytes. Outside of training the running statistics are
constants, so gx = w * r * gy.

Source: Ioffe & Szegedy 2015.
Kernels: kernels/batch_norm.cu; on a CPU kernels/cpu/batch_norm.cu
Test: tests/ops/test_norm.py, test_batch_norm_kernel.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import rows as row_kernels
from minidl.cuda.dispatch import SUM_DTYPES, on_cpu, pick
from minidl.cuda.launch import BLOCK, LARGEST, contiguous, scratch
from minidl.function import Function
from minidl.mode import current
from minidl.ops.norm import check_channels, column, scale_shift, standardize, standardize_backward

FILE = "batch_norm.cu"
AXES = 0, 2  # a mean is taken over these axes of (N, C, places)
LANES_MAX, CHANNELS = 512, 64  # the same numbers as in the kernel for a CPU
FEW = 64  # with fewer places, a plane (one channel of one sample) is too short for vectors
PART = 512  # elements of a channel in a part. With smaller parts, joining the sums takes too long


class BatchNorm(Function):
    """Normalises each channel over samples and places of x (N, C, ...). Saves x, w, mean and r.

    In training, forward updates the running statistics in place. The running statistics are passed
    as an option of the Function, not as an input, because autocast may replace an input by a copy.
    An update of the copy does not change the running statistics."""

    precision = "black"

    def forward(self, x, w, b, running, training, momentum, eps):
        xp, dtype = self.xp, backend.accumulate_dtype(x.dtype)
        x = contiguous(xp, x)
        self.training, shift = training, in_order(xp, b, 0, x.shape[1], dtype)
        scale = in_order(xp, w, 1, x.shape[1], dtype)
        if training:
            run = pick(by_kernel, by_numpy, x)
            y, mean, var, r = run(x, scale, shift, eps)
            n = x.size // x.shape[1]
            for average, batch in zip(running, (mean, var * (n / (n - 1))), strict=True):
                if average is not None and not current().replaying:
                    average *= 1 - momentum
                    average += momentum * batch.astype(average.dtype, copy=False)
        else:
            running_mean, running_var = running
            mean = running_mean.astype(dtype)
            r = 1 / xp.sqrt(running_var.astype(dtype) + dtype.type(eps))
            run = pick(by_kernel_eval, by_numpy_eval, x)
            y = run(x, scale, shift, mean, r)
        self.save(x, w, mean, r)
        return y

    def backward(self, gy):
        x, w, mean, r = self.saved
        gy, scale = contiguous(self.xp, gy), in_order(self.xp, w, 1, x.shape[1], mean.dtype)
        run = pick(by_kernel_backward, by_numpy_backward, gy, x)
        return run(gy, x, scale, mean, r, self.training)


def in_order(xp, v, default, n, dtype):
    """Returns the values of v, one for each channel: (n,), contiguous, of `dtype`. If v is None,
    all values are `default`."""
    if v is None:
        return xp.full(n, default, dtype)
    return xp.ascontiguousarray(v.astype(dtype, copy=False))


def by_numpy(x, w, b, eps):
    """Returns (y, mean, var, r), where r = 1 / sqrt(var + eps). x and y are (N, C, ...). All others
    are (C,), in the dtype of the sums."""
    xhat, *statistics = standardize(backend.xp_of([x]), by_places(x), AXES, eps)
    y = scale_shift(xhat, column(w), column(b), x.dtype)
    return y.reshape(x.shape), *(v.reshape(-1) for v in statistics)


def by_numpy_eval(x, w, b, mean, r):
    """Returns y = (x - mean) * r * w + b. mean and r are given, one number for each channel."""
    xhat = (by_places(x) - column(mean)) * column(r)
    return scale_shift(xhat, column(w), column(b), x.dtype).reshape(x.shape)


def by_numpy_backward(gy, x, w, mean, r, training=True):
    """Returns (gx, gw, gb). Computes xhat = (x - mean) * r again."""
    xhat = (by_places(x) - column(mean)) * column(r)
    g = by_places(gy).astype(mean.dtype, copy=False)
    gw, gb = (g * xhat).sum(axis=AXES), g.sum(axis=AXES)
    g = g * column(w)
    if training:
        gx = standardize_backward(backend.xp_of([x]), g, xhat, column(r), AXES)
    else:
        gx = g * column(r)
    return gx.reshape(x.shape), gw, gb


def by_places(x):
    """Returns x (N, C, ...) in the shape (N, C, places). All dimensions after C are joined."""
    return x.reshape(sizes(x))


def by_kernel(x, w, b, eps, rung=None, **form):
    """Returns (y, mean, var, r), where r = 1 / sqrt(var + eps). x has shape (N, C, ...). w and b
    have shape (C,) and the dtype of the sums. x, w and b must be contiguous.

    rung: 1 or 2 of the ladder in the .cu file, or "cpu". The default is the best for the device.
    form: the keyword arguments `form` and `order`, which are passed to `cuda.kernel`."""
    xp, rung = row_kernels.backend_of(x), rung or best_rung(x)
    samples, channels, places = sizes(x)
    mean, var, r = (xp.empty(channels, SUM_DTYPES[x.dtype]) for _ in range(3))
    if rung != "cpu":
        y = xp.empty(x.shape, x.dtype)
        launch("batch_norm", x, rung, (y, mean, var, r, x, w, b), (float(eps),), form)
        return y, mean, var, r
    n_parts, size = parts_of(x)
    parts = scratch(xp.empty((2, n_parts, channels), mean.dtype))
    pass_on_cpu("batch_norm", x, (parts, x), (), form)
    join("batch_norm_join", x, (mean, var, r, parts, n_parts, channels, size * places,
                                samples * places, float(eps)), form)
    return by_kernel_eval(x, w, b, mean, r, rung, **form), mean, var, r


def by_kernel_eval(x, w, b, mean, r, rung=None, **form):
    """Returns y = (x - mean) * r * w + b. mean and r are given. rung: "cpu" runs the kernel of a
    CPU. Any other rung runs the kernel of a GPU."""
    y = row_kernels.backend_of(x).empty(x.shape, x.dtype)
    args = y, x, w, b, mean, r
    if (rung or best_rung(x)) == "cpu":
        pass_on_cpu("batch_norm_write", x, args, (), form)
    elif x.size:
        check_size(x)
        run = row_kernels.kernel(FILE, "batch_norm_eval", x.dtype, **form)
        run(row_kernels.blocks(x.size, BLOCK), BLOCK, (*args, x.size, *sizes(x)[1:]))
    return y


def by_kernel_backward(gy, x, w, mean, r, training=True, rung=None, **form):
    """Returns (gx, gw, gb). gw and gb have the dtype of the sums."""
    xp, rung = row_kernels.backend_of(x), rung or best_rung(x)
    samples, channels, places = sizes(x)
    gw, gb = xp.zeros(channels, mean.dtype), xp.zeros(channels, mean.dtype)  # 0 if x is empty
    gx = xp.empty(x.shape, x.dtype)
    args = gx, gw, gb, gy, x, w, mean, r
    if rung != "cpu":
        launch("batch_norm_backward", x, rung, args, (int(training),), form)
        return gx, gw, gb
    n_parts, _ = parts_of(x)
    parts = scratch(xp.empty((2, n_parts, channels), mean.dtype))
    pass_on_cpu("batch_norm_backward", x, (parts, gy, x, mean), (), form)
    join("batch_norm_backward_join", x, (gw, gb, parts, r, n_parts, channels), form)
    pass_on_cpu("batch_norm_backward_write", x, args, (int(training),), form)
    return gx, gw, gb


def launch(name, x, rung, arrays, more, form):
    """Launches a rung of the ladder over the channels of x. more: the arguments of the kernel that
    come after the sizes. form: the keyword arguments of `cuda.kernel`."""
    if not x.size:
        return
    check_size(x)
    args = *arrays, *sizes(x), *more
    run = row_kernels.kernel(FILE, f"{name}_v{rung}", x.dtype, **form)
    if rung == 1:
        run(row_kernels.blocks(x.shape[1], 64), 64, args)
    else:
        run(x.shape[1], BLOCK, args)


def pass_on_cpu(name, x, arrays, more, form):
    """On a CPU, launches a kernel that reads the elements of x, or of arrays of x's shape, in the
    order of memory addresses. more, form: as in `launch`."""
    samples, channels, places = sizes(x)
    args = *arrays, samples, channels, places, *more
    if not x.size:
        return
    if places >= FEW:
        run = row_kernels.kernel(on_cpu(FILE), f"{name}_planes", x.dtype, **form)
        run(row_kernels.blocks(samples * channels, BLOCK), BLOCK, args)
        return
    width, (_, group) = LANES_MAX // places, parts_of(x)
    run = row_kernels.kernel(on_cpu(FILE), f"{name}_rows", x.dtype, **form)
    grid = row_kernels.blocks(channels, width), row_kernels.blocks(samples, group)
    run(grid, 1, (*args, width, group))


def join(name, x, args, form):
    """Launches the kernel that adds up the partial sums of each channel."""
    run = row_kernels.kernel(on_cpu(FILE), name, x.dtype, **form)
    run(row_kernels.blocks(x.shape[1], CHANNELS), 1, args)


def parts_of(x):
    """Returns (number of parts, number of samples in a part). A CPU sums each part, then adds the
    sums of the parts. If a channel of a sample has at least FEW elements, a part is one sample.
    Else a part has about PART elements of each channel."""
    samples, _, places = sizes(x)
    group = 1 if places >= FEW else -(-PART // places)
    return row_kernels.blocks(samples, group), group


def sizes(x):
    """Returns (samples, channels, places) of x."""
    return *x.shape[:2], math.prod(x.shape[2:])


def best_rung(x):
    return "cpu" if type(x) is np.ndarray else 2


def check_size(x):
    """Raises ValueError if x has more elements than a launch on a GPU can count in an int."""
    if x.size > LARGEST:
        raise ValueError(f"batch_norm: on a GPU the input can have at most {LARGEST} elements; got "
                         f"{x.size}. Use a smaller batch")


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False,
               momentum=0.1, eps=1e-5):
    """Normalises each channel of input (N, C, ...) to mean 0 and variance 1, then multiplies by
    weight and adds bias.

    training=True: uses the statistics of this batch. Updates the running statistics in place:
    `running = (1 - momentum) * running + momentum * batch`, with the unbiased variance (n - 1), as
    PyTorch does. running_mean and running_var may be None.
    training=False: uses the running statistics, as constants."""
    check_channels("batch_norm", input, running_mean=running_mean, running_var=running_var,
                   weight=weight, bias=bias)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm wants running_mean and running_var if training=False; "
                             "got None")
    n = math.prod(input.shape) // max(input.shape[1], 1)
    if training and n <= 1:
        raise ValueError(f"batch_norm: training wants more than one value in each channel; got {n} "
                         f"in an input of shape {tuple(input.shape)}")
    running = [backend.array_of(v) for v in (running_mean, running_var)]
    return BatchNorm.apply(input, weight, bias, running=running,
                           training=training, momentum=momentum, eps=eps)
