"""--device cuda: the benchmarks that have it run on device arrays (the stand-in's here, whose times
mean nothing), the others refuse with a sentence."""

import argparse
import importlib
import sys

import pytest

from benchmarks.cluster import ROOT

FOLDER = ROOT / "benchmarks"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))  # where a benchmark finds its neighbours

import common  # noqa: E402

ON_DEVICE = {"bench_attention", "bench_elementwise", "bench_optimizer", "bench_overhead",
             "bench_rows", "bench_train_step"}
OTHERS = sorted({path.stem for path in FOLDER.glob("bench_*.py")} - ON_DEVICE)


def imported(name):
    if name in ("bench_elementwise", "bench_rows", "bench_overhead", "bench_kernels"):
        pytest.importorskip("torch", reason="the benchmark has nothing to say without PyTorch")
    return importlib.import_module(name)


def started(name, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--device", "cuda", *words])
    return imported(name)


@pytest.mark.parametrize("name", OTHERS)
def test_the_others_say_why_they_have_none(name, monkeypatch, capsys):
    module = started(name, monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        (getattr(module, "options", None) or module.main)()
    assert stopped.value.code == 2
    assert "this benchmark runs only on the CPU: " in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused(monkeypatch, capsys):
    from minidl import cuda

    monkeypatch.setattr(cuda, "is_available", lambda: False)
    for name, words in (("cuda", "finds no GPU"), ("tpu", "want cpu or cuda, got 'tpu'")):
        parser = argparse.ArgumentParser()
        common.device_option(parser)
        with pytest.raises(SystemExit):
            parser.parse_args(["--device", name])
        assert words in capsys.readouterr().err


def test_rows(strict_cupy, needs_compiler, monkeypatch, capsys):
    module = started("bench_rows", monkeypatch, "--quick", "--repeats", "1")
    monkeypatch.setattr(module, "SHAPES", [(4, 64)])
    with strict_cupy.stand_in.counting() as count:
        module.main()
    assert {"layer_norm_v4", "softmax_v4", "cross_entropy_v4"} <= set(count.launches)
    lines = capsys.readouterr().out.splitlines()
    assert "stand-in" in lines[0]
    (line,) = [line for line in lines if line.startswith("softmax  ")]
    # kernel, chain, out=, torch, copy | chain, out=, torch, bound
    assert [word == "-" for word in line.split()[5:]] == [
        False, True, True, True, False, False, True, True, True, False]


def test_elementwise(strict_cupy, needs_compiler, monkeypatch):
    module = started("bench_elementwise", monkeypatch, "--quick", "--repeats", "1")
    monkeypatch.setattr(module, "SIZES", [2048])
    monkeypatch.setattr(module, "VOCABULARY", 8)
    with strict_cupy.stand_in.counting() as count:
        module.main()
    assert {"gelu_packs", "adamw_many", "sgd_many", "embedding_grad_packs"} <= set(count.launches)


def test_overhead(strict_cupy, needs_compiler, monkeypatch, capsys):
    module = started("bench_overhead", monkeypatch, "--calls", "1", "--rounds", "1")
    module.main()
    assert "left out: PyTorch, which is not installed or not for a GPU" in capsys.readouterr().out


def test_optimizer(strict_cupy, needs_compiler, monkeypatch):
    module = imported("bench_optimizer")
    monkeypatch.setattr(module, "N_TENSORS", 2)
    monkeypatch.setattr(module, "N_ELEMS", 40)
    times = common.take_turns(module.contestants(1, "cuda"), 1)
    assert set(times) == {module.OURS, module.MASTER, module.PLAIN, module.CHAIN}


def test_attention(strict_cupy, needs_compiler):
    module = imported("bench_attention")
    times = common.take_turns(module.contestants((1, 1, 16, 32), True, True, "cuda"), 1)
    assert set(times) == {"kernel", "plain", "bound"}


def test_train_step(strict_cupy, needs_compiler, monkeypatch, capsys):
    module = started("bench_train_step", monkeypatch, "--repeats", "1")
    monkeypatch.setattr(module, "SIZE", module.Size(1, 32, 1, context=4, batch=1, vocab=8))
    monkeypatch.setattr(module, "STEPS_PER_BLOCK", 1)
    figures = module.measure(module.options())
    assert set(figures["times_s"]) == {module.OURS, module.PLAIN, module.FLOOR}
    assert "where the" not in capsys.readouterr().out  # an op on a GPU only starts its work
