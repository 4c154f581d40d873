"""A number without a value where it is declared: read on a way that gave it none, it is an error
under watch; on any other way it is none."""

import numpy as np
import pytest

import minidl.cuda as cuda
from tests.conftest import some

HEAD = "#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n"
KERNEL = HEAD + """__device__ int twice(int v) { return 2 * v; }
__device__ void set(float& v) { v = 1; }
__device__ void store(float* v) { *v = 1; }
struct Pair { float a; char b; };
template <typename V> __device__ V pick(bool yes, V v) { V r; if (yes) r = v; return r; }
extern "C" __global__ void k(float* o, const float* x, int n) {
  const int t = threadIdx.x;
  %s
}
"""
# what a thread does; n = 5 is passed, so that n > 100 is false
UNSET = {
    "if": "float s; if (n > 100) s = 0.f; o[t] = s + x[t];",
    "else if": "float s; if (n > 100) s = 1.f; else if (n > 50) s = 2.f; o[t] = s * x[t];",
    "loop": "float s; for (int i = n; i < 5; ++i) s = x[i]; o[t] = s;",
    "switch": "float s; switch (n) { case 1: s = 1; break; case 2: s = 2; } o[t] = s;",
    "some threads": "float s; if (t < 7) s = x[t]; o[t] = s;",
    "a sum": "float s; for (int i = 0; i < n; ++i) s += x[i]; o[t] = s;",
    "two at once": "float s, m; if (n > 100) s = m = 0; if (n < 100) s = 1; o[t] = s + m;",
    "an index": "int best; for (int i = 0; i < n; ++i) if (x[i] > 9) best = i; o[t] = best;",
    "a bool": "bool found; if (n > 100) found = true; if (found) o[t] = 1;",
    "unsigned": "unsigned s; if (n > 100) s = 1; o[t] = s + 1u;",
    "double": "double s; if (n > 100) s = 1; o[t] = s * 2;",
    "half": "__half s; if (n > 100) s = __float2half(1.0f); o[t] = __half2float(s);",
    "a typedef": "uint32_t s; if (n > 100) s = 1; o[t] = s + 1u;",
    "in a device function": "o[t] = pick(n > 100, x[t]);",
    "in a maximum": "float m; if (n > 100) m = 0; m = fmaxf(m, x[t]); o[t] = m;",
    "in braces": "for (int i = 0; i < 1; ++i) { float s; if (n > 100) s = 1; o[t] = s; }",
    "in a condition": "int s; if (n > 100) s = 1; o[t] = (s) ? 1 : 2;",
}
SET = {
    "assigned": "float s; s = x[t]; o[t] = s;",
    "in a loop's head": "int i; float s = 0; for (i = 0; i < n; ++i) s += x[i]; o[t] = s + i;",
    "on both ways": "float s; if (n > 100) s = 1; else s = x[t]; o[t] = s;",
    "by a switch": "float s; switch (n) { case 5: s = 1; break; default: s = 2; } o[t] = s;",
    "read on the same way": "float s; if (t < 7) s = x[t]; if (t < 7) o[t] = s;",
    "by reference": "float s; set(s); o[t] = s;",
    "by address": "float s; store(&s); o[t] = s;",
    "by frexp": "int e; o[t] = frexpf(x[t], &e); o[t] += e;",
    "by sincosf": "float s, c; sincosf(x[t], &s, &c); o[t] = s + c;",
    "by modff": "float whole; o[t] = modff(x[t], &whole) + whole;",
    "from one lane": "int base; if (t == 3) base = 7; base = __shfl_sync(~0u, base, 3); "
                     "o[t] = base;",
    "from one lane of a tile": "auto w = cooperative_groups::tiled_partition<32>("
                               "cooperative_groups::this_thread_block()); int base; "
                               "if (t == 0) base = 7; base = w.shfl(base, 0); o[t] = base;",
    "a struct with a gap": "Pair p; p.a = 1; p.b = 2; Pair q = p; o[t] = q.a + q.b;",
    "a vector": "float4 v; v.x = v.y = v.z = v.w = x[t]; o[t] = v.x + v.w;",
    "in the body of a loop": "float s; for (int i = 0; i < n; ++i) { if (i == 0) s = 0; s += x[i]; "
                             "} o[t] = s;",
    "a pointer": "const float* p; if (n > 100) p = x; else p = x + 1; o[t] = p[t % 8];",
    "never used": "float s; int i, k; o[t] = 1;",
    "a lambda's": "float s; if (n < 100) s = 3; auto f = [=](float v) { return v * s; }; "
                  "o[t] = f(2);",
}


def report_of(tmp_path, body):
    file = tmp_path / "k.cu"
    file.write_text(KERNEL % body)
    return cuda.check(file, 1, 32, (np.zeros(32, "f4"), np.ones(32, "f4"), 5))


@pytest.mark.parametrize("what", some(UNSET))
def test_a_number_without_a_value_is_named(tmp_path, what):
    report = report_of(tmp_path, UNSET[what])
    assert "read of uninitialised local variable" in {f.kind for f in report.errors}, str(report)
    lines = {f.line for f in report.errors if f.kind.startswith("read of uninitialised")}
    text = KERNEL.splitlines()
    wanted = "V r;" if what == "in a device function" else "%s"
    assert lines == {n for n, line in enumerate(text, 1) if wanted in line}


@pytest.mark.parametrize("what", some(SET))
def test_a_number_that_got_its_value_is_not(tmp_path, what):
    report = report_of(tmp_path, SET[what])
    assert not report.errors, str(report)
