"""Whoever writes another of PyTorch's names is told what to use instead."""

import copy
import inspect
import pickle
import re

import pytest

import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.ops.extra import elsewhere

X = minidl.ones(2)


@pytest.mark.parametrize("place, name, message", [
    (minidl, "mm", "minidl has no 'mm'; use a @ b"),
    (minidl, "inference_mode", "use no_grad"), (minidl, "distributed", "use minidl.comm"),
    (minidl, "prelu", "use minidl.nn.functional.prelu"), (minidl, "item", r"use x.item\(...\)"),
    (minidl, "cumsun", "did you mean .cumsum."), (X, "unflatten", "Tensor has no 'unflatten'; "
                                                       r"use reshape\(...\)"),
    (X, "einsum", "use minidl.einsum"), (X, "lerp_", r"write x = x.lerp\(...\)"),
    (X, "is_cuda", "use x.device"), (X, "lgamma", "minidl/function.py shows one"),
    (F, "hardtanh", r"use clamp\(-1, 1\)"), (F, "reshape", "use x.reshape.* or minidl.reshape"),
    (F, "gelux", "did you mean 'gelu'"), (nn, "LSTMCell", "use LSTM on a sequence of one"),
    (nn, "Linaer", "did you mean 'Linear'"), (optim, "LBFGS", "use SGD or AdamW"),
    (nn.ReLU(), "compile", r"ReLU has no attribute 'compile'; use minidl.infer.compile\(minidl"),
    (nn.ReLU(), "anything", "ReLU has no attribute 'anything'$"),
    (optim, "Adan", "it has Adagrad Adam AdamW .* A new one is a class with `update`"),
])
def test_the_error_says_what_to_use(place, name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(place, name)


def test_private_names_are_answered_at_once_and_copies_work():
    for place in (minidl, nn, F, optim, X):
        with pytest.raises(AttributeError, match="no (attribute )?'_repr_html_'$"):
            place._repr_html_
        assert not hasattr(place, "__array_priority__")
    assert copy.deepcopy(X).tolist() == pickle.loads(pickle.dumps(X)).tolist() == [1, 1]


def test_no_advice_is_about_a_name_that_is_here():
    here = {n for n in elsewhere.ADVICE if hasattr(minidl.Tensor, n) and n in vars(minidl)}
    assert here == set()
    assert not set(nn._ADVICE) & set(vars(nn)) and not set(optim._INSTEAD) & set(vars(optim))


def test_every_name_of_pytorchs_gets_an_answer():
    torch = pytest.importorskip("torch", reason="its names")
    ours = {"torch": (minidl, torch), "Tensor": (X, torch.Tensor), "nn": (nn, torch.nn),
            "functional": (F, torch.nn.functional), "optim": (optim, torch.optim),
            "Module": (nn.Module(), torch.nn.Module)}
    counts = {}
    for where, (place, theirs) in ours.items():
        names = [n for n in dir(theirs) if not n.startswith("_")
                 and callable(inspect.getattr_static(theirs, n)) and not hasattr(place, n)]
        for name in names[::4]:  # each costs a millisecond
            with pytest.raises(AttributeError, match="; (use|write|did you mean|what there is|it)"):
                getattr(place, name)
        counts[where] = len(names)
    assert all(counts.values())


def test_the_advice_names_things_that_exist():
    known = {*vars(minidl), *dir(minidl.Tensor), *vars(F), *minidl._PARTS}
    for names, instead in elsewhere.INSTEAD.items():
        for part in re.findall(r"minidl\.(\w+)", instead):
            assert part in known or hasattr(minidl, part), (names, instead)
