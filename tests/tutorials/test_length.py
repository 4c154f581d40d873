"""A tutorial is read in one sitting: at most 200 lines, those that draw its picture not counted."""

import ast

import pytest

from minidl.course.exercise import ROOT

MOST = 200
SCRIPTS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


def names_in(node):
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def functions_that_draw(tree):
    """Those that get matplotlib as `plt`, and those that only such functions use."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = [f for f in functions if "plt" in [argument.arg for argument in f.args.args]]
    n_before = 0
    while len(found) > n_before:
        n_before = len(found)
        for function in functions:
            users = [node for node in tree.body
                     if node is not function and function.name in names_in(node)]
            if function not in found and users and all(user in found for user in users):
                found.append(function)
    return found


def n_lines_to_read(text):
    # two empty lines go with a function
    n_drawing = sum(f.end_lineno - f.lineno + 3 for f in functions_that_draw(ast.parse(text)))
    return len(text.splitlines()) - n_drawing


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_a_tutorial_has_at_most_200_lines_besides_its_picture(script):
    n = n_lines_to_read(script.read_text())
    assert n <= MOST, (
        f"tutorials/{script.name} has {n} lines besides the functions that draw, wanted at most "
        f"{MOST}: say each thing once, and leave out what shows nothing new")


def test_only_what_draws_is_not_counted():
    lines = ["def main():", "    picture(draw, used())", "", "",
             "def used():", "    return 1", "", "",
             "def tick():", "    return used()", "", "",
             "def label():", "    return tick()", "", "",
             "def draw(plt):", "    plt.title(label())", "", "",
             "main()"]
    assert n_lines_to_read("\n".join(lines)) == 9  # main, used, the last line
