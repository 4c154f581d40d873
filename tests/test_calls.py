"""Counts the Python calls of an op with a gradient and with kernels. Does not measure time.

The ops run on float32 arrays of 4 x 4 elements. The first calls of an op are not counted. The count
is the number of "call" events of `sys.setprofile`, without C functions.
benchmarks/bench_overhead.py compares the time of these calls with PyTorch.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import minidl
from minidl.cuda import dispatch
from minidl.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
x = minidl.randn(4, 4, requires_grad=True)
h = x * 1.0
q = minidl.randn(1, 2, 4, 4, requires_grad=True)
w, b = minidl.randn(4, 4, requires_grad=True), minidl.randn(4, requires_grad=True)

AT_MOST = {
    "x + x": (lambda: x + x, 7),
    "x * w": (lambda: x * w, 9),
    "gelu": (lambda: F.gelu(h), 14),
    "linear": (lambda: F.linear(h, w, b), 16),
    "softmax": (lambda: F.softmax(h, -1), 16),
    "layer_norm": (lambda: F.layer_norm(h, (4,), b, b), 20),
    "attention": (lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True), 65),
}


def calls_of(fn):
    """Returns the functions that a call of fn enters, as file:name, without fn itself. First calls
    fn twice. Then records three calls, and returns the record with the fewest functions, because a
    launch sometimes checks whether its file has changed."""
    fn()
    fn()
    return min((_recorded(fn) for _ in range(3)), key=len)


def _recorded(fn):
    found = []

    def watch(frame, event, arg):
        if event == "call":
            found.append(f"{frame.f_code.co_filename.rpartition('minidl/')[2]}:"
                         f"{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        fn()
    finally:
        sys.setprofile(before)
    return found[1:]


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler for the kernels")
@pytest.mark.parametrize("name", AT_MOST)
def test_an_op_makes_few_calls(name):
    code = f"from tests.test_calls import *; print(*calls_of(AT_MOST[{name!r}][0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    calls, most = done.stdout.split(), AT_MOST[name][1]
    assert calls, done.stderr
    assert len(calls) <= most, (
        f"{name} makes {len(calls)} Python calls, wanted at most {most}. Each takes some 0.1 us of "
        "every op. Which are new? If they must be, raise the number in AT_MOST of "
        "tests/test_calls.py:\n" + "\n".join(calls))


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler for the kernels")
def test_the_way_from_layer_norm_to_its_launch_is_short():
    """A student who uses a debugger steps through these calls."""
    code = "from tests.test_calls import *; print(*calls_of(lambda: F.layer_norm(h, 4, b, b)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    calls = done.stdout.split()
    assert calls, done.stderr
    way = calls[:calls.index("cuda/run.py:__call__") + 1]
    assert len(way) <= 10 and len({call.split(":")[0] for call in way}) <= 5, "\n".join(way)
