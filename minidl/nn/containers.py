"""Chains, lists and dicts of modules and parameters. A model finds the parameters inside them.

    self.heads = nn.ModuleDict({"left": nn.Linear(4, 2)})      "heads.left.weight" in state_dict
    self.heads = {"left": nn.Linear(4, 2)}                     a plain dict: its module is not found

Test: tests/nn/test_containers.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.nn.module import Module, Parameter
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from minidl.hints import Array


class Sequential(Module):
    """A chain of modules: each module gets the result of the previous module. The modules are named
    "0", "1", .... If the only argument is a dict {name: module}, its keys are the names."""

    def __init__(self, *modules: Module | dict[str, Module]):
        super().__init__()
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else {
            str(i): module for i, module in enumerate(modules)}
        for name, module in named.items():
            if not isinstance(module, Module):
                raise TypeError(f"Sequential(*modules) wants Modules; got {type(module).__name__}")
            setattr(self, name, module)

    def append(self, module: Module) -> Sequential:
        setattr(self, str(len(self)), module)
        return self

    def forward(self, x: Any) -> Any:
        for module in self.children():
            x = module(x)
        return x

    def __getitem__(self, index: Any) -> Any:
        modules = list(self.children())[index]
        return Sequential(*modules) if isinstance(index, slice) else modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.children())


class ModuleList(Module):
    """A list of modules, which are registered under the names "0", "1", ..."""

    def __init__(self, modules: Iterable[Module] = ()):
        super().__init__()
        self.extend(modules or ())

    def append(self, module: Module) -> ModuleList:
        setattr(self, str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        modules = list(self)
        modules.insert(index, module)
        self._become(modules)

    def __setitem__(self, index, module):
        modules = list(self)
        modules[index] = module
        self._become(modules)

    def __delitem__(self, index):
        modules = list(self)
        del modules[index]
        self._become(modules)

    def _become(self, modules):
        """Replaces the content of the list by `modules`, with the names "0", "1", ..."""
        self._modules.clear()
        self.extend(modules)

    def __repr__(self):
        """Returns the printed form. Equal modules in a row share one line, such as
        "(0-2): 3 x Linear(...)"."""
        lines, texts = [], [repr(module) for module in self]
        start = 0
        while start < len(texts):
            end = start
            while end + 1 < len(texts) and texts[end + 1] == texts[start]:
                end += 1
            n = end - start + 1
            name = f"({start})" if n == 1 else f"({start}-{end})"
            times = "" if n == 1 else f"{n} x "
            lines.append(f"  {name}: {times}" + texts[start].replace("\n", "\n  "))
            start = end + 1
        return "\n".join(["ModuleList(", *lines, ")"]) if lines else "ModuleList()"

    def __getitem__(self, index: Any) -> Any:
        modules = list(self.children())[index]
        return ModuleList(modules) if isinstance(index, slice) else modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.children())


class _Named(Module):
    """The common part of ModuleDict and ParameterDict: the methods of a dict. Every Module has a
    table of its modules and a table of its parameters. `entries` is the name of the table that
    holds the entries of the dict."""

    def __init__(self, entries=()):
        super().__init__()
        self.update(entries)

    def _table(self):
        return vars(self)[self.entries]

    def update(self, entries):
        for name, entry in dict(entries).items():
            self[name] = entry

    def __getitem__(self, name):
        return self._table()[name]

    def __delitem__(self, name):
        del self._table()[name]

    def pop(self, name):
        return self._table().pop(name)

    def keys(self):
        return self._table().keys()

    def values(self):
        return self._table().values()

    def items(self):
        return self._table().items()

    def __contains__(self, name):
        return name in self._table()

    def __len__(self):
        return len(self._table())

    def __iter__(self):
        return iter(self._table())


class ModuleDict(_Named):
    """A dict of modules, which are registered under its keys, in the order of insertion."""
    entries = "_modules"

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        super().__init__(modules)

    def __setitem__(self, name, module):
        self.add_module(name, module)


class ParameterList(Module):
    """A list of parameters, which are registered under the names "0", "1", .... Tensors and arrays
    become parameters."""

    def __init__(self, values: Iterable[Array] = ()):
        super().__init__()
        self.extend(values)

    def append(self, value: Array) -> ParameterList:
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values: Iterable[Array]) -> ParameterList:
        for value in values:
            self.append(value)
        return self

    def __getitem__(self, index):
        found = list(self._parameters.values())[index]
        return ParameterList(found) if isinstance(index, slice) else found

    def __setitem__(self, index, value):
        self.register_parameter(list(self._parameters)[index], _as_parameter(value))

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters.values())


class ParameterDict(_Named):
    """A dict of parameters, which are registered under its keys, in the order of insertion. Tensors
    and arrays become parameters."""
    entries = "_parameters"

    def __init__(self, parameters: Mapping[str, Array] | Iterable[tuple[str, Array]] = ()):
        super().__init__(parameters)

    def __setitem__(self, name, value):
        self.register_parameter(name, _as_parameter(value))


def _as_parameter(value):
    if isinstance(value, Parameter):
        return value
    return Parameter(value.array if isinstance(value, Tensor) else np.asarray(value))
