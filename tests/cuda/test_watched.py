"""The elementwise and optimizer kernels in the check form: every access inside its array, every
output written once, no race, the same bits in any order of threads."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.launch import pointers
from tests.kernel_arrays import normal

N, ROWS, COLS = 37, 5, 21
LENGTHS = (19, 1, 40)
CHUNKS = np.array([(0, 0, 16), (0, 16, 19), (1, 0, 1), (2, 0, 33), (2, 33, 40)])
RUNGS = ("chunks", 2, 4), ("blocks", 5, 32), ("many", 5, 32)  # chunks: of cpu/
FLOATS, HALVES = dict(T="float", ACC="float", W="float", U="float"), dict(T="__half", ACC="float")


def sound(file, name, grid, block, args, outputs=(), reachable=(), **defines):
    file = f"cpu/{file}" if name.endswith("_chunks") else file
    report = cuda.check(
        file, grid, block, args, name=name, defines=defines, outputs=outputs, reachable=reachable
    )
    assert not report.findings, str(report)


def x(shape=N, seed=1, dtype="f4"):
    return normal(shape, dtype, seed)


def table(arrays):
    return pointers(np, arrays, arrays[0].dtype, "")


def lists(count):
    return [[x(n, seed=k) ** 2 for n in LENGTHS] for k in range(count)]


ELEMENTWISE = [  # file, kernel, arguments after the output, before n
    ("add3.cu", "add3", 3), ("gelu.cu", "gelu", 1), ("gelu.cu", "gelu_backward", 2),
]  # fmt: skip


@pytest.mark.parametrize("file, name, n_inputs", ELEMENTWISE)
@pytest.mark.parametrize("dtype, t", [("f4", "float"), ("f2", "__half")])
def test_elementwise(file, name, n_inputs, dtype, t):
    inputs = [x(seed=k, dtype=dtype) for k in range(n_inputs)]
    out = "gx" if name == "gelu_backward" else "out"
    sound(file, name, 3, 16, (np.empty(N, dtype), *inputs, N), (out,), T=t, ACC="float")


@pytest.mark.parametrize("name", ["dropout_naive", "dropout"])
def test_dropout(name):
    n = 39  # the last thread of eight elements has seven
    sizes = (n,) if name == "dropout_naive" else (n, 5)
    args = (np.empty(n, np.float32), x(n), *sizes, 1, 2, 3, 2**31, 2.0)
    sound("dropout.cu", name, 3, 16, args, ("out",))
    if name == "dropout":
        sound("cpu/dropout.cu", name, 3, 16, args, ("out",))


@pytest.mark.parametrize("rung, grid, block", RUNGS)
def test_optimizers(rung, grid, block):
    w, g, m, v = lists(4)
    low = [a.copy() for a in w]
    tail = (CHUNKS, len(CHUNKS))
    rates, skip = np.ones((3, 2), np.float32), np.zeros(1, np.int32)
    factor = np.ones(1, np.float32)
    numbers = (0.9, 0.1, 0.99, 0.01, 1e-8, 1.0, 0.0, 1.0)
    sound("adamw.cu", f"adamw_{rung}", grid, block,
          (table(w), table(g), table(m), table(v), table(low), rates, skip, factor,
           *numbers, *tail),
          reachable=[*w, *g, *m, *v, *low])  # fmt: skip
    sound("sgd.cu", f"sgd_{rung}", grid, block,
          (table(w), table(g), table(v), table(low), rates, skip, factor, 0.1, 0.9,
           0.1, 1.0, 1, *tail),
          reachable=[*w, *g, *v, *low])  # fmt: skip


@pytest.mark.parametrize("rung, grid, block", [RUNGS[0], RUNGS[2]])
def test_lamb_and_the_sums_of_its_chunks(rung, grid, block):
    w, g, m, v = lists(4)
    low, tail = [x(n, dtype="f4") for n in LENGTHS], (CHUNKS, len(CHUNKS))
    rates, partial = np.array([[1, 2, 0.1]] * 3, "f4"), np.empty((5, 2), "f4")
    skip, factor = np.zeros(1, "i4"), np.ones(1, "f4")
    sound("lamb.cu", f"lamb_moments_{rung}", grid, block,
          (partial, table(w), table(g), table(m), table(v), rates[:, :2].copy(), skip, factor,
           0.9, 0.1, 0.99, 0.01, 0.0, 1e-6, 0.1, 1.0, *tail),
          ("partial",), [*w, *g, *m, *v])  # fmt: skip
    sound("lamb.cu", f"lamb_update_{rung}", grid, block,
          (table(w), table(m), table(v), table(low), rates, skip, 0.0, 1e-6, 0.1, *tail),
          (), [*w, *m, *v, *low])  # fmt: skip
    name, n_blocks = ("chunk_sums", 2) if rung == "chunks" else ("chunk_sums_many", 6)
    sound("grad_norm.cu", name, n_blocks, block,
          (np.empty((3, 2)), partial, np.array([0, 2, 3, 5]), 2, 3), ("sums",))  # fmt: skip


@pytest.mark.parametrize("rung, grid, block", RUNGS)
def test_passes_over_many_arrays(rung, grid, block):
    (g,) = lists(1)
    tail = (CHUNKS, len(CHUNKS))
    for file, name, result in (
        ("unscale_check.cu", "unscale_check", np.empty(5, np.int32)),
        ("unscale_check.cu", "count_bad", np.empty(5, np.int32)),
        ("grad_norm.cu", "sum_squares", np.empty(5, np.float32)),
    ):
        output = "partial" if name == "sum_squares" else "bad"
        factor = (0.5, np.array([0.5], "f4")) if name == "unscale_check" else ()
        args = result, table(g), *factor, *tail
        sound(file, f"{name}_{rung}", grid, block, args, (output,), g)
    first, flat = np.array([0, 19, 20]), np.empty(sum(LENGTHS), np.float32)
    sound("pack.cu", f"pack_{rung}", grid, block, (flat, table(g), first, *tail), ("flat",), g)
    sound("pack.cu", f"unpack_{rung}", grid, block, (table(g), flat, first, *tail), (), g)


def test_embedding_gradient():
    index, gy = np.array([3, 0, 3, 1, 0, 3]), x((6, COLS))
    out = np.zeros((4, COLS), np.float32)
    sound("cpu/embedding_grad.cu", "embedding_grad_rows", 2, 1, (out, gy, index, 6, COLS, len(out)))
    first = np.full(len(out), 6, np.int32)
    sound("embedding_grad.cu", "embedding_grad_first", 2, 4, (first, index, 6))
    for rung in "owners", "packs":
        sound("embedding_grad.cu", f"embedding_grad_{rung}", (2, 2), 16,
              (out, gy, index, first, 6, COLS))
    out, gy = np.zeros_like(out), np.rint(8 * gy)  # whole: the order of atomics changes no sum
    sound("embedding_grad.cu", "embedding_grad_atomic", (2, 2), 16, (out, gy, index, 6, COLS))


def test_compaction_and_quantisation():
    v, counts = x(), np.empty(3, np.int32)
    kept = np.flatnonzero(np.abs(v) >= 0.5)
    first = np.searchsorted(kept, [0, 15, 30]).astype(np.int32)
    pairs = np.empty(len(kept), np.int32), np.empty(len(kept), np.float32)
    places = np.zeros(3 * 9, np.int32), np.zeros(3 * 9, np.float32)
    args = counts, *places, v, 0.5, N, 15, 9, 3
    sound("cpu/topk_mask.cu", "compact_few", 1, 8, args, ("counts",))
    m, top, q = x((ROWS, COLS)), np.empty(ROWS, np.float32), np.empty((ROWS, COLS), np.int8)
    scale = np.ones(ROWS, np.float32)
    for folder, rung, grid, block in (("cpu/", "", 1, 8), ("", "", 1, 8), ("", "_warps", 3, 64),
                                      ("", "_packs", 3, 64)):
        if rung != "_packs":
            numbers = (0.5, N, 15, 3)
            args = (counts, v, *numbers)
            sound(f"{folder}topk_mask.cu", f"count_above{rung}", grid, block, args, ("counts",))
            args = (*pairs, v, first, *numbers)
            sound(f"{folder}topk_mask.cu", f"compact{rung}", grid, block, args, ("index", "value"))
        sound(f"{folder}quantize.cu", f"absmax{rung}", grid, block, (top, m, ROWS, COLS), ("top",))
        args = (q, m, scale, ROWS, COLS, 1)
        sound(f"{folder}quantize.cu", f"quantize{rung}", grid, block, args, ("q",))
        args = (m.copy(), q, scale, ROWS, COLS, 1)
        sound(f"{folder}quantize.cu", f"dequantize{rung}", grid, block, args, ("x",))
