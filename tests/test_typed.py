"""Runs the programs of the pages about ranks. They must end as the pages say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import some, whole_form

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.mpi


def scripts(page):
    """Returns the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def script_with(page, words):
    (found,) = [text for text in scripts(page) if words in text]
    return found


def minidl_run(n, path, *options):
    words = ["-c", "from minidl.cli.main import main; raise SystemExit(main())"]
    return [sys.executable, "-P", *words, "run", *options, "-n", str(n), path.name]


def run(n, path):
    return subprocess.run(minidl_run(n, path), cwd=path.parent, capture_output=True, text=True,
                          timeout=60)


def report(page, first):
    """Returns the lines of the page's output block that begins with the line `first`. Times are
    replaced by T."""
    text = (DOCS / page).read_text()
    (block,) = re.findall(rf"^```\n({re.escape(first)}.*?)^```", text, re.M | re.S)
    return [timeless(line) for line in block.splitlines()]


def timeless(line):
    return re.sub(r"for \d+\.\d s", "for T s", line).strip()


@pytest.mark.parametrize("page, name, n, words, first", some([
    ("three_examples.md", "hang.py", 3, "t.recv(x, 2)", "rank 0: watch: deadlock: ranks 0-2"),
    ("observe.md", "x.py", 2, "400,000 bytes", "rank 0: watch: deadlock: ranks 0, 1"),
]))
def test_a_hang_ends_with_the_report_that_the_page_shows(tmp_path, page, name, n, words, first):
    path = tmp_path / name
    path.write_text(script_with(page, words))
    result = run(n, path)
    assert result.returncode != 0
    said = {timeless(line) for line in result.stderr.splitlines()}
    for line in report(page, first):
        assert line in said, result.stderr


def test_sums_that_are_named_are_compared(tmp_path):
    path = tmp_path / "swapped.py"
    path.write_text(script_with("observe.md", "with about(name)"))
    result = run(2, path)
    assert result.returncode != 0
    assert "CallMismatch" in result.stderr and "weight" in result.stderr, result.stderr


@whole_form
def test_the_training_that_goes_on_by_itself_goes_on_after_a_kill(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import os\n" + script_with("ranks.md", "minidl.elastic.run(").replace(
        "def train(t, step, model, optimizer, batches):\n",
        "def train(t, step, model, optimizer, batches):\n"
        "    if step == 300 and t.rank == 1 and not os.path.exists('killed'):\n"
        "        open('killed', 'w').close()\n"
        "        os.kill(os.getpid(), 9)\n"))
    quiet = subprocess.run(minidl_run(2, path, "--restarts", "3", "--silence", "60"), cwd=tmp_path,
                           capture_output=True, text=True, timeout=120)
    assert quiet.returncode == 0, quiet.stderr
    assert "step 1000: loss 0.0" in quiet.stdout
    assert "SIGKILL" in quiet.stderr, quiet.stderr
