r"""Cuts a text into words, as GPT-2 or Llama 3 cuts it. A token is always inside one word.

    "I've 3 cats!  Two"   ->   "I" "'ve" " 3" " cats" "!" " " " Two"

A word contains the space before it. If there are several spaces, only the last space belongs to the
next word. So " cats" is the same word everywhere in a text, and it becomes one token if it is
frequent.

The patterns are regular expressions with \p{L} (letters) and \p{N} (numbers), which Python's `re`
does not have. But \w of `re` matches exactly the letters, the numbers and "_", so the classes are
written with \w. Python's \s also matches \x1c to \x1f. These four characters are not in Unicode's
White_Space. So the spaces are listed one by one. An older Python does not know the letters that a
newer Unicode has added.

A text may come in pieces, and a word may begin in one piece and end in the next. So `words` keeps
the end of a piece until it has seen enough of the next piece.

Source: Radford et al. 2019 (GPT-2), section 2.2.   Test: tests/data/test_words.py
Used by: byte_pairs.py
"""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SPACE = ("\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
         "\u200a\u2028\u2029\u202f\u205f\u3000")  # White_Space of Unicode
# The end of a word depends on at most two characters after it. For example, after "'r" an "e" may
# follow.
LOOKS_AHEAD = 2
AT_ONCE = 1 << 16  # characters that one call cuts into words


def words(pieces: Iterable[str], pattern: str = GPT2, special: Iterable[str] = ()
          ) -> Iterator[tuple[list[str], str | None]]:
    """Yields (words, name). `words` is a list of the next words of the joined pieces. `name` is the
    special token after these words, or None. No word contains a part of a special token. Keeps
    about 65,536 characters in memory, or the longest word if that is longer.

    special: the names of the special tokens."""
    find = finder(pattern)
    names = sorted(special, key=len, reverse=True)  # longest first: a name can start with another
    # If there are no names, (?!) matches nothing. The group makes split() return the names, too.
    at_names = re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")
    longest = max(map(len, names), default=1)
    n_held_back = LOOKS_AHEAD + longest - 1  # a special name may begin in these characters
    held, waiting, n_waiting = "", [], 0
    for piece in pieces:
        waiting.append(piece)
        n_waiting += len(piece)
        if n_waiting < max(AT_ONCE, len(held)):  # so that a long word is read only a few times
            continue
        *before, text = at_names.split(held + "".join(waiting))
        waiting, n_waiting = [], 0
        if before and len(before[-1]) + len(text) < longest:  # a longer name may begin here
            *before, last, name = before
            yield from _closed(before, find)
            yield find(last), None
            held = name + text
            continue
        yield from _closed(before, find)
        found, start = find(text), len(text)
        end = len(text.rstrip(SPACE)) - n_held_back
        while found and start > end:
            start -= len(found.pop())
        yield found, None
        held = text[start:]
    *before, text = at_names.split(held + "".join(waiting))
    yield from _closed(before, find)
    yield find(text), None


def _closed(parts, find):
    """Yields (words, name) for each text in `parts`: the words of the text, and the name of the
    special token after it. parts: [text, name, text, name, ...]."""
    for text, name in zip(parts[::2], parts[1::2], strict=True):
        yield find(text), name


@functools.cache
def finder(pattern: str) -> Callable[[str], list[str]]:
    """Returns a function that cuts a whole text into a list of words. pattern: GPT2 or LLAMA3."""
    numbers = _other_numbers()
    space = re.escape(SPACE)
    # ++ is possessive: it never gives a character back. This is correct, because the character
    # after a run is never part of the run. The first alternative in each group is a fast path for
    # the most frequent characters.
    letters = rf"(?:[A-Za-z]++|[^\W\d_{numbers}]++)++"
    others = rf"(?:[^\w{space}]++|_++)++"
    for theirs, ours in ((r"[^\s\p{L}\p{N}]+", others), (r"[^\r\n\p{L}\p{N}]", r"(?:[^\w\r\n]|_)"),
                         (r"\p{L}+", letters), (r"\p{N}+", rf"[\d{numbers}]++"),
                         (r"\p{N}", rf"[\d{numbers}]"), (r"\s", f"[{space}]"),
                         (r"\S", f"[^{space}]")):
        pattern = pattern.replace(theirs, ours)
    return re.compile(pattern).findall


@functools.cache
def _other_numbers():
    """Returns the characters of category "number" that \\d does not match, such as the sign for one
    half. They are written as ranges for a character class."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    ranges = []
    for character in re.findall(r"[^\W\d_]", every):
        if character.isalpha():
            continue
        if ranges and ord(character) == ord(ranges[-1][1]) + 1:
            ranges[-1][1] = character
        else:
            ranges.append([character, character])
    return "".join(f"{first}-{last}" for first, last in ranges)
