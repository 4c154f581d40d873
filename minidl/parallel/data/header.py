"""The header of a backward: how many samples a rank has, and which parameters it used.

    rank 0   [ 4 | 1 0 1 ]  ─┐                 4 samples; rank 0 used parameters 0 and 2
    rank 1   [ 3 | 1 1 0 ]  ─┴─ all-reduce ─►  [ 7 | 2 1 1 ]      on both ranks

The header is sent before the first bucket. The first element of the sum of all headers is the
number of samples of all ranks. Gradients are divided by this number. The other elements show how
many ranks have a gradient of each parameter. Only this file knows the header's layout.

Each backward runs one ring all-reduce of a header. A header has n_bytes() bytes.

Test: tests/parallel/data/test_header.py   Used by: bucket.py, data_parallel.py, noise_scale.py
"""

import numpy as np

from minidl.comm import ring

DTYPE = np.dtype(np.int64)


def announce(n_samples, params, used):
    """Returns this rank's header, an int64 array of shape (1 + len(params),).

    params: all parameters, in the same order on all ranks. used: the parameters that this backward
    reaches."""
    return np.array([n_samples, *(p in used for p in params)], DTYPE)


def share(t, header, all_reduce=ring.all_reduce):
    """Replaces this rank's header by the sum over all ranks, in place. Collective."""
    all_reduce(t, header)


def n_samples(header):
    """Returns the number of samples of all ranks. header: the sum of all headers, which share() has
    computed."""
    return int(header[0])


def used_by_some(header):
    """Returns a bool array: for each parameter, True if any rank used it."""
    return header[1:] > 0


def used_by_all(header, n_ranks):
    """Returns True if all ranks used all parameters."""
    return bool((header[1:] == n_ranks).all())


def n_bytes(n_params):
    """Returns the size of a header in bytes."""
    return (1 + n_params) * DTYPE.itemsize


def bytes_sent(n_params, n_ranks, rank):
    """Returns the bytes that a rank sends for one header, around a ring."""
    return ring.bytes_sent(1 + n_params, DTYPE.itemsize, n_ranks, rank)
