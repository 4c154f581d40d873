"""The check form on sound kernels: no false alarm, right results, a ledger equal to the formula."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.checks import checker

FILE = Path(__file__).parent / "sound.cu"


def floats(*shape):
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def run(name, grid, block, *args, file=FILE, **options):
    report = cuda.check(file, grid, block, args, name=name, **options)
    assert not report.findings, str(report)
    return report


def blocks(n, size):
    return -(-n // size)


# ---- the ledger ----


@pytest.mark.parametrize("n", [1, 255, 256, 257, 5000])
def test_fused_add3_moves_16_bytes_an_element_and_the_two_launches_24(n):
    a, b, c = floats(3, n)
    out, t = np.empty_like(a), np.empty_like(a)
    fused = run("add3", blocks(n, 256), 256, out, a, b, c, n, file="add3.cu", outputs=["out"])
    assert (fused.bytes_read, fused.bytes_written) == (12 * n, 4 * n)
    assert fused.ledger["a"] == checker.Traffic(loads=n, load_bytes=4 * n)
    assert fused.ledger["out"] == checker.Traffic(stores=n, store_bytes=4 * n)
    np.testing.assert_array_equal(out, a + b + c)
    first = run("add3_naive", blocks(n, 256), 256, t, a, b, n, file="add3.cu")
    second = run("add3_naive", blocks(n, 256), 256, out, t, c, n, file="add3.cu")
    assert (
        first.bytes_read + first.bytes_written + second.bytes_read + second.bytes_written == 24 * n
    )
    np.testing.assert_array_equal(out, a + b + c)


@pytest.mark.parametrize("n, block", [(1000, 128), (64, 64), (1, 32)])
def test_ledger_of_a_reduction_in_shared_memory(n, block):
    """A tree over B elements adds B - 1 times: 2 loads, 1 store. B stores before, 1 load after."""
    x, sums = floats(n), np.zeros(blocks(n, block), np.float32)
    report = run("reduce", len(sums), block, sums, x, n, shared_mem=4 * block)
    assert report.ledger["x"].loads == n and report.ledger["sums"].stores == len(sums)
    shared = report.shared["s"]
    assert shared.loads == len(sums) * (2 * (block - 1) + 1)
    assert shared.stores == len(sums) * (block + block - 1)
    assert shared.load_bytes == 4 * shared.loads
    padded = np.pad(x, (0, len(sums) * block - n)).reshape(-1, block)
    np.testing.assert_allclose(sums, padded.sum(1), rtol=1e-5, atol=1e-5)  # another order of adding


@pytest.mark.parametrize("rows, cols", [(32, 32), (33, 65), (1, 7)])
def test_ledger_of_a_transpose(rows, cols):
    x, out = floats(rows, cols), np.zeros((cols, rows), np.float32)
    report = run("transpose", (blocks(cols, 32), blocks(rows, 32)), (32, 32), out, x, rows, cols)
    n = rows * cols
    assert report.ledger == {
        "out": checker.Traffic(0, 0, n, 4 * n),
        "in": checker.Traffic(n, 4 * n),
    }
    assert report.shared == {"tile": checker.Traffic(n, 4 * n, n, 4 * n)}
    np.testing.assert_array_equal(out, x.T)


def test_ledger_counts_what_is_loaded_again():
    """y[i] = a * x[i] + y[i] loads y as well; a vector load is one access of 16 bytes."""
    x, y = floats(2, 300)
    assert run("saxpy", 2, 64, y, x, 0.5, 300).ledger["y"] == checker.Traffic(300, 1200, 300, 1200)
    out = np.zeros(300, np.float32)
    assert run("copy_float4", 2, 64, out, x, 300).ledger["in"] == checker.Traffic(75, 1200)


def test_ledger_counts_atomics():
    data, bins = np.arange(200, dtype=np.int32) % 16, np.zeros(16, np.int32)
    report = run("histogram", 2, 128, bins, data, 200)
    assert report.ledger["bins"] == checker.Traffic(atomics=32, atomic_bytes=128)
    loads = sum(t.load_bytes for t in report.ledger.values())
    assert report.bytes_read == loads + 128 and report.bytes_written == 128  # an atomic does both
    assert report.shared["local"].atomics == 200
    np.testing.assert_array_equal(bins, np.bincount(data))


# ---- no false alarm (more in test_check_idioms.py) ----


def test_stencil_with_a_halo():
    x, out = floats(1000), np.zeros(1000, np.float32)
    run("stencil", 8, 128, out, x, 1000, outputs=["out"])
    np.testing.assert_allclose(
        out, np.convolve(x.astype(float), np.ones(7), "same"), atol=1e-5
    )  # seven roundings


def test_tree_within_a_warp_ordered_by_syncwarp():
    x, total = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    run("reduce_syncwarp", 1, 64, total, x)
    assert total[0] == x.sum()


@pytest.mark.parametrize("cols", [1, 63, 200])
def test_online_softmax(cols):
    x, out = floats(3, cols), np.zeros((3, cols), np.float32)
    run("softmax_online", 3, 64, out, x, cols, outputs=["out"])
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=3e-6)


@pytest.mark.parametrize("block", [32, 128])
def test_layer_norm(block):
    x, w, b, y = floats(3, 100), floats(100), floats(100), np.zeros((3, 100), np.float32)
    run("layer_norm", 3, block, y, x, w, b, 100)
    z = x.astype(float)
    want = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_shared_variables_of_one_declaration():
    """Each is known by its name and size, whatever stands between the brackets."""
    x, out = floats(32), np.zeros(32, np.float32)
    report = run("two_shared", 1, 32, out, x)
    assert {name: t.stores for name, t in report.shared.items()} == {"a": 32, "b": 32, "c": 1}
    np.testing.assert_array_equal(out, x + x[::-1] + 1)


def test_bytes_of_larger_elements():
    x, out = floats(16), np.zeros(64, np.uint8)
    run("swap_bytes", 1, 64, out, x)
    np.testing.assert_array_equal(out.view(">f4"), x)


def test_rounding_of_float_atomics_is_a_warning():
    x, total = floats(500), np.zeros(1, np.float32)
    report = cuda.check(FILE, 4, 128, (total, x, 500), name="float_sum")
    assert not report.errors and [f.kind for f in report.warnings] == [
        "result depends on thread order"
    ]
    kernel = cuda.kernel(FILE, "float_sum", form="check")
    kernel(4, 128, (total, x, 500))  # in three orders, and goes on: no error


# ---- arrays ----


FAR = """
extern "C" __global__ void far(float* out, const float* x, int n, int distance) {
  int i = threadIdx.x;
  if (i < n) out[i] = x[i + distance];
}
extern "C" __global__ void pairs(float* out, const float* x, int n) {
  int i = threadIdx.x;
  if (i < n) out[i] = *(const double*)(x + 2 * i) > 0;
}
"""


@pytest.mark.parametrize("distance", [1, 1024, 4096, -1])  # also one page further, and four
def test_what_lies_beside_an_array_is_no_other_array(distance, tmp_path):
    file = tmp_path / "far.cu"
    file.write_text(FAR)
    args = np.zeros(32, np.float32), floats(32), 32, distance
    report = cuda.check(file, 1, 32, args, name="far")
    assert report.errors and {f.kind for f in report.errors} == {"out of bounds"}


def test_an_access_that_begins_inside_an_array_and_ends_outside_is_found(tmp_path):
    file = tmp_path / "pairs.cu"
    file.write_text(FAR)
    args = np.zeros(32, np.float32), floats(63), 32  # of the last pair there is half
    report = cuda.check(file, 1, 32, args, name="pairs")
    assert report.errors and {f.kind for f in report.errors} == {"out of bounds"}


def test_arrays_that_overlap_stay_one():
    """In place, and two views of one array: the copies overlap as the arrays do."""
    x = floats(100)
    want = np.float32(0.5) * x + x
    run("saxpy", 1, 100, x, x, 0.5, 100)
    np.testing.assert_allclose(x, want, rtol=1e-6)
    both = floats(200)
    before = both.copy()
    report = run(
        "saxpy", 1, 100, both[50:150], both[100:], 0.0, 50
    )  # y[0:50] is both[50:100]; x begins in y's middle
    assert list(report.ledger) == ["y=x"]  # one piece of memory, named after both
    np.testing.assert_array_equal(both, before)


def test_view_keeps_its_misalignment():
    """A view that begins 4 bytes into its array is misaligned for float4, as it is on a GPU."""
    x, out = floats(129), np.zeros(128, np.float32)
    report = cuda.check(FILE, 1, 32, (out, x[1:], 128), name="copy_float4")
    assert [f.kind for f in report.errors] == ["misaligned access"]
    run("copy_float4", 1, 32, out, x[4:], 124)


def test_vector_that_begins_inside_and_ends_outside():
    x, out = floats(126), np.zeros(128, np.float32)
    report = cuda.check(FILE, 1, 32, (out, x, 128), name="copy_float4")
    (found,) = report.errors
    assert found.kind == "out of bounds" and "in[124..127], but in has 126 elements" in found.text
    assert report.ledger["in"].loads == 31  # what lies outside is not counted


def test_elements_never_written_are_counted():
    x, out = floats(100), np.zeros(100, np.float32)
    report = cuda.check(FILE, 1, 24, (out, x, 96), name="copy_float4", outputs=["out"])
    (found,) = report.errors
    assert (
        found.kind == "output not written"
        and "4 elements of out never written, the first is out[96]" in found.text
    )
    with pytest.raises(ValueError, match="kernel copy_float4 has no array result; it has out, in"):
        cuda.check(FILE, 1, 25, (out, x, 100), name="copy_float4", outputs=["result"])


def test_launch_errors_are_those_of_a_launch():
    with pytest.raises(TypeError, match="takes 3 arguments, got 2"):
        cuda.check(FILE, 1, 32, (floats(4), floats(4)), name="copy_float4")
    with pytest.raises(cuda.KernelError, match="no kernel 'nothing'"):
        cuda.check(FILE, 1, 32, (), name="nothing")


@pytest.mark.slow  # zig's first compile
def test_clang_and_zig_name_lines_too(monkeypatch, tmp_path):
    wheel = importlib.util.find_spec("ziglang")
    if not (shutil.which("clang++") or wheel):
        pytest.skip("neither clang++ nor ziglang is installed")
    zig = wheel and f"{wheel.submodule_search_locations[0]}/zig c++"
    monkeypatch.setenv("MINIDL_CXX", "clang++" if shutil.which("clang++") else zig)
    file = tmp_path / "clang.cu"
    file.write_text("""
extern "C" __global__ void wrong(float* x) {
  __shared__ float s[32];
  int t = threadIdx.x, place;
  s[t] = x[t];
  if (x[t] > 1) place = t;
  atomicAdd(&x[0], s[(t + 31) % 32]);
  x[place + 32 * (t == 3)] = 1;
}
extern "C" __global__ void by_zero(int* x) {
  x[1] = 7 / x[0];
}
""")
    found = set()
    for name, array in ("wrong", np.full(32, 2, np.float32)), ("by_zero", np.zeros(2, np.int32)):
        report = cuda.check(file, 1, 32, (array,), name=name)
        found |= {(f.kind, f.line) for f in report.findings}
    assert {("data race", 7), ("out of bounds", 8), ("uninitialised local variable", 8),
            ("division by zero", 11)} <= found, str(found)



def test_report_reads_as_text():
    text = str(cuda.check(FILE, 2, 64, (floats(100), floats(100), 1.0, 100), name="saxpy"))
    assert text.splitlines()[0] == "kernel saxpy of sound.cu: 0 errors"
    assert "y" in text.splitlines()[2] and "400" in text.splitlines()[2]
