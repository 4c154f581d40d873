"""No false alarm of the check form on the idioms of GPU code: all tests of test_idioms.py again,
every access watched, in three orders of threads. The results come from the watched run."""

import numpy as np
import pytest

import minidl.cuda as cuda
from tests.cuda.host.test_idioms import *  # noqa: F401, F403  (collected here, with our `launch`)
from tests.cuda.host.test_idioms import FILE, floats

# What the check cannot know to be sound (minidl/cuda/checks/checker.py): a warning, no error.
WARNED = {
    "last_block": {"race between blocks"},
    "spin_lock": {"race between blocks", "double write", "data race"},
}


@pytest.fixture
def launch():
    def launch(name, grid, block, *args, shared_mem=0):
        report = cuda.check(FILE, grid, block, args, name=name, shared_mem=shared_mem)
        assert not report.errors, str(report)
        assert {f.kind for f in report.warnings} <= WARNED.get(name, set()), str(report)

    return launch


def test_table_of_pointers(rng):  # noqa: F811
    arrays = [floats(rng, n) for n in (5, 300, 77)]
    want = [a * np.float32(0.5) for a in arrays]
    table = np.array([a.ctypes.data for a in arrays], np.uint64)
    sizes = np.array([len(a) for a in arrays], np.int32)
    args = (table, sizes, 0.5)
    report = cuda.check(FILE, (2, 3), 256, args, name="pointers", reachable=arrays)
    assert not report.findings, str(report)
    assert report.ledger["reachable[1]"].stores == 300
    for got, wanted in zip(arrays, want, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert (
        table[0] == arrays[0].ctypes.data
    )  # the user's own table still holds the user's addresses
    with pytest.raises(cuda.KernelError, match="reachable="):
        cuda.check(FILE, (2, 3), 256, args, name="pointers", reachable=arrays[:2])


def test_shared_halves(tmp_path):
    """An array of a class: the compiler's own flag "is it made yet?" is no access of the kernel."""
    file = tmp_path / "halves.cu"
    file.write_text(
        "#include <cuda_fp16.h>\n"
        "__global__ void k(__half* out, const __half* x) {\n"
        "  __shared__ __align__(16) __half s[32], t[2][32];\n"
        "  s[threadIdx.x] = x[threadIdx.x], t[1][threadIdx.x] = s[threadIdx.x];\n"
        "  __syncthreads();\n  out[threadIdx.x] = t[1][threadIdx.x ^ 1];\n}\n")
    x, out = np.arange(32, dtype=np.float16), np.empty(32, np.float16)
    report = cuda.check(file, 1, 32, (out, x), outputs=["out"])
    assert not report.findings, str(report)
    assert set(report.shared) == {"s", "t"}
