"""What does measuring cost? minidl's profiler beside torch.profiler, on the same GPT step.

    python benchmarks/bench_profile.py [--threads 1] [--repeats 9] [--out FILE.json]

The step of bench_train_step.py (4 layers, width 256, context 256, batch 8, AdamW), the same weights
and batch, in minidl and in PyTorch; each without a profiler and inside of one. They take turns in
blocks of three steps, and an overhead is the median over the blocks of with / without, less 1, of
the processor's time: a busy machine disturbs it less, and what a profiler costs is a thread's work.
Entering and leaving the profiler is not in it, for none of the two; torch.profiler records the CPU
alone, without shapes and FLOPs, which minidl always has. Also measured: profile(memory=True), which
counts every array by its kind. Then what is left when no profile runs:
whether any class differs from before, and the time of one collective's question whether one does,
as a share of a step.
"""

import argparse
import statistics
import sys
import time
from contextlib import nullcontext

import numpy as np
from bench_train_step import (
    BATCH, CONTEXT, LAYERS, STEPS_PER_BLOCK, VOCAB, WIDTH, make_minidl, make_torch,
)
from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, measured, number, ratio, row,
    take_turns, write_figures,
)

import minidl
from minidl.function import Function
from minidl.launcher import environment
from minidl.timeline import recording

OURS, MEMORY, TORCH = "minidl", "minidl, memory by kind too", "torch.profiler"
OFF_BAR, ON_BAR = 0.005, 0.03  # shares of a step


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9, help="blocks of three steps of each")
    device_option(parser, "what a span costs is Python's time")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def inside(block, step):
    """A contestant: processor seconds of a step inside of a block; entering is not measured."""
    def run():
        with block():
            step()  # the first in a block: caches of the profiler's own
            start = time.process_time()
            for _ in range(STEPS_PER_BLOCK):
                step()
            return (time.process_time() - start) / STEPS_PER_BLOCK

    return run


def measure(args):
    torch = import_torch()
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCAB, (BATCH, CONTEXT + 1))
    batch = ids[:, :-1].copy(), ids[:, 1:].copy()
    model, ours = make_minidl()
    weights = {k: v.copy() for k, v in model.state_dict().items()}
    theirs, _ = make_torch(weights, args.threads, "cpu")
    np.testing.assert_allclose(ours(*batch), theirs(*batch), rtol=1e-4)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    blocks = {OURS: minidl.profile, MEMORY: lambda: minidl.profile(memory=True),
              TORCH: lambda: torch.profiler.profile(activities=cpu)}
    contestants = {}
    for name, block in blocks.items():
        step = (lambda: theirs(*batch)) if name == TORCH else (lambda: ours(*batch))
        contestants[name] = inside(block, step)
    contestants["minidl without"] = inside(nullcontext, lambda: ours(*batch))
    contestants["PyTorch without"] = inside(nullcontext, lambda: theirs(*batch))
    times = take_turns(contestants, args.repeats)
    with minidl.profile() as p:
        for _ in range(3):
            ours(*batch)
    spans = sum(map(len, p.record.lanes.values())) / 3
    step_s = statistics.median(times["minidl without"])
    return {"times_s": times, "spans": spans, "off": left_over() | {"step_s": step_s}}


def left_over():
    """What a profile leaves behind: wrapped methods (none), and the question of a collective."""
    wrapped = [cls for cls in [Function, *Function.__subclasses__()]
               for phase in ("forward", "backward") if hasattr(getattr(cls, phase), "__wrapped__")]
    n, start = 100_000, time.perf_counter()
    for _ in range(n):
        recording.get()
    return {"wrapped": len(wrapped), "question_s": (time.perf_counter() - start) / n}


def main():
    args = options()
    if args.measure:
        return write_figures(measure(args), args.measure)
    print(heading(), flush=True)
    figures = measured(sys.executable, __file__, "--threads", args.threads, "--repeats",
                       args.repeats, **environment(1, args.threads))
    finish(figures, *report(figures), args.out)


def report(figures):
    """(bars, rows); prints the table."""
    times, off = figures["times_s"], figures["off"]
    plain = {OURS: "minidl without", MEMORY: "minidl without", TORCH: "PyTorch without"}
    cost, best = {}, {}
    print(f"{'':36}{'ms a step':>11}{'overhead':>10}{'(least)':>9}")
    for name, without in plain.items():
        cost[name] = ratio(times[name], times[without]) - 1
        best[name] = best_ratio(times[name], times[without]) - 1
        print(f"{name:36}{1e3 * statistics.median(times[name]):>11.1f}{cost[name]:>10.1%}"
              f"{best[name]:>9.1%}")
    print(f"{figures['spans']:.0f} spans a step; when no profile runs {off['wrapped']} methods are "
          f"wrapped, and a collective asks {1e9 * off['question_s']:.0f} ns")
    share = 100 * off["question_s"] / off["step_s"] + off["wrapped"]  # of 100 collectives a step
    bars = [bar("overhead of minidl.profile, on", cost[OURS], ON_BAR, True, best[OURS]),
            bar("the same, with memory by kind", cost[MEMORY], ON_BAR, True, best[MEMORY]),
            bar("off: share of a step with 100 collectives", share, OFF_BAR, True),
            bar("with / without: minidl's over torch.profiler's", (1 + cost[OURS]) / (
                1 + cost[TORCH]), 1.0, True, (1 + best[OURS]) / (1 + best[TORCH]))]
    question = (f"what a profile costs: a GPT of {LAYERS} layers, width {WIDTH}, context {CONTEXT},"
                f" batch {BATCH}")
    return bars, [row(question, TORCH, f"{number(100 * cost[OURS])} % of a step beside "
                      f"{number(100 * cost[TORCH])} %", [bars[0], *bars[2:]]),
                  row(f"{question}, with every array by kind", "the same without memory",
                      f"{number(100 * cost[MEMORY])} % of a step beside "
                      f"{number(100 * cost[OURS])} %", bars[1:2])]


if __name__ == "__main__":
    main()
