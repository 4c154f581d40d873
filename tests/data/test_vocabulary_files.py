"""minidl/data/vocabulary_files.py: GPT-2's files, written and read; damaged ones are refused."""

import json
import os

import pytest

from minidl.data import text
from minidl.data.byte_pairs import Tokenizer
from minidl.data.vocabulary_files import CHARACTERS, spell
from minidl.data.words import GPT2, LLAMA3
from tests.damaged import damaged

END = "<|endoftext|>"
SOURCE = text.stdlib_corpus(8000).tobytes().decode("utf-8", "replace")


@pytest.fixture(scope="module")
def learned():
    return Tokenizer.learn(SOURCE, 300, [END])


def test_each_byte_has_its_character():
    assert len(set(CHARACTERS)) == 256
    assert all(c.isprintable() and not c.isspace() for c in CHARACTERS)
    assert spell(b"a !~\n") == "aĠ!~Ċ" and spell(b"\x00\x7f\xa0\xad\xff") == "ĀġłŃÿ"


def test_files_come_back_to_the_same_tokenizer(learned, tmp_path):
    learned.save(tmp_path)
    lines = (tmp_path / "merges.txt").read_text("utf-8").split("\n")
    assert lines[0] == "#version: 0.2" and lines[-1] == "" and len(lines) == 43 + 2
    assert lines[1] == "Ġ Ġ"  # of Python's indents
    names = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    assert names["Ġ"] == 32 and names[END] == 299
    for read in (Tokenizer.from_hugging_face(tmp_path),
                 Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt", [END])):
        assert read.__reduce__() == learned.__reduce__()
        assert read.encode(SOURCE) == learned.encode(SOURCE)


def edited(learned, folder, vocab=lambda names: names, merges=lambda lines: lines):
    learned.save(folder)
    names = json.loads((folder / "vocab.json").read_text("utf-8"))
    (folder / "vocab.json").write_text(json.dumps(vocab(names)), "utf-8")
    lines = (folder / "merges.txt").read_text("utf-8").split("\n")
    (folder / "merges.txt").write_text("\n".join(merges(lines)), "utf-8")
    return Tokenizer.from_hugging_face(folder)


def without(name):
    return lambda names: {key: i for key, i in names.items() if key != name}


@pytest.mark.parametrize("vocab, words", [
    (lambda names: names | {"a": 98}, "tokens 'a' and 'b' both have the id 98; want a"),
    (lambda names: names | {"a": "97"}, "token 'a' has the id '97'; want a whole number"),
    (lambda names: names | {"a": True}, "token 'a' has the id True"),
    (lambda names: names | {"a": -1}, "token 'a' has the id -1"),
    (lambda names: names | {"a": 1000}, "none of the 300 tokens has the id 97; want each .* 0 to"),
    (lambda names: {("a b" if key == "a" else key): i for key, i in names.items()},
     "token 'a b' has the character ' ', which stands for no byte"),
    (lambda names: {("ab" * 9 if key == "a" else key): i for key, i in names.items()},
     "no token 'a' for byte 97; want all 256 bytes"),
    (lambda names: names | {"zzzz": 300}, "no pair makes 'zzzz', token 300 of vocab.json"),
    (lambda names: list(names), "not a tokenizer.s JSON .it has .*; want an object")])
def test_a_damaged_vocabulary_names_the_token(learned, tmp_path, vocab, words):
    with pytest.raises(ValueError, match=words) as refused:
        edited(learned, tmp_path, vocab)
    assert "vocab.json" in str(refused.value)


@pytest.mark.parametrize("merges, words", [
    (lambda lines: [*lines[:5], "Ġ", *lines[5:]], r"line 6 is \['Ġ'\]; want two tokens with one"),
    (lambda lines: [*lines[:5], "", *lines[5:]], r"line 6 is \[''\]; want two tokens"),
    (lambda lines: [*lines[:5], "a b c"], r"line 6 is \['a', 'b', 'c'\]"),
    (lambda lines: [*lines[:3], "q q", *lines[3:]],
     "line 4 joins 'q' and 'q', but vocab.json has no token 'qq'. One of the files is damaged"),
    (lambda lines: [*lines[:3], lines[1], *lines[3:]],
     "line 4 joins 'Ġ' and 'Ġ', but line 2 joins them, too; want each"),
    (lambda lines: lines[:20], "no pair makes .*, token 275 of vocab.json. If it is a special tok"),
    (lambda lines: [], "no pair makes 'ĠĠ', token 256")])
def test_damaged_merges_name_the_line(learned, tmp_path, merges, words):
    with pytest.raises(ValueError, match=words) as refused:
        edited(learned, tmp_path, merges=merges)
    assert "merges.txt" in str(refused.value)


def test_special_tokens_are_named_or_refused(learned, tmp_path):
    two = Tokenizer.learn(SOURCE, 300, [END, "<pad>"])
    two.save(tmp_path)
    files = tmp_path / "vocab.json", tmp_path / "merges.txt"
    assert Tokenizer.from_files(*files, [END, "<pad>"]).special_tokens == {END: 298, "<pad>": 299}
    with pytest.raises(ValueError, match="no pair makes '<pad>'.*name it in special_tokens"):
        Tokenizer.from_files(*files)
    with pytest.raises(ValueError, match="no special token '<sep>'. Add this entry to the"):
        Tokenizer.from_files(*files, [END, "<sep>"])
    clash = Tokenizer.learn("b", 300, ["a"])
    with pytest.raises(ValueError, match="'a' is a special token and also an ordinary"):
        clash.save(tmp_path)


def test_what_is_no_file_of_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer.json and no vocab.json; want a folder that"):
        Tokenizer.from_hugging_face(tmp_path)
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    for data, words in ((b"\xff{}", "byte 0 is not UTF-8"), (b'{"a": 1', "line 1 column 8"),
                        (b"[" * 100_000, "too deep|not a tokenizer.s JSON")):
        vocab.write_bytes(data)
        with pytest.raises(ValueError, match=f"vocab.json: .*{words}"):
            Tokenizer.from_files(vocab, merges)
    vocab.write_text(json.dumps({name: i for i, name in enumerate(CHARACTERS)}), "utf-8")
    with pytest.raises(ValueError, match="merges.txt: cannot be read .No such file"):
        Tokenizer.from_files(vocab, merges)
    merges.write_text("")
    twice = vocab.read_text("utf-8").removesuffix("}") + ', "!": 256}'
    vocab.write_text(twice, "utf-8")  # JSON keeps the last of two entries with one name
    with pytest.raises(ValueError, match="none of .* has the id 33"):
        Tokenizer.from_files(vocab, merges)
    merges.unlink()
    os.mkfifo(merges)  # reading it would wait for ever
    with pytest.raises(ValueError, match="merges.txt: cannot be read .it is not an ordinary file"):
        Tokenizer.from_files(vocab, merges)


# -- tokenizer.json, written by hand

def one_file(learned, **changes):
    names = {spell(word): i for i, word in learned.vocab.items()}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": name, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for name, i in learned.special_tokens.items()],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                  "vocab": names | learned.special_tokens,
                  "merges": [f"{spell(left)} {spell(right)}" for left, right in learned.merges],
                  } | changes.pop("model", {})} | changes


