"""The flat form's shortcuts are taken where they should be, and never change a result: random
kernels against the fibre form."""

import os
import random
import time

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import dispatch
from minidl.cuda.host import cpu, flat
from minidl.cuda.host.source import Source
from tests.conftest import n_drawn

PARAMS = "float* y, const float* x, int n"


def plan(body, params=PARAMS, before=""):
    source = Source("k.cu", f"{before}\n__global__ void k({params}) {{{body}}}")
    return flat.plan(source, "k")


INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


@pytest.mark.parametrize(
    "index, index_type",
    [
        ("int i = blockIdx.x * blockDim.x + threadIdx.x;", "int"),
        ("const int i = threadIdx.x + blockDim.x * blockIdx.x;", "int"),
        ("unsigned int i = (blockIdx.x*blockDim.x) + threadIdx.x;", "unsigned int"),
        ("size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;", "size_t"),
        ("long long i = threadIdx.x + (long long)blockIdx . x * blockDim.x;", "long long"),
        ("int64_t i = (int64_t)(blockIdx.x * blockDim.x) + threadIdx.x;", "int64_t"),
    ],
)
@pytest.mark.parametrize(
    "guard",
    ["if (i < n) y[i] = x[i];", "if (i < n) { y[i] = x[i]; }", "if (i >= n) return; y[i] = x[i];"],
)
def test_the_usual_forms_become_one_bounded_vector_loop(index, index_type, guard):
    p = plan(index + guard)
    assert p.linear and p.simd and p.bound == "n" and p.index_type == index_type


@pytest.mark.parametrize(
    "body, bound",
    [
        (INDEX + "int j = i * 2; if (j < n) y[j] = x[j];", None),  # the guard is on something else
        (INDEX + "if (i <= n) y[i] = x[i];", None),
        (INDEX + "if (i < n) y[i] = x[i]; y[0] = 1;", None),  # something happens for everybody
        (INDEX + "y[i] = 0; if (i >= n) return; y[i] = x[i];", None),
        (INDEX + "if (i < n) y[i] = x[i]; else y[i] = 0;", None),
        (INDEX + "i += 1; if (i < n) y[i] = x[i];", None),
        (INDEX + "n = n / 2; if (i < n) y[i] = x[i];", None),
        (INDEX + "if (i < n && blockIdx.y < 3) y[i] = x[i];", "n"),
        (INDEX + "if (i < n || blockIdx.y < 3) y[i] = x[i];", None),
        (INDEX + "int row = blockIdx.y; if (i >= n) return; y[row * n + i] = x[i];", "n"),
        (INDEX + "if (i >= 4 * n) return; y[i] = x[i];", "4 * n"),
        (INDEX + "if (i < n) if (x[i] > 0) y[i] = x[i];", "n"),
        (INDEX + "if (i < n) if (x[i] > 0) y[i] = x[i]; else y[0] = 1;", None),
        (INDEX + "if (i < n) for (int c = 0; c < 4; ++c) y[4 * i + c] = x[i];", None),
        (INDEX + "if (i < n) { y[i] = x[i]; n = 3; }", None),
    ],
)
def test_a_guard_is_only_taken_when_it_guards_everything(body, bound):
    p = plan(body)
    assert p.linear and p.bound == bound


@pytest.mark.parametrize(
    "body",
    [
        "int i = blockIdx.x * blockDim.x * 2 + threadIdx.x; if (i < n) y[i] = x[i];",
        "int i = 2 * blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i];",
        "int i = blockIdx.x * blockDim.x + threadIdx.x * 4; if (i < n) y[i] = x[i];",
        INDEX + "if (i < n) y[i] = x[i] + threadIdx.x;",
        INDEX + "if (i < n) y[i] = gridDim.x;",
    ],
)
def test_other_uses_of_the_index_keep_the_loop_over_blocks(body):
    assert not plan(body).linear


@pytest.mark.parametrize(
    "body",
    [
        "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)"
        "  y[i] = x[i];",
        INDEX
        + "int stride = gridDim.x * blockDim.x;"
        + "for (int k = i; k < n; k += stride) { y[k] = x[k]; }",
    ],
)
def test_a_kernel_that_is_a_grid_stride_loop_becomes_contiguous(body):
    p = plan(body)
    assert p.linear and p.whole and p.simd and p.bound == "n"


