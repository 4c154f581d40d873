"""The bodies of the simulator's tests, on real MPI processes."""

import pytest

from tests.mpi.launch import ROOT, mpiexec


def files_with_bodies():
    """Every test file that uses @ranks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if "\n@ranks(" in path.read_text()]


# Under Open MPI, on 2 and 3 ranks: the files that ask for all that the transport has. The whole
# would take minutes, and its other files add algorithms, not calls of MPI.
ON_OPEN_MPI = ("test_halving_doubling", "test_naive", "test_ring", "test_tree",
               "transport/test_background", "transport/test_protocol", "observe/test_watch")


@pytest.mark.mpi
@pytest.mark.parametrize("run_on", ["mpi 2", "mpi 3", "mpi 4", "openmpi 2", "openmpi 3"])
def test_every_body_passes_on_mpi(run_on):
    mpi, n = run_on.split()
    files = files_with_bodies()
    if mpi == "openmpi":
        files = [ROOT / f"tests/comm/{name}.py" for name in ON_OPEN_MPI]
    bodies = ROOT / "tests/mpi/run_bodies.py", *files
    run = mpiexec(int(n), *bodies, timeout=110, check=True, mpi=mpi)
    passed = int(run.stdout.splitlines()[-1].split()[0])
    assert passed == run.stdout.count("running ") > 0


FAILING = """
import numpy as np
import pytest
from minidl.comm import ring
from tests.conftest import ranks


@pytest.mark.parametrize("n", [3, 4])
@ranks(2, 3)
def test_good(t, n):
    assert (ring.all_reduce(t, np.ones(n)) == t.size).all()


@pytest.mark.parametrize("limit", [5, 1])
@ranks(2, 3)
def test_bad(t, limit):
    assert t.rank < limit
    ring.all_reduce(t, np.ones(4))


@ranks(3, 4)
def test_other_sizes(t):
    assert False


@ranks(2, mpi=False)
def test_simulated_only(t):
    assert False
"""


@pytest.mark.mpi
def test_a_failing_body_is_named_and_others_are_chosen_by_size(tmp_path):
    path = tmp_path / "test_planted.py"
    path.write_text(FAILING)
    run = mpiexec(2, ROOT / "tests/mpi/run_bodies.py", path, timeout=60)
    assert run.returncode != 0 and "passed" not in run.stdout
    assert "FAILED on rank 1 of 2: test_planted.py::test_bad[1]" in run.stderr
    assert "assert t.rank < limit" in run.stderr
    ran = [line for line in run.stdout.splitlines() if line.startswith("running")]
    names = ("good[3]", "good[4]", "bad[5]", "bad[1]")
    assert ran == [f"running test_planted.py::test_{name}" for name in names]
