"""The profile by line is what is counted by hand: sectors, wavefronts, branches, occupancy."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cli import main as cli
from minidl.cuda.checks.occupancy import occupancy, sentence

TEXT = """
__global__ void copy(float* y, const float* x, int stride, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)                            // line 4
    y[i] = x[(i * stride) % n];         // line 5
}
__global__ void column(float* y, const float* x) {
  __shared__ float tile[32][32];
  int c = threadIdx.x, r = threadIdx.y;
  tile[r][c] = x[r * 32 + c];           // line 10
  __syncthreads();
  y[r * 32 + c] = tile[c][r];           // line 12
}
__global__ void padded(float* y, const float* x) {
  __shared__ float tile[32][33];
  int c = threadIdx.x, r = threadIdx.y;
  tile[r][c] = x[r * 32 + c];
  __syncthreads();
  y[r * 32 + c] = tile[c][r];           // line 19
}
__global__ void wide(float4* y, const float4* x) { y[threadIdx.x] = x[threadIdx.x]; }  // line 21
__global__ void one_bank(double* y, int stride) {
  __shared__ double s[32 * 16];
  for (int k = 0; k < 16; ++k) s[threadIdx.x + 32 * k] = k;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x * stride];  // line 26
}
__global__ void branches(int* y, const int* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
  if (i % 2 == 0)                       // line 30: every warp
    atomicAdd(y, v);
  if (i < 64)                           // line 32: no warp
    atomicAdd(y + 1, v);
  for (int k = 0; k < v; ++k)           // line 34
    atomicAdd(y + 2, 1);
}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "profile.cu"
    path.write_text(TEXT)
    return path


def profile(file, name, grid, block, *args):
    report = cuda.check(file, grid, block, args, name=name, profile=True)
    assert not report.errors, str(report)
    return report.profile


def line(p, number, what="loads"):
    (found,) = [a for a in p.accesses if a.line == number and a.what == what]
    return found


# (stride, sectors of 32 bytes of a full warp's load): 8 floats are a sector
@pytest.mark.parametrize("stride, sectors", [(0, 1), (1, 4), (2, 8), (4, 16), (8, 32), (16, 32)])
def test_sectors_of_a_strided_load(file, stride, sectors):
    n = 32 * 16 * 16
    p = profile(file, "copy", 2, 64, np.zeros(n, np.float32), np.ones(n, np.float32), stride, n)
    loads, stores = line(p, 5), line(p, 5, "stores")
    assert (loads.requests, loads.lanes, loads.units) == (4, 128, 4 * sectors)
    assert (stores.requests, stores.units, stores.best) == (4, 16, 16)
    assert loads.best == (4 if stride == 0 else 16) and loads.worst == sectors


def test_a_guard_diverges_in_the_last_warp_alone(file):
    p = profile(file, "copy", 2, 64, np.zeros(100, np.float32), np.ones(100, np.float32), 1, 100)
    (guard,) = p.branches
    assert (guard.line, guard.requests, guard.lanes, guard.units) == (4, 4, 128, 1)
    assert line(p, 5).lanes == 100 and line(p, 5).units == 4 + 4 + 4 + 1


def test_bank_conflicts_of_a_column_and_none_with_padding(file):
    x, y = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
    p = profile(file, "column", 1, (32, 32), y, x)
    assert (line(p, 10, "stores").units, line(p, 10, "stores").best) == (32, 32)
    column = line(p, 12)
    assert (column.requests, column.units, column.worst) == (32, 32 * 32, 32)  # 32 conflicts each
    p = profile(file, "padded", 1, (32, 32), y, x)
    assert (line(p, 19).units, line(p, 19).worst) == (32, 1)


def test_wide_accesses(file):
    """16 bytes a thread: 512 bytes, 16 sectors, the fewest. 8-byte shared ones: by half warps."""
    p = profile(file, "wide", 1, 32, np.zeros(128, np.float32), np.ones(128, np.float32))
    assert (line(p, 21).units, line(p, 21).best) == (16, 16)
    for stride, waves in ((1, 2), (2, 4), (16, 32), (0, 2)):
        p = profile(file, "one_bank", 1, 32, np.zeros(32), stride)
        assert line(p, 26).units == waves, stride


def test_branches_that_diverge(file):
    x = np.where(np.arange(128) < 32, np.arange(128) % 3, 2).astype(np.int32)
    p = profile(file, "branches", 2, 64, np.zeros(3, np.int32), x)
    by_line = {b.line: b for b in p.branches}
    assert (by_line[30].requests, by_line[30].units) == (4, 4)
    assert (by_line[32].requests, by_line[32].units) == (4, 0)
    # warp 0 runs 0, 1 or 2 times: diverges at the first and the second test; the others never
    assert by_line[34].units == 2


def test_the_picture_of_shared_memory(file):
    x, y = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
    p = profile(file, "column", 1, (32, 32), y, x)
    assert p.pictures == {"tile": ["w" * 64, "r" * 64]}
    assert p.shared_bytes == 4096


# counted by hand from the table of technical specifications
@pytest.mark.parametrize("gpu, threads, registers, shared, blocks, warps, limit", [
    ("A100", 256, 40, 16384, 6, 48, "registers"),  # 65536/4/1280 = 12 warps a quarter: 48/8
    ("A100", 1024, 32, 0, 2, 64, "threads"),
    ("A100", 128, 16, 65536, 2, 8, "shared memory"),  # 164 / 65
    ("RTX4090", 1024, 64, 0, 1, 32, "threads"),
    ("T4", 64, 255, 0, 4, 8, "registers"),  # 2 warps a quarter of 8192
    ("H100", 32, None, 0, 32, 32, "threads"),
])
def test_occupancy(gpu, threads, registers, shared, blocks, warps, limit):
    o = occupancy(gpu, threads, registers, shared)
    assert (o.blocks, o.warps) == (blocks, warps) and limit in sentence(o)


def test_kernel_run_prints_it(file, tmp_path, capsys):
    script = tmp_path / "launch.py"
    script.write_text(f"""
import numpy as np
from minidl import kernel
x, y = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
kernel({str(file)!r}, "column")(1, (32, 32), (y, x))
""")
    assert cli.main(["kernel", "run", "--profile", "--gpu", "T4", str(script)]) == 0
    out = capsys.readouterr().out
    assert "<- 32.0 x shared bank conflicts" in out and "T4: 1 blocks an SM" in out
    assert cli.main(["kernel", "run", "--profile", "--gpu", "GTX9", str(script)]) == 2
