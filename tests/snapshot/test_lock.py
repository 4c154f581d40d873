"""A folder of snapshots has one writer at a time; a damaged snapshot names one that is whole."""

import os
import re
import signal
import subprocess
import sys

import pytest

from minidl import nn, snapshot
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.snapshot import lock
from minidl.snapshot.snapshot import SnapshotError
from tests.conftest import ranks
from tests.mpi.launch import ROOT
from tests.snapshot.test_snapshot import common_folder
from tests.snapshot.test_snapshot_crashes import only, save_small, small

HOLDER = """
import pathlib, sys
sys.path.insert(0, "minidl/snapshot")
from lock import only_writer  # alone: the package takes a second to import
with only_writer(pathlib.Path(sys.argv[1])) as other:
    print(other or "mine", flush=True)
    sys.stdin.read()
"""
WRITER = """
import sys, time
from minidl import nn, snapshot
model, n_saved = nn.Linear(3, 2), 0
print("ready", flush=True)
sys.stdin.readline()
while n_saved < 15:
    try:
        snapshot.save(sys.argv[1], (snapshot.latest(sys.argv[1]) or 0) + 1, model=model)
        n_saved += 1
    except snapshot.SnapshotError as error:
        assert "belongs to one run" in str(error) or "holds the later step" in str(error), error
        time.sleep(0.01)
print(n_saved)
"""


def python(code, folder):
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], text=True, cwd=ROOT,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_second_writer_is_told_who_the_first_is_and_since_when(tmp_path):
    holder = python(HOLDER, tmp_path)
    try:
        assert holder.stdout.readline() == "mine\n"
        words = (rf"rank 0: wanted to save into {tmp_path}, but the folder is locked by process "
                 rf"{holder.pid} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d. .* another folder, "
                 "or end ")
        with pytest.raises(SnapshotError, match=words):
            snapshot.save(tmp_path, 1, model=small(1))
        with pytest.raises(RankFailed, match=words):  # all ranks raise: none waits
            save_small(3, tmp_path, 1)
        assert snapshot.steps(tmp_path) == []
        holder.send_signal(signal.SIGKILL)  # what a dead process leaves blocks nobody
        holder.wait()
        assert (tmp_path / "lock").exists()
        snapshot.save(tmp_path, 1, model=small(1))
        assert snapshot.steps(tmp_path) == [1] and not (tmp_path / "lock").exists()
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.slow
def test_two_runs_that_save_into_one_folder_leave_whole_snapshots(tmp_path):
    """Before the lock 132 of 300 saves raised FileNotFoundError."""
    writers = [python(WRITER, tmp_path) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        outs = [writer.communicate(timeout=60)[0] for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
    assert outs == ["15\n", "15\n"]
    for step in snapshot.steps(tmp_path):
        assert snapshot.load(tmp_path, model=small(0), step=step) == step
    assert sorted(path.suffix for path in tmp_path.iterdir()) == 2 * [".json"] + 2 * [
        ".safetensors"]


@ranks(2, 3)
def test_ranks_that_forget_the_transport_are_told(t):
    """Each of them saves alone, into the others' folder."""
    with common_folder(t) as folder:
        if t.rank == 0:
            with lock.only_writer(folder):
                with pytest.raises(SnapshotError, match=r"give all ranks its transport: save\("):
                    snapshot.save(folder, 1, model=small(1))


def test_the_lock_is_let_go_when_a_save_fails(tmp_path):
    with pytest.raises(ValueError, match="planted"), lock.only_writer(tmp_path) as other:
        assert other == ""
        raise ValueError("planted")
    with lock.only_writer(tmp_path) as other:
        assert other == ""


def test_a_file_that_its_holder_removed_meanwhile_is_not_a_lock(tmp_path, monkeypatch):
    real, opened = lock.fcntl.flock, []

    def removed_before_the_first(file, how):
        if not opened:
            os.unlink(tmp_path / "lock")
        opened.append(file)
        real(file, how)

    monkeypatch.setattr(lock.fcntl, "flock", removed_before_the_first)
    with lock.only_writer(tmp_path) as first:
        with lock.only_writer(tmp_path) as second:
            assert first == "" and second and len(opened) == 3


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def none(file, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    with pytest.warns(UserWarning, match="this file system has no locks .Function not implemented"):
        snapshot.save(tmp_path, 1, model=small(1))
    assert snapshot.steps(tmp_path) == [1]


# -- a damaged snapshot: another one


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("what", ["step-00000004.json", "step-00000004.1-of-2.*"])
def test_a_damaged_snapshot_names_the_last_one_before_it_that_is_whole(n, what, tmp_path):
    for step in range(1, 6):
        simulate(2, lambda t, step=step: snapshot.save(
            tmp_path, step, t, model=small(step), keep=5))
    cut(only(tmp_path, what))
    cut(only(tmp_path, "step-00000003.0-of-2.*"))
    cut(only(tmp_path, "step-00000002.json"))

    def load(t):
        words = (rf"{what[:13]}.*Step 1 is not damaged. Load it with load\(..., step=1\), .* "
                 rf"--resume {tmp_path}@1")
        with pytest.raises(SnapshotError, match=words):
            snapshot.load(tmp_path, t, model=small(0), step=4)

    simulate(n, load)


def test_where_none_before_it_is_whole_it_is_one_after_it_or_none(tmp_path):
    model = nn.Linear(3, 2)
    for step in (1, 2):
        snapshot.save(tmp_path, step, model=model)
    cut(only(tmp_path, "step-00000001.*.safetensors"))
    with pytest.raises(SnapshotError, match=re.escape("Step 2 is not damaged. Load it wi")):
        snapshot.load(tmp_path, model=model, step=1)
    only(tmp_path, "step-00000002.*.safetensors").unlink()
    with pytest.raises(SnapshotError, match="The folder has no other undamaged snapsh"):
        snapshot.load(tmp_path, model=model)


def test_a_step_may_follow_the_name_of_a_folder(tmp_path, monkeypatch):
    assert snapshot.at_step("runs@12") == ("runs", 12)
    assert snapshot.at_step("a/b@c@0012") == ("a/b@c", 12)
    assert snapshot.at_step("runs") == ("runs", None)
    assert snapshot.at_step("me@home") == ("me@home", None)
    assert snapshot.at_step("@3") == ("", 3)
    monkeypatch.chdir(tmp_path)
    os.mkdir("runs@12")
    assert snapshot.at_step("runs@12") == ("runs@12", None)
