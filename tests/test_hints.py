"""Tests that the functions for users have type hints, that these hints are true, and that they take
no time."""

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minidl
from minidl import nn, optim, parallel
from minidl.comm import average, double_tree, hierarchical, objects, ring, simulate, tree
from minidl.nn import functional as F
from tests import hinted, typecheck
from tests.conftest import whole_form
from tests.test_imports import imports

ROOT = Path(__file__).resolve().parents[1]
COLLECTIVES = sorted(file.stem for file in (ROOT / "minidl" / "comm").glob("*.py")
                     if re.search(r"^@collective\b", file.read_text(), re.M))


# -- every function for users has hints


def public():
    """Yields (name, function) for what users call: functions, and the methods __init__, forward and
    step of classes."""
    modules = ["minidl.nn", "minidl.nn.init", "minidl.optim", "minidl.optim.lr_scheduler",
               "minidl.creation", *(f"minidl.comm.{name}" for name in COLLECTIVES)]
    for path in modules:
        module = importlib.import_module(path)
        for name, value in vars(module).items():
            is_here = getattr(value, "__module__", "").startswith(path)
            if name.startswith("_") or not is_here:
                continue
            if inspect.isclass(value):
                for method in ("__init__", "forward", "step"):
                    function = getattr(value, method, None)
                    if inspect.isfunction(function) and function.__module__.startswith(path):
                        yield f"{path}.{name}.{method}", function
            elif hasattr(value, "own_args") or path in ("minidl.nn.init", "minidl.creation"):
                yield f"{path}.{name}", inspect.unwrap(value)


def test_what_users_call_has_a_hint_for_each_argument():
    without = {f"{name}({p.name})" for name, function in public()
               for i, p in enumerate(inspect.signature(function).parameters.values())
               if p.annotation is p.empty and not (i == 0 and p.name in ("self", "cls"))}
    names = [name for name, _ in public()]
    assert "minidl.nn.Linear.forward" in names and "minidl.comm.ring.all_reduce" in names
    assert not without, f"say the types of {sorted(without)}; minidl/hints.py has names for some"


def test_each_name_in_a_hint_is_there():
    found = [name for path in hinted.files()
             for name, _, _ in hinted.hinted(importlib.import_module(path))]
    assert len(found) > 300


# -- hints take no time


@whole_form
def test_a_program_does_not_load_them():
    code = ("import sys, minidl\n"
            "minidl.nn, minidl.optim, minidl.comm, minidl.parallel, minidl.snapshot, minidl.data\n"
            "sys.exit('minidl.hints' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    for file in (ROOT / "minidl").rglob("*.py"):
        dotted = [name for _, name in imports(file.read_text(), "minidl")]
        assert not any(name.startswith("minidl.hints") for name in dotted), file


# -- hints are true


def train_on_ranks(t):
    """Trains for a few steps, and calls most of the functions that have hints."""
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    copies = parallel.DataParallel(model, t)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    schedule = optim.lr_scheduler.SequentialLR(
        optimizer, [optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
                    optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)], milestones=[2])
    generator = minidl.Generator(t.rank)
    for _ in range(3):
        x = minidl.randn(4, 6, generator=generator)
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)(copies(x), minidl.arange(4) % 3)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    copies.load_state_dict(copies.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    for all_reduce in (ring.all_reduce, tree.all_reduce, double_tree.all_reduce):
        all_reduce(t, np.ones(5), np.maximum)
    average.mean(t, minidl.ones(3))
    groups = hierarchical.groups(t, hierarchical.by_node_size(t.size, 2))
    hierarchical.all_reduce(t, np.ones(7), groups=groups)
    ring.all_reduce(t, np.ones(3), wait=False).wait()
    objects.all_gather(t, {"rank": t.rank})
    return schedule.get_last_lr()


def models_alone():
    """Runs layers whose result is not only a Tensor, a GPT, and functions that make tensors."""
    x = minidl.full((5, 2, 4), 0.5, dtype="float32", requires_grad=True)
    nn.LSTM(4, 4, bidirectional=True)(x, None)
    nn.GRUCell(4, 4)(x[0])
    nn.MultiheadAttention(4, 2)(x, x, x, need_weights=False)
    nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, activation=F.gelu), 2)(x)
    nn.Conv2d(2, 3, (3, 1), padding="same")(minidl.rand((1, 2, 5, 5)))
    nn.MaxPool2d(2, stride=None)(minidl.rand((1, 2, 5, 5)))
    nn.GPT(11, 8, 1, 2, 8)(minidl.randint(11, (2, 8))).sum().backward()
    nn.MLP(4, 4, activation=nn.Tanh).train().eval().requires_grad_(False).to("cpu", np.float64)
    nn.Embedding.from_pretrained(np.ones((3, 2)))(np.array([0, 2]))
    minidl.grad(minidl.zeros_like(x, requires_grad=True).sum() + x.sum(), x)


