"""Tests that every code block of every English page runs, has its own test, or has a reason.

    kind       recognised by                        what happens to it
    shell      each line begins with a command      its words are parsed; RUN lists what also runs
    python     ```python                            runs in the page's order, one namespace a page
    cuda       ```cuda                              compiled for the CPU
    settings   ```json, ```toml, ```ini             parsed
    output     anything else                        compared with what PRINTS prints

The tables below name pages and blocks. A block is named by words that only it has. If you write a
new block and this file finds nothing that runs it, the test names the block and the table.
"""

import configparser
import contextlib
import functools
import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from minidl import cuda
from minidl.cli import main as cli
from minidl.comm import simulate
from minidl.course import student, tutorial
from minidl.cuda import dispatch
from tests.conftest import whole_form
from tests.course.test_course_docs import problem

ROOT = Path(__file__).resolve().parents[1]
# `make register` writes these pages
GENERATED = ("docs/planted_bugs.md", "docs/figures.md", "docs/map.md")

# {page: the test that runs its blocks}. For a single block the key is (page, words of the block)
ELSEWHERE = {
    "docs/from_pytorch.md": "tests/test_from_pytorch.py",
    "docs/way_to_the_kernel.md": "tests/test_ways.py",
    "docs/way_to_the_wire.md": "tests/test_ways.py",
    "docs/transports.md": "tests/comm/transport/test_order.py",
    ("README.md", "bytes sent in a step"): "tests/test_register.py",
    ("docs/three_examples.md", "bytes sent in a step"): "tests/test_register.py",
    ("docs/three_examples.md", "t.recv(x, 2)"): "tests/test_typed.py",
    ("docs/three_examples.md", "watch: deadlock"): "tests/test_typed.py",
    ("docs/observe.md", "400,000 bytes: too many"): "tests/test_typed.py",
    ("docs/observe.md", "watch: deadlock"): "tests/test_typed.py",
    ("docs/observe.md", "with about(name)"): "tests/test_typed.py",
    ("docs/ranks.md", "minidl.elastic.run("): "tests/test_typed.py",
    ("docs/course/kit.md", "run_autograder"): "tests/course/test_handout.py",
}

# {(page, words of a block): why the block does not run here}. But its Python is compiled, and its
# minidl, make, python, git and pip commands are parsed.
NOT_RUN = {
    ("CONTRIBUTING.md", "bad shapes"): "an example of style, two errors one after the other",
    ("CONTRIBUTING.md", "key=times.__getitem__"): "an example of style, a part of a function",
    ("docs/inference.md", "from_hugging_face"): "needs GPT-2's weights; "
        "tests/snapshot/test_hugging_face.py loads a small model",
    ("docs/install.md", "srun"): "needs a cluster with Slurm and modules",
    ("docs/install.md", "jupyter lab"): "opens a browser",
    ("docs/observe.md", "main thread"): "a picture of threads and messages",
    ("docs/ranks.md", "guard --- rank 0"): "a picture of processes",
    ("docs/three_examples.md", "def is_closed"): "text that the GPT of one `make demo` wrote",
}

# {page: code before its first Python block}: this code makes what the reader already has
BEFORE = {
    "docs/inference.md": """
        import minidl
        from minidl import infer, nn
        minidl.manual_seed(0)
        x = minidl.randn(1, 1, 28, 28)
        """,
    "docs/large_batches.md": """
        from minidl import nn, optim, snapshot
        from minidl.parallel import DiLoCo, LocalSGD
        def trained(wrapper):
            model = nn.Linear(3, 2)
            optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return model, optimizer, wrapper(model, t, optimizer, period=8)
        _, optimizer, local = trained(LocalSGD)
        model, inner, diloco = trained(DiLoCo)
        step = 1000
        """,
}
# {page: number of simulated ranks}. The blocks of these pages use the transport `t`
RANKS = {"docs/large_batches.md": 2}

# {(page, words of an output block): code that prints the output}. The code runs after the Python
# block above the output, in the page's namespace. `page` is the page's text.
PRINTS = {
    ("README.md", "dy/da"): "run_page('minidl.plain.autograd')",
    ("README.md", "data race"): "print(race(page))",
    ("README.md", "watch: deadlock"): "print(block_of('docs/three_examples.md', 'watch: deadlock')"
                                      ".replace('hang.py', 'script.py'))",
    ("docs/three_examples.md", "data race"): "print(race(page))",
    ("docs/inference.md", "= batch_norm("): "print(graph)",
    ("docs/inference.md", "= to_nhwc(x)"): "infer.optimise(graph)\nprint(graph)",
    ("docs/inference.md", "kernel to_nhwc_0"): "plan = infer.compile(graph)\nprint(plan)",
}
NEEDS_COMPILER = ("race(", "infer.compile(")

