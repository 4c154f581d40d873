"""What does the runner of .cu files cost on this CPU? How fast is its simplest kernel?

    python benchmarks/bench_kernels.py [--threads 1 2] [--repeats 9] [--quick] [--out FILE]

    compile  compiles the kernels of kernels/ one at a time, without a cache, as a first launch
             does. The result is the processor time of this process and of the compiler, in seconds.
             A user waits this long if a core is free
    runner   times three cases. The first is loading a compiled kernel from the cache on the disk,
             in a new process. The second is launching a kernel with four arrays and a number. The
             third is layer norm with barriers: 256 CUDA threads share a row of 1,024 columns, and
             each CUDA thread is a fibre
    add3     out = a + b + c. This moves 16 bytes per element: three reads and a write of 4
             bytes. The bound is the time of a copy that moves the same number of bytes

Peers run in the same rounds (common.py). Times are medians. Ratios are medians over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, number, ratio, row, take_turns,
    timed,
)

import minidl.cuda as cuda
from minidl.cuda.host import cpu
from minidl.cuda.host.includes import inline_includes
from minidl.cuda.host.source import Source
from minidl.ops import layer_norm

torch = import_torch()
WIDTH = {"E": "64"}  # attention is compiled for one width of a head
QUICK = ("add3.cu", "softmax.cu", "cross_entropy.cu")


def compile_all(repeats, quick):
    """Compiles each kernel of kernels/. Returns {file: {kernel: seconds}}."""
    seconds = {}
    for path in sorted(cuda.KERNELS.glob("*.cu")):
        if quick and path.name not in QUICK:
            continue
        source = Source(path, inline_includes(path))
        defines = WIDTH if path.name.startswith("attention") else {}
        seconds[path.name] = times = {}
        for name in (k.name for k in source.kernels if not k.template):
            times[name] = min(cold_compile(path, name, defines) for _ in range(repeats))
        slowest = max(times, key=times.get)
        median = statistics.median(times.values())
        print(f"compile  {path.name:<20}{len(times):>2} kernels, median {median:.2f} s, "
              f"slowest {times[slowest]:.2f} s: {slowest}", flush=True)
    return seconds


def cold_compile(path, name, defines):
    with tempfile.TemporaryDirectory() as cache:
        with mock.patch.dict(os.environ, MINIDL_CACHE=cache):
            before = os.times()
            cpu.load(path, defines, name)
            return sum(b - a for a, b in zip(before[:4], os.times()[:4], strict=True))


def runner(repeats):
    """Returns {name: [seconds of each round]} for three cases. "cached load" loads a compiled
    kernel from the cache on the disk, in a new process. "launch" launches add3. "fibre row"
    computes one row of layer norm by rung 2, whose blocks have 256 CUDA threads. One CPU thread
    runs the whole block."""
    code = (
        "import time, minidl.cuda as cuda; from minidl.cuda.host import cpu\n"
        "cpu.runtime()\n"  # loads the runner, which all kernels share
        "start = time.perf_counter()\n"
        "cuda.kernel('add3.cu', 'add3').on_cpu\n"
        "print(time.perf_counter() - start)"
    )
    x, add3 = np.zeros(1, np.float32), cuda.kernel("add3.cu", "add3")
    rows, w = np.ones((64, 1024), np.float32), np.ones(1024, np.float32)
    before = cuda.set_threads(1)
    times = take_turns({
        "cached load": lambda: float(subprocess.check_output([sys.executable, "-c", code])),
        "launch": timed(lambda: add3(1, 32, (x, x, x, x, 1)), calls=500),
        "fibre row": timed(lambda: layer_norm.by_kernel(rows, w, w, 1e-5, rung=2)),
    }, repeats)
    cuda.set_threads(before)
    times["fibre row"] = [t / len(rows) for t in times["fibre row"]]
    for what, seconds in times.items():
        print(f"runner   {what:<12} {1e6 * statistics.median(seconds):>9.2f} us")
    return times


def add3(n_elems, repeats, threads):
    """Times add3 on `threads` threads, the peers of add3, and a copy of the same bytes."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(n_elems, np.float32) for _ in range(3))
    out, kernel = np.zeros_like(a), cuda.kernel("add3.cu", "add3")
    ta, tb, tc, t_out = map(torch.from_numpy, (a, b, c, out))
    grid = -(-n_elems // 256)

    def launch():
        kernel(grid, 256, (out, a, b, c, n_elems))

    def numpy_out():
        np.add(a, b, out=out)
        np.add(out, c, out=out)

    def torch_out():
        torch.add(ta, tb, out=t_out)
        torch.add(t_out, tc, out=t_out)

    def copy_same_bytes():  # add3 moves 16 bytes for each element, a copy moves 8 bytes
        np.copyto(out, a)
        np.copyto(out, b)

    launch()
    np.testing.assert_array_equal(out, a + b + c)
    before = cuda.set_threads(threads)
    torch.set_num_threads(threads)
    peers = {"chain": lambda: a + b + c, "out=": numpy_out, "torch": torch_out,
             "copy": copy_same_bytes}
    turns = {name: timed(work, alone=threads > 1)
             for name, work in (peers | {"kernel": launch}).items()}
    times = take_turns(turns, repeats)
    cuda.set_threads(before)
    ms = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    ratios = {name: ratio(times[name], times["kernel"]) for name in peers}
    best = {name: best_ratio(times[name], times["kernel"]) for name in peers}
    print(f"add3     {n_elems >> 20:>2} M elements, {threads} thread(s): {ms['kernel']:6.2f} ms = "
          f"{16e-6 * n_elems / ms['kernel']:5.1f} GB/s;  chain {ratios['chain']:.2f}x  "
          f"out= {ratios['out=']:.2f}x  torch {ratios['torch']:.2f}x  "
          f"copy {ratios['copy']:.2f}x its time")
    return {"n_elems": n_elems, "threads": threads, "ms": ms, "ratio": ratios, "best": best}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help=f"compile {', '.join(QUICK)} alone")
    device_option(parser, "it measures the runner of kernels on a CPU; `minidl kernel "
                  "bench` has --device")
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args()
    print(heading())
    cpu.runtime()
    figures = {"compile_s": compile_all(1, args.quick), "runner_s": runner(2 * args.repeats)}
    figures["add3"] = [add3(n, args.repeats, threads)
                       for n in (1 << 20, 1 << 24) for threads in args.threads]
    finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    slowest = max(s for times in figures["compile_s"].values() for s in times.values())
    bars = [bar("cold compile of the slowest kernel, s", slowest, 0.6, at_most=True)]
    rows = [row("a kernel: cold compile of the slowest", "", f"{number(slowest)} s", bars)]
    for what, question, unit, scale, wanted in (
        ("cached load", "a kernel: load from the cache", "ms", 1e3, 2),
        ("launch", "a kernel: launch of four arrays", "us", 1e6, 6),
        ("fibre row", "a row of layer norm by 256 threads with barriers", "ms", 1e3, 3),
    ):
        seconds = figures["runner_s"][what]
        figure = scale * statistics.median(seconds)
        bars.append(bar(f"{what}, {unit}", figure, wanted, at_most=True,
                        best=scale * min(seconds)))
        rows.append(row(question, "", f"{number(figure)} {unit}", bars[-1:]))
    large = [r for r in figures["add3"] if r["n_elems"] == 1 << 24]
    for peer, name, wanted in (("out=", "NumPy's `out=` form", 1.15), ("torch", "PyTorch", 1),
                               ("copy", "a copy of the same bytes", 0.85)):
        ratios, best = ([r[kind][peer] for r in large] for kind in ("ratio", "best"))
        bars.append(bar(f"add3, 16 M: {peer} / kernel", min(ratios), wanted, best=min(best)))
        threads = ", ".join(str(r["threads"]) for r in large)
        rows.append(row(f"add3 at 16 million elements, {threads} threads", name,
                        f"{', '.join(map(number, ratios))} times its speed", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
