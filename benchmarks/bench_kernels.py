"""What does the runner of .cu files cost on this CPU, and its simplest kernel beside NumPy?

    python benchmarks/bench_kernels.py [--threads 1 2] [--repeats 9] [--quick] [--out FILE]

    compile  every kernel of kernels/, each alone, as its first launch does: cold. Seconds of
             processor time, ours and the compiler's: on a free core, what a user waits
    loader   loading a kernel from the cache in a new process; a launch of four arrays and a number
    fibre    layer norm with barriers, a thread a fibre: 256 threads on a row of 1,024 columns
    add3     out = a + b + c. Bound: the copy bandwidth for its 16 bytes an element

Peers run in the same rounds (benchmarks/common.py), figures are medians, ratios are medians over
the rounds; bars, and what no peer is measured beside, take the least of several, because a busy
machine only adds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import torch
from common import bar, best_ratio, machine, print_bars, ratio, take_turns, timed, write_json

import minidl.cuda as cuda
from minidl.cuda import cpu
from minidl.cuda.source import Source, inline_includes
from minidl.fused import layer_norm

WIDTH = {"E": "64"}  # of a head: attention is compiled for one
QUICK = ("add3.cu", "softmax.cu", "cross_entropy.cu")


def compile_all(repeats, quick):
    """Seconds to compile each kernel of kernels/, {file: {kernel: seconds}}."""
    seconds = {}
    for path in sorted(cuda.KERNELS.glob("*.cu")):
        if quick and path.name not in QUICK:
            continue
        source = Source(path, inline_includes(path, (cuda.KERNELS,))[0])
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
            cpu.load(path, defines, (cuda.KERNELS,), name)
            return sum(b - a for a, b in zip(before[:4], os.times()[:4], strict=True))


def loader(repeats):
    """Seconds of a load from the cache in a new process, and of a launch."""
    code = (
        "import time, minidl.cuda as cuda; from minidl.cuda import cpu\n"
        "cpu.runtime()\n"  # once for all kernels
        "start = time.perf_counter()\n"
        "cuda.kernel('add3.cu', 'add3').on_cpu\n"
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", code]
    x, n_launches = np.zeros(1, np.float32), 500
    add3, args = cuda.kernel("add3.cu", "add3"), (x, x, x, x, 1)
    add3(1, 32, args)  # compiled, if need be

    def launches():
        for _ in range(n_launches):
            add3(1, 32, args)

    loads = [float(subprocess.check_output(command)) for _ in range(repeats)]
    launch = min(timed(launches)() for _ in range(30 * repeats)) / n_launches
    print(f"loader   cached load {1e3 * min(loads):.2f} ms, launch {1e6 * launch:.2f} us")
    return {"cached_load_s": min(loads), "launch_s": launch}


def fibre(repeats):
    """Seconds a row of 1,024 columns takes a block of 256 threads with barriers, on one CPU
    thread: layer norm's second rung, on 64 rows."""
    x, w = np.ones((64, 1024), np.float32), np.ones(1024, np.float32)
    before = cuda.set_threads(1)
    run = timed(lambda: layer_norm.forward(x, w, w, 1e-5, rung=2))
    row = min(run() for _ in range(3 * repeats)) / len(x)
    cuda.set_threads(before)
    print(f"fibre    layer norm, a block of 256 threads on 1,024 columns: {1e3 * row:.2f} ms")
    return row


def add3(n_elems, repeats, threads):
    """Times of add3 on `threads` threads, of its peers, and of a copy of the same bytes."""
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

    def copy_same_bytes():  # a copy reads 4 and writes 4 bytes an element: twice for 16
        np.copyto(out, a)
        np.copyto(out, b)

    launch()
    np.testing.assert_array_equal(out, a + b + c)
    before = cuda.set_threads(threads)
    torch.set_num_threads(threads)
    peers = {"chain": lambda: a + b + c, "out=": numpy_out, "torch": torch_out,
             "copy": copy_same_bytes}
    turns = {name: timed(work) for name, work in (peers | {"kernel": launch}).items()}
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
    parser.add_argument("--out", help="JSON file (default: benchmarks/results/kernels.json)")
    args = parser.parse_args()
    print(machine())
    cpu.runtime()
    compiled = compile_all(1, args.quick)
    result = {"machine": machine(), "compile_s": compiled, "loader": loader(5),
              "fibre_row_s": fibre(args.repeats)}
    result["add3"] = [add3(n, args.repeats, threads)
                      for n in (1 << 20, 1 << 24) for threads in args.threads]
    large = [r["best"] for r in result["add3"] if r["n_elems"] == 1 << 24]
    slowest = max(s for times in compiled.values() for s in times.values())
    result["bars"] = [
        bar("cold compile of the slowest kernel, s", slowest, 0.6, at_most=True),
        bar("cached load, ms", 1e3 * result["loader"]["cached_load_s"], 2, at_most=True),
        bar("launch, us", 1e6 * result["loader"]["launch_s"], 6, at_most=True),
        bar("fibre form: layer norm of a row, ms", 1e3 * result["fibre_row_s"], 3, at_most=True),
        bar("add3, 16 M: out= / kernel", min(b["out="] for b in large), 1.15),
        bar("add3, 16 M: torch / kernel", min(b["torch"] for b in large), 1),
        bar("add3, 16 M: copy of the same bytes / kernel", min(b["copy"] for b in large), 0.85),
    ]
    print_bars(result["bars"])
    write_json(result, args.out, "kernels.json")


if __name__ == "__main__":
    main()
