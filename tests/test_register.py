"""Tests register.py: each step on a small checkout, and that this checkout is up to date."""

import subprocess

import pytest

from tests import register
from tests.course import behind
from tests.register import ROOT, Tree

PAGE = """# The map

## What each folder earns

| folder | what it earns |
|---|---|
| `minidl/` | The engine. |
| `minidl/comm/` | Messages. |

## The engine (`minidl/`)

| concept | file | kernel | test | tutorial | paper | plain |
|---|---|---|---|---|---|---|
| tensors | [tensor.py](../minidl/tensor.py) | | [test_tensor](../tests/test_tensor.py) | 01 | | |

## Messages (`minidl/comm/`)

| concept | file | kernel | test | tutorial | paper | plain |
|---|---|---|---|---|---|---|
| **a ring** | [ring.py](../minidl/comm/ring.py), [cuts.py](../minidl/comm/cuts.py) | | | 07 | X | |
"""
FILES = {
    "docs/map.md": PAGE,
    "README.md": "| 1 | [minidl/tensor.py](minidl/tensor.py) | an array |\n",
    "tests/test_tensor.py": "",
    "minidl/__init__.py": '"""minidl."""\n',
    "minidl/tensor.py": '"""An array. And more."""\n' + "x = 1\n" * 199,
    "minidl/comm/__init__.py": '"""Messages between ranks.\n\n    ring.py   around a ring\n'
                               '    cuts.py   a vector in n chunks,\n              in order\n\n'
                               'Arrays only.\n"""\n',
    "minidl/comm/ring.py": '"""A ring. Its cuts are those of cuts.py, minidl.comm.cuts.\n\n'
                           'Test: tests/comm/test_ring.py\n"""\nfrom minidl.comm import cuts\n'
                           'from minidl.comm.cuts import bounds\n\nTEXT = "comm/cuts.py"\n',
    "minidl/comm/cuts.py": '"""How a vector is cut."""\n',
}


@pytest.fixture
def checkout(tmp_path):
    """Returns a function that writes a small checkout, with changes {path: text}. None instead of a
    text deletes the file."""
    def make(changes=()):
        for name, text in {**FILES, **dict(changes)}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                (tmp_path / name).unlink(missing_ok=True)
            else:
                (tmp_path / name).write_text(text)
        return tmp_path

    return make


def after(root, step, **moved):
    """Runs a step, and returns the tree after the step. Checks that a second run changes
    nothing."""
    tree = Tree(root, **moved)
    list(step(tree))
    tree.save()
    again = Tree(root, **moved)
    assert list(step(again)) == [] and again.changed() == {}
    return tree


def test_what_is_generated_is_current():
    tree = Tree(ROOT)
    register.run_steps(tree)
    if tree.changed():
        pytest.fail(f"run `make register`; it would change:\n{tree.diff()}", pytrace=False)


def test_a_new_file_gets_its_row_and_its_place_in_the_list_of_its_folder(checkout):
    root = checkout({"minidl/comm/tree.py": '"""A binomial tree: log n steps. More."""\n',
                     "tests/comm/test_tree.py": ""})
    tree = after(root, register.rows_of_the_map)
    assert tree.read("docs/map.md") == PAGE + (
        "| A binomial tree: log n steps | [tree.py](../minidl/comm/tree.py) | | "
        "[test_tree](../tests/comm/test_tree.py) | | | |\n")
    told = after(root, register.lists_of_files).read("minidl/comm/__init__.py")
    assert "              in order\n    tree.py   A binomial tree: log n steps\n\nArrays" in told


def test_a_long_sentence_goes_on_at_its_column(checkout):
    words = " ".join(["word"] * 40)
    told = after(checkout({"minidl/comm/tree.py": f'"""{words}."""\n'}),
                 register.lists_of_files).read("minidl/comm/__init__.py")
    lines = [line for line in told.split("\n") if "word" in line]
    assert " ".join(" ".join(lines).split()) == f"tree.py {words}"
    assert max(map(len, lines)) <= 100 and all(line[14:18] == "word" for line in lines)


def test_a_new_folder_gets_a_section_and_says_what_it_earns(checkout):
    root = checkout({"minidl/comm/observe/__init__.py": '"""Bytes are counted.\n"""\n',
                     "minidl/comm/observe/ledger.py": '"""Counts bytes."""\n'})
    tree = Tree(root)
    assert any("is it where the import rule has it?" in line
               for line in register.rows_of_the_map(tree))
    assert tree.read("docs/map.md").endswith(
        "## Bytes are counted (`minidl/comm/observe/`)\n\n"
        "| concept | file | kernel | test | tutorial | paper | plain |\n"
        "|---|---|---|---|---|---|---|\n"
        "| Counts bytes | [ledger.py](../minidl/comm/observe/ledger.py) | | | | | |\n")
    list(register.folders_of_the_map(tree))
    assert "| `minidl/comm/observe/` | Bytes are counted. |\n" in tree.read("docs/map.md")
    assert any("no list of files that ledger could be put into" in line
               for line in register.left(tree))


