"""Compares calls with the source's type hints while a program runs.

    with watched(table_of(["minidl.optim.sgd"])) as calls:
        ...
    calls.wrong       "minidl.optim.sgd.SGD.__init__: lr: wanted float, got '0.1'", ...
    calls.seen        the functions that were called

Python calls a profile function at each call and at each return. The profile function looks the code
up in a table, so the functions stay unchanged.     Used by: test_hints.py, test_stubs.py
"""

import ast
import collections.abc
import importlib
import inspect
import sys
import types
import typing
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def files():
    """Returns the modules that import names only for hints."""
    return sorted(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                  for file in (ROOT / "minidl").rglob("*.py")
                  if "if TYPE_CHECKING:" in file.read_text(encoding="utf-8"))


def names_for_hints(module):
    """Returns {name: value} of the imports below `if TYPE_CHECKING:`, which no program runs."""
    names = {}
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in (one for one in node.body if isinstance(one, ast.ImportFrom)):
                home = importlib.import_module(line.module)
                names |= {a.asname or a.name: getattr(home, a.name) for a in line.names}
    return names


def hinted(module):
    """Yields (name, function, hints) for each function and method of a module that has hints."""
    names = {**vars(module), **names_for_hints(module)}
    for name, function in functions_of(module):
        if function.__annotations__:
            yield name, function, typing.get_type_hints(function, names)


def functions_of(module):
    """Yields (name, function) for each function of a module and each method of its classes."""
    for name, value in list(vars(module).items()):
        owned = getattr(value, "__module__", None) == module.__name__
        members = vars(value).items() if isinstance(value, type) and owned else ()
        for full, one in ((name, value), *((f"{name}.{key}", one) for key, one in members)):
            one = inspect.unwrap(getattr(one, "__func__", one))
            if isinstance(one, types.FunctionType) and one.__module__ == module.__name__:
                yield full, one


def table_of(modules):
    """Returns {code: (name, parameters, hints)} of all functions with hints in these modules."""
    table = {}
    for path in modules:
        for name, function, hints in hinted(importlib.import_module(path)):
            if inspect.isgeneratorfunction(function):
                hints.pop("return", None)  # the hint describes the generator, not a yielded value
            parameters = inspect.signature(function).parameters.values()
            table[function.__code__] = f"{path}.{name}", list(parameters), hints
    return table


class Calls:
    def __init__(self):
        self.seen, self.wrong = set(), []


@contextmanager
def watched(table):
    """Yields Calls: the calls of this thread while the block runs. Write the block around
    simulate(...), not inside a rank's function, because all simulated ranks share one thread and
    its profile function."""
    calls = Calls()

    def at(frame, event, value):
        if event not in ("call", "return") or frame.f_code not in table:
            return
        name, parameters, hints = table[frame.f_code]
        if event == "return":
            if value is not None and "return" in hints:  # None may also mean an error
                check(name, "return", [value], hints)
            return
        calls.seen.add(name)
        for p in parameters:
            given = frame.f_locals[p.name]
            several = {p.VAR_POSITIONAL: given, p.VAR_KEYWORD: getattr(given, "values", tuple)()}
            check(name, p.name, several.get(p.kind, [given]), hints)

    def check(name, what, values, hints):
        calls.wrong += [f"{name}: {what}: wanted {hints[what]}, got {str(value)[:60]!r}"
                        for value in values if what in hints and not fits(value, hints[what])]

    before = sys.getprofile()
    sys.setprofile(at)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def fits(value, kind):
    """Returns True if a type checker would accept the value for this type: an int is a float,
    too."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (typing.Any, typing.Self) or is_protocol(kind) or is_protocol(origin):
        return True
    if kind in (None, type(None)):
        return value is None
    for alias in kind, origin:  # `type Name = ...`, in NumPy on Python 3.12 and later
        if hasattr(alias, "__value__"):
            return fits(value, alias.__value__)
    if isinstance(kind, typing.TypeVar):
        return kind.__bound__ is None or fits(value, kind.__bound__)
    if kind is typing.BinaryIO:
        return hasattr(value, "read")
    if isinstance(kind, str):  # a name in a union of NumPy
        return True
    if kind is float:
        return isinstance(value, (int, float, np.floating))
    if kind is int:
        return isinstance(value, (int, np.integer))
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is typing.Literal:
        return value in args
    if collections.abc.Callable in (kind, origin):
        return callable(value)
    if origin is tuple and args[1:] != (...,):
        return isinstance(value, tuple) and len(value) == len(args) and all(map(fits, value, args))
    if origin is not None and isinstance(value, collections.abc.Mapping):
        return isinstance(value, origin) and (len(args) < 2 or all(
            fits(key, args[0]) and fits(one, args[1]) for key, one in value.items()))
    if origin is not None:
        can_be_read_again = isinstance(value, collections.abc.Collection)
        return isinstance(value, origin) and not (can_be_read_again and args and not all(
            fits(part, args[0]) for part in value))
    return isinstance(value, kind)


def is_protocol(kind):
    """Returns True for a Protocol, a type that only lists attributes. Some hints of dtypes are
    Protocols."""
    home = getattr(kind, "__module__", "")
    return getattr(kind, "_is_protocol", False) and home.startswith(("minidl", "numpy"))
