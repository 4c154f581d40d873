"""What the tutorials share: ranks and options, rows of several ranks, what lands in out/."""

import importlib.util
import runpy
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest

from minidl import comm
from minidl.cli import machine
from minidl.course.exercise import ROOT
from minidl.course.out import lanes, line_at
from minidl.course.table import load
from minidl.course.tutorial import Table, gather, launch, launched_as, picture, progress
from tests.conftest import some

SCRIPT = '''
"""A script."""
from minidl.course.tutorial import Table, WrongOption, launch, say

def main(t, args):
    if args.steps == 13:
        raise WrongOption(f"--steps {args.steps}: any other")
    table = Table(t)
    say(t, "options", args.steps, args.fast, args.lr)
    table.row("rank", t.rank if t.rank != args.bad else 99, t.rank, "exact")
    table.row("ranks", t.size)
    return table

if __name__ == "__main__":
    launch(main, {"steps": (3, "steps"), "fast": (False, "a flag"), "lr": (0.5, "rate"), "bad": (-1,
    "rank")}, ranks=4)
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Runs the script above with arguments; the finished process."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*arguments, before=()):
        return subprocess.run(
            [*before, sys.executable, str(path), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env=machine.environment(3) if before else None,  # Open MPI refuses root and few cores
        )

    return run


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_every_rank_gets_the_status_that_the_worst_rank_has(n, capsys):
    def fn(t, bad_rank):
        table = Table(t)
        table.row("rank", t.rank + (t.rank == bad_rank), t.rank, "exact")
        return table.finish()

    assert comm.simulate(n, fn, None) == [0] * n
    assert comm.simulate(n, fn, n - 1) == [1] * n
    out = capsys.readouterr().out
    assert out.count("quantity") == 2, "rank 0 alone prints"
    assert "throttled" not in out


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_gather_brings_every_ranks_value_in_order_beside_other_traffic(n):
    def fn(t):
        # a message of the program's own is under way to rank 0 when the values travel
        request = t.isend(np.array([t.rank]), 0) if t.rank else None
        values = gather(t, {"rank": t.rank, "array": np.full(t.rank, t.rank)})
        others = (
            [int(t.recv(np.zeros(1, int), src)[0]) for src in range(1, t.size)]
            if t.rank == 0
            else request.wait()
        )
        return values, others

    results = comm.simulate(n, fn)
    values, others = results[0]
    assert [v["rank"] for v in values] == list(range(n)) and [
        len(v["array"]) for v in values
    ] == list(range(n))
    assert others == list(range(1, n))
    assert all(values is None for values, _ in results[1:])


def test_the_table_is_saved_for_the_table_of_all_tutorials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fn(t):
        table = Table(t)
        table.row("bytes", np.int64(6), 6, "exact")
        table.modelled("seconds", np.float64(0.25), 0.5, "<=")
        return table, table.finish("07_ring.json")

    (table, status), _ = comm.simulate(2, fn)
    assert status == 0
    assert load(tmp_path / "out" / "07_ring.json") == table.rows


def test_what_cannot_be_written_is_said_and_the_table_still_comes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").write_text("a file where the folder should be")

    def fn(t):
        table = Table(t)
        table.row("ranks", t.size)
        picture(t, Namespace(slides=False, every_language=False), lambda plt: plt.figure())
        return table.finish("07_ring.json")

    assert comm.simulate(1, fn) == [0]
    out, err = capsys.readouterr()
    assert "ranks" in out and "picture:" not in out
    for name in ("test_tutorial.png", "07_ring.json"):
        assert f"Not written: out/{name} in {tmp_path}: File exists. Make room, or start" in err


def test_progress_bar_on_rank_zero_only(capsys):
    def fn(t):
        return list(progress(t, range(3), f"rank {t.rank}"))

    assert comm.simulate(2, fn) == [[0, 1, 2]] * 2
    err = capsys.readouterr().err
    assert "rank 0" in err and "rank 1" not in err


def test_simulated_ranks_options_and_status(script):
    done = script("--sim", "3", "--steps", "7", "--fast", "--lr", "1e-3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("options 7 True 0.001\n")
    assert done.stdout.count("options") == 1 and "ranks    |        3 |" in done.stdout
    done = script("--sim", "3", "--bad", "2")
    assert done.returncode == 1
    assert "rank (on rank 2) |       99 |      2 | exact | NO" in done.stdout


def test_a_gpu_that_is_not_there_is_an_error_that_says_why(script, monkeypatch):
    done = script("--device", "cuda", "--sim", "2")
    assert done.returncode == 2 and "--device cuda wants a GPU; CuPy" in done.stderr


@pytest.mark.gpu
def test_device_cuda_places_what_put_is_given(tmp_path):
    path = tmp_path / "place.py"
    path.write_text('''
