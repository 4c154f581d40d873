"""`minidl profile` and `minidl trace`, on scripts that know nothing of them."""

import os
import subprocess
import sys

import pytest

from minidl.cli import main
from minidl.profile import trace
from tests.mpi.launch import ROOT, require_mpi
from tests.profile import cases

SCRIPT = """
import sys
import numpy as np, minidl
from minidl import comm, nn, optim
from minidl.parallel import DataParallel
t = comm.world() if {mpi} else None
model = nn.Linear(8, 4)
forward = DataParallel(model, t) if {mpi} else model
optimizer = optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    forward(minidl.ones(2, 8)).sum().backward()
    optimizer.step()
sys.exit({status})
"""


def write(tmp_path, mpi=False, status=0):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(mpi=mpi, status=status))
    return str(path)


def test_one_rank_in_this_process(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv[:])
    monkeypatch.setattr(sys, "path", sys.path[:])
    out = str(tmp_path / "mine")
    command = ["profile", "--out", out, "--memory", "--picture", write(tmp_path), "5"]
    assert main.main(command) == 0
    said = capsys.readouterr().out
    assert "a step, the mean of 4 on 1 rank\n" in said and "linear backward" in said
    assert "memory at the peak" in said
    assert all(os.path.exists(f"{out}.{kind}") for kind in ("json", "html", "png"))
    assert main.main(["trace", f"{out}.json"]) == 0
    assert capsys.readouterr().out.strip() in said


def test_a_script_that_fails_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv[:])
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(SystemExit) as end:
        main.main(["profile", "--out", str(tmp_path / "p"), write(tmp_path, status=3), "1"])
    assert end.value.code == 3 and not (tmp_path / "p.json").exists()


@pytest.mark.parametrize("ranks", [None, pytest.param(2, marks=pytest.mark.mpi)])
def test_a_file_that_cannot_be_written_is_named(ranks, tmp_path):
    """Red before: a full disk ended the command with a traceback that did not name the file."""
    if ranks:
        require_mpi()
    (tmp_path / "mine.json").symlink_to("/dev/full")
    command = [sys.executable, "-m", "minidl", "profile", "--out", "mine",
               *([] if ranks is None else ["-n", str(ranks)]),
               write(tmp_path, mpi=bool(ranks)), "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"cannot write {tmp_path / 'mine.json'}: No space left on device. Make" in done.stderr
    assert "a step, the mean of" in done.stdout


def test_what_is_no_trace_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    assert main.main(["trace", str(tmp_path / "x.json")]) == 2
    assert main.main(["trace", str(tmp_path / "none.json")]) == 2
    assert "want a trace file that" in capsys.readouterr().err


@pytest.mark.mpi
def test_ranks_of_mpi_in_one_file(tmp_path):
    require_mpi()
    done = subprocess.run(
        [sys.executable, "-m", "minidl", "profile", "-n", "2", "--out", str(tmp_path / "p"),
         write(tmp_path, mpi=True), "6"], capture_output=True, text=True, timeout=100, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "a step, the mean of 5 on 2 ranks" in done.stdout
    assert "exposed communication" in done.stdout and "clocks agree to" in done.stdout
    events, figures = trace.read(tmp_path / "p.json")
    assert {e["pid"] for e in events} == {0, 1}
    assert cases.problems(events, max(r["error_s"] for r in figures["ranks"])) == []
