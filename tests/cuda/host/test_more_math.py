"""The rest of CUDA's math functions on the CPU, against Python's. NVIDIA's compiler knows each."""

import math
import re
import struct

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import nvrtc
from minidl.cuda.host import compiler

X = np.array([-7.75, -2.5, -1.0, -0.3, -0.0, 0.25, 0.5, 1.5, 2.0, 3.25, 40.0, 1e6])
WORDS = np.array([0, 1, 2, 3, 5, 8, 255, 256, 65535, 2**24 + 3, 2**31 - 1, 2**32 - 5], np.int64)


def signed(i):
    return (i + 2**31) % 2**32 - 2**31


def nth_set(mask, base, offset):
    places = [p for p in (range(base, 32) if offset > 0 else range(base, -1, -1)) if mask >> p & 1]
    return places[abs(offset) - 1] if len(places) >= abs(offset) else 2**32 - 1


# {expression of x (double), f (float), i (int), u (unsigned): the value for (x, i, u)}
REAL = {
    "frexp(x, &e) * 1000 + e": lambda x, i, u: math.frexp(x)[0] * 1000 + math.frexp(x)[1],
    "frexpf(f, &e) * 1000 + e": lambda x, i, u: math.frexp(x)[0] * 1000 + math.frexp(x)[1],
    "frexp(f, &e) + e": lambda x, i, u: sum(math.frexp(x)),
    "modf(x, &d) + 100 * d": lambda x, i, u: math.modf(x)[0] + 100 * math.modf(x)[1],
    "modff(f, &g) + 100 * g": lambda x, i, u: math.modf(x)[0] + 100 * math.modf(x)[1],
    "remquof(f, 3.0f, &e) + 10 * (e & 7)": lambda x, i, u: math.remainder(x, 3) + 10 * (
        round((x - math.remainder(x, 3)) / 3) % 8 if x >= 0 else
        -round(-(x - math.remainder(x, 3)) / 3) & 7),
    "remainder(x, 3.0)": lambda x, i, u: math.remainder(x, 3),
    "fdim(x, 1.0)": lambda x, i, u: max(x - 1, 0),
    "nextafterf(f, 9.0f) - f": lambda x, i, u: float(np.nextafter(np.float32(x), np.float32(9))
                                                    - np.float32(x)),
    "asinh(x)": lambda x, i, u: math.asinh(x),
    "acosh(x + 9)": lambda x, i, u: math.acosh(x + 9),
    "atanh(x / 2e6)": lambda x, i, u: math.atanh(x / 2e6),
    "logb(x * x + 1)": lambda x, i, u: math.frexp(x * x + 1)[1] - 1,
    "ilogbf(f * f + 1)": lambda x, i, u: math.frexp(x * x + 1)[1] - 1,
    "ldexp(x, 3)": lambda x, i, u: 8 * x, "scalbnf(f, -2)": lambda x, i, u: x / 4,
    "exp10(x / 1e6)": lambda x, i, u: 10 ** (x / 1e6),
    "sinpi(x)": lambda x, i, u: math.sin(math.pi * (x % 2)),
    "cospif(f)": lambda x, i, u: math.cos(math.pi * (x % 2)),
    "signbit(x)": lambda x, i, u: math.copysign(1, x) < 0,
    "copysign(2.0f, f)": lambda x, i, u: math.copysign(2, x),
    "norm3df(f, 1, 2)": lambda x, i, u: math.hypot(x, 1, 2),
    "rnorm4df(f, 1, 2, 3)": lambda x, i, u: 1 / math.hypot(x, 1, 2, 3),
    "norm3d(x, 1, 2)": lambda x, i, u: math.hypot(x, 1, 2),
    "rhypotf(f, 1)": lambda x, i, u: 1 / math.hypot(x, 1),
    "rcbrt(x + 8)": lambda x, i, u: math.copysign(abs(x + 8) ** (-1 / 3), x + 8),
    "normcdf(x)": lambda x, i, u: 0.5 * math.erfc(-x / math.sqrt(2)),
    "j0(0.0) + y0(1.0)": lambda x, i, u: 1.0882569642156769,
    "__hiloint2double(__double2hiint(x), __double2loint(x))": lambda x, i, u: x,
    "__tanf(f / 8e5f)": lambda x, i, u: math.tan(x / 8e5),
}
WHOLE = {
    "umin(u, 5u)": lambda x, i, u: min(u, 5), "umax(u, 5u)": lambda x, i, u: max(u, 5),
    "llmin(i, 5ll)": lambda x, i, u: min(i, 5), "ullmax(u, 5ull)": lambda x, i, u: max(u, 5),
    "__umul24(u, 77u)": lambda x, i, u: u % 2**24 * 77 % 2**32,
    "__mul64hi((long long)i << 30, 1ll << 40)": lambda x, i, u: i << 6,
    "__rhadd(i, 4)": lambda x, i, u: (i + 5) >> 1, "__urhadd(u, 4u)": lambda x, i, u: (u + 5) >> 1,
    "__dp4a(u, 0xff020301u, 7u)": lambda x, i, u: 7 + sum(
        a * b for a, b in zip(struct.pack("<I", u), (1, 3, 2, 255), strict=True)),
    "__fns(u, 0u, 2)": lambda x, i, u: nth_set(u, 0, 2),
    "__fns(u, 20u, -1)": lambda x, i, u: nth_set(u, 20, -1),
    "__float2ll_rd(f)": lambda x, i, u: math.floor(x),
    "__double2int_rn(x)": lambda x, i, u: round(x), "__double2int_rz(x)": lambda x, i, u: int(x),
    "__double2uint_ru(x)": lambda x, i, u: max(math.ceil(x), 0),
    "__double2int_rz(x * 1e6)": lambda x, i, u: max(min(int(x * 1e6), 2**31 - 1), -(2**31)),
    "__float2uint_rn(f)": lambda x, i, u: max(round(x), 0),
    "llround(x)": lambda x, i, u: int(math.copysign(math.floor(abs(x) + 0.5), x)),
    "llrintf(f)": lambda x, i, u: round(x), "llabs(i)": lambda x, i, u: abs(i),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("math") / "math.cu"
    lines = ["#define HEAD const int t = threadIdx.x; double x = xs[t], d; float f = (float)x, g; "
             "int e, i = (int)is[t]; unsigned u = (unsigned)is[t]; (void)d; (void)g; (void)e;"]
    for name, c_type, table in (("real", "double", REAL), ("whole", "long long", WHOLE)):
        lines += [f'extern "C" __global__ void {name}({c_type}* y, const double* xs, '
                  "const long long* is) {", "HEAD"]
        lines += [f"y[{k} * blockDim.x + t] = {e};" for k, e in enumerate(table)] + ["}"]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("name, table, dtype", [("real", REAL, "f8"), ("whole", WHOLE, "i8")])
def test_values(file, name, table, dtype):
    y = np.zeros((len(table), len(X)), dtype)
    cuda.kernel(file, name)(1, len(X), (y, X, WORDS))
    for (expression, value), got in zip(table.items(), y, strict=True):
        wanted = [value(float(x), signed(int(i)), int(i)) for x, i in zip(X, WORDS, strict=True)]
        # float's rounding, of values up to 1e8; integers are exact
        np.testing.assert_allclose(got, wanted, rtol=0 if dtype == "i8" else 2e-6,
                                   atol=0 if dtype == "i8" else 1e-6, err_msg=expression)


@pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))
def test_nvrtc_knows_them(file):
    assert {use.kernel for use in nvrtc.check(file)} == {"real", "whole"}


def test_no_function_is_built_into_g_plus_plus_alone():
    """Red before: clang has no __builtin_j0, so no kernel compiled on macOS. `make cross` compiles
    them all with clang."""
    text = "".join(file.read_text() for file in compiler.HOST.glob("*.h"))
    built_in = set(re.findall(r"(?:MINIDL_LIBM2?\(|__builtin_)(\w+)", text))
    bessel = {name + end for name in ("j0", "j1", "jn", "y0", "y1", "yn") for end in ("", "f")}
    assert len(built_in) > 50 and not built_in & bessel
