"""Every numbered tutorial runs as its header says, and all rows of its table are ok."""

import re
import subprocess
import sys

import pytest

from minidl import launcher
from minidl.exercise import ROOT

# Smaller than a student's run, to be quick: what the rows assert does not depend on these.
QUICK = {
    "02_add3": ["--n", "1003", "--n-time", "10000"],
    "03_kernel_tour": ["--rows", "4", "--cols", "300"],
    "04_amp": ["--n", "10000", "--steps", "60"],
    "05_memory": ["--batch", "64", "--width", "32"],
    "06_ring": ["--n", "10000", "--n-shift", "10000", "--steps", "5"],
    "07_overlap": ["--steps", "2", "--layers", "12"],
    "09_parameter_server": ["--steps", "5", "--seconds", "25"],
    "10_zero": ["--layers", "3", "--width", "16", "--context", "8"],
}

SCRIPTS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
PARALLEL = [s for s in SCRIPTS if "mpirun -n" in s.read_text()]


def _run(script, *arguments, tmp_path, monkeypatch, before=()):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run(
        [*before, sys.executable, str(script), *QUICK.get(script.stem, []), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env=launcher.environment(4) if before else None,  # Open MPI refuses root and few cores
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^quantity +\| measured +\| (modelled +\| )?theory", done.stdout, re.M)
    assert "NOT OK" not in done.stdout and "| yes" in done.stdout
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_one_process(script, tmp_path, monkeypatch):
    out = _run(script, tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert ("One rank only" in out) == (script in PARALLEL)
    pictures = re.findall(r"^picture: (.*)$", out, re.M)
    assert ("draw" in script.read_text()) == bool(pictures)
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("script", PARALLEL, ids=lambda s: s.stem)
def test_three_simulated_ranks(script, tmp_path, monkeypatch):
    _run(script, "--sim", "3", tmp_path=tmp_path, monkeypatch=monkeypatch)


@pytest.mark.mpi
@pytest.mark.parametrize("script", PARALLEL, ids=lambda s: s.stem)
def test_mpi_ranks(script, tmp_path, monkeypatch):
    pytest.importorskip("mpi4py")
    out = _run(
        script,
        tmp_path=tmp_path,
        monkeypatch=monkeypatch,
        before=[launcher.find_mpiexec(), "-n", "4"],
    )
    assert "One rank only" not in out and out.count("quantity") == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_the_header_tells_a_student_what_to_expect(script):
    text = script.read_text().split('"""')[1]
    assert re.match(rf"{script.stem[:2]}  \S.* \d+ minutes, needs: ", text), (
        "number, title, minutes, prerequisites"
    )
    assert f"tutorials/{script.name}" in text, "what to type"
    if ">>> exercise" in script.read_text():
        assert (
            f"minidl exercise {script.stem[:2]}" in text
            and f"minidl check {script.stem[:2]}" in text
        )
        assert re.search(r"Paper|Source", text)
