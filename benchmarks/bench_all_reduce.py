"""Is the ring in Python as fast as MPI's own all-reduce, and how far ahead of PyTorch's gloo?

    python benchmarks/bench_all_reduce.py [--ranks 2 4] [--mib 4 16 64] [--rounds 15] [--out F.json]

Starts itself under mpiexec for each number of ranks, on this machine. In every round a contestant
reduces the same float32 array once, after a barrier, in turning order; its time is the slowest
rank's. MPI_Allreduce runs into another array, and in place as the ring does. The bound is the time
that the same processes take to move the ring's bytes with Sendrecv and to add them, with nothing
around it. Gloo is PyTorch's CPU backend, in the same processes; it is left out, and said so, where
torch is not installed.

Then 1,024 simulated ranks, in this process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from common import machine, ratio, take_turns, write_json

from minidl.comm import chunks, cost, ring, simulate, world
from minidl.launcher import environment, find_mpiexec

RING, MPI, IN_PLACE, GLOO = "ring", "MPI_Allreduce", "MPI_Allreduce in place", "gloo"
BOUND = "bytes alone"
ORDER = (RING, MPI, IN_PLACE, GLOO, BOUND)


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mib", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--simulated", type=int, default=1024, help="simulated ranks; 0: none")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/all_reduce.json)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the file for rank 0, under mpiexec
    return parser.parse_args()


def measure(args):
    """One rank under mpiexec: time all contestants at all sizes; rank 0 writes the figures."""
    from mpi4py import MPI as mpi

    t = world()
    comm = mpi.COMM_WORLD
    gloo = start_gloo(t)
    figures = {}
    for mib in args.mib:
        n_elems = mib << 18
        x, y = np.empty(n_elems, np.float32), np.empty(n_elems, np.float32)
        contestants = {
            RING: lambda x=x: ring.all_reduce(t, x),
            MPI: lambda x=x, y=y: comm.Allreduce(x, y),
            IN_PLACE: lambda x=x: comm.Allreduce(mpi.IN_PLACE, x),
            BOUND: lambda x=x: bytes_alone(comm, x),
        }
        if gloo:
            contestants[GLOO] = lambda x=x: gloo(x)
        for name, reduce in contestants.items():  # before the clock: do they compute the same?
            x[:] = t.rank + np.arange(n_elems) % 5
            reduce()
            got = y if name == MPI else x
            want = sum(range(t.size)) + t.size * (np.arange(n_elems) % 5)
            assert name == BOUND or (got == want).all(), f"rank {t.rank}: {name} is wrong"

        def timed(reduce, x=x):
            x[:] = 1
            comm.Barrier()
            start = time.perf_counter()
            reduce()
            return comm.allreduce(time.perf_counter() - start, mpi.MAX)

        turns = {name: lambda run=run: timed(run) for name, run in contestants.items()}
        figures[mib] = take_turns(turns, args.rounds, warm_up=2)
    if t.rank == 0:
        library = mpi.Get_library_version().split("\n")[0].replace("\t", " ")
        with open(args.measure, "w") as file:
            json.dump({"mpi": library, "gloo": bool(gloo), "times_s": figures}, file)


def bytes_alone(comm, x):
    """Move what the ring moves with plain Sendrecv and add what it adds, nothing around it."""
    n, r = comm.size, comm.rank
    part = chunks.split(x, n)
    for s in range(2 * (n - 1)):
        comm.Sendrecv(part[s % n], (r + 1) % n, 0, part[(s + 1) % n][: len(part[0])], (r - 1) % n)
        if s < n - 1:
            np.add(part[0], part[1], out=part[1])


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


def launch(n, args):
    """Run `measure` on n ranks; what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "figures.json")
        sizes = [*("--mib", *map(str, args.mib)), "--rounds", str(args.rounds)]
        env = environment(n) | {"MINIDL_BENCH_RUN": str(os.getpid()), "TMPDIR": folder}
        command = [find_mpiexec(), "-n", str(n), sys.executable, __file__, *sizes, "--measure", out]
        subprocess.run(command, env=env, check=True)
        with open(out) as file:
            return json.load(file)


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
    result = {"machine": machine(), "rounds": args.rounds, "ranks": {}}
    print(f"float32 sums; medians over {args.rounds} rounds; ratios over 1: the ring is faster\n")
    print(f"{'':11}{'measured ms':^44} {'ratio to the ring':^35}")
    print(
        f"{'ranks':>5} {'MiB':>4} {'ring':>8} {'MPI':>8} {'in place':>8} {'gloo':>8} {'bound':>8} "
        f"{'MPI':>8} {'in place':>8} {'gloo':>8} {'bound':>8}"
    )
    for n in args.ranks:
        run = launch(n, args)
        rows = {}
        for mib, times in run["times_s"].items():
            medians = {name: statistics.median(values) for name, values in times.items()}
            ratios = {name: ratio(times[name], times[RING]) for name in times if name != RING}
            rows[mib] = {"median_s": medians, "ratio_to_ring": ratios, "rounds_s": times}
            columns = [f"{1e3 * medians[k]:8.2f}" if k in medians else f"{'-':>8}" for k in ORDER]
            columns += [f"{ratios[k]:8.2f}" if k in ratios else f"{'-':>8}" for k in ORDER[1:]]
            print(f"{n:5} {mib:>4}", *columns, flush=True)
        result["ranks"][n] = {"mpi": run["mpi"], "sizes_mib": rows}
    print(f"\n{run['mpi']}" + ("" if run["gloo"] else "; torch is not installed: no gloo"))
    if args.simulated:
        took, modelled, formula = simulate_many(args.simulated)
        print(f"{args.simulated} simulated ranks, 4,096 floats: measured {took:.1f} s")
        print(f"modelled {modelled:.9f} s, by formula {formula:.9f} s")
        result["simulated"] = {"ranks": args.simulated, "took_s": took, "modelled_s": modelled}
    write_json(result, args.out, "all_reduce.json")


if __name__ == "__main__":
    main()
