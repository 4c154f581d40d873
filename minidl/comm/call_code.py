"""29 bits that say which collective a rank is in, on every message and free of charge.

    10 bits   the collective, and the name that `t.named` gave it       ring.all_reduce
     6        dtype of its array                                        float32
     5        op                                                        add
     8        root

The length is not in it: the number of bytes of every message is compared anyway (checks.py).

MPI sends a number of 4 bytes with every message anyway, the tag, and a receiver may take any tag
and look at it afterwards. So the tag of a collective's messages is this code, and a rank that gets
another code than its own raises at once: without it int32 and float32, or a sum and a maximum, have
messages of one size, and the result is wrong in silence. A header of 16 bytes in front of the data
would say more, but MPI moves two pieces of memory at half the speed of one, or less (16 MiB between
2 ranks: 58 ms against 20 ms with MPICH, 128 ms against 26 ms with Open MPI).

The collectives have a communicator of their own (mpi.py), so that no other message is taken. In the
simulator the ranks compare codes on a common dictionary (sim.py); in shared memory the code goes
with the signals (window.py).

A Watch compares calls, too (observe/signature.py). Both stay: this check costs no message and is
always on, but 29 bits have no room for a shape or a line of code; a Watch sends ceil(log2 n)
messages of 16 bytes before each collective, and says all of it. Both raise CallMismatch, with the
same remedies.

Test: tests/comm/test_call_code.py, tests/mpi/test_call_code_mpi.py   Used by: collective.py
"""

import functools
import inspect
import zlib

import numpy as np

BITS = 29  # MPICH's largest tag is 2**29 - 1; MPI promises 2**15 - 1
FIELDS = {"collective": (0, 10), "dtype": (10, 6), "op": (16, 5), "root": (21, 8)}
DTYPES = "?bBhHiIqQefdFDgGlL"  # by their number here, from 1 on; 0: none; others from 32 on
REMEDIES = {"collective": "Does an `if` send the ranks different ways?",
            "dtype": "Cast on all ranks alike.",
            "op": "The result would differ from rank to rank.",
            "root": "The root must be the same rank on all."}


class CallMismatch(ValueError):
    """The ranks of a group are in different collectives, or in one with different arguments."""


@functools.cache
def plan_of(fn):
    """{"x", "op", "root": (place among the arguments after t, name, default)} of a collective."""
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    found = {}
    for place, p in enumerate(parameters):
        default = None if p.default is p.empty else p.default
        place = len(parameters) if p.kind is p.KEYWORD_ONLY else place
        if not found and p.name not in fn.own_args and p.name not in ("op", "root"):
            found["x"] = place, p.name, default
        if p.name in ("op", "root") and p.name not in fn.own_args:
            found[p.name] = place, p.name, default
    return found


def code_of(fn, label, args, kwargs):
    """The code of a call `fn(t, *args, **kwargs)`; never 0. label: what its messages are called."""
    code = _of_name(fn.__module__, fn.__name__, label)
    for name, (place, word, default) in plan_of(fn).items():
        value = args[place] if place < len(args) else kwargs.get(word, default)
        if name == "x":
            if (dtype := getattr(value, "dtype", None)) is not None:
                code |= _of_dtype(dtype) << 10
        elif name == "op":
            code |= _of_op(value) << 16
        elif isinstance(value, (int, np.integer)):
            code |= (int(value) % 256) << 21
    return code


@functools.lru_cache(1000)
def _of_name(module, function, label):
    return 1 + zlib.crc32(f"{module}.{function} {label}".encode()) % 1023


@functools.lru_cache(100)
def _of_dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype.char in DTYPES and dtype.isnative:
        return 1 + DTYPES.index(dtype.char)
    return 32 + zlib.crc32(dtype.str.encode()) % 32


@functools.lru_cache(100)
def _of_op(op):
    name = getattr(op, "__name__", type(op).__name__)
    return zlib.crc32(name.encode()) % 32


def check_code(t, src, mine, theirs, label):
    """Raise unless the codes are equal. src: the rank, in t's group, whose message had `theirs`."""
    if mine != theirs:
        raise CallMismatch(explain(t.rank, src, mine, theirs, label))


def explain(rank, src, mine, theirs, label):
    """The error in words."""
    differ = [name for name in FIELDS if _field(mine, name) != _field(theirs, name)]
    first = differ[0] if differ else "collective"
    what = f"{first} differs"
    if first == "dtype":
        here, there = (_dtype_of(_field(code, first)) for code in (mine, theirs))
        what = f"dtype is {here} here, {there} there"
    return (f"rank {rank}: {label} wants the same call on all ranks; rank {src}'s message is of "
            f"another: {what}. {REMEDIES[first]} `minidl run` (or a Watch) says which lines.")


def _field(code, name):
    shift, width = FIELDS[name]
    return code >> shift & (1 << width) - 1


def _dtype_of(code):
    if code == 0:
        return "none"
    return str(np.dtype(DTYPES[code - 1])) if code <= len(DTYPES) else "another dtype"
