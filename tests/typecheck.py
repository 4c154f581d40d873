"""`make typecheck`: a type checker reads the Python of README.md, docs/*.md and the tutorials.

    make typecheck                               all of it
    make typecheck ARGS=tutorials/07_ring.py     some files

The checker is pyright, as the package basedpyright has it; pyproject.toml has its settings. It
reads the stubs (tests/stubs.py) and runs nothing. A block with PyTorch in it is left out.

Test: tests/test_typecheck.py
"""

import itertools
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "tutorials").glob("*.py"))
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.M | re.S)
# A page shows pieces: its reader has data, a model, a transport `t`, and these imports. So a name
# that is nowhere defined is no error there, and pieces may use a name twice.
HEAD = ["# pyright: reportUndefinedVariable=false, reportRedeclaration=false",
        "import os, minidl, numpy as np; from minidl import comm, infer, nn, optim, parallel; "
        "from minidl.nn import functional as F"]


def programs(folder):
    """Writes the Python of each section of each page into the folder; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for page in PAGES:
        for line, code in sections(page.read_text(encoding="utf-8")):
            path = folder / f"{page.stem}_{line}.py"
            path.write_text(code, encoding="utf-8")
            paths.append(path)
    return paths


def sections(text):
    """[(its line, code)] of the sections of a page that have Python. A section is one program, and
    each line of it keeps its number."""
    found = []
    starts = [0, *(title.start() for title in re.finditer("^## ", text, re.M)), len(text)]
    for start, end in itertools.pairwise(starts):
        lines = HEAD + [""] * (text.count("\n") - len(HEAD))
        blank = list(lines)
        for block in BLOCK.finditer(text, start, end):
            if not re.search(r"\btorch\b", block[2]):
                first = text.count("\n", 0, block.start(2))
                code = textwrap.dedent(block[2]).splitlines()
                lines[first:first + len(code)] = code
        if lines != blank:
            found.append((text.count("\n", 0, start) + 1, "\n".join(lines) + "\n"))
    return found


def errors(paths, project=ROOT):
    """["file:line: what is wrong (rule)"] of these files, by the settings of a project's folder."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson"]
    if project == ROOT:  # .venv may be another one, as in a copy
        command += ["--pythonpath", sys.executable]
    done = subprocess.run([*command, *map(str, paths)], cwd=project, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)["generalDiagnostics"]
    except ValueError:
        raise RuntimeError(f"basedpyright: {done.stderr or done.stdout}") from None
    return [f"{Path(e['file']).name}:{e['range']['start']['line'] + 1}: "
            f"{e['message'].splitlines()[0]} ({e.get('rule', 'syntax')})"
            for e in found if e["severity"] == "error"]


def main(arguments):
    paths = [Path(name).resolve() for name in arguments]
    paths = paths or [*programs(ROOT / "build" / "typecheck"), *SCRIPTS]
    found = errors(paths)
    print(*found, f"{len(found)} errors in {len(paths)} files", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
