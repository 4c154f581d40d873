"""Tests that a wheel and a source archive have all files that minidl needs. They are built,
installed in another environment, and used."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import whole_form as whole

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("minidl", "kernels", "tutorials", "docs", "setup.py", "setup.cfg", "pyproject.toml",
         "MANIFEST.in", "README.md", "LICENSE")

LINES = """\
import numpy as np, warnings
warnings.simplefilter("error")
import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.cuda.host.includes import KERNELS
assert "site-packages" in minidl.__file__ and "shipped" in str(KERNELS), (minidl.__file__, KERNELS)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(8 * 36),
                    nn.GELU(), nn.Linear(8 * 36, 10))
optimizer = optim.AdamW(net.parameters(), lr=1e-3)
x = minidl.randn(4, 1, 8, 8)
for _ in range(2):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), np.arange(4))
    loss.backward()
    optimizer.step()
print(f"{F.softmax(minidl.zeros(2), -1).numpy()} {loss.item() > 0}")
"""
RANKS = """\
import numpy as np
from minidl import comm
from minidl.comm import ring
t = comm.world()
print(f"rank {t.rank}: {ring.all_reduce(t, np.ones(3))}")
"""


def run(*command, cwd, **environ):
    """Runs a command. Returns what the command prints. The command does not find the packages of
    this process's Python."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    prefix = Path(sys.prefix)  # has MPI's library and mpiexec
    kept |= {"PATH": f"{prefix / 'bin'}{os.pathsep}{kept['PATH']}",
             "LD_LIBRARY_PATH": str(prefix / "lib")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=kept | environ, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Returns a copy of the repository's files, as in a download of the repository."""
    folder = tmp_path_factory.mktemp("minidl") / "source"
    folder.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part,
                            ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="module")
def wheel(tree):
    """Returns a wheel. It is built without a network from the source archive, as pip builds a wheel
    from an archive of PyPI."""
    dist = tree / "dist"
    run(sys.executable, "-c", "from setuptools.build_meta import build_sdist\n"
        f"build_sdist({str(dist)!r})", cwd=tree)
    archive, = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(dist, filter="data")
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    run(sys.executable, "-c", "from setuptools.build_meta import build_wheel\n"
        f"build_wheel({str(dist)!r})", cwd=unpacked)
    built, = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Returns (the Python of a new environment that has the wheel, an empty folder). The
    environment takes the other packages from the tests' environment."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    here = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    Path(here.strip(), "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index",
        "--no-deps", wheel, cwd=folder)
    (folder / "empty").mkdir()
    return python, folder / "empty"


def shipped(tree):
    """Returns the files that a wheel must have in addition to the package."""
    patterns = ("kernels", "**/*.*"), ("tutorials", "**/*.py"), ("docs", "zh/**/*.*")
    found = [f for folder, pattern in patterns for f in (tree / folder).glob(pattern)
             if f.is_file() and "__pycache__" not in f.parts]
    assert len(found) > 150
    return [f.relative_to(tree) for f in found]


def test_what_is_built_has_every_kernel_tutorial_and_translation(tree, tmp_path):
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path, cwd=tree)
    for file in shipped(tree):
        copy = tmp_path / "minidl" / "shipped" / file
        assert copy.read_bytes() == (tree / file).read_bytes()


@whole
def test_so_has_the_wheel(wheel, tree):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"minidl/shipped/{file}" for file in shipped(tree)} <= names
    stubs = {f"{f.relative_to(tree)}" for f in (tree / "minidl").rglob("*.pyi")}
    assert stubs | {"minidl/py.typed"} <= names
    assert not any(name.startswith(("kernels/", "tutorials/", "tests/")) for name in names)


@whole
def test_an_installed_minidl_trains_with_kernels(installed):
    python, folder = installed
    assert run(python, "-c", LINES, cwd=folder) == "[0.5 0.5] True\n"


@whole
def test_the_commands_of_an_installed_minidl(installed):
    python, folder = installed
    assert ", installed in " in run(python, "-m", "minidl", "--version", cwd=folder)
    assert "kernels are those in " in run(python, "-m", "minidl", "doctor", cwd=folder)
    (folder / "gelu.py").write_text("import minidl; from minidl.nn import functional as F\n"
                                    "print(F.gelu(minidl.zeros(5)).numpy())\n")
    assert "[0. 0. 0. 0. 0.]" in run(python, "-m", "minidl", "kernel", "run", "gelu.py", cwd=folder)
    run(python, "-m", "minidl", "exercise", "07", cwd=folder)
    assert (folder / "work" / "07_ring.py").is_file()
    said = run(python, "-m", "minidl", "exercise", cwd=folder, MINIDL_LANG="zh")
    assert any("\u4e00" <= letter <= "\u9fff" for letter in said)


