"""A collective call as data that the ranks compare.   Test: tests/comm/observe/test_watch.py

    ring.all_reduce(t, x, op=np.maximum)      at train.py:31

    {"collective": "ring.all_reduce", "arguments": {"x": "float32 (10,)", "op": "maximum"}, ...}

Arrays are compared by dtype and shape, functions by name, and numbers by value. Arguments that may
differ between ranks (own_args of `@collective`) are not compared. Without a Watch, the ranks
compare only 29 bits in the tag of each message (call_code.py).

Used by: watch.py, which sends a digest of 64 bits
"""

import functools
import hashlib
import inspect
import os

import numpy as np

from minidl.comm import call_code
from minidl.comm.labels import label_of
from minidl.comm.observe.places import spot
from minidl.text import in_words


@functools.cache
def _parameters(fn):
    """Returns a list with a tuple (name, default, see) for each argument of a collective except its
    transport. `see` is a function. The ranks compare see(value), not the value itself."""
    see = dict.fromkeys(getattr(fn, "own_args", ()), lambda value: ...)
    see |= dict.fromkeys(getattr(fn, "own_rows", ()), lambda x: (x.dtype, ("any", *x.shape[1:])))
    listed = list(inspect.signature(fn).parameters.values())[1:]
    return [(p.name, p.default, see.get(p.name, _seen)) for p in listed]


def arguments_of(fn, args, kwargs):
    """Returns a list with one hashable value for each argument of a call. The ranks compare these
    values. The value is (dtype, shape) for an array, the number itself for a number, the name for a
    function, and `...` for an argument that is not compared."""
    parameters = _parameters(fn)
    seen = [see(value) for value, (_, _, see) in zip(args, parameters, strict=False)]
    for name, default, see in parameters[len(args) :]:
        seen.append(see(kwargs.get(name, default)))
    return seen


def _seen(value):
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return value.dtype, value.shape
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, range)):
        return tuple(map(_seen, value))
    name = getattr(value, "__name__", type(value).__name__)
    module = "" if isinstance(value, np.ufunc) else getattr(value, "__module__", None) or ""
    return f"{module.rpartition('.')[2]}.{name}".lstrip(".")


def signature_of(fn, label, line, *values):
    """Returns a dict that describes a call, for JSON. Its entry "compared" must be equal on all
    ranks. The other entries are texts for the report.

    fn: the collective. label: the label of this call. line: (file, line) of the user's code, or
    None. values: the result of arguments_of."""
    name = label_of(fn)
    given = {p: v for (p, *_), v in zip(_parameters(fn), values, strict=False) if v is not ...}
    arguments = {parameter: _text(value) for parameter, value in given.items()}
    arrays = [parameter for parameter, value in given.items() if _is_array(value)]
    at = spot(*line) if line else "a background thread"
    named = label if label != name else None  # a label that the user has set
    # `place` has no folder, because on another host the program may be in another folder.
    place = None if named or not line else [os.path.basename(line[0]), line[1]]
    compared = [name, arguments, named, place]
    words = {"collective": name, "arguments": arguments, "named": named or "", "at": at}
    return words | {"arrays": arrays, "compared": compared}


def _is_array(value):
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.dtype)


def _text(value):
    if _is_array(value):
        shape = ", ".join(map(str, value[1])) + ("," if len(value[1]) == 1 else "")
        return f"{value[0]} ({shape})"
    return str(value)


def digest_of(text):
    """Returns a hash of the text: an int of 64 bits, the same in every process. Python's hash() is
    not the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


REMEDIES = call_code.REMEDIES | {
    "shape": "Is the last batch shorter on some rank?",
    "name": "Do the ranks call these collectives in another order?",
    "line": "Do the ranks call these collectives in another order? If these lines mean the same "
            'collective, name it on all ranks: with t.named("what it is"): ...'}


def explain(calls):
    """Returns a text that shows the call of each rank, and the first difference.

    calls: {world rank: (digest, signature)}. At least two digests differ."""
    alike = {}  # digest -> the ranks that have it
    for rank, (digest, _) in calls.items():
        alike.setdefault(digest, []).append(rank)
    lines = []
    for ranks in alike.values():
        call = calls[ranks[0]][1]
        arguments = ", ".join(f"{name} {text}" for name, text in call["arguments"].items())
        named = f", named {call['named']!r}" if call["named"] else ""
        said = f"{call['collective']}({arguments}){named}"
        lines.append(f"{in_words(ranks)}: {said}, at {call['at']}")
    (a, *_), (b, *_), *_ = alike.values()
    what, here, there = _difference(calls[a][1], calls[b][1])
    remedy = REMEDIES.get(what, "")
    if what in calls[a][1]["arrays"] and what in calls[b][1]["arrays"]:  # an array on both ranks
        same = here.rpartition(" (")[0] == there.rpartition(" (")[0]
        remedy = REMEDIES["shape" if same else "dtype"]
    lines.append(f"differs: {what} is {here} on rank {a}, {there} on rank {b}. {remedy}".rstrip())
    return "\n".join("  " + line for line in lines)


def _difference(one, other):
    """Returns the first difference of two signatures: (what differs, its value in `one`, its value
    in `other`)."""
    pairs = [("collective", one["collective"], other["collective"])]
    names = {**one["arguments"], **other["arguments"]}
    pairs += [(n, *(c["arguments"].get(n, "nothing") for c in (one, other))) for n in names]
    pairs += [("name", one["named"] or "none", other["named"] or "none")]
    pairs += [("line", one["at"], other["at"])]
    return next(pair for pair in pairs if pair[1] != pair[2])
