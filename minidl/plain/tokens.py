"""Tokens: byte pair encoding writes a text with fewer symbols than the text has bytes.

A language model reads numbers, the tokens. Tokens could be bytes (0 to 255), but then a text is
long. So the most frequent pair of neighbours becomes a new token, again and again:

    b a n a n a _ b a n d      11 tokens. (a, n) occurs 3 times, (b, a) and (n, a) occur 2 times
    b an an a _ b an d         token 256 is an: 8 tokens. Now (b, an) occurs 2 times
    ban an a _ ban d           token 257 is ban: 6 tokens

    learn       makes a list of pairs: the first is token 256, the next token 257, ... A pair may
                contain tokens that were made before, so a frequent word becomes one token. Among
                equally frequent pairs the smallest comes first: (97, 98) before (256, 97)
    encode      joins the pairs in a text, in the order in which they were learned
    decode      puts the bytes of all tokens one after the other: this is exactly the text

Every text can be written in tokens: in the worst case byte by byte.

Papers: Gage, "A new algorithm for data compression", 1994; Sennrich et al., "Neural machine
translation of rare words with subword units", 2016.
This page is the plain version. The real one, minidl/data/byte_pairs.py, adds: words, so that no
pair crosses the end of a word; special tokens; GPT-2's files; and a table of the places of each
pair, so that a merge visits only these places.
"""

from collections import Counter


def join(ids, pair, token):
    """Returns the list `ids` with `token` in place of each `pair`. Goes from left to right: in
    "aaa" the first two letters are joined."""
    joined, i = [], 0
    while i < len(ids):
        if tuple(ids[i:i + 2]) == pair:
            joined.append(token)
            i += 2
        else:
            joined.append(ids[i])
            i += 1
    return joined


def learn(text, n_pairs):
    """Returns at most n_pairs pairs, learned from a text of bytes. Stops early if no pair occurs
    twice. Overlapping pairs are counted, too: "aaa" has the pair "aa" twice."""
    ids, pairs = list(text), []
    while len(pairs) < n_pairs:
        counts = Counter(zip(ids, ids[1:]))
        # Takes the most frequent pair. If several pairs are equally frequent, takes the smallest.
        pair = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[pair] < 2:
            break
        ids = join(ids, pair, 256 + len(pairs))
        pairs.append(pair)
    return pairs


def encode(text, pairs):
    """Returns the tokens of a text of bytes."""
    ids = list(text)
    for number, pair in enumerate(pairs):
        ids = join(ids, pair, 256 + number)
    return ids


def decode(ids, pairs):
    """Returns the bytes of the tokens `ids`."""
    spelled = [bytes([byte]) for byte in range(256)]
    for left, right in pairs:
        spelled.append(spelled[left] + spelled[right])
    return b"".join(spelled[i] for i in ids)


if __name__ == "__main__":
    pairs = learn(b"aaabaaab", 10)  # a is byte 97, b is byte 98
    print("pairs:", pairs)
    for text in b"aaabaaab", b"aab", b"cab":
        ids = encode(text, pairs)
        print(text, "->", ids, "->", decode(ids, pairs))
