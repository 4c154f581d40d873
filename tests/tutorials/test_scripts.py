"""Every numbered tutorial runs as its header says, and all rows of its table are ok."""

import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from minidl.cli import machine
from minidl.course.exercise import ROOT
from tests.conftest import EVERY
from tests.mpi.launch import mpiexec
from tests.tutorials import run_scripts

# Smaller than a student's run, to be quick: what the rows assert does not depend on these.
QUICK = {
    "02_add3": ["--n", "1003", "--n-time", "10000"],
    "03_kernel_tour": ["--rows", "4", "--cols", "300"],
    "05_amp": ["--n", "10000", "--steps", "10"],
    "06_memory": ["--batch", "64", "--width", "32"],
    "07_ring": ["--n", "10000", "--n-shift", "10000", "--steps", "5"],
    "08_overlap": ["--steps", "2", "--layers", "12"],
    "10_parameter_server": ["--steps", "5", "--seconds", "25"],
    "13_tensor_parallel": ["--steps", "2", "--layers", "2", "--width", "16", "--context", "16"],
    "12_offload": ["--steps", "3", "--layers", "3"],
    "14_pipeline": ["--steps", "1"],
    "15_hybrid_3d": ["--steps", "1", "--layers", "2", "--width", "16"],
    "16_dgc": ["--n", "4000", "--steps", "5"],
    "17_local_sgd": ["--steps", "16", "--period", "2"],
    "18_large_batch": ["--loss", "1.5"],
    "20_inference": ["--epochs", "2"],
    "21_fault_tolerance": ["--steps", "8", "--every", "3"],
    "19_profile": ["--steps", "3", "--rows", "2"],
    "22_long_context": ["--tokens", "8", "--steps", "2"],
    "23_experts": ["--tokens", "8", "--steps", "1"],
    "24_stream": ["--records", "320", "--kills", "3", "--shown", "3000"],
    "26_input": ["--load", "3", "--step", "2", "--steps", "2", "--rows", "1", "--width", "8"],
    "27_convolution": ["--channels", "9", "--steps", "3"],
    "28_transformer": ["--steps", "5", "--width", "32", "--context", "48", "--tokens", "20"],
    "29_flash_attention": ["--length", "40", "--width", "8"],
    "30_tokens": ["--bytes", "60000", "--vocabulary", "600", "--sample", "4000", "--merges", "20"],
    "31_optimizers": ["--width", "64", "--networks", "32"],
    "32_recurrent": ["--steps", "30", "--length", "64"],
    "33_scaling": ["--steps", "4", "--seeds", "2"],
    "11_zero": ["--steps", "1", "--layers", "3", "--width", "16", "--context", "8"],
}

ON_CPU = {"04_float", "20_inference", "25_compiler"}  # and it says why
SCRIPTS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
PARALLEL = [s for s in SCRIPTS if "mpirun -n" in s.read_text()]
# Each of these in one of three ways, in the whole form in all: alone, simulated ranks, MPI.
ALONE, SIMULATED, ON_MPI = [PARALLEL] * 3 if EVERY else [
    PARALLEL[::3], PARALLEL[1::3] + PARALLEL[5::6], PARALLEL[2::6]]


def _check(status, out, said=""):
    assert status == 0, out + said
    assert re.search(r"^quantity +\| measured +\| (modelled +\| )?theory", out, re.M)
    assert "NOT OK" not in out and "| yes" in out


