"""NVIDIA's compiler takes every kernel, for sm_80 and sm_90, with no register spilled. Skips where
its wheels are missing."""

import re
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import nvrtc
from minidl.cuda.nvrtc import Usage
from tests.strict_cupy import kernel_table

HERE = Path(__file__).parent
needs_nvrtc = pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5scaleIfLi4EEvPT_' for 'sm_80'
ptxas info    : Function properties for _Z5scaleIfLi4EEvPT_
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'add3' for 'sm_80'
ptxas info    : Function properties for add3
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 380 bytes cmem[0]
"""


def test_the_log_of_ptxas_is_read():
    usages = nvrtc._usages(LOG, "sm_80", ["add3", "scale", "add"])
    assert usages == [
        Usage(
            "scale [_Z5scaleIfLi4EEvPT_]", "sm_80", registers=255, shared=1024, stack=16, spills=20
        ),
        Usage("add3", "sm_80", registers=12, shared=0, stack=0, spills=0),
    ]
    lines = nvrtc.table(usages).splitlines()
    assert (
        "spills" in lines[0] and lines[1].endswith("<- spills") and not lines[2].endswith("spills")
    )


@needs_nvrtc
@pytest.mark.parametrize("element", ["float", "__half", "double"])
@pytest.mark.parametrize("file", sorted(f.name for f in cuda.KERNELS.glob("*.cu")))
def test_our_kernels_compile_and_do_not_spill(file, element):
    if re.search(r"^#ifdef MINIDL_HOST$", (cuda.KERNELS / file).read_text(), re.M):
        pytest.skip(f"{file} is a kernel for CPUs alone")
    if element == "double" and file in ("attention.cu", "attention_backward.cu"):
        # a naive rung keeps three rows of E = 32 in registers: 192 of them in double
        pytest.skip("attention takes float32 and float16: double has the plain op")
    arch = "sm_90" if element == "__half" else "sm_80"  # each file for both, not each element
    usages = nvrtc.check(file, {"T": element}, (arch,))
    print(nvrtc.table(usages))
    assert usages and not [u for u in usages if u.spills]


@pytest.mark.parametrize("file", sorted(f.name for f in cuda.KERNELS.glob("*.cu")))
def test_the_header_says_how_fast_a_gpu_should_be_and_what_is_moved(file):
    text = (cuda.KERNELS / file).read_text()
    if re.search(r"^#ifdef MINIDL_HOST$", text, re.M):
        pytest.skip(f"{file} is a kernel for CPUs alone")
    comment = re.match(r"(//.*\n)+", text)[0]
    head = " ".join(line.lstrip("/ ") for line in comment.splitlines())
    assert re.search(r"Expected shares? of .*(It is|They are) computed, not measured"
                     r"|its time is the time of one launch", head), (
        f"kernels/{file}: its header wants a paragraph 'Expected share of a copy's bandwidth on a "
        "GPU. It is computed, not measured (gelu.cu shows how). ...'; see gelu.cu")
    assert re.search(r"\bbytes?\b|\belements\b|\bloads\b", head), (
        f"kernels/{file}: its header wants the bytes that are read and written")


@needs_nvrtc
@pytest.mark.slow
def test_no_kernel_of_a_gpt_spills(capsys, needs_compiler):
    """GPT-2's widths in mixed precision; all instances and architectures: make kernel-table."""
    assert kernel_table.main("gpt2", "sm_100") == 0
    out = capsys.readouterr().out
    assert "attention_grad_kv_mma" in out and "KEEP=32 T=__half" in out


@needs_nvrtc
@pytest.mark.parametrize(
    "file, instances", [("idioms.cu", ("sum_static<float, 128>",)), ("common_probe.cu", ())]
)
def test_what_the_cpu_runner_runs_in_the_tests_is_cuda(file, instances):
    kernels = {
        u.kernel.split()[0]
        for u in nvrtc.check(HERE / "host" / file, architectures=("sm_80",), instances=instances)
    }
    assert len(kernels) > 3 and {i.split("<")[0] for i in instances} <= kernels


@needs_nvrtc
def test_the_same_text_is_compiled_once_for_an_architecture(tmp_path, monkeypatch):
    """Its log is kept beside the compiled kernels; an error is not."""
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "cache"))
    file, compiled, compile_now = tmp_path / "k.cu", [], nvrtc._compiled
    monkeypatch.setattr(nvrtc, "_compiled", lambda *a: compiled.append(a[3]) or compile_now(*a))
    for text in ("x[0] = 1;", "x[0] = 1; x[1] = y;", "x[0] = y;"):  # y is a macro, or nothing
        file.write_text('extern "C" __global__ void k(float* x) { %s }' % text)
        for defines in ({"y": "2"}, {"y": "2"}, {}):
            for arch in ("sm_80", "sm_90"):
                try:
                    assert [u.arch for u in nvrtc.check(file, defines, (arch,))] == [arch]
                except cuda.KernelError as error:
                    assert '"y" is undefined' in str(error) and not defines
    assert compiled == ["sm_80", "sm_90"] * 6
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 8


