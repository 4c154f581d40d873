"""The pages of minidl/plain for documents: what each says, and the real files that stand beside it.

    docs/book.md      the contents with the real files, by `make register`
    the site          a page for each, with the code of both, by `make docs`

A page is read from its file, never imported. Test: tests/course/test_book.py
"""

import ast
import re
from collections import namedtuple

from minidl.checkout import PACKAGE

ROOT = PACKAGE.parent  # the pages are part of the package
BOOK = "minidl/plain"
REAL = re.compile(r"The real one, (minidl/[\w/.]+\.py(?: and minidl/[\w/.]+\.py)?), adds: (.+)")
# name: of the file; title: its first sentence; story: the docstring without the first sentence and
# what the real one adds; real: paths; adds: one sentence; code: the file without its docstring
Page = namedtuple("Page", "name title story real adds code")


def contents(root=ROOT):
    """[(section, [(page, its line in the contents)])] of minidl/plain/__init__.py."""
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
    """A Page from the text of its file."""
    tree = ast.parse(text)
    told = ast.get_docstring(tree)
    before, *rest = re.split(r"(?=The\s+real\s+one,)", told, maxsplit=1)
    found = REAL.match(" ".join("".join(rest).split()))
    if not found:
        raise ValueError(f'{BOOK}/{name}.py: its docstring ends "The real one, FILE, adds: ..."; '
                         'FILE begins with minidl/')
    title, _, story = before.partition("\n\n")
    code = "\n".join(text.split("\n")[tree.body[0].end_lineno:]).strip("\n")
    return Page(name, " ".join(title.split()).rstrip("."), story.strip("\n"),
                re.findall(r"minidl/[\w/.]+\.py", found[1]), found[2], code)


def same_names(here, root=ROOT):
    """[(file, source)] of the real functions and classes that have a name of the page's; of a file
    without one, its public names with the first sentence of each."""
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
    """`def name(arguments): # first sentence`, with the public methods of a class."""
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
    """What is translated of a page: its title and its text."""
    return f"{here.title}\n{here.story}"
