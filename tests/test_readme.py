"""Tests that the links, commands and names in the documents exist. test_register.py tests that the
map has every file of minidl/."""

import ast
import io
import re
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from minidl.cli import main as cli
from tests import test_imports

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAP = (ROOT / "docs" / "map.md").read_text()
EARNED = re.search(r"^## What each folder earns$.*?(?=^## )", MAP, re.M | re.S)[0]
SECTIONS = re.split(r"^## ", MAP.replace(EARNED, ""), flags=re.M)[1:]  # one section for each folder
DOCUMENTS = sorted([*(ROOT / folder / "README.md" for folder in ("", "kernels", "tests")),
                    *(ROOT / "docs").rglob("*.md")])
PARTS = sorted(f.name for f in (ROOT / "minidl").iterdir()
               if f.name != "__pycache__" and f.suffix in ("", ".py"))
PARTS += ["../kernels", "../benchmarks"]
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]


def links(path):
    """Returns the files to which a document links, as paths."""
    found = re.findall(r"\]\(([^)#:]+)\)", path.read_text())
    return [(path.parent / link).resolve() for link in found]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_every_link_leads_to_a_file(path):
    made_later = {ROOT / "docs" / "train_gpt.png"}  # `make demo` draws this picture
    dead = [f for f in links(path) if f not in made_later and not f.exists()]
    assert not dead, f"{path.relative_to(ROOT)} links to files that do not exist: {dead}"


def test_every_document_can_be_reached_from_the_readme():
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {f for path in new for f in links(path) if f.suffix == ".md"} - reached
    alone = [f.relative_to(ROOT).as_posix() for f in set(DOCUMENTS) - reached]
    assert not alone, (f"no page that README.md leads to has a link to {alone}: give them a row in "
                       "README.md, 'Where everything else is', or a link in a page of their folder")


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_every_command_names_a_script_and_a_target_that_exist(path):
    text = path.read_text()
    scripts = re.findall(r"(?:minidl run -n \d|minidl kernel run|python) ([\w/]+\.py)", text)
    own = {"script.py", "my_script.py", "my_test.py", *re.findall(r"Save this as\s`(\S+)`", text)}
    gone = [s for s in scripts if s not in own and not (ROOT / s).exists()]
    assert not gone, f"{path.relative_to(ROOT)} has commands that run {gone}, which do not exist"
    targets = re.findall(r"(?:^|`|&& )make ([\w-]+)", text, re.M)
    targets = {t for t in targets if t not in ("and", "alone")}
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert targets <= known, (f"{path.relative_to(ROOT)} says make {targets - known}, which the "
                              "Makefile does not have")


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_every_word_of_the_command_minidl_exists(path):
    code = re.findall(r"^```\n(.*?)^```|`([^`\n]+)`", path.read_text(), re.S | re.M)
    typed = re.findall(r"^(?:\.venv/bin/)?minidl ([a-z]+)(?: ([a-z]+))?",
                       "\n".join(block or word for block, word in code), re.M)
    for word in {f"{first} {second if first == 'kernel' else ''}".strip()
                 for first, second in typed}:
        with pytest.raises(SystemExit) as end, redirect_stderr(io.StringIO()):
            cli.main([*word.split(), "--help"])
        assert end.value.code == 0, (
            f"{path.relative_to(ROOT)} says `minidl {word}`, which is no command (cli/main.py)")


def test_the_commands_are_seen():
    """Checks that the patterns of the tests above find links and commands."""
    assert "minidl run -n 4 tutorials/07_ring.py" in (ROOT / "docs" / "tutorials.md").read_text()
    assert sum(len(links(path)) for path in DOCUMENTS) > 500
    assert re.findall(r"(?:^|`|&& )make ([\w-]+)", README, re.M)


@pytest.mark.parametrize("page", ["README.md", "docs/three_examples.md"])
def test_the_barrier_to_delete_is_at_its_line_and_the_race_at_the_lines_that_are_named(page):
    text = (ROOT / page).read_text()
    line = int(re.search(r"Delete line (\d+)", text)[1])
    found = re.search(r"tour\.cu:(\d+): data race: .* read it at line (\d+),", text)
    lines = (ROOT / "kernels" / "tour.cu").read_text().splitlines()
    assert lines.pop(line - 1).strip() == "__syncthreads();", (
        f"{page}: 'Delete line {line}' of kernels/tour.cu: no __syncthreads() is there; write the "
        "line of the one inside the loop of `center`")
    writes, reads = (lines[int(n) - 1] for n in found.groups())
    assert "s[t] +=" in writes and "s[t + d]" in reads, (
        f"{page}: the race is at other lines than {found.groups()}: delete that line, copy what "
        "`minidl kernel run tutorials/03_kernel_tour.py` prints")


