"""Short names of modules: `minidl.comm.ledger` is `minidl.comm.observe.ledger`, the same object."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minidl

ROOT = Path(__file__).resolve().parents[1]
# What a script may import without the optional packages of the tutorials.
SCRIPTS = sorted([*(ROOT / "tutorials").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


@pytest.mark.parametrize("short", sorted(minidl.ALIASES))
def test_a_short_name_is_the_same_module(short):
    assert importlib.import_module(short) is importlib.import_module(minidl.ALIASES[short])


def test_no_file_lies_under_a_short_name():
    taken = [short for short in minidl.ALIASES
             if ROOT.joinpath(*short.split(".")).with_suffix(".py").exists()]
    assert taken == []


def test_every_import_of_the_tutorials_and_benchmarks_works():
    names = set()
    for script in SCRIPTS:
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minidl"):
                names |= {(node.module, alias.name) for alias in node.names}
    assert len(names) > 50
    code = "".join(f"from {module} import {name}\n" for module, name in sorted(names))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_benchmarks_call_a_module_by_the_name_of_its_file():
    """Or by a short form of it: an old name finds nothing in docs/map.md."""
    short = {f"{folder.rpartition('.')[0]}.{name}" for folder, names in minidl.SHORT.items()
             for name in names.split()}
    old = {name for name in minidl.ALIASES if name not in short}
    assert len(old) > 5
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        used = {word for word in re.findall(r"\bminidl(?:\.\w+)+", path.read_text())}
        assert not used & old, path.name


def test_names_load_on_first_use_and_unknown_ones_are_named():
    code = ("import sys, minidl\nassert 'minidl.comm' not in sys.modules\n"
            "print(minidl.amp.autocast.__name__, minidl.comm.ledger.Ledger.__name__, "
            "minidl.recompute.recompute.__name__, minidl.memory.report.__name__)\n"
            "minidl.comm.nothing")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["autocast", "Ledger", "recompute", "report"]
    assert "module 'minidl.comm' has no attribute 'nothing'" in done.stderr
