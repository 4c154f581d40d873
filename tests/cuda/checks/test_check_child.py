"""What would kill or hang Python is a finding with its line; what was missed or wrongly told."""

import contextlib
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from tests.conftest import some

TEXT = r"""
__device__ __noinline__ int deep(volatile int* x, int n) {
  volatile int here[64];
  here[n & 63] = n;
  return x[0] < 0 ? 0 : deep(x, n + 1) + here[n & 63];     // BUG deep
}
__global__ void deep_kernel(int* x, int n) { x[0] = deep(x, n); }
__global__ void endless(int* x, int n) {
  while (x[0] == n)                                         // BUG endless
    x[1] += 1;
}
__global__ void endless_barrier(int* x, int n) {
  do {                                                      // BUG endless_barrier
    __syncthreads();
  } while (n == 0);
}
__global__ void wait_for_the_last(int* flag) {
  if (blockIdx.x == gridDim.x - 1) atomicExch(flag, 1);
  while (atomicAdd(flag, 0) == 0) {
  }
}
__global__ void trap(int* x, int n) { if (n == 0) __trap(); }  // BUG trap
__device__ void set(float* p, int k) { p[k] = 1; }          // BUG local_overrun
__global__ void local_overrun(float* x, int n) {
  float p[8];
  for (int k = 0; k <= n; ++k) set(p, k);
  x[0] = p[0];
}
__global__ void local_unwritten(float* x, int n) {
  float p[8];
  for (int k = 1; k < n; ++k) p[k] = k;
  float s = 0;
  for (int k = 0; k < n; ++k) s += p[k];                    // BUG local_unwritten
  x[0] = s;
}
__global__ void array_ended(float* x, int n) {
  float* p = x;
  for (int k = 0; k < n; ++k) {
    float four[4] = {1, 2, 3, 4};
    if (k == n - 1) p = four;
    x[k] += p[k & 3];
  }
  x[0] = p[1];                                              // BUG array_ended
}
__global__ void number_ended(float* x, int n) {
  const float* p = x;
  for (int k = 0; k < n; ++k) {
    float v = x[k] + 1;
    if (v > p[0]) p = &v;
  }
  x[0] = *p;                                                // BUG number_ended
}
__device__ __noinline__ void first_above(const float* x, int n, int* at) {
  for (int k = n - 1; k >= 0; --k) if (x[k] > 5) *at = k;
}
__global__ void number_unwritten(float* x, int n) {
  int at;
  first_above(x, n, &at);
  x[0] = at;                                                // BUG number_unwritten
}
__device__ __noinline__ float one(const float* x, int n) {
  float s = 0;
  for (int k = 0; k < n; ++k) {
    float two[2] = {x[k], 1};
    float one[2] = {1, x[k]}, *p = k & 1 ? one : two;
    float v = p[k & 1];
    const float* q = &v;
    s += *q;
  }
  return s;
}
struct Eight { float v[8], more[32]; };
__device__ __noinline__ void fill(Eight* e, const float* x, int n) {
  for (int k = 0; k < 32; ++k) e->more[k] = e->v[k % 8] = x[k % 8 % n];
}
__device__ __noinline__ float other(const float* x, int n) {
  Eight e;  // where the arrays of `one` have been
  fill(&e, x, n);
  float eight[8];
  for (int k = 0; k < 8; ++k) eight[k] = e.v[k] * e.more[k + 8];
  float v = 0, *p = &v;
  for (int k = 0; k < 8; ++k) {
    float pair[2] = {eight[k], *p};
    *p = pair[n & 1] + pair[~n & 1];
  }
  Eight again;  // not where `pair` has been
  fill(&again, x, n);
  return v;
}
__global__ void scopes(float* x, int n) {
  float a = one(x, n), b = other(x, n), c = one(x, n), d = other(x, n);
  int at = 0;
  first_above(x, n, &at);
  x[0] = a + b - c - d + at;
}
__device__ float table[8];
__global__ void device_overrun(float* x, int n) {
  float* p = table;
  p[n] = 1;                                                 // BUG device_overrun
}
__device__ float* kept;
__global__ void keep(float* x, int n) { kept = x; }
__global__ void use_kept(float* x, int n) { x[0] = kept[0]; }  // BUG use_kept
__global__ void shift(int* x, int n) { x[0] = 1 << (n + threadIdx.x); }  // BUG shift
__global__ void too_much(float* x, int n) {
  __shared__ float big[20000];                              // BUG too_much
  big[threadIdx.x] = n;
  x[0] = big[threadIdx.x];
}
__global__ void uninitialised(float* x, int n) {
  float s;
  for (int k = 0; k < n; ++k) s += x[k];
  x[0] = s;                                                 // BUG uninitialised
}

// The last block adds what the others left; `fence` is what it needs.
#define LAST_BLOCK(NAME, FENCE, WHERE)                                        \
  __global__ void NAME(float* sums, unsigned* ticket, const float* x) {       \
    __shared__ bool last;                                                     \
    if (threadIdx.x == 0) {                                                   \
      if (WHERE == 0) { FENCE; }                                              \
      sums[blockIdx.x] = x[blockIdx.x];                                       \
      if (WHERE == 1) { FENCE; }                                              \
      last = atomicAdd(ticket, 1u) == gridDim.x - 1;                          \
      if (WHERE == 2) { FENCE; }                                              \
    }                                                                         \
    __syncthreads();                                                          \
    if (last && threadIdx.x == 0)                                             \
      for (int b = 1; b < gridDim.x; ++b) sums[0] += sums[b];                 \
  }
LAST_BLOCK(last_block, __threadfence(), 1)
LAST_BLOCK(no_fence, (void)0, 1)
LAST_BLOCK(fence_before, __threadfence(), 0)
LAST_BLOCK(fence_after, __threadfence(), 2)
LAST_BLOCK(fence_of_the_block, __threadfence_block(), 1)

__global__ void fence_beside_a_race(float* sums, unsigned* ticket, const float* x) {
  __threadfence();
  sums[0] += x[blockIdx.x];
}
__global__ void atomics_without_fence(float* sums, unsigned* ticket, const float* x) {
  if (threadIdx.x) return;
  atomicAdd(sums, x[blockIdx.x]);
  if (atomicAdd(ticket, 1u) == gridDim.x - 1) sums[1] = sums[0];
}
__global__ void each_fences(float* sums, unsigned* ticket, const float* x) {
  __shared__ bool last;
  sums[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  __syncthreads();
  if (last) sums[threadIdx.x] += sums[(gridDim.x - 1) * blockDim.x + threadIdx.x];
}
__global__ void flag(volatile float* sums, volatile unsigned* ticket, const float* x) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    sums[0] = x[0];
    __threadfence();
    *ticket = 1;
  } else if (*ticket == 1) {
    sums[blockIdx.x] = sums[0] - sums[0];
  }
}
__global__ void shuffle_discarded(int* x, int n) {
  int v = threadIdx.x;
  if (v >= n) return;
  int other = __shfl_down_sync(0xffffffffu, v, 1);
  if (v + 1 < n) v += other;
  x[threadIdx.x] = v;
}
__global__ void shuffle_used(int* x, int n) {
  int v = threadIdx.x;
  if (v >= n) return;
  x[v] = v + __shfl_down_sync(0xffffffffu, v, 1);           // BUG shuffle_used
}
"""
LINES = TEXT.splitlines()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("child") / "child.cu"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    monkeypatch.setenv("MINIDL_WATCHDOG", "1")


