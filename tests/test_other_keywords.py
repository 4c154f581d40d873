"""Whoever passes another of PyTorch's keywords is told what to write instead, and no good call pays
for it: the error is completed when it is shown."""

import inspect
import logging
import re
import subprocess
import sys
import threading
import traceback
import types
import unittest

import pytest

import minidl
from minidl import data, nn, optim
from minidl.comm import simulate
from minidl.course import student
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.ops.extra import keywords
from minidl.optim import lr_scheduler
from minidl.parallel import DataParallel
from minidl.precision import amp

X = minidl.ones(2, 3)


def completed(call, *args, **options):
    """What a user reads of the TypeError that the call raises."""
    with pytest.raises(TypeError) as caught:
        call(*args, **options)
    keywords.explain(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("call, answer", [
    (lambda: F.softmax(X, -1, _stacklevel=3), "softmax() got an unexpected keyword argument "
     "'_stacklevel'; it takes (input, dim, dtype=None); leave it out"),
    (lambda: nn.Linear(3, 4, device="cpu"), "; it takes (in_features, out_features, bias=True, "
     "generator=None); make it, then layer.to(device, dtype)"),
    (lambda: F.conv2d(X, X, padding_mode="reflect"), "; x = F.pad(x, sizes, mode='reflect'"),
    (lambda: X.sum(keepdims=True), "; keepdim="),
    (lambda: optim.AdamW([X], capturable=True), "; leave it out: minidl.graphed captures"),
    (lambda: data.DataLoader([1], num_workers=4), "prefetch=2 loads ahead, workers=4"),
    (lambda: nn.Dropout(inplace=True), "; leave it out and write x = f(x)"),
    (lambda: DataParallel(nn.Linear(3, 4), None, device_ids=[0]), "(model.to('cuda'), t)"),
    (lambda: recompute(nn.ReLU(), X, use_reentrant=False), "leave it out: recompute replays"),
    (lambda: F.gelu(X, aproximate="tanh"), "; did you mean 'approximate'?"),
    (lambda: (X * 2)  # a part of the call is a call
        .exp().sum(out=X), "sum() got an unexpected keyword argument 'out'; it takes (input"),
    (lambda: nn.Linear(3, 4)(X, out=X), "Linear.forward() got an unexpected keyword argument "
     "'out'; it takes (x); "),
])
def test_the_error_says_what_it_takes_and_what_to_do(call, answer):
    assert answer in completed(call)


def softmax(x, dim):
    """A user's own, of the same name."""


def test_functions_that_are_not_minidls_keep_pythons_words():
    class Linear:
        pass

    own = types.SimpleNamespace(relu=lambda x: x)
    for call in (lambda: softmax(X, out=X), lambda: own.relu(X, inplace=True),
                 lambda: dict([], **{"a": 1}).get(X, out=X), lambda: X.sum(1, 2, 3, 4, 5)):
        assert "; it takes" not in completed(call)
    assert "takes" not in completed(Linear, device="cpu").replace("takes no", "")
    error = ValueError("relu() got an unexpected keyword argument 'inplace'")
    keywords.explain(error)
    assert error.args == ("relu() got an unexpected keyword argument 'inplace'",)


def refused():
    F.relu(X, inplace=True)


def in_a_log():
    try:
        refused()
    except TypeError:
        logging.getLogger("minidl.test").exception("a step failed")


def as_a_cause():
    try:
        refused()
    except TypeError as error:
        raise RuntimeError("the step failed") from error


def in_a_unit_test():
    case = unittest.FunctionTestCase(refused)
    unittest.TextTestRunner(stream=sys.stderr).run(case)


@pytest.mark.parametrize("shown", [in_a_log, as_a_cause, in_a_unit_test])
def test_it_is_complete_wherever_it_is_shown(shown, capfd):
    try:
        shown()
    except RuntimeError:
        traceback.print_exc()
    text = capfd.readouterr().err
    assert text.count("'inplace'; it takes (input); leave it out and write x = f(x)") == 1, text


def test_a_simulated_rank_and_an_exercise_say_it(tmp_path):
    with pytest.raises(RuntimeError, match=r"rank 0: TypeError: .*'inplace'; it takes \(input\)"):
        simulate(2, lambda t: refused())
    with pytest.raises(TypeError) as caught:
        refused()
    assert "'inplace'; it takes (input); leave" in student.explain(caught.value, tmp_path)


def test_what_reads_a_name_may_fail():
    class Model:
        @property
        def relu(self):
            if self.read:
                raise ValueError("read twice")
            self.read = True
            return F.relu

    model = Model()
    model.read = False
    assert "; it takes (input); leave" in completed(lambda: model.relu(X, inplace=True))


def theirs(function, overrides):
    """PyTorch's parameters of a function, or None: those in C show none, but for a table of it."""
    for of in (function, overrides.get(function)):
        try:
            found = inspect.signature(of).parameters.values()
        except (TypeError, ValueError):
            continue
        if any(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in found):
            return {p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return set()


def test_every_keyword_of_pytorchs_gets_an_answer():
    torch = pytest.importorskip("torch", reason="its keywords")
    from torch.overrides import get_testing_overrides
    from torch.utils import data as torch_data

    places = [(minidl, torch), (minidl.Tensor, torch.Tensor), (F, torch.nn.functional),
              (nn, torch.nn), (nn.Module, torch.nn.Module), (optim, torch.optim),
              (lr_scheduler, torch.optim.lr_scheduler), (data, torch_data), (amp, torch.amp)]
    overrides, n = get_testing_overrides(), 0
    for here, there in places:
        for name in sorted({*dir(here)} & {*dir(there)}):
            mine = inspect.getattr_static(here, name)
            if name.startswith("_") or not inspect.isfunction(mine) and not inspect.isclass(mine):
                continue
            known = inspect.signature(mine).parameters
            if any(p.kind is p.VAR_KEYWORD for p in known.values()):
                continue
            for keyword in theirs(getattr(there, name), overrides) - {"self", *known}:
                text = completed(mine, **{keyword: None})
                remedy = re.fullmatch(r"[\w.]+\(\) got an unexpected keyword argument '\w+'; it "
                                      r"takes \(.*\); (.*)", text)
                assert remedy and "what it does" not in remedy[1], (here, text)
                n += 1
    assert n > 300


def test_a_script_or_a_thread_that_fails_shows_it_and_the_hook_before_is_called():
    script = ("import sys, threading\nsys.excepthook = lambda kind, error, trace: "
              "print('mine:', error)\n"
              "import minidl\nx = minidl.ones(2)\n"
              "thread = threading.Thread(target=x.exp, kwargs={'out': x})\n"
              "thread.start()\nthread.join()\nx.relu(\n    inplace=True)\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # Python 3.13 has the text of -c, and so finds the method, whose signature is ()
    assert re.match(r"mine: relu\(\) got .* 'inplace'; it takes \((input)?\); leave", done.stdout)
    assert re.search(r"Thread-1[\s\S]*exp\(\) got .* 'out'; it takes \(input\); write", done.stderr)


def test_a_rank_that_fails_shows_it(monkeypatch, capsys):
    from minidl.comm.transport import abort, supervised
    monkeypatch.setattr(supervised, "say", lambda *args, **what: None)
    monkeypatch.setattr(abort, "leave", lambda status: None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", None)
    for _ in range(2):  # the second stands in the place of the first
        abort.name_the_rank(3)
    with pytest.raises(TypeError) as caught:
        F.relu(X, inplace=True)
    sys.excepthook(TypeError, caught.value, caught.value.__traceback__)
    assert "rank 3: TypeError: relu() got an unexpected keyword argument 'inplace'; it takes" in (
        capsys.readouterr().err)


def test_a_notebook_shows_it(monkeypatch):
    shown = []

    class Shell:
        custom_exceptions = ()

        def set_custom_exc(self, kinds, handler):
            self.custom_exceptions, self.handler = kinds, handler

        def showtraceback(self, what, tb_offset=None):
            shown.append(str(what[1]))

    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    exceptions = traceback.TracebackException
    monkeypatch.setattr(exceptions, "__init__", exceptions.__init__)
    keywords.install()
    with pytest.raises(TypeError) as caught:
        F.relu(X, inplace=True)
    shell.handler(shell, TypeError, caught.value, caught.value.__traceback__)
    assert shell.custom_exceptions == (TypeError,) and "; it takes (input); leave" in shown[0]