# {page: {command: exit status}}: the commands run in a temporary folder, in this order
RUN = {
    "docs/tutorials.md": {"minidl exercise 07": 0, "minidl check 07": 1, "minidl check 07a": 1,
                          "minidl solution 07": 0},
    "docs/install.md": {"minidl exercise 07": 0, "minidl notebook 07": 0,
                        "minidl notebook 07 --colab": 0},
    "docs/book.md": {"python -m minidl.plain.ring": 0},
    "docs/course/kit.md": {"minidl progress": 0},
}
RUN_LONG = {  # like RUN, but only in the whole form
    "docs/course/kit.md": {"minidl handout mlsys --tutorials 01 02 07 11 14": 0},
}

Block = namedtuple("Block", "line head text")


# -- pages and blocks


def pages():
    """Returns {name: text} of the English pages that people write."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [file.relative_to(ROOT).as_posix() for file in files]
    return {name: (ROOT / name).read_text() for name in names
            if not name.startswith("docs/zh/") and name not in GENERATED}


PAGES = pages()


def blocks_of(text):
    """Returns the Blocks of a page. A block in a list loses its indentation."""
    found = re.finditer(r"^( *)```([^\n]*)\n(.*?)^ *```$", text, re.M | re.S)
    return [Block(text[:one.start()].count("\n") + 1, one[2].strip(), textwrap.dedent(one[3]))
            for one in found]


def block_of(name, words):
    """Returns the text of the only block of a page that has these words."""
    (text,) = [block.text for block in blocks_of(PAGES[name]) if words in block.text]
    return text


def entry(table, name, block):
    """Returns the value of a table for a block of the page `name`, or None."""
    for (page, words), value in ((key, value) for key, value in table.items()
                                 if isinstance(key, tuple)):
        if page == name and words in block.text:
            return value
    return table.get(name)


def kind(block):
    """Returns shell, python, cuda, settings or output."""
    if block.head in ("python", "cuda"):
        return block.head
    if block.head in ("json", "toml", "ini"):
        return "settings"
    first = [line.split()[0] for line in block.text.splitlines() if line.strip()]
    is_shell = not block.head and all(re.match(r"[A-Z_0-9]+=", word) or name_of(word) in COMMANDS
                                      for word in first)
    return "shell" if is_shell else "output"


def run_page(module):
    """Does what `python -m module` does, in this process. runpy.run_module would warn if the module
    has been imported before."""
    runpy.run_path(importlib.util.find_spec(module).origin, run_name="__main__")


def problems_of(name, text, folder):
    """Runs the blocks of a page in a folder. Returns a sentence for each block that is wrong."""
    problems = []
    space = {"page": text, "race": race, "block_of": block_of, "run_page": run_page}
    python = []  # (block, code); the code runs at the end, in the order of the page
    if name in BEFORE:
        python.append((Block(0, "python", ""), textwrap.dedent(BEFORE[name])))
    for block in blocks_of(text):
        if entry(ELSEWHERE, name, block):
            continue
        reason, what = entry(NOT_RUN, name, block), kind(block)
        found = []
        if what == "shell":
            found = [told for words in commands(block.text) if (told := wrong_command(words))]
        elif what == "python" and reason:
            found = wrong_syntax(block.text)
        elif what == "python":
            python.append((block, block.text))
        elif what == "cuda":
            found = wrong_cuda(block.text, folder)
        elif what == "settings":
            found = wrong_settings(block)
        elif code := entry(PRINTS, name, block):
            python.append((block, code))
        elif not reason:
            found = ["nothing runs this block: give it an entry in ELSEWHERE, PRINTS or NOT_RUN"]
        problems += [f"{name}:{block.line}: {told}" for told in found]
    return problems + wrong_python(name, python, space, RANKS.get(name, 0))


# -- Python, and what it prints


def wrong_python(name, blocks, space, n_ranks):
    """Runs (block, code) one after the other in one namespace, on each of n_ranks simulated ranks
    if n_ranks is not 0. Returns a list of what is wrong, with at most one sentence, because later
    blocks need the wrong block."""
    def run(t=None):
        own = {**space, "t": t}
        for block, code in blocks:
            if any(word in code for word in NEEDS_COMPILER) and not dispatch.cpu_compiler():
                continue
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out):
                    exec(compile(code, f"{name}:{block.line}", "exec"), own)
            except Exception as error:
                return f"{name}:{block.line}: {type(error).__name__}: {error}"
            if block.head != "python":
                missing = not_printed(block.text, out.getvalue())
                if missing:
                    return f"{name}:{block.line}: {missing}; printed was:\n{out.getvalue()}"
        return None

    found = simulate(n_ranks, run) if n_ranks else [run()]
    return [told for told in found if told][:1]


def wrong_syntax(text):
    """Compiles a part of a program, which may have a `return`."""
    try:
        compile("def part():\n" + textwrap.indent(text, " "), "block", "exec")
    except SyntaxError as error:
        return [f"SyntaxError: {error}"]
    return []


def not_printed(shown, printed):
    """Returns "" if the words of `shown` come in `printed` in this order; more words may come
    between them. Returns a sentence about the first word that does not come."""
    printed_words = iter(words_of(printed))
    for word in words_of(shown):
        if word not in printed_words:  # the search continues after the last word that was found
            return f"shows {word!r}, which is not printed there"
    return ""


def words_of(text):
    """Returns names, numbers and single signs. Times such as `1.3 s` differ, so they are left
    out."""
    return re.findall(r"[\w.]+|[^\w\s]", re.sub(r"\d+\.\d+ (ms|s)\b", "", text))


def race(page):
    """Returns the report of `center` in kernels/tour.cu without the line that the page deletes."""
    lines = (ROOT / "kernels" / "tour.cu").read_text().splitlines()
    del lines[int(re.search(r"Delete line (\d+)", page)[1]) - 1]
    path = Path("tour.cu")
    path.write_text("\n".join(lines))
    x = np.ones((2, 100), np.float32)
    return cuda.check(path, 2, 64, (np.empty_like(x), x, 100), name="center", shared_mem=4 * 64)


# -- CUDA and settings


def wrong_cuda(text, folder):
    """Compiles a block for the CPU, as `minidl kernel check` does."""
    path = folder / "block.cu"
    path.write_text(text)
    if not dispatch.cpu_compiler():
        return []
    status, told = called(["kernel", "check", str(path)])
    return [told] if status else []


def wrong_settings(block):
    read = {"json": json.loads, "toml": tomllib.loads,
            "ini": configparser.ConfigParser().read_string}[block.head]
    try:
        read(block.text)
    except (ValueError, configparser.Error) as error:
        return [f"is no {block.head}: {error}"]
    return []


# -- shell commands


def name_of(word):
    """Returns the name of a command: minidl for .venv/bin/minidl."""
    return word.removeprefix(".venv/bin/")


def commands(text):
    """Returns the words of each command, without comments and settings such as LANG=C."""
    found = []
    for line in text.splitlines():
        words = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word in ("&&", "|"):
                found.append(words)
                words = []
            elif words or not re.match(r"\w+=", word):
                words.append(word)
        if "--wrap" in line:  # the text has the command that Slurm starts later
            found.append(shlex.split(re.search(r'--wrap "(.*)"', line)[1]))
    return [words for words in found if words]


def wrong_command(words):
    """Returns what is wrong with a command, or ""."""
    return COMMANDS[name_of(words[0])](words[1:])


def called(words):
    """Runs a minidl command in this process. Returns (exit status, all that it printed)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = end.code
    return status, out.getvalue()