def test_a_file_that_is_gone_leaves_its_row_and_its_list(checkout):
    root = checkout({"minidl/comm/cuts.py": None})
    page = after(root, register.rows_of_the_map).read("docs/map.md")
    assert "| **a ring** | [ring.py](../minidl/comm/ring.py) | | | 07 | X | |\n" in page
    told = after(root, register.lists_of_files, deleted=["minidl/comm/cuts.py"])
    assert '    ring.py   around a ring\n\nArrays' in told.read("minidl/comm/__init__.py")
    told = list(register.left(Tree(root, deleted=["minidl/comm/cuts.py"])))
    assert "minidl/comm/ring.py: imports minidl.comm.cuts, which is gone" in told
    page = after(checkout({"minidl/tensor.py": None}), register.rows_of_the_map).read("docs/map.md")
    assert "tensors" not in page and "## The engine" not in page


def test_lists_of_several_columns(checkout):
    told = ('"""Steps.\n\nsgd, adam   one step     master   float32\n'
            'lars        by norms     clip     bounded\n"""\n')
    files = {f"minidl/optim/{name}.py": "" for name in ("adam", "master", "clip")}
    root = checkout(files | {"minidl/optim/__init__.py": told, "minidl/optim/down.py": ""})
    moved = {"renamed": {"minidl/optim/sgd.py": "minidl/optim/down.py"}}
    assert after(root, register.mentions, **moved).read("minidl/optim/__init__.py") == (
        told.replace("sgd, adam   ", "down, adam  "))
    checkout({"minidl/optim/__init__.py": told, "minidl/optim/down.py": None})
    gone = {"deleted": ["minidl/optim/sgd.py", "minidl/optim/lars.py"]}
    tree = after(root, register.lists_of_files, **gone)
    assert tree.read("minidl/optim/__init__.py") == told.replace("sgd, adam   ", "adam        ")
    assert "minidl/optim/__init__.py: its list still has lars" in list(register.left(tree))


def test_a_renamed_file_has_its_new_name_everywhere_but_in_imports(checkout):
    root = checkout({"minidl/comm/cuts.py": None, "minidl/comm/pieces.py": FILES[
        "minidl/comm/cuts.py"], "docs/a.md": "[cuts](../minidl/comm/cuts.py), shortcuts.py, "
        "[comm/cuts.py](../minidl/comm/cuts.py), `cuts.bounds`.\n"})
    moved = {"renamed": {"minidl/comm/cuts.py": "minidl/comm/pieces.py"}}
    tree = after(root, register.mentions, **moved)
    assert tree.read("docs/a.md") == (
        "[pieces](../minidl/comm/pieces.py), shortcuts.py, "
        "[comm/pieces.py](../minidl/comm/pieces.py), `cuts.bounds`.\n")
    assert "[ring.py](../minidl/comm/ring.py), [pieces.py](../minidl/comm/pieces.py) |" in (
        tree.read("docs/map.md"))
    assert "    pieces.py a vector in n chunks,\n" in tree.read("minidl/comm/__init__.py")
    assert tree.read("minidl/comm/ring.py") == FILES["minidl/comm/ring.py"].replace(
        "cuts.py", "pieces.py").replace("minidl.comm.cuts.\n", "minidl.comm.pieces.\n")
    after(root, register.rows_of_the_map, **moved)
    assert list(register.left(Tree(root, **moved)))[:2] == [
        "minidl/comm/ring.py: imports minidl.comm.cuts, which is minidl/comm/pieces.py now",
        "docs/a.md:1: a name in `cuts.`, which is minidl/comm/pieces.py now"]


def test_a_file_that_moved_to_another_folder_keeps_its_row(checkout):
    root = checkout({"minidl/tensor.py": None, "minidl/comm/tensor.py": FILES["minidl/tensor.py"]})
    moved = {"renamed": {"minidl/tensor.py": "minidl/comm/tensor.py"}}
    after(root, register.mentions, **moved)
    page = after(root, register.rows_of_the_map, **moved).read("docs/map.md")
    assert page.endswith("| 07 | X | |\n| tensors | [tensor.py](../minidl/comm/tensor.py) | | "
                         "[test_tensor](../tests/test_tensor.py) | 01 | | |\n")
    told = after(root, register.lists_of_files, **moved).read("minidl/comm/__init__.py")
    assert "    tensor.py An array\n" in told


