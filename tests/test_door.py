"""Tests that `import minidl` changes nothing in the process, and that every name that a user
imports belongs to a file."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import minidl
from tests.conftest import whole_form

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted([*(ROOT / "tutorials").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")])

# Prints what has changed after `import minidl`, and after each module of minidl that needs no other
# package. `excepthook` and `__init__` are compared as objects, and lists by their elements.
CHANGES = """
import collections, importlib, json, pkgutil, signal, sys, threading, traceback, warnings

def state():
    return {
        "sys.meta_path": list(sys.meta_path), "sys.path_hooks": list(sys.path_hooks),
        "sys.path": list(sys.path), "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook, "sys.displayhook": sys.displayhook,
        "threading.excepthook": threading.excepthook, "threads": threading.active_count(),
        "TracebackException.__init__": traceback.TracebackException.__init__,
        "traceback": dict(vars(traceback)), "warnings": list(warnings.filters),
        "signals": [signal.getsignal(s) for s in signal.valid_signals()],
        "trace": (sys.gettrace(), sys.getprofile()), "recursion": sys.getrecursionlimit()}

import numpy
before, found = state(), []
def compare(name):
    now = state()
    found.extend(f"{name} changes {what}" for what in before if before[what] != now[what])

import minidl
compare("minidl")
for module in pkgutil.walk_packages(minidl.__path__, "minidl."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:  # an optional package
        if "minidl" in str(error.name):
            raise
    compare(module.name)
    if found:
        break
print(json.dumps([found, len(sys.modules)]))
"""


def test_importing_minidl_changes_nothing_in_the_process():
    done = subprocess.run([sys.executable, "-c", CHANGES], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found, n_modules = json.loads(done.stdout)
    assert found == [] and n_modules > 300


def test_a_change_would_be_seen():
    code = CHANGES.replace("import minidl\n", "import minidl; sys.excepthook = print\n", 1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "minidl changes sys.excepthook" in json.loads(done.stdout)[0]


def test_a_tensor_has_what_its_class_says_and_nothing_else():
    for name in dir(minidl.Tensor):
        getattr(minidl.Tensor, name)  # raises an error if the name has no value
    x = minidl.ones(2)
    assert set(dir(x)) == set(dir(minidl.Tensor))
    assert not hasattr(x, "detach_") and not hasattr(x, "is_cuda")


@pytest.mark.parametrize("code, suggested", [
    ("minidl.Tensr", "Tensor"), ("minidl.nnn", "nn"), ("minidl.ones(2).cumsun", "cumsum"),
    ("minidl.nn.Linaer", "Linear"), ("minidl.nn.functional.gelux", "gelu"),
    ("minidl.optim.Adagra", "Adagrad"), ("minidl.comm.rng", "ring"),
    ("minidl.nn.ReLU().forwrd", "forward")])
def test_python_itself_suggests_the_name_that_was_meant(code, suggested):
    done = subprocess.run([sys.executable, "-c", f"import minidl\n{code}"], capture_output=True,
                          text=True, cwd=ROOT)
    assert f"Did you mean: '{suggested}'?" in done.stderr


def test_names_load_on_first_use():
    code = ("import sys, minidl\nassert 'minidl.comm' not in sys.modules\n"
            "print(minidl.comm.Ledger.__name__, minidl.memory.report.__name__, "
            "minidl.comm.ring.__name__)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["Ledger", "report", "minidl.comm.ring"], done.stderr


def imported_names(path):
    """Returns [(module, name)] of every `from minidl... import` of a file."""
    return [(node.module, alias.name) for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minidl")
            for alias in node.names]


def test_every_import_of_the_tutorials_and_benchmarks_works():
    names = {name for script in SCRIPTS for name in imported_names(script)}
    assert len(names) > 50
    code = "".join(f"from {module} import {name}\n" for module, name in sorted(names))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@whole_form
def test_an_editor_finds_the_file_of_every_import_of_a_tutorial():
    """jedi, which many editors and Jupyter use, must find the definition of each imported name."""
    jedi = pytest.importorskip("jedi", reason="pip install jedi")
    project = jedi.Project(ROOT)
    lost, n_found = [], 0
    for path in sorted((ROOT / "tutorials").rglob("*.py")):
        lines, text = path.read_text().splitlines(), path.read_text()
        script = jedi.Script(text, path=path, project=project)
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.ImportFrom) and node.module.startswith("minidl")):
                continue
            for alias in node.names:
                column = lines[alias.lineno - 1].encode()[: alias.col_offset].decode()
                names = script.goto(alias.lineno, len(column), follow_imports=True)
                inside = [n for n in names if n.module_path and n.module_path.is_relative_to(ROOT)]
                n_found += bool(inside)
                if not inside:
                    lost.append(f"{path.name}:{alias.lineno}: {node.module}.{alias.name}")
    assert not lost, "no editor can open these; import them from the file that defines them"
    assert n_found > 300
