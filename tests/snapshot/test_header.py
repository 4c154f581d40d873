"""A safetensors file of others: what its library refuses is refused, and by one class."""

import json
import struct

import numpy as np
import pytest

from minidl.snapshot import SnapshotError, from_hugging_face, header
from minidl.snapshot.hugging_face import Tensors
from tests.damaged import N, at_most, damaged
from tests.snapshot.test_hugging_face import GPT2, LLAMA, folder, gpt2_tensors, llama_tensors


def entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(told, body=b"", n=None):
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack("<Q", len(text) if n is None else n) + text + body


A = entry([1], [0, 4])
TEXT = json.dumps(A)
GOOD = {
    "nothing": file_of({}),
    "one": file_of({"a": A}, bytes(4)),
    "in any order": file_of({"b": entry([2], [4, 8], "F16"), "a": A}, bytes(8)),
    "an empty one between": file_of(
        {"a": A, "z": entry([0, 3], [4, 4]), "b": entry([1], [4, 8])}, bytes(8)),
    "an empty one of a large shape": file_of({"a": entry([0, 2**62, 4], [0, 0])}),
    "spaces": file_of(b" \n" + json.dumps({"a": A}).encode() + b"  \t", bytes(4)),
    "metadata": file_of({"__metadata__": {"format": "pt"}, "a": A}, bytes(4)),
    "half bytes": file_of({"a": entry([4], [0, 2], "F4")}, bytes(2)),
    "70 dimensions": file_of({"a": entry([1] * 70, [0, 4])}, bytes(4)),
}
WRONG = {
    "empty file": b"", "7 bytes": bytes(7), "header beyond the file": file_of(b"{}", n=100),
    "header of 2**63 bytes": file_of(b"{}", n=2**63),
    "overlap": file_of({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, bytes(12)),
    "hole": file_of({"a": A, "b": entry([1], [8, 12])}, bytes(12)),
    "bytes before the first": file_of({"a": entry([1], [4, 8])}, bytes(8)),
    "trailing bytes": file_of({"a": A}, bytes(8)),
    "cut off": file_of({"a": entry([2], [0, 8])}, bytes(4)),
    "end before begin": file_of({"a": entry([1], [4, 0])}, bytes(4)),
    "negative shape": file_of({"a": entry([-1, -1], [0, 4])}, bytes(4)),
    "shape of floats": file_of({"a": entry([1.0], [0, 4])}, bytes(4)),
    "shape of bools": file_of({"a": entry([True], [0, 4])}, bytes(4)),
    "shape of text": file_of({"a": entry("1", [0, 4])}, bytes(4)),
    "offsets of floats": file_of({"a": entry([1], [0.0, 4.0])}, bytes(4)),
    "3 offsets": file_of({"a": entry([1], [0, 4, 8])}, bytes(8)),
    "offsets of null": file_of({"a": entry([1], None)}, bytes(4)),
    "minus zero": file_of(b'{"a":' + TEXT.replace("[0,", "[-0,").encode() + b"}", bytes(4)),
    "no shape": file_of({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)),
    "unknown dtype": file_of({"a": entry([1], [0, 4], "F99")}, bytes(4)),
    "dtype of a list": file_of({"a": entry([1], [0, 4], ["F32"])}, bytes(4)),
    "half of a byte": file_of({"a": entry([3], [0, 2], "F4")}, bytes(2)),
    "other size than its shape": file_of({"a": entry([3], [0, 8])}, bytes(8)),
    "too large": file_of({"a": entry([2**62, 4], [0, 0])}),
    "overflow": file_of({"a": entry([2**32, 2**32], [0, 0])}),
    "overflow times 0": file_of({"a": entry([2**62, 4, 0], [0, 0])}),
    "more than 64 bits": file_of({"a": entry([2**64, 0], [0, 0])}),
    "a key twice": file_of(
        f'{{"a":{TEXT},"a":{TEXT.replace("[0, 4]", "[4, 8]")}}}'.encode(), bytes(8)),
    "a field twice": file_of(b'{"a":{"dtype":"F32",' + TEXT[1:].encode() + b"}", bytes(4)),
    "a list": file_of([1, 2]), "null": file_of(None), "a tensor of null": file_of({"a": None}),
    "bad utf-8": file_of(b'{"\xff":1}'),
    "half of a pair": file_of(b'{"__metadata__":{"a":"\\ud800"}}'),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}}),
    "metadata of a list": file_of({"__metadata__": []}),
    "NaN": file_of(b'{"__metadata__":NaN}'),
    "100,000 lists": file_of(b"[" * 100000),
    "100,000 dicts": file_of(b'{"a":' * 100000),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_format_allows_is_read(tmp_path, name):
    (tmp_path / "x").write_bytes(GOOD[name])
    assert header.read(tmp_path / "x").keys() == library(tmp_path / "x")


