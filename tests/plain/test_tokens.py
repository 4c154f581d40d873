"""The page and the real tokenizer: the same pairs, tokens and texts, of one word or of many."""

import inspect
from collections import Counter

import pytest

from minidl.data.byte_pairs import Tokenizer, learn_pairs
from minidl.data.words import GPT2, finder
from minidl.plain import tokens

SOURCE = inspect.getsource(tokens).encode()
TEXTS = {"source": SOURCE, "runs": b"aaaaaaa baaa aaaa" * 3, "none twice": b"abcdef",
         "every byte": bytes(range(256)) * 2, "empty": b""}


def real(pairs):
    """The real tokenizer with these pairs."""
    vocab, merges = [bytes([byte]) for byte in range(256)], []
    for left, right in pairs:
        merges.append((vocab[left], vocab[right]))
        vocab.append(vocab[left] + vocab[right])
    return Tokenizer(dict(enumerate(vocab)), merges)


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "empty"])
def test_pairs_are_the_real_ones(name):
    """The page reads a whole text as one word."""
    text = TEXTS[name]
    pairs = tokens.learn(text, 40)
    assert pairs == learn_pairs({text: 1}, 40)
    assert (len(pairs) == 40) == (name in ("source", "every byte"))


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_are_the_real_ones_and_give_the_text_back(name):
    pairs = tokens.learn(SOURCE + TEXTS["runs"], 60)
    text, tokenizer = TEXTS[name], real(pairs)
    ids = tokens.encode(text, pairs)
    assert ids == tokenizer.encode_word(text)
    assert tokens.decode(ids, pairs) == tokenizer.decode_bytes(ids) == text


def test_in_words_they_are_the_same_too():
    """For the page, a number that is nowhere else ends each word: a pair with it occurs once."""
    words = finder(GPT2)(SOURCE.decode())
    text = []
    for n, word in enumerate(words):
        text += [*word.encode(), -1 - n]
    pairs = tokens.learn(text, 40)
    assert pairs == learn_pairs({word.encode(): n for word, n in Counter(words).items()}, 40)
    ids = [i for word in words for i in tokens.encode(word.encode(), pairs)]
    assert real(pairs).encode(SOURCE.decode()) == ids
