'''Shows texts in the reader's language: MINIDL_LANG=zh minidl check 07.

    docs/zh/messages.po          English and Chinese of each message, in GNU gettext's format
    docs/zh/tutorials/07.txt     whole texts: a tutorial's docstring, and the tasks of its exercises

minidl/text.py tells how a message is found. The first line of a whole text has a hash of the
English text. If the English text has changed later, the translation is shown below a note that it
is old. `make register` finds every message in the sources, also f-strings. It lists messages and
texts that have no translation, or an old translation.

Source: the GNU gettext manual, "The Format of PO Files"
Test: tests/course/test_language.py   Pages: README.zh.md, docs/zh
'''

import argparse
import hashlib
import re
import sys

from minidl.text import (  # noqa: F401: other files import these names from here
    LANGUAGES, ROOT, errors_translated, folder, language, spoken, table, tr,
)


class Help(argparse.HelpFormatter):
    def add_usage(self, usage, actions, groups, prefix=None):
        super().add_usage(usage, actions, groups, tr("usage: ") if prefix is None else prefix)


class RawHelp(Help, argparse.RawDescriptionHelpFormatter):
    """Help that keeps the line breaks of a description."""


class Parser(argparse.ArgumentParser):
    """Shows help and errors in the reader's language. Options must be written in full: `--thread`
    is an error, shown with the usage of its command."""

    def __init__(self, *args, formatter_class=Help, **settings):
        super().__init__(*args, **settings, formatter_class=formatter_class, allow_abbrev=False)

    def format_help(self):
        for group in self._action_groups:
            group.title = tr(group.title)
        for action in self._actions:
            action.help = tr(action.help)
            for choice in getattr(action, "_choices_actions", ()):  # choice: one of the commands
                choice.help = tr(choice.help)
        self.description = tr(self.description)
        self.epilog = tr(self.epilog)
        self.format_usage()
        return super().format_help()

    def format_usage(self):
        self.usage = tr(self.usage)
        return super().format_usage()

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(2, tr(f"{self.prog}: error: {message}") + "\n")


def digest(text):
    """Returns a hash of the words of a text. The hash does not depend on line breaks."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:12]


def texts(number, kind=None):
    """Returns {name: (hash of the English text, the translation)} of a tutorial. The name is "head"
    for the docstring of the script, and "07a", "07b", ... for the tasks of the exercises. Returns
    {} if the tutorial has no translation. kind: the language. If None, the reader's language."""
    return parts_of(folder(kind or language()) / "tutorials" / f"{number}.txt")


def parts_of(path):
    """Reads a file with whole texts. Returns {name: (hash of the English text, the translation)}.
    Each text comes after a line `=== name of hash`, such as `=== 07a of 0123456789ab`. Returns {}
    if there is no such file."""
    if not path.exists():
        return {}
    parts = re.split(r"^=== (\w+) of ([0-9a-f]{12})\n", path.read_text(encoding="utf-8"),
                     flags=re.M)
    return {name: (of, text.strip("\n")) for name, of, text in
            zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}


def translated(number, name, english):
    """Returns a text of a tutorial in the reader's language. If the English text has changed since
    the translation, the first line is a note about this.

    number: the tutorial, such as "07". name: "head" for the docstring of the script, or an exercise
    such as "07a". english: the English text, which is returned if there is no translation."""
    if language() == "en" or name not in (found := texts(number)):
        return english
    of, text = found[name]
    if text.split() == english.split():
        return english  # the file is already in the reader's language
    stale = "" if of == digest(english) else tr("(older than the English text)") + "\n"
    return stale + text


def unbroken(text):
    """Returns `text` without line breaks between two Chinese characters, because Markdown would
    show a space there."""
    return re.sub("(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u4e00-\u9fff])", "", text)
