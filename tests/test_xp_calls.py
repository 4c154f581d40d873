"""Tests that CuPy has every function that the sources call, with the arguments of the call.

strict_cupy/dump_api.py recorded CuPy's names and signatures from an installed CuPy. `make cupy`
compares this record with a real CuPy."""

import ast
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
API = json.loads((ROOT / "tests" / "strict_cupy" / "cupy" / "api.json").read_text())
LIBRARY = {"xp", "_xp", "cupy"}  # names that stand for NumPy or CuPy
UFUNC_KEYWORDS = {"out", "dtype", "casting", "where"}
# {method: the ufuncs of CuPy that have this method}
UFUNC_METHODS = {"at": {"add", "subtract", "maximum", "minimum"}, "reduce": {"add", "multiply"},
                 "accumulate": {"add", "multiply"}, "reduceat": {"add"}}
FILES = sorted((ROOT / "minidl").rglob("*.py"))


def dotted(node):
    """Returns ['self', 'xp', 'add', 'at'] for the syntax tree of self.xp.add.at. Returns None for
    other trees."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Call):
        return ["()", *parts[::-1]]
    return [node.id, *parts[::-1]] if isinstance(node, ast.Name) else None


def after_library(node, names):
    """Returns 'add.at' for `self.xp.add.at`. Returns None if no part is a name for the library."""
    parts = dotted(node) or []
    for i, part in enumerate(parts[:-1]):
        if part in names:
            return ".".join(parts[i + 1:])


def signature(text):
    """Returns the inspect.Signature of a recorded text."""
    space = {}
    exec(f"def f{text}: pass", {"ndarray": None}, space)
    return inspect.signature(space["f"])


def wrong(call, text):
    """Returns Python's error for this call of a function with this signature, or '' if the call is
    right."""
    s = text and signature(text)
    if s is None or any(isinstance(a, ast.Starred) for a in call.args):
        return ""
    try:
        s.bind(*call.args, **{k.arg: None for k in call.keywords if k.arg})
    except TypeError as error:
        return f"{error}; CuPy's is {text}"
    return ""


def complaint(path, call):
    """Returns why CuPy refuses `xp.<path>`, or '' if CuPy accepts it. call: the call, or None if
    the source only names the path."""
    first, *rest = path.split(".")
    if first in API["ufuncs"]:
        if rest and first not in UFUNC_METHODS.get(rest[0], ()):
            return f"CuPy has no {path}"
        keywords = {k.arg for k in call.keywords} if call and not rest else set()
        return f"CuPy's ufuncs have no {keywords}" if keywords - UFUNC_KEYWORDS - {None} else ""
    if first in API["functions"]:
        return wrong(call, API["functions"][first]) if call and not rest else ""
    if first == "cuda" and rest:
        return in_cuda(path, rest, call)
    if path.startswith("lib.stride_tricks."):
        name = rest[-1]
        return (wrong(call, API["stride_tricks"][name]) if call else "") if (
            name in API["stride_tricks"]) else f"CuPy has no {path}"
    if first in API["modules"]:
        return "" if not rest or rest[0] in API["modules"][first] else f"CuPy has no {path}"
    return "" if first in API["values"] or first.startswith("__") else f"CuPy has no {path}"


def in_cuda(path, rest, call):
    name, *more = rest
    if name == "nccl":  # exists only after an import of cupy.cuda.nccl
        return ""
    if name == "runtime" and more:
        return "" if more[0] in API["runtime"] else f"CuPy has no {path}"
    if name in API["cuda"]:
        return wrong(call, API["cuda"][name]) if call and not more else ""
    return "" if name in API["modules"]["cuda"] else f"CuPy has no {path}"


def complaints(source, where=""):
    """Returns a line for each call in the source that CuPy refuses."""
    tree, found, called = ast.parse(source), [], set()
    # in other sources `library` is a compiled library
    names = LIBRARY | ({"library"} if "backend.library_of(" in source else set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (path := after_library(node.func, names)):
            called.add(id(node.func))
            found.append((node.lineno, complaint(path, node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in called:
            if path := after_library(node, names):
                found.append((node.lineno, complaint(path, None)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.append((node.lineno, foreign_keywords(node)))
    return [f"{where}:{line}: {words}" for line, words in sorted(set(found)) if words]


def foreign_keywords(call):
    """Returns a text if the call has a keyword that CuPy's arrays do not know, such as
    `x.max(initial=0)`. Otherwise returns ''."""
    name = call.func.attr
    theirs, text = getattr(np.ndarray, name, None), API["ndarray"].get(name)
    base = dotted(call.func)
    if theirs is None or not text or (base and base[0] in ("np", "numpy", "math")):
        return ""
    here = signature(text)
    lacking = {k.arg for k in call.keywords} & NUMPY_ONLY.get(name, set())
    lacking -= set(here.parameters) if here else set()
    return f"CuPy's ndarray.{name} has no {sorted(lacking)}" if lacking else ""


# {method of NumPy's arrays: keywords that CuPy's method lacks}. Python cannot ask NumPy for these.
NUMPY_ONLY = {name: {"initial", "where"} for name in "max min sum prod mean any all".split()}
NUMPY_ONLY |= {"std": {"where", "mean"}, "var": {"where", "mean"}, "astype": {"casting", "subok"}}


@pytest.mark.parametrize("folder", sorted({p.relative_to(ROOT).parts[1] for p in FILES}))
def test_the_sources_call_nothing_that_cupy_lacks(folder):
    found = []
    for path in FILES:
        if path.relative_to(ROOT).parts[1] == folder:
            found += complaints(path.read_text(), path.relative_to(ROOT))
    assert not found, ("write it with what CuPy has, or in a branch for NumPy alone:\n"
                       + "\n".join(found))


@pytest.mark.parametrize("source, words", [
    ("self.xp.maximum(a, b, initial=0)", "no {'initial'}"),
    ("xp.emptylike(x)", "no emptylike"),
    ("xp.zeros(3, like=x)", "unexpected keyword argument 'like'"),
    ("xp.multiply.at(a, b, c)", "no multiply.at"),
    ("f(x)._xp.maximum.reduce(a)", "no maximum.reduce"),
    ("cupy.cuda.alloc_pinned(3)", "no cuda.alloc_pinned"),
    ("cupy.cuda.runtime.getDeviceCounts()", "no cuda.runtime.getDeviceCounts"),
    ("g.max(initial=0)", "no ['initial']"),
    ("op = xp.fmaximum", "no fmaximum"),
])
def test_what_cupy_lacks_is_found(source, words):
    (line,) = complaints(source)
    assert words in line


@pytest.mark.parametrize("source", [
    "xp.add.at(a, i, b)", "xp.zeros(3, dtype=d)", "np.max(x, initial=0)", "x.max(axis=0)",
    "self.xp.exp(x, out=y)", "xp.lib.stride_tricks.as_strided(x, s, t)", "xp.float32"])
def test_what_cupy_has_passes(source):
    assert complaints(source) == []
