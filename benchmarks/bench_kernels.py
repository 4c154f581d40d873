"""What do the kernels cost on this CPU, beside NumPy?

    python benchmarks/bench_kernels.py [--threads 1 2] [--out FILE]

    loader   compile a file, load it from the cache, launch it: what the .cu runner adds to a kernel
    add3     out = a + b + c at 16 M elements. Bound: the copy bandwidth for its 16 bytes an element

Peers run in the same rounds (benchmarks/common.py), figures are medians, ratios are medians over
the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from common import machine, ratio, take_turns, write_json

import minidl.cuda as cuda


def timed(work):
    """A contestant for `take_turns` from a function without arguments."""

    def run():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def loader(repeats):
    """Seconds of: a cold compile, a load from the cache in a new process, a launch of 4 arrays and
    a number."""
    code = (
        "import time, numpy as np, minidl.cuda as cuda; from minidl.cuda import cpu\n"
        "cpu.runtime()\n"  # the runtime library, compiled once per machine
        "start = time.perf_counter()\n"
        "k = cuda.kernel('add3.cu', 'add3').on_cpu\n"
        "print(time.perf_counter() - start)"
    )
    cold, cached = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            env = {**os.environ, "MINIDL_CACHE": cache}
            once = "from minidl.cuda import cpu; cpu.runtime()"
            subprocess.run([sys.executable, "-c", once], env=env, check=True)
            for times in (cold, cached):
                out = subprocess.run(
                    [sys.executable, "-c", code],
                    env=env,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                times.append(float(out.stdout))
    x, n_launches = np.zeros(1, np.float32), 500
    add3, args = cuda.kernel("add3.cu", "add3"), (x, x, x, x, 1)
    add3(1, 32, args)
    launches = []
    for _ in range(50 * repeats):
        start = time.perf_counter()
        for _ in range(n_launches):
            add3(1, 32, args)
        launches.append((time.perf_counter() - start) / n_launches)
    figures = {"compile_s": min(cold), "cached_load_s": min(cached), "launch_s": min(launches)}
    print(
        f"loader   compile {figures['compile_s']:.3f} s (aim 0.6)   "
        f"cached load {1e3 * figures['cached_load_s']:.2f} ms (aim 2)   "
        f"launch {1e6 * figures['launch_s']:.2f} us (aim 6); "
        f"the least of {repeats}, because a busy machine only adds"
    )
    return figures


def add3(n_elems, repeats, threads):
    """Times of add3 on `threads` threads, of NumPy's chain and its best form, and of a copy of the
    same bytes."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(n_elems, np.float32) for _ in range(3))
    out, kernel = np.zeros_like(a), cuda.kernel("add3.cu", "add3")
    grid = -(-n_elems // 256)

    def launch():
        kernel(grid, 256, (out, a, b, c, n_elems))

    def numpy_out():
        np.add(a, b, out=out)
        np.add(out, c, out=out)

    def copy_same_bytes():  # a copy reads 4 and writes 4 bytes an element: twice for 16
        np.copyto(out, a)
        np.copyto(out, b)

    launch()
    np.testing.assert_array_equal(out, a + b + c)
    before = cuda.set_threads(threads)
    contestants = {
        "add3": launch,
        "numpy chain": lambda: a + b + c,
        "numpy out=": numpy_out,
        "copy": copy_same_bytes,
    }
    times = take_turns({name: timed(work) for name, work in contestants.items()}, repeats)
    cuda.set_threads(before)
    figures = {
        "threads": threads, "n_elems": n_elems,
        **{f"{name} ms": round(1e3 * statistics.median(t), 3) for name, t in times.items()},
        "over numpy chain": ratio(times["numpy chain"], times["add3"]),
        "over numpy out=": ratio(times["numpy out="], times["add3"]),
        "of copy bandwidth": ratio(times["copy"], times["add3"]),
    }  # fmt: skip
    print(
        f"add3     {n_elems >> 20} M elements, {threads} thread(s): {figures['add3 ms']:.2f} ms = "
        f"{16e-6 * n_elems / figures['add3 ms']:.1f} GB/s;  "
        f"{figures['over numpy chain']:.2f}x numpy's chain, "
        f"{figures['over numpy out=']:.2f}x its out= form (aim 1.15), "
        f"{figures['of copy bandwidth']:.2f} of the copy bandwidth (aim 0.85)"
    )
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", help="JSON file (default: benchmarks/results/kernels.json)")
    options = parser.parse_args()
    print(machine())
    result = {"machine": machine(), "loader": loader(3)}
    result["add3"] = [add3(1 << 24, options.repeats, threads) for threads in options.threads]
    write_json(result, options.out, "kernels.json")


if __name__ == "__main__":
    main()
