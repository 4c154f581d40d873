"""Training on a stream, killed at any moment: the same bits, every offset once. See kills.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minidl.comm import simulate
from tests.conftest import some, whole_form
from tests.data.stream import kills
from tests.mpi.launch import ROOT, mpiexec, require_mpi, under_both

SCRIPT = Path(__file__).with_name("kills.py")


@pytest.mark.slow
@whole_form
def test_processes_killed_at_random_moments_end_in_the_same_bits(tmp_path):
    """Each time going on with another number of workers and servers."""
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "3", "3"],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert "each ended in the same bits, every offset once" in done.stdout, done.stderr


@pytest.mark.mpi
@pytest.mark.slow
def test_a_killed_worker_and_a_killed_server_under_mpi(tmp_path):
    """3 ranks whose worker dies, then 2 whose server dies, then 1 to the end: that of one run."""
    require_mpi()
    for n, rank, at in some([(3, 2, 8), (2, 0, 12)]):
        done = mpiexec(n, SCRIPT, tmp_path, "rank", 1, rank, at, 0, timeout=60)
        assert done.returncode and (tmp_path / "killed").exists(), "it was killed"
    done = mpiexec(1, SCRIPT, tmp_path, "rank", 0, 9, 0, 0, timeout=60)
    whole = kills.digest(simulate(1, kills.train, tmp_path / "whole", 0))
    assert done.stdout.split()[-1:] == [whole], done.stderr


@pytest.mark.mpi
@pytest.mark.slow
@whole_form
@under_both
@pytest.mark.timeout(400)  # a dozen starts of MPI
def test_ranks_killed_one_at_a_time_at_random_moments_under_mpi(tmp_path, capfd, mpi):
    require_mpi(mpi)
    kills.under_mpi(tmp_path, 3, 3, mpi)
    assert "each ended in the same bits, every offset once" in capfd.readouterr().out


def test_the_check_sees_what_is_lost_and_what_comes_twice(tmp_path):
    ranks = simulate(1, kills.train, tmp_path, 0)
    count = ranks[0]["count"]
    twice = dict(count) | {5: count[5][:4] + b"\x00\x00\x00\x40"}
    for broken in ({id: row for id, row in count.items() if id != 7}, twice):
        with pytest.raises(AssertionError, match="every offset exactly once"):
            kills.digest([{"count": broken, "user": {}}])