def test_a_module_that_became_a_package_and_a_folder_with_another_name(checkout):
    text = "minidl.comm.cuts.bounds, minidl/comm/cuts.py, `minidl/comm/`, minidl.comm, comm/cuts"
    root = checkout({"minidl/comm/cuts.py": None, "minidl/comm/cuts/cut.py": "", "docs/a.md": text})
    moved = {"renamed": {"minidl/comm/cuts.py": "minidl/comm/cuts/cut.py"}}
    assert after(root, register.mentions, **moved).read("docs/a.md") == (
        "minidl.comm.cuts.cut.bounds, minidl/comm/cuts/cut.py, `minidl/comm/`, minidl.comm, "
        "comm/cuts/cut")
    names = ["cuts.py", "ring.py", "__init__.py"]
    root = checkout({f"minidl/comm/{name}": None for name in names} | {
        f"minidl/wire/{name}": FILES[f"minidl/comm/{name}"] for name in names} | {
        "minidl/comm/cuts/cut.py": None, "docs/a.md": text})
    moved = {"renamed": {f"minidl/comm/{name}": f"minidl/wire/{name}" for name in names}}
    assert after(root, register.mentions, **moved).read("docs/a.md") == (
        "minidl.wire.cuts.bounds, minidl/wire/cuts.py, `minidl/wire/`, minidl.wire, wire/cuts")
    page = after(root, register.rows_of_the_map, **moved).read("docs/map.md")
    assert page == PAGE.replace("minidl/comm", "minidl/wire")


def test_git_says_what_was_renamed_or_deleted_staged_or_not(checkout):
    root = checkout()
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=root,
                       check=True, capture_output=True)
    git("init")
    git("add", "--all")
    git("commit", "-m", "a")
    (root / "minidl/tensor.py").rename(root / "minidl/array.py")
    (root / "minidl/comm/cuts.py").unlink()
    wanted = {"minidl/tensor.py": "minidl/array.py"}, {"minidl/comm/cuts.py"}
    assert register.moves(root) == wanted
    git("add", "--all")
    assert register.moves(root) == wanted
    git("commit", "-m", "b")
    assert register.moves(root) == ({}, set()) and register.moves(root, "HEAD~1") == wanted


def test_without_git_nothing_was_renamed(tmp_path):
    assert register.moves(tmp_path) == ({}, set())


def test_the_row_of_a_folder_that_is_gone_goes(checkout):
    root = checkout({f"minidl/comm/{name}.py": None for name in ("ring", "cuts", "__init__")})
    assert "`minidl/comm/` |" not in after(root, register.folders_of_the_map).read("docs/map.md")


def test_a_pair_has_in_the_table_what_the_lists_say(checkout):
    page = ("# Which technique goes with which\n\n| | t |\n|---|---|\n| A | a |\n| B | b |\n"
            "| C | c |\n\n## The table\n\n| | A | B |\n|---|---|---|\n| B | no |  |\n"
            "| C | - | - |\n\n## Each yes, and the test that holds it\n\n| p | t |\n|---|---|\n"
            "| A x B, C | t |\n"
            "\n## Each no, and what the error says\n\n| p | s |\n|---|---|\n| B x C | s |\n"
            "\n## What there is not\n\n| p | w |\n|---|---|\n")
    tree = after(checkout({"docs/together.md": page}), register.together)
    assert "| | A | B |\n|---|---|---|\n| B | yes |  |\n| C | yes | no |\n\n" in (
        tree.read("docs/together.md"))


def test_what_a_step_changes_in_english_does_not_make_its_chinese_older(checkout):
    english = FILES["README.md"]
    chinese = f"<!-- README.md of {behind.digest(english)} -->\n# 中文\n"

    def another_number(tree):
        if tree.write("README.md", english.replace("| 1 |", "| 2 |")):
            yield "README.md"

    steps = [another_number, register.stamps]
    tree = Tree(checkout({"README.zh.md": chinese}))
    register.run_steps(tree, steps)
    assert f"<!-- README.md of {behind.digest(tree.read('README.md'))} -->" in (
        tree.read("README.zh.md")) and tree.read("README.md") != english
    older = chinese.replace(behind.digest(english), "0" * 12)
    tree = Tree(checkout({"README.zh.md": older}))
    register.run_steps(tree, steps)
    assert tree.read("README.zh.md") == older
