"""The first launch of a flat kernel is tried on copies, in both forms; an error if they differ."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.host import flat, selfcheck

SCALE = """extern "C" __global__ void scale(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i] + i;
}
"""
REVERSED = """extern "C" __global__ void mirror(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = y[n - 1 - i] + x[i];
}
"""


def launch(path, text, name, n=1000):
    path.write_text(text)
    x, y = np.ones(n, np.float32), np.zeros(n + 1, np.float32)
    run = cuda.kernel(path, name)
    run(-(-n // 256), 256, (y, x, n))
    return run, y


@pytest.fixture
def wrong_loop(monkeypatch, tmp_path):
    """A defect of the flat form, as it might be: even threads are taken for their neighbours."""
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "cache"))
    plan = flat.plan

    def planned(source, name):
        p = plan(source, name)
        p.edits = [(a, b, new.replace("minidl_x", "minidl_x | 1")) for a, b, new in p.edits]
        return p

    monkeypatch.setattr(flat, "plan", planned)


def test_a_wrong_loop_is_an_error_and_not_a_wrong_number(wrong_loop, tmp_path):
    with pytest.raises(cuda.KernelError, match=r"fast loop over its threads gives y\[0\] = 0.0"):
        launch(tmp_path / "k.cu", SCALE, "scale")


def test_it_can_be_switched_off(wrong_loop, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIDL_SELF_CHECK", "0")
    _, y = launch(tmp_path / "k.cu", SCALE, "scale")
    assert y[0] == 0.0


def test_it_happens_once_and_leaves_the_arrays_alone(tmp_path, monkeypatch):
    tried = []
    check = selfcheck.check
    monkeypatch.setattr(selfcheck, "check", lambda *a: tried.append(a) or check(*a))
    run, y = launch(tmp_path / "k.cu", SCALE, "scale")
    np.testing.assert_array_equal(y[:1000], 2 + np.arange(1000))
    run(4, 256, (y, np.ones(1000, np.float32), 1000))
    cuda.kernel(tmp_path / "k.cu", "scale")(4, 256, (y, np.ones(1000, np.float32), 1000))
    assert len(tried) == 1


def test_a_large_launch_is_tried_later(tmp_path, monkeypatch):
    monkeypatch.setattr(selfcheck, "MAX_BYTES", 4000)
    run, _ = launch(tmp_path / "k.cu", SCALE, "scale")
    assert not run.on_cpu.tried
    run(1, 64, (np.zeros(64, np.float32), np.ones(64, np.float32), 64))
    assert run.on_cpu.tried


def test_what_depends_on_the_order_of_threads_is_named(tmp_path):
    """One thread after the other, the later read what the earlier wrote; of a vector none do. The
    middle, 205, lies inside a vector, whether of 4, 8 or 16 threads."""
    with pytest.raises(cuda.KernelError, match="minidl kernel run"):
        launch(tmp_path / "k.cu", REVERSED, "mirror", n=410)


def test_kernels_with_effects_are_not_run_twice(tmp_path):
    text = ("__device__ int count;\n" + SCALE).replace("+ i;", "+ i, atomicAdd(&count, 1);")
    run, y = launch(tmp_path / "k.cu", text, "scale")
    assert run.on_cpu.plain is None
    assert run.get_global("count") == 1000
