"""`make register`: writes the repository's tables and lists of files from the present files.

    make register                        after a file was added, renamed or deleted
    make register ARGS="--since main"    after files were renamed on a whole branch
    make register ARGS=--list            writes nothing; prints what it would write, what is left
    make register ARGS="--translated docs/zh/install.md"    marks a Chinese page as up to date
    make register ARGS=--demo            writes the table of the last `make demo` into README.md

A step is a function of a Tree, which holds the texts of the checkout. It changes texts and yields a
line for each change. A second run changes nothing. tests/test_register.py checks this for each
step, and checks that a run would change nothing in this checkout. At the end, the program prints
what only a person can do.

Test: tests/test_register.py
"""

import argparse
import ast
import difflib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "minidl", "kernels", "tests", "tutorials", "benchmarks", "docs"
AT_THE_TOP = "README.md", "README.zh.md", "Makefile", "setup.cfg", "pyproject.toml", ".ci/run"
TEXTS = {".py", ".md", ".cu", ".cuh", ".h", ".cpp", ".txt", ".po", ".json"}
# Folders whose __init__.py describes its files in another form.
LISTED_OTHERWISE = {"minidl", "minidl/cli", "minidl/ops", "minidl/infer"}
MAP, COLUMNS = "docs/map.md", 100


class Tree:
    """The texts of a checkout, by path. Only `save` writes to the disk.

    renamed: {old path: new path}. deleted: paths of deleted files."""

    def __init__(self, root=ROOT, renamed=(), deleted=()):
        self.root, self.renamed, self.deleted = Path(root), dict(renamed), set(deleted)
        self.written = {}
        files = [f for folder in FOLDERS for f in (self.root / folder).rglob("*")
                 if f.suffix in TEXTS and "results" not in f.parts]
        files += [self.root / name for name in AT_THE_TOP]
        self.files = sorted(f.relative_to(self.root).as_posix() for f in files if f.is_file())

    def before(self, name):
        return (self.root / name).read_text(encoding="utf-8")

    def read(self, name):
        return self.written[name] if name in self.written else self.before(name)

    def write(self, name, text):
        """Sets a file's text. Returns True if the text has changed."""
        changed = text != self.read(name)
        self.written[name] = text
        return changed

    def changed(self):
        return {name: text for name, text in self.written.items() if text != self.before(name)}

    def save(self):
        for name, text in self.changed().items():
            (self.root / name).write_text(text, encoding="utf-8")

    def diff(self):
        """Returns a text with the changes that `save` would write."""
        return "".join(line for name, text in sorted(self.changed().items())
                       for line in difflib.unified_diff(
                           self.before(name).splitlines(True), text.splitlines(True), name, name,
                           n=0))

    def modules(self, folder):
        """Returns the Python files in a folder, without __init__.py and __main__.py."""
        return [f for f in self.files if f.endswith(".py") and parent(f) == folder
                and not stem(f).startswith("__")]

    def folders(self):
        """Returns the folders of minidl/ that have Python files."""
        return sorted({parent(f) for f in self.files if f.startswith("minidl/")
                       and f.endswith(".py")})


def parent(name):
    return name.rpartition("/")[0] or "."


def stem(name):
    return PurePosixPath(name).stem


def docstring(text):
    try:
        return ast.get_docstring(ast.parse(text)) or ""
    except SyntaxError:
        return ""


def first_sentence(text):
    """Returns the first sentence of a module's docstring, in one line without its full stop, or
    ""."""
    words = re.split(r"\.(?=\s|$)|\n\n", docstring(text))[0]
    return " ".join(words.split()).rstrip(":").replace("|", "/")


def git(root, *arguments, **env):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True,
                          env=os.environ | env)
    return done.stdout if done.returncode == 0 else ""


