"""29 bits in every message tell which collective the sender has called. They cost no extra bytes.

    10 bits   the collective, and the name that `t.named` gave it       ring.all_reduce
     6        the dtype of the array                                    float32
     5        op                                                        add
     8        root

These 29 bits are the code of the call. The length of the array is not in this code, because every
receive checks the number of bytes (checks.py).

MPI sends a tag, a number of 4 bytes, with every message. A receiver may accept any tag and read the
tag afterwards. So the code is sent as the tag of the message. If a rank receives a code that
differs from its own code, it raises an error at once. Without this check the result could be
silently wrong. Example: one rank sums, and another rank takes the maximum. The messages of both
ranks have the same size. Arrays of float32 and int32 have the same size, too.

A header of 16 bytes before the data could hold more. But MPI sends two pieces of memory in one
message at most half as fast as one piece. (16 MiB between 2 ranks: with MPICH two pieces take 58
ms, and one piece takes 20 ms. With Open MPI these times are 128 ms and 26 ms.)

The collectives use a separate communicator (mpi.py). So a receive of a collective takes only
messages of collectives, although it accepts any tag. In the simulator the ranks compare codes in a
shared dictionary (sim.py). In shared memory the code is a part of the signals (window.py).

A Watch compares calls, too (observe/signature.py). Both checks are useful. The check of this file
sends no message and is always on. But 29 bits are too few for the array's shape, or for the file
and the line of the call. A Watch sends ceil(log2 n) messages of 16 bytes before each collective,
and can report all differences. Both checks raise CallMismatch, and the error gives the same advice.

Test: tests/comm/test_call_code.py, tests/mpi/test_call_code_mpi.py   Used by: collective.py
"""

import functools
import inspect
import math
import zlib

import numpy as np

BITS = 29  # MPICH's largest tag is 2**29 - 1; the MPI standard guarantees only 2**15 - 1
FIELDS = {"collective": (0, 10), "dtype": (10, 6), "op": (16, 5), "root": (21, 8)}
# The code of a dtype is 1 + its index in DTYPES. Code 0 means no dtype. Codes 32 to 63 are for
# all other dtypes.
DTYPES = "?bBhHiIqQefdFDgGlL"
ABSENT = (math.inf, "", None)  # the plan of an argument that a collective does not have
REMEDIES = {"collective": "Do the ranks take different branches of an `if`?",
            "dtype": "Cast to the same dtype on all ranks.",
            "op": "Pass the same op on all ranks.",
            "root": "Pass the same root on all ranks."}


class CallMismatch(ValueError):
    """The ranks of a group called different collectives, or the same collective with
    different arguments."""


@functools.cache
def plan_of(fn):
    """Returns where the collective fn expects three of its arguments: x, op and root.

    "x" stands for the first argument that must be alike on all ranks. For each of the three, the
    result has a tuple (position of the argument after t, its name, its default). It is ABSENT if fn
    has no such argument."""
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    found = {"x": ABSENT, "op": ABSENT, "root": ABSENT}
    for place, p in enumerate(parameters):
        default = None if p.default is p.empty else p.default
        place = len(parameters) if p.kind is p.KEYWORD_ONLY else place
        name = p.name if p.name in ("op", "root") else "x"
        if p.name not in fn.own_args and found[name] is ABSENT:
            found[name] = place, p.name, default
    return tuple(found.values())


def code_of(fn, label, args, kwargs):
    """Returns the 29-bit code of the call `fn(t, *args, **kwargs)`, an int > 0.

    label: the label of the call's messages."""
    n = len(args)
    (x_at, x_name, _), (op_at, op_name, default_op), (root_at, root_name, default_root) = (
        plan_of(fn))
    x = args[x_at] if x_at < n else kwargs.get(x_name)
    op = args[op_at] if op_at < n else kwargs.get(op_name, default_op)
    root = args[root_at] if root_at < n else kwargs.get(root_name, default_root)
    if root is not None:
        root = int(root) if isinstance(root, (int, np.integer)) else None
    return _code(fn, label, getattr(x, "dtype", None), op, root)


@functools.lru_cache(1000)
def _code(fn, label, dtype, op, root):
    """Returns the 29-bit code of a call of the collective fn. dtype, op and root are None if fn has
    no such argument."""
    code = 1 + zlib.crc32(f"{fn.__module__}.{fn.__name__} {label}".encode()) % 1023
    if dtype is not None:
        code |= _of_dtype(dtype) << 10
    if op is not None:
        name = getattr(op, "__name__", type(op).__name__)
        code |= zlib.crc32(name.encode()) % 32 << 16
    if root is not None:
        code |= root % 256 << 21
    return code


def _of_dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype.char in DTYPES and dtype.isnative:
        return 1 + DTYPES.index(dtype.char)
    return 32 + zlib.crc32(dtype.str.encode()) % 32


def check_code(t, src, mine, theirs, label):
    """Raises CallMismatch unless the codes `mine` and `theirs` are equal.

    mine: the code of this rank's call. theirs: the code in a message from rank src of t's group.
    label: the label of this rank's call, for the error's text."""
    if mine != theirs:
        raise CallMismatch(explain(t.rank, src, mine, theirs, label))


def explain(rank, src, mine, theirs, label):
    """Returns the text of a CallMismatch. It tells what differs between the two codes, and what to
    do. mine: the code of the call on `rank`. theirs: the code of the call on rank src."""
    differ = [name for name in FIELDS if _field(mine, name) != _field(theirs, name)]
    first = differ[0] if differ else "collective"
    what = f"{first} differs"
    if first == "dtype":
        here, there = (_dtype_of(_field(code, first)) for code in (mine, theirs))
        what = f"dtype is {here} on rank {rank}, {there} on rank {src}"
    return (f"rank {rank}: {label} wants the same call on all ranks; rank {src}'s message belongs "
            f"to another call: {what}. {REMEDIES[first]} `minidl run` (or a Watch) shows the line "
            "of each call.")


def _field(code, name):
    shift, width = FIELDS[name]
    return code >> shift & (1 << width) - 1


def _dtype_of(code):
    if code == 0:
        return "none"
    return str(np.dtype(DTYPES[code - 1])) if code <= len(DTYPES) else "another dtype"
