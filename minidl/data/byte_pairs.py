"""Byte-pair encoding: a text as fewer, longer tokens than its bytes, and back, exactly.

The plain form: minidl/plain/tokens.py. Here: NumPy, with one pass over the text for each pair.

A model reads further back with the same number of tokens, and spells fewer words. What it learns
is measured in bits per byte: that does not depend on the vocabulary.
Sources: Gage 1994; Sennrich et al. 2016 (arXiv 1508.07909). GPT-2 has one of 50,257 tokens, whose
pairs stay within a word; here they may end after a line's indent.
Test: tests/data/test_byte_pairs.py   Tutorial: tutorials/train_gpt.py
"""

import numpy as np


def learn(data, n_tokens):
    """The pairs (left, right) that become tokens 256, 257, ... of a vocabulary of n_tokens, from a
    text of bytes (n,) uint8; fewer, once no pair occurs twice. Seconds for a megabyte."""
    ids, pairs = data.astype(np.int64), []
    while len(pairs) < n_tokens - 256:
        counts = np.bincount(ids[:-1] * n_tokens + ids[1:], minlength=1)
        if counts.max() < 2:
            break
        pairs.append(divmod(int(counts.argmax()), n_tokens))  # the first of equals
        ids = join(ids, *pairs[-1], 255 + len(pairs))
    return pairs


def encode(data, pairs):
    """The tokens of a text of bytes, (m,) uint16."""
    ids = data.astype(np.uint16)
    for token, (left, right) in enumerate(pairs, 256):
        ids = join(ids, left, right, token)
    return ids


def decode(ids, pairs):
    """The bytes of some tokens."""
    return b"".join(map(spelled(pairs).__getitem__, ids))


def spelled(pairs):
    """[the bytes of each token of the vocabulary]."""
    words = [bytes([byte]) for byte in range(256)]
    for left, right in pairs:
        words.append(words[left] + words[right])
    return words


def join(ids, left, right, token):
    """`ids`, each (left, right) in it replaced by `token`, from the left: a a a is [a a] a."""
    at = np.flatnonzero((ids[:-1] == left) & (ids[1:] == right))
    if left == right:  # of a run of k places, one after the other, take every second
        first_of_run = np.maximum.accumulate(np.where(np.diff(at, prepend=-2) > 1, at, 0))
        at = at[(at - first_of_run) % 2 == 0]
    kept = np.ones(len(ids), bool)
    kept[at + 1] = False
    ids[at] = token
    return ids[kept]
