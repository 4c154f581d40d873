"""Two programs at the same time do not disturb each other: two runs of make in one folder, two
clones with one cache, two users, two runs on one machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minidl.course import out
from minidl.cuda.host import compiler
from tests.conftest import some, whole_form
from tests.mpi.launch import PYTHONS, require_mpi

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534


def started(*command, **options):
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, **options)


def ended(process, seconds=60):
    """Waits for a process for at most this many seconds. Returns (status, output)."""
    try:
        return process.wait(seconds), process.stdout.read()
    finally:
        process.kill()
        process.communicate()


# -- two runs of make in one folder

PYTHON = """#!/bin/sh
case "$2" in
venv) echo venv >> log; mkdir -p .venv/bin; touch .venv/pyvenv.cfg
      sleep 0.5; cp "$0" .venv/bin/python; echo made >> log ;;
pip) echo pip >> log; sleep 0.5; echo installed >> log ;;
*) exec "{python}" "$@" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """Returns a folder with the files that `make venv` reads, and with a script `python` that notes
    in a log what it must install."""
    for name in "Makefile", "setup.cfg", "pyproject.toml":
        shutil.copy(ROOT / name, tmp_path)
    fake = tmp_path / "python"
    fake.write_text(PYTHON.format(python=sys.executable))
    fake.chmod(0o755)
    return tmp_path


def make(clone, *targets):
    variables = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # set by a make that runs this test
    env = {name: value for name, value in os.environ.items() if name not in variables}
    return started("make", f"PYTHON={clone}/python", *targets, cwd=clone, env=env)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_two_of_make_install_once(clone):
    both = [make(clone, "venv"), make(clone, "venv")]
    for status, text in map(ended, both):
        assert status == 0, text
    assert (clone / "log").read_text().split() == ["venv", "made", "pip", "installed"]
    assert (clone / ".venv" / "test.stamp").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_two_of_make_with_other_extras_install_after_each_other(clone):
    both = [make(clone, "-i", "demo"), make(clone, "venv")]  # -i: the demo cannot run here
    for status, text in map(ended, both):
        assert status == 0, text
    log = (clone / "log").read_text().split()
    assert log == ["venv", "made", *["pip", "installed"] * 2]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_installs_again_after_a_change_and_only_then(clone):
    for change, n_installed in ((False, 1), (False, 1), (True, 2)):
        if change:
            os.utime(clone / "setup.cfg", (later := os.stat(clone / "log").st_mtime + 60, later))
        status, text = ended(make(clone, "venv"))
        assert status == 0, text
        assert (clone / "log").read_text().count("pip") == n_installed


@whole_form
@pytest.mark.slow
def test_two_test_runs_in_one_folder_pass():
    """Both test runs use the folder build/ for kernels and for the students' files that are
    graded."""
    both = [started(sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "07a or 17 or 27a",
                    "tests/tutorials/test_exercises.py", cwd=ROOT) for _ in range(2)]
    for status, text in (ended(each, 600) for each in both):
        assert status == 0, text


# -- two runs of one script

def test_a_picture_is_whole_while_another_run_saves_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def slow(path):
        path.write_text("slow, ")
        out.write("x.txt", lambda own: own.write_text("the other's"))
        seen.append(Path("out/x.txt").read_text())
        with path.open("a") as file:
            file.write("whole")

    assert out.write("x.txt", slow) == Path("out/x.txt")
    assert seen == ["the other's"]
    assert Path("out/x.txt").read_text() == "slow, whole"
    assert os.listdir("out") == ["x.txt"], "what a run saves beside it stays there"


