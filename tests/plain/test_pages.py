"""What a page is: it stands on NumPy and on earlier pages alone, says what the real one adds, and
its example runs at once, without a compiler and without MPI."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "minidl" / "plain"
CONTENTS = re.findall(r"^    ([a-z_]\w*)  ", ast.get_docstring(ast.parse(
    (BOOK / "__init__.py").read_text()), clean=False), re.MULTILINE)
PAGES = sorted(file.stem for file in BOOK.glob("*.py") if file.stem != "__init__")
TRANSPORT = {"rank", "size", "send", "recv", "sendrecv", "isend", "irecv"}


def read(page):
    return ast.parse((BOOK / f"{page}.py").read_text())


def is_example(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def imported(nodes):
    """The dotted names that these statements import."""
    for node in (inside for statement in nodes for inside in ast.walk(statement)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_page_is_in_the_contents():
    assert sorted(CONTENTS) == PAGES, "minidl/plain/__init__.py lists the pages, in reading order"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_stands_on_numpy_and_earlier_pages(page):
    body = read(page).body
    for name in imported(node for node in body if not is_example(node)):
        first, *rest = name.split(".")
        if first == "minidl":
            assert rest[0] == "plain", f"{page}.py imports {name}: a page knows only pages"
            assert CONTENTS.index(rest[1]) < CONTENTS.index(page), (
                f"{page}.py imports the later page {rest[1]}: move one of them in the contents")
        else:
            assert first == "numpy" or first in sys.stdlib_module_names, f"{page}.py: {name}"
    for name in imported(node for node in body if is_example(node)):
        assert name.startswith(("minidl.plain.", "numpy")) or name == "minidl.comm.simulate" or (
            name.split(".")[0] in sys.stdlib_module_names), f"the example of {page}.py: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_a_transport_for_messages_alone(page):
    for node in ast.walk(read(page)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "t":
            assert node.attr in TRANSPORT, f"{page}.py, line {node.lineno}: t.{node.attr}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_its_source_and_what_the_real_one_adds(page):
    text = " ".join(ast.get_docstring(read(page)).split())
    assert re.search(r"(Papers?|Sources?): ", text), f"{page}.py: name the paper"
    real = re.search(r"The real one, (minidl/[\w/ .,]+?\.py(?: and minidl/[\w/.]+\.py)?), adds: ",
                     text)
    assert real, f'{page}.py: write "The real one, minidl/FILE.py, adds: ..."'
    for file in re.findall(r"[\w/]+\.py", real[1]):
        assert (ROOT / file).exists(), f"{page}.py: there is no {file}"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_and_the_real_one_meet_in_a_test(page):
    test = ROOT / "tests" / "plain" / f"test_{page}.py"
    assert test.exists(), f"{test} is missing: the page and the real one give the same there"
    names = list(imported(ast.parse(test.read_text()).body))
    assert any(name.startswith(f"minidl.plain.{page}") for name in names)
    assert any(name.startswith("minidl") and "plain" not in name for name in names)


RUN_ALL = """if True:
    import contextlib, io, runpy, sys
    sys.modules["mpi4py"] = sys.modules["cupy"] = None
    for page in sys.argv[1:]:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            runpy.run_module(f"minidl.plain.{page}", run_name="__main__")
        assert text.getvalue().strip(), f"{page} prints nothing"
    print("all")
"""


def test_every_example_runs_without_a_compiler_and_without_mpi():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", RUN_ALL, *PAGES], cwd=ROOT,
                          env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "all\n", done.stderr