def of_minidl(words):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = cli.parser().parse_args(words)
    except SystemExit:
        return f"minidl {shlex.join(words)}: {said.getvalue()}"
    if words[0] == "run":
        return of_tutorial(args.script, args.arguments)
    if words[0] in ("exercise", "check") and args.number:
        return problem(f"minidl {words[0]} {args.number}")
    return ""


def of_tutorial(script, words):
    """Parses the words after the name of a tutorial by its own parser."""
    if not (ROOT / script).exists():
        return f"there is no {script}"
    module = student.load(ROOT / script)
    before, sys.argv = sys.argv, [script, *words]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            tutorial._parse(module.main, getattr(module, "OPTIONS", {}))
    except SystemExit:
        return f"{script} {shlex.join(words)}: {said.getvalue()}"
    finally:
        sys.argv = before
    return ""


def of_make(words):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    gone = [word for word in words if "=" not in word and word not in targets]
    return f"make {gone[0]}: the Makefile has no such target" if gone else ""


def of_python(words):
    if words[0] != "-m":
        return of_tutorial(words[0], words[1:])
    module, rest = words[1], words[2:]
    if importlib.util.find_spec(module) is None:
        return f"python -m {module}: there is no such module"
    gone = [word for word in rest if "/" in word and not (ROOT / word).exists()]
    return f"python -m {module}: there is no {gone[0]}" if gone else ""


