"""Tests docs/from_pytorch.md: runs both columns of every row, and compares their results.

The section "How this page is checked" has the rules for a row. `read` and `Row` follow these rules.
PyTorch's cells on several ranks run in their own processes, which run this file as a script.
"""

import ast
import functools
import os
import pickle
import pkgutil
import re
import shlex
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import minidl
from minidl.comm import simulate
from tests.conftest import EVERY, some, whole_form

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "from_pytorch.md"
COMMANDS = ("torchrun", "minidl", "python", "horovodrun", "deepspeed")

# Relative to the largest number of a result. PyTorch and minidl compute in float32 and add in
# another order, so their results differ by some rounding errors of 6e-8.
TOLERANCE = 1e-6


# -- the page


@dataclass(eq=False)
class Section:
    title: str
    text: str = ""
    blocks: list = field(default_factory=list)  # (head, source) of every code block

    @property
    def ranks(self):
        """The number of ranks on which a cell runs. 0 means that the cell runs without ranks."""
        found = re.search(r"run on (\d) ranks", self.text)
        return int(found[1]) if found else 0

    @property
    def left_is_run(self):
        return "left column is not run" not in self.text


@dataclass
class Row:
    line: int
    section: Section
    theirs: str
    ours: str
    note: str

    @property
    def is_text(self):
        return self.note.startswith("text: ")

    @property
    def left_is_run(self):
        return self.section.left_is_run and "left column is not run" not in self.note

    @property
    def is_command(self):
        return self.ours.split()[0] in COMMANDS

    @property
    def tolerance(self):
        """The tolerance of a row: 1e-4, if the note has "to 1e-4: the reason"."""
        found = re.search(r"to (\d+e-\d+): \w+", self.note)
        return float(found[1]) if found else TOLERANCE

    @property
    def raises(self):
        """Returns [(code, kind, words)] for every "`code` raises `kind: words`" in the note."""
        return re.findall(r"`([^`]+)` raises `(\w+): ([^`]+)`", self.note)

    @property
    def equals(self):
        """Returns the list of every `code` in the note after "equals"."""
        return re.findall(r"equals `([^`]+)`", self.note)

    def __str__(self):
        return (f"docs/from_pytorch.md:{self.line}, {self.section.title}\n"
                f"    PyTorch's cell: {self.theirs!r}\n    our cell:       {self.ours!r}")


def code_of(cell):
    """Returns the code of a cell. Each piece between backticks is a line."""
    return "\n".join(re.findall(r"`([^`]+)`", cell))


def read(text):
    """Returns (the sections, the rows) of a page. The first section has the text above all
    headings."""
    sections, rows, fence = [Section("head")], [], None
    for number, line in enumerate(text.splitlines(), 1):
        section = sections[-1]
        if line.startswith("```"):
            if fence is None:
                fence = []
            else:
                section.blocks.append((fence[0] if fence else "", "\n".join(fence)))
                fence = None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("## "):
            sections.append(Section(line[3:]))
        elif line.startswith("|"):
            cells = [c.replace("\\|", "|").strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) != 3:
                raise ValueError(f"{PAGE.name}:{number}: a row has three cells: {line}")
            if cells[1] != "minidl" and not set("".join(cells)) <= set("-: "):
                rows.append(Row(number, section, code_of(cells[0]), code_of(cells[1]), cells[2]))
        else:
            section.text += line + "\n"
    return sections, rows


SECTIONS, ROWS = read(PAGE.read_text())
HEAD = next(s for s in SECTIONS if s.title == "How this page is checked")
OF_RANKS = next(s for s in SECTIONS if s.title == "How the rows on ranks are checked")
CODE = [row for row in ROWS if not row.is_text]


@functools.cache
def compiled(source):
    return compile(source, str(PAGE), "exec")


def blocks_for(section, side):
    """Returns the pieces of code that run before a cell of this section. side: "PyTorch" or
    "minidl"."""
    other = {"PyTorch": "# minidl", "minidl": "# PyTorch"}[side]
    before = [HEAD, OF_RANKS] if section.ranks else [HEAD]
    blocks = [block for s in dict.fromkeys([*before, section]) for block in s.blocks]
    return [source for head, source in blocks
            if not head.startswith(other) and not head.endswith((" once", ".py"))]


