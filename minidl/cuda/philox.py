"""Makes the random bits of a Generator on a GPU: the same bits that NumPy makes on the host.

    bits((seed, stream, counter), n) -> n draws of 32 bits, a CuPy array

A draw is a function of (seed, stream, counter). So each thread of the GPU computes its own eight
draws, and the host uploads no bits. If the host makes the draws, each step of GPT-2 (12 layers)
takes 14 s longer.

Kernel: kernels/philox.cu   Test: tests/cuda/test_philox.py
"""

import numpy as np

from minidl import backend, random
from minidl.cuda import dispatch
from minidl.cuda.launch import BLOCK


def bits(state, n, xp=None):
    """Returns n draws of a generator: (n,) uint32, an array of the library xp. If xp is None,
    returns a CuPy array on the current device. state: (seed, stream, counter)."""
    xp = xp or backend.import_cupy()
    out, n8 = xp.empty(n, np.uint32), -(-n // random.DRAWS_PER_BLOCK)
    if n:
        kernel = dispatch.kernel("philox.cu", "philox_bits")
        kernel(-(-n8 // BLOCK), BLOCK, (out, n, n8, *state))
    return out


def draw_on(xp):
    """Returns the function that draws bits for arrays of the library xp. Pass this function to a
    Generator as the argument `draw`."""
    return random.host_bits if xp is np else bits