def of_git(words):
    if words[0] == "clone":
        return ""
    if words[0] == "mv":
        return "" if (ROOT / words[1]).exists() else f"git mv: there is no {words[1]}"
    return f"git {words[0]}: write a check of it in of_git"


def of_pip(words):
    known = help_of_pip(words[0])
    options = [word for word in words[1:] if word.startswith("-")]
    gone = [word for word in options if not re.search(rf"{re.escape(word)}\b", known)]
    if gone or not known:
        return f"pip {words[0]}: no option {gone}"
    extras = set(re.findall(r"^([\w-]+) =$", (ROOT / "setup.cfg").read_text(), re.M))
    asked = {name for word in words for found in re.findall(r"(?:minidl|\.)\[(.*)\]", word)
             for name in found.split(",")}
    return f"setup.cfg has no extra {sorted(asked - extras)}" if asked - extras else ""


@functools.cache
def help_of_pip(command):
    done = subprocess.run([sys.executable, "-m", "pip", command, "--help"], text=True,
                          capture_output=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def of_srun(words):
    """Checks the command that Slurm starts. This command comes after srun's options."""
    return of_minidl(words[words.index("minidl") + 1:]) if "minidl" in words else ""


def anything(words):
    """Checks nothing. The block has an entry in NOT_RUN, or the command belongs to the shell."""
    return ""


# {command: a function that returns what is wrong with the words after it}
COMMANDS = {"minidl": of_minidl, "make": of_make, "python": of_python, "git": of_git,
            "pip": of_pip, "srun": of_srun, "sbatch": anything, "module": anything,
            "jupyter": anything, "grep": anything, ".": anything, "cd": anything,
            "mkdir": anything, "cp": anything}
ALONE = {"srun", "sbatch", "module", "jupyter"}  # commands that NOT_RUN must name


# -- the tests


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if blocks_of(text)])
def test_every_block_of_a_page_is_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problems = problems_of(name, PAGES[name], tmp_path)
    assert not problems, "\n".join(problems)


def test_every_entry_of_the_tables_matches_a_block():
    for table in (ELSEWHERE, NOT_RUN, PRINTS):
        for key in table:
            page, words = key if isinstance(key, tuple) else (key, "")
            found = [block for block in blocks_of(PAGES[page]) if words in block.text]
            assert found if not words else len(found) == 1, (
                f"{key}: {len(found)} blocks of {page} have these words, wanted one: mend or "
                "delete the entry")
    for page in (*BEFORE, *RANKS):
        assert any(block.head == "python" for block in blocks_of(PAGES[page])), (
            f"{page} has no Python block: delete its entry in BEFORE or RANKS")


def test_a_test_that_runs_a_page_names_it():
    for key, test in ELSEWHERE.items():
        page = Path(key[0] if isinstance(key, tuple) else key)
        reads = (ROOT / test).read_text()
        if test == "tests/test_register.py":
            reads += (ROOT / "tests" / "register.py").read_text()
        assert page.name in reads or page.stem in reads or "way_to_*" in reads or (
            test == "tests/course/test_handout.py" and "run_autograder" in reads), (
            f"{test} does not name {page}: does it still run its blocks?")


def test_a_command_without_a_check_has_a_reason():
    for name, text in PAGES.items():
        for block in blocks_of(text):
            if kind(block) == "shell" and not entry(ELSEWHERE, name, block):
                used = {name_of(words[0]) for words in commands(block.text)} & ALONE
                assert not used or entry(NOT_RUN, name, block), (
                    f"{name}:{block.line}: {used} cannot run here: write why into NOT_RUN")


@pytest.mark.parametrize("name, asked", [
    *RUN.items(), *(pytest.param(*row, marks=whole_form) for row in RUN_LONG.items())])