@pytest.mark.parametrize("name", WRONG)
def test_what_the_format_forbids_is_refused(tmp_path, name):
    (tmp_path / "x").write_bytes(WRONG[name])
    with at_most(20 << 20), pytest.raises(ValueError, match="not a complete safetensors file"):
        header.read(tmp_path / "x")
    assert library(tmp_path / "x") is None, "the library reads it"


def library(path):
    """The names that the safetensors library finds; None if it refuses the file."""
    safetensors = pytest.importorskip("safetensors", reason="pip install safetensors")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return set(file.keys())
    except safetensors.SafetensorError:
        return None


# The library reads these; the format's own text forbids or does not name them.
STRICTER = "the header has the key", "wanted a dict of dtype, shape and data_offsets"


def test_damaged_headers_are_read_and_refused_as_by_the_library(tmp_path):
    """The length of the header stays right in the first half: else most files fail there."""
    good = {"__metadata__": {"format": "pt", "a longer text": "0123456789" * 20},
            "first": entry([2, 3], [0, 24]), "second": entry([4], [24, 32], "BF16"),
            "third": entry([], [32, 36])}
    text, path, n_read, n_refused = json.dumps(good).encode(), tmp_path / "x", 0, 0
    files = [file_of(data) for data in damaged(text, n=10 * N)] + [*damaged(file_of(text), n=N)]
    for data in files:
        path.write_bytes(data + bytes(36))
        theirs = library(path)
        try:
            ours = set(header.read(path))
            assert ours == theirs, data
            n_read += 1
        except ValueError as error:
            assert theirs is None or any(words in str(error) for words in STRICTER), data
            n_refused += 1
    assert n_read > N // 5 and n_refused > N


@pytest.mark.parametrize("config, tensors", [(GPT2, gpt2_tensors), (LLAMA, llama_tensors)])
def test_a_damaged_folder_is_read_or_refused_by_one_class(tmp_path, config, tensors):
    folder(tmp_path, config, tensors())
    n_refused = 0
    for name in ("config.json", "model.safetensors"):
        file = tmp_path / name
        good = file.read_bytes()
        for data in damaged(good, n=N // 2):
            file.write_bytes(data)
            try:
                with at_most(20 << 20):
                    from_hugging_face(tmp_path)
            except SnapshotError:
                n_refused += 1
        file.write_bytes(good)
    assert n_refused > N // 3  # a flipped bit of a weight cannot be noticed
    from_hugging_face(tmp_path)


@pytest.mark.parametrize("change", [
    {"n_layer": 10**9}, {"n_layer": 0}, {"n_layer": 1.0}, {"n_layer": True}, {"vocab_size": 10**9},
    {"vocab_size": "13"}, {"n_embd": 1 << 39}, {"n_positions": 10**10}, {"n_head": 0},
    {"n_head": -2}, {"n_head": 3}, {"n_embd": None}, {"activation_function": []}])
def test_a_model_of_sizes_that_the_files_do_not_hold_is_not_made(tmp_path, change):
    folder(tmp_path, GPT2 | change, gpt2_tensors())
    with at_most(2 << 20), pytest.raises(SnapshotError):
        from_hugging_face(tmp_path)


@pytest.mark.parametrize("change", [
    {"hidden_size": 1 << 39}, {"intermediate_size": 10**9}, {"head_dim": 10**9},
    {"num_key_value_heads": 3}, {"rope_theta": "x"}, {"rms_norm_eps": [1]},
    {"rope_scaling": [1]}, {"rope_scaling": {"rope_type": "llama3"}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 0, "low_freq_factor": 1,
                      "high_freq_factor": 1, "original_max_position_embeddings": "x"}}])
def test_the_same_of_llama(tmp_path, change):
    folder(tmp_path, LLAMA | change, llama_tensors())
    with at_most(2 << 20), pytest.raises(SnapshotError):
        from_hugging_face(tmp_path)


def test_an_index_of_another_form_is_refused(tmp_path):
    folder(tmp_path, GPT2, gpt2_tensors())
    for told in ([], {}, {"weight_map": [1]}, {"weight_map": {"a": None}}, {"weight_map": {}}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(told))
        with pytest.raises(SnapshotError):
            from_hugging_face(tmp_path)


def test_a_shape_that_no_array_has_is_refused(tmp_path):
    for name in ("70 dimensions", "an empty one of a large shape"):
        (tmp_path / "model.safetensors").write_bytes(GOOD[name])
        with pytest.raises(SnapshotError, match="no array can have this shape"):
            Tensors(tmp_path)["a"]
    (tmp_path / "model.safetensors").write_bytes(GOOD["an empty one between"])
    assert Tensors(tmp_path)["z"].shape == (0, 3) and Tensors(tmp_path)["z"].dtype == np.float32
