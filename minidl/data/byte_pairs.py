"""A tokenizer: turns a text into tokens, and tokens into text. A text has fewer tokens than bytes.

    tokenizer = Tokenizer.learn(text, 1024)                  or, with the tokens of GPT-2:
    tokenizer = Tokenizer.from_hugging_face("gpt2/")         vocab.json, merges.txt
    ids = tokenizer.encode("a text")
    tokenizer.decode(ids)                                    "a text"

decode(encode(text)) is exactly the text. With n tokens a model sees more of the text than with n
bytes. Compare losses of different tokenizers in bits per byte, because their tokens have different
lengths.

The plain form: minidl/plain/tokens.py. This file adds words, special tokens, GPT-2's files, and
speed.

    words       only tokens of the same word are joined (words.py). So each word is encoded once,
                and then looked up in a table
    learn       counts each different word once. A table holds the indices at which each pair
                occurs, so a merge visits only these indices. A heap gives the most frequent pair
    encode      among the pairs of a word, the pair that was learned first is joined first. A heap
                finds this pair, so a word of n bytes takes n log n steps
    special     <|endoftext|> separates two texts. A user's text must not produce this token. So
                encode() makes this token only if the caller names the token

Sources: Gage 1994; Sennrich et al. 2016 (arXiv 1508.07909); Radford et al. 2019 (GPT-2).
Test: tests/data/test_byte_pairs.py   Tutorials: 30_tokens, train_gpt
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from minidl.data import vocabulary_files
from minidl.data.words import GPT2, words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

CACHED_WORDS = 1 << 16  # the largest number of words in the cache. They take about 10 MB
CACHED_LENGTH = 64  # characters. A longer word rarely comes twice, so it is not cached
BYTES = [bytes([byte]) for byte in range(256)]


class Tokenizer:
    """A tokenizer with byte-pair encoding.

    vocab:          {id: bytes}. It must have all 256 single bytes.
    merges:         [(bytes, bytes)], in the order in which they were learned.
    special_tokens: {name: id}.
    pattern:        how to cut a text into words (words.py).
    whole_words:    if True, a word that is a token becomes this token without merges (Llama 3).
    Raises ValueError in three cases: a byte has no token; a merge uses or makes a token that the
    vocabulary does not have; a special token has no name, or its id is in `vocab`."""

    def __init__(self, vocab: Mapping[int, bytes], merges: Iterable[tuple[bytes, bytes]],
                 special_tokens: Mapping[str, int] | None = None, pattern: str = GPT2,
                 whole_words: bool = False) -> None:
        self.vocab = dict(vocab)
        self.merges = list(merges)
        self.special_tokens = dict(special_tokens or {})
        self.pattern, self.whole_words = pattern, whole_words
        self._ids = {spelled: i for i, spelled in self.vocab.items()}
        if missing := [byte for byte in BYTES if byte not in self._ids]:
            raise ValueError(f"Tokenizer: the vocabulary has no token for the byte {missing[0]!r}; "
                             "want all 256 bytes, so that every text can be written")
        self._byte_ids = [self._ids[byte] for byte in BYTES]
        # A merge's rank is its index in `merges`. _ranks: {(left id, right id): rank}.
        # _joined[rank]: the id of the token that this merge makes
        self._ranks, self._joined = {}, []
        for rank, (left, right) in enumerate(self.merges):
            for token in left, right, left + right:
                if token not in self._ids:
                    raise ValueError(f"Tokenizer: merge {rank} is {left!r} {right!r}, but the "
                                     f"vocabulary has no token {token!r}")
            self._ranks[self._ids[left], self._ids[right]] = rank
            self._joined.append(self._ids[left + right])
        for name, i in self.special_tokens.items():
            if not name or i in self.vocab:
                raise ValueError(f"Tokenizer: special token {name!r} has the id {i}; want a name "
                                 "that is not empty, and an id that no other token has")
        self._spelled = self.vocab | {i: name.encode() for name, i in self.special_tokens.items()}
        self._cache = _Cache(self.encode_word)

    @classmethod
    def learn(cls, text: str | Iterable[str], n_tokens: int,
              special_tokens: Sequence[str] = ()) -> Tokenizer:
        """Returns a tokenizer with n_tokens tokens, learned from a text or from an iterable of its
        pieces. The ids 0 to 255 are the bytes. After them come the pairs, and then the special
        tokens. The tokenizer has fewer tokens if at some point no pair occurs twice. Among equally
        frequent pairs, the pair with the smallest ids is learned first. Raises ValueError if
        n_tokens is less than 256 plus the number of special tokens."""
        n_pairs = n_tokens - 256 - len(special_tokens)
        if n_pairs < 0:
            raise ValueError(f"Tokenizer.learn: n_tokens is {n_tokens}; want {n_tokens - n_pairs} "
                             f"or more, for 256 bytes and {len(special_tokens)} special tokens")
        counts = Counter()
        for found, _ in words([text] if isinstance(text, str) else text, GPT2, special_tokens):
            counts.update(found)
        pairs = learn_pairs({word.encode(): count for word, count in counts.items()}, n_pairs)
        vocab, merges = list(BYTES), []
        for left, right in pairs:
            merges.append((vocab[left], vocab[right]))
            vocab.append(vocab[left] + vocab[right])
        ends = {name: len(vocab) + i for i, name in enumerate(special_tokens)}
        return cls(dict(enumerate(vocab)), merges, ends)

    @classmethod
    def from_files(cls, vocab: str | PathLike[str], merges: str | PathLike[str],
                   special_tokens: Sequence[str] | None = None) -> Tokenizer:
        """Returns the tokenizer of GPT-2's two files, vocab.json and merges.txt. Raises ValueError
        if a file is wrong. The error tells the file, the position in the file, and what is wanted.

        special_tokens: the names of the special tokens in vocab.json. The default is
                        <|endoftext|>, if vocab.json has it."""
        return cls(*vocabulary_files.read_two(Path(vocab), Path(merges), special_tokens))

    @classmethod
    def from_hugging_face(cls, folder: str | PathLike[str]) -> Tokenizer:
        """Returns the tokenizer of a model's folder. Reads tokenizer.json. If this file is missing,
        reads vocab.json and merges.txt. The files of GPT-2 and Llama 3 can be read. Nothing is
        downloaded. Raises ValueError if a file needs a feature that minidl does not have, such as a
        normalizer."""
        return cls(*vocabulary_files.read_folder(Path(folder)))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes vocab.json and merges.txt into the folder, in GPT-2's format. Raises ValueError if
        the tokenizer does not cut words as GPT-2 does."""
        if self.pattern != GPT2 or self.whole_words:
            raise ValueError("Tokenizer.save: vocab.json and merges.txt are only for a tokenizer "
                             "that cuts a text into words as GPT-2 does. This tokenizer cuts a "
                             "text in another way. Copy its tokenizer.json")
        vocabulary_files.write_two(Path(folder), self.vocab, self.merges, self.special_tokens)

    @property
    def n_vocab(self) -> int:
        """Returns the largest id + 1, which is the number of rows that an embedding needs."""
        return max(self._spelled) + 1

    def encode(self, text: str, *, allowed_special: str | Collection[str] = (),
               disallowed_special: str | Collection[str] = "all") -> list[int]:
        """Returns the ids of a text. If the text has a special token that is in allowed_special,
        this token becomes its id. If the token is in disallowed_special and not in allowed_special,
        encode() raises ValueError. If the token is in neither of the two arguments, it is encoded
        as ordinary text. "all" stands for all special tokens. tiktoken has the same rules."""
        if not isinstance(text, str):
            raise TypeError(f"encode: want a str, got {type(text).__name__}")
        return list(self.encode_iterable([text], allowed_special=allowed_special,
                                         disallowed_special=disallowed_special))

    def encode_iterable(self, pieces: Iterable[str], *, allowed_special: str | Collection[str] = (),
                        disallowed_special: str | Collection[str] = "all") -> Iterator[int]:
        """Yields the ids of the joined pieces, for instance of the lines of a file. Does not keep
        the whole text in memory. A word or a special token may begin in one piece and end in the
        next. The options are the same as in encode()."""
        names = self.special_tokens.keys()
        allowed = set(names if allowed_special == "all" else allowed_special)
        if unknown := allowed - names:
            raise ValueError(f"encode: this tokenizer has no special token {min(unknown)!r}; its "
                             f"special tokens are {list(names) or 'none'}")
        refused = set(names if disallowed_special == "all" else disallowed_special) - allowed
        found = words(pieces, self.pattern, allowed | refused)
        return itertools.chain.from_iterable(self._parts(found, refused))

    def _parts(self, found, refused):
        """Yields lists and iterators with the ids of a text. The caller joins them by itertools,
        which is fast. found: pairs from words(). Raises ValueError if the text has a special token
        that is in `refused`."""
        for part, name in found:
            yield itertools.chain.from_iterable(map(self._cache.__getitem__, part))
            if name in refused:
                raise ValueError(f"encode: the text has the special token {name!r}. To encode it "
                                 f"as this token, pass allowed_special={{{name!r}}}. To encode it "
                                 "as ordinary text, pass disallowed_special=()")
            if name is not None:
                yield [self.special_tokens[name]]

    def encode_word(self, word: bytes) -> list[int]:
        """Returns the ids of a word, given as bytes. Does not cut the bytes into words."""
        if self.whole_words and word in self._ids:
            return [self._ids[word]]
        ids = [self._byte_ids[byte] for byte in word]
        n = len(ids)
        left, right = list(range(-1, n - 1)), list(range(1, n + 1))  # indices of the neighbours
        ranks = self._ranks
        heap = [(ranks[pair], i) for i, pair in enumerate(zip(ids, ids[1:])) if pair in ranks]
        heapq.heapify(heap)
        while heap:
            rank, i = heapq.heappop(heap)  # the leftmost of equal pairs, so "aaa" becomes "aa" "a"
            j = right[i]
            if j == n or ranks.get((ids[i], ids[j])) != rank:
                continue  # a token of this pair was joined with another neighbour
            ids[i], ids[j] = self._joined[rank], None
            right[i] = after = right[j]
            if after < n:
                left[after] = i
            for first, second in (left[i], i), (i, after):
                if 0 <= first and second < n:
                    pair = ids[first], ids[second]
                    if pair in ranks:
                        heapq.heappush(heap, (ranks[pair], first))
        return [i for i in ids if i is not None]

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """Returns the text of some ids. A model may produce ids with only a part of a character.
        Such a part becomes U+FFFD. With errors="strict", decode() raises UnicodeDecodeError."""
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of some ids. ids: an iterable or an array (n,). Raises ValueError for a
        number that is not an id."""
        if hasattr(ids, "tolist"):
            ids = ids.tolist()
        ids = list(ids)
        try:
            return b"".join([self._spelled[i] for i in ids])
        except (KeyError, TypeError):
            wrong = next(i for i in ids if not hasattr(i, "__index__") or i not in self._spelled)
            raise ValueError(f"decode: {str(wrong)[:40]} is not the id of a token; want one list "
                             f"of whole numbers from 0 to {self.n_vocab - 1}") from None

    def __reduce__(self):  # a pickle or a copy does not contain the cache
        return Tokenizer, (self.vocab, self.merges, self.special_tokens, self.pattern,
                           self.whole_words)

    def __repr__(self) -> str:
        return f"Tokenizer({self.n_vocab:,} tokens, {len(self.special_tokens)} of them special)"


class _Cache(dict):
    """A dict {word: its ids}. If a word is not in the dict, cache[word] encodes the word."""

    def __init__(self, encode_word):
        self.encode_word = encode_word

    def __missing__(self, word):
        ids = self.encode_word(word.encode())
        if len(word) <= CACHED_LENGTH:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


def learn_pairs(counts: Mapping[bytes, int], n_pairs: int) -> list[tuple[int, int]]:
    """Returns a list of at most n_pairs pairs of ids (left, right). Pair k becomes token 256 + k.
    counts: {word: how many times it occurs}. If there is only one word, the pairs are the same as
    in minidl/plain/tokens.py."""
    # All words are in one list. A token is at the index of its first byte. `left` and `right` are
    # the indices of its neighbours in the word, or -1 if there is no neighbour.
    ids, left, right, times = [], [], [], []
    for word, count in counts.items():
        start, end = len(ids), len(ids) + len(word)
        ids += word
        left += [-1, *range(start, end - 1)][:len(word)]
        right += [*range(start + 1, end), -1][:len(word)]
        times += [count] * len(word)
    n_times, places = defaultdict(int), defaultdict(list)  # each pair's count; each pair's indices
    for i, j in enumerate(right):
        if j >= 0:
            n_times[ids[i], ids[j]] += times[i]
            places[ids[i], ids[j]].append(i)
    # If two counts are equal, the smaller pair comes first.
    heap = [(-count, pair) for pair, count in n_times.items()]
    heapq.heapify(heap)

    pairs = []
    while heap and len(pairs) < n_pairs:
        count, pair = heapq.heappop(heap)
        if -count != n_times[pair]:  # merges have made the pair rarer, so it gets its new count
            heapq.heappush(heap, (-n_times[pair], pair))
            continue
        if -count < 2:
            break
        token = 256 + len(pairs)
        pairs.append(pair)
        new = set()
        for i in places.pop(pair):  # from left to right, so "aaa" becomes "aa" "a"
            j = right[i]
            if j < 0 or (ids[i], ids[j]) != pair:
                continue  # a token of this pair was joined with another neighbour
            before, after = left[i], right[j]
            n_times[pair] -= times[i]
            for first, second in (before, i), (j, after):
                if first >= 0 and second >= 0:
                    n_times[ids[first], ids[second]] -= times[i]
            ids[i], ids[j] = token, -1
            right[i] = after
            if after >= 0:
                left[after] = i
            for first, second in (before, i), (i, after):
                if first >= 0 and second >= 0:
                    joined = ids[first], ids[second]
                    n_times[joined] += times[i]
                    places[joined].append(first)
                    new.add(joined)
        # only pairs with the new token have become more frequent
        for joined in new:
            heapq.heappush(heap, (-n_times[joined], joined))
    return pairs
