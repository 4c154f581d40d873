"""Texts for a reader: in the reader's language, ranks in words, columns that stay straight.

    tr("{n} ranks met")               the Chinese of docs/zh/messages.po with MINIDL_LANG=zh
    in_words([0, 1, 2])               "ranks 0-2"
    COLUMNS = Columns(("operator", "<34"), ("ms", ">8"))
    COLUMNS.head(tr)                  the names, in the reader's language
    COLUMNS.row("matmul", "1.20")     a line below them; a cell that is too wide is not cut

The English sentence is the key, so sources are written in English alone, and a message is
translated where it is shown. {0}, {1} stand for what an f-string puts in: `rank {0} of {1}` is
matched with "rank 2 of 4", and what was put in is translated in its turn. What has no Chinese is
shown in English.

The name of a column is looked up as "column ms", and so is what `word` translates: `time` in a
sentence may be the name of an array, which stays. A Chinese character takes two columns.

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
FINDING = re.compile(r"(\S+:\d+: )?(warning: )?([a-z][a-z ]+): (.+)")  # of the check form
DEPTH = 5  # messages inside a message: more are not in any grader


def language():
    """"en", or what MINIDL_LANG says: zh, also as zh_CN or zh-Hans. SystemExit: neither."""
    wanted = _named()
    if wanted not in LANGUAGES:
        raise SystemExit(f"MINIDL_LANG={os.environ['MINIDL_LANG']}: wanted one of "
                         f"{', '.join(LANGUAGES)}")
    if wanted != "en" and not folder(wanted).is_dir():
        raise SystemExit(f"MINIDL_LANG={wanted}: there is no folder {folder(wanted)}, which a "
                         "clone has, and an installed package")
    return wanted


def _named():
    return re.split("[-_.]", os.environ.get("MINIDL_LANG") or "en")[0].lower()


def _wanted():
    """As `language`; English where that would raise, for a report must not fail."""
    named = _named()
    return named if named in LANGUAGES and folder(named).is_dir() else "en"


@contextmanager
def spoken(name):
    """In the `with` block the reader's language is this one."""
    before = os.environ.get("MINIDL_LANG", "")
    os.environ["MINIDL_LANG"] = name
    try:
        yield
    finally:
        os.environ["MINIDL_LANG"] = before


def folder(language):
    return ROOT / "docs" / language


def table(language, name="messages"):
    """{English: the other language}, from messages.po; or from comments.po."""
    return _pairs(folder(language) / f"{name}.po")


@functools.cache
def _pairs(path):
    text = path.read_text(encoding="utf-8")
    pairs = re.findall(r'^msgid (".*")\nmsgstr (".*")$', text, re.M)
    return {json.loads(english): json.loads(other) for english, other in pairs}


@functools.cache
def _patterns(path):
    """[(pattern, translation)] of the messages with holes, those with the most letters first. One
    that goes on with a sentence, ". Is it added twice?", may have a text before it: hole 9."""
    pairs = list(_pairs(path).items())
    pairs += [("{9}" + e, "{9}" + z) for e, z in pairs if e[:1] in tuple(".,:;(")]
    pairs.sort(key=lambda pair: -len(HOLE.sub("", pair[0])))
    return [(re.compile(HOLE.sub(_hole, re.sub(r"\\([{}])", r"\1", re.escape(e)))), z)
            for e, z in pairs if HOLE.search(e)]


def _hole(found):
    """What is put in has several lines only at the end, or where the message has, too; threads are
    counted."""
    if found.string.startswith("\\ thread", found.end()):
        return rf"(?P<h{found[1]}>[\d,]+)"
    lines = found[1] == "9" or found.end() == len(found.string) or "\n" in found.string
    return f"(?P<h{found[1]}>(?{'s' * lines}:.*?))"


def tr(text, depth=DEPTH):
    """`text` in the reader's language. What has no translation, such as a name, stays."""
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
    if "\n" in text:  # a text of several messages, one a line
        return "\n".join(tr(line, depth) for line in text.split("\n"))
    return text


@contextmanager
def errors_translated():
    """In the `with` block errors are in the reader's language."""
    language()  # raises where there is no such language
    try:
        yield
    except Exception as error:
        error.args = tuple(map(tr, error.args))
        raise


# -- ranks


def in_words(ranks):
    """rank 2; ranks 0-3; ranks 0, 2, 5."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}{'-' if len(ranks) > 2 else ', '}{ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))


# -- columns


def width(text):
    """Columns of a terminal: a Chinese character takes two."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def padded(text, columns, side="<"):
    space = " " * max(0, columns - width(text))
    return space + text if side == ">" else text + space


def word(name, tr):
    """A word of a table in the reader's language."""
    bare = name.strip()
    return name.replace(bare, tr(f"column {bare}").removeprefix("column ")) if bare else name


class Columns:
    """name, side and width of each column: ("ms", ">8"). start: before each line; gap: between two
    columns."""

    def __init__(self, *columns, start="", gap=""):
        self.columns, self.start, self.gap = columns, start, gap

    def head(self, tr=str):
        return self.row(*(word(name, tr) for name, _ in self.columns))

    def row(self, *cells):
        return self.start + self.gap.join(
            padded(str(cell), int(place[1:] or 0), place[0])
            for cell, (_, place) in zip(cells, self.columns, strict=True)).rstrip()
