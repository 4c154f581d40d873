"""The rows that a convolution reads for each row that it writes. One formula is enough for forward,
the gradient of the input, and the transposed convolution.

    y[first + step * r] = sum over u of w[tap + tap_step * u]
                                      * x[read + read_step * r + read_tap * u]

    r = 0 ... n - 1    u = 0 ... n_taps - 1    x outside of the image is 0
    A tap is a row of the kernel w. Columns have the same formula.
    s, p, d: the stride, the padding at the beginning, and the dilation

    forward     each row of y uses all taps: y[r] = sum over u of w[u] x[s r - p + d u]
    by input    gx[h] = sum over i of w[i] gy[(h + p - d i) / s], for all i with an integer index

With stride s, the rows h = a, a + s, a + 2 s, ... of gx use the same taps i. These rows are a
phase. Neighbouring rows belong to different phases. So gx has s phases, a = 0 ... s - 1. Each phase
is computed by the formula above.

    stride 2, kernel 3, padding 1:     gx[0] = w[1] gy[0]
                                       gx[1] = w[0] gy[1] + w[2] gy[0]
                                       gx[2] = w[1] gy[1]
                                       gx[3] = w[0] gy[2] + w[2] gy[1]
    phase 0: tap 1 reads row r         phase 1: tap 0 reads row r + 1, tap 2 reads row r

If the stride is larger than the kernel, some phases have no tap: their rows are 0 (plus the bias).
The formula is for one dimension. An image has pairs (phase of the rows, phase of the columns).

Test: tests/ops/test_conv_geometry.py   Used by: conv_kernel.py, conv_cpu.py
"""

import functools
import math
from collections import namedtuple

Phase = namedtuple("Phase", "first step n tap tap_step n_taps read read_step read_tap")


def forward(n_out, kernel, stride, before, dilation):
    """Returns the Phase of a forward with n_out results. (A forward has only one phase.) before:
    the padding at the beginning.

    >>> forward(5, kernel=3, stride=2, before=1, dilation=1)  # doctest: +NORMALIZE_WHITESPACE
    Phase(first=0, step=1, n=5, tap=0, tap_step=1, n_taps=3, read=-1, read_step=2, read_tap=1)
    """
    return Phase(0, 1, n_out, 0, 1, kernel, -before, stride, dilation)


@functools.lru_cache
def phases(size, kernel, stride, before, dilation):
    """Returns a tuple of Phases, which compute the gradient of an input with `size` rows. A
    transposed convolution with `size` results uses the same Phases. kernel, stride, before and
    dilation describe the convolution, as in `forward`. Together the phases write each row once.
    Phases without a row are left out.

    >>> for phase in phases(4, kernel=3, stride=2, before=1, dilation=1): print(phase)
    Phase(first=0, step=2, n=2, tap=1, tap_step=2, n_taps=1, read=0, read_step=1, read_tap=-1)
    Phase(first=1, step=2, n=2, tap=0, tap_step=2, n_taps=2, read=1, read_step=1, read_tap=-1)
    """
    divisor = math.gcd(stride, dilation)
    tap_step = stride // divisor  # taps i and i + tap_step belong to the same phase
    found = []
    for first in range(min(stride, size)):
        n = -(-(size - first) // stride)
        taps = [i for i in range(min(kernel, tap_step))
                if (first + before - dilation * i) % stride == 0]
        if taps:
            tap = taps[0]
            n_taps = -(-(kernel - tap) // tap_step)
            read = (first + before - dilation * tap) // stride
        else:
            tap = n_taps = read = 0
        found.append(Phase(first, stride, n, tap, tap_step, n_taps, read, 1, -dilation // divisor))
    return tuple(found)
