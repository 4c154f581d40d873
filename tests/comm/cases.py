"""What the tests of many collectives share: lengths, inputs, and a look at all ranks' bits."""

import importlib
import inspect
import pkgutil

import numpy as np

from minidl import comm
from minidl.plain import naive

DTYPES = ["f2", "f4", "f8", "i4", "i8"]


def length_of(length, n):
    """A length by name: around the number of ranks chunks are empty and unequal."""
    return {"n-1": n - 1, "n": n, "n+1": n + 1}.get(length, length)


def data(rank, length, dtype="f4"):
    """Other values on every rank and in every element; float16 sums of 8 stay in range."""
    x = np.random.default_rng([rank, length]).uniform(-9, 9, length)
    return x > 3 if dtype == "?" else x.astype(dtype)


def bits_agree(t, x):
    """All ranks hold the same bytes, compared on rank 0 by the oracle's gather."""
    gathered = naive.gather(t, np.ascontiguousarray(x).reshape(-1).view(np.uint8))
    return t.rank > 0 or all((other == gathered[0]).all() for other in gathered)


def all_reduces():
    """{"ring.all_reduce": the function} of all modules of minidl/comm: public, with a name that
    begins with all_reduce, or ends so and takes (t, x, op)."""
    found = {}
    for module in pkgutil.iter_modules(comm.__path__):
        whole = importlib.import_module(f"minidl.comm.{module.name}")
        for name, fn in vars(whole).items():
            if inspect.isfunction(fn) and fn.__module__ == whole.__name__ and (
                    name.startswith("all_reduce") or name.endswith("all_reduce")
                    and [*inspect.signature(fn).parameters][:3] == ["t", "x", "op"]):
                if name[0] != "_":
                    found[f"{module.name}.{name}"] = fn
    return found
