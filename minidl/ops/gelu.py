"""GELU, the activation of transformers.

    gelu(x) = x P(x)        d gelu / dx = P + x P'        P: normal distribution, or its tanh form

Saved for backward: only x. Backward computes the slope again. NumPy's form makes about twenty
passes over its input. It works on one block after another, so that the passes read from the cache
and not from memory. The kernel makes one pass.

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
MACROS = {"none": 0, "tanh": 1}  # the value of the macro TANH for each form
BLOCK = 1 << 14  # elements, 64 KiB of float32. A few such arrays fit in an L2 cache


class Gelu(Function):
    """x * P(x), where P is the standard normal distribution function. approximate="tanh" uses an
    approximation of P by tanh."""

    promotes = "float"

    def forward(self, x, approximate="none"):
        if approximate not in FORMS:
            raise ValueError(f"gelu: approximate must be 'none' or 'tanh'; got {approximate!r}")
        self.approximate = approximate
        self.save(x)
        return pick(by_kernel, by_numpy, x)(x, approximate)

    def backward(self, gy):
        (x,) = self.saved
        return pick(by_kernel_backward, by_numpy, gy, x)(x, self.approximate, gy)


def gelu_or_slope(xp, x, wants_slope):
    """Returns y = x P(x), where P is the normal distribution function. If wants_slope is True,
    returns dy/dx = P + x P' instead."""
    cdf, pdf = cdf_and_pdf(xp, x)
    if not wants_slope:
        return x * cdf
    pdf *= x
    pdf += cdf
    return pdf


def gelu_tanh_or_slope(xp, x, wants_slope):
    """Returns y = x P, where P = (1 + tanh u) / 2 and u = sqrt(2/pi) (x + 0.044715 x^3). If
    wants_slope is True, returns dy/dx = P + x P' instead."""
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
    slope = square * (3 * 0.044715 * k * 2)  # first computes 2 u', because P' = 2 u' P (1 - P)
    slope += 2 * k
    slope *= y
    slope *= 1 - p
    slope += p
    return slope


FORMS = {"none": gelu_or_slope, "tanh": gelu_tanh_or_slope}


def by_numpy(x, approximate="none", gy=None):
    """Returns gelu(x). If gy is given, returns gy times the slope at x instead."""
    return in_blocks(FORMS[approximate], x, gy)


def in_blocks(fn, x, gy=None):
    """Returns fn(xp, x, wants_slope=False), or gy * fn(xp, x, wants_slope=True) if gy is given. On
    a CPU, computes one block after another. fp16 is computed in fp32."""
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
    """Returns gelu(x)."""
    xp = np if type(x) is np.ndarray else backend.xp_of([x])
    x = x if x.flags.c_contiguous else xp.ascontiguousarray(x)
    y = xp.empty(x.shape, x.dtype)
    if xp is np:  # the same as `launch`, written here to save a call in the most frequent case
        elementwise(FILE, "gelu", x.dtype, x.size, (y, x, x.size), TANH=MACROS[approximate],
                    ACC=dispatch.SUM_TYPES[x.dtype])
    else:
        launch(xp, "gelu", (y, x), approximate)
    return y


def by_kernel_backward(x, approximate, gy):
    """Returns gy times the slope at x."""
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
    """Launches a kernel of gelu.cu. On a CPU it is the kernel `name`, where a thread computes one
    element. On a GPU it is `name`_packs, where a thread works on 16 bytes. arrays: the last array
    is x."""
    x = arrays[-1]
    macros = dict(TANH=MACROS[approximate], ACC=dispatch.SUM_TYPES[x.dtype], **more)
    if xp is np:
        elementwise(FILE, name, x.dtype, x.size, (*arrays, x.size), **macros)
    else:
        in_packs(FILE, f"{name}_packs", x.dtype, arrays, **macros)


def gelu(input, approximate="none"):
    return Gelu.apply(input, approximate=approximate)
