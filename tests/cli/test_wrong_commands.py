"""What a newcomer types wrong, and the words of the answer: what to do, without a traceback.

A machine whose Python is too old: tests/test_packaging.py. A folder where nothing may be written:
tests/course/test_tutorial.py, tests/course/test_exercise.py."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minidl
from minidl import cuda, infer, nn, optim
from minidl.cli import main as cli
from minidl.comm import ring
from minidl.comm.transport.scheduler import RankFailed
from minidl.course.exercise import ROOT
from minidl.nn import functional as F
from minidl.parallel import (
    Compressed, DataParallel, Offload, Table, Tables, Zero1, Zero3, parallelize,
)
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from minidl.precision import amp

COMMANDS = [
    # misspelt, or without what it needs
    ("minidl", 2, "usage: minidl"),
    ("minidl chekc 07", 2, "invalid choice: 'chekc'"),
    ("minidl check six", 2, "want a tutorial or an exercise, such as 07 or 07a, got 'six'"),
    ("minidl run tutorials/07_ring.py", 2, "the following arguments are required: -n/--ranks"),
    ("minidl run -n 0 tutorials/07_ring.py", 2, "want a whole number, at least 1, got '0'"),
    ("python tutorials/07_ring.py --sim 4 --stpes 3", 2, "unrecognized arguments: --stpes 3"),
    ("python tutorials/07_ring.py --sim four", 2, "argument --sim: invalid"),
    ("python tutorials/07_ring.py --alpha 1", 2, "--alpha describes simulated ranks: it needs"),
    ("minidl run tutorials/07_ring.py -n 4", 2, "required: -n/--ranks, before the script"),
    ("python tutorials/07_ring.py --sim 4 --net 1Gbit,50us", 2,
     "must stand before the script: minidl run -n 2 --net 1Gbit,50us "),
    ("minidl run -n 4 --net 1Gb tutorials/07_ring.py", 2, "wanted a rate and a latency such as"),
    ("minidl run -n 4 --net 1,50us tutorials/07_ring.py", 2, "'1' has no unit; wanted a rate"),
    ("minidl plan --ranks 8 --net 1Gbit,5us --memory 16", 2, "such as 16GB or 16GiB, got '16'"),
    ("minidl plan --ranks 8 --net 1Gbit,5us --memory much", 2, "--memory wants bytes such as 16GB"),
    ("minidl plan --ranks 8 --net 1Gbit,5us --memory 1GB --model bert", 2, "--model wants gpt2,"),
    ("minidl kernel run --gpu H1000 tutorials/02_add3.py", 2, "--gpu H1000: wanted one of T4"),
    ("minidl kernel bench softmx", 2, "no kernel file 'softmx' to measure; there are adamw, add3"),
    # what is not there
    ("minidl run -n 4 tutorials/66_ring.py", 2, "there is no file tutorials/66_ring.py in "),
    ("minidl exercise 66", 2, "tutorial 66 has no exercise; these tutorials have exercises: 01"),
    ("minidl check 07", 2, "does not exist. Make this file first: minidl exercise 07"),
    ("minidl kernel check nothing.cu", 2, "no file 'nothing.cu' in this folder or in"),
    ("minidl run -n 4 07_ring", 2, "Give the path of a Python file"),
    ("minidl run -n 2 --mpiexec mpirunn tutorials/00_hello.py", 2, "cannot start mpirunn: No such"),
    ("minidl run -n 2 --hosts nofile tutorials/00_hello.py", 2, "--hosts: cannot read nofile"),
    ("minidl run -n 2 --stdin nofile tutorials/00_hello.py", 2, "--stdin: cannot read nofile"),
    ("minidl profile --out nowhere/x tutorials/00_hello.py", 2, "--out nowhere/x: there is no fol"),
    ("minidl trace nothing.json", 2, "cannot read nothing.json: No such file"),
    ("minidl class .. 66", 2, "tutorial 66 has no exercise; these tutorials have exercises: 01"),
    ("minidl kernel check tutorials/07_ring.py", 2, "no __global__ function in this file"),
    ("minidl notebook 66", 2, "there is no tutorial 66 in"),
    ("python tutorials/train_gpt.py --sim 2 --resume nowhere", 2, "nowhere holds no snapshot"),
    ("python tutorials/run_all.py 66", 1, "no tutorial 66; there are 00, 01"),
    # the wrong number of ranks, and sizes that do not fit it
    ("python tutorials/07_ring.py --sim 0", 2, "must be at least 1, got 0"),
    ("python tutorials/07_ring.py --sim 4 --batch 10", 2, "10 is not divisible by 4 ranks"),
    ("python tutorials/07_ring.py --sim 4 --batch 2", 2, "Try --batch 4"),
    ("python tutorials/08_overlap.py --sim 3 --batch 10", 2, "10 is not divisible by 3 ranks"),
    ("python tutorials/08_overlap.py --sim 3 --batch 3000", 2, "at most 1437, the number"),
    ("python tutorials/12_offload.py --sim 2 --layers 0", 2, "--layers must be at least 1, got 0"),
    ("python tutorials/train_gpt.py --steps 0", 2, "--steps must be at least 1, got 0"),
    ("python tutorials/train_gpt.py --sim 4 --dp 3", 2, "equal to 4, the number of"),
    ("minidl run -n 2 --min-ranks 1 tutorials/00_hello.py", 2, "only together with --restarts or"),
    ("minidl run -n 2 --replacements 1 tutorials/00_hello.py", 2, "only together with --heal"),
]


if not cuda.is_available():
    COMMANDS += [
        ("minidl kernel bench softmax --device cuda", 2, "--device cuda wants a GPU"),
        ("python tutorials/07_ring.py --device cuda", 2, "`minidl doctor` tells what is missing"),
    ]


def answer(command, monkeypatch, capfd):
    """(exit status, what it printed) of a command, in this process."""
    root = Path(".") if Path.cwd() == ROOT else ROOT
    program, *arguments = (str(root / word) if (ROOT / word).is_file() else word
                           for word in command.split())
    try:
        if program == "minidl":
            status = cli.main(arguments)
        else:
            monkeypatch.setattr(sys, "argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")
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
    status, said = answer("minidl run -n 4 tutorials/07_ring.py", monkeypatch, capfd)
    assert status == 2 and "mpi4py is not installed" in said
    assert "pip install 'minidl[mpi]'" in said and "python tutorials/07_ring.py --sim 4" in said


@pytest.mark.parametrize("command", ["-m minidl kernel check add3.cu", "tutorials/02_add3.py"])
def test_without_a_compiler_the_answer_names_one_to_install(command, tmp_path):
    done = subprocess.run(
        [sys.executable, *(str(ROOT / word) if word.startswith("tutorials") else word
                           for word in command.split())],
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
        (lambda: nn.GPT(256, 8, 1, 1, 16)(np.zeros((2, 9), int)), "at most 8 tokens, because"),
        (lambda: minidl.rand(3, 4) @ minidl.rand(3, 4), "matmul: shapes (3, 4) @ (3, 4); want"),
        (lambda: minidl.rand(3, 4) + minidl.rand(5), "shapes (3, 4) and (5,) do not broadcast"),
        (lambda: F.cross_entropy(minidl.rand(4, 10), np.array([10] * 4)), "target 10 is no class"),
        (lambda: minidl.rand(3).backward(), "does not require a gradient"),
        (lambda: nn.MLP(64, 32, 10).load_state_dict({}), "missing in the state: ['0.weight'"),
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
    assert file.name in said and f"wanted {n_bytes:,} bytes; got 100" in said


MLP = nn.MLP(4, 4, 4)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: minidl.tensor([[1, 2], [3]]), ValueError, "numbers, in lists of equal length"),
        (lambda: minidl.tensor("hello"), ValueError, "in lists of equal length; got 'hello'"),
        (lambda: minidl.zeros(3, dtype="float23"), TypeError, "want a dtype, such as 'float16'"),
        (lambda: minidl.zeros(3).to("gpu"), TypeError, "a device ('cpu', 'cuda' or"),
        (lambda: minidl.arange(0, 10, 0), ValueError, "steps of 0 do not lead from 0 to 10"),
        (lambda: nn.Linear(3, 4)([1.0, 2.0, 3.0]), TypeError, "wants tensors or arrays, got list"),
        (lambda: nn.Linear(3, 4)(np.zeros(3)), TypeError, "input is float64, weight is float32"),
        (lambda: nn.Sequential([MLP]), TypeError, "Sequential(*modules) wants Modules; got list"),
        (lambda: MLP.load_state_dict("w.pt"), TypeError, "wants {name: array}; got str"),
        (lambda: optim.Adam(MLP), TypeError, "Adam wants a module's .parameters(); got"),
        (lambda: optim.lr_scheduler.StepLR(MLP, 5), TypeError, "StepLR wants an optimizer, such"),
        (lambda: Offload(MLP), TypeError, "Offload wants an optimizer, such as optim.SGD"),
        (lambda: amp.prepare(MLP, "O5"), ValueError,
         "opt_level must be O0, O1, O2 or O3; got 'O5'"),
        (lambda: amp.Autocast("int8"), TypeError, "wants a floating dtype, such as 'float16'"),
        (lambda: minidl.manual_seed("a"), ValueError, "seed must be in [0, 2**64), got 'a'"),
        (lambda: infer.compile(MLP), TypeError, "wanted a Graph, as infer.trace(model"),
        (lambda: nn.GPT(8, 8, 1, 1, 8).generate([1, 2], 3), ValueError, "ids of shape (N, T)"),
        (lambda: minidl.comm.simulate(0, print), ValueError, "1 or more; got 0"),
        (lambda: Table("user", 0), ValueError, "a table wants dim >= 1, admit >= 1"),
        (lambda: minidl.snapshot.save("runs", 1, model=5), TypeError, "wanted a module as model="),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_wanted(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


def push(t, name="user", grads=(2, 8), partition=0):
    tables = Tables(t, [Table("user", dim=8)], servers=0, partitions=4)
    tables.push(name, [1, 2], np.zeros(grads), partition, 1, 0)


@pytest.mark.parametrize(
    "n, body, words",
    [
        (2, lambda t: DataParallel(t, MLP), "wants a model (an nn.Module) and the transport of"),
        (2, lambda t: DataParallel(MLP, 2), "got a Sequential as the model and a int as"),
        (2, lambda t: DataParallel(MLP, t, all_reduce="ring"), "wants a function as all_red"),
        (2, lambda t: Zero1(MLP.parameters(), t), "Zero1 wants a model (an nn.Module)"),
        (2, lambda t: Zero3(MLP, 2), "Zero3 wants a model (an nn.Module)"),
        (2, lambda t: Compressed(MLP, t, "int8"), "wants a method of compression"),
        (2, lambda t: parallelize(nn.GPT(8, 8, 2, 2, 8), t), "such as comm.grid.Grid(t, tp=2);"),
        (2, lambda t: Pipeline(t, nn.MLP(4, 4, 4)[0], F.mse_loss, one_f_one_b(2, 2)),
         "pipeline wants a list of stages, such as cut("),
        (2, lambda t: Pipeline(t, cut(MLP, 2), F.mse_loss, 4), "such as one_f_one_b(n, m); got"),
        (2, lambda t: Pipeline(t, cut(MLP, 2), F.mse_loss, one_f_one_b(3, 2)),
         "wants a schedule for 2 ranks, the number"),
        (2, lambda t: Tables(t, Table("user", 8), 1, 4), "list of tables with different names"),
        (1, lambda t: push(t, name="item"), "name of a table, one of user; got 'item'"),
        (1, lambda t: push(t, grads=(2, 4)), "from 0 to 3; got shape (2, 4)"),
        (1, lambda t: push(t, partition=9), "got shape (2, 8) and partition 9"),
        (2, lambda t: ring.all_reduce(t, [1, 2]), "wants an array or a Tensor; got list"),
        (2, lambda t: ring.all_reduce(t, np.zeros(3), op="sum"), "a function, such as np.add"),
        (2, lambda t: ring.all_reduce(np.zeros(3), t), "wants a transport as its first argument"),
    ],
)
def test_a_wrong_argument_on_ranks_is_named_with_what_is_wanted(n, body, words):
    with pytest.raises(RankFailed) as caught:
        minidl.comm.simulate(n, body)
    assert words in str(caught.value)
