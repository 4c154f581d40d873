"""One planted bug: how it is written down, and how its place in the sources is found.

    Bug("what goes wrong, in a few words",
        "minidl/comm/ring.py", "scatter_chunks",   the file, and the function or class in it
        "t.rank - s", "t.rank + s",                a small text, and what it becomes
        "tests/comm/test_ring.py::test_sum")       the test that fails then

The text is found by its words and signs alone: white space, line breaks, comments at the end of
a line and a comma before a closing bracket may differ. So a function may be moved or formatted
again, and the entry stays as it is. The text must be found exactly once in its function.

A file may be renamed too. If the function is not in its file, it is looked for in all of minidl/
(or kernels/), and if its function is renamed, the text is looked for in its file. What is found
exactly once is taken. `make register` then writes the new names into the entry.
"""

import ast
import bisect
import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
WORDS = re.compile(r"\w+|[^\w\s]")
SIGNS = r"[-+*/%&|<>=!]"
# what may stand between two words: white space, the end of a line with its comment
BETWEEN = {".py": r"(?:\s|\\\n|#[^\n]*\n)", ".cu": r"(?:\s|\\\n|//[^\n]*\n)"}


class Gone(ValueError):
    """A planted bug cannot be planted; the message says what to write."""


@dataclass(frozen=True)
class Bug:
    """One planted bug: in `file`, inside of `where`, the text `text` becomes `becomes`.

    name: what goes wrong, in a few words. No two bugs have the same.
    where: a function, "Class.method", a class, a constant, a kernel; "" is the whole file.
    text: at most one line.
    test: the test that must fail then, as pytest names it: `file::function`, or a whole file. Of
    several, separated by spaces, one must fail.
    on_stand_in: the test is for a GPU and runs on the stand-in for CuPy (strict_cupy/)."""

    name: str
    file: str
    where: str
    text: str
    becomes: str
    test: str
    on_stand_in: bool = False

    @property
    def tests(self):
        return re.split(r" (?=tests/)", self.test)

    def planted(self, source):
        """Returns the text of the file with the bug. `file` and `where` must be right by now."""
        (begin, end), = places(source, self.file, self.where, self.text)
        return source[:begin] + self.becomes + source[end:]


# ---- where a text is

def pattern(text, suffix):
    """Returns a regular expression for `text` that ignores white space."""
    gap, words = BETWEEN[".py" if suffix == ".py" else ".cu"], WORDS.findall(text)
    made = ""
    for before, word in zip(["", *words], words):
        if made:
            made += gap + ("+" if is_word(before) and is_word(word) else "*")
        if word in ")]}" and before not in ("", "(", "[", "{", ","):
            made += f"(?:,{gap}*)?"
        made += re.escape(word)
    first, last = words[0], words[-1]
    begin = r"(?<!\w)" if is_word(first) else f"(?<!{SIGNS})" if re.match(SIGNS, first) else ""
    end = r"(?!\w)" if is_word(last) else f"(?!{SIGNS})" if re.match(SIGNS, last) else ""
    return re.compile(begin + made + end)


def is_word(text):
    return bool(re.match(r"\w", text))


def places(source, file, where, text):
    """Returns the (begin, end) of every place of `text` inside of `where`, in order."""
    wanted = pattern(text, Path(file).suffix)
    return sorted({match.span() for begin, end in spans(source, file, where)
                   for match in wanted.finditer(source, begin, end)})


def spans(source, file, where):
    """Returns the (begin, end) of every function, class or constant with this name."""
    if not where:
        return [(0, len(source))]
    if file.endswith(".py"):
        return [span for name, span in python_names(source)
                if name == where or name.endswith(f".{where}")]
    return c_spans(source, where)


@functools.cache
def python_names(source):
    """Returns (dotted name, (begin, end)) of every function, class and constant."""
    starts = [0, *(match.end() for match in re.finditer("\n", source)), len(source)]
    found = []

    def look(node, names, in_function):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                continue  # an expression contains no function and no class
            inside = names, in_function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = (*names, child.name), not isinstance(child, ast.ClassDef)
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.append((".".join(inside[0]), (starts[first - 1], starts[child.end_lineno])))
            elif isinstance(child, (ast.Assign, ast.AnnAssign)) and not in_function:
                span = starts[child.lineno - 1], starts[child.end_lineno]
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                found.extend((".".join((*names, name.id)), span) for target in targets
                             for name in ast.walk(target) if isinstance(name, ast.Name))
            look(child, *inside)

    look(ast.parse(source), (), False)
    return found


@functools.cache
def without_comments(source):
    """Returns C++ text of the same length, comments and strings as spaces."""
    hidden = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.){1,4}'", re.S)
    return hidden.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def c_spans(source, name):
    """Returns the (begin, end) of a function, kernel, struct or macro of C++."""
    code, found = without_comments(source), []
    for match in re.finditer(rf"\b{re.escape(name)}\b", code):
        begin = code.rfind("\n", 0, match.start()) + 1
        head = code[begin:match.start()]
        if re.fullmatch(r"\s*#\s*define\s+", head):
            end = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?").match(code, match.start()).end()
            found.append((begin, end))
            continue
        body = None
        if re.search(r"\b(?:struct|class|union|enum|namespace)\s+$", head):
            body = re.compile(r"[^;{()]*(?=\{)").match(code, match.end())
        elif arguments := re.compile(r"\s*(?=\()").match(code, match.end()):
            closed = closing(code, arguments.end())
            body = re.compile(r"\s*(?:const|noexcept|override)?\s*(?=\{)").match(code, closed)
        if body:
            found.append((head_of(code, begin), closing(code, body.end())))
    return found


