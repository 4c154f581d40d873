"""A kernel's mistakes end the launch with a sentence; Python lives and launches again."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.host import compiler, cpu
from tests.conftest import some

TEXT = r"""
extern "C" __global__ void good(int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = i;
}
extern "C" __global__ void null(int* x, int n) { int* p = nullptr; p[threadIdx.x + n] = 1; }
extern "C" __global__ void null_fibre(int* x, int n) {
  __syncthreads();
  int* p = nullptr; p[threadIdx.x + n] = 1;
}
extern "C" __global__ void wild(int* x, int n) { x[(1ll << 44) + threadIdx.x] = n; }
extern "C" __global__ void divide(int* x, int n) { x[0] = 7 / (x[1] - x[1] + n); }
__device__ __noinline__ int deep(volatile int* x, int n) {
  volatile int here[64];
  here[n & 63] = n;
  return x[0] < 0 ? 0 : deep(x, n + 1) + here[n & 63];
}
extern "C" __global__ void recursion(int* x, int n) { x[0] = deep(x, n); }
extern "C" __global__ void recursion_fibre(int* x, int n) { __syncthreads(); x[0] = deep(x, n); }
extern "C" __global__ void big_locals(int* x, int n) {
  volatile int here[300000];
  for (int i = 0; i < 300000; ++i) here[i] = i + n;
  __syncthreads();
  x[0] = here[n];
}
extern "C" __global__ void asserts(int* x, int n) { assert(n == 3); x[0] = n; }
extern "C" __global__ void traps(int* x, int n) { if (n == 0) __trap(); x[0] = n; }
extern "C" __global__ void barrier_as_flat(int* x, int n) { __syncthreads(); x[0] = n; }
extern "C" __global__ void endless_volatile(volatile int* x, int n) { while (x[0] == n) { } }
extern "C" __global__ void endless_barrier(int* x, int n) { while (true) __syncthreads(); }
extern "C" __global__ void endless_add(int* x, int n) {
  while (atomicAdd(x, 0) == 0) { }
}
extern "C" __global__ void first_waits(int* x, int n) {
  if (threadIdx.x == 0) { while (atomicAdd(x, 0) == 0) { } }
  else atomicExch(x, 1);
}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("guard") / "guard.cu"
    path.write_text(TEXT)
    return path


@pytest.fixture
def one_second():
    limit = cpu.runtime().minidl_set_watchdog
    limit.argtypes = [ctypes.c_double]
    limit(0.5)
    yield
    limit(20)


def launch(file, name, grid=1, block=32, n=0, form="auto", elements=64):
    x = np.zeros(elements, np.int32)
    cuda.kernel(file, name, form=form)(grid, block, (x, n))
    return x


FAULTS = {
    "null": "NULL pointer", "null_fibre": r"thread \(31, 0, 0\).*NULL pointer",
    "wild": "where there is no array", "divide": "divided by zero",
    "recursion": "stack of a thread is full", "recursion_fibre": "stack of a thread is full",
    "big_locals": "stack of a thread is full", "asserts": "assertion failed: n == 3",
    "traps": r"__trap\(\)",
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name != "divide" or platform.machine() in compiler.X86 else
                 pytest.mark.skip("on ARM a division by zero gives 0 and no fault"))
    for name in FAULTS])
def test_a_fault_is_an_error_that_names_the_kernel(file, name, threads):
    """Red before: Python was killed by SIGSEGV, SIGFPE or SIGABRT."""
    before = cuda.set_threads(threads)
    try:
        with pytest.raises(cuda.KernelError, match=f"(?s)kernel {name}: .*{FAULTS[name]}"):
            launch(file, name, grid=3)
        np.testing.assert_array_equal(launch(file, "good", grid=2, n=64), np.arange(64))
    finally:
        cuda.set_threads(before)


def test_a_recursion_ends_where_the_stack_has_no_limit(file):
    """Red before: it took all memory of the machine (NVRTC had raised the limit)."""
    script = (
        "import re, sys, numpy as np; from minidl import cuda\n"
        "try: cuda.kernel(sys.argv[1], 'recursion')(3, 32, (np.zeros(64, np.int32), 0))\n"
        "except cuda.KernelError as e: print(e)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])")
    limited = f"ulimit -v {4 << 20}; ulimit -s unlimited; exec \"$@\""  # 4 GB
    ran = subprocess.run(["sh", "-c", limited, "sh", sys.executable, "-c", script, str(file)],
                         capture_output=True, text=True)
    if "ulimit" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert "stack of a thread is full" in ran.stdout, ran.stderr
    assert int(ran.stdout.split()[-1]) < 600 << 10  # kB, at the most


def test_a_barrier_in_the_flat_form_is_an_error(file):
    with pytest.raises(cuda.KernelError, match="barrier or warp call in the flat form"):
        launch(file, "barrier_as_flat", form="flat")


ENDLESS = ["endless_volatile", "endless_barrier", "endless_add"]


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_loop_is_ended_by_the_watchdog(file, name, one_second):
    with pytest.raises(cuda.KernelError, match=f"kernel {name}: .*(endless|without end)"):
        launch(file, name)


def test_a_long_launch_with_progress_is_left_alone(file, one_second):
    """16 blocks of 80 ms, more than a second; none of them is endless."""
    text = ("__global__ void slow(int* x, int n) { volatile int k = 0;"
            "for (int i = 0; i < 12000000; ++i) k += i; x[blockIdx.x] = 1; }")
    path = file.parent / "slow.cu"
    path.write_text(text)
    x = np.zeros(64, np.int32)
    cuda.kernel(path, "slow", form="fibre")(16, 1, (x[:16], 1))
    assert x[:16].all()


def test_a_wait_by_atomics_lets_the_others_run(file):
    assert launch(file, "first_waits")[0] == 1


@pytest.mark.parametrize("name", some(["endless_volatile", "endless_barrier"]))
def test_ctrl_c_ends_an_endless_loop(file, name, one_second):
    """Red before: Ctrl-C did nothing until the kernel came back."""
    with pytest.raises(cuda.KernelError):
        launch(file, name)  # compiled
    cpu.runtime().minidl_set_watchdog(20)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(file, name)
    timer.join()
    assert time.monotonic() - start < 20


MALLINFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 counts it")
def test_a_cpu_thread_that_ends_gives_its_stack_for_signals_back(file):
    """Red before: 64 KiB for each thread that had run a kernel."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo

    def after(n_threads):
        for _ in range(n_threads):
            thread = threading.Thread(target=launch, args=(file, "good"))
            thread.start()
            thread.join()
        return mallinfo().uordblks

    before = cuda.set_threads(1)
    try:
        assert after(2) + (5 * 64 << 10) > after(20)  # join() may be sooner than a thread's end
    finally:
        cuda.set_threads(before)
