"""The bodies of the simulator's tests, on real MPI processes."""

import pytest

from tests.conftest import EVERY, whole_form
from tests.mpi import run_bodies
from tests.mpi.launch import ROOT, mpiexec


def files_with_bodies():
    """Every test file that uses @ranks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if "\n@ranks(" in path.read_text()]


# Under Open MPI, on 2 and 3 ranks: the files that ask for all that the transport has. The whole
# would take minutes, and its other files add algorithms, not calls of MPI.
ON_OPEN_MPI = ("test_halving_doubling", "test_ring", "test_tree",
               "transport/test_background", "transport/test_protocol", "observe/test_watch")


@pytest.mark.mpi
@pytest.mark.parametrize(
    "run_on", ["mpi 3", "openmpi 3", *["mpi 2", "mpi 4", "openmpi 2"] * EVERY])
def test_every_body_passes_on_mpi(run_on):
    mpi, n = run_on.split()
    files = files_with_bodies()
    if mpi == "openmpi":
        files = [ROOT / f"tests/comm/{name}.py" for name in ON_OPEN_MPI]
    bodies = ROOT / "tests/mpi/run_bodies.py", *files
    every = {"MINIDL_EVERY_SIZE": "1"} if mpi == "openmpi" else {}
    run = mpiexec(int(n), *bodies, timeout=600 if EVERY else 110, check=True, mpi=mpi, env=every)
    passed = int(run.stdout.splitlines()[-1].split()[0])
    assert passed == run.stdout.count("running ") > 0


# A model in parts mixes groups of ranks, uneven blocks and background jobs.
PARTS = ("functions", "tensor", "vocabulary", "context")


@whole_form
@pytest.mark.mpi
@pytest.mark.parametrize("n", [2, 4])
def test_a_model_in_parts_on_open_mpi(n):
    files = [ROOT / f"tests/parallel/model/test_{name}.py" for name in PARTS]
    run = mpiexec(n, ROOT / "tests/mpi/run_bodies.py", *files, timeout=500, check=True,
                  mpi="openmpi")
    passed = int(run.stdout.splitlines()[-1].split()[0])
    ran = {line.split()[1].split("::")[0] for line in run.stdout.splitlines()
           if line.startswith("running ")}
    assert passed == run.stdout.count("running ") > 0 and ran == {path.name for path in files}


SHARED = """
import pytest
from tests.conftest import ranks


@pytest.mark.parametrize("a", "uvw")
@pytest.mark.parametrize("b", "xy")
@ranks(1, 2, 3, 4)
def test_six(t, a, b):
    pass


@pytest.mark.parametrize("a", "uv")
@ranks(2, 3, 4)
def test_two(t, a):
    pass


@pytest.mark.parametrize("a", "uvw")
@ranks(3)
def test_one_size(t, a):
    pass


@ranks(3, 4)
def test_no_arguments(t):
    pass
"""


def test_every_value_runs_on_some_number_of_ranks_or_all_products_on_each(tmp_path, monkeypatch):
    path = tmp_path / "test_shared.py"
    path.write_text(SHARED)

    def run_on(size):
        return [(body.__name__, "".join(arguments.values()))
                for _, body, arguments in run_bodies.bodies_of(path, size)]

    monkeypatch.setenv("MINIDL_EVERY_SIZE", "1")
    whole = {size: run_on(size) for size in run_bodies.SIZES}
    assert [len(ran) for ran in whole.values()] == [8, 12, 9] and set(whole[4]) < set(whole[3])
    monkeypatch.delenv("MINIDL_EVERY_SIZE")
    chosen = sum(map(run_on, run_bodies.SIZES), [])
    assert len(chosen) == len(set(chosen)) == 3 + 2 + 3 + 1 and set(chosen) < set(whole[3])
    for name in ("test_six", "test_two", "test_one_size", "test_no_arguments"):
        for place in range(2):  # every value of every argument
            values = {a[place:place + 1] for test, a in chosen if test == name}
            assert values == {a[place:place + 1] for test, a in whole[3] if test == name}
    of_six = [[a for name, a in run_on(size) if name == "test_six"] for size in run_bodies.SIZES]
    assert [len(a) for a in of_six] == [1, 1, 1], "each on another number of ranks"
    monkeypatch.setattr(run_bodies, "ROOT", tmp_path)  # as outside tests/comm
    chosen = sum(map(run_on, run_bodies.SIZES), [])
    assert [name for name, _ in chosen] == ["test_one_size"], "one of four, once"
    assert set(chosen) < set(whole[3])


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
    run = mpiexec(2, ROOT / "tests/mpi/run_bodies.py", path, timeout=60,
                  env={"MINIDL_EVERY_SIZE": "1"})
    assert run.returncode != 0 and "passed" not in run.stdout
    assert "FAILED on rank 1 of 2: test_planted.py::test_bad[1]" in run.stderr
    assert "assert t.rank < limit" in run.stderr
    ran = [line for line in run.stdout.splitlines() if line.startswith("running")]
    names = ("good[3]", "good[4]", "bad[5]", "bad[1]")
    assert ran == [f"running test_planted.py::test_{name}" for name in names]