def closing(code, begin):
    """Returns the place behind the bracket that closes the one at `begin`."""
    depth = 0
    for match in re.compile(r"[({})]").finditer(code, begin):
        depth += 1 if match[0] in "({" else -1
        if depth == 0:
            return match.end()
    return len(code)


def head_of(code, begin):
    """Returns where the lines begin that belong to a definition: `template <...>`, attributes."""
    while begin:
        before = code.rfind("\n", 0, begin - 1) + 1
        line = code[before:begin].strip()
        if not line or line[-1] in ";{}" or line[0] == "#":
            break
        begin = before
    return begin


# ---- an entry that names its place no longer

def listed_in(bug):
    """Returns the list that has this bug, for messages."""
    for file in list_files():
        if bug.name in file.read_text():
            return f"tests/planted/{file.name}"
    return "tests/planted/"


def list_files():
    return [file for file in sorted(FOLDER.glob("*.py")) if file.name != "bug.py"]


@functools.cache
def text_of(path):
    return path.read_text()


def sources(folder, suffix):
    """Returns every source file below folder that may have what a file with this suffix has."""
    kinds = {".py"} if suffix == ".py" else {".cu", ".cuh", ".h", ".cpp"}
    return [path for path in sorted(folder.rglob("*"))
            if path.suffix in kinds and "__pycache__" not in path.parts]


def located(bug, root=ROOT):
    """Returns the bug with the file and the function in which its text is now.

    Gone, with a message for the maintainer, if that is not exactly one place."""
    path = root / bug.file
    if path.is_file():
        source = text_of(path)
        known = spans(source, bug.file, bug.where)
        found = places(source, bug.file, bug.where, bug.text)
        if len(found) == 1:
            return bug
        if known:
            raise Gone(told(bug, len(found), lines_of(source, found)))
    elsewhere = []
    for other in sources(root / bug.file.split("/")[0], path.suffix):
        name = other.relative_to(root).as_posix()
        source = text_of(other)
        if bug.where.split(".")[-1] in source:
            elsewhere += [name] * len(places(source, name, bug.where, bug.text))
    elsewhere = likeliest(elsewhere, bug.file)
    if len(elsewhere) == 1:
        return replace(bug, file=elsewhere[0])
    if path.is_file() and not elsewhere:  # the function may have another name
        found = places(source := text_of(path), bug.file, "", bug.text)
        if len(found) == 1:
            return replace(bug, where=name_at(source, bug.file, found[0][0]))
    raise Gone(told(bug, len(elsewhere), [f"in {name}" for name in elsewhere]))


def likeliest(names, file):
    """Returns the files with the same last name, which moved to another folder; else all."""
    return [name for name in names if Path(name).name == Path(file).name] or names


def name_at(source, file, place):
    """Returns the name of the function around a place of a Python file; "" for C++."""
    around = [(end - begin, name) for name, (begin, end) in
              (python_names(source) if file.endswith(".py") else []) if begin <= place < end]
    return min(around, default=(0, ""))[1]


def lines_of(source, found):
    starts = [match.start() for match in re.finditer("\n", source)]
    return [f"line {bisect.bisect_left(starts, begin) + 1}" for begin, _ in found]


def told(bug, n, listed):
    """Returns what a maintainer reads when a text is gone or not alone."""
    where = f"{bug.where} of {bug.file}" if bug.where else bug.file
    head = f'{listed_in(bug)}, the planted bug "{bug.name}":\n  its text  {bug.text}\n'
    if n == 0:
        return (f"{head}  is no longer in {where}. Delete the entry if the mistake cannot be made "
                f"any more;\n  or give the new text of that line, and the function that has it.")
    return (f"{head}  is there {n} times: {', '.join(listed)}. Wanted is one place in {where}:\n"
            f"  give more of the line, or the names of the file and the function that have it now.")


def test_located(bug, root=ROOT):
    """Returns the bug with the files in which its tests are now; Gone if that is unknown."""
    return replace(bug, test=" ".join(_one_test(bug, test, root) for test in bug.tests))


test_located.__test__ = False  # for pytest it is none


def _one_test(bug, test, root):
    file, _, name = test.partition("::")
    function = name.split("[")[0].split("::")[-1]

    def has(path):
        return not function or re.search(rf"^ *def {function}\(", text_of(path), re.M)

    if (root / file).is_file() and has(root / file):
        return test
    others = likeliest([path.relative_to(root).as_posix()
                        for path in sorted((root / "tests").rglob("test_*.py"))
                        if has(path) and (function or path.name == Path(file).name)], file)
    if len(others) == 1:
        return test.replace(file, others[0], 1)
    raise Gone(f'{listed_in(bug)}, the planted bug "{bug.name}":\n  there is no test {test}'
               + (f" (found {len(others)} times elsewhere)" if others else "")
               + ".\n  Name the test that fails with this bug, or delete the entry.")
