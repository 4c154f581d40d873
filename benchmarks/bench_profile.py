"""What does profiling cost? minidl's profiler and torch.profiler on the same GPT step.

    python benchmarks/bench_profile.py [--threads 1] [--repeats 9] [--out FILE.json]

Runs the step of bench_train_step.py (4 layers, width 256, context 256, batch 8, AdamW) with and
without a profiler. minidl and PyTorch have the same weights and batch. These steps are timed in
turn, in blocks of three steps. The overhead is the median over the blocks of (with / without) - 1.
It is measured in CPU time, which a busy machine disturbs less. The time to enter and leave a
profiler does not count. torch.profiler records only the CPU, without shapes and FLOPs, which minidl
always records. profile(memory=True), which counts every array by its kind, is measured, too.

A step takes half a second. Its time varies by more than a profiler costs. So the two profilers are
also compared on a small GPT with width 32, context 32 and batch 2. This GPT has as many operators
and spans as the GPT above. Its step takes about 5 ms, so the cost is visible. The cost is the
difference (with - without), in ms per step.

The last part measures the cost when no profile runs. It looks for methods that a profile has
wrapped and has not restored. Every collective checks whether a profile runs. So this part also
times this check, and divides its time by the time of a step.
"""

import argparse
import statistics
import sys
import time
from contextlib import nullcontext

import numpy as np
from bench_train_step import SIZE, STEPS_PER_BLOCK, make_minidl, make_torch
from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, measured, number, ratio, row,
    take_turns, write_figures,
)

import minidl
from minidl.cli.machine import environment
from minidl.function import Function
from minidl.timeline import recording

OURS, MEMORY, TORCH = "minidl", "minidl, memory by kind too", "torch.profiler"
PLAIN = {OURS: "minidl without", MEMORY: "minidl without", TORCH: "PyTorch without"}
OFF_BAR, ON_BAR = 0.005, 0.03  # the goals, as fractions of a step
# LARGE and SMALL are (size of the GPT, steps of a block, blocks in a round).
LARGE = SIZE, STEPS_PER_BLOCK, 1
SMALL = SIZE._replace(width=32, context=32, batch=2), 20, 3


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9, help="blocks of three steps of each")
    device_option(parser, "a span costs only Python's time")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def inside(block, step, n_steps):
    """Returns a function for common.take_turns. This function runs steps in the `with` block
    `block`, and returns the CPU seconds of one step. The time to enter and leave the block does not
    count."""
    def run():
        with block():
            step()  # not timed, because it fills the profiler's caches
            start = time.process_time()
            for _ in range(n_steps):
                step()
            return (time.process_time() - start) / n_steps

    return run


def compare(args, size, n_steps, blocks_for_each):
    """Returns ({name: [seconds of a step, one for each block]}, number of spans of a step). Each
    name tells which profiler runs, or that no profiler runs."""
    torch = import_torch()
    rng = np.random.default_rng(0)
    ids = rng.integers(0, size.vocab, (size.batch, size.context + 1))
    batch = ids[:, :-1].copy(), ids[:, 1:].copy()
    model, ours = make_minidl(size=size)
    weights = {k: v.array.copy() for k, v in model.state_dict().items()}
    theirs, _ = make_torch(weights, args.threads, "cpu", size)
    np.testing.assert_allclose(ours(*batch), theirs(*batch), rtol=1e-4)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    blocks = {OURS: minidl.profile, MEMORY: lambda: minidl.profile(memory=True),
              TORCH: lambda: torch.profiler.profile(activities=cpu),
              PLAIN[OURS]: nullcontext, PLAIN[TORCH]: nullcontext}
    steps = {name: theirs if name in (TORCH, PLAIN[TORCH]) else ours for name in blocks}
    times = take_turns({name: inside(block, lambda step=steps[name]: step(*batch), n_steps)
                        for name, block in blocks.items()}, blocks_for_each * args.repeats)
    with minidl.profile() as p:
        for _ in range(3):
            ours(*batch)
    return times, sum(map(len, p.record.lanes.values())) / 3


def measure(args):
    times, spans = compare(args, *LARGE)
    small, _ = compare(args, *SMALL)
    step_s = statistics.median(times[PLAIN[OURS]])
    return {"times_s": times, "small_times_s": small, "spans": spans,
            "off": left_over() | {"step_s": step_s}}


def left_over():
    """Returns {"wrapped": n, "question_s": seconds}. n: the number of methods that are still
    wrapped after a profile; it should be 0. seconds: the time in which a collective checks whether
    a profile runs."""
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


def extra_ms(times):
    """Returns {profiler: (a, b)}. Both numbers tell how many ms the profiler adds to a step. a is
    the median of the differences in each round. b is the difference of the shortest times."""
    return {name: tuple(1e3 * figure for figure in (
        statistics.median(a - b for a, b in zip(times[name], times[without], strict=True)),
        min(times[name]) - min(times[without]))) for name, without in PLAIN.items()}


def report(figures):
    """Prints the table. Returns (bars, rows). A bar is a measured number with its goal. A row is a
    line of the table in docs/figures.md."""
    times, off = figures["times_s"], figures["off"]
    cost, best, extra = {}, {}, extra_ms(figures["small_times_s"])
    print(f"{'':36}{'ms a step':>11}{'overhead':>10}{'(least)':>9}{'small: ms':>11}{'more':>7}"
          f"{'(least)':>9}")
    for name, without in PLAIN.items():
        cost[name] = ratio(times[name], times[without]) - 1
        best[name] = best_ratio(times[name], times[without]) - 1
        small = statistics.median(figures["small_times_s"][name])
        print(f"{name:36}{1e3 * statistics.median(times[name]):>11.1f}{cost[name]:>10.1%}"
              f"{best[name]:>9.1%}{1e3 * small:>11.2f}{extra[name][0]:>7.2f}{extra[name][1]:>9.2f}")
    print(f"{figures['spans']:.0f} spans a step; when no profile runs {off['wrapped']} methods are "
          f"wrapped, and a collective asks {1e9 * off['question_s']:.0f} ns")
    share = 100 * off["question_s"] / off["step_s"] + off["wrapped"]  # a step with 100 collectives
    more, least = (extra[OURS][i] / extra[TORCH][i] for i in (0, 1))
    bars = [bar("overhead of minidl.profile, on", cost[OURS], ON_BAR, True, best[OURS]),
            bar("the same, with memory by kind", cost[MEMORY], ON_BAR, True, best[MEMORY]),
            bar("off: share of a step with 100 collectives", share, OFF_BAR, True),
            bar("what it adds to a small GPT's step: by torch.profiler's", more, 1.0, True, least)]
    question = f"what a profile costs: a GPT of {SIZE}"
    return bars, [row(question, "a step without", f"{number(100 * cost[OURS])} % of a step",
                      [bars[0], bars[2]]),
                  row(f"{question}, with every array by kind", "a step without",
                      f"{number(100 * cost[MEMORY])} % of a step", bars[1:2]),
                  row(f"the same of a GPT of {SMALL[0]}",
                      TORCH, f"{number(extra[OURS][0])} ms a step; "
                      f"torch.profiler: {number(extra[TORCH][0])} ms", bars[3:])]


if __name__ == "__main__":
    main()
