"""The bodies of the simulator's tests, on real MPI processes."""

import pytest

from tests.mpi.launch import ROOT, mpiexec


def files_with_bodies():
    """Every test file that uses @ranks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if "\n@ranks(" in path.read_text()]


@pytest.mark.mpi
@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_body_passes_on_mpi(n):
    run = mpiexec(n, ROOT / "tests/mpi/run_bodies.py", *files_with_bodies(), timeout=110, check=True)
    passed = int(run.stdout.splitlines()[-1].split()[0])
    assert passed == run.stdout.count("running ") > 0
