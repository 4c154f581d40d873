r"""A text cut into words, as GPT-2 or Llama 3 cuts it. No token reaches over two words.

    "I've 3 cats!  Two"   ->   "I" "'ve" " 3" " cats" "!" " " " Two"

A word takes the space before it. Of several spaces, the last one belongs to the next word. So
" cats" is one word wherever it stands, and it becomes one token if it is frequent.

The patterns are regular expressions with \p{L} (letters) and \p{N} (numbers), which Python's `re`
does not have. But its \w is exactly the letters, the numbers and "_", so the classes are written
with \w. Python's \s has four more characters than Unicode's (\x1c to \x1f), so it is written out.
A letter that a newer Unicode added is none for an older Python.

A text may come in pieces that cut a word. `words` holds the end of a piece back until it has seen
enough of the next piece.

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
# A word is cut by what follows it, at most two characters: in "'r", an "e" may follow.
LOOKS_AHEAD = 2
AT_ONCE = 1 << 16  # characters: few calls, and little memory


def words(pieces: Iterable[str], pattern: str = GPT2, special: Iterable[str] = ()
          ) -> Iterator[tuple[list[str], str | None]]:
    """Yields (words, name): some of the words of the joined pieces in their order, and the special
    token that follows them, or None. A special token is a word of its own, and no word reaches over
    it. Holds some 65,536 characters, or the longest word if it is longer."""
    find = finder(pattern)
    names = sorted(special, key=len, reverse=True)  # the longest first: one may begin another
    # a pattern that is nowhere, if there are no names; with the group, split() returns the names
    at_names = re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")
    longest = max(map(len, names), default=1)
    n_held_back = LOOKS_AHEAD + longest - 1  # a name may begin there
    held, waiting, n_waiting = "", [], 0
    for piece in pieces:
        waiting.append(piece)
        n_waiting += len(piece)
        if n_waiting < max(AT_ONCE, len(held)):  # so that a long word is not read again and again
            continue
        *before, text = at_names.split(held + "".join(waiting))
        waiting, n_waiting = [], 0
        if before and len(before[-1]) + len(text) < longest:  # it may be a longer name
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
    """parts: text, name, text, name, ..."""
    for text, name in zip(parts[::2], parts[1::2], strict=True):
        yield find(text), name


@functools.cache
def finder(pattern: str) -> Callable[[str], list[str]]:
    """Returns the function that cuts a whole text into its words by GPT2 or LLAMA3."""
    numbers = _other_numbers()
    space = re.escape(SPACE)
    # ++ never gives a character back: what follows a run cannot be part of it. The first
    # alternative in each group is a short cut for the most frequent characters.
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
    """Returns the numbers without the digits of \\d, as ranges for a class: such as a half sign."""
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
