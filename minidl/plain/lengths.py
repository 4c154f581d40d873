"""Lengths: texts of unequal lengths in one array, with little padding.

A batch is one array, so short texts are padded to the length of the longest one. The results of
padded places are computed and thrown away. Below are four texts a, b, c, d of the lengths 1, 2, 3,
4, in batches of two, and packed:

    in any order        by length           packed in rows of 5
    a . .               a .                 d d d d a
    c c c               b b                 c c c b b
    ─────── batch 2     ─────── batch 2
    b b . .             c c c .
    d d d d             d d d d
    4 of 14 padded      2 of 12 padded      0 of 10 padded

    by length   sort the texts, then cut them into batches of similar lengths. But all epochs would
                have the same batches. So first shuffle, cut into pools of a few hundred texts, and
                sort inside each pool
    packed      several texts share one row of a fixed length. First fit: take the longest text
                first, and put each text into the first row that has room

In a packed row a token must not see another text. So each row comes with the position of every
token in its text, such as 0 1 2 3 0 1 2. At each 0 a text begins. The positions determine the mask.

Papers: Johnson, "Near-optimal bin packing algorithms", 1973; Krell et al., "Efficient sequence
packing without cross-contamination", 2021.
This page is the plain version. The real one, minidl/data/lengths.py, adds: batches with a limit on
their number of tokens, a faster first fit, targets, batches of similar length on all ranks
(otherwise ranks wait for each other), and a formula for the expected waste.
"""

import numpy as np


def by_length(lengths, order, batch_size, pool):
    """Returns batches, lists of indices. order: the indices in random order. pool: the number of
    indices that are sorted together."""
    batches = []
    for start in range(0, len(order), pool):
        some = sorted(order[start:start + pool], key=lambda i: lengths[i])
        batches += [some[k:k + batch_size] for k in range(0, len(some), batch_size)]
    return batches


def first_fit(lengths, capacity):
    """Returns rows, lists of indices of texts. A row has at most `capacity` tokens."""
    rows, room = [], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [row for row in range(len(rows)) if room[row] >= lengths[i]]
        if not fitting:
            rows.append([])
            room.append(capacity)
            fitting = [len(rows) - 1]
        row = fitting[0]
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


def pack(texts, capacity):
    """Returns two arrays for one row: the ids, and the positions. texts: arrays of ids. Padded
    places have id 0 and position 0."""
    ids, positions = np.zeros(capacity, int), np.zeros(capacity, int)
    place = 0
    for text in texts:
        ids[place:place + len(text)] = text
        positions[place:place + len(text)] = range(len(text))
        place += len(text)
    return ids, positions


def mask(positions):
    """Returns a (T, T) array: True if token i may see token j. Then j is not later than i, and both
    are in the same text."""
    # text[i] is the number of the text of token i. Each padded place counts as a text of its own.
    text = (positions == 0).cumsum()
    return np.tril(text[:, None] == text)


def waste(lengths, batches):
    """Returns the number of padded places, divided by the number of all places."""
    places = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return 1 - sum(lengths) / places


if __name__ == "__main__":
    lengths = [7, 3, 6, 2, 4, 8]
    batches = by_length(lengths, range(6), batch_size=2, pool=6)
    print("in any order: waste", round(waste(lengths, [[0, 1], [2, 3], [4, 5]]), 3))
    print("by length:    waste", round(waste(lengths, batches), 3), batches)
    print("packed in rows of 10:", first_fit(lengths, 10))

    ids, positions = pack([np.array([7, 8]), np.array([9])], capacity=4)
    print("ids", ids, " positions", positions)
    print(mask(positions).astype(int))
