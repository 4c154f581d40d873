"""minidl.save and load: the same values, no pickle, and a sentence where it cannot be."""

import io
import json
import pickle

import numpy as np
import pytest

import minidl
from minidl import nn, optim


def test_a_checkpoint_of_nested_dicts_comes_back(tmp_path):
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = optim.Adam(net.parameters())
    net(minidl.randn(4, 3)).sum().backward()
    optimizer.step()
    before = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
              "losses": [1.5, float("inf")], "best": None, "done": False, "name": "é",
              "shape": (2, 3), 7: minidl.tensor([True, False]), "empty": {}}
    minidl.save(before, tmp_path / "a.pt")
    after = minidl.load(str(tmp_path / "a.pt"))
    assert repr(after) == repr(before)  # the same types, orders, dtypes and values
    other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    other.load_state_dict(after["model"])
    optim.Adam(other.parameters()).load_state_dict(after["optimizer"])
    assert minidl.equal(other[0].weight, net[0].weight)
    after["model"]["0.weight"].fill_(9)  # memory of its own
    assert net[0].weight.max().item() < 9


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int16", "int32",
                                   "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_every_dtype_and_shape_comes_back(dtype, shape):
    x = minidl.tensor(np.random.default_rng(0).integers(0, 2, shape).astype(dtype))
    file = io.BytesIO()
    minidl.save([x, x], file)
    file.seek(0)
    for y in minidl.load(file):
        assert y.dtype == x.dtype and y.shape == x.shape and minidl.equal(x, y)


def test_bfloat16_comes_back():
    pytest.importorskip("ml_dtypes", reason="it has the dtype")
    file = io.BytesIO()
    minidl.save(minidl.ones(3, dtype=minidl.bfloat16), file)
    file.seek(0)
    assert minidl.load(file).dtype == minidl.bfloat16


def test_names_that_meet_stay_apart():
    file = io.BytesIO()
    minidl.save({"a": {"b": minidl.ones(1)}, "a.b": minidl.zeros(1),
                 "__metadata__": minidl.full((1,), 2.0)}, file)
    file.seek(0)
    found = minidl.load(file)
    assert [found["a"]["b"].item(), found["a.b"].item(), found["__metadata__"].item()] == [1, 0, 2]


def test_the_safetensors_library_reads_it_and_writes_what_is_read(tmp_path):
    library = pytest.importorskip("safetensors.numpy", reason="the oracle")
    minidl.save({"w": minidl.ones(2, 3)}, tmp_path / "ours")
    assert library.load_file(tmp_path / "ours")["w"].tolist() == [[1] * 3] * 2
    library.save_file({"w": np.zeros(2), "v": np.ones(3, np.int32)}, tmp_path / "theirs")
    found = minidl.load(tmp_path / "theirs")
    assert found["w"].tolist() == [0, 0] and found["v"].dtype == np.int32


@pytest.mark.parametrize("thing, words", [
    (nn.Linear(2, 2), "the object is of type Linear; .* save its state_dict"),
    ({"a": [1, {"b": print}]}, r"a.1.b is of type builtin_function_or_method"),
    ({(1, 2): 3}, "a key of the dict is a tuple")])
def test_what_a_file_cannot_hold_is_refused_by_its_place(tmp_path, thing, words):
    with pytest.raises(TypeError, match=f"minidl.save: {words}"):
        minidl.save(thing, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def saved():
    file = io.BytesIO()
    minidl.save({"w": minidl.ones(4)}, file)
    return file.getvalue()


def with_structure(told):
    """A file of the tensor w, whose structure is this text."""
    text = json.dumps({"__metadata__": {"minidl": told}, "w": {
        "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


@pytest.mark.parametrize("data", [
    b"", saved()[:-1], saved() + b"x", pickle.dumps({"w": np.ones(3)}), with_structure("{"),
    with_structure('{"run": "rm"}'), with_structure('{"tensor": "v"}'),
    with_structure("[1]"), with_structure('{"dict": [[[1], 2]]}'),
    with_structure('{"list": [' * 100_000)], ids=lambda data: repr(data[:20]))
def test_a_file_that_is_damaged_or_a_pickle_is_refused(data):
    with pytest.raises(ValueError, match="minidl.load: .*safetensors.torch.save_file"):
        minidl.load(io.BytesIO(data))