def moves(root, base="HEAD"):
    """Returns ({old path: new path}, {deleted paths}) between a commit and the present files,
    staged or not. git compares with a copy of its index, to which all files are added."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        if not (real := git(root, "rev-parse", "--git-path", "index").strip()):
            return {}, set()
        shutil.copy(Path(root) / real, index)
        git(root, "add", "--all", GIT_INDEX_FILE=str(index))
        words = git(root, "diff", "--cached", "--find-renames", "--name-status", "-z",
                    "--diff-filter=RD", base, GIT_INDEX_FILE=str(index)).split("\0")
    renamed, deleted = {}, set()
    while len(words) > 1:
        kind = words.pop(0)
        if kind[0] == "R":
            old, new = words.pop(0), words.pop(0)
            renamed[old] = new
        else:
            deleted.add(words.pop(0))
    return renamed, deleted


# -- files that were renamed


def mentions(tree):
    """Writes a renamed file's new name wherever it is mentioned. Leaves imports, because they
    change the program."""
    for old, new in [*tree.renamed.items(), *moved_folders(tree)]:
        names = [*tree.files, old]
        is_unique = sum(PurePosixPath(f).name == PurePosixPath(old).name for f in names) == 1
        for name in (f for f in tree.files if f != "tests/test_register.py"):  # has its own tree
            here = parent(name) in (parent(old), parent(new))
            text = tree.read(name)
            if name == f"{parent(old)}/__init__.py":
                text = in_list(text, old, new)
            keep = import_lines(text) if name.endswith(".py") else set()
            lines = text.split("\n")
            for i, line in enumerate(lines):
                if i not in keep and not line.startswith("git mv "):  # `git mv` is an example
                    lines[i] = renamed_in(line, old, new, bare=is_unique or here)
            if tree.write(name, "\n".join(lines)):
                yield f"{name}: {old} is {new}"


def moved_folders(tree):
    """Returns [(old, new)] of folders that are empty now and whose files all moved to one new
    folder."""
    gone = {parent(old) for old in tree.renamed} - {parent(f) for f in tree.files}
    for folder in sorted(gone, key=len, reverse=True):
        to = {parent(new) for old, new in tree.renamed.items() if parent(old) == folder}
        if len(to) == 1:
            yield folder, *to


def renamed_in(line, old, new, bare):
    """Returns the line with the new name of a file or folder: its path, a part of the path, the
    module. If bare is True, also replaces the name alone, without its folder."""
    suffix = PurePosixPath(old).suffix
    pairs = [word(old, new)]
    if suffix in ("", ".py"):
        pairs.append(word(*(name.removesuffix(".py").replace("/", ".") for name in (old, new)),
                          before=r"[\w.]"))
    short_old, short_new = (re.sub(r"^\w+/", "", name) for name in (old, new))
    if suffix and "/" in short_old:  # comm/old.py, comm/old
        pairs.append(word(short_old, short_new, before=r"[\w/]"))
        pairs.append(word(*(name.rpartition(".")[0] for name in (short_old, short_new)),
                          before=r"[\w/]", after=r"[\w/-]|\.\w"))
    name_old, name_new = PurePosixPath(old).name, PurePosixPath(new).name
    if suffix and name_old != name_new:
        if bare:
            pairs.append(word(name_old, name_new, before=r"[\w/.-]"))
        # replaces the words of a link to the new file: [old](../minidl/new.py)
        pairs.append((rf"\[((?:\w+/)*){re.escape(stem(old))}({re.escape(suffix)})?\]"
                      rf"(?=\((?:[^)]*/)?{re.escape(name_new)}\))",
                      lambda found: f"[{found[1]}{stem(new)}{found[2] or ''}]"))
    for pattern, other in pairs:
        line = re.sub(pattern, other, line)
    return line


def word(old, new, before=r"\w", after=r"\w"):
    """Returns (pattern, replacement) for `old` if no `before` or `after` character touches it. The
    pattern does not match inside `new` if `new` begins with `old`."""
    rest = rf"|{re.escape(new[len(old):])}(?!\w)" if new.startswith(old) else ""
    return rf"(?<!{before}){re.escape(old)}(?!{after}{rest})", new


def import_lines(text):
    """Returns the numbers, from 0, of the lines with an import."""
    try:
        found = [node for node in ast.walk(ast.parse(text))
                 if isinstance(node, (ast.Import, ast.ImportFrom))]
    except SyntaxError:
        return {i for i, line in enumerate(text.split("\n")) if re.match(r" *(import|from) ", line)}
    return {i for node in found for i in range(node.lineno - 1, node.end_lineno)}


# -- docs/map.md


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def a_row(cells):
    return re.sub(r"  +", " ", f"| {' | '.join(cells)} |")


class Map:
    """docs/map.md as sections: [heading, its lines], the first one without a heading."""

    HEAD = ["", "| concept | file | kernel | test | tutorial | paper | plain |", "|---" * 7 + "|"]

    def __init__(self, text):
        parts = re.split(r"^(?=## )", text, flags=re.M)
        self.sections = [part.rstrip("\n").split("\n") for part in parts]

    def text(self):
        return "\n\n".join("\n".join(lines) for lines in self.sections) + "\n"

    def section(self, folder):
        return next((lines for lines in self.sections if lines[0].endswith(f"(`{folder}/`)")), None)

    def folder_of(self, lines):
        found = re.fullmatch(r"## .*\(`([\w/]+)/`\)", lines[0])
        return found and found[1]

    def rows(self, lines):
        """Returns the line numbers of a section's rows, without the head of the table."""
        table = [i for i, line in enumerate(lines) if line.startswith("|")]
        return table[2:]

    def add(self, folder, title, row):
        """Adds a row to the end of a folder's section. Returns True if it made a new section."""
        lines = self.section(folder)
        is_new = lines is None
        if is_new:
            lines = [f"## {title} (`{folder}/`)", *self.HEAD]
            part = "/".join(folder.split("/")[:2])
            near = [i for i, other in enumerate(self.sections)
                    if (self.folder_of(other) or "").startswith(part)]
            self.sections.insert(max(near, default=len(self.sections) - 1) + 1, lines)
        last = max(i for i, line in enumerate(lines) if line.startswith("|"))
        lines.insert(last + 1, row)
        return is_new


