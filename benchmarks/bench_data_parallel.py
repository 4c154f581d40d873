"""How long does a data-parallel training step take in minidl and in PyTorch's DDP?

    python benchmarks/bench_data_parallel.py [--ranks 2 4] [--rows 4] [--repeats 25]
                                             [--out FILE.json]

DDP is DistributedDataParallel. A GPT (4 layers, width 256, context 64) trains with AdamW on MPI
ranks of this host, one thread per rank. Each rank has its own batch, and every step averages the
gradients over the ranks. PyTorch uses the same processes, model, weights and batches, over gloo,
which sends through this host's TCP. minidl and PyTorch are timed in turn, one step each. A step
ends when the slowest rank has finished it. If there are more ranks than processors, ranks share
processors.

A check runs first, for three steps. On every rank minidl's losses must equal PyTorch's losses, and
differ from the losses of a rank that trains alone. After these steps all ranks must hold the same
weights, bit by bit.

    minidl, PyTorch DDP       DataParallel over MPI; DDP over gloo. DDP does not copy the gradients
                              (gradient_as_bucket_view=True)
    ..., alone                the same step without messages, at the same time on all ranks
    median ms, min, max       over the rounds
    / PyTorch                 the median over the rounds of (minidl's time / PyTorch's time)
    / alone                   the median over the rounds of (time with messages / time without)

Goal: minidl takes at most DDP's time.
"""

import argparse
import statistics

import numpy as np
from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, number, on_all_ranks, on_ranks,
    ratio, row, start_gloo, take_turns, threads, write_figures,
)
from small_gpt import VOCAB, batch_of, step_of

import minidl
from minidl import comm, nn, optim
from minidl.parallel import DataParallel
from minidl.plain import naive

SHAPE = VOCAB, 64, 4, 4, 256  # vocabulary, context, layers, heads, width
OURS, THEIRS = "minidl", "PyTorch DDP"
ALONE, THEIRS_ALONE = f"{OURS}, alone", f"{THEIRS}, alone"
PEERS = {OURS: THEIRS, ALONE: THEIRS_ALONE}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N")
    parser.add_argument("--rows", type=int, default=4, help="windows of 64 bytes a rank")
    parser.add_argument("--repeats", type=int, default=25, help="rounds of one step each")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # rank 0 writes this file
    return parser.parse_args()


def network():
    minidl.manual_seed(0)
    return nn.GPT(*SHAPE)


def ours(t):
    """Returns {name: (the GPT, the module that a step calls)}. This module is a DataParallel of the
    GPT, or the GPT itself if the rank trains alone."""
    plain, parallel = network(), network()
    return {OURS: (parallel, DataParallel(parallel, t)), ALONE: (plain, plain)}


def theirs(t):
    """Returns the same as ours(), for PyTorch."""
    import torch
    import torch_gpt

    torch.set_num_threads(1)
    start_gloo(t)
    plain, parallel = (torch_gpt.make(network().state_dict(), *SHAPE) for _ in range(2))
    wrapped = torch.nn.parallel.DistributedDataParallel(parallel, gradient_as_bucket_view=True)
    return {THEIRS: (parallel, wrapped), THEIRS_ALONE: (plain, plain)}


def worker(args):
    """Runs on each rank. Times the steps of all variants in turn. Rank 0 writes {name: [seconds of
    each round]} to a file."""
    import torch
    import torch_gpt

    t = comm.world()
    x, y = batch_of(t.rank, args.rows, SHAPE[1])
    our_models, their_models = ours(t), theirs(t)
    steps = {name: step_of(model, optim.AdamW(net.parameters(), lr=1e-3), x, y)
             for name, (net, model) in our_models.items()}
    steps |= {name: torch_gpt.step_of(
        model, torch.optim.AdamW(net.parameters(), lr=1e-3), x, y)
        for name, (net, model) in their_models.items()}
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    check(t, losses, {**our_models, **their_models})
    times = take_turns({name: on_all_ranks(t, step) for name, step in steps.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures(times, args.measure)


def check(t, losses, models):
    """Raises AssertionError unless minidl and PyTorch have the same losses and all ranks hold the
    same model."""
    for mine, peer in PEERS.items():  # the losses of three steps differ only by rounding
        np.testing.assert_allclose(losses[mine], losses[peer], rtol=1e-4, err_msg=mine)
    for name in (OURS, THEIRS):
        if np.allclose(losses[name], losses[ALONE], rtol=1e-3):
            raise AssertionError(f"rank {t.rank}: {name} does not average its gradients")
        for key, weight in models[name][0].state_dict().items():
            weight = np.asarray(weight)
            largest = naive.all_reduce(t, weight.copy(), np.maximum)
            np.testing.assert_array_equal(weight, largest, err_msg=f"rank {t.rank}: {name} {key}")


def print_times(n, times):
    print(f"\n{n} ranks{'':15}{'median ms':>10}{'min':>8}{'max':>8}{'/ PyTorch':>11}{'/ alone':>9}")
    for name, values in times.items():
        peer, alone = times.get(PEERS.get(name)), times.get(f"{name}, alone")
        print(f"{name:22}{1e3 * statistics.median(values):>10.1f}{1e3 * min(values):>8.1f}"
              f"{1e3 * max(values):>8.1f}{f'{ratio(values, peer):.2f}' if peer else '':>11}"
              f"{f'{ratio(values, alone):.2f}' if alone else '':>9}")


def main():
    args = options()
    if args.measure:
        return worker(args)
    torch = import_torch()
    print(heading())
    X = sum(p.numel() for p in network().parameters())
    print(f"GPT: vocabulary, context, layers, heads, width {SHAPE}, {X:,} parameters, "
          f"{args.rows} x {SHAPE[1]} bytes a rank, one thread a rank; PyTorch {torch.__version__}",
          flush=True)
    figures = {"parameters": X, "rows": args.rows, "times_s": {}}
    for n in args.ranks:
        figures["times_s"][n] = times = on_ranks(
            n, __file__, "--rows", args.rows, "--repeats", args.repeats, **threads(1))
        print_times(n, times)
    finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars, rows = [], []
    for n, times in figures["times_s"].items():
        by, best = (f(times[OURS], times[THEIRS]) for f in (ratio, best_ratio))
        bars.append(bar(f"data parallelism: a step's time, minidl / PyTorch DDP, {n} ranks", by, 1,
                        at_most=True, best=best))
        rows.append(row(f"data parallelism: a GPT's step, {n} ranks of one host",
                        "PyTorch's DistributedDataParallel over gloo",
                        f"{number(by)} times its time; {number(best)} by the least times",
                        bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