def _run_here(script, *arguments, monkeypatch, capsys):
    """In this process, which has imported NumPy, matplotlib and scikit-learn already."""
    monkeypatch.setattr(sys, "argv", [str(script), *QUICK.get(script.stem, []), *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    _check(end.value.code, out)
    return out


def _run(script, tmp_path, before=()):
    """As a student does: in processes of its own."""
    done = subprocess.run(
        [*before, sys.executable, str(script), *QUICK.get(script.stem, [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        # Open MPI refuses root and few cores
        env={**(machine.environment(4) if before else os.environ), "PYTHONPATH": str(ROOT)},
    )
    _check(done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s not in PARALLEL or s in ALONE],
                         ids=lambda s: s.stem)
def test_one_rank(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    from matplotlib.figure import Figure

    save = Figure.savefig  # coarse: a fifth of the pixels' work, the same layout
    monkeypatch.setattr(Figure, "savefig", lambda *a, **options: save(*a, **options | {"dpi": 30}))
    # without MPI: it is initialised once for a process, and this one starts mpiexec later
    alone = ["--sim", "1"] if script in PARALLEL else []
    out = _run_here(script, *alone, monkeypatch=monkeypatch, capsys=capsys)
    pictures = re.findall(r"^picture: (.*)$", out, re.M)
    assert ("draw" in script.read_text()) == bool(pictures), (
        f"tutorials/{script.name}: a script with a `draw` hands it to picture(t, draw, ...)")
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_a_row_that_does_not_fit_into_a_warps_registers_is_refused(monkeypatch, capsys):
    script = ROOT / "tutorials" / "03_kernel_tour.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--cols", "1025"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 2
    assert "--cols must be at most 1024, because version 3" in capsys.readouterr().err
    kernels = [ROOT / "kernels" / name for name in ("layer_norm.cu", "softmax.cu")]
    assert all("#define KEEP 32" in file.read_text() for file in kernels)


@pytest.mark.parametrize("script", SIMULATED, ids=lambda s: s.stem)
def test_three_simulated_ranks(script, tmp_path, monkeypatch, capsys):
    """Pictures are drawn, and not made into PNG, which is half of the time; above they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    _run_here(script, "--sim", "3", monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_on_a_gpu(script, tmp_path, monkeypatch, capsys):
    """The same rows, with arrays on the device, which the simulated ranks share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    # two replicas may come nearer to each other for a step of the few that 16 makes here
    alone = ["--sim", "3" if script.stem == "17_local_sgd" else "2"] if script in PARALLEL else []
    if script.stem in ON_CPU:
        with pytest.raises(AssertionError, match="assert 2 == 0"):
            _run_here(script, *alone, "--device", "cuda", monkeypatch=monkeypatch, capsys=capsys)
    else:
        _run_here(script, *alone, "--device", "cuda", monkeypatch=monkeypatch, capsys=capsys)


def test_a_process_of_its_own(tmp_path):
    assert "One rank only" in _run(PARALLEL[0], tmp_path)
    assert "One rank only" not in _run(min(set(SCRIPTS) - set(PARALLEL)), tmp_path)


@pytest.fixture(scope="module")
def on_mpi_ranks(request, tmp_path_factory):
    """{script: what it printed on 4 MPI ranks, in the short form on 3} of those that are asked for:
    one run for all."""
    asked = [item.callspec.params["script"] for item in request.session.items
             if item.path == request.path and item.originalname == "test_mpi_ranks"]
    commands = [shlex.join([str(s), *QUICK.get(s.stem, [])]) for s in asked]
    done = mpiexec(4 if EVERY else 3, run_scripts.__file__, *commands, timeout=240, check=True,
                   cwd=tmp_path_factory.mktemp("tutorials"))
    _, *parts = done.stdout.split(run_scripts.HEAD)
    return dict(zip(asked, parts, strict=True))


@pytest.mark.mpi
@pytest.mark.timeout(250)  # the first waits for all: 15 s alone
@pytest.mark.parametrize("script", ON_MPI, ids=lambda s: s.stem)
def test_mpi_ranks(script, on_mpi_ranks):
    out = on_mpi_ranks[script]
    _check(0, out)
    assert "One rank only" not in out and out.count("quantity") == 1
    assert ("draw" in script.read_text()) == ("No picture: matplotlib is not installed" in out)


@pytest.mark.mpi
def test_mpi_ranks_of_its_own(tmp_path):
    pytest.importorskip("mpi4py")
    out = _run(PARALLEL[0], tmp_path, before=[machine.find_mpiexec(), "-n", "4"])
    assert "One rank only" not in out and out.count("quantity") == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_the_header_tells_a_student_what_to_expect(script):
    text, number = script.read_text().split('"""')[1], script.stem[:2]
    wanted = f"tutorials/{script.name}: its head wants"
    assert re.match(rf"{number}  \S.* \d+ minutes, needs: ", text), (
        f"{wanted} a first line such as `{number}  A title.   30 minutes, needs: 00, 01`")
    assert f"tutorials/{script.name}" in text, f"{wanted} the command that runs it"
    if ">>> exercise" in script.read_text():
        for word in ("exercise", "check"):
            assert f"minidl {word} {number}" in text, f"{wanted} `minidl {word} {number}`"
