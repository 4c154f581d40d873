"""The float functions of the CPU side against float64, over millions of values, and all 65,536
halves."""

import math
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda

FILE = Path(__file__).parent / "host_math.cu"
N = 1 << 20

REFERENCE = {
    "expf": np.exp, "exp2f": np.exp2, "logf": np.log, "tanhf": np.tanh,
    "erff": np.vectorize(math.erf, otypes="d"),
    "rsqrtf": lambda x: 1 / np.sqrt(x), "sqrtf": np.sqrt,
}  # fmt: skip
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1e-40, 1.1754944e-38, 3.4e38,
     -3.4e38, 88.72, 88.73, 89.0,
     -87.4, -103.0, -103.9, -104.0, -150.0, 0.625, 0.92, 4.0, 128.0, -126.0, -149.0], np.float32
)  # fmt: skip


def call(name, *arrays):
    cuda.kernel(FILE, name)(-(-arrays[0].size // 256), 256, (*arrays, arrays[0].size))


def every_kind_of_float(rng, low, high):
    """Uniform values where the function does its work, and random bit patterns: all magnitudes,
    NaN, subnormal numbers."""
    patterns = rng.integers(0, 1 << 32, N // 4, np.uint32).view(np.float32)
    return np.concatenate(
        [rng.uniform(low, high, N - N // 4).astype(np.float32), patterns, SPECIAL]
    )


@pytest.mark.parametrize(
    "name, low, high, bound",
    [("expf", -105, 90, 1.5), ("exp2f", -151, 129, 1.5), ("logf", 0, 4, 1), ("tanhf", -2, 2, 1.5),
     ("erff", -4.2, 4.2, 1.5),
     ("rsqrtf", 0, 100, 1.5), ("sqrtf", 0, 100, 0.5)],
)  # fmt: skip
def test_error_in_units_in_the_last_place(name, low, high, bound):
    x = every_kind_of_float(np.random.default_rng(1), low, high)
    if name == "erff":
        x = x[::4].copy()  # Python's erf, one value at a time
    y = np.empty_like(x)
    call(f"map_{name}", y, x)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
        rounded = want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(rounded))
    finite = np.isfinite(rounded) & np.isfinite(y)
    # an infinity may differ from the largest float only where the true value lies within a unit of
    # it
    np.testing.assert_array_equal(y[~finite], rounded[~finite])
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    error = np.abs(y[finite] - want[finite]) / unit
    print(f"{name}: {error.max():.2f} ulp at {x[finite][error.argmax()]!r}")
    assert error.max() <= bound


def test_max_and_min_pass_over_nan():
    a = np.array([1, np.nan, 2, np.nan, -np.inf, np.inf], np.float32)
    b = np.array([2, 3, np.nan, np.nan, 5, 7], np.float32)
    top, bottom = np.empty_like(a), np.empty_like(a)
    cuda.kernel(FILE, "max_min")(1, 32, (top, bottom, a, b, a.size))
    np.testing.assert_array_equal(top, np.fmax(a, b))
    np.testing.assert_array_equal(bottom, np.fmin(a, b))


# NumPy on ARM warns where a signalling nan becomes a float
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_every_half_becomes_the_right_float():
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    y = np.empty(x.shape, np.float32)
    call("widen", y, x)
    np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_floats_round_to_half_as_numpy_rounds():
    rng = np.random.default_rng(2)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    halves = halves[halves < 65504]  # the largest has no neighbour
    between = (
        halves + np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    ) / 2
    between = between[np.isfinite(between)]  # exactly between two halves: to even
    near = np.concatenate([np.nextafter(between, np.float32(s)) for s in (np.inf, -np.inf)])
    x = np.concatenate(
        [
            every_kind_of_float(rng, -70000, 70000),
            rng.uniform(-1e-4, 1e-4, N).astype(np.float32),
            between,
            near,
        ]
    )
    y = np.empty(x.shape, np.float16)
    call("narrow", y, x.astype(np.float32))
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(want))
