"""What does each stage of ZeRO hold, send and cost, and how does it compare with PyTorch's?

    python benchmarks/bench_zero.py [--repeats 15] [--net 1Gbit,50us] [--out FILE.json]

1. Counts the bytes that a rank holds, and the bytes that it sends in a step of mixed precision (O2,
   AdamW), on simulated ranks. Both numbers must equal the formulas exactly.
2. Times a float32 step on 4 MPI ranks whose messages are slowed down to a 1 Gbit/s link
   (minidl/comm/transport/throttled.py). All stages are timed in turn, in one run. The ratio is the
   median over the rounds of (a stage's time / data parallelism's time).
3. Times the same step on 2 ranks without a slower link. PyTorch runs over gloo in the same
   processes. Stage 1 is compared with DistributedDataParallel and ZeroRedundancyOptimizer. Stage 3
   is compared with FSDP2 (fully_shard on each block and on the model). First all losses are
   compared.

Each rank has one thread.

Goals: stages 1, 2 and 3 take at most 1.05, 1.05 and 1.5 times the time of data parallelism. They
also take at most PyTorch's time.
"""

import argparse
import statistics

import numpy as np
from common import (
    NO_TORCH, bar, best_ratio, device_option, faster, finish, heading, number, on_all_ranks,
    on_ranks, ratio, row, start_gloo, take_turns, threads, write_figures,
)
from small_gpt import VOCAB, batch_of, loss_of

import minidl
from minidl import comm, memory, nn, optim
from minidl.comm import Ledger, Throttled, simulate
from minidl.comm.transport import links_text
from minidl.memory.predict import predict
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.data import header
from minidl.plain import naive
from minidl.precision import amp

STAGES = {"data parallel": DataParallel, "stage 1": Zero1, "stage 2": Zero2, "stage 3": Zero3}
HEADS = 4
SMALL = VOCAB, 16, 4, HEADS, 32  # vocabulary, context, layers, heads, width
LARGE = VOCAB, 64, 4, HEADS, 256
BARS = {"stage 1": 1.05, "stage 2": 1.05, "stage 3": 1.5}
PEERS = {"ZeroRedundancyOptimizer": "stage 1", "FSDP2": "stage 3"}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="rounds of one step each")
    parser.add_argument("--rows", type=int, default=1, help="windows of 64 bytes a rank")
    parser.add_argument("--net", default="1Gbit,50us", help="the link of part 2")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors; bytes are the same on a GPU")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # "throttled" or "torch"
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the worker writes this file
    return parser.parse_args()


# -- 1: bytes


def held_and_sent(t, name):
    """Returns (held, held_formula, sent, sent_formula). held: the bytes that this rank holds
    between two steps. sent: the bytes that a rank sends in a step, as the mean over the ranks."""
    t = Ledger(t)
    minidl.manual_seed(0)
    module = nn.GPT(*SMALL)
    X = sum(p.numel() for p in module.parameters())
    amp.prepare(module, "O2")
    model = STAGES[name](module, t)
    zero = isinstance(model, Zero1)
    optimizer = optim.use_master_weights(optim.AdamW(
        model.shards() if zero else module.parameters(), lr=1e-3))
    x, y = batch_of(t.rank, 1, SMALL[1])
    for _ in range(2):
        t.reset()
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if zero:
            model.gather()
    held = sum(memory.totals(module, optimizer)[kind] for kind in memory.STATES)
    n = t.size
    root = sum(b.bounds[-1] for b in model.root) if name == "stage 3" else 0
    n_params = len(model.reducer.params)
    ahead = sum(header.bytes_sent(n_params, n, rank) for rank in range(n)) / n
    unit = 2 * X * (n - 1) / n  # bytes that a rank sends in one collective, in float16
    held_formula = predict(X, precision="O2", zero=[*STAGES].index(name), world=n)["total"]
    # `units` is the number of units that a rank sends for gradients and weights together. Plain
    # data parallelism sends two units in float32, so each of these units counts twice.
    units = {"data parallel": 2 * 2, "stage 1": 2, "stage 2": 2, "stage 3": 3 - root / X}[name]
    sent = np.array([t.bytes_sent])  # read before close(), which also sends weights in stage 3
    model.close()
    sent = naive.all_reduce(t.inner, sent)[0] / n  # the mean, because ranks send unequal headers
    return held, held_formula, sent, units * unit + ahead


def bytes_table():
    rows_of_table = []
    print(f"\n{'O2, AdamW, X parameters':24}{'ranks':>6}{'held B':>12}{'formula':>12}"
          f"{'sent B, mean':>15}{'formula':>12}")
    for n in (2, 4, 8):
        for name in STAGES:
            rows = simulate(n, held_and_sent, name)
            held, held_formula, sent, sent_formula = rows[0]
            exact = all(row[0] == row[1] and abs(row[2] - row[3]) < 1e-6 for row in rows)
            print(f"{name:24}{n:>6}{held:>12,}{held_formula:>12,.0f}{sent:>15,.1f}"
                  f"{sent_formula:>12,.1f}  {'exact' if exact else 'NOT EXACT'}")
            rows_of_table.append(dict(stage=name, ranks=n, held=held, held_formula=held_formula,
                                        sent=sent, sent_formula=sent_formula, exact=exact))
    return rows_of_table


# -- 2 and 3: time