def test_the_folders_of_the_map_come_in_the_order_of_the_import_rule():
    folders = re.findall(r"^## .*\(`minidl/(\w+)[\w/]*`\)$", MAP, re.M)
    order = list(dict.fromkeys(folders))
    assert len(order) > 10
    for part in set(order) - {"precision", "memory", "cli", "course"}:
        allowed = set((test_imports.MAY_IMPORT.get(part) or "").split()) & set(order)
        later = {other for other in allowed if order.index(other) > order.index(part)}
        assert not later, (f"docs/map.md: {part} may import {later} (MAY_IMPORT), whose sections "
                           f"are below: move the section of {part} down")


def test_a_row_of_the_map_has_a_cell_for_every_column():
    rows = [line for section in SECTIONS for line in section.splitlines() if line[:1] == "|"]
    assert rows
    for row in rows:
        assert row.count("|") == 8, f"docs/map.md: a row has seven cells: {row}"
        assert row.rstrip(" |").count("|") == 7 or "---" in row, (
            f"docs/map.md: write in the last cell why there is no page in minidl/plain: {row}")


def test_each_folder_says_in_a_sentence_what_it_earns():
    found = dict(re.findall(r"^\| `([\w/]+)/` \| ([A-Z`][^|]+\.) \|$", EARNED, re.M))
    more_than_one = [folder for folder, told in found.items() if re.search(r"\. [A-Z]", told)]
    assert not more_than_one, (
        f"docs/map.md, 'What each folder earns': {more_than_one} want one sentence each")
    assert len(found) == EARNED.count("\n|") - 2, (
        "docs/map.md, 'What each folder earns': a row is `| `minidl/x/` | A sentence. |`")


def strings(file):
    """Returns the strings in a Python file, without docstrings."""
    tree = ast.parse(file.read_text())
    told = {id(node.body[0].value) for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
            and ast.get_docstring(node)}
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
            and isinstance(node.value, str) and id(node) not in told}


def test_each_kernel_is_launched_and_says_in_the_table_of_kernels_by_whom():
    sources = [*(ROOT / "minidl").rglob("*.py"), *(ROOT / "tutorials").rglob("*.py")]
    named = set().union(*(strings(f) for f in sources if ".cu" in f.read_text()))
    page = (ROOT / "kernels" / "README.md").read_text()
    table = page.split("| who calls it |")[1].split("\n\n")[0]
    kernels = sorted((ROOT / "kernels").glob("*.cu"))
    assert len(kernels) > 20
    for kernel in kernels:
        assert kernel.name in named, (
            f"kernels/{kernel.name}: no file of minidl/ or tutorials/ launches it: no "
            f'"{kernel.name}" in any')
        assert re.search(rf"\b{kernel.stem}\b", table), (
            f"kernels/README.md: the table 'who calls it' wants {kernel.stem}")


def test_short_names_of_files_in_the_sources_are_names_of_files():
    """A short name is `bucket.py`, or `data/bucket.py` if several files have this name."""
    examples = {"script.py", "train.py", "x.py", "my_test.py", "NN_name.py"}
    folders = [ROOT / name for name in ("minidl", "tests", "tutorials", "benchmarks", "docs")]
    names = {file.name for folder in folders for file in folder.rglob("*.py")} | examples
    names |= {file.name for file in ROOT.glob("*.py")}
    missing = []
    for file in sorted((ROOT / "minidl").rglob("*.py")):
        for folder, name in re.findall(r"(?<![\w./<{-])((?:\w+/)*)(\w+\.py)\b", file.read_text()):
            places = [ROOT / folder, ROOT / "minidl" / folder, file.parent / folder]
            found = name in names and (not folder or any((p / name).exists() for p in places))
            if not found and folder != "work/":  # students' files are in work/
                missing.append(f"{file.relative_to(ROOT)}: {folder}{name}")
    assert not missing, f"there are no such files as these sources name: {missing}"


@pytest.mark.parametrize("part", PARTS)
def test_tests_tutorials_and_files_that_a_source_names_exist(part):
    path = ROOT / "minidl" / part
    files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
    files = [f for f in files if f.suffix in (".py", ".cu", ".cuh", ".h", ".cpp")]
    assert files
    missing = []
    for file in files:
        for name in re.findall(r"\b(?:tests|tutorials|minidl)/[\w/]+\.py\b", file.read_text()):
            if not (ROOT / name).exists():
                missing.append(f"{file.relative_to(ROOT)}: {name}")
    assert not missing, f"there are no such files as these sources name: {missing}"


def test_the_glossary_is_alphabetical_and_names_a_file_for_every_term():
    text = (ROOT / "docs" / "glossary.md").read_text()
    entries = re.findall(r"^\*\*(.+?)\*\*: (.*)$", text, re.M)
    terms = [term for term, _ in entries]
    assert len(terms) > 100
    for term, after in zip(terms, sorted(set(terms), key=str.casefold), strict=False):
        assert term == after, f"docs/glossary.md: **{after}** belongs before **{term}**, and once"
    for term, explained in entries:
        assert "](../" in explained, f"docs/glossary.md: **{term}** wants a link to its file"
