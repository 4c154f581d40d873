"""minidl/data/words.py: the words of the published patterns, from a text whole or in pieces."""

import random
import unicodedata

import pytest

from minidl.data import words as module
from minidl.data.words import GPT2, LLAMA3, SPACE, finder, words

# parts that meet in every order: apostrophes, spaces of many kinds, digits that are no digits,
# letters outside of Latin, marks, emoji of several characters, cut special tokens
PARTS = ["a", "b", "I'm", "'", "s", "re", "'ll", "S", "'S", " ", "  ", "\n", "\r\n", "\t", "\x1c",
         "\x85", "\u3000", "\xa0", "1", "23", "½", "²", "Ⅷ", "〇", "一", "中文", "。", "é", "e\u0301",
         "ß", "ſ", "😀", "👨‍👩‍👧", "🇩🇪", "_", "__", "!", "...", "<|endof", "text|>",
         "<|endoftext|>", "\u0662", "ि",
         "\u200d", "𝒜", "\x00"]


def texts(n, seed=0):
    draw = random.Random(seed)
    for _ in range(n):
        yield "".join(draw.choices(PARTS, k=draw.randint(0, 30)))


def pieces(text, draw):
    cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randint(0, 6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("text, want", [
    ("I've 3 cats!  Two", ["I", "'ve", " 3", " cats", "!", " ", " Two"]),
    ("it's it'S don't ''s", ["it", "'s", " it", "'", "S", " don", "'t", " ''", "s"]),
    ("x  \n\n y\t", ["x", "  \n\n", " y", "\t"]), ("\n\nx", ["\n", "\n", "x"]),
    ("a1²½b_c", ["a", "1²½", "b", "_", "c"]), ("中文。。 😀😀 é", ["中文", "。。", " 😀😀", " é"]),
    ("a\x1cb", ["a", "\x1c", "b"]),  # Python takes \x1c for a space, Unicode does not
    ("", []), (" ", [" "])])
def test_gpt_2s_words(text, want):
    assert finder(GPT2)(text) == want


@pytest.mark.parametrize("text, want", [
    ("It'S 12345 a!!\n\n b", ["It", "'S", " ", "123", "45", " a", "!!\n\n", " b"]),
    ("(word) \n \n x", ["(word", ")", " \n \n", " x"])])
def test_llama_3s_words(text, want):
    assert finder(LLAMA3)(text) == want


def test_pythons_w_is_letters_numbers_and_a_line():
    """So that the classes written with it are \\p{L} and \\p{N}, of this Python's Unicode."""
    of = {"L": [], "N": [], "rest": []}
    for character in map(chr, range(0x110000)):
        kind = unicodedata.category(character)[0]
        if kind in of:
            of[kind].append(character)
        elif character not in SPACE and character != "'":
            of["rest"].append(character)
    find = finder(GPT2)
    found = {kind: len(find("".join(characters))) for kind, characters in of.items()}
    assert found == {"L": 1, "N": 1, "rest": 1}, "one word of all letters, one of all numbers, ..."
    assert all(character.isspace() for character in SPACE)


@pytest.mark.parametrize("pattern", [GPT2, LLAMA3], ids=["GPT-2", "Llama 3"])
def test_words_are_those_of_the_package_regex(pattern):
    regex = pytest.importorskip("regex", reason="pip install regex: it has \\p{L}")
    find = regex.compile(pattern).findall
    for text in texts(3000):
        assert finder(pattern)(text) == find(text), repr(text)


@pytest.mark.parametrize("pattern", [GPT2, LLAMA3], ids=["GPT-2", "Llama 3"])
@pytest.mark.parametrize("special", [(), ("<|endoftext|>",), ("<|endoftext|>", "<|endof", " a b")])
def test_pieces_have_the_words_of_the_whole_text(pattern, special, monkeypatch):
    """Cut anywhere: in words, in runs of spaces, in special tokens."""
    draw = random.Random(1)
    n_special = 0
    for text in texts(400, seed=2):
        monkeypatch.setattr(module, "AT_ONCE", draw.randint(1, 9))
        got = list(words(pieces(text, draw), pattern, special))
        want, rest = [], text
        while rest is not None:  # by hand: the first special token in the text, the longest of it
            at = min(((rest.index(name), -len(name), name) for name in special if name in rest),
                     default=None)
            before = rest if at is None else rest[:at[0]]
            want += finder(pattern)(before)
            if at is not None:
                want.append(("special", at[2]))
            n_special += at is not None
            rest = None if at is None else rest[at[0] - at[1]:]
        flat = []
        for found, name in got:
            flat += found
            if name is not None:
                flat.append(("special", name))
        assert flat == want, repr(text)
    assert (n_special > 5) == bool(special)


def test_a_long_text_is_not_held():
    most = 0

    def counted():
        nonlocal most
        for _ in range(300):
            yield "a word and another " * 100
            most = max(most, n_given - n_back)

    n_given = n_back = 0
    source = counted()

    def measured():
        nonlocal n_given
        for piece in source:
            n_given += len(piece)
            yield piece

    for found, _ in words(measured()):
        n_back += sum(map(len, found))
    assert n_back == n_given == 300 * 1900
    assert most < 2 * module.AT_ONCE


def test_one_word_of_many_pieces_takes_linear_time(monkeypatch):
    """How many characters are looked at, in all: each of them at most some four times."""
    seen = 0

    def counting(text):
        nonlocal seen
        seen += len(text)
        return finder(GPT2)(text)

    monkeypatch.setattr(module, "AT_ONCE", 4)
    monkeypatch.setattr(module, "finder", lambda pattern: counting)
    assert [found for found, _ in words(["a"] * 10_000) if found] == [["a" * 10_000]]
    assert seen < 4 * 10_000