def read_one(found, folder):
    (folder / "tokenizer.json").write_text(json.dumps(found), "utf-8")
    return Tokenizer.from_hugging_face(folder)


def split_by(regex, **changes):
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split | changes, level]}


def test_one_file_has_all_of_it(learned, tmp_path):
    assert read_one(one_file(learned), tmp_path).__reduce__() == learned.__reduce__()
    pairs = [[spell(left), spell(right)] for left, right in learned.merges]  # the newer form
    read = read_one(one_file(learned, pre_tokenizer=split_by(GPT2), model={"merges": pairs}),
                    tmp_path)
    assert read.__reduce__() == learned.__reduce__()


def test_llama_3_takes_whole_words_and_cuts_digits(learned, tmp_path):
    names = {spell(word): i for i, word in learned.vocab.items()} | {"1234": 300, "Ġself": 301}
    found = one_file(learned, pre_tokenizer=split_by(LLAMA3),
                     model={"ignore_merges": True, "vocab": names})
    read = read_one(found, tmp_path)
    assert read.pattern == LLAMA3 and read.encode(" self") == [301]
    assert read.encode("1234") == [49, 50, 51, 52]  # "123" and "4": no word is "1234"
    with pytest.raises(ValueError, match="This tokenizer cuts a text in another way"):
        read.save(tmp_path)


@pytest.mark.parametrize("changes, words", [
    ({"model": {"type": "WordPiece"}}, "want a model of type BPE"),
    ({"model": {"byte_fallback": True}}, "model.byte_fallback is True; want false, because"),
    ({"model": {"dropout": 0.1}}, "model.dropout is 0.1"),
    ({"model": {"end_of_word_suffix": "</w>"}}, "model.end_of_word_suffix is '</w>'"),
    ({"model": {"merges": None}}, "model.merges is None; want a list of pairs"),
    ({"model": {"merges": [["a", 1]]}}, r"model.merges\[0\] is \['a', 1\]; want two tokens"),
    ({"model": {"vocab": 5}}, "the vocabulary is 5; want an object"),
    ({"normalizer": {"type": "NFC"}}, "normalizer is {'type': 'NFC'}; want null"),
    ({"pre_tokenizer": None}, "pre_tokenizer is None; want ByteLevel with add_prefix"),
    ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "pre_tokenizer is "),
    ({"pre_tokenizer": split_by("(a+)+b")}, "pre_tokenizer is "),  # it could take for ever
    ({"pre_tokenizer": split_by(GPT2, behavior="Removed")}, "pre_tokenizer is "),
    ({"pre_tokenizer": split_by(GPT2, pattern=3)}, "pre_tokenizer is "),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": 5}}, "pre_tokenizer is "),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [None, 3]}}, "pre_tokenizer is "),
    ({"added_tokens": 7}, r"added_tokens\[0\] is None; want an object with "),
    ({"added_tokens": [{"id": 299, "content": END}]}, "'<|endoftext|>', is not special; want "),
    ({"added_tokens": [{"id": 299, "content": END, "special": True, "lstrip": True}]}, "lstrip"),
    ({"added_tokens": [{"id": 5}]}, r"added_tokens\[0\] is {'id': 5}; want an object with "),
    ({"added_tokens": [{"id": 298, "content": END, "special": True}]}, "and another id in"),
    ({"added_tokens": [{"id": 300, "content": "\ud83d", "special": True}]}, "half of a surro"),
    ({"added_tokens": [{"id": 299, "content": END, "special": True}] * 2}, "comes a second time"),
])
def test_what_minidl_does_not_have_is_named(learned, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words.replace("|", r"\|")) as refused:
        read_one(one_file(learned, **changes), tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(refused.value)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer.json"])
def test_damaged_files_are_read_right_or_refused(learned, tmp_path, name):
    learned.save(tmp_path)
    one = tmp_path / "tokenizer.json"
    if name == one.name:
        one.write_text(json.dumps(one_file(learned), ensure_ascii=False), "utf-8")
    path, n_refused = tmp_path / name, 0
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        try:
            read = Tokenizer.from_hugging_face(tmp_path)
        except ValueError as error:
            n_refused += 1
            assert str(tmp_path) in str(error)
        else:
            assert read.__reduce__() == learned.__reduce__()
    assert n_refused > 25
