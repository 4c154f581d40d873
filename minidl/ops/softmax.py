"""Softmax: turns scores into a probability distribution.

    y_i = e^(x_i - m) / sum_j e^(x_j - m)      subtracting m = max(x) does not change y,
                                               but then e^ cannot overflow
    gx_i = y_i * (gy_i - sum_j gy_j y_j)       dy_i/dx_j = y_i (delta_ij - y_j)

In NumPy's form each step is a pass over memory, so all steps write into one buffer. The kernel
works on the last dimension, and does all steps in one pass. fp16 is computed in fp32 and rounded
once.
Kernels: kernels/softmax.cu; on a CPU kernels/cpu/softmax.cu (with -DLOG=1: the logarithm)
Test: tests/ops/test_softmax.py, test_softmax_kernel.py   Tutorial: tutorials/03_kernel_tour.py
"""

from minidl import backend
from minidl.cuda import rows
from minidl.cuda.dispatch import pick
from minidl.forward import op_name
from minidl.function import Function
from minidl.ops.dims import normalize_dims

FILE = "softmax.cu"
LOG = (("LOG", 0),), (("LOG", 1),)  # the macros of the kernel are LOG[log]


class Softmax(Function):
    """y = softmax(x) along dim. Saves y."""

    precision = "black"
    log = False

    def forward(self, x, dim, dtype=None):
        axis = last = x.ndim - 1
        if dim != -1 or last < 0:
            (axis,) = normalize_dims(dim, x.ndim, op_name(type(self))) or (None,)
        x = x if dtype is None else x.astype(dtype, copy=False)
        if x.dtype.kind not in "fV":  # V is the kind of bfloat16
            raise TypeError(f"wants floating numbers, got {x.dtype}; pass dtype= or cast the input")
        self.axis, kernel = axis, by_kernel if axis == last else by_numpy
        y = pick(kernel, by_numpy, x)(x, axis, self.log)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        kernel = by_kernel_backward if self.axis == y.ndim - 1 else by_numpy_backward
        return pick(kernel, by_numpy_backward, gy, y)(gy, y, self.axis, self.log)


class LogSoftmax(Softmax):
    """y = x - log(sum(exp(x))) along dim. Saves y: gx = gy - exp(y) sum(gy)."""

    log = True


def by_numpy(x, axis=-1, log=False):
    """Returns the softmax of x along `axis`, or its logarithm."""
    xp, dtype = backend.xp_of([x]), x.dtype
    x = x.astype(backend.accumulate_dtype(dtype), copy=False)
    y = xp.empty_like(x)  # y is an array, even if x is 0-d
    if x.size:  # an empty array has no maximum
        xp.subtract(x, x.max(axis=axis, keepdims=True), out=y)
        if log:
            y -= xp.log(xp.exp(y).sum(axis=axis, keepdims=True))
        else:
            xp.exp(y, out=y)
            y /= y.sum(axis=axis, keepdims=True)
    return y.astype(dtype, copy=False)


def by_numpy_backward(gy, y, axis=-1, log=False):
    """Returns gx, in the dtype of the sums: fp32 if y is fp16."""
    xp = backend.xp_of([y])
    gx = xp.empty_like(y, dtype=backend.accumulate_dtype(y.dtype))
    if log:
        xp.exp(y, out=gx, dtype=gx.dtype)
        gx *= gy.sum(axis=axis, keepdims=True, dtype=gx.dtype)
        return xp.subtract(gy, gx, out=gx)
    xp.multiply(gy, y, out=gx, dtype=gx.dtype)
    xp.subtract(gy, gx.sum(axis=axis, keepdims=True), out=gx)
    gx *= y
    return gx


def by_kernel(x, axis=-1, log=False, rung=None, **form):
    """Returns the same as by_numpy along the last axis, for an array of any shape. rung: 1 to 5 of
    the ladder in the .cu file, or "cpu". The default is the best for the device. form: the keyword
    arguments `form` and `order`, which are passed to `cuda.kernel`."""
    shape = x.shape
    x = rows.as_rows(x)
    y = rows.backend_of(x).empty(x.shape, x.dtype)
    if x.size:
        rows.launch(FILE, "softmax", x, (y, x, *x.shape), rung, LOG[log], form)
    return y if y.shape == shape else y.reshape(shape)


def by_kernel_backward(gy, y, axis=-1, log=False, rung=None, **form):
    shape, gy, y = y.shape, rows.as_rows(gy), rows.as_rows(y)
    gx = rows.backend_of(y).empty(y.shape, y.dtype)
    if y.size:
        rows.launch(FILE, "softmax_backward", y, (gx, gy, y, *y.shape), rung, LOG[log], form)
    return gx if gx.shape == shape else gx.reshape(shape)


def softmax(input, dim, *, dtype=None):
    """exp(input) / sum(exp(input)) along `dim`. dtype: if given, casts the input to this dtype
    first."""
    return Softmax.apply(input, dim=dim, dtype=dtype)


def log_softmax(input, dim, *, dtype=None):
    """log(softmax(input, dim)). The probabilities are not computed first, because the logarithm of
    a small rounded number is inexact. dtype: as in softmax."""
    return LogSoftmax.apply(input, dim=dim, dtype=dtype)
