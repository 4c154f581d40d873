"""`minidl kernel bench`: every rung is run, a wrong one is said to be wrong, bytes are counted."""

import re
import shutil

import numpy as np
import pytest

from minidl.cli import kernel_bench, kernel_rungs, kernel_rungs_more
from minidl.cli import main as cli
from minidl.cuda import KERNELS, Kernel
from minidl.ops import add3, softmax
from tests.conftest import whole_form

# An exercise; and what a GPU alone runs: packs of 16 bytes, and float16 on tensor cores, which
# float32 has no use for (tests/ops/test_matmul_kernel.py, test_attention_kernel.py,
# test_conv_kernel.py run them).
NO_RUNG = {"add3_relu_bias", "add3_packs", "gelu_packs", "gelu_backward_packs", "relu_packs",
           "relu_backward_packs", "matmul_v4", "attention_mma", "attention_grad_q_mma",
           "attention_grad_kv_mma", "conv_v5", "conv_weight_v5"}


def bench(name, *options):
    return cli.main(["kernel", "bench", name, "--repeats", "1", *options])


def small(name):
    return kernel_bench.SMALL[len(kernel_bench.SIZES[name][0])]


def kernels_of(*files):
    return {k for f in files for k in re.findall(
        r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(", f.read_text())}


@pytest.mark.parametrize("name", kernel_rungs.SIZES)
def test_every_rung_of_our_kernels_is_run_and_is_right(name, monkeypatch, capsys):
    launched, launch = set(), Kernel.__call__

    def spy(kernel, *args, **options):
        launched.add(kernel.name)
        return launch(kernel, *args, **options)

    monkeypatch.setattr(Kernel, "__call__", spy)
    assert bench(name, "--size", *map(str, small(name))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Wrong: 0." and all(" right " in line for line in lines[2:-1])
    kernels = kernels_of(*KERNELS.glob(f"{name}*.cu"))
    missing = kernels - launched - NO_RUNG
    assert kernels and not missing, (
        f"{missing}: no rung of {name} in minidl/cli/kernel_rungs.py launches it. Add a rung; if "
        "only a GPU can run it, add its name to NO_RUNG of this file")
    assert Kernel.__call__ is spy  # as it was


@pytest.mark.parametrize("name", kernel_rungs_more.SIZES)
def test_what_training_takes_on_a_cpu_is_run_and_is_right(name, capsys):
    assert bench(name, "--size", *map(str, small(name))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Wrong: 0." and len(lines) > 3


@whole_form
def test_on_a_gpu_every_kernel_is_a_rung_and_right(strict_cupy, needs_compiler):
    launched = set()
    for name in kernel_bench.SIZES:
        for rung in kernel_bench.rungs(name, small(name), "cuda", repeats=1):
            launched |= {each.kernel.name for each in rung.launches}
            assert rung.right, (name, rung)
    kernels = kernels_of(*KERNELS.glob("*.cu"))
    assert len(kernels) > 130
    assert launched == kernels, (f"no rung launches {kernels - launched}: see SIZES of "
                                 "minidl/cli/kernel_rungs.py and kernel_rungs_more.py")


def test_a_wrong_rung_is_reported_and_is_the_exit_status(tmp_path, monkeypatch, capsys):
    text = (KERNELS / "softmax.cu").read_text()
    sums = re.search(r"void softmax_v2\(.*?(block_sum\([^;]*\))", text, re.S)
    planted = text[:sums.start(1)] + f"0.999f * {sums[1]}" + text[sums.end(1):]
    shutil.copytree(KERNELS / "cpu", tmp_path / "cpu")
    (tmp_path / "softmax.cu").write_text(planted)
    monkeypatch.setattr(softmax, "FILE", str(tmp_path / "softmax.cu"))
    assert bench("softmax", "--size", "9", "40") == 1
    out = capsys.readouterr().out
    (wrong,) = [line for line in out.splitlines() if " WRONG " in line]
    assert wrong.startswith("softmax_v2 ") and "1e-03" in wrong and "Wrong: 1." in out


def test_bytes_are_those_of_each_array_once():
    calls = kernel_rungs.add3(add3, lambda n: np.ones(n, np.float32), 100)[0].calls
    with kernel_bench.recorded(np) as launches:
        calls[0]()
        calls[1]()
    assert [(k.name, n) for k, _, n in launches] == [
        ("add3_naive", 1200), ("add3_naive", 1200), ("add3", 1600)]


def test_what_is_not_finite_or_of_another_shape_is_wrong():
    wanted = np.array([1.0, 4.0])
    assert kernel_bench.difference(np.array([1.0, 3.0]), wanted) == 0.25
    assert not kernel_bench.difference(np.array([1.0, np.nan]), wanted) <= 1
    assert kernel_bench.difference(np.ones(3), wanted) == np.inf


@pytest.mark.parametrize("name, size, words", [
    ("nothing", "1", "no kernel file 'nothing' to measure; there are adamw, add3"),
    ("softmax.cu", "5", "softmax: --size wants 2 numbers, such as 256 1024; got 1"),
])
def test_a_bench_that_does_not_exist_is_answered_with_those_that_do(name, size, words, capsys):
    assert bench(name, "--size", size) == 2
    assert words in capsys.readouterr().err
