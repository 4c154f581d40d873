"""Modules and parameters in chains, lists and dicts, so that the model finds them.

    self.heads = nn.ModuleDict({"left": nn.Linear(4, 2)})      "heads.left.weight" in state_dict
    self.heads = {"left": nn.Linear(4, 2)}                     a plain dict: nobody trains these

Test: tests/nn/test_containers.py
"""

import numpy as np

from minidl.nn.module import Module, Parameter
from minidl.tensor import Tensor


class Sequential(Module):
    """Modules in a chain, named "0", "1", ...; a dict gives them names of your own."""

    def __init__(self, *modules):
        super().__init__()
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else {
            str(i): module for i, module in enumerate(modules)}
        for name, module in named.items():
            if not isinstance(module, Module):
                raise TypeError(f"Sequential(*modules) wants Modules; got {type(module).__name__}")
            setattr(self, name, module)

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x

    def __getitem__(self, index):
        modules = list(self.children())[index]
        return Sequential(*modules) if isinstance(index, slice) else modules

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self.children())


class ModuleList(Module):
    """A list whose modules are registered, named "0", "1", ..."""

    def __init__(self, modules=()):
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module):
        setattr(self, str(len(self)), module)
        return self

    def __getitem__(self, index):
        modules = list(self.children())[index]
        return ModuleList(modules) if isinstance(index, slice) else modules

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self.children())


class ModuleDict(Module):
    """A dict whose modules are registered under its keys, in the order of insertion."""

    def __init__(self, modules=()):
        super().__init__()
        self.update(modules)

    def update(self, modules):
        for name, module in dict(modules).items():
            self[name] = module

    def __setitem__(self, name, module):
        self.add_module(name, module)

    def __getitem__(self, name):
        return self._modules[name]

    def __delitem__(self, name):
        del self._modules[name]

    def pop(self, name):
        return self._modules.pop(name)

    def keys(self):
        return self._modules.keys()

    def values(self):
        return self._modules.values()

    def items(self):
        return self._modules.items()

    def __contains__(self, name):
        return name in self._modules

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)


class ParameterList(Module):
    """A list of parameters, named "0", "1", ...; tensors and arrays become parameters."""

    def __init__(self, values=()):
        super().__init__()
        self.extend(values)

    def append(self, value):
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values):
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


class ParameterDict(Module):
    """A dict of parameters under its keys, in the order of insertion; tensors and arrays become
    parameters."""

    def __init__(self, parameters=()):
        super().__init__()
        self.update(parameters)

    def update(self, parameters):
        for name, value in dict(parameters).items():
            self[name] = value

    def __setitem__(self, name, value):
        self.register_parameter(name, _as_parameter(value))

    def __getitem__(self, name):
        return self._parameters[name]

    def __delitem__(self, name):
        del self._parameters[name]

    def pop(self, name):
        return self._parameters.pop(name)

    def keys(self):
        return self._parameters.keys()

    def values(self):
        return self._parameters.values()

    def items(self):
        return self._parameters.items()

    def __contains__(self, name):
        return name in self._parameters

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters)


def _as_parameter(value):
    if isinstance(value, Parameter):
        return value
    return Parameter(value.array if isinstance(value, Tensor) else np.asarray(value))
