"""GELU, the activation of transformers.

    gelu(x) = x P(x)        d gelu / dx = P + x P'        P: normal distribution, or its tanh form

Saved for backward: x alone, which the layer before made anyway; the slope is computed again. NumPy
takes some twenty passes over its input. It works block by block, so that the passes meet in the
cache instead of in memory. The kernel takes one pass.

Source: Hendrycks & Gimpel 2016.
Kernel: kernels/gelu.cu   Test: tests/ops/test_activations.py, test_gelu_kernel.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.dispatch import pick
from minidl.cuda.launch import elementwise, in_packs
from minidl.function import Function
from minidl.ops.normal import cdf_and_pdf

FILE = "gelu.cu"
MACROS = {"none": 0, "tanh": 1}  # which form the kernel is compiled for
BLOCK = 1 << 14  # elements; a block of float32 is 64 KiB, a handful of them fit an L2 cache


class Gelu(Function):
    """x * P(a standard normal number is below x); "tanh": its approximation by a tanh."""

    promotes = "float"

    def forward(self, x, approximate="none"):
        if approximate not in FORMS:
            raise ValueError(f"gelu: approximate wants 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate
        self.save(x)
        return pick(by_kernel, by_numpy, x)(x, approximate)

    def backward(self, gy):
        (x,) = self.saved
        return pick(by_kernel_backward, by_numpy, gy, x)(x, self.approximate, gy)


def gelu_or_slope(xp, x, wants_slope):
    """y = x P(x) with P the normal distribution function, or dy/dx = P + x P'."""
    cdf, pdf = cdf_and_pdf(xp, x)
    if not wants_slope:
        return x * cdf
    pdf *= x
    pdf += cdf
    return pdf


def gelu_tanh_or_slope(xp, x, wants_slope):
    """y = x P with P = (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3); or dy/dx = P + x P'."""
    k = math.sqrt(2 / math.pi)
    square = x * x
    u = square * (0.044715 * k)
    u += k
    u *= x
    p = xp.tanh(u)
    p *= 0.5
    p += 0.5
    y = x * p
    if not wants_slope:
        return y
    slope = square * (3 * 0.044715 * k * 2)  # P' = 2 P (1 - P) u'
    slope += 2 * k
    slope *= y
    slope *= 1 - p
    slope += p
    return slope


FORMS = {"none": gelu_or_slope, "tanh": gelu_tanh_or_slope}


def by_numpy(x, approximate="none", gy=None):
    """gelu(x); with gy, gy times its slope."""
    return in_blocks(FORMS[approximate], x, gy)


def in_blocks(fn, x, gy=None):
    """y = fn(xp, x, False), or gx = gy * fn(xp, x, True): on the CPU a block at a time; fp16 is
    worked in fp32."""
    xp = backend.xp_of([x])
    out = xp.empty(x.shape, x.dtype)
    xs, outs = x.reshape(-1), out.reshape(-1)
    gys = None if gy is None else gy.reshape(-1)
    step = BLOCK if xp is np else max(x.size, 1)
    wide = backend.accumulate_dtype(x.dtype)
    for i in range(0, x.size, step):
        at = slice(i, i + step)
        block = fn(xp, xs[at].astype(wide, copy=False), gy is not None)
        outs[at] = block if gy is None else gys[at] * block
    return out


def by_kernel(x, approximate="none"):
    """gelu(x)."""
    xp = np if type(x) is np.ndarray else backend.xp_of([x])
    x = x if x.flags.c_contiguous else xp.ascontiguousarray(x)
    y = xp.empty(x.shape, x.dtype)
    if xp is np:  # as `launch` does: a call less on the most frequent way
        elementwise(FILE, "gelu", x.dtype, x.size, (y, x, x.size), TANH=MACROS[approximate],
                    ACC=dispatch.SUM_TYPES[x.dtype])
    else:
        launch(xp, "gelu", (y, x), approximate)
    return y


def by_kernel_backward(x, approximate, gy):
    """gy times the slope at x."""
    xp = np if type(x) is np.ndarray else backend.xp_of([x, gy])
    x = x if x.flags.c_contiguous else xp.ascontiguousarray(x)
    gy = gy if gy.flags.c_contiguous else xp.ascontiguousarray(gy)
    gx = xp.empty(x.shape, x.dtype)
    if xp is np:
        elementwise(FILE, "gelu_backward", x.dtype, x.size, (gx, gy, x, x.size),
                    TANH=MACROS[approximate], ACC=dispatch.SUM_TYPES[x.dtype])
    else:
        launch(xp, "gelu_backward", (gx, gy, x), approximate)
    return gx


def launch(xp, name, arrays, approximate, **more):
    """`name` over elements on a CPU, `name`_packs over 16 bytes a thread on a GPU."""
    x = arrays[-1]
    macros = dict(TANH=MACROS[approximate], ACC=dispatch.SUM_TYPES[x.dtype], **more)
    if xp is np:
        elementwise(FILE, name, x.dtype, x.size, (*arrays, x.size), **macros)
    else:
        in_packs(FILE, f"{name}_packs", x.dtype, arrays, **macros)


def gelu(input, approximate="none"):
    return Gelu.apply(input, approximate=approximate)