def rows_of_the_map(tree):
    """Gives each file of minidl/ a row in its folder's section. Removes rows of missing files."""
    if MAP not in tree.files:
        return
    page, said = Map(tree.read(MAP)), []
    title_of = {folder: first_sentence(tree.read(f"{folder}/__init__.py"))
                for folder in tree.folders() if f"{folder}/__init__.py" in tree.files}
    moved = []
    for lines in page.sections:
        folder = page.folder_of(lines)
        for i in reversed(page.rows(lines) if folder else []):
            row = without_what_is_gone(tree, lines[i])
            if row != lines[i]:
                said.append(f"{MAP}: '{cells_of(lines[i])[0]}' had files that are gone")
            files = re.findall(r"\]\(\.\./(minidl/[^)]+)\)", cells_of(row)[1]) if row else []
            if row is None or (files and parent(files[0]) != folder):
                moved += [(parent(files[0]), row)] if row else []
                del lines[i]
            else:
                lines[i] = row
    for folder, row in reversed(moved):
        page.add(folder, title_of.get(folder, folder), row)
        said.append(f"{MAP}: the row '{cells_of(row)[0]}' is in the section {folder} now")
    known = set(re.findall(r"\]\(\.\./(minidl/[^)#]+\.py)\)", page.text()))
    for name in (f for folder in tree.folders() for f in tree.modules(folder)):
        folder = parent(name)
        if name not in known and folder != "minidl/plain":  # a page is in the row of its real file
            if page.add(folder, title_of.get(folder, folder), new_row(tree, name)):
                said.append(f"{MAP}: a new section, {folder}; is it where the import rule "
                            "has it?")
            said.append(f"{MAP}: a row for {name}; does it have a kernel, a tutorial, a paper?")
    page.sections = [lines for lines in page.sections
                     if page.folder_of(lines) is None or page.rows(lines)]
    tree.write(MAP, page.text())
    yield from said


def without_what_is_gone(tree, row):
    """Returns the row without links to missing files, or None if no other file is left in the
    row."""
    cells = cells_of(row)
    here = [re.findall(r"\[[^]]*\]\([^)]+\)", cell) for cell in cells]
    for i, links in enumerate(here[1:4], 1):
        there = [link for link in links
                 if (tree.root / "docs" / re.search(r"\(([^)#]+)", link)[1]).exists()]
        if there != links:
            cells[i] = ", ".join(there)
            if i == 1 and not there:
                return None
    return a_row(cells) if cells != cells_of(row) else row


def new_row(tree, name):
    inside = name.removeprefix("minidl/")
    test = f"tests/{parent(inside)}/test_{stem(name)}.py".replace("/./", "/")
    if test not in tree.files:
        others = [f for f in tree.files if f.startswith("tests/")
                  and PurePosixPath(f).name == f"test_{stem(name)}.py"]
        test = others[0] if len(others) == 1 else None
    return a_row([first_sentence(tree.read(name)) or stem(name),
                  f"[{PurePosixPath(name).name}](../{name})", "",
                  f"[{stem(test)}](../{test})" if test else "", "", "", ""])


