'''Shows a tutorial or a kernel with its comments and docstrings in the reader's language.

    docs/zh/comments.po          each comment of a script, its lines joined, and its translation
    docs/zh/tutorials/07.txt     the docstring of a script, and the tasks of its exercises

The English script is the only source of the code. When a file is written for a reader, each comment
is looked up by its English words. `minidl exercise`, `notebook`, `handout` and the site write such
files. The site also shows the kernels that the docstring of a script names. If a comment has
changed since its translation, the comment is shown in English, and `make register` lists it. So a
translation that is older than the English comment is not shown.

Test: tests/course/test_comments.py
'''

import ast
import functools
import io
import re
import tokenize
from typing import NamedTuple

from minidl.course import language
from minidl.course.language import digest
from minidl.text import tr

MARK = re.compile(r"(\s*(?:#|//) >>> exercise \d\d[a-z]: )(.+)|\s*(?:#|//) <<<")


class Comment(NamedTuple):
    """A comment. It is in lines[first:last] of the file, and begins at `column`, counted from 0."""
    first: int
    last: int
    column: int
    mark: str  # "#", "//" or '"""'
    text: str  # the lines of the comment, without marks and indentation
    alone: bool = True  # True if there is no code before the comment


def comments(text):
    """Returns the comments and docstrings of a Python script, or the comments of a .cu file, in
    order.

    The marks of an exercise are left out. Comments on neighbouring lines, at the same column, are
    one comment."""
    lines, found, before = text.split("\n"), [], None
    is_python = not re.match(r"\s*(//|/\*|#include|#pragma|extern )", text)
    places = _in_python(text) if is_python else _in_cpp(lines, range(len(lines)))
    for row, column, mark in places:
        alone = not lines[row][:column].strip()
        words = lines[row][column + len(mark) + 1 :].rstrip()
        if MARK.match(lines[row]):
            before = None
        elif before and alone and before.alone and (before.last, before.column) == (row, column):
            found[-1] = before = before._replace(last=row + 1, text=f"{before.text}\n{words}")
        else:
            before = Comment(row, row + 1, column, mark, words, alone)
            found.append(before)
    found += _docstrings(text, lines) if is_python else []
    return sorted(c for c in found if c.text.strip())


def _in_python(text):
    """Returns [(row, column, mark)] of all comments in a Python script. mark: "#" or "//". If the
    code of a kernel is a string in the script, the comments of the kernel are included."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [(*t.start, "#") for t in tokens if t.type == tokenize.COMMENT]
    found = [(row - 1, column, mark) for row, column, mark in found]
    if "__global__" in text:
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and "__global__" in str(node.value):
                found += _in_cpp(lines, range(node.lineno - 1, node.end_lineno))
    return sorted(found)


def _in_cpp(lines, rows):
    """Returns [(row, column, mark)] of the comments in these rows. Every // begins a comment,
    because no kernel has // in a string."""
    return [(row, lines[row].index("//"), "//") for row in rows if "//" in lines[row]]


def _docstrings(text, lines):
    with_docstring = ast.Module, ast.FunctionDef, ast.ClassDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, with_docstring) and ast.get_docstring(node):
            at = node.body[0]
            words = "\n".join(lines[at.lineno - 1 : at.end_lineno])[at.col_offset :]
            if words[:3] == '"""':
                yield Comment(at.lineno - 1, at.end_lineno, at.col_offset, '"""', words[3:-3])


def kernels_named(text):
    """Returns the paths of the .cu files of kernels/ that the docstring of a script names. Readers
    will also open these files."""
    named = dict.fromkeys(re.findall(r"\b\w+\.cu\b", ast.get_docstring(ast.parse(text)) or ""))
    return [path for name in named if (path := language.ROOT / "kernels" / name).exists()]


def known(kind):
    """Returns {hash of the English text: its translation}. It has all comments, the docstrings of
    the tutorials, and the tasks of the exercises. kind: the language, such as "zh"."""
    return _known(kind, language.folder(kind))


@functools.cache
def _known(kind, folder):
    found = {digest(english): other for english, other in language.table(kind, "comments").items()}
    for path in (folder / "tutorials").glob("*.txt"):
        found |= {of: text for of, text in language.texts(path.stem, kind).values()}
    return found


def in_language(text):
    """Returns the text of a script or a kernel in the reader's language. Parts without a
    translation stay English."""
    if language.language() == "en":
        return text
    others, lines = known(language.language()), text.split("\n")
    for comment in reversed(comments(text)):
        if other := others.get(digest(comment.text)):
            start = lines[comment.first][: comment.column]
            lines[comment.first : comment.last] = _written(comment, start, other.split("\n"))
    for i, line in enumerate(lines):
        if (mark := MARK.match(line)) and mark[1]:
            lines[i] = mark[1] + tr(mark[2])
        elif missing := re.search(r'"(exercise \d\d[a-z] \(.*\) is not written yet)"', line):
            lines[i] = line.replace(missing[1], tr(missing[1]))
    return "\n".join(lines)


def _written(comment, start, words):
    """Returns the lines of a comment in another language. start: the code before the comment.
    words: the lines of the translation, without marks."""
    space, mark = " " * comment.column, comment.mark
    if mark != '"""':
        return [f"{space if i else start}{mark} {line}".rstrip() for i, line in enumerate(words)]
    words = [f"{space if i else start + mark}{line}".rstrip() for i, line in enumerate(words)]
    alone = comment.text.endswith("\n")
    return [*words, space + mark] if alone else [*words[:-1], words[-1] + mark]
