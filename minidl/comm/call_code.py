"""29 bits in every message tell which collective the sender is in. They cost no extra bytes.

    10 bits   the collective, and the name that `t.named` gave it       ring.all_reduce
     6        dtype of its array                                        float32
     5        op                                                        add
     8        root

The code leaves out the length, because every receive checks the number of bytes (checks.py).

MPI sends a number of 4 bytes, the tag, with every message. A receiver may accept any tag and read
it afterwards. So the tag of a collective's message is this code. A rank that receives a code other
than its own raises an error at once. Without this check, a rank that sums and a rank that takes the
maximum exchange messages of the same size, and so do float32 and int32: the result is silently
wrong. A header of 16 bytes before the data could hold more. But MPI moves two pieces of memory at
half the speed of one, or less (16 MiB between 2 ranks: 58 ms and 20 ms with MPICH, 128 ms and 26 ms
with Open MPI).

The collectives use a separate communicator (mpi.py), so a receive of any tag never takes another
message. In the simulator the ranks compare codes in a shared dictionary (sim.py). In shared memory
the code is a part of the signals (window.py).

A Watch compares calls, too (observe/signature.py). Both checks are useful. This one sends no
message and is always on, but 29 bits are too few for a shape or a line of code. A Watch sends
ceil(log2 n) messages of 16 bytes before each collective, and can report everything. Both raise
CallMismatch, with the same remedies.

Test: tests/comm/test_call_code.py, tests/mpi/test_call_code_mpi.py   Used by: collective.py
"""

import functools
import inspect
import zlib

import numpy as np

BITS = 29  # MPICH's largest tag is 2**29 - 1; MPI promises 2**15 - 1
FIELDS = {"collective": (0, 10), "dtype": (10, 6), "op": (16, 5), "root": (21, 8)}
DTYPES = "?bBhHiIqQefdFDgGlL"  # code: position here + 1; 0: no dtype; 32 and more: another dtype
REMEDIES = {"collective": "Does an `if` send the ranks different ways?",
            "dtype": "Cast on all ranks alike.",
            "op": "The result would differ from rank to rank.",
            "root": "The root must be the same rank on all."}


class CallMismatch(ValueError):
    """The ranks of a group called different collectives, or one with different arguments."""


@functools.cache
def plan_of(fn):
    """Returns {"x" or "op" or "root": (position among the arguments after t, name, default)} of a
    collective. "x" is its first argument that all ranks must have alike."""
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
    """Returns the code of a call `fn(t, *args, **kwargs)`, an int > 0. label: of its messages."""
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
    """Raises CallMismatch unless the codes are equal. src: the rank, in t's group, whose message
    had the code `theirs`."""
    if mine != theirs:
        raise CallMismatch(explain(t.rank, src, mine, theirs, label))


def explain(rank, src, mine, theirs, label):
    """Returns the error's text: what differs between the codes, and what to do."""
    differ = [name for name in FIELDS if _field(mine, name) != _field(theirs, name)]
    first = differ[0] if differ else "collective"
    what = f"{first} differs"
    if first == "dtype":
        here, there = (_dtype_of(_field(code, first)) for code in (mine, theirs))
        what = f"dtype is {here} here, {there} there"
    return (f"rank {rank}: {label} wants the same call on all ranks; rank {src}'s message belongs "
            f"to another call: {what}. {REMEDIES[first]} `minidl run` (or a Watch) shows the lines."
            )


def _field(code, name):
    shift, width = FIELDS[name]
    return code >> shift & (1 << width) - 1


def _dtype_of(code):
    if code == 0:
        return "none"
    return str(np.dtype(DTYPES[code - 1])) if code <= len(DTYPES) else "another dtype"