# -- the lists of files in minidl/**/__init__.py

ENTRY = re.compile(r"( *)(\w+)(\.py)?( +)(\S.*)")


def in_list(text, old, new):
    """Returns the text of __init__.py with a file's new name. The file's description keeps its
    column."""
    if parent(old) != parent(new):
        return text
    head, quotes, rest = text.partition('"""')
    told, end, code = rest.partition('"""')
    lines = [with_name(line, stem(old), stem(new)) for line in told.split("\n")]
    return head + quotes + "\n".join(lines) + end + code


def is_names(cell):
    """Returns True if a cell of a list has only names of files: `sgd, adam`, `ring.py`."""
    return re.fullmatch(r"(\w+(\.py)?(, )?)+", cell)


def with_name(line, old, new):
    """Returns a line of a list with a file's new name. If new is "", removes the name from a cell
    that has other files, too."""
    if (found := ENTRY.fullmatch(line)) and found[2] == old and new:
        space = " " * max(1, len(found[4]) + len(old) - len(new))
        return f"{found[1]}{new}{found[3] or ''}{space}{found[5]}"
    parts = re.split(r"( {2,})", line)  # cells at even places, spaces at odd ones
    for i in range(0, len(parts), 2):
        if is_names(parts[i]) and re.search(rf"\b{old}\b", parts[i]) and (new or "," in parts[i]):
            pattern = rf"\b{old}\b" if new else rf"\b{old}(\.py)?, |, {old}(\.py)?\b"
            cell = re.sub(pattern, new, parts[i])
            if i + 1 < len(parts):
                parts[i + 1] = " " * max(2, len(parts[i + 1]) + len(parts[i]) - len(cell))
            parts[i] = cell
    return "".join(parts)


def lists_of_files(tree):
    """Makes the list at the top of a folder's __init__.py have exactly the folder's files."""
    gone = tree.deleted | {old for old, new in tree.renamed.items() if parent(old) != parent(new)}
    for folder in tree.folders():
        name = f"{folder}/__init__.py"
        if folder in LISTED_OTHERWISE or name not in tree.files:
            continue
        head, quotes, rest = tree.read(name).partition('"""')
        told, end, code = rest.partition('"""')
        stems = [stem(f) for f in tree.modules(folder)]
        lines = told.split("\n")
        for file in gone:
            if parent(file) == folder and stem(file) not in stems:
                lines = [with_name(line, stem(file), "") for line in lines]
                lines = without_entry(lines, stem(file), stems)
        for file in tree.modules(folder):
            if not re.search(rf"\b{stem(file)}\b", "\n".join(lines)):
                lines = with_entry(lines, stems, stem(file), first_sentence(tree.read(file)))
        if tree.write(name, head + quotes + "\n".join(lines) + end + code):
            yield f"{name}: its list of files is the folder's"


def is_entry(line, stems):
    found = ENTRY.fullmatch(line)
    return found if found and found[2] in stems and (found[3] or len(found[4]) > 1) else None


def with_entry(lines, stems, name, sentence):
    """Returns the lines with a new line for the file `name`, after the last line of the list and in
    the form of the list. If there is no list, returns the lines unchanged, and `left` reports the
    file."""
    entries = [i for i, line in enumerate(lines) if is_entry(line, stems)]
    if not entries:
        return lines
    found = is_entry(lines[entries[-1]], stems)
    column = found.start(5)
    start = f"{found[1]}{name}{'.py ' if found[3] else '  '}".ljust(column)
    new = textwrap.wrap(start + sentence, COLUMNS, subsequent_indent=" " * column)
    at = entries[-1] + 1
    while at < len(lines) and re.match(rf" {{{len(found[1]) + 4}}}", lines[at]):
        at += 1  # a continuation of the entry before
    return [*lines[:at], *new, *lines[at:]]


def without_entry(lines, name, stems):
    """Returns the lines without a file's line and its continuations. A line that has other files in
    further columns stays, and `left` reports it."""
    kept, dropped = [], None
    for line in lines:
        found = ENTRY.fullmatch(line)
        if found and found[2] == name and not set(re.split(" {2,}", found[5])) & set(stems):
            dropped = len(found[1])
        elif dropped is None or not re.match(rf" {{{dropped + 4}}}", line):
            dropped = None
            kept.append(line)
    return kept


