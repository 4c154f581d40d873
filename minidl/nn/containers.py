"""Modules and parameters in chains, lists and dicts, so that the model finds them.

    self.heads = nn.ModuleDict({"left": nn.Linear(4, 2)})      "heads.left.weight" in state_dict
    self.heads = {"left": nn.Linear(4, 2)}                     a plain dict: nobody trains these

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
    """Modules in a chain, named "0", "1", ...; a dict gives them names of your own."""

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
    """A list whose modules are registered, named "0", "1", ..."""

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
        """Holds these modules, numbered from 0."""
        self._modules.clear()
        self.extend(modules)

    def __repr__(self):
        """Equal modules that follow each other share a line: "(0-2): 3 x Linear(...)"."""
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
    """What ModuleDict and ParameterDict share: a dict's methods over the table of a module that
    holds the entries. `entries` is the table's name."""

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
    """A dict whose modules are registered under its keys, in the order of insertion."""
    entries = "_modules"

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        super().__init__(modules)

    def __setitem__(self, name, module):
        self.add_module(name, module)


class ParameterList(Module):
    """A list of parameters, named "0", "1", ...; tensors and arrays become parameters."""

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
    """A dict of parameters under its keys, in the order of insertion; tensors and arrays become
    parameters."""
    entries = "_parameters"

    def __init__(self, parameters: Mapping[str, Array] | Iterable[tuple[str, Array]] = ()):
        super().__init__(parameters)

    def __setitem__(self, name, value):
        self.register_parameter(name, _as_parameter(value))


def _as_parameter(value):
    if isinstance(value, Parameter):
        return value
    return Parameter(value.array if isinstance(value, Tensor) else np.asarray(value))