def bug(name):
    return next(i for i, line in enumerate(LINES, 1) if line.endswith(f"// BUG {name}"))


# name: (block, dtype, n, kind of the first error, words)
BUGS = {
    "deep_kernel": (1, "i4", 0, "stack overflow", f"line {bug('deep')}"),
    "endless": (1, "i4", 0, "endless loop", f"in the loop of line {bug('endless')}"),
    "endless_barrier": (32, "i4", 0, "endless loop", f"of line {bug('endless_barrier')}"),
    "trap": (32, "i4", 0, "trap", ""),
    "local_overrun": (1, "f4", 8, "out of bounds", "writes p[8], but the local array p has 8"),
    "local_unwritten": (1, "f4", 8, "read of uninitialised local variable", "reads p[0]"),
    "array_ended": (1, "f4", 8, "stale pointer", "reads four[1], a local array, which has ended"),
    "number_ended": (1, "f4", 8, "stale pointer", "reads v, a local variable, which has ended"),
    "number_unwritten": (1, "f4", 8, "read of uninitialised local variable",
                         "reads at, a local variable, which it has not written"),
    "device_overrun": (1, "f4", 8, "out of bounds", "table[8], but table has 8 elements"),
    "shift": (1, "i4", 32, "shift too far", "shifts by 32 bits"),
    "too_much": (32, "f4", 8, "too much shared memory", "80,000 bytes with big"),
}


