"""The one excepthook of a rank: it reports, calls the hook that was there, and ends the ranks."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading
from minidl.comm.transport import abort
sys.excepthook = lambda kind, error, trace: print("the user's hook saw", error, flush=True)
for number in (1, 2):  # installed twice, as by the launcher and by world(): chained once
    abort.FailureHook(f"rank {number}: ", os._exit, ends_mpi=True).install()
abort.before_the_report(lambda: print("told first", flush=True))
"""


@pytest.mark.parametrize("failure, status", [
    ("raise ValueError('wrong')", 1),
    ("threading.Thread(target=lambda: int('wrong')).start()", 1)])
def test_it_tells_reports_chains_and_ends(failure, status):
    done = subprocess.run([sys.executable, "-c", PROGRAM + failure], capture_output=True, text=True)
    assert done.returncode == status
    first, second, *rest = done.stdout.splitlines()
    assert first == "told first" and second.startswith("the user's hook saw") and not rest
    assert "rank 2: ValueError: " in done.stderr and "rank 1" not in done.stderr


def test_a_hook_that_fails_itself_does_not_keep_the_rank_alive():
    program = PROGRAM.replace('print("the user\'s hook saw", error, flush=True)', "1 / 0")
    done = subprocess.run([sys.executable, "-c", program + "raise ValueError('wrong')"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "rank 2: ValueError: wrong" in done.stderr