def ours(t, name, x, y):
    """Returns a function without arguments. It does one training step and returns the loss of this
    step."""
    minidl.manual_seed(0)
    model = STAGES[name](nn.GPT(*LARGE), t)
    zero = isinstance(model, Zero1)
    optimizer = optim.AdamW(model.shards() if zero else model.module.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        value = loss_of(model, x, y)
        value.backward()
        optimizer.step()
        if zero:
            model.gather()
        return value.item()

    return step


def theirs(t, x, y):
    """Returns {name: a function without arguments that does one training step in PyTorch}."""
    import torch
    import torch_gpt
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.set_num_threads(1)
    distributed = start_gloo(t)
    minidl.manual_seed(0)
    weights = {k: v.array.copy() for k, v in nn.GPT(*LARGE).state_dict().items()}
    replicated = torch.nn.parallel.DistributedDataParallel(torch_gpt.make(weights, *LARGE))
    sharded = torch_gpt.make(weights, *LARGE)
    mesh = distributed.device_mesh.init_device_mesh("cpu", (t.size,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return {
        "ZeroRedundancyOptimizer": torch_gpt.step_of(replicated, ZeroRedundancyOptimizer(
            replicated.parameters(), torch.optim.AdamW, lr=1e-3), x, y),
        "FSDP2": torch_gpt.step_of(
            sharded, torch.optim.AdamW(sharded.parameters(), lr=1e-3), x, y),
    }


def worker(args):
    """Runs on each rank. Times the steps of all variants in turn. Rank 0 writes {name: [seconds of
    each round]} to a file."""
    t = plain = comm.world()
    if args.worker == "throttled":
        t = Throttled(t, links_text.parse(args.net, t.size))
    x, y = batch_of(t.rank, args.rows, LARGE[1])
    steps = {name: ours(t, name, x, y) for name in STAGES}
    if args.worker == "torch":
        steps |= theirs(plain, x, y)
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    for name, values in losses.items():  # the losses of three steps differ only by rounding
        np.testing.assert_allclose(values, losses["data parallel"], rtol=1e-4, err_msg=name)

    times = take_turns({name: on_all_ranks(plain, step) for name, step in steps.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures(times, args.measure)


def run(args, kind, n):
    """Runs worker() on n ranks under mpiexec. Returns {name: [seconds of each round]}. kind:
    "throttled" or "torch", the option --worker."""
    return on_ranks(n, __file__, "--worker", kind, "--repeats", args.repeats, "--rows", args.rows,
                    "--net", args.net, **threads(1))


def print_times(title, times):
    print(f"\n{title}\n{'':26}{'median ms':>10}{'min':>8}{'max':>8}{'/ data parallel':>17}")
    for name, values in times.items():
        by = ratio(values, times["data parallel"])
        print(f"{name:26}{1e3 * statistics.median(values):>10.0f}{1e3 * min(values):>8.0f}"
              f"{1e3 * max(values):>8.0f}{by:>17.2f}")


def main():
    args = options()
    if args.worker:
        return worker(args)
    X = sum(p.numel() for p in nn.GPT(*LARGE).parameters())
    print(heading())
    print(f"GPT: vocabulary, context, layers, heads, width {LARGE}, {X:,} parameters, "
          f"{args.rows} x {LARGE[1]} bytes a rank, one thread a rank")
    figures = dict(parameters=X, rows=args.rows, net=args.net, bytes=bytes_table())
    figures["throttled_s"] = run(args, "throttled", 4)
    _, beta = links_text.parse(args.net, 4).link(0, 1)
    figures["unit_modelled_s"] = beta * 4 * X * 3 / 4
    print(f"\nmodelled: a unit, (n-1)/n X, of 4 ranks takes "
          f"{1e3 * figures['unit_modelled_s']:.0f} ms; data parallelism and stages 1, 2 send two, "
          "stage 3 about three")
    print_times(f"4 ranks, {args.net}", figures["throttled_s"])
    left_out = []
    try:
        import torch
    except ImportError:
        left_out = [NO_TORCH]
    else:
        figures["torch_s"] = run(args, "torch", 2)
        print_times(f"2 ranks, shared memory; PyTorch {torch.__version__} over gloo",
                    figures["torch_s"])
    finish(figures, *report(figures), args.out, left_out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    wrong = sum(not line["exact"] for line in figures["bytes"])
    bars = [bar("stages and ranks whose bytes differ from the formulas", wrong, 0, at_most=True)]
    rows = [row("ZeRO 1 / 2 / 3: bytes held and sent, 2, 4 and 8 ranks",
                "4X+12X/n, 2X+14X/n, 16X/n", f"{wrong} differ" if wrong else
                "equal, to the byte", bars)]
    times, parallel = figures["throttled_s"], figures["throttled_s"]["data parallel"]
    for stage, wanted in BARS.items():
        by, best = (f(times[stage], parallel) for f in (ratio, best_ratio))
        bars.append(bar(f"{stage}: step by data parallelism's, 4 ranks, {figures['net']}", by,
                        wanted, at_most=True, best=best))
        rows.append(row(f"ZeRO {stage}: a GPT's step, 4 ranks, throttled to {figures['net']}",
                        "data parallel", f"{number(by)} times its time", bars[-1:]))
    times = figures.get("torch_s", {})
    for peer, stage in PEERS.items() if times else ():
        bars.append(faster(f"PyTorch's {peer} by minidl's {stage}, 2 ranks", times[peer],
                           times[stage], 1.0))
        rows.append(row(f"ZeRO {stage}: a GPT's step, 2 ranks through shared memory",
                        f"PyTorch's {peer} over gloo",
                        f"{number(bars[-1]['figure'])} times its speed", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
