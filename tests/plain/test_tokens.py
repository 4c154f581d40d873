"""The page and the real byte pairs: the same pairs, tokens and texts."""

import inspect

import numpy as np
import pytest

from minidl.data import byte_pairs as real
from minidl.plain import tokens

SOURCE = inspect.getsource(tokens).encode()
TEXTS = {"source": SOURCE, "runs": b"aaaaaaa baaa aaaa" * 3, "none twice": b"abcdef",
         "every byte": bytes(range(256)) * 2, "empty": b""}


def array(text):
    return np.frombuffer(text, np.uint8)


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "empty"])
def test_pairs_are_the_real_ones(name):
    text = TEXTS[name]
    pairs = tokens.learn(text, 40)
    assert pairs == real.learn(array(text), 256 + 40)
    assert (len(pairs) == 40) == (name in ("source", "every byte"))


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_are_the_real_ones_and_give_the_text_back(name):
    pairs = tokens.learn(SOURCE + TEXTS["runs"], 60)
    text = TEXTS[name]
    ids = tokens.encode(text, pairs)
    assert ids == real.encode(array(text), pairs).tolist()
    assert tokens.decode(ids, pairs) == real.decode(ids, pairs) == text
