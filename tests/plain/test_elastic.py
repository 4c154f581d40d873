"""The page and the real one: a run that dies ends in the bits of the uninterrupted one. A file is
written by the same calls in the same order."""

import os
import stat

import numpy as np
import pytest

import minidl
from minidl import elastic as real
from minidl import nn, optim
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.plain import data_parallel, elastic
from minidl.snapshot import durable
from tests.conftest import ranks

N_STEPS = 9


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Only a power failure needs it, and it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


class Killed(Exception):
    pass


def objects(t):
    minidl.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return {"model": model, "optimizer": optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def step_of(t, step, model, optimizer, kill=None):
    if (t.rank, step) == kill:
        raise Killed
    x = np.random.default_rng([step, t.rank]).normal(size=(4, 3))
    optimizer.zero_grad()
    F.mse_loss(model(minidl.tensor(x)), minidl.tensor(x[:, :2])).backward()
    # not DataParallel: the order of its buckets, and of their sums, is state that it saves itself
    means = data_parallel.mean_gradients(t, [p.grad.numpy() for p in model.parameters()], len(x))
    for p, mean in zip(model.parameters(), means):
        p.grad = minidl.tensor(mean)
    optimizer.step()


def weights(model):
    return [p.detach().numpy().copy() for p in model.parameters()]


def plain_run(t, folder, kill=None):
    """The page's loop around the real model: the state is its weights and momenta."""
    made = objects(t)
    model, optimizer = made["model"], made["optimizer"]
    params = list(model.parameters())

    def train(step, state):
        for i, p in enumerate(params):
            p.data = minidl.tensor(state[f"w{i}"])
        saved = optimizer.state_dict()
        if "m0" in state:
            saved["state"] = {i: {"momentum_buffer": minidl.tensor(state[f"m{i}"])}
                              for i in range(len(params))}
            optimizer.load_state_dict(saved)
        step_of(t, step, model, optimizer, kill=kill)
        for i, p in enumerate(params):
            state[f"w{i}"] = p.detach().numpy().copy()
            momentum = optimizer.state_dict()["state"][i]["momentum_buffer"]
            state[f"m{i}"] = np.array(momentum.numpy())

    start = {f"w{i}": p.detach().numpy().copy() for i, p in enumerate(params)}
    state = elastic.run(t, str(folder), start, train, N_STEPS, every=2)
    return [state[f"w{i}"] for i in range(len(params))]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_run_that_dies_has_the_bits_of_the_real_one(n, tmp_path):
    def whole(t):
        return weights(real.run(lambda t, step, **made: step_of(t, step, **made), objects, N_STEPS,
                                tmp_path / "real", 100, t)["model"])

    (tmp_path / "page").mkdir()
    for kill in ((0, 3), (n - 1, 7)):
        with pytest.raises(RankFailed):
            simulate(n, plain_run, tmp_path / "page", kill)
    newest = simulate(n, elastic.newest, str(tmp_path / "page"))
    assert len(set(newest)) == 1 and newest[0] >= 4, "step 4 was done on all ranks before step 7"
    for got, want in zip(simulate(n, plain_run, tmp_path / "page"), simulate(n, whole)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_counts_if_all_ranks_have_saved_it(tmp_path):
    def body(t):
        elastic.save(t, str(tmp_path), 4, {"x": np.array(t.rank)})
        if t.rank != 1:  # it dies here
            elastic.save(t, str(tmp_path), 6, {"x": np.array(t.rank)})

    def again(t):
        return elastic.newest(t, str(tmp_path)), elastic.load(t, str(tmp_path), 4)["x"].item()

    simulate(3, body)
    assert simulate(3, again) == [(4, 0), (4, 1), (4, 2)]


@ranks(1, 3, mpi=False)
def test_without_a_snapshot_a_run_begins_with_step_0(t):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        assert elastic.newest(t, folder) == 0


def test_a_file_is_written_in_the_real_ones_order(tmp_path, monkeypatch):
    """The bytes are on the disk before the name is there; then the folder."""
    def calls(write, path):
        seen = []
        monkeypatch.setattr(os, "fsync", lambda file: seen.append(
            ("fsync", "folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")))
        rename = os.rename
        monkeypatch.setattr(os, "replace", lambda a, b: (
            seen.append(("replace", os.fspath(b))), rename(a, b)))
        write(path)
        assert path.read_bytes() == b"new"
        return seen

    path = tmp_path / "x"
    ours = calls(lambda path: elastic.write(str(path), b"new"), path)
    theirs = calls(lambda path: durable.write(path, [b"n", b"ew"]), path)
    assert ours == theirs == [("fsync", "file"), ("replace", str(path)), ("fsync", "folder")]
