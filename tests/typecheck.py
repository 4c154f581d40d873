"""`make typecheck`: a type checker reads the Python of README.md, docs/*.md and the tutorials. Then
it checks calls that users write (asked.py): it must find their types, and must reject wrong calls.

    make typecheck                               all of it
    make typecheck ARGS=tutorials/07_ring.py     some files

The checker is pyright from the package basedpyright, with the settings in pyproject.toml. It reads
the hints in minidl/ and the stubs (tests/stubs.py). It runs nothing. Blocks that use PyTorch are
left out.

Test: tests/test_editors.py, tests/test_hints.py
"""

import itertools
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from minidl.own_files import write_whole
from tests import asked

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "tutorials").glob("*.py"))
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.M | re.S)
# A page shows pieces. Its reader has data, a model, a transport `t`, and these imports. So an
# undefined name is no error there, and two pieces may define the same name.
HEAD = ["# pyright: reportUndefinedVariable=false, reportRedeclaration=false",
        "import os, minidl, numpy as np; from minidl import comm, infer, nn, optim, parallel; "
        "from minidl.nn import functional as F"]


def programs(folder):
    """Writes the Python of each section of each page into the folder. Returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for page in PAGES:
        for line, code in sections(page.read_text(encoding="utf-8")):
            path = folder / f"{page.stem}_{line}.py"
            write_whole(path, code)  # another `make typecheck` may read it now
            paths.append(path)
    return paths


def sections(text):
    """Returns [(line of the section, code)] for sections with Python. A section is one program. Its
    lines keep their numbers."""
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


def diagnostics(paths, project=ROOT):
    """Returns the type checker's messages about these files, with the settings of a project's
    folder."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson"]
    if project == ROOT:  # a copy of the checkout may use another .venv
        command += ["--pythonpath", sys.executable]
    done = subprocess.run([*command, *map(str, paths)], cwd=project, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)["generalDiagnostics"]
    except ValueError:
        raise RuntimeError(f"basedpyright: {done.stderr or done.stdout}") from None


def errors(paths, project=ROOT):
    """Returns ["file:line: what is wrong (rule)"] for these files."""
    return sentences(diagnostics(paths, project))


def sentences(found):
    return [f"{Path(one['file']).name}:{line_of(one)}: {one['message'].splitlines()[0]} "
            f"({one.get('rule', 'syntax')})" for one in found if one["severity"] == "error"]


def line_of(found):
    return found["range"]["start"]["line"] + 1


# -- calls that users write: asked.py


def asked_files(folder):
    """Writes types.py and wrong.py, one call a line. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"types.py": "".join(f"reveal_type({call})\n" for call, _ in calls_with_types()),
             "wrong.py": asked.WRONG.lstrip()}
    for name, text in texts.items():
        write_whole(folder / name, asked.BEFORE + text)
    return [folder / name for name in texts]


def calls_with_types():
    return [re.split(" {2,}", line) for line in asked.TYPES.strip().splitlines()]


def not_as_asked(paths, found):
    """Compares the messages about asked_files with asked.py. Returns a sentence for each
    difference."""
    of_types, of_wrong = ([one for one in found if Path(one["file"]) == path] for path in paths)
    first = asked.BEFORE.count("\n") + 1
    said = {line_of(one): type_in(one["message"]) for one in of_types
            if one["severity"] == "information"}
    wrong = {line_of(one) for one in of_wrong if one["severity"] == "error"}
    return [*sentences(of_types),
            *(f"{call}: wanted {kind}, got {said.get(line)}"
              for line, (call, kind) in enumerate(calls_with_types(), first)
              if said.get(line) != kind),
            *(f"{call}: wanted an error, got none"
              for line, call in enumerate(asked.WRONG.strip().splitlines(), first)
              if line not in wrong),
            *(f"{call}: wanted no error" for line, call in
              enumerate(asked.BEFORE.splitlines(), 1) if line in wrong)]


def type_in(message):
    """Returns the type in 'Type of "x" is "Tensor"'. An array's type loses its shape and dtype."""
    kind = message.rsplit(' is "', 1)[1].removesuffix('"')
    inner = r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
    return re.sub(rf"\bndarray{inner}", "ndarray", kind)


def main(arguments):
    folder = ROOT / "build" / "typecheck"
    paths = [Path(name).resolve() for name in arguments]
    asked_of = [] if paths else asked_files(folder / "asked")
    paths = paths or [*programs(folder), *SCRIPTS]
    found = diagnostics([*paths, *asked_of])
    wrong = sentences(one for one in found if Path(one["file"]) not in asked_of)
    wrong += not_as_asked(asked_of, found) if asked_of else []
    print(*wrong, f"{len(wrong)} errors in {len(paths) + len(asked_of)} files", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
