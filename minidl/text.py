"""Texts that a person reads: translated messages, lists of ranks, tables with straight columns.

    tr("{n} ranks met")               the Chinese of docs/zh/messages.po if MINIDL_LANG=zh
    in_words([0, 1, 2])               "ranks 0-2"
    COLUMNS = Columns(("operator", "<34"), ("ms", ">8"))
    COLUMNS.head(tr)                  the names of the columns, in the reader's language
    COLUMNS.row("matmul", "1.20")     a row below them; a cell that is too wide is not cut

Messages are written in English in the source, and translated when they are shown. The English
sentence is the key of its translation. In messages.po, {0} and {1} stand for the values of an
f-string: `rank {0} of {1}` matches "rank 2 of 4". The values are translated, too. A message without
a Chinese text is shown in English.

The name of a column is looked up as "column ms", with the word "column" before it. So `time` is
translated if it is the name of a column. `time` in a sentence is not translated, because it may be
the name of an array. The function `word` does this. A Chinese character takes two columns of a
terminal.

Source: the GNU gettext manual, "The Format of PO Files"
Test: tests/test_text.py, tests/course/test_language.py
"""

import functools
import json
import os
import re
import unicodedata
from contextlib import contextmanager

from minidl.checkout import ROOT

LANGUAGES = ("en", "zh")
HOLE = re.compile(r"\{(\d)\}")
# Matches a finding of the check of kernels, such as "gelu.cu:12: warning: race: ...".
FINDING = re.compile(r"(\S+:\d+: )?(warning: )?([a-z][a-z ]+): (.+)")
DEPTH = 5  # the largest number of levels of messages inside messages that `tr` translates


def language():
    """Returns the language that MINIDL_LANG names, "en" or "zh". The default is "en". zh_CN and
    zh-Hans also mean "zh". Raises SystemExit for another language, or if its texts are missing."""
    wanted = _named()
    if wanted not in LANGUAGES:
        raise SystemExit(f"MINIDL_LANG={os.environ['MINIDL_LANG']}: wanted one of "
                         f"{', '.join(LANGUAGES)}")
    if wanted != "en" and not folder(wanted).is_dir():
        raise SystemExit(f"MINIDL_LANG={wanted} wants the folder {folder(wanted)}, which does not "
                         "exist here. Clones and installed packages have this folder")
    return wanted


def _named():
    return re.split("[-_.]", os.environ.get("MINIDL_LANG") or "en")[0].lower()


def _wanted():
    """Returns the same as `language`. If `language` raises an error, returns "en", because a report
    must not fail."""
    named = _named()
    return named if named in LANGUAGES and folder(named).is_dir() else "en"


@contextmanager
def spoken(name):
    """A `with` block in which `name` is the reader's language."""
    before = os.environ.get("MINIDL_LANG", "")
    os.environ["MINIDL_LANG"] = name
    try:
        yield
    finally:
        os.environ["MINIDL_LANG"] = before


def folder(language):
    return ROOT / "docs" / language


def table(language, name="messages"):
    """Returns {English text: text in `language`}, from the file messages.po or comments.po."""
    return _pairs(folder(language) / f"{name}.po")


@functools.cache
def _pairs(path):
    text = path.read_text(encoding="utf-8")
    pairs = re.findall(r'^msgid (".*")\nmsgstr (".*")$', text, re.M)
    return {json.loads(english): json.loads(other) for english, other in pairs}


@functools.cache
def _patterns(path):
    """Returns [(pattern, translation)] for the messages with holes, such as {0}. Messages with the
    most letters come first. Some messages begin with a punctuation mark, because they follow
    another text. Such a message has a second pattern, which begins with the hole {9} for this
    text."""
    pairs = list(_pairs(path).items())
    pairs += [("{9}" + e, "{9}" + z) for e, z in pairs if e[:1] in tuple(".,:;(")]
    pairs.sort(key=lambda pair: -len(HOLE.sub("", pair[0])))
    return [(re.compile(HOLE.sub(_hole, re.sub(r"\\([{}])", r"\1", re.escape(e)))), z)
            for e, z in pairs if HOLE.search(e)]


def _hole(found):
    """Returns the pattern for a hole of a message, such as {0}. A value takes the place of the
    hole. The value may have several lines only if the hole is {9} or at the end, or if the message
    itself has several lines. If " thread" follows the hole, the value must be a number."""
    if found.string.startswith("\\ thread", found.end()):
        return rf"(?P<h{found[1]}>[\d,]+)"
    lines = found[1] == "9" or found.end() == len(found.string) or "\n" in found.string
    return f"(?P<h{found[1]}>(?{'s' * lines}:.*?))"


def tr(text, depth=DEPTH):
    """Returns `text` in the reader's language. A text without a translation, such as a name, is
    returned unchanged. depth: the largest number of levels of messages inside messages."""
    wanted = _wanted()
    if not isinstance(text, str) or wanted == "en" or not re.search("[A-Za-z]{2}", text):
        return text
    known = table(wanted)
    start = text[: len(text) - len(text.lstrip())]
    end = text[len(text.rstrip()) :]
    if text in known:
        return known[text]
    if start or end:
        return start + tr(text.strip(), depth) + end
    if (found := FINDING.fullmatch(text)) and (found[1] or found[2]) and found[3] in known:
        place, warning, kind, what = (part or "" for part in found.groups())
        return place + tr(warning.strip()) + known[kind] + "：" + tr(what, depth)
    for pattern, other in _patterns(folder(wanted) / "messages.po") if depth else ():
        if found := pattern.fullmatch(text):
            parts = {name: tr(part, depth - 1) for name, part in found.groupdict().items()}
            return HOLE.sub(lambda hole, parts=parts: parts["h" + hole[1]], other)
    if "\n" in text:  # several messages, one on each line
        return "\n".join(tr(line, depth) for line in text.split("\n"))
    return text


@contextmanager
def errors_translated():
    """A `with` block whose errors are translated into the reader's language."""
    language()  # raises if the language is unknown
    try:
        yield
    except Exception as error:
        error.args = tuple(map(tr, error.args))
        raise


# -- ranks


def in_words(ranks):
    """Returns a text that names the ranks: "rank 2", "ranks 0-3" or "ranks 0, 2, 5"."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}{'-' if len(ranks) > 2 else ', '}{ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))


# -- columns


def width(text):
    """Returns how many columns of a terminal the text takes. A Chinese character takes two
    columns."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def padded(text, columns, side="<"):
    space = " " * max(0, columns - width(text))
    return space + text if side == ">" else text + space


def word(name, tr):
    """Returns a word of a table in the reader's language. Spaces around the word are kept."""
    bare = name.strip()
    return name.replace(bare, tr(f"column {bare}").removeprefix("column ")) if bare else name


class Columns:
    """A table. columns: a pair (name, side and width) for each column. For example, ("ms", ">8") is
    a column of 8 characters, with its text on the right side. start: a text before each line. gap:
    a text between two columns."""

    def __init__(self, *columns, start="", gap=""):
        self.columns, self.start, self.gap = columns, start, gap

    def head(self, tr=str):
        return self.row(*(word(name, tr) for name, _ in self.columns))

    def row(self, *cells):
        return self.start + self.gap.join(
            padded(str(cell), int(place[1:] or 0), place[0])
            for cell, (_, place) in zip(cells, self.columns, strict=True)).rstrip()
