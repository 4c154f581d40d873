"""A loop around compare-and-swap begins with a plain read of the word, which is sound: the exchange
would see another value. However the word is read: whole, in parts, with a cache hint."""

import numpy as np
import pytest

import minidl.cuda as cuda

READS = ["{0}[i]", *(f"{hint}({{0}} + i)" for hint in "__ldg __ldca __ldcg __ldcs __ldlu __ldcv"
                     .split())]

# a kernel that adds `one` to y[0] by exchanges of the whole pair, quadruple or number
KERNEL = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef VALUE Value;
typedef WORD Word;
__device__ Word bits(Value v) { Word w; memcpy(&w, &v, sizeof w); return w; }
__device__ Value value(Word w) { Value v; memcpy(&v, &w, sizeof v); return v; }
extern "C" __global__ void add(VALUE* y, int i) {
  Value seen = READ;
  Word old = bits(seen), expected;
  do {
    expected = old;
    old = atomicCAS((Word*)(y + i), expected, bits(ADD(value(expected))));
  } while (old != expected);
}
extern "C" __global__ void no_comparison(VALUE* y, int i) {  // the read stays a race
  Value seen = READ;
  atomicExch((Word*)(y + i), bits(seen));
}
"""
VALUES = {
    "__half2": ("f2", "unsigned", "__hadd2(v, __floats2half2_rn(1.0f, 2.0f))"),
    "__nv_bfloat162": ("u2", "unsigned", "__hadd2(v, __floats2bfloat162_rn(1.0f, 2.0f))"),
    "float2": ("f4", "unsigned long long", "make_float2(v.x + 1, v.y + 2)"),
    "short4": ("i2", "unsigned long long", "make_short4(v.x + 1, v.y + 2, v.z + 3, v.w + 4)"),
    "double": ("f8", "unsigned long long", "v + 1"),
    "__half": ("f2", "unsigned short", "v + __half(1.0f)"),
}


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exchange")

    def file_of(c_type, read):
        dtype, word, add = VALUES[c_type]
        file = folder / f"{c_type}{abs(hash(read))}.cu"
        text = KERNEL.replace("ADD(value(expected))", "more(value(expected))")
        text = text.replace('extern "C" __global__ void add', "__device__ Value more(Value v) { "
                            f'return {add}; }}\nextern "C" __global__ void add')
        text = text.replace("VALUE", c_type).replace("WORD", word)
        file.write_text(text.replace("READ", read.format("y")))
        return file
    return file_of


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("c_type", VALUES)
def test_a_read_before_an_exchange_is_no_race(file_of, c_type, read):
    parts = 2 if c_type[-1] == "2" else int(c_type[-1]) if c_type[-1] == "4" else 1
    y = np.zeros(2 * parts, VALUES[c_type][0])
    report = cuda.check(file_of(c_type, read), 3, 8, (y, 1), name="add")
    assert not report.findings, str(report)
    if c_type != "__nv_bfloat162":
        np.testing.assert_array_equal(y, [*[0] * parts, *(24 * np.arange(1, parts + 1))])


@pytest.mark.parametrize("read", READS[:3])
@pytest.mark.parametrize("c_type", ["__half2", "float2"])
def test_a_read_before_an_exchange_without_comparison_is_one(file_of, c_type, read):
    y = np.zeros(4, VALUES[c_type][0])
    report = cuda.check(file_of(c_type, read), 3, 8, (y, 1), name="no_comparison")
    assert {f.kind for f in report.errors} == {"data race", "race between blocks"}, str(report)
