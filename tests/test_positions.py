"""If PyTorch has a function with the same name, its positional arguments must mean the same.

Other arguments of minidl must be keywords. So a call that is right in PyTorch does the same in
minidl, or raises an error. It never does something else."""

import inspect

import pytest

import minidl
from minidl import data, nn, optim
from minidl.nn import functional as F

# Functions whose positional arguments differ from PyTorch's, with the reason.
DIFFERENT = {
    # one object is both method and function, so the tensor is an argument; in PyTorch it is self
    "Tensor.norm": "self comes first", "Tensor.split": "self comes first",
    "Tensor.unique": "self comes first", "Tensor.unflatten": "self comes first",
}


def positions(fn):
    """Returns the names of the positional parameters without self, or None if Python does not know
    them."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [p.name for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]


def both(torch):
    """Returns {name: (minidl's, PyTorch's)} of all functions and classes that both libraries
    have."""
    places = {"nn": (nn, torch.nn), "F": (F, torch.nn.functional), "optim": (optim, torch.optim),
              "lr_scheduler": (optim.lr_scheduler, torch.optim.lr_scheduler),
              "data": (data, torch.utils.data), "init": (nn.init, torch.nn.init),
              "Module": (nn.Module, torch.nn.Module),
              "Optimizer": (optim.Optimizer, torch.optim.Optimizer),
              "minidl": (minidl, torch), "Tensor": (minidl.Tensor, torch.Tensor)}
    return {f"{place}.{name}": (getattr(ours, name), getattr(theirs, name))
            for place, (ours, theirs) in places.items() for name in dir(ours)
            if name[0] != "_" and callable(getattr(ours, name))
            and not inspect.ismodule(getattr(ours, name)) and hasattr(theirs, name)}


def test_a_position_never_means_another_thing_than_in_pytorch():
    torch = pytest.importorskip("torch", reason="its signatures")
    n_compared, wrong = 0, []
    for name, (ours, theirs) in both(torch).items():
        mine, wanted = positions(ours), positions(theirs)
        if mine is None or wanted is None:
            continue
        n_compared += 1
        if mine[: len(wanted)] != wanted[: len(mine)] and name not in DIFFERENT:
            wrong.append(f"{name}({', '.join(mine)}), PyTorch's ({', '.join(wanted)})")
    assert not wrong, ("make what differs a keyword, by a `*` before it, or give it PyTorch's "
                       "name:\n" + "\n".join(wrong))
    assert n_compared > 150