@whole
@pytest.mark.mpi
def test_ranks_and_a_tutorial_that_was_copied_out(installed, tree):
    python, folder = installed
    (folder / "ranks.py").write_text(RANKS)
    said = run(python, "-m", "minidl", "run", "-n", "2", "ranks.py", cwd=folder)
    assert sorted(said.splitlines()) == ["rank 0: [2. 2. 2.]", "rank 1: [2. 2. 2.]"]
    shutil.copy(tree / "tutorials" / "02_add3.py", folder)
    assert "ok" in run(python, "02_add3.py", "--sim", "1", cwd=folder)


@whole
@pytest.mark.timeout(900)
def test_tests_that_need_no_checkout_pass_with_an_installed_minidl(installed):
    """Runs the tests of nn, optim, precision and memory."""
    python, folder = installed
    shutil.copytree(ROOT / "tests", folder / "tests",
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", folder)  # pytest's settings
    parts = [f"tests/{part}" for part in ("nn", "optim", "precision", "memory")]
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *parts, cwd=folder,
               MINIDL_EVERY_SIZE="0")
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) > 600, said[-2000:]


@whole
def test_pip_takes_the_repository_itself(installed):
    if not (ROOT / ".git").exists():
        pytest.skip("wants a repository: this is a copy of its files")
    python, folder = installed
    target = folder / "from_git"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
        "--no-build-isolation", "--target", target, f"git+file://{ROOT}", cwd=folder,
        GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
    assert (target / "minidl" / "shipped" / "kernels" / "gelu.cu").is_file()
    said = run(python, "-c", "import minidl; print(minidl.__file__)", cwd=folder, PYTHONPATH=target)
    assert str(target) in said


@whole
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0,
                    reason="only root can run a program as another user")
def test_another_user_has_kernels_of_their_own(wheel):
    """Root installs minidl, and the user "nobody" uses it. This user cannot write into root's
    cache, so the kernels go into the user's own cache."""
    folder = Path(tempfile.mkdtemp(prefix="minidl-of-nobody-"))
    try:
        site, home = folder / "site", folder / "home"
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
            "--target", site, wheel, cwd=folder)
        home.mkdir()
        shutil.chown(home, "nobody")
        folder.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if k != "MINIDL_CACHE"}
        kept |= {"HOME": str(home), "PYTHONPATH": f"{site}:{sysconfig.get_path('purelib')}"}

        def as_nobody(script):
            # The user "nobody" may not be able to read this Python. Then the system's Python of the
            # same version is used.
            for python in sys.executable, f"/usr/bin/python{sys.version_info[0]}." \
                    f"{sys.version_info[1]}":
                with contextlib.suppress(PermissionError, FileNotFoundError):
                    return subprocess.run([python, "-c", script], user="nobody", cwd=home, env=kept,
                                          capture_output=True, text=True)
            pytest.skip("there is no Python that nobody may run")

        if as_nobody("import numpy, greenlet").returncode:
            pytest.skip("nobody may not read this environment")
        done = as_nobody(LINES.replace("site-packages", "site"))
        assert done.stdout == "[0.5 0.5] True\n", done.stderr
        kernels = list(home.rglob("*.so"))
        assert kernels and {file.owner() for file in kernels} == {"nobody"}
    finally:
        shutil.rmtree(folder)


EXECUTE = """\
import json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec(cell["source"])
"""


@whole
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_notebook_for_colab_runs_without_a_clone(installed, place, tmp_path):
    """For a GPU, the test uses the stand-in for CuPy, and an empty program with the name
    nvidia-smi."""
    python, folder = installed
    environ = {}
    if place == "cuda":
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        environ = {"PYTHONPATH": str(ROOT / "tests" / "strict_cupy"), "STRICT_CUPY": "1",
                   "PATH": f"{tmp_path}{os.pathsep}{Path(sys.prefix, 'bin')}{os.pathsep}"
                           f"{os.environ['PATH']}"}
    run(python, "-m", "minidl", "notebook", "02", "--colab", "minidl.whl", cwd=folder)
    (folder / "execute.py").write_text(EXECUTE)
    said = run(python, "execute.py", "work/02_add3_colab.ipynb", cwd=folder, **environ)
    assert f"device: {place}" in said and "ok" in said and "FAIL" not in said
    (folder / "work" / "02_add3_colab.ipynb").unlink()