SCRIPT = """
import sys, time
import numpy as np
from minidl import comm
t = comm.world()
value = float(sys.argv[1])
for step in range(int(sys.argv[2])):
    for all_reduce in comm.ring.all_reduce, comm.shared_memory.all_reduce:
        x = all_reduce(t, np.full(10_000, value))
        assert (x == value * t.size).all(), x
    if t.rank == 0 and step == 1:
        print("up", flush=True)
if t.rank == 0:
    print("sum", x[0])
"""


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", some(PYTHONS))
def test_a_run_goes_on_when_another_one_is_killed(mpi, tmp_path):
    """Each run has its own shared memory, ports and folders. A run removes only its own files at
    the end."""
    require_mpi(mpi)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(value, n_steps):
        return started(PYTHONS[mpi], "-m", "minidl", "run", "-n", "2", "script.py", value, n_steps,
                       cwd=tmp_path, env=env, start_new_session=True)

    short, endless = run("1", "400"), run("2", "1000000000")
    try:
        for each in short, endless:
            assert each.stdout.readline() == "up\n"
        endless.send_signal(signal.SIGKILL)
        status, text = ended(short)
        assert (status, text) == (0, "sum 2.0\n")
        ended(endless)
    finally:
        for each in short, endless:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)


# -- two clones, two users

KERNEL = """
import sys, numpy as np, minidl
from minidl import cuda
x = np.ones(3, np.float32)
cuda.kernel(sys.argv[1])(1, 32, (x, 3))
print(x.sum(), minidl.__file__)
"""
TWICE = """
extern "C" __global__ void twice(float* x, int n) {
  int i = threadIdx.x;
  if (i < n) x[i] = 2.0f * x[i];
}
"""


@pytest.fixture
def clones(tmp_path):
    """Returns a folder with two copies of minidl and its kernels, and one more kernel."""
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in "first", "second":
        for folder in "minidl", "kernels":
            shutil.copytree(ROOT / folder, tmp_path / name / folder, ignore=leave_out)
    (tmp_path / "twice.cu").write_text(TWICE)
    return tmp_path


@whole_form
def test_two_clones_with_one_cache_make_the_same_libraries(clones):
    env = os.environ | {"MINIDL_CACHE": str(clones / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def both():
        runs = [started(sys.executable, "-c", KERNEL, str(clones / "twice.cu"), cwd=clones,
                        env=env | {"PYTHONPATH": str(clones / name)})
                for name in ("first", "second")]
        return [ended(run) for run in runs]

    wanted = [(0, f"6.0 {clones / name / 'minidl' / '__init__.py'}\n")
              for name in ("first", "second")]
    assert both() == wanted
    files = sorted((clones / "cache" / "kernels").glob("*.so"))
    assert len(files) == 2 and all(map(compiler.is_whole, files))  # for the kernel and its launcher
    times = [file.stat().st_mtime_ns for file in files]
    assert both() == wanted
    assert [file.stat().st_mtime_ns for file in files] == times, "found, and not made again"


def can_be_another_user():
    """Returns True if this process may become another user, and this user can start this Python."""
    try:
        return subprocess.run([sys.executable, "-c", ""], user=NOBODY, group=NOBODY,
                              extra_groups=[], cwd="/").returncode == 0
    except (OSError, ValueError):  # this user is not root, or Python is in root's folder
        return False


def test_a_user_without_a_folder_computes_with_what_another_one_installed(clones):
    """Root installs minidl. The user may not write into root's folder, and has no home folder."""
    if not can_be_another_user():
        pytest.skip("only root can be two users, where Python is in a folder of all")
    folder = clones
    while folder != Path("/tmp") and folder != Path("/"):  # only root may read pytest's folders
        folder.chmod(0o755)
        folder = folder.parent
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(clones / "first")}
    user = dict(user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", env=env)
    own, other = (started(sys.executable, "-B", "-c", KERNEL, str(clones / "twice.cu"), **each)
                  for each in (user, {"cwd": clones, "env": os.environ | {
                      "PYTHONPATH": str(clones / "first")}}))
    status, text = ended(own)
    assert status == 0 and re.search(r"^6\.0 ", text, re.M), text
    assert "cannot be written" in text and "MINIDL_CACHE" in text
    status, text = ended(other)
    assert status == 0 and text.startswith("6.0 "), text
    assert not [path for path in clones.rglob("*") if path.stat().st_uid == NOBODY]