def test_the_commands_of_a_page_run(name, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    shown = [[name_of(words[0]), *words[1:]] for block in blocks_of(PAGES[name])
             if kind(block) == "shell" for words in commands(block.text)]
    for command, wanted in asked.items():
        words = command.split()
        assert words in shown, f"{name} does not show `{command}`: delete it from the table"
        if words[:2] == ["python", "-m"]:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                run_page(words[2])
            status, told = 0, out.getvalue()
        else:
            status, told = called(words[1:])
        assert status == wanted and told, f"{name}: {command}: status {status}\n{told}"


@whole_form
def test_a_tutorial_with_slides_writes_the_files_that_the_page_names(tmp_path):
    (line,) = [line for line in block_of("docs/course/kit.md", "--slides").splitlines()
               if "--slides" in line]
    (words,) = commands(line)
    done = subprocess.run([sys.executable, ROOT / words[1], *words[2:]], cwd=tmp_path, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    for file in re.findall(r"07_ring-\d\.\w+", line):
        assert (tmp_path / "out" / "slides" / file).exists(), f"{words} did not write {file}"


# -- the tests above find wrong blocks


PLANTED = [  # page, right text, wrong text, words of the problem
    ("README.md", "minidl run -n 4 tut", "minidl run --rank 4 tut", "--rank"),
    ("README.md", "dy/da = b + 1: 4.0", "dy/da = b + 1: 5.0", "shows"),
    ("README.md", "optim.AdamW(", "optim.AdamX(", "AdamX"),
    ("README.md", "thread 1 of block 0 writes s[1]", "thread 2 of block 0 writes s[2]", "shows"),
    ("README.md", "waits for all ranks to begin", "waits for two ranks to begin", "'two'"),
    ("docs/tutorials.md", "minidl solution 07 ", "minidl answer 07 ", "answer"),
    ("docs/tutorials.md", "tutorials/07_ring.py", "tutorials/06_ring.py", "06_ring.py"),
    ("docs/changing.md", "make lint          #", "make lynt          #", "lynt"),
    ("docs/changing.md", "minidl/comm/chunks.py minidl", "minidl/comm/chonks.py minidl", "chonks"),
    ("docs/course/kit.md", "--sim 4 --slides", "--sim 4 --slide", "slide"),
    ("docs/install.md", "pip install --no-binary", "pip install --no-binaries", "binaries"),
    ("docs/install.md", ".[tutorials,snapshot]", ".[tutorial,snapshot]", "tutorial"),
    ("docs/install.md", "--mpiexec 'srun", "--mpirun 'srun", "mpirun"),
    ("docs/inference.md", "running statistic", "running statistic\n\n```\na new block\n```\n\n",
     "nothing runs this block"),
    ("docs/inference.md", "= gelu(%4, approx", "= gelu(%3, approx", "shows"),
    ("docs/large_batches.md", "local.finish()", "local.end()", "'end'"),
    ("docs/large_batches.md", "diloco.common_weights()", "diloco.weights()", "weights"),
]


@pytest.mark.parametrize("name, right, wrong, told", PLANTED, ids=[row[2][:20] for row in PLANTED])
def test_a_planted_mistake_is_named(name, right, wrong, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert right in PAGES[name], f"{name} has no {right!r}: plant another mistake"
    if "shows" in told and not dispatch.cpu_compiler():
        pytest.skip("no C++ compiler")
    problems = problems_of(name, PAGES[name].replace(right, wrong, 1), tmp_path)
    assert any(told in one for one in problems), problems


@pytest.mark.parametrize("head, right, wrong", [
    ("cuda", 'extern "C" __global__ void f(float* x) { x[0] = 1; }',
     'extern "C" __global__ void f(float* x) { y[0] = 1; }'),
    ("json", '{"a": 1}', '{"a": 1'), ("toml", "a = 1", "a = "), ("ini", "[a]\nb = 1", "b = 1"),
])
def test_kinds_of_blocks_that_no_page_has_yet(head, right, wrong, tmp_path):
    if head == "cuda" and not dispatch.cpu_compiler():
        pytest.skip("no C++ compiler")
    for text, n_wrong in (right, 0), (wrong, 1):
        page = f"# A page\n\n```{head}\n{text}\n```\n"
        assert len(problems_of("docs/a_page.md", page, tmp_path)) == n_wrong
