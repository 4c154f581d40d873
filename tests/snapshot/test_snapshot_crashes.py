"""A snapshot is there or not: crashes at any moment, damaged files, objects that do not fit."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.precision.amp import GradScaler
from minidl.snapshot import durable, snapshot
from minidl.snapshot.snapshot import SnapshotError
from tests.conftest import ranks
from tests.snapshot.test_snapshot import common_folder


class Crash(Exception):
    pass


class Disk:
    """`os` for durable.py. It dies at call k, and then what was not synced is lost: contents,
    and, as `lost` says, renames: "none", "all", or "files", all but the index's. With "all", what
    an index's removal removed is there again, and what a file's did is not."""

    def __init__(self, k, lost):
        self.k, self.lost, self.calls = k, lost, []
        self.paths, self.unsynced, self.renamed, self.removed = {}, {}, [], {}

    def __getattr__(self, name):
        return getattr(os, name)  # constants

    def call(self, name, *about):
        self.calls.append(name)
        return len(self.calls) == self.k

    def die(self):
        for dst, old in reversed(self.renamed):
            if self.lost == "all" or (self.lost == "files" and not str(dst).endswith(".json")):
                if old is None:
                    os.unlink(dst)
                else:
                    Path(dst).write_bytes(old)
        for path, data in self.removed.items() if self.lost == "all" else ():
            if path.suffix == ".json":
                path.write_bytes(data)
        for path, n_synced in self.unsynced.items():
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, n_synced)
        raise Crash(f"at call {self.k}, {self.calls[-1]}")

    def open(self, path, *flags):
        if self.call("open"):
            self.die()
        file = os.open(path, *flags)
        self.paths[file] = str(path)
        return file

    def write(self, file, data):
        dying = self.call("write")
        self.unsynced.setdefault(self.paths[file], 0)
        # a write may be short, also where nothing dies
        n = os.write(file, data[:max(1, len(data) // 2)])
        return self.die() if dying else n

    def fsync(self, file):
        if self.call("fsync"):
            self.die()
        os.fsync(file)
        self.unsynced.pop(self.paths[file], None)
        if os.path.isdir(self.paths[file]):
            self.renamed.clear()
            self.removed.clear()

    def replace(self, src, dst):
        old = Path(dst).read_bytes() if Path(dst).exists() else None
        if self.call("replace"):
            self.die()
        os.replace(src, dst)
        self.renamed.append((dst, old))
        if src in self.unsynced:
            self.unsynced[str(dst)] = self.unsynced.pop(src)

    def unlink(self, path):
        if self.call("unlink"):
            self.die()
        self.removed[path] = path.read_bytes()
        os.unlink(path)

    def close(self, file):
        os.close(file)
        del self.paths[file]


def small(value):
    minidl.manual_seed(0)
    model = nn.Linear(3, 2)
    model.weight.array[...] = value
    return model


def save_small(n, folder, step):
    """By n ranks that all have the whole."""
    simulate(n, lambda t: snapshot.save(folder, step, t, model=small(step)))


@pytest.mark.parametrize("n, lost", [(1, "none"), (1, "files"), (2, "files"), (2, "all")])
def test_a_crash_at_any_call_leaves_the_previous_snapshot_or_the_new_one(n, lost, tmp_path,
                                                                         monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # what is lost, Disk decides
    k, before = 0, 2
    seen = set()
    for step in (1, 2):
        save_small(n, tmp_path / "first", step)
    while True:
        k += 1
        folder = tmp_path / str(k)
        shutil.copytree(tmp_path / "first", folder)
        disk = Disk(k, lost)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(durable, "os", disk)
                save_small(n, folder, 3)
        except RankFailed as failure:
            assert isinstance(failure.__cause__, Crash)
            model = small(0)
            step = snapshot.load(folder, model=model)
            assert step in (2, 3) and (model.weight.array == step).all()
            assert step >= before, "once it can be loaded, it can be loaded after later calls"
            for older in snapshot.steps(folder):  # an index has its files
                assert snapshot.load(folder, model=model, step=older) == older
            before = step
            seen.add((disk.calls[-1], step))
            save_small(n, folder, 3)  # a second try, over what the first one left
            assert snapshot.steps(folder) == [2, 3]
            assert len(list(folder.iterdir())) == 2 * (n + 1)
        else:
            break
    assert not disk.paths, "a file was left open"
    assert {"open", "write", "fsync", "replace", "unlink"} <= {call for call, _ in seen}
    assert ("unlink", 3) in seen and ("unlink", 2) not in seen
    assert k == len(disk.calls) + 1 > 20


@pytest.mark.parametrize("dies", range(3))
def test_a_rank_that_dies_leaves_the_previous_snapshot(dies, tmp_path, monkeypatch):
    def second(t):
        if t.rank == dies:
            monkeypatch.setattr(durable, "write", None)  # the next call of anybody
        snapshot.save(tmp_path, 2, model=Zero2(small(2), t))

    simulate(3, lambda t: snapshot.save(tmp_path, 1, model=Zero2(small(1), t)))
    with pytest.raises(RankFailed, match="not callable"):
        simulate(3, second)
    monkeypatch.undo()
    assert snapshot.latest(tmp_path) == 1


# -- damage and misuse


@pytest.fixture
def saved(tmp_path):
    minidl.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = optim.Adam(model.parameters())
    model(minidl.ones(2, 4)).sum().backward()
    optimizer.step()
    snapshot.save(tmp_path, 7, model=model, optimizer=optimizer)
    return tmp_path, model, optimizer


def only(folder, pattern):
    path, = folder.glob(pattern)
    return path


def test_an_altered_file_is_named(saved):
    folder, model, optimizer = saved
    path = only(folder, "*.safetensors")
    data = bytearray(path.read_bytes())
    before = model.weight.array.copy()
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotError, match=rf"{path.name} was altered: wanted sha256 \w+, got"):
        snapshot.load(folder, model=model, optimizer=optimizer)
    path.write_bytes(data[:-5])
    with pytest.raises(SnapshotError, match=rf"another size: wanted {len(data):,} bytes; got"):
        snapshot.load(folder, model=model, optimizer=optimizer)
    path.unlink()
    with pytest.raises(SnapshotError, match="is missing"):
        snapshot.load(folder, model=model, optimizer=optimizer)
    np.testing.assert_array_equal(model.weight.array, before)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("damaged", range(3))
def test_every_file_is_checked_whoever_loads(n, damaged, tmp_path):
    """And all ranks say which, though one of them has read it."""
    save_small(3, tmp_path, 1)
    path = only(tmp_path, f"*.{damaged}-of-3.*")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def load(t):
        with pytest.raises(SnapshotError, match=rf"{path.name} was altered"):
            snapshot.load(tmp_path, t, model=small(0))

    simulate(n, load)


@ranks(2, 3, 4)
def test_on_return_the_snapshot_is_there_on_every_rank(t):
    with common_folder(t) as folder:
        for step in (1, 2):
            snapshot.save(folder, step, t, model=small(step))
            assert snapshot.latest(folder) == step


@pytest.mark.parametrize("change", [
    lambda s: s[:-20], lambda s: s.replace('"step": 7', '"step": 8'), lambda s: "", lambda s: "[]"])
def test_an_altered_index_is_named(saved, change):
    folder, model, _ = saved
    path = only(folder, "*.json")
    path.write_text(change(path.read_text()))
    with pytest.raises(SnapshotError, match=rf"{path.name}: (wanted sha256|the file)"):
        snapshot.load(folder, model=model)


def test_beside_a_damaged_index_no_file_is_removed(tmp_path):
    for step in (1, 2, 3):
        snapshot.save(tmp_path, step, model=small(step))
        only(tmp_path, "step-00000001*.safetensors" if step < 3 else "step-00000002*.safetensors")
        path = tmp_path / "step-00000002.json"
        if step == 2:
            path.write_text(path.read_text()[:-20])


def test_the_file_is_safetensors_and_the_index_is_json(saved):
    from safetensors.numpy import load_file

    folder, model, _ = saved
    tensors = load_file(only(folder, "*.safetensors"))
    np.testing.assert_array_equal(tensors["param/weight/0"], model.weight.array.reshape(-1))
    assert json.loads(only(folder, "*.json").read_text())["body"]["state"]["bias"] == {
        "arrays": ["exp_avg", "exp_avg_sq"], "numbers": {"step": 1}}


@pytest.mark.parametrize("other, words", [
    (lambda: {"model": nn.Linear(5, 3)}, r"param/weight: wanted .*\(3, 4\).* has \(\(3, 5\)"),
    (lambda: {"model": nn.Linear(4, 3, bias=False)}, "param/bias: wanted .* has none"),
    (lambda: {"model": nn.Linear(4, 3).half()}, "wanted .*float32.* has .*float16"),
    (lambda: {"model": nn.Linear(4, 3), "scaler": GradScaler()}, "holds no scaler"),
    (lambda: {"model": nn.Linear(4, 3), "losses": GradScaler()}, "holds no losses"),
    (lambda: {"model": nn.Linear(4, 3), "optimizer": optim.SGD([minidl.nn.Parameter(
        np.zeros(2, "f4"))])}, r"shape \(2,\) that is not the model's"),
])
def test_another_model_is_an_error(saved, other, words):
    folder, *_ = saved
    with pytest.raises(SnapshotError, match=words):
        snapshot.load(folder, **other())


def test_what_has_no_state_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="rank 0: the argument kep must be a list, .*; got int"):
        snapshot.save(tmp_path, 1, model=small(1), kep=3)


@pytest.mark.parametrize("stage", [DataParallel, Zero1, Zero2, Zero3])
@ranks(1, 2)
def test_gradients_that_wait_for_the_others_are_an_error(t, stage):
    model = stage(small(1), t)
    x = minidl.ones(2, 3)
    with common_folder(t) as folder:
        with model.no_sync():
            model(x).sum().backward()
        with pytest.raises(SnapshotError, match=r"rank 0: gradients of 2 samples were .* no_sync"):
            snapshot.save(folder, 1, model=model)
        model(x).sum().backward()
        snapshot.save(folder, 1, model=model)
    model.close()


def test_no_snapshot_is_an_error_and_latest_says_so(tmp_path):
    assert snapshot.latest(tmp_path) is None
    with pytest.raises(SnapshotError, match="wanted a snapshot; the folder has no snap"):
        snapshot.load(tmp_path, model=nn.Linear(2, 2))


def test_an_older_step_can_be_loaded_but_not_written_over_a_later_one(tmp_path):
    for step in (1, 2):
        snapshot.save(tmp_path, step, model=small(step))
    model = small(0)
    assert snapshot.load(tmp_path, model=model, step=1) == 1 and (model.weight.array == 1).all()
    with pytest.raises(SnapshotError, match="holds the later step 2"):
        snapshot.save(tmp_path, 1, model=model)


def test_a_parameter_without_state_cannot_share_a_shard_with_one_that_has(tmp_path):
    minidl.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = optim.Adam(model.parameters())
    model.weight.grad = np.ones((3, 4), "f4")
    optimizer.step()
    snapshot.save(tmp_path, 1, model=model, optimizer=optimizer)

    def read(t):
        zero = Zero2(nn.Linear(4, 3), t)
        with pytest.raises(SnapshotError, match="share a shard here, but their states differ"):
            snapshot.load(tmp_path, model=zero, optimizer=optim.Adam(zero.shards()))
        zero.close()

    simulate(2, read)
