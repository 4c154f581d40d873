"""Errors for wrong arguments, before anything is sent.

The text of each error names the rank. It then tells what was wanted, what came, and what to do.

Test: tests/comm/test_checks.py   Used by: the transports, and every algorithm
"""

import functools

import numpy as np

from minidl.backend import is_floating, xp_of
from minidl.comm.labels import current_label


class SizeMismatch(ValueError):
    """A message does not have the number of bytes that its receive expects."""


def size_mismatch(rank, src, expected, got):
    """Returns the SizeMismatch for a message from rank src. expected: the number of bytes that the
    receive expects. got: the number of bytes in the message, or 'more' if this number is not
    known."""
    label = current_label(default=None)
    if label is None:
        what = "recv needs a buffer of the message's size"
        remedy = "Do both sides agree on shape and dtype?"
    else:
        what = f"{label} needs the same size on all ranks"
        remedy = "Is the last batch shorter on some rank?"
    return SizeMismatch(
        f"rank {rank}: {what}; expected {expected} bytes from rank {src}, got {got}. {remedy}")


def check_peer(t, peer, role):
    """Raises ValueError unless `peer` is a rank of this group. role: the name of the argument,
    "dst", "src" or "root". It is a part of the error's text."""
    if not 0 <= peer < t.size:
        raise ValueError(
            f"rank {t.rank}: {role} must be a rank of this group, 0 to {t.size - 1}; got {peer}")


def check_ranks(t, ranks):
    """Returns the ranks of a subgroup as a tuple of ints. Raises ValueError if there are no ranks,
    if a rank occurs twice, or if it is not in the group."""
    ranks = tuple(ranks)
    known = _distinct(ranks, t.size)
    if known is None:
        raise ValueError(f"rank {t.rank}: subgroup needs one or more distinct ranks, each from 0 "
                         f"to {t.size - 1}; got {list(ranks)}")
    return known


@functools.lru_cache(100)  # in a simulation, thousands of ranks check the same groups
def _distinct(ranks, size):
    """Returns the ranks as a tuple of ints. Returns None if there are no ranks, if a rank occurs
    twice, or if it is not in a group of this size."""
    ranks = tuple(int(r) for r in ranks)
    fits = ranks and len(set(ranks)) == len(ranks) and min(ranks) >= 0 and max(ranks) < size
    return ranks if fits else None


def check_array(t, array):
    """Raises TypeError unless `array` is a NumPy array of any dtype except object."""
    if not isinstance(array, np.ndarray):
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(
            f"rank {t.rank}: the transport moves host arrays (numpy.ndarray); got {kind}. Sum "
            "device arrays with device.all_reduce, or first copy them to the host (cupy.asnumpy).")
    if array.dtype.hasobject:
        raise TypeError(f"rank {t.rank}: an array of Python objects has no bytes to send; got "
                        f"{array.dtype}. Convert it to numbers, or use objects.py.")


def check_call(name, t, x=None, op=None, *_, **__):
    """Is called after an error in the collective `name`. If the transport, the array or the op has
    a wrong type, this function raises a TypeError that tells the type. Otherwise it does nothing.
    """
    if not hasattr(t, "entering"):
        raise TypeError(f"{name} wants a transport as its first argument, such as comm.world(); "
                        f"got {type(t).__name__}")
    if isinstance(x, (list, tuple, int, float)):
        raise TypeError(f"rank {t.rank}: {name} wants an array or a Tensor; "
                        f"got {type(x).__name__}")
    if type(op) is str:
        raise TypeError(f"rank {t.rank}: {name} wants an op that is a function, such as np.add; "
                        f"got op={op!r}")


def check_flat(t, x):
    """Returns x. Raises ValueError unless x is 1-d and contiguous, because only such an array can
    be cut into views."""
    if x.ndim != 1 or not x.flags.c_contiguous:
        raise ValueError(f"rank {t.rank}: wanted a 1-d contiguous array, to change it in place; "
                         f"got shape {x.shape}, strides {x.strides}. Pass "
                         "ascontiguousarray(x).reshape(-1).")
    return x


def check_floating(t, x, what):
    """Raises TypeError unless x holds floating point numbers.

    what: the thing that needs such numbers, such as "a mean". It is a part of the error's text."""
    if not is_floating(x.dtype):
        raise TypeError(
            f"rank {t.rank}: {what} needs a floating point array; got {x.dtype}. Cast it first.")


def check_bounds(t, bounds, length=None):
    """Returns `bounds` as a list of ints. Raises ValueError if a bound is wrong.

    For n ranks there must be n+1 bounds. The first bound must be 0, and no bound may be smaller
    than the bound before it. If `length` is given, the last bound must be `length`."""
    b = [int(place) for place in bounds]
    whole = len(b) == t.size + 1 and b[0] == 0 and (length is None or b[-1] == length)
    if not whole or b != sorted(b):
        to = "on" if length is None else f"to {length}, the length"
        raise ValueError(
            f"rank {t.rank}: bounds of {t.size} blocks must be {t.size + 1} numbers from 0 {to}, "
            "and no number may be smaller than the one before it; got "
            f"{b if len(b) <= 20 else f'{len(b)} numbers'}. chunks.bounds(length, n) returns "
            "bounds of equal blocks.")
    return b


def all_finite(x):
    """Returns True if a 1-d array has no inf and no nan.

    Usually it reads the array only once, to compute the sum of the squares. If this sum is finite,
    all elements are finite."""
    xp = xp_of([x])
    with np.errstate(all="ignore"):
        square = float(x @ x)
    # The square of a large finite number overflows. So if the sum is infinite, check each element.
    return bool(np.isfinite(square) or xp.isfinite(x).all())