def run(row, side, names):
    """Runs a row's cell. Returns the value of its last expression, in the form of plain()."""
    for source in blocks_for(row.section, side):
        exec(compiled(source), names)
    return plain(value(row.theirs if side == "PyTorch" else row.ours, names))


def value(code, names):
    *before, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        raise ValueError(f"a cell ends with the value that is compared; got {code!r}")
    exec(compile(ast.Module(before, []), str(PAGE), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(PAGE), "eval"), names)


# -- values of two libraries


def plain(x):
    """Returns x in a form that does not depend on the library: as arrays, numbers, texts, lists and
    dicts."""
    kind = f"{type(x).__module__}.{type(x).__name__}"
    if isinstance(x, minidl.Tensor):
        return plain(x.detach().numpy())
    if isinstance(x, (np.ndarray, np.generic)):
        return np.array(x, np.float32) if x.dtype.name == "bfloat16" else np.array(x)
    if hasattr(x, "detach") and kind.startswith("torch"):
        x = x.full_tensor() if hasattr(x, "full_tensor") else x
        x = x.detach()
        return (x.float() if str(x.dtype) == "torch.bfloat16" else x).cpu().numpy().copy()
    if isinstance(x, dict):
        return {key: plain(v) for key, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, np.dtype):
        return x.name
    if kind in ("torch.dtype", "torch.device"):
        return str(x).removeprefix("torch.")
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise TypeError(f"a row compares tensors, arrays, numbers and text; got a {kind}")


def same(a, b, tolerance):
    """Returns True if two results of plain() are equal. Floats may differ by the tolerance."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype.kind != "f":
            return np.array_equal(a, b)
        largest = np.abs(a[np.isfinite(a)]).max(initial=1)
        return np.allclose(a, b, rtol=0, atol=tolerance * largest, equal_nan=True)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= tolerance * max(1, abs(a))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(v, w, tolerance) for v, w in zip(a, b))
    return a == b


def compare(row, name, want, ours):
    if not same(want, ours, row.tolerance):  # an assert would print both values again
        with np.printoptions(threshold=50):
            raise AssertionError(f"{row}\n    {name} gave: {want!r}\n    minidl gave: {ours!r}")


# -- running


def ours_of(row):
    """Returns the result of minidl's cell. If the cell runs on ranks, returns a list with each
    rank's result. Checks what the note says after "equals" and "raises"."""
    def on(names):
        got = run(row, "minidl", names)
        for code in row.equals:
            compare(row, code, plain(value(code, names)), got)
        for code, kind, words in row.raises:
            error = error_of(code, names)
            kinds = [each.__name__ for each in type(error).__mro__]
            assert kind in kinds and words in str(error), (
                f"{row}\n    {code} raised {error!r}, and not {kind}: {words}")
        return got

    if not row.section.ranks:
        return on({})
    return simulate(row.section.ranks, lambda t: on({"t": t, "rank": t.rank}))


def error_of(code, names):
    try:
        value(f"{code}\nNone", names)
    except Exception as error:
        return error


