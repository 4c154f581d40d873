'''What is shown, in the reader's language: MINIDL_LANG=zh minidl check 07.

    docs/zh/messages.po          a line of English, its Chinese: GNU gettext's format, one line each
    docs/zh/tutorials/07.txt     the head of a tutorial, and of its exercises, as whole texts

The English sentence is the key, so sources are written in English alone, and a message is
translated where it is shown: in `say`, the table, a picture, a grader's verdict. {0}, {1} stand for
what an f-string puts in: `rank {0} of {1}` is matched with "rank 2 of 4", and what was put in is
translated in its turn. The test finds every message in the sources, with their f-strings, and wants
its Chinese; a whole text has in its first line a hash of the English, and is out of date without.

Source: the GNU gettext manual, "The Format of PO Files"
Test: tests/course/test_language.py   Pages: README.zh.md, docs/zh
'''

import argparse
import functools
import hashlib
import json
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

from minidl.comm.observe.places import translation
from minidl.cuda.columns import padded, width  # noqa: F401: for tables of the course

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("en", "zh")
HOLE = re.compile(r"\{(\d)\}")
FINDING = re.compile(r"(\S+:\d+: )?(warning: )?([a-z][a-z ]+): (.+)")  # of the check form
DEPTH = 5  # messages inside a message: more are not in any grader


def language():
    """"en", or what MINIDL_LANG says: zh, also as zh_CN or zh-Hans."""
    wanted = re.split("[-_.]", os.environ.get("MINIDL_LANG") or "en")[0].lower()
    if wanted not in LANGUAGES:
        raise SystemExit(f"MINIDL_LANG={os.environ['MINIDL_LANG']}: wanted one of "
                         f"{', '.join(LANGUAGES)}")
    if wanted != "en" and not folder(wanted).is_dir():
        raise SystemExit(f"MINIDL_LANG={wanted}: there is no folder {folder(wanted)}; the "
                         "translations need a clone, installed with pip install -e")
    return wanted


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


@functools.cache
def table(language, name="messages"):
    """{English: the other language}, from messages.po; or from comments.po."""
    text = (folder(language) / f"{name}.po").read_text(encoding="utf-8")
    pairs = re.findall(r'^msgid (".*")\nmsgstr (".*")$', text, re.M)
    return {json.loads(english): json.loads(other) for english, other in pairs}


@functools.cache
def _patterns(language):
    """[(pattern, translation)] of the messages with holes, those with the most letters first. One
    that goes on with a sentence, ". Is it added twice?", may have a text before it: hole 9."""
    pairs = list(table(language).items())
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
    if not isinstance(text, str) or language() == "en" or not re.search("[A-Za-z]{2}", text):
        return text
    known = table(language())
    start = text[: len(text) - len(text.lstrip())]
    end = text[len(text.rstrip()) :]
    if text in known:
        return known[text]
    if start or end:
        return start + tr(text.strip(), depth) + end
    if (found := FINDING.fullmatch(text)) and (found[1] or found[2]) and found[3] in known:
        place, warning, kind, what = (part or "" for part in found.groups())
        return place + tr(warning.strip()) + known[kind] + "：" + tr(what, depth)
    for pattern, other in _patterns(language()) if depth else ():
        if found := pattern.fullmatch(text):
            parts = {name: tr(part, depth - 1) for name, part in found.groupdict().items()}
            return HOLE.sub(lambda hole, parts=parts: parts["h" + hole[1]], other)
    if "\n" in text:  # a text of several messages, one a line
        return "\n".join(tr(line, depth) for line in text.split("\n"))
    return text


@contextmanager
def errors_translated():
    """In the `with` block errors, and the reports of a Watch, are in the reader's language."""
    if language() == "en":
        yield
        return
    before = translation.set(tr)
    try:
        yield
    except Exception as error:
        error.args = tuple(map(tr, error.args))
        raise
    finally:
        translation.reset(before)


class Help(argparse.HelpFormatter):
    def add_usage(self, usage, actions, groups, prefix=None):
        super().add_usage(usage, actions, groups, tr("usage: ") if prefix is None else prefix)


class RawHelp(Help, argparse.RawDescriptionHelpFormatter):
    """Lines stay as they are."""


class Parser(argparse.ArgumentParser):
    """Help and errors in the reader's language. Options are written in full: `--thread` is an
    error, shown with the usage of its command."""

    def __init__(self, *args, formatter_class=Help, **settings):
        super().__init__(*args, **settings, formatter_class=formatter_class, allow_abbrev=False)

    def format_help(self):
        for group in self._action_groups:
            group.title = tr(group.title)
        for action in self._actions:
            action.help = tr(action.help)
            for choice in getattr(action, "_choices_actions", ()):  # a command's, in the list
                choice.help = tr(choice.help)
        self.description = tr(self.description)
        self.format_usage()
        return super().format_help()

    def format_usage(self):
        self.usage = tr(self.usage)
        return super().format_usage()

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(2, tr(f"{self.prog}: error: {message}") + "\n")


def digest(text):
    """Of its words: lines may be broken elsewhere."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:12]


def texts(number, kind=None):
    """{"head": ..., "07a": ...} of a tutorial: (hash of the English, the translation); {} where it
    has none in the reader's language."""
    path = folder(kind or language()) / "tutorials" / f"{number}.txt"
    if not path.exists():
        return {}
    parts = re.split(r"^=== (\w+) of ([0-9a-f]{12})\n", path.read_text(encoding="utf-8"),
                     flags=re.M)
    return {name: (of, text.strip("\n")) for name, of, text in
            zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}


def translated(number, name, english):
    """The whole text `name` of a tutorial in the reader's language. One whose English has changed
    since says so in its first line."""
    if language() == "en" or name not in (found := texts(number)):
        return english
    of, text = found[name]
    if text.split() == english.split():
        return english  # of a file that was written in this language
    stale = "" if of == digest(english) else tr("(older than the English text)") + "\n"
    return stale + text


def unbroken(text):
    """For Markdown: a line that ends in Chinese goes on without the space that a break becomes."""
    return re.sub("(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u4e00-\u9fff])", "", text)