def test_what_a_training_passes_is_of_the_types_of_the_hints():
    with hinted.watched(hinted.table_of(hinted.files())) as calls:
        models_alone()
        simulate(4, train_on_ranks)
    assert not calls.wrong, "\n".join(calls.wrong)
    assert len(calls.seen) > 100
    for name in ("nn.layers.Linear.forward", "comm.ring.all_reduce", "optim.adam.AdamW.__init__",
                 "comm.transport.background.Background.submit"):
        assert f"minidl.{name}" in calls.seen


@pytest.mark.parametrize("call, words", [
    (lambda: nn.Linear(3, 4).forward([1.0, 2.0, 3.0]), "Linear.forward: x: wanted"),
    (lambda: nn.Dropout(True, inplace=1), "Dropout.__init__: inplace: wanted"),
    (lambda: minidl.zeros(2, requires_grad=None), "zeros: requires_grad: wanted"),
    (lambda: optim.SGD(minidl.ones(2), lr=np.array(0.1)), "lr: wanted <class 'float'>")])
def test_a_call_that_is_not_of_the_types_would_be_seen(call, words):
    with hinted.watched(hinted.table_of(["minidl.nn.layers", "minidl.creation",
                                         "minidl.optim.sgd"])) as calls:
        try:
            call()
        except (TypeError, ValueError):  # minidl refuses some of these calls
            pass
    assert any(words in line for line in calls.wrong), calls.wrong


# -- a type checker reads the hints

needs_pyright = pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None,
    reason="make typecheck installs basedpyright, 75 MB")


@needs_pyright
def test_a_type_checker_says_the_types_that_were_asked_for(tmp_path):
    paths = typecheck.asked_files(tmp_path)
    found = typecheck.not_as_asked(paths, typecheck.diagnostics(paths))
    assert not found, "\n".join(found)


@needs_pyright
@whole_form
def test_a_wrong_hint_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.asked.TYPES", "\nx.sum()  float\nx.numel()  int\nx.nothing  int\n")
    monkeypatch.setattr("tests.asked.WRONG", "\nx.sum(dim=0)\nx.sum(dims=0)\n")
    paths = typecheck.asked_files(tmp_path)
    found = typecheck.not_as_asked(paths, typecheck.diagnostics(paths))
    assert "x.sum(): wanted float, got Tensor" in found
    assert "x.sum(dim=0): wanted an error, got none" in found
    assert any(line.startswith("types.py:") and "nothing" in line for line in found)
    assert not any("numel" in line or "dims" in line for line in found)


@needs_pyright
@whole_form
def test_a_class_of_ones_own_is_no_error_where_the_checker_is_stricter(tmp_path):
    """In the mode "standard" a method must accept all arguments of the method that it overrides.
    This is no error, because forward of Function and Module accepts any arguments."""
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    (tmp_path / "own.py").write_text(typecheck.asked.BEFORE)
    found = [one["message"] for one in typecheck.diagnostics(
        ["--pythonpath", sys.executable, tmp_path / "own.py"], tmp_path)
        if one["severity"] == "error"]
    assert not found, found
