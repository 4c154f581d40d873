"""What a newcomer types wrong, and the words of the answer: what to do, without a traceback.

A machine whose Python is too old: tests/test_packaging.py. A folder where nothing may be written:
tests/course/test_tutorial.py, tests/course/test_exercise.py."""

import importlib.util
import runpy
import subprocess
import sys

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.cli import main as cli
from minidl.course.exercise import ROOT
from minidl.nn import functional as F

COMMANDS = [
    # misspelt, or without what it needs
    ("minidl", 2, "usage: minidl"),
    ("minidl chekc 06", 2, "invalid choice: 'chekc'"),
    ("minidl check six", 2, "want a tutorial or an exercise, such as 06 or 06a, got 'six'"),
    ("minidl run tutorials/06_ring.py", 2, "the following arguments are required: -n/--ranks"),
    ("minidl run -n 0 tutorials/06_ring.py", 2, "want a whole number, at least 1, got '0'"),
    ("python tutorials/06_ring.py --sim 4 --stpes 3", 2, "unrecognized arguments: --stpes 3"),
    ("python tutorials/06_ring.py --sim four", 2, "argument --sim: invalid"),
    ("python tutorials/06_ring.py --alpha 1", 2, "--alpha describes simulated ranks: it needs"),
    # what is not there
    ("minidl run -n 4 tutorials/66_ring.py", 2, "there is no file tutorials/66_ring.py in "),
    ("minidl exercise 66", 2, "tutorial 66 has no exercise; these have: 01, 02"),
    ("minidl check 06", 2, "work/06_ring.py does not exist; write it first: minidl exercise 06"),
    ("minidl kernel check nothing.cu", 2, "no file 'nothing.cu' here, nor in"),
    ("python tutorials/run_all.py 66", 1, "no tutorial 66; there are 00, 01"),
    # the wrong number of ranks, and sizes that do not fit it
    ("python tutorials/06_ring.py --sim 0", 2, "must be at least 1, got 0"),
    ("python tutorials/06_ring.py --sim 4 --batch 10", 2, "10 is not divisible by 4 ranks"),
    ("python tutorials/06_ring.py --sim 4 --batch 2", 2, "try --batch 4"),
    ("python tutorials/07_overlap.py --sim 3 --batch 10", 2, "a --batch that 3 ranks share"),
    ("python tutorials/11_offload.py --sim 2 --layers 0", 2, "--layers and --layer-elems of at"),
]


def answer(command, monkeypatch, capfd):
    """(exit status, what it printed) of a command, in this process."""
    program, *arguments = command.split()
    try:
        if program == "minidl":
            status = cli.main(arguments)
        else:
            script = str(ROOT / arguments[0])
            monkeypatch.setattr(sys, "argv", [script, *arguments[1:]])
            runpy.run_path(script, run_name="__main__")
            status = 0
    except SystemExit as end:  # as Python itself does
        status = end.code if isinstance(end.code, int) else 1
        if not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    return status, capfd.readouterr().err


@pytest.mark.parametrize("command, status, words", COMMANDS, ids=[c for c, _, _ in COMMANDS])
def test_the_answer_says_what_to_do(command, status, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    got, said = answer(command, monkeypatch, capfd)
    assert got == status
    assert words in " ".join(said.split())
    assert "Traceback" not in said


def test_without_mpi4py_ranks_are_refused_and_a_way_is_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(ROOT)
    status, said = answer("minidl run -n 4 tutorials/06_ring.py", monkeypatch, capfd)
    assert status == 2 and "mpi4py is not installed" in said
    assert "pip install 'minidl[mpi]'" in said and "python tutorials/06_ring.py --sim 4" in said


def test_without_a_compiler_the_answer_names_one_to_install(tmp_path):
    code = "from minidl.cli.main import main; exit(main(['kernel', 'check', 'add3.cu']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "MINIDL_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if importlib.util.find_spec("ziglang"):
        pytest.skip("ziglang, a compiler that comes with pip, is installed")
    assert done.returncode == 2 and "sudo apt install g++" in done.stderr
    assert "pip install 'minidl[zig]'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: nn.MLP(64, 32, 10)(np.zeros((5, 63), "f4")), "(5, 63), weight (32, 64); want"),
        (lambda: nn.GPT(256, 8, 1, 1, 16)(np.zeros((2, 9), int)), "context of 8 tokens, got 9"),
        (lambda: minidl.rand(3, 4) @ minidl.rand(3, 4), "matmul: shapes (3, 4) @ (3, 4); want"),
        (lambda: minidl.rand(3, 4) + minidl.rand(5), "shapes (3, 4) and (5,) do not broadcast"),
        (lambda: F.cross_entropy(minidl.rand(4, 10), np.array([10] * 4)), "target 10 is no class"),
        (lambda: minidl.rand(3).backward(), "does not require a gradient"),
        (lambda: nn.MLP(64, 32, 10).load_state_dict({}), "missing ['0.weight'"),
    ],
)
def test_a_wrong_shape_is_named_with_what_is_wanted(call, words):
    with pytest.raises((ValueError, IndexError, RuntimeError, KeyError)) as caught:
        call()
    assert words in str(caught.value)


def test_a_truncated_snapshot_is_named_with_its_size(tmp_path):
    pytest.importorskip("safetensors")
    model = nn.MLP(4, 4, 4)
    minidl.snapshot.snapshot.save(tmp_path, 1, model=model)
    (file,) = tmp_path.glob("*.safetensors")
    n_bytes = file.stat().st_size
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(minidl.snapshot.snapshot.SnapshotError) as caught:
        minidl.snapshot.snapshot.load(tmp_path, model=model)
    said = str(caught.value)
    assert file.name in said and f"wanted {n_bytes:,} bytes, got 100" in said