@pytest.mark.parametrize(
    "loop",
    [
        "for (int k = i; k < n; k += stride) { if (x[k] < 0) break; y[k] = x[k]; }",
        "for (int k = i; k < n; k += stride) { y[k] = x[k] + stride; }",
        "for (int k = i; k < n; k += stride) { y[k] = x[k]; } y[i] = 0;",
        "float s = 0; for (int k = i; k < n; k += stride) s += x[k]; y[i] = s;",
        "for (int k = i; k < n; k += stride) { y[k] = x[k]; k += 1; }",
        "for (int k = i; k < n; k += stride) { y[k] = x[k]; n -= 1; }",
        "for (int k = i; k < n; k += stride) if (x[k] < 0) y[k] = 1; else y[k] = 2;",
    ],
)
def test_a_grid_stride_loop_with_a_life_of_its_own_stays(loop):
    assert not plan(INDEX + "int stride = gridDim.x * blockDim.x;" + loop).whole


def test_rows_and_atomics_are_not_vectorised_across_threads():
    assert not plan(
        INDEX + "if (i < n) { float s = 0; for (int c = 0; c < n; ++c) s += x[c]; y[i] = s; }"
    ).simd
    assert not plan(INDEX + "if (i < n) atomicAdd(y, x[i]);").simd
    assert plan(
        INDEX
        + "if (i < n) { float s = 0; for (int c = 0; c < 4; ++c) s += x[4 * i + c]; y[i] = s; }"
    ).simd


def random_kernel(r, name):
    """A sound kernel of random index, guard, grid and arithmetic: each thread writes its own
    elements of y only."""
    index = r.choice(
        ["int i = blockIdx.x * blockDim.x + threadIdx.x;",
         "unsigned i = threadIdx.x + blockIdx.x * blockDim.x;",
         "size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;",
         "const long long i = blockDim.x * (long long)blockIdx.x + threadIdx.x;",
         "int i = threadIdx.x; i += blockIdx.x * blockDim.x;",
         "int b = blockIdx.x, t = threadIdx.x; int i = b * blockDim.x + t;"]
    )  # fmt: skip
    terms = [
        "x[{i}]", "2.5f", "a", "(float)({i} % 7)", "expf(-fabsf(x[{i}]))", "fmaxf(x[{i}], a)",
        "(x[{i}] > a ? x[{i}] : -x[{i}])",
        "tanhf(x[{i}])", "x[({i} * 5 + 3) % n]", "sqrtf(fabsf(x[{i}]))", "twice(x[{i}])",
    ]  # fmt: skip

    def value(i, depth=0):
        if depth == 3 or r.random() < 0.3:
            return r.choice(terms).format(i=i)
        return f"({value(i, depth + 1)} {r.choice('+-*')} {value(i, depth + 1)})"

    row = r.random() < 0.3
    target = "y[blockIdx.y * n + {i}]" if row else "y[{i}]"

    def store(i):
        lines = [f"{target.format(i=i)} = {value(i)};"]
        if r.random() < 0.3:
            lines.append(f"if (x[{i}] > 0.5f) {target.format(i=i)} *= {value(i)};")
        if r.random() < 0.2:
            lines.insert(0, f"if (x[{i}] < -2.0f) {{ {target.format(i=i)} = 9; return; }}")
        return " ".join(lines)

    kind = r.randrange(5)
    if kind == 0:
        body = f"{index} if (i < n) {{ {store('i')} }}"
    elif kind == 1:
        body = f"{index} if (i >= n) return; {store('i')}"
    elif kind == 2:
        start = r.choice(
            ["blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x + blockDim.x * blockIdx.x"]
        )
        inner = store("i").replace("return;", "continue;")
        body = f"for (int i = {start}; i < n; i += gridDim.x * blockDim.x) {{ {inner} }}"
    elif kind == 3:
        loop = f"for (int k = i; k < n; k += stride) {{ {target.format(i='k')} = {value('k')}; }}"
        body = f"{index} int stride = blockDim.x * gridDim.x; {loop}"
    else:
        loop = f"for (int c = 0; c < {r.choice(['n', '5'])}; ++c) s += x[c] * {value('c', 2)};"
        body = f"{index} float s = 0; {loop} if (i < n && n > 3) {target.format(i='i')} = s;"
    params = "float* y, const float* __restrict__ x, float a, int n"
    return f'extern "C" __global__ void {name}({params}) {{ {body} }}'


