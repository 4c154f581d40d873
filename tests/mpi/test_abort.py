"""One rank's failure ends all ranks at once, and its reason is on stderr."""

import re
import textwrap
import time

import pytest

from tests.conftest import each_once
from tests.mpi.launch import PYTHONS, mpiexec

pytestmark = pytest.mark.mpi


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


FAILING = """
    import time
    import numpy as np
    from minidl.comm import ring, world
    from minidl.comm.transport.background import Background

    t = world()
    ring.all_reduce(t, np.zeros(10))
    if t.rank == 1:
        {prepare}
        print("raised at", time.time(), flush=True)
        {fail}
    {others}
    time.sleep(30)
"""

FAILURES = {
    "others wait in a collective": (
        "pass",
        "raise KeyError('planted')",
        "ring.all_reduce(t, np.zeros(10))",
    ),
    "others compute": ("pass", "raise KeyError('planted')", "pass"),
    "a thread raises": (
        "import threading",
        "threading.Thread(target=lambda: {}['planted']).start()",
        "ring.all_reduce(t, np.zeros(10))",
    ),
    "its background thread is in MPI": (
        "b = Background(t.subgroup([1])); w = t.spawn(t.recv, np.zeros(1), 0, 9); time.sleep(0.2)",
        "raise KeyError('planted')",
        "ring.all_reduce(t, np.zeros(10))",
    ),
    "a size mismatch": (
        "pass",
        "ring.all_reduce(t, np.zeros(11))",
        "ring.all_reduce(t, np.zeros(10))",
    ),
}


@pytest.mark.parametrize("case, n", each_once(FAILURES, [2, 4]))
def test_an_exception_on_one_rank_ends_all(tmp_path, case, n):
    prepare, fail, others = FAILURES[case]
    text = textwrap.dedent(FAILING).format(prepare=prepare, fail=fail, others=others)
    run = mpiexec(n, script(tmp_path, text), timeout=60)
    ended = time.time()
    assert run.returncode != 0
    raised = float(re.search(r"raised at ([\d.]+)", run.stdout)[1])
    assert ended - raised < 20, "far from the 30 s that the others would sleep"
    assert "rank 1: Traceback" in run.stderr or "rank 0: Traceback" in run.stderr
    if case == "a size mismatch":
        assert re.search(r"rank \d: .*SizeMismatch: rank \d: ring.all_reduce needs", run.stderr)
    else:
        assert re.search(r"^rank 1: KeyError: 'planted'", run.stderr, re.M)
        assert f'rank 1:   File "{tmp_path}' in run.stderr  # the user's file and line


RANK = ("-m", "minidl.cli.rank")  # what `minidl run` starts on every rank

EXITS = """
    import sys, time
    import numpy as np
    from minidl.comm import ring, world

    t = world()
    if t.rank == 1:
        try:
            sys.exit(9)
        except SystemExit as error:  # a caught one ends nothing
            assert error.code == 9
    ring.all_reduce(t, np.zeros(10))
    if t.rank == 1:
        print("left at", time.time(), flush=True)
        sys.exit(3)
    {others}
"""


@pytest.mark.parametrize(
    "mpi, others", [("mpi", "ring.all_reduce(t, np.zeros(10))"), ("openmpi", "time.sleep(30)")]
)
def test_sys_exit_on_one_rank_ends_all_under_minidl_run(tmp_path, mpi, others):
    """Plain mpirun does not see it; there a Watch does (test_watch_mpi.py)."""
    path = script(tmp_path, textwrap.dedent(EXITS).format(others=others))
    run = mpiexec(3, *RANK, path, timeout=60, mpi=mpi)
    ended = time.time()
    assert run.returncode == 3
    left = float(re.search(r"left at ([\d.]+)", run.stdout)[1])
    assert ended - left < 20, "far from the 30 s that the others would sleep"
    line = rf"^rank 1: sys.exit\(3\) at {path}:15, but not on all ranks: this ends all ranks$"
    assert re.search(line, run.stderr, re.M), run.stderr


@pytest.mark.parametrize("rank, mpi", each_once([(), RANK], PYTHONS))
def test_ranks_that_all_exit_end_by_themselves(tmp_path, mpi, rank):
    path = script(
        tmp_path,
        """
        import sys
        from minidl.comm import world

        t = world()
        print(f"rank {t.rank}\\n", end="")  # an abort would lose what is in a buffer
        sys.exit("a sentence")
        """,
    )
    run = mpiexec(3, *rank, path, timeout=60, mpi=mpi)
    assert run.returncode == 1 and run.stderr.count("a sentence") == 3
    assert sorted(re.findall(r"rank \d", run.stdout)) == ["rank 0", "rank 1", "rank 2"]
    assert "ends all ranks" not in run.stderr


@pytest.mark.parametrize("rank", [(), RANK], ids=["mpirun", "minidl run"])
def test_a_rank_that_exits_well_or_ends_a_thread_ends_no_other(tmp_path, rank):
    path = script(
        tmp_path,
        """
        import sys, threading, time
        from minidl.comm import world

        t = world()
        thread = threading.Thread(target=lambda: sys.exit(1))
        thread.start()
        thread.join()
        if t.rank == 0:
            sys.exit(0)
        time.sleep(0.8)  # longer than ranks that fail wait for each other
        print("end", flush=True)
        """,
    )
    run = mpiexec(2, *rank, path, timeout=60, check=True)
    assert run.stdout.count("end") == 1 and not run.stderr


@pytest.mark.parametrize("fail, mpi", each_once(["sys.exit(3)", "1 / 0"], PYTHONS))
def test_a_program_of_mpi4py_alone_is_guarded_by_minidl_run(tmp_path, mpi, fail):
    path = script(
        tmp_path,
        f"""
        import sys
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            {fail}
        MPI.COMM_WORLD.Barrier()
        """,
    )
    run = mpiexec(2, *RANK, path, timeout=60, mpi=mpi)
    assert run.returncode == (3 if "exit" in fail else 1)
    words = f"sys.exit(3) at {path}:6, but" if "exit" in fail else "ZeroDivisionError"
    assert f"rank 1: {words}" in run.stderr


@pytest.mark.parametrize("rank, fail", each_once([(), RANK], ["sys.exit(3)", "1 / 0"]))
def test_a_failure_after_mpi_is_finalised_is_the_ranks_own(tmp_path, fail, rank):
    path = script(
        tmp_path,
        f"""
        import sys
        from mpi4py import MPI
        from minidl.comm import world

        t = world()
        MPI.Finalize()
        if t.rank == 1:
            {fail}
        """,
    )
    run = mpiexec(2, *rank, path, timeout=60)
    assert run.returncode == (3 if "exit" in fail else 1)
    assert ("rank 1: ZeroDivisionError" in run.stderr) == ("exit" not in fail)
    assert "Abort" not in run.stderr and "MPI" not in run.stderr
