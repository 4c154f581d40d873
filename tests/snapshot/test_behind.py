"""Snapshots behind the next steps: the state of the step they are of, and no more memory than said.
"""

import os
import threading

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim, snapshot
from minidl.comm import simulate
from minidl.comm.chunks import bounds
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel import DataParallel, Zero1
from minidl.snapshot import Behind, durable
from minidl.snapshot.snapshot import SnapshotError


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)


def trained(t, wrap=DataParallel):
    """(model, optimizer) after a step of Adam."""
    minidl.manual_seed(0)
    model = wrap(nn.Linear(7, 5), t)
    optimizer = optim.AdamW(model.shards() if wrap is Zero1 else model.parameters(), lr=0.1)
    step(model, optimizer, 1.0)
    return model, optimizer


def step(model, optimizer, value):
    (model(np.full((2, 7), value, np.float32)) ** 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if isinstance(model, Zero1):
        model.gather()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("wrap", [DataParallel, Zero1])
def test_it_writes_the_bytes_of_save_though_training_goes_on(n, wrap, tmp_path):
    def rank(t):
        model, optimizer = trained(t, wrap)
        snapshot.save(tmp_path / "now", 1, t, model=model, optimizer=optimizer)
        behind = Behind(t)
        behind.save(tmp_path / "behind", 1, model=model, optimizer=optimizer)
        for p in optimizer.parameters():  # at once: the thread has not begun
            p.data += 1
        behind.close()

    simulate(n, rank)
    assert files(tmp_path / "now") == files(tmp_path / "behind")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("wrap", [DataParallel, Zero1])
def test_the_copy_is_the_ranks_share_of_weights_and_moments(n, wrap, tmp_path):
    def rank(t):
        model, optimizer = trained(t, wrap)
        behind = Behind(t)
        behind.save(tmp_path, 1, model=model, optimizer=optimizer)
        held = memory.report(communication=[behind])
        behind.close()
        return behind.n_bytes, held, behind.communication_buffers()

    weights, total = 7 * 5 + 5, 0
    for r, (n_bytes, held, after) in enumerate(simulate(n, rank)):
        if wrap is DataParallel:  # weights, m, v: 12 bytes each, cut among the ranks
            low, high = bounds(3 * weights, n)[r:r + 2]
            assert n_bytes == 4 * (high - low)
        assert f"{n_bytes:,}" in held and after == []
        total += n_bytes
    assert total == 12 * weights


def test_one_that_has_not_been_written_is_waited_for(tmp_path):
    """So there is never a second copy."""

    def rank(t):
        model, optimizer = trained(t)
        behind = Behind(t)
        for at in (1, 2, 3):
            behind.save(tmp_path, at, model=model, optimizer=optimizer)
            assert snapshot.latest(tmp_path) == (at - 1 or None)
        behind.wait()
        assert snapshot.latest(tmp_path) == 3
        behind.close()

    simulate(2, rank)


def test_a_rank_that_cannot_write_fails_on_all_and_leaves_the_one_before(tmp_path, monkeypatch):
    class Full:
        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, file, data):
            if ".1-of-2" in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(28, "No space left on device")
            return os.write(file, data)

    def rank(t):
        model, optimizer = trained(t)
        behind = Behind(t)
        behind.save(tmp_path, 1, model=model, optimizer=optimizer)
        behind.wait()
        monkeypatch.setattr(durable, "os", Full())
        behind.save(tmp_path, 2, model=model, optimizer=optimizer)
        with pytest.raises(SnapshotError, match="rank 1: cannot write step 2 .*No space left"):
            behind.wait()

    simulate(2, rank)
    assert snapshot.steps(tmp_path) == [1]


def test_what_cannot_be_saved_is_said_at_once(tmp_path):
    def rank(t):
        model, optimizer = trained(t)
        Behind(t).save(tmp_path, 1, model=model, scheduler=object())

    with pytest.raises(RankFailed) as failure:
        simulate(1, rank)
    assert isinstance(failure.value.__cause__, TypeError)


def test_no_thread_is_left():
    before = threading.active_count()
    simulate(2, lambda t: Behind(t).close())
    assert threading.active_count() == before
