"""The header of a backward: how many samples a rank has, and which parameters it used.

    rank 0   [ 4 | 1 0 1 ]  ─┐                 4 samples; it used parameters 0 and 2
    rank 1   [ 3 | 1 1 0 ]  ─┴─ all-reduce ─►  [ 7 | 2 1 1 ]      on both ranks

It is sent before the first bucket. The sum says what the gradients are to be divided by, and which
parameters have a gradient on some rank. This file alone knows how a header is written.

Sent per rank and backward: a ring all-reduce of `n_bytes`.

Test: tests/parallel/data/test_header.py   Used by: bucket.py, data_parallel.py, noise_scale.py
"""

import numpy as np

from minidl.comm import ring

DTYPE = np.dtype(np.int64)


def announce(n_samples, params, used):
    """Returns this rank's header. params: all parameters, in one order on all ranks; used: those
    that this backward reaches."""
    return np.array([n_samples, *(p in used for p in params)], DTYPE)


def share(t, header, all_reduce=ring.all_reduce):
    """This rank's header becomes that of all ranks, in place."""
    all_reduce(t, header)


def n_samples(header):
    """Returns the samples of all ranks. header: one that is shared."""
    return int(header[0])


def used_by_some(header):
    """Returns for each parameter whether any rank used it, an array of bool."""
    return header[1:] > 0


def used_by_all(header, n_ranks):
    """Returns whether all ranks used all parameters."""
    return bool((header[1:] == n_ranks).all())


def n_bytes(n_params):
    """Returns the size of a header."""
    return (1 + n_params) * DTYPE.itemsize


def bytes_sent(n_params, n_ranks, rank):
    """Returns the bytes that a rank sends for one header, around a ring."""
    return ring.bytes_sent(1 + n_params, DTYPE.itemsize, n_ranks, rank)