@pytest.mark.parametrize("name", some(BUGS))
def test_a_bug_is_found_by_name_and_line(file, name):
    block, dtype, n, kind, words = BUGS[name]
    report = cuda.check(file, 1, block, (np.zeros(64, dtype), n), name=name)
    found = report.errors[0]
    assert found.kind == kind and words in found.text, str(report)
    if f"// BUG {name}" in TEXT and "loop" not in kind:
        assert found.line == bug(name)


def test_local_variables_that_live_are_none(file):
    """Frames of functions lie where others have lain, and a loop's variables begin anew."""
    x = np.ones(64, np.float32)
    report = cuda.check(file, 1, 1, (x, 8), name="scopes")
    assert not report.findings, str(report)
    assert x[0] == 0


def test_an_endless_wait_for_a_block_that_has_not_begun_says_so(file):
    report = cuda.check(file, 4, 1, (np.zeros(1, np.int32),), name="wait_for_the_last")
    (found,) = report.errors
    assert found.kind == "endless loop" and "; 3 of 4 blocks had not begun" in found.text
    assert "CUDA promises neither an order of blocks" in found.remedy
    lonely = cuda.check(file, 4, 1, (np.zeros(64, np.int32), 0), name="endless")
    assert "blocks had not begun" not in lonely.errors[0].text


def test_what_the_compiler_knows_is_a_warning(file):
    report = cuda.check(file, 1, 1, (np.zeros(64, np.float32), 8), name="uninitialised")
    (found,) = report.warnings
    line = bug("uninitialised")
    assert found.kind == "uninitialised local variable"
    assert found.line in (line - 1, line)  # GCC 16 names the first use, in the loop


def test_a_pointer_of_an_earlier_launch_is_stale(file):
    x = np.zeros(64, np.float32)
    cuda.check(file, 1, 1, (x, 0), name="keep")
    report = cuda.check(file, 1, 1, (x, 0), name="use_kept")
    assert [f.kind for f in report.errors] == ["stale pointer"], str(report)
    assert report.errors[0].line == bug("use_kept")


# fences and atomics: name: kinds of errors
ORDER = {
    "last_block": set(), "each_fences": set(), "flag": set(),
    "no_fence": {"race between blocks", "double write"},
    "fence_before": {"race between blocks", "double write"},
    "fence_after": {"race between blocks", "double write"},
    "fence_of_the_block": {"race between blocks", "double write"},
    "fence_beside_a_race": {"race between blocks", "data race", "double write"},
    "atomics_without_fence": {"race between blocks"},
}  # fmt: skip


@pytest.mark.parametrize("name", ORDER)
def test_a_fence_orders_only_what_it_must(file, name):
    """Red before: any __threadfence made warnings of a block's races, and its lack was not seen
    where the reader had been the last to change the number."""
    sums, ticket = np.zeros(256, np.float32), np.zeros(1, np.uint32)
    report = cuda.check(file, 4, 32, (sums, ticket, np.ones(4, np.float32)), name=name)
    kinds = {f.kind for f in report.errors if f.kind != "result depends on thread order"}
    assert kinds <= ORDER[name] and bool(kinds) == bool(ORDER[name]), str(report)
    if name in ("no_fence", "fence_after", "atomics_without_fence"):
        assert "__threadfence()" in report.errors[0].remedy


@pytest.mark.parametrize("form", ["auto", "check"])
def test_a_shuffled_value_that_is_discarded_is_no_error(file, form):
    x = np.zeros(32, np.int32)
    cuda.kernel(file, "shuffle_discarded", form=form)(1, 32, (x, 20))
    np.testing.assert_array_equal(x[:20], [*range(1, 38, 2), 19])


@pytest.mark.parametrize("form", ["auto", "check"])
def test_a_shuffled_value_that_is_used_is_an_error(file, form):
    with pytest.raises(cuda.KernelError, match=f"child.cu:{bug('shuffle_used')}: shuffle from an"):
        cuda.kernel(file, "shuffle_used", form=form)(1, 32, (np.zeros(32, np.int32), 20))


def children():
    """Numbers of this process's children, of those that have ended and wait to be asked, too."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="wants Linux's /proc")
def test_ctrl_c_ends_a_check_and_its_process(file, monkeypatch):
    monkeypatch.setenv("MINIDL_WATCHDOG", "60")
    before = children()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    cuda.check(file, 1, 32, (np.zeros(64, np.float32), 0), name="keep")  # compiled
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        cuda.check(file, 1, 1, (np.zeros(64, np.int32), 0), name="endless")
    timer.join()
    assert children() <= before  # others' may be there, which another test has started
