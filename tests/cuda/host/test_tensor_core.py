"""A GPU's tensor cores as the CPU runner plays them, lane by lane, against the PTX manual's tables
of fragments, written out here a second time; and what NVIDIA's compiler makes of them."""

from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import nvrtc

FILE = Path(__file__).parent / "tensor_core_probe.cu"
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4  # the manual's groupID and threadID_in_group


def pairs(halves):
    """(32, n, 2) halves as (32, n) registers, the first in the low bits."""
    return np.ascontiguousarray(halves).view(np.uint32)[..., 0]


def fragment_a(m):
    """(32, 4) registers of a 16 x 16 matrix: a0..a7 of lane 4 g + t, mma.m16n8k16."""
    i = np.arange(8)
    row = G[:, None] + 8 * (i // 2 % 2)
    column = 2 * T[:, None] + i % 2 + 8 * (i // 4)
    return pairs(m[row, column].reshape(32, 4, 2))


def fragment_b(m):
    """(32, 2) registers of a 16 x 8 matrix: b0..b3."""
    i = np.arange(4)
    row = 2 * T[:, None] + i % 2 + 8 * (i // 2)
    return pairs(m[row, np.broadcast_to(G[:, None], row.shape)].reshape(32, 2, 2))


def matrix_of_c(c):
    """A 16 x 8 matrix from its fragment (32, 4): c0..c3."""
    m, i = np.full((16, 8), np.nan), np.arange(4)
    m[G[:, None] + 8 * (i // 2), 2 * T[:, None] + i % 2] = c
    return m


def test_mma_multiplies_what_the_lanes_hold():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((16, 16), (16, 8)))
    before = rng.standard_normal((32, 4)).astype(np.float32)
    c = before.copy()
    cuda.kernel(FILE, "products")(1, 32, (c, fragment_a(a), fragment_b(b), 32))
    wanted = matrix_of_c(before) + a.astype("f8") @ b.astype("f8")
    # 16 products, each exact in float, summed in float
    np.testing.assert_allclose(matrix_of_c(c), wanted, rtol=0, atol=1e-5)


def test_ldmatrix_gives_each_lane_its_fragment():
    x = np.arange(256, dtype=np.float16).reshape(16, 16)
    out = np.zeros((3, 32, 4), np.uint32)
    cuda.kernel(FILE, "fragments")(1, 32, (out, x))
    np.testing.assert_array_equal(out[0], fragment_a(x))
    for got, m in ((out[1], x), (out[2], x.T)):  # two fragments b, side by side
        wanted = np.hstack([fragment_b(m[:, :8]), fragment_b(m[:, 8:])])
        np.testing.assert_array_equal(got, wanted)


def test_a_missing_lane_is_found():
    """On a GPU: undefined; the warp may hang."""
    args = np.zeros((32, 4), "f4"), np.zeros((32, 4), "u4"), np.zeros((32, 2), "u4"), 31
    with pytest.raises(cuda.KernelError, match="31 threads wait|lane"):
        cuda.kernel(FILE, "products")(1, 32, args)


def test_the_watched_forms_find_nothing():
    x, out = np.ones((16, 16), np.float16), np.zeros((3, 32, 4), np.uint32)
    assert not cuda.check(FILE, 1, 32, (out, x), name="fragments", outputs=["out"]).findings


@pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))
def test_nvrtc_takes_the_instructions():
    assert len(nvrtc.check(FILE, architectures=("sm_80", "sm_90", "sm_100"))) == 6


ROWS = """#include "tensor_core.cuh"
extern "C" __global__ void shared_rows(float* y, const __half* x, int pitch, int shift) {
  __shared__ __align__(16) __half s[16 * 32 + 8];
  for (int i = threadIdx.x; i < 256; i += 32) s[shift + i / 16 * pitch + i % 16] = x[i];
  __syncwarp();
  unsigned int a[4];
  LOAD(a, s + shift, pitch);
  y[threadIdx.x] = a[0];
}
extern "C" __global__ void global_rows(float* y, const __half* x, int pitch, int shift) {
  unsigned int a[4];
  LOAD(a, x + shift, pitch);
  y[threadIdx.x] = a[0];
}
extern "C" __global__ void dynamic_rows(float* y, const __half* x, int pitch, int shift) {
  extern __shared__ __half s[];
  for (int i = threadIdx.x; i < 256; i += 32) s[shift + i / 16 * pitch + i % 16] = x[i];
  __syncwarp();
  unsigned int a[4];
  LOAD(a, s + shift, pitch);
  y[threadIdx.x] = a[0];
}
"""


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "rows.cu"
    file.write_text(ROWS)
    return file


@pytest.mark.parametrize("load", ["load_a", "load_b", "load_b_transposed"])
@pytest.mark.parametrize("name, pitch, shift, kind", [
    ("shared_rows", 24, 0, None), ("shared_rows", 32, 8, None), ("dynamic_rows", 24, 8, None),
    ("shared_rows", 20, 0, "misaligned access"),  # every second row
    ("shared_rows", 24, 4, "misaligned access"), ("dynamic_rows", 24, 1, "misaligned access"),
    ("global_rows", 16, 0, "not in shared memory")])
def test_ldmatrix_wants_aligned_rows_of_shared_memory(rows_file, load, name, pitch, shift, kind):
    args = np.zeros(32, "f4"), np.ones((16, 16), "f2"), pitch, shift
    report = cuda.check(rows_file, 1, 32, args, name=name, defines={"LOAD": load}, shared_mem=1100)
    assert {f.kind for f in report.errors} == ({kind} if kind else set()), str(report)
    assert not kind or "row of ldmatrix" in str(report)
    kernel = cuda.kernel(rows_file, name, defines={"LOAD": load})
    if kind == "misaligned access":  # in a plain launch too
        with pytest.raises(cuda.KernelError, match="ldmatrix: a row does not begin at a multiple"):
            kernel(1, 32, args, shared_mem=1100)
    else:
        kernel(1, 32, args, shared_mem=1100)