def output_of(command, folder, side):
    """Writes the page's scripts for this side into a folder, and runs a command there. Returns the
    printed lines, sorted."""
    for head, source in [block for section in SECTIONS for block in section.blocks]:
        if head.startswith(f"# {side}: "):
            (folder / head.split(": ")[1]).write_text(source)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(shlex.split(command), cwd=folder, capture_output=True, text=True,
                          timeout=100, env={**os.environ, "PATH": tools, "PYTHONPATH": path,
                                            "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def theirs_on_ranks(tmp_path_factory):
    """Runs PyTorch's cells of all rows on ranks in one job over gloo. Returns {line of the row:
    [the result on each rank]}."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
           "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo",
           "TP_SOCKET_IFNAME": "lo"}
    jobs = [subprocess.Popen([sys.executable, __file__, folder / f"{rank}"],
                             env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)]
    for job in jobs:
        assert job.wait(100) == 0, "PyTorch's ranks ended with an error; it is printed above"
    found = [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(2)]
    return {line: [of_rank[line] for of_rank in found] for line in found[0]}


def one_rank_of_pytorchs(out):
    """Runs PyTorch's cells on this rank. Writes {line of the row: the value, or the error as text}
    into the file `out`."""
    import torch

    torch.set_num_threads(1)
    rank, found = int(os.environ["RANK"]), {}
    for section in SECTIONS:
        if section.ranks and section.left_is_run:
            common = {"rank": rank}
            for head, source in section.blocks:
                if head == "# PyTorch, once":
                    exec(compiled(source), common)
            for row in [row for row in CODE if row.section is section and row.left_is_run]:
                try:
                    found[row.line] = run(row, "PyTorch", dict(common))
                except Exception:
                    found[row.line] = traceback.format_exc()
    Path(out).write_bytes(pickle.dumps(found))
    torch.distributed.barrier()  # the other rank may still need this rank
    os._exit(0)  # at the end of Python, gloo's threads may wait for its lock


def id_of(row):
    return f"{row.line}-{row.theirs[:40]}".replace("\n", ";")


HERE = [row for row in CODE if not row.is_command and not row.section.ranks]
ON_RANKS = [row for row in CODE if not row.is_command and row.section.ranks]


@pytest.mark.parametrize("row", HERE, ids=id_of)
def test_both_columns_give_the_same(row):
    ours = ours_of(row)
    pytest.importorskip("torch", reason="the left column is PyTorch's; ours has run")
    compare(row, "PyTorch", run(row, "PyTorch", {}), ours)


@pytest.mark.slow
@pytest.mark.parametrize("row", some(ON_RANKS, of=3), ids=id_of)
def test_both_columns_give_the_same_on_ranks(row, request):
    ours = ours_of(row)
    if not row.left_is_run:
        assert row.equals or row.raises, f"{row}\n    wants: equals `what it must be`"
        return
    pytest.importorskip("torch", reason="the left column is PyTorch's; ours has run")
    if not EVERY:
        pytest.skip("PyTorch's ranks take seconds: make test-every; ours has run")
    theirs = request.getfixturevalue("theirs_on_ranks")[row.line]
    errors = [x for x in theirs if isinstance(x, str) and x.startswith("Traceback")]
    assert not errors, f"{row}\n{errors[0]}"
    compare(row, "PyTorch", theirs, ours)


@whole_form
@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("row", some([row for row in CODE if row.is_command], of=3), ids=id_of)
def test_both_commands_print_the_same(row, tmp_path):
    ours = output_of(row.ours, tmp_path, "minidl")
    assert ours, "a script that prints nothing compares nothing"
    if row.left_is_run:
        pytest.importorskip("torch", reason="the left column is PyTorch's; ours has run")
        compare(row, "PyTorch", output_of(row.theirs, tmp_path, "PyTorch"), ours)


def test_the_page_has_rows_and_few_are_text():
    texts = [row for row in ROWS if row.is_text]
    assert len(CODE) >= 350
    assert len(texts) <= 18, "a row is code; text is for what no test can run"
    without = [str(row) for row in texts if len(row.note.split()) < 5]
    assert not without, "a row of text says why it is not run"
    assert all(row.theirs and row.ours for row in CODE), "a cell without code"


def test_what_is_not_run_is_python_at_least():
    for row in CODE:
        if not row.left_is_run and not row.theirs.startswith((*COMMANDS, "--")):
            ast.parse(row.theirs)


def test_every_name_of_minidl_on_the_page_exists():
    names = set(re.findall(r"minidl(?:\.[a-zA-Z_]\w*)+", PAGE.read_text()))
    assert len(names) > 50
    lost = []
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            lost.append(name)
    assert not lost, f"docs/from_pytorch.md names what is not there: {lost}"


@pytest.mark.parametrize("line, words", [
    ("| `x.sum(0)` | `x.sum(1)` | |", "PyTorch gave"),
    ("| `x.argmax()` | `x.argmax() * 1.0` | |", "PyTorch gave"),
    ("| `len(x)` | `4.0` | |", "PyTorch gave: 4"),
    ("| `x` | `x` | `x.shape` raises `TypeError: no` |", "raised None, and not TypeError: no"),
    ("| `x` | `x` | `x.no` raises `TypeError: no` |", "raised AttributeError"),
    ("| `x.mean()` | `x.mean()` | equals `0.5` |", "0.5 gave"),
])
def test_a_row_that_is_wrong_is_seen(line, words):
    pytest.importorskip("torch", reason="the left column is PyTorch's")
    _, (*_, row) = read(f"{PAGE.read_text()}\n{line}\n")
    row.section = HEAD
    with pytest.raises(AssertionError, match=words):
        compare(row, "PyTorch", run(row, "PyTorch", {}), ours_of(row))


if __name__ == "__main__":
    one_rank_of_pytorchs(sys.argv[1])
