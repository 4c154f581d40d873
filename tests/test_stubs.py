"""Tests that the stubs for editors have the names, arguments and results of minidl at run time."""

import ast
import importlib
import inspect
import re
import types
import typing
from pathlib import Path

import numpy as np
import pytest

import minidl
from minidl import ops
from tests import stubs
from tests.hinted import fits
from tests.ops import samples, samples_composed, samples_extra, samples_nn

ROOT = Path(__file__).resolve().parents[1]
ROWS = samples.ROWS + samples_nn.ROWS + samples_extra.ROWS + samples_composed.ROWS


def test_the_stubs_are_current():
    there = {path.relative_to(ROOT).as_posix(): path.read_text()
             for path in (ROOT / "minidl").rglob("*.pyi")}
    wanted = stubs.stubs()
    old = [path for path in {**there, **wanted} if there.get(path) != wanted.get(path)]
    assert old == [], f"run `make stubs`, and commit what it writes: {old}"


def names_of(body):
    """Yields the names that the statements of a stub define for other modules."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield node.targets[0].id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):  # such as `import x as x`
            yield from (alias.name for alias in node.names if alias.name == alias.asname)


def public(module):
    """Returns the public names of a module, without submodules. Some submodules are there only
    because a test imported them."""
    return {name for name in dir(module) if not name.startswith("_")
            and not isinstance(getattr(module, name), types.ModuleType)}


@pytest.mark.parametrize("name", stubs.modules())
def test_a_stub_has_each_name_of_its_module_and_no_other(name):
    module = importlib.import_module(name)
    tree = ast.parse((ROOT / stubs.path_of(name)).read_text())
    written = set(names_of(tree.body))
    own = {n for n in public(module) if not foreign(getattr(module, n))}
    assert own <= written, own - written
    for one in written:
        assert hasattr(module, one), one
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            its = {n for n in vars(getattr(module, node.name)) if stubs.is_shown(n)}
            assert set(names_of(node.body)) == its


def foreign(value):
    """Returns True for a function or class of another package, which a module only uses."""
    return callable(value) and not value.__module__.startswith("minidl")


def test_the_parts_of_minidl_are_names_of_its_stub():
    written = set(names_of(ast.parse((ROOT / "minidl/__init__.pyi").read_text()).body))
    assert {*minidl._PARTS, "amp", "kernel", "bfloat16", "float32", "Tensor", "relu"} <= written


def test_a_package_whose_names_a_type_checker_would_take_for_its_own_use_has_a_stub():
    inside = {"minidl.ops", "minidl.infer.passes"}  # users import their names from minidl
    for file in (ROOT / "minidl").rglob("__init__.py"):
        name, text = ".".join(file.parent.relative_to(ROOT).parts), file.read_text()
        if re.search(r"^from minidl", text, re.M) and "__all__ = " not in text:
            assert name in {*stubs.modules(), *inside}, f"{name} wants `__all__`"
    assert {"minidl.nn", "minidl.optim", "minidl.comm", "minidl.data"} <= set(stubs.modules())
    text = (ROOT / "minidl/nn/__init__.pyi").read_text()
    assert "from minidl.nn.layers import Linear as Linear\n" in text and "SyncBatchNorm" in text


# -- types


class Stub:
    """A stub that Python has run. signatures(name) yields the signatures of a function, with the
    types of its arguments."""

    def __init__(self, module):
        self.name = f"stub of {module}"
        text = (ROOT / stubs.path_of(module)).read_text()
        self.names = {"__name__": self.name}
        flags = __import__("__future__").annotations.compiler_flag
        exec(compile(text, self.name, "exec", flags, dont_inherit=True), self.names)
        self.own = dict(self.names)
        self.names |= {"Tensor": minidl.Tensor, "DTypeLike": typing.Any}

    def signatures(self, name, of=None):
        owner = vars(self.own[of]) if of else self.own
        where = types.SimpleNamespace(__module__=self.name,
                                      __qualname__=f"{of}.{name}" if of else name)
        for function in typing.get_overloads(where) or [owner[name]]:
            hints = {k: eval(v, self.names) for k, v in function.__annotations__.items()}
            yield inspect.signature(function), hints


def takes(signature, hints, args, options):
    """Returns True if a call with these arguments fits the signature and the types."""
    try:
        bound = signature.bind(*args, **options)
    except TypeError:
        return False
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        several = {inspect.Parameter.VAR_POSITIONAL: tuple, inspect.Parameter.VAR_KEYWORD: dict}
        values = [value]
        if kind in several:
            values = value.values() if several[kind] is dict else value
        if name != "self" and not all(fits(one, hints[name]) for one in values):
            return False
    return True


def watched(function, name, signatures, calls):
    """Returns `function`, with a record of the calls that fit none of its signatures."""
    def call(*args, **options):
        result = function(*args, **options)
        right = [hints for signature, hints in signatures if takes(signature, hints, args, options)]
        if not right or not fits(result, right[0]["return"]):
            calls.append((name, [type(a).__name__ for a in args], options, type(result).__name__))
        calls.seen.add(name)
        return result
    return call


class Calls(list):
    """A list of the calls that fit no signature. seen: the set of the ops that were called."""

    def __init__(self):
        self.seen = set()


def test_arguments_and_results_of_every_op_are_of_the_types_of_the_stub(monkeypatch):
    """Calls the ops by the samples of tests/ops, which call each op in all forms of PyTorch."""
    calls = Calls()
    spaces = {}
    for home, module in (("t", "minidl"), ("f", "minidl.nn.functional")):
        stub = Stub(module)
        spaces[home] = types.SimpleNamespace(**vars(minidl) | {
            name: watched(op, name, list(stub.signatures(name)), calls)
            for name, op in ops.namespace(home).items()})
    stub = Stub("minidl.tensor")
    for name, op in (ops.namespace("m") | {"__getitem__": ops.index.getitem}).items():
        signatures = list(stub.signatures(name, "Tensor"))
        monkeypatch.setattr(minidl.Tensor, name, watched(op, name, signatures, calls))
    for row in ROWS:
        xs = [minidl.Tensor(np.array(x)) for x in row.inputs[0]]
        row.of_library(spaces["t"], spaces["f"], *xs)
    assert len(calls.seen) > 150
    assert not calls, "\n".join(map(str, calls))


def test_a_call_that_is_not_of_these_types_would_be_seen():
    stub = Stub("minidl.nn.functional")
    (softmax,) = stub.signatures("softmax")
    x = minidl.ones(2)
    assert takes(*softmax, (x, 0), {}) and takes(*softmax, (x,), {"dim": 0})
    assert not takes(*softmax, (x, "rows"), {}) and not takes(*softmax, (x,), {"dimension": 0})
    pooled, both, _ = stub.signatures("max_pool2d")
    assert takes(*pooled, (x, 2), {}) and not takes(*pooled, (x, 2), {"return_indices": True})
    assert takes(*both, (x, 2), {"return_indices": True})
    assert fits((x, x), both[1]["return"]) and not fits(x, both[1]["return"])


def test_each_type_by_name_is_the_type_of_an_argument():
    used = set()
    for home in "mtf":
        for op, function in ops.namespace(home).items():
            for name in inspect.signature(function).parameters:
                used |= {name, f"{op}.{name}"}
    used |= {"gradient", "__getitem__.index", "__setitem__.index"}
    assert set(stubs.TYPES) <= used, f"no op has {set(stubs.TYPES) - used}; tests/stubs.py, TYPES"


# The types of a tensor's attributes in the stub come from the table stubs.HOLDS.
def test_what_a_tensor_holds_is_of_the_type_of_the_table():
    x = minidl.ones(2, requires_grad=True)
    (x * x).sum().backward()
    kinds = {"Tensor": minidl.Tensor, "bool": bool, "int": int, "str": str,
             "tuple[int, ...]": tuple, "dtype[Any]": np.dtype}
    for name, kind in stubs.HOLDS.items():
        assert isinstance(getattr(x, name), kinds[kind]), name
