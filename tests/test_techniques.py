"""Tests the table "The techniques" of docs/map.md. A row links to a technique's file, plain page,
test, tutorial and benchmark, and each of these files must use the technique. A cell without a link
must give the reason."""

import ast
import re
from pathlib import Path

import pytest

from minidl.course import book

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "map.md"
HEADING = "## The techniques"
COLUMNS = ["technique", "names and words", "file", "plain page", "test", "tutorial", "benchmark"]
# The techniques that the project teaches.
PROMISED = """
autograd
fused kernels: add3
fused and multi-tensor optimizers
precision of floats
mixed precision, O0 to O3, lists of ops
loss scaling
memory: 16 bytes a parameter
fragmentation
recompute
ring all-reduce
hierarchical all-reduce
double tree
data parallelism
fusion of messages
overlap with backward
streams of a GPU
parameter server
stale gradients
ZeRO 1 and 2
ZeRO 3, the form of FSDP
ZeRO-Offload
even and uneven data
SyncBatchNorm
deep gradient compression
local SGD, adaptive too
DiLoCo
tensor parallelism
pipeline parallelism
hybrid parallelism
linear scaling and warm-up
LARS
LAMB
elastic restarts
remote calls
graph fusion
one IR with generated code
int8
memory planning
several streams
prefetch
cache, parallel ETL
padding and buckets of lengths
pipes
streams with offsets
late labels
warm start
sparse embeddings
profiling
NUMA
debugging of collectives
NCCL
CUDA-aware MPI
slow nodes
accumulation of gradients
sharded checkpoints
""".strip().splitlines()


def rows_of(text):
    """Returns {technique: {column: cell}} of the table under the heading."""
    section = text.split(f"\n{HEADING}\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in section.splitlines() if line.startswith("|")]
    assert lines[0] == COLUMNS
    return {cells[0]: dict(zip(COLUMNS, cells, strict=True)) for cells in lines[2:]}


def linked(cell):
    """Returns the files that a cell links to."""
    return [(PAGE.parent / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", cell)]


def defined_in(path):
    """Returns the names of all functions, classes and methods of a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def complaints(row):
    """Returns what is wrong with a row: a list of sentences."""
    names, found = re.findall(r"`(\w+)`", row["names and words"]), []
    any_of = [word.strip(" `") for word in row["names and words"].split(",")]
    if not names:
        found.append("names no function or class")
    for column in COLUMNS[2:]:
        files = linked(row[column])
        is_reason = column not in ("file", "test") and re.match(r"none: \S+ \S+", row[column])
        if not files and not is_reason:
            found.append(f"{column}: has neither a link nor 'none: ' and a reason")
        found += [f"{column}: {file} does not exist" for file in files if not file.is_file()]
    if found:
        return found
    files = linked(row["file"])
    defined = set().union(*map(defined_in, files))
    found += [f"{name} is not defined in {row['file']}" for name in names if name not in defined]
    for column in ("test", "tutorial", "benchmark"):
        texts = [file.read_text() for file in linked(row[column])]
        words = [rf"\b{re.escape(word)}\b" for word in any_of] + [
            # the file may also import the module
            rf"\b{re.escape('.'.join(file.relative_to(ROOT).with_suffix('').parts))}\b"
            for file in files] + [rf"import [^\n]*\b{file.stem}\b" for file in files]
        found += [f"{column}: mentions none of {', '.join(any_of)}" for text in texts
                  if not any(re.search(word, text) for word in words)]
    if row["plain page"].startswith("["):  # compare with the page's list of real files
        (page,) = linked(row["plain page"])
        real = {ROOT / file for file in book.page(page.stem).real}
        if not real & set(files):
            found.append(f"plain page: its real file is none of {row['file']}; write 'part of'")
    return found


def test_every_promised_technique_has_a_row():
    assert list(rows_of(PAGE.read_text())) == PROMISED


@pytest.mark.parametrize("technique", PROMISED)
def test_a_row_is_true(technique):
    assert complaints(rows_of(PAGE.read_text())[technique]) == []


@pytest.mark.parametrize("column, cell, wanted", [
    ("names and words", "`AllReduceOfNothing`", "is not defined in"),
    ("file", "[comm/labels.py](../minidl/comm/labels.py)", "is not defined in"),
    ("plain page", "[tree](../minidl/plain/tree.py)", "its real file is none of"),
    ("test", "[test_nest.py](../tests/test_nest.py)", "test: mentions none of"),
    ("tutorial", "[33](../tutorials/33_gone.py)", "does not exist"),
    ("tutorial", "[04](../tutorials/04_float.py)", "tutorial: mentions none of"),
    ("benchmark", "none", "neither a link nor"),
])
def test_a_wrong_row_is_found(column, cell, wanted):
    row = rows_of(PAGE.read_text())["ring all-reduce"]
    assert any(wanted in sentence for sentence in complaints({**row, column: cell}))