def test_random_kernels_give_the_same_in_both_forms():
    r, n_random = random.Random(2024), n_drawn(40)
    kernels = [random_kernel(r, f"random_{k}") for k in range(n_random)]
    text = "__device__ float twice(float v) { return v + v; }\n" + "\n".join(kernels)
    random_file = dispatch.generated(text)  # in the cache, so that the next run need not compile
    rng = np.random.default_rng(6)
    shapes = {"linear": 0, "bound": 0, "whole": 0, "other": 0}
    source = Source(random_file, random_file.read_text())
    # all of them in one library: kernel() would compile each alone
    kernels = {form: cpu.load(random_file, {}, form=form).kernels for form in ("flat", "fibre")}
    for k in range(n_random):
        name = f"random_{k}"
        p = flat.plan(source, name)
        shapes[
            "whole" if p.whole else "bound" if p.bound else "linear" if p.linear else "other"
        ] += 1
        for n, grid, block in [
            (1, (1, 1), 32),
            (100, (3, 2), 64),
            (1000, (8, 3), 128),
            (5000, (40, 1), 128),
        ]:
            x = rng.standard_normal(n).astype(np.float32)
            ys = []
            for form in ("flat", "fibre"):
                y = np.full(3 * n + 16, 7, np.float32)
                kernels[form][name](grid, block, (y, x, 0.25, n))
                ys.append(y)
            # Not to the bit: the compiler contracts a * b + c and orders a vector sum differently
            # in the two forms.
            np.testing.assert_allclose(
                ys[0], ys[1], rtol=1e-4, atol=1e-4, err_msg=source.text.splitlines()[k + 1]
            )
            assert (ys[0][3 * n :] == 7).all()
    assert min(shapes.values()) >= 3, shapes  # the draw did try every shortcut


def test_an_index_too_narrow_for_the_launch_is_refused(tmp_path):
    file = tmp_path / "wide.cu"
    file.write_text(
        'extern "C" __global__ void wide(float* y) {'
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i == 5) y[0] = i; }"
    )
    with pytest.raises(cuda.KernelError, match="index of type int cannot count the threads"):
        cuda.kernel(file)(2**22, 1024, (np.zeros(1, np.float32),))


def test_large_launches_use_several_threads_and_give_the_same(one_thread):
    n = 3_000_001
    a, b, c = (np.random.default_rng(k).standard_normal(n).astype(np.float32) for k in range(3))
    outs = []
    for threads in (1, 3):
        cuda.set_threads(threads)
        out = np.full(n + 64, 7, np.float32)
        cuda.kernel("add3.cu", "add3")(-(-n // 256), 256, (out, a, b, c, n))
        outs.append(out)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0][:n], a + b + c)
    assert (outs[0][n:] == 7).all()


def test_a_thread_without_work_looks_for_more_and_soon_sleeps(one_thread):
    """Launches in quick succession find it awake; one that never slept would take a processor."""
    n = 200_001
    a, b, c = (np.random.default_rng(k).standard_normal(n).astype(np.float32) for k in range(3))
    cuda.set_threads(2)
    add, want = cuda.kernel("add3.cu", "add3"), a + b + c
    for _ in range(200):
        out = np.empty(n, np.float32)
        add(-(-n // 256), 256, (out, a, b, c, n))
        np.testing.assert_array_equal(out, want)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
                    reason="Linux with two processors: elsewhere threads are not bound to any")
def test_threads_keep_off_the_processor_of_the_one_that_launches(one_thread):
    n = 3_000_001
    a, b, c = (np.random.default_rng(k).standard_normal(n).astype(np.float32) for k in range(3))
    cuda.set_threads(2)
    cuda.kernel("add3.cu", "add3")(-(-n // 256), 256, (np.empty_like(a), a, b, c, n))
    everywhere = os.sched_getaffinity(0)
    assert any(len(everywhere - os.sched_getaffinity(int(task))) == 1
               for task in os.listdir("/proc/self/task"))
