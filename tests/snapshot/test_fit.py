"""A snapshot that does not fit is refused whole, before anything has changed."""

import json
import os

import numpy as np
import pytest

import minidl
from minidl import nn, optim, snapshot
from minidl.precision.grad_scaler import GradScaler
from minidl.snapshot import SnapshotError, durable, regions


@pytest.fixture
def saved(tmp_path):
    minidl.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = optim.Adam(model.parameters())
    model(minidl.ones(2, 4)).sum().backward()
    optimizer.step()
    snapshot.save(tmp_path, 7, model=model, optimizer=optimizer, scaler=GradScaler())
    return tmp_path


def index_of(folder):
    return json.loads((folder / "step-00000007.json").read_text())["body"]


def write(folder, body):
    (folder / "step-00000007.json").write_bytes(durable.sealed(body))


def refused(folder, words):
    """Loading it raises SnapshotError, and no object has changed."""
    model = nn.Linear(4, 3)
    optimizer = optim.Adam(model.parameters())
    before = {name: x.array.copy() for name, x in model.state_dict().items()}
    with pytest.raises(SnapshotError, match=words):
        snapshot.load(folder, model=model, optimizer=optimizer, scaler=GradScaler())
    assert optimizer.state == {}
    for name, x in model.state_dict().items():
        assert np.array_equal(x, before[name])


@pytest.mark.parametrize("name", [
    "../secret", "/etc/passwd", "step-00000007.0-of-1.0123abcd.safetensors/../../x", "", 3, None])
def test_an_index_cannot_name_files_outside_of_its_folder(saved, name):
    body = index_of(saved)
    body["files"][0]["name"] = name
    write(saved, body)
    refused(saved, "wanted every entry of 'files' in the form that save")


def test_all_that_differs_is_listed(saved):
    model = nn.Linear(5, 2, bias=False)
    with pytest.raises(SnapshotError) as caught:
        snapshot.load(saved, model=model, optimizer=optim.SGD(model.parameters()), sampler=None,
                      losses=GradScaler())
    text = str(caught.value)
    for words in ("holds no losses", "param/weight: wanted", "param/bias: wanted",
                  "the options ['amsgrad', 'betas', 'eps']; this optimizer has only"):
        assert words in text, text


def test_what_the_files_do_not_hold_is_noticed_before_anything_changes(saved):
    body = index_of(saved)
    holds = body["files"][0]["holds"]
    del holds[[key for key, *_ in holds].index("exp_avg/weight")]
    write(saved, body)
    refused(saved, "do not hold all of elements 0 to 12 of exp_avg/weight")


def test_a_state_of_another_form_is_refused_before_anything_changes(saved):
    body = index_of(saved)
    del body["others"]["scaler"]["scale"]
    write(saved, body)
    refused(saved, "scaler: wanted a state with the keys")


def test_a_stray_file_of_a_similar_name_is_no_snapshot(saved):
    for name in ("step-notes.json", "step-00000009.json.bak", "my-step-00000009.json"):
        (saved / name).write_text("{}")
    assert snapshot.steps(saved) == [7]
    snapshot.save(saved, 8, model=nn.Linear(4, 3), keep=1)
    assert (saved / "step-notes.json").exists()


def test_covered_is_true_where_no_element_is_missing():
    for written, expected in (([(0, 4), (4, 9)], True), ([(4, 9), (0, 4)], True),
                              ([(0, 4), (5, 9)], False), ([(0, 6), (2, 9)], True),
                              ([(0, 8)], False), ([], False), ([(1, 9)], False)):
        assert regions.covered(0, 9, [(*part, None) for part in written]) == expected
    assert regions.covered(3, 3, [])


def test_a_failed_write_leaves_no_open_file(tmp_path, monkeypatch):
    def full(file, data):
        raise OSError(28, "No space left on device")

    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else None
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        durable.write(tmp_path / "x", [b"data"])
    monkeypatch.undo()
    assert before is None or len(os.listdir("/proc/self/fd")) == len(before)
