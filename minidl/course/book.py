"""Reads the pages of minidl/plain for documents: the text of each page, and its real files.

A page shows a technique in a few lines of plain code. Its real files are the files of minidl that
do the same, with all options.

    docs/book.md      the contents with the real files, written by `make register`
    the site          a document for each page, with the code of the page and of its real files,
                      written by `make docs`

The text of a page is read from its file. The page is never imported.

Test: tests/course/test_book.py
"""

import ast
import re
from collections import namedtuple

from minidl.checkout import PACKAGE

ROOT = PACKAGE.parent  # the pages are part of the package
BOOK = "minidl/plain"
REAL = re.compile(r"The real one, (minidl/[\w/.]+\.py(?: and minidl/[\w/.]+\.py)?), adds: (.+)")
# The parts of a Page:
# name: the name of the file, without .py    title: the first sentence of the docstring
# real: the paths of the real files    adds: what the real files add, as one text
# story: the docstring without title, real and adds    code: the file without its docstring
Page = namedtuple("Page", "name title story real adds code")


def contents(root=ROOT):
    """Returns the contents of the book, from minidl/plain/__init__.py: a list of (section, pages).
    `pages` is a list of (name of the page, line about the page)."""
    told = ast.get_docstring(ast.parse((root / BOOK / "__init__.py").read_text("utf-8")),
                             clean=False)
    sections = []
    for block in told.split("\n\n"):
        if block.startswith("    ") and sections:
            for name, line in re.findall(r"^    ([a-z_]\w*)  +(\S.*)$", block, re.MULTILINE):
                sections[-1][1].append((name, line))
        else:
            sections.append((re.match(r"[^.:]*", block)[0], []))
    return [(section, pages) for section, pages in sections if pages]


def page(name, root=ROOT):
    return page_of(name, (root / BOOK / f"{name}.py").read_text("utf-8"))


def page_of(name, text):
    """Returns the Page in the text of a file. Raises ValueError if the docstring does not tell what
    the real file adds."""
    tree = ast.parse(text)
    told = ast.get_docstring(tree)
    before, *rest = re.split(r"(?=The\s+real\s+one,)", told, maxsplit=1)
    found = REAL.match(" ".join("".join(rest).split()))
    if not found:
        raise ValueError(f'{BOOK}/{name}.py: want a docstring that ends with "The real one, FILE, '
                         'adds: ...", where FILE begins with minidl/')
    title, _, story = before.partition("\n\n")
    code = "\n".join(text.split("\n")[tree.body[0].end_lineno:]).strip("\n")
    return Page(name, " ".join(title.split()).rstrip("."), story.strip("\n"),
                re.findall(r"minidl/[\w/.]+\.py", found[1]), found[2], code)


def same_names(here, root=ROOT):
    """Returns [(real file, source)] for the Page `here`. `source` is code from the real file: the
    functions and classes whose names are also on the page. If there are no such names, `source` is
    an outline of all functions and classes in the real file."""
    names = {node.name for node in ast.parse(here.code).body
             if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found = []
    for file in here.real:
        text = (root / file).read_text("utf-8")
        nodes = [node for node in ast.parse(text).body
                 if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        same = [source(text, node) for node in nodes if node.name in names]
        found.append((file, "\n\n\n".join(same or map(outline, nodes))))
    return found


def source(text, node):
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return "\n".join(text.split("\n")[first - 1:node.end_lineno])


def outline(node):
    """Returns the outline of a function or a class: the first sentence of its docstring as a
    comment, and then `def name(arguments): ...`. After a class come its public methods."""
    told = " ".join((ast.get_docstring(node) or "").split())
    told = re.match(r"(.*?[.:])( |$)|.*", told)[0].strip()
    if isinstance(node, ast.FunctionDef):
        head = f"def {node.name}({ast.unparse(node.args)}): ..."
    else:
        head = f"class {node.name}: ..."
    inside = [f"    def {each.name}({ast.unparse(each.args)}): ..." for each in node.body
              if isinstance(node, ast.ClassDef) and isinstance(each, ast.FunctionDef)
              and each.name[0] != "_"]
    return "\n".join([*[f"# {told}"] * bool(told), head, *inside])


def told(here):
    """Returns the part of a page that is translated: the title and the story."""
    return f"{here.title}\n{here.story}"
