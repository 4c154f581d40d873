"""The optimizers that minidl.optim exports, found by looking: a new one runs through the cases of
all others without a line here.

ZeRO 1, 2, 3       parallel/zero/test_zero.py; by norms of whole tensors: test_whole_tensors.py
master weights     test_master.py
snapshot, resume   snapshot/test_snapshot.py
"""

import inspect

import pytest

from minidl import optim
from minidl.optim.layerwise import Layerwise

FOUND = sorted(name for name, cls in vars(optim).items()
               if inspect.isclass(cls) and issubclass(cls, optim.Optimizer)
               and cls not in (optim.Optimizer, optim.LBFGS))
# LBFGS calls a closure several times in a step, on whole parameters: tests/optim/test_lbfgs.py
# Arguments of those that want some, or that do nothing worth a test without.
ARGUMENTS = {"SGD": {"momentum": 0.9}}
# Those that take no parameters of other shapes, and no flat shares of ZeRO: they refuse both.
MATRICES_ONLY = {"Muon"}
BY_WHOLE_TENSORS = [name for name in FOUND if issubclass(getattr(optim, name), Layerwise)]
BY_ELEMENTS = [name for name in FOUND if name not in {*BY_WHOLE_TENSORS, *MATRICES_ONLY}]


def make(name, params, **more):
    """The optimizer `name` of these parameters; more: arguments, if it has such ones."""
    cls = getattr(optim, name)
    known = inspect.signature(cls).parameters
    given = {"lr": 1e-2} | ARGUMENTS.get(name, {}) | more
    try:
        return cls(params, **{key: value for key, value in given.items() if key in known})
    except TypeError as error:
        pytest.fail(f"optim.{name}: {error}: give it a line in ARGUMENTS of tests/optim/every.py")


def fitting(name, params):
    """The parameters that this optimizer takes."""
    return [p for p in params if p.ndim == 2 or name not in MATRICES_ONLY]