# -- the folders


def folders_of_the_map(tree):
    """Updates the map's table of folders: adds rows of new folders, and removes the rows of missing
    folders."""
    if MAP not in tree.files:
        return
    pattern = r"^(\| `([\w/]+)/` \| .*\n)"
    text = re.sub(pattern, lambda row: row[1] if row[2] in tree.folders() else "",
                  tree.read(MAP), flags=re.M)
    for folder in tree.folders():
        rows = re.findall(pattern, text, re.M)
        if rows and folder not in [name for _, name in rows]:
            above = [row for row in rows if row[1] < folder] or rows[:1]
            line, _ = max(above, key=lambda row: len(os.path.commonprefix([row[1], folder])))
            init = f"{folder}/__init__.py"
            sentence = first_sentence(tree.read(init)) if init in tree.files else folder
            text = text.replace(line, f"{line}| `{folder}/` | {sentence}. |\n", 1)
    if tree.write(MAP, text):
        yield f"{MAP}: the table of the folders"


# -- tables that come from other files

DEMO = "docs/train_gpt.json"  # the table of a run of `make demo`, saved by course/table.py
SHOWN = "bytes sent in a step, by this rank", "bytes of state held by this rank"


def take_over_the_demo():
    """Copies the table of the last `make demo` into DEMO, without the speed, which varies."""
    from minidl.course import table

    rows = table.load(ROOT / "out" / "train_gpt.json")
    table.save([row for row in rows if "per second" not in row.quantity], ROOT / DEMO)


def demo_table(tree):
    """Writes the table of `make demo` into the pages that show it: all rows, or the two rows of
    bytes."""
    if DEMO not in tree.files:
        return
    from minidl.course import language, table

    rows = table.load(tree.root / DEMO)
    few = [row for row in rows if row.quantity in SHOWN]
    for page, kind, shown in (("docs/three_examples.md", "en", rows), ("README.md", "en", few),
                              ("README.zh.md", "zh", few)):
        if page in tree.files:
            with language.spoken(kind):
                lines = table.render(shown).splitlines()
            lines = lines if shown is rows else [lines[0], *lines[2:]]
            text, pattern = tree.read(page), r"^( *)(?:quantity|量) .*\n(?: *\S.*(?: \| |-\+-).*\n)+"
            if old := re.search(pattern, text, re.M):
                new = "".join(f"{old[1]}{line}\n" for line in lines)
                text = text[:old.start()] + new + text[old.end():]
            if tree.write(page, text):
                yield f"{page}: the table of {DEMO}"


WORDS = {"## Each yes, and the test that holds it": "yes",
         "## Each no, and what the error says": "no", "## What there is not": "-"}


def rows_after(page, heading):
    """Returns the cells of each row of the first table after a heading, with its two first
    lines."""
    lines = itertools.dropwhile(lambda line: not line.startswith("|"),
                                page.split(f"{heading}\n", 1)[1].splitlines())
    return [cells_of_a_grid(line) for line in itertools.takewhile(
        lambda line: line.startswith("|"), lines)]


