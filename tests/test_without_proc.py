"""Tests that minidl works without what macOS lacks: /proc, /sys, calls that bind a process to
cores."""

import os
import subprocess
import sys

import pytest

from minidl.course.exercise import ROOT
from tests.conftest import whole_form

# Every Python process imports this file first, also the processes that the first process starts.
WITHOUT = """\
import builtins, io, os

def closed(function):
    def call(path, *args, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **options)
    return call

builtins.open = io.open = closed(io.open)
os.open, os.readlink, os.stat, os.scandir, os.listdir = map(
    closed, (os.open, os.readlink, os.stat, os.scandir, os.listdir))
for name in "sched_getaffinity", "sched_setaffinity":
    delattr(os, name)
"""
KERNEL = """\
import os
import numpy as np
from minidl import backend, kernel
assert not os.path.exists("/proc/cpuinfo") and not hasattr(os, "sched_getaffinity")
x = np.arange(4, dtype=np.float32)
out = np.empty_like(x)
kernel("add3.cu", "add3")(1, 32, (out, x, x, x, 4))
print(out, backend.n_cores() == os.cpu_count())
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
                            "MINIDL_CACHE": str(tmp_path / "cache")}

    def run(*command):
        return subprocess.run([sys.executable, *command], cwd=tmp_path, env=environ, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    return run


def test_a_kernel_is_compiled_and_launched(run):
    assert run("-c", KERNEL).stdout == "[0. 3. 6. 9.] True\n"


@whole_form
def test_the_doctor_finds_all_that_is_there(run):
    done = run("-m", "minidl", "doctor")
    assert done.returncode == 0 and "minidl is usable here." in done.stdout, done.stdout


@whole_form
def test_an_exercise_is_graded(run):
    run("-m", "minidl", "exercise", "01")
    done = run("-m", "minidl", "check", "01a")
    assert done.returncode == 1 and "is not written yet" in done.stdout, done.stdout


@pytest.mark.mpi
@whole_form
def test_ranks_run_and_a_deadlock_is_named(run, tmp_path):
    (tmp_path / "a.py").write_text("import numpy as np\nfrom minidl import comm\nt = comm.world()\n"
                                   "if t.rank == 0:\n    comm.ring.all_reduce(t, np.zeros(9))\n")
    done = run("-m", "minidl", "run", "-n", "2", "a.py")
    assert done.returncode and "deadlock" in done.stdout and "Traceback" not in done.stdout