@needs_nvrtc
def test_an_error_names_file_and_line(tmp_path):
    file = tmp_path / "wrong.cu"
    file.write_text('extern "C" __global__ void k(float* x) {\n  x[0] = y;\n}\n')
    with pytest.raises(
        cuda.KernelError,
        match=r"(?s)wrong.cu does not compile \(NVRTC, sm_80\).*wrong.cu\(2\).*\"y\" is undefined",
    ):
        nvrtc.check(file)


C_NAMES = """#include <math.h>
#include <stdint.h>
#include <float.h>
#include <cfloat>
#include <assert.h>
#include <cooperative_groups.h>
__global__ void k(double* x, const int64_t* n, uint8_t small) {
  assert(n);
  x[0] = INFINITY;
  x[1] = FLT_MAX + M_PI + INT_MIN + small + n[0];
  x[2] = FLT_EPSILON;
}
"""


def test_c_headers_mean_the_same_on_the_cpu(tmp_path):
    file = tmp_path / "names.cu"
    file.write_text(C_NAMES)
    x = np.zeros(3)
    cuda.kernel(file)(1, 1, (x, np.array([5]), 7))
    limits = np.finfo(np.float32)
    assert list(x) == [np.inf, float(limits.max) + np.pi - 2**31 + 7 + 5, float(limits.eps)]


@needs_nvrtc
@pytest.mark.parametrize("headers", [True, False])
def test_c_headers_mean_the_same_to_nvrtc(tmp_path, headers):
    """And their names are there without them, on both sides."""
    file = tmp_path / "names.cu"
    file.write_text(C_NAMES if headers else C_NAMES[C_NAMES.index("__global__"):])
    assert len(nvrtc.check(file, architectures=("sm_80",))) == 1


@needs_nvrtc
def test_a_header_that_neither_side_has_is_named(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text('#include <vector>\n__global__ void k(float* x) {}')
    with pytest.raises(cuda.KernelError, match="minidl: <vector> is not supported in a kernel"):
        nvrtc.check(file, architectures=("sm_80",))
    with pytest.raises(cuda.KernelError, match="minidl: <vector> is not supported in a kernel"):
        cuda.kernel(file)(1, 1, (np.zeros(1, np.float32),))


@needs_nvrtc
def test_an_instance_of_a_template_is_compiled_where_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "k.cu"
    file.write_text("template <int N> __global__ void scale(float* x) { x[0] *= N; }")
    assert nvrtc.check(file, architectures=("sm_80",)) == []
    (usage,) = nvrtc.check(file, architectures=("sm_80",), instances=("scale<3>",))
    assert usage.kernel.startswith("scale")


@needs_nvrtc
def test_nvrtc_changes_nothing_in_this_process(tmp_path):
    """Red before: of a text like this it takes the limit of the stack away."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_STACK)
    file = tmp_path / "k.cu"
    file.write_text("#include <vector>\n__global__ void k(float* x) {}")
    with pytest.raises(cuda.KernelError, match="not supported"):
        nvrtc.check(file, architectures=("sm_80",))
    assert resource.getrlimit(resource.RLIMIT_STACK) == before


@needs_nvrtc
@pytest.mark.parametrize("text, words", [
    ("import os; os.kill(os.getpid(), 11)", "NVRTC was ended by SIGSEGV"),
    ("raise RuntimeError('out of memory')", "NVRTC failed: RuntimeError: out of memory")])
def test_what_ends_nvrtc_is_said_and_does_not_end_python(tmp_path, monkeypatch, text, words):
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "cache"))
    process, file = tmp_path / "process.py", tmp_path / "k.cu"
    process.write_text(text)
    file.write_text('extern "C" __global__ void k(float* x) { x[0] = 1; }')
    monkeypatch.setattr(nvrtc.nvrtc_process, "__file__", str(process))
    with pytest.raises(cuda.KernelError, match=words):
        nvrtc.check(file, architectures=("sm_80",))


def test_without_the_wheel_a_sentence_tells_how_to_get_it(monkeypatch):
    nvrtc._library.cache_clear()
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'minidl[nvrtc]'" in nvrtc.available()
    nvrtc._library.cache_clear()