import numpy as np
from minidl import nn
from minidl.course.tutorial import Table, host, launch, put

def main(t, args):
    table, x, model = Table(t), put(args, np.ones(3)), put(args, nn.Linear(2, 2))
    table.row("array", type(x).__module__, "cupy", "exact")
    table.row("module", model.weight.device, "cuda:0", "exact")
    table.row("back", float(host(x * 2).sum()), 6.0, "exact")
    table.row("a tensor's shape", str(host(model.weight).shape), "(2, 2)", "exact")
    return table

launch(main)
''')
    done = subprocess.run([sys.executable, str(path), "--sim", "2", "--device", "cuda"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_single_process_says_how_to_get_more_ranks(script):
    done = script()
    assert done.returncode == 0, done.stderr
    assert (
        "One rank only" in done.stdout
        and "--sim 4" in done.stdout
        and "minidl run -n 4" in done.stdout
    )
    assert "ranks    |        1 |" in done.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--sim", "0"), "at least 1"),
        (("--steps", "many"), "invalid int value: 'many'"),
        (("--sped",), "--sped"),
        (("--step", "3"), "unrecognized arguments: --step 3"),
        (("--alpha", "1"), "--alpha describes simulated ranks"),
        (("--steps", "-1"), "script.py: error: --steps must be at least"),
        (("--sim", "3", "--steps", "13"), "script.py: error: --steps 13: any other"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(script, arguments, words):
    done = script(*arguments)
    assert done.returncode == 2 and done.stderr.count(words) == 1
    assert "Traceback" not in done.stderr


def test_an_error_of_a_script_for_one_process_is_shown_once(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(
        "from minidl.course.tutorial import launch\n"
        "def main(t, args): raise ImportError('no compiler: install one')\n"
        "launch(main)\n"
    )
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(ImportError, match="no compiler: install one") as caught:
        runpy.run_path(str(path), run_name="__main__")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("variable, n_threads", [
    (None, 1), ("OMP_NUM_THREADS", 2), ("OPENBLAS_NUM_THREADS", 2), ("MKL_NUM_THREADS", 2)])
def test_matrix_products_have_one_thread_unless_the_user_set_a_number(variable, n_threads,
                                                                      monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    for name in machine.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "2")
    monkeypatch.setattr(sys, "argv", ["script.py"])
    seen = []
    with threadpoolctl.threadpool_limits(2, "blas"):  # on leaving, what it was before
        with pytest.raises(SystemExit):
            launch(lambda t, args: seen.extend(threadpoolctl.threadpool_info()))
    assert {pool["num_threads"] for pool in seen if pool["user_api"] == "blas"} == {n_threads}


def test_the_launchers_word_about_the_world(monkeypatch):
    for name in ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launched_as() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "2")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert launched_as() == (2, 4)


def test_many_processes_without_mpi4py_are_an_error_and_not_many_single_ranks(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(SystemExit, match="one of 4 processes, but mpi4py is not installed"):
        launch(lambda t, args: None, ranks=4)


@pytest.mark.mpi
def test_mpi_ranks_options_and_status(script):
    pytest.importorskip("mpi4py")
    before = [machine.find_mpiexec(), "-n", "3"]
    done = script("--steps", "7", before=before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("options 7 False 0.5") == 1 and "ranks    |        3 |" in done.stdout
    done = script("--bad", "1", before=before)
    assert done.returncode == 1
    assert "rank (on rank 1) |       99 |      1 | exact | NO" in done.stdout
    for wrong, words in some([("--sped", "unrecognized arguments"), ("--steps=13", "--steps 13")]):
        done = script(wrong, before=before)
        assert done.returncode == 2 and done.stderr.count(words) == 1


def test_lanes_are_drawn_from_the_top_and_lines_carry_their_names():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    lanes(axes, ["compute", "send"], [(0, 1.0, 3.0, "red"), (1, 2.0, 2.5, "blue")])
    bars = [(p.get_y() + p.get_height() / 2, p.get_x(), p.get_width()) for p in axes.patches]
    assert bars == [(0, 1.0, 2.0), (1, 2.0, 0.5)] and axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "send"]
    line_at(axes, "end", x=2.5, at=0.5)
    line_at(axes, "bound", y=1)
    assert [(text.get_text(), text.xy) for text in axes.texts] == [
        ("end", (2.5, 0.5)), ("bound", (1.0, 1))]
    assert [list(line.get_xdata()) for line in axes.lines] == [[2.5, 2.5], [0, 1]]
    pyplot.close(figure)
