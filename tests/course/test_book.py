"""What documents show of the book: its pages, and the real code beside each."""

import pytest

from minidl.course import book

PAGE = '''"""A ring: each sends to its right.

The picture.

    0 -> 1 -> 2

Paper: Somebody, "Rings", 2009. The real
one, minidl/comm/ring.py and minidl/comm/tree.py, adds: other
operations.
"""

import numpy as np


def pass_on(t, x):
    return x
'''


@pytest.fixture
def checkout(tmp_path):
    for name, text in {
            "plain/__init__": '"""The book.\n\nMany ranks. `t` is a transport.\n\n'
                              '    ring    around a ring\n\nAfter training\n\n"""\n',
            "plain/ring": PAGE,
            "comm/ring": "@collective\ndef pass_on(t, x, op=None):\n    return op(x)\n\n\n"
                         "def other(t):\n    pass\n",
            "comm/tree": 'class Tree(Base):\n    """A tree. More."""\n\n    def up(self, x):\n'
                         '        pass\n\n    def _private(self):\n        pass\n'}.items():
        path = tmp_path / "minidl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_page_is_its_title_its_story_its_real_files_and_its_code(checkout):
    here = book.page("ring", checkout)
    assert here.title == "A ring: each sends to its right"
    assert here.story.startswith("The picture.\n\n    0 -> 1 -> 2\n\nPaper: Somebody")
    assert here.real == ["minidl/comm/ring.py", "minidl/comm/tree.py"]
    assert here.adds == "other operations."
    assert here.code.startswith("import numpy") and here.code.endswith("return x")


def test_the_contents_have_sections_and_no_empty_one(checkout):
    assert book.contents(checkout) == [("Many ranks", [("ring", "around a ring")])]


def test_beside_it_stand_functions_of_the_same_name_else_an_outline(checkout):
    (ring, same), (tree, outline) = book.same_names(book.page("ring", checkout), checkout)
    assert same == "@collective\ndef pass_on(t, x, op=None):\n    return op(x)"
    assert outline == "# A tree.\nclass Tree: ...\n    def up(self, x): ..."


def test_a_page_that_does_not_say_what_the_real_one_adds_is_named(checkout):
    path = checkout / "minidl" / "plain" / "ring.py"
    path.write_text(PAGE.replace("adds:", "has"))
    with pytest.raises(ValueError, match="minidl/plain/ring.py: want a docstring that ends"):
        book.page("ring", checkout)


def test_each_page_of_the_book_has_code_beside_it():
    names = [name for _, pages in book.contents() for name, _ in pages]
    assert len(names) > 40
    for name in names:
        assert all(code for _, code in book.same_names(book.page(name)))
