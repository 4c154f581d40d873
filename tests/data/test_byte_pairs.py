"""minidl/data/byte_pairs.py: the most frequent pair first, and every byte comes back."""

from collections import Counter

import numpy as np
import pytest

from minidl.data import byte_pairs, text


def array(characters):
    return np.frombuffer(characters.encode(), np.uint8)


def slow_join(ids, left, right, token):
    """By the definition: from the left, one pair after the other."""
    joined, i = [], 0
    while i < len(ids):
        pair = list(ids[i:i + 2]) == [left, right]
        joined.append(token if pair else ids[i])
        i += 1 + pair
    return joined


@pytest.mark.parametrize("characters, words", [
    ("abababcab", ["ab", "abab"]),  # 4 times; then (ab, ab) once in a run of three
    ("aaaaaaa", ["aa", "aaaa"]), ("abcabc", ["ab", "abc"]), ("abc", []), ("a", []), ("", [])])
def test_the_most_frequent_pair_comes_first_until_none_occurs_twice(characters, words):
    pairs = byte_pairs.learn(array(characters), 300)
    learned = [word.decode() for word in byte_pairs.spelled(pairs)[256:]]
    assert learned[:len(words)] == words
    joined = byte_pairs.encode(array(characters), pairs).tolist()
    assert all(slow_join(joined, a, b, -1).count(-1) < 2 for a in joined for b in joined)


def test_each_pair_is_the_most_frequent_of_its_time():
    """By counting in Python; of equally frequent pairs the one of the smallest tokens."""
    data = text.stdlib_corpus(3000)
    ids, pairs = data.tolist(), byte_pairs.learn(data, 300)
    assert len(pairs) == 44
    for token, pair in enumerate(pairs, 256):
        counts = Counter(zip(ids, ids[1:], strict=False))
        assert pair == min(counts, key=lambda pair: (-counts[pair], pair))
        ids = slow_join(ids, *pair, token)
    assert byte_pairs.encode(data, pairs).tolist() == ids


@pytest.mark.parametrize("n", [0, 1, 2, 3, 50, 400])
def test_joining_takes_pairs_from_the_left(n):
    """Two values alone: long runs of one of them, of every parity."""
    ids = np.random.default_rng(n).integers(0, 2, n)
    for left, right in (0, 0), (1, 1), (0, 1), (1, 0):
        np.testing.assert_array_equal(byte_pairs.join(ids.copy(), left, right, 9),
                                      slow_join(ids, left, right, 9))


def test_every_byte_of_any_text_comes_back():
    source = text.stdlib_corpus(60_000)
    pairs = byte_pairs.learn(source[:40_000], 400)
    assert len(pairs) == 144
    of_all_values = np.random.default_rng(0).integers(0, 256, 999).astype(np.uint8)
    for data in source, of_all_values, source[:0]:
        ids = byte_pairs.encode(data, pairs)
        assert byte_pairs.decode(ids, pairs) == data.tobytes() and ids.max(initial=0) < 400
    assert len(byte_pairs.encode(source, pairs)) < len(source) / 1.8
    assert b"self" in byte_pairs.spelled(pairs)
