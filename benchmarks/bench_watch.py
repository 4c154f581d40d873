"""What does a Watch cost?

    python benchmarks/bench_watch.py [--ranks 2 4] [--rounds 40] [--out F.json]

Measures the microseconds that a Watch adds to a ring all-reduce of 256 floats. This call is so
short that the Watch takes a large part of its time. The n ranks first check that all ranks make the
same call. This check takes ceil(log2 n) rounds of messages. Then the benchmark measures how much
the Watch's two sleeping threads slow down a rank that computes. The result is the time of a Python
loop with these threads, divided by the loop's time without them. All results are medians over
rounds. In a round, calls with and without a Watch are timed in turn. A call's time is the mean of
10 calls on the slowest rank. "At best" compares the fastest rounds, because on a busy machine other
programs raise the median. Last, the benchmark measures the Watch of `minidl run` in a data-parallel
step of bench_train_step.py's GPT. Steps with and without a Watch are timed in turn, and the result
is the median of the ratios. The benchmark starts itself under mpiexec.
"""

import argparse
import statistics
import time

import numpy as np
from common import (
    device_option, finish, heading, number, on_ranks, ratio, row, take_turns, threads, timed,
    write_figures,
)

import minidl
from minidl import nn, optim
from minidl.comm import Watch, ring, tree, world
from minidl.nn import functional as F
from minidl.parallel import DataParallel

CALLS = 10  # a round is short, so that some rounds run without an interruption


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=15, help="training steps of each contestant")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "a watched call costs Python and messages between the hosts' processes")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # rank 0 writes this file
    return parser.parse_args()


def measure(args):
    """Runs on each rank under mpiexec. Rank 0 writes the results."""
    t = world()
    x = np.ones(256, np.float32)

    loop = timed(lambda: sum(i for i in range(2_000_000)))
    before = [loop() for _ in range(5)]
    watched = Watch(t)

    def reductions(t):
        def run():
            tree.barrier(t)
            start = time.perf_counter()
            for _ in range(CALLS):
                x[:] = 1
                ring.all_reduce(t, x)
            mine = np.array([time.perf_counter() - start])
            return tree.all_reduce(t, mine, np.maximum)[0] / CALLS

        return run

    times = take_turns({"plain": reductions(t), "watched": reductions(watched)}, args.rounds)
    after = [loop() for _ in range(5)]
    steps = take_turns({"plain": training(t), "watched": training(watched)}, args.steps)
    if t.rank == 0:
        figures = {
            "plain_us": 1e6 * statistics.median(times["plain"]),
            "added_us": 1e6
            * statistics.median(
                a - b for a, b in zip(times["watched"], times["plain"], strict=True)
            ),
            "added_us_at_best": 1e6 * (min(times["watched"]) - min(times["plain"])),
            "watched_over_plain": ratio(times["watched"], times["plain"]),
            "compute_with_threads_over_without": min(after) / min(before),
            "step_s": statistics.median(steps["plain"]),
            "step_watched_over_plain": ratio(steps["watched"], steps["plain"]),
        }
        write_figures(figures, args.measure)


def training(t):
    """Returns a function for common.take_turns. This function does one training step and returns
    its time in s. The GPT has 3.2 million weights. Each rank has 2 sequences."""
    minidl.manual_seed(0)
    model = DataParallel(nn.GPT(256, 256, 4, 8, 256), t)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    x = np.random.default_rng(t.rank).integers(0, 256, (2, 257))

    def step():
        tree.barrier(t)
        start = time.perf_counter()
        F.cross_entropy(model(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        mine = np.array([time.perf_counter() - start])
        return tree.all_reduce(t, mine, np.maximum)[0]

    return step


def main():
    args = options()
    if args.measure:
        return measure(args)
    print(heading())
    print(f"ring all-reduce of 1 KiB, {args.rounds} rounds of {CALLS} calls\n")
    print(
        f"{'ranks':>5} {'plain us':>9} {'added us':>9} {'at best':>8} {'ratio':>6} "
        f"{'compute with threads':>21} {'step watched':>13}"
    )
    result = {}
    for n in args.ranks:
        result[n] = figures = on_ranks(n, __file__, "--rounds", args.rounds, "--steps",
                                       args.steps, **threads(1))
        print(
            f"{n:>5} {figures['plain_us']:>9.1f} {figures['added_us']:>9.1f} "
            f"{figures['added_us_at_best']:>8.1f} {figures['watched_over_plain']:>6.2f} "
            f"{figures['compute_with_threads_over_without']:>21.3f} "
            f"{figures['step_watched_over_plain']:>13.3f}"
        )
    finish(result, [], rows_of(result), args.out)


def rows_of(figures):
    return [row(f"a watched collective, 1 KiB, {n} ranks: what `Watch` adds",
                f"unwatched: {number(f['plain_us'])} us",
                f"{number(f['added_us'])} us; {number(f['added_us_at_best'])} us at best")
            for n, f in figures.items()] + [
        row(f"a data-parallel step of a small GPT, {n} ranks: with `Watch` over without",
            f"{number(f['step_s'])} s without", f"{f['step_watched_over_plain']:.3f}")
        for n, f in figures.items()]


if __name__ == "__main__":
    main()
