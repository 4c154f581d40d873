"""Kernels over the chunks of many arrays: the rung that is read, a block per chunk, the one with 16
bytes an access and the CPU's own give the same."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.launch import pointers
from tests.cuda.test_watched import CHUNKS, LENGTHS, RUNGS

F = dict(T="float", ACC="float", W="float", U="float")
TAIL = CHUNKS, len(CHUNKS)


def lists(count):
    rng = np.random.default_rng(0)
    return [[rng.uniform(0.5, 2, n).astype("f4") for n in LENGTHS] for _ in range(count)]


def table(arrays):
    return pointers(np, arrays, arrays[0].dtype, "")


def adamw(run):
    w, g, m, v = lists(4)
    rates = np.array([[0.1, 1], [0.2, 2], [0.3, 3]], "f4")
    run("adamw", (table(w), table(g), table(m), table(v), None, rates, None, None, 0.9, 0.1, 0.99,
                  0.01, 1e-8, 0.9, 0.1, 0.5, *TAIL))
    return [*w, *m, *v]


def sgd(run):
    w, g, v = lists(3)
    rates = np.array([[0, 1], [0.9, 1], [0.9, 0.5]], "f4")
    run("sgd", (table(w), table(g), table(v), None, rates, None, None, 0.1, 0.9, 0.1, 0.5, 1,
                *TAIL))
    return [*w, *v]


def unscale_check(run):
    (g,) = lists(1)
    g[2][35] = np.inf
    bad, counted = np.full((2, len(CHUNKS)), -1, "i4")
    run("unscale_check", (bad, table(g), 0.5, np.array([0.5], "f4"), *TAIL))
    run("count_bad", (counted, table(g), *TAIL))
    assert bad.tolist() == counted.tolist() == [0, 0, 0, 0, 1]
    return g


def sum_squares(run):
    (g,) = lists(1)
    partial = np.full(len(CHUNKS), -1, "f4")
    run("sum_squares", (partial, table(g), *TAIL))
    return [partial]


def pack(run):
    (arrays,) = lists(1)
    first, flat = np.array([0, 19, 20]), np.zeros(sum(LENGTHS), "f4")
    run("pack", (flat, table(arrays), first, *TAIL))
    assert flat.tolist() == np.concatenate(arrays).tolist()
    back = [np.zeros_like(a) for a in arrays]
    run("unpack", (table(back), flat, first, *TAIL))
    return back


FILES = {adamw: "adamw.cu", sgd: "sgd.cu", unscale_check: "unscale_check.cu",
         sum_squares: "grad_norm.cu", pack: "pack.cu"}


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.__name__)
def test_all_rungs_give_the_same(case):
    results = {}
    for rung, grid, block in RUNGS:
        file = f"cpu/{FILES[case]}" if rung == "chunks" else FILES[case]

        def run(name, args, file=file, rung=rung, grid=grid, block=block):
            cuda.kernel(file, f"{name}_{rung}", defines=F)(grid, block, args)

        results[rung] = np.concatenate([a.ravel() for a in case(run)])
    for rung in "blocks", "many":  # a few additions in another order, a product fused or not
        np.testing.assert_allclose(results[rung], results["chunks"], rtol=1e-6)
