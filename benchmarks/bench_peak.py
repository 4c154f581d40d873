"""What part of the processor's peak (operations per second) does a GPT's training step reach?

    python benchmarks/bench_peak.py [--threads 2] [--repeats 5] [--out FILE.json]

The peak is the rate of a loop of multiply-adds on registers. The loop is a kernel in this file. The
CPU runner runs it on as many threads as the step uses. No step can reach a higher rate. The
operations of a step are its matrix products, forward and backward. Attention counts only half of
its products, because of the causal mask. All other work (norms, GELU, softmax, the optimizer,
Python) takes time and counts as 0 operations. The GPTs have 3, 23 and 124 million parameters.
minidl and PyTorch start from the same weights, use the same batch and have equal losses. Both are
timed in turn.

For the last rows, minidl, PyTorch and the loop are limited to AVX2 without AVX-512, as on most
laptops (MINIDL_CPU, OPENBLAS_CORETYPE, ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA). On a processor
without AVX-512 these rows repeat the first rows.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_train_step import Size, make_minidl, make_torch, operations
from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, measured, number, ratio, row,
    take_turns, timed, write_figures,
)

import minidl.cuda as cuda
from minidl.cli.machine import environment

SIZES = {"3": Size(), "23": Size(7, 512, 8), "124": Size(12, 768, 12, vocab=50257, batch=4)}
PEAK_BAR = {"23": 0.8, "124": 0.8}  # the part of the peak that a step must reach
AVX2 = {"MINIDL_CPU": "haswell", "OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AVX2_SIZES, AVX2_BAR = ("3", "23"), 0.7  # a step takes at most 0.7 of PyTorch's time
OURS, TORCH = "minidl", "PyTorch eager"

# The loop keeps its sums in ten registers. In each cycle the processor starts two multiply-adds,
# and a multiply-add takes four cycles. So with eight or more registers, no register waits for its
# last multiply-add.
LOOP = """
#ifdef __AVX512F__
const int N = 160;
#else
const int N = 80;
#endif
extern "C" __global__ void multiply_adds(float* out, int n) {
  float sums[N], x = out[0];
  for (int j = 0; j < N; ++j) sums[j] = j;
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < N; ++j) sums[j] = fmaf(sums[j], x, 1.0f);
  for (int j = 0; j < N; ++j) out[1 + blockIdx.x * N + j] = sums[j];
}
extern "C" __global__ void sums_in_a_block(float* out) { out[0] = N; }
"""


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="steps of each; largest GPT: half")
    device_option(parser, "it measures a CPU's peak")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES,
                        help="millions of parameters")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def peak(n_threads, n=60_000):
    """Returns a function that does multiply-adds on all threads, and the number of operations of
    one call. A call launches many blocks, because the runner runs the first block on one thread,
    before the threads share the other blocks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "multiply_adds.cu"
        path.write_text(LOOP)
        loop, width = (cuda.kernel(path, name) for name in ("multiply_adds", "sums_in_a_block"))
        out = np.zeros(1, np.float32)
        width(1, 1, (out,))
        n_sums, n_blocks = int(out[0]), 64 * n_threads
        out = np.full(1 + n_blocks * n_sums, 0.5, np.float32)
        loop(n_blocks, 1, (out, n))
    assert (np.abs(out[1:] - 2) < 1e-3).all()  # each sum is 1 + 1/2 + 1/4 + ... = 2
    return lambda: loop(n_blocks, 1, (out, n)), 2 * n * n_blocks * n_sums


def measure(args):
    return {name: measure_one(SIZES[name], args.threads,
                              max(3, args.repeats // 2) if name == "124" else args.repeats)
            for name in args.sizes}


def measure_one(size, n_threads, repeats):
    ids = np.random.default_rng(0).integers(0, size.vocab, (size.batch, size.context + 1))
    batch = ids[:, :-1].copy(), ids[:, 1:].copy()
    model, ours = make_minidl(size=size)
    weights = {k: v.array.copy() for k, v in model.state_dict().items()}
    theirs, _ = make_torch(weights, n_threads, "cpu", size)
    losses = [[step(*batch) for _ in range(2)] for step in (ours, theirs)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    multiply_adds, n_peak = peak(n_threads)
    contestants = {OURS: timed(lambda: ours(*batch)), TORCH: timed(lambda: theirs(*batch)),
                   "peak": timed(multiply_adds)}
    times = take_turns(contestants, repeats)
    time.sleep(0.1)  # after a step, PyTorch's threads still use the processors for a moment
    return {"parameters": sum(p.numel() for p in model.parameters()),
            "operations": operations(size), "peak": n_peak, "times_s": times}


def table(figures, title):
    print(f"\n{title}\n{'parameters':>14}{'minidl ms':>11}{'PyTorch ms':>12}{'ratio':>7}"
          f"{'GFLOP/s':>9}{'peak':>7}{'part':>6}{'PyTorch part':>14}")
    for found in figures.values():
        times = found["times_s"]
        ours, theirs = (statistics.median(times[name]) for name in (OURS, TORCH))
        print(f"{found['parameters']:>14,}{1e3 * ours:>11.1f}{1e3 * theirs:>12.1f}"
              f"{ratio(times[OURS], times[TORCH]):>7.2f}{found['operations'] / ours / 1e9:>9.0f}"
              f"{rate_of_peak(found) / 1e9:>7.0f}{part(found, OURS):>6.0%}"
              f"{part(found, TORCH):>14.0%}")


def rate_of_peak(found):
    """Returns the peak: the operations per second of the loop on registers, in its fastest
    round."""
    return found["peak"] / min(found["times_s"]["peak"])


def part(found, name):
    """Returns which fraction of the peak rate a step reaches, by the median time of a step."""
    return found["operations"] / statistics.median(found["times_s"][name]) / rate_of_peak(found)


def main():
    args = options()
    if args.measure:
        return write_figures(measure(args), args.measure)
    import_torch()  # ends the benchmark if PyTorch is missing
    print(heading(), flush=True)
    command = [sys.executable, __file__, "--threads", args.threads, "--repeats", args.repeats]
    environ = environment(1, args.threads)
    figures = {"threads": args.threads,
               "all": measured(*command, "--sizes", *args.sizes, **environ)}
    table(figures["all"], "with all that this processor has")
    small = [size for size in AVX2_SIZES if size in args.sizes]
    figures["avx2"] = measured(*command, "--sizes", *small, **environ, **AVX2) if small else {}
    table(figures["avx2"], "held to AVX2")
    finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars, rows = [], []
    for name, found in figures["all"].items():
        wanted = [bar(f"{name} M parameters: part of the peak", part(found, OURS), PEAK_BAR[name])
                  ] if name in PEAK_BAR else []
        bars += wanted
        rows.append(row(
            f"a GPT's step, {name} M parameters: part of the multiply-adds' peak, "
            f"{rate_of_peak(found) / 1e9:.0f} GFLOP/s",
            f"PyTorch eager: {part(found, TORCH):.0%}", f"{part(found, OURS):.0%}", wanted))
    for name, found in figures["avx2"].items():
        times = found["times_s"]
        by, best = (f(times[OURS], times[TORCH]) for f in (ratio, best_ratio))
        bars.append(bar(f"{name} M parameters, AVX2 alone: a step's time / PyTorch", by, AVX2_BAR,
                        at_most=True, best=best))
        rows.append(row(f"a GPT's step, {name} M parameters, where there is AVX2 alone",
                        "PyTorch eager, held to AVX2", f"{number(by)} times its time", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