def cells_of_a_grid(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def pairs(text):
    """Yields the pairs of a cell such as `DP x TP, SP; Rec x PP`."""
    for product in text.split("; "):
        for pair in itertools.product(*(side.split(", ") for side in product.split(" x "))):
            yield frozenset(pair)


def together(tree):
    """Writes the table of docs/together.md from the lists below it."""
    if (name := "docs/together.md") not in tree.files:
        return
    page = tree.read(name)
    of = {pair: word for heading, word in WORDS.items() for row in rows_after(page, heading)[2:]
          for pair in pairs(row[0])}
    names = [row[0] for row in rows_after(page, "# Which technique goes with which")[2:]]
    lines = [f"| | {' | '.join(names[:-1])} |", "|---" * len(names) + "|"]
    for i, short in enumerate(names[1:], 1):
        cells = [of.get(frozenset((short, other)), "?") if j < i else ""
                 for j, other in enumerate(names[:-1])]
        lines.append(f"| {short} | {' | '.join(cells)} |")
    text = re.sub(r"(?<=^## The table\n\n)(?:\|.*\n)+", "\n".join(lines) + "\n", page, flags=re.M)
    if tree.write(name, text):
        yield f"{name}: the table, from the lists below it"


def figures(tree):
    """Writes the table of docs/figures.md from the newest file of benchmarks/results. If there are
    results of a GPU, the tables of the GPU follow."""
    if (name := "docs/figures.md") not in tree.files:
        return
    sys.path.insert(0, str(tree.root / "benchmarks"))  # so that it can import common.py
    try:
        import run_all
    finally:
        sys.path.pop(0)
    page = run_all.with_table(tree.read(name), run_all.newest(), run_all.newest_gpu_day())
    if tree.write(name, page):
        yield f"{name}: the table of the newest results"


# -- the book

BOOK_PAGE = "docs/book.md"


def book(tree):
    """Writes docs/book.md: each page of minidl/plain with its real file, in the order of the
    contents."""
    if BOOK_PAGE not in tree.files:
        return
    head, tail = tree.read(BOOK_PAGE).split("\n## ", 1)[0], []
    for section, pages in book_of(tree).contents(tree.root):
        tail += [f"\n## {section}\n", "| page | what it is | the real one | what it adds |",
                 "|---|---|---|---|"]
        for name, sentence in pages:
            here = book_of(tree).page(name, tree.root)
            files = ", ".join(f"[{file.removeprefix('minidl/')}](../{file})" for file in here.real)
            adds = here.adds.rstrip(".").replace("|", "\\|")
            tail.append(f"| [{name}](../minidl/plain/{name}.py) | {sentence} | {files} | {adds} |")
    if tree.write(BOOK_PAGE, "\n".join([head.rstrip("\n"), *tail]) + "\n"):
        yield f"{BOOK_PAGE}: the pages of minidl/plain"


def book_of(tree):
    if str(ROOT) not in sys.path:  # so that minidl can be imported
        sys.path.insert(0, str(ROOT))
    from minidl.course import book

    return book


def plain_in_the_map(tree):
    """Writes the last cell of each row of the map: the pages of the book whose real file is in the
    row. If a row has no page, a person writes the reason there."""
    if MAP not in tree.files or BOOK_PAGE not in tree.files:
        return
    pages_of = {}
    for _, pages in book_of(tree).contents(tree.root):
        for name, _ in pages:
            for file in book_of(tree).page(name, tree.root).real:
                pages_of.setdefault(file, []).append(name)
    page = Map(tree.read(MAP))
    for lines in page.sections:
        for i in page.rows(lines) if page.folder_of(lines) else ():
            cells = cells_of(lines[i])
            files = re.findall(r"\]\(\.\./(minidl/[^)]+)\)", cells[1])
            names = dict.fromkeys(name for file in files for name in pages_of.get(file, ()))
            links = ", ".join(f"[{name}](../minidl/plain/{name}.py)" for name in names)
            if links or "](" in cells[-1]:
                lines[i] = a_row([*cells[:-1], links])
    if tree.write(MAP, page.text()):
        yield f"{MAP}: the pages of the book"


# -- Chinese: a step changes an English text and its Chinese together


def stamps(tree):
    """Writes the new digest of the English text into each Chinese text that was up to date before
    the steps. A text that was out of date stays so."""
    from tests.course import behind

    new = {}  # digest before: digest now
    for name in {*tree.changed(), *tree.renamed.values()} & set(tree.files):
        for old, now in zip(behind.english(name, tree.before(name)),
                            behind.english(name, tree.read(name)), strict=True):
            new[behind.digest(old)] = behind.digest(now)
    for name in tree.files:
        if name.startswith("docs/zh/") or name == "README.zh.md":
            text = re.sub(r"^(<!-- \S+ of |=== \w+ of )([0-9a-f]{12})",
                          lambda found: found[1] + new.get(found[2], found[2]),
                          tree.read(name), flags=re.M)
            if tree.write(name, text):
                yield f"{name}: the digest of its English"


STEPS = (mentions, rows_of_the_map, plain_in_the_map, lists_of_files, folders_of_the_map,
         demo_table, together, figures, book, stamps)


def run_steps(tree, steps=STEPS):
    """Runs the steps. Returns their lines about changes."""
    return [line for step in steps for line in step(tree)]


def stubs(*arguments):
    """Lets tests/stubs.py write the stubs for editors, in a process that has imported nothing else.
    Returns what it changed."""
    done = subprocess.run([sys.executable, "tests/stubs.py", *arguments], cwd=ROOT,
                          capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()


def planted_bugs():
    """Lets tests/mutations.py write the lists of planted bugs and docs/planted_bugs.md from the
    files on the disk. Returns what it changed in the lists."""
    from tests import mutations

    changes = mutations.repair_paths()
    mutations.write_table()
    return changes


# -- what a person must do


def left(tree):
    """Yields lines: the file to edit and what it lacks."""
    for old, new in tree.renamed.items():
        if old.endswith(".py"):
            module = old[:-3].replace("/", ".")
            for name in (f for f in tree.files if f.endswith(".py")):
                if imports(tree.read(name), module):
                    yield f"{name}: imports {module}, which is {new} now"
            for name in tree.files:
                for i, line in enumerate(tree.read(name).split("\n"), 1):
                    if re.search(rf"`{stem(old)}\.(?!py\b)\w", line):
                        yield f"{name}:{i}: a name in `{stem(old)}.`, which is {new} now"
    for old in (file for file in tree.deleted if file.endswith(".py")):
        module = old[:-3].replace("/", ".")
        named = re.compile(rf"\b(?:{re.escape(module)}\b|{re.escape(old)})")
        for name in (f for f in tree.files if "planted" not in f):  # lost_bugs() reports these
            if name.endswith(".py") and imports(tree.read(name), module):
                yield f"{name}: imports {module}, which is gone"
            elif named.search(tree.read(name)):
                yield f"{name}: names {old}, which is gone"
    for folder in tree.folders():
        name = f"{folder}/__init__.py"
        if name not in tree.files:
            yield f"{name}: there is none; its docstring says what the folder is for"
        elif folder not in LISTED_OTHERWISE:
            told = docstring(tree.read(name))
            for file in tree.modules(folder):
                if not re.search(rf"\b{stem(file)}\b", told):
                    yield f"{name}: no list of files that {stem(file)} could be put into"
            for file in tree.deleted:
                cells = [cell for line in told.split("\n") for cell in re.split(" {2,}", line)]
                if parent(file) == folder and stem(file) in cells:
                    yield f"{name}: its list still has {stem(file)}"
    for line in tree.read(MAP).split("\n") if MAP in tree.files else ():
        if line.startswith("| ") and "](../minidl/" in line and not cells_of(line)[-1]:
            yield (f"{MAP}: '{cells_of(line)[0]}' has no page in minidl/plain: write in the last "
                   "cell why there is none")
    for name in (f for folder in tree.folders() for f in tree.modules(folder)):
        if not first_sentence(tree.read(name)):
            yield f"{name}: no docstring; its first sentence is its row of {MAP}"


def lost_bugs():
    """Returns messages about planted bugs whose text or test is missing."""
    from tests import mutations

    return mutations.lost()


def imports(text, module):
    package, _, name = module.rpartition(".")
    of = re.escape(module)
    return re.search(rf"^\s*(?:from {of} import|import {of}\b|from {re.escape(package)} import "
                     rf"(?:[^\n(]*|\([^)]*)\b{name}\b)", text, re.M)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD", metavar="BASE", help="renames since this commit")
    parser.add_argument("--list", action="store_true", help="write nothing")
    parser.add_argument("--translated", nargs="+", default=[], metavar="FILE",
                        help="Chinese texts that are up to date now")
    parser.add_argument("--demo", action="store_true", help="take over out/train_gpt.json")
    args = parser.parse_args(arguments)
    tree = Tree(ROOT, *moves(ROOT, args.since))
    try:
        from tests.course import behind
    except ImportError as error:
        print(f"minidl cannot be imported: {error}. Edit the imports, then run this again:",
              *left(tree), sep="\n")
        return 1
    if args.demo:
        take_over_the_demo()
    for name in args.translated:
        print(behind.stamp(name))
    for line in run_steps(tree):
        print(f"would change {line}" if args.list else line)
    if args.list:
        for line in stubs("--list"):
            print(f"would change {line}")
    else:
        tree.save()
        for line in [*planted_bugs(), *stubs()]:
            print(line)
    chinese = [f"{file}: {what}" for file, what in behind.behind()]
    if chinese:
        print("\nChinese that is missing or old; it may follow later, and no test fails:", *chinese,
              sep="\n")
    rest = [*left(tree), *lost_bugs()]
    print("\n".join(["\nleft for a hand:", *rest] if rest else ["\nnothing is left for a hand"]))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
