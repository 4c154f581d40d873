"""Random bits of a Generator made on a GPU: the same as NumPy makes, to the bit.

    bits(seed, stream, counter), n) -> n draws of 32 bits, a CuPy array

Each thread runs the cipher for its own eight draws, since a draw is a function of (seed, stream,
counter): nothing is uploaded, where the 12 layers of GPT-2 would draw 14 s a step on the host.

Kernel: kernels/philox.cu   Test: tests/cuda/test_philox.py
"""

import numpy as np

from minidl import backend, random
from minidl.cuda import dispatch
from minidl.cuda.launch import BLOCK


def bits(state, n, xp=None):
    """n draws of a generator in `state`, (seed, stream, counter): uint32, on CuPy's current device
    unless xp says otherwise."""
    xp = xp or backend.import_cupy()
    out, n8 = xp.empty(n, np.uint32), -(-n // random.DRAWS_PER_BLOCK)
    if n:
        kernel = dispatch.kernel("philox.cu", "philox_bits")
        kernel(-(-n8 // BLOCK), BLOCK, (out, n, n8, *state))
    return out


def draw_on(xp):
    """How a Generator is to draw for arrays of this library: its argument `draw`."""
    return random.host_bits if xp is np else bits
