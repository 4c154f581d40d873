"""What does a divided layer cost on 2 ranks? minidl's tensor parallelism, with and without overlap,
is compared with PyTorch's. Experts are compared with a dense layer.

    python benchmarks/bench_tensor_parallel.py [--repeats 15] [--rows 4] [--net 1Gbit,50us]
        [--tokens 1024] [--only-experts] [--out FILE.json]

1. Times a step of one GPT with AdamW. The GPT's blocks are divided over 2 MPI ranks of this host,
   with one thread per rank. In minidl and in PyTorch, both ranks have the whole embedding and the
   whole output layer. PyTorch uses torch.distributed.tensor.parallel over gloo: ColwiseParallel and
   RowwiseParallel on the same layers. In PyTorch the rows of qkv are reordered, so that each rank
   gets q, k and v of its heads. First all losses are compared. Then PyTorch and the variants below
   are timed in turn, in the same processes. In each round every variant does one step. A ratio
   divides two times of one round. The table shows the ratio's median over the rounds.

    minidl                    ring all-reduces (the default)
    ... shared memory         all-reduces through a window, comm/shared_memory.py
    ... overlapped            all-reduces run during matrix products. Row layers work in 2 parts
    ... sequences             sequence parallelism
    one rank                  the whole model on both ranks at the same time, without messages

2. Times "minidl" and "overlapped" again, with messages slowed down to a link of 1 Gbit/s
   (minidl/comm/transport/throttled.py). On this link a core is free while a message travels.

3. Times forward and backward of an nn.MoE layer with 4 experts of width 256, divided over the
   ranks. Each token goes to one expert, and no token is dropped (experts.py). Three other things
   are timed, too. The first is the layer with all experts on each rank. The second is a dense
   feed-forward of one expert's size, which does the same products. The third is only dispatch and
   combine: two exchanges of rows in forward, and two in backward. The bytes are counted and
   compared with the formula.

Goals: a step takes at most as long as PyTorch's step, and the bytes of part 3 equal the formula.
"""

import argparse
import os
import statistics

import numpy as np
from common import (
    NO_TORCH, bar, best_ratio, device_option, faster, finish, heading, number, on_all_ranks,
    on_ranks, ratio, row, start_gloo, take_turns, threads, write_figures,
)

import minidl
from minidl import comm, nn, optim
from minidl.comm import Grid, Ledger, Throttled, all_to_all, shared_memory
from minidl.comm.transport import links_text
from minidl.nn import functional as F
from minidl.parallel.model import experts
from minidl.parallel.model.experts import expert_parallel
from minidl.parallel.model.parallelize import gpt_plan, parallelize
from minidl.plain import naive

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH = LARGE = 256, 64, 4, 4, 256
WHOLE = ("token", "head")  # layers that neither minidl nor PyTorch divides
EXPERTS = 4
WAYS = {"minidl": {}, "minidl, shared memory": {"all_reduce": shared_memory.all_reduce},
        "minidl, overlapped": {"overlap": 2}}
PEER = "PyTorch"


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="rounds of one step each")
    parser.add_argument("--rows", type=int, default=4, help="windows of 64 bytes")
    parser.add_argument("--net", default="1Gbit,50us", help="the link of part 2")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a rank in part 3")
    parser.add_argument("--only-experts", action="store_true", help="only part 3, without bars")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors; bytes are the same on a GPU")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # "torch", "experts", ...
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the worker writes this file
    return parser.parse_args()


def batch(rows):
    ids = np.random.default_rng(0).integers(0, VOCAB, (rows, CONTEXT + 1))
    return ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()


def network():
    minidl.manual_seed(0)
    return nn.GPT(*LARGE)


def ours(t, x, y, way):
    """Returns a function without arguments. It does one training step and returns the loss. way:
    options of the plan. If `way` is None, this rank has the whole model, and sends no messages."""
    model = network()
    if way is not None:
        plan = gpt_plan(**way)
        if "sequence" not in way:
            plan = {name: rule for name, rule in plan.items() if name not in WHOLE}
        parallelize(model, Grid(t, tp=t.size), plan)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        value = F.cross_entropy(model(x).reshape(-1, VOCAB), minidl.tensor(y))
        value.backward()
        optimizer.step()
        return value.item()

    return step


def theirs(t, x, y):
    """Returns a function without arguments. It does one training step in PyTorch and returns the
    loss."""
    import torch
    import torch_gpt
    from torch.distributed.tensor import parallel

    torch.set_num_threads(1)
    distributed = start_gloo(t)
    weights = {k: v.array.copy() for k, v in network().state_dict().items()}
    for name, array in weights.items():
        if ".qkv." in name:  # puts the rows of q, k and v of one rank next to each other
            rest = array.shape[1:]
            array[...] = array.reshape(3, t.size, -1, *rest).swapaxes(0, 1).reshape(array.shape)
    model = torch_gpt.make(weights, *LARGE)
    mesh = distributed.device_mesh.init_device_mesh("cpu", (t.size,))
    column, across = parallel.ColwiseParallel, parallel.RowwiseParallel
    parallel.parallelize_module(model, mesh, {
        "blocks.*.attention.qkv": column(), "blocks.*.attention.proj": across(),
        "blocks.*.feed_forward.up": column(), "blocks.*.feed_forward.down": across()})
    # There are two optimizers, because an optimizer of PyTorch rejects a list that has divided
    # tensors and whole tensors.
    optimizers = [torch.optim.AdamW(group, lr=1e-3, weight_decay=1e-2) for group in (
        [p for p in model.parameters() if hasattr(p, "placements")],
        [p for p in model.parameters() if not hasattr(p, "placements")])]
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def step():
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(model(x).view(-1, VOCAB), y)
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        return value.item()

    return step


def worker(args):
    """Runs on each rank. Times the steps of all variants in turn. Rank 0 writes {name: [seconds of
    each round]} to a file."""
    t = plain = comm.world()
    if args.worker == "throttled":
        t = Throttled(t, links_text.parse(args.net, t.size))
    x, y = batch(args.rows)
    steps = {name: ours(t, x, y, way) for name, way in WAYS.items()
             if args.worker != "throttled" or "shared" not in name}
    if args.worker != "throttled":
        steps["minidl, sequences"] = ours(t, x, y, {"sequence": True})
    steps["one rank"] = ours(t, x, y, None)
    if args.worker == "torch":
        steps[PEER] = theirs(t, x, y)
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    for name, values in losses.items():  # the losses of three steps differ only by rounding
        np.testing.assert_allclose(values, losses["one rank"], rtol=1e-4, err_msg=name)

    times = take_turns({name: on_all_ranks(plain, step) for name, step in steps.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures(times, args.measure)


def experts_worker(args):
    """Runs on each rank of part 3. Rank 0 writes a dict to a file. "times_s" has the seconds of
    each round. "sent" is the number of bytes sent in a step, and "formula" is this number by the
    formula."""
    t, counted = comm.world(), []
    minidl.manual_seed(0)
    whole = nn.MoE(WIDTH, n_experts=EXPERTS, capacity_factor=None)
    minidl.manual_seed(0)
    ledger = Ledger(t)
    divided = expert_parallel(nn.MoE(WIDTH, n_experts=EXPERTS, capacity_factor=None), ledger)
    dense = nn.FeedForward(WIDTH)
    x, g = np.random.default_rng(t.rank).normal(size=(2, args.tokens, WIDTH)).astype("f4")

    def step(layer):
        leaf = minidl.tensor(x, requires_grad=True)
        y = layer(leaf)
        y.backward(g)
        return y.array

    run = divided.ranks.run

    def counting(experts, rows, plan):
        counted.append(plan.counts)
        return run(experts, rows, plan)

    divided.ranks.run = counting
    np.testing.assert_allclose(step(divided), step(whole), rtol=1e-4, atol=1e-6)
    divided.ranks.run, sent, counts = run, ledger.bytes_sent, counted[0]
    bounds = divided.ranks.bounds
    formula = sum(experts.bytes_sent(counts, t.rank, bounds, WIDTH, x.itemsize, divided.top_k))
    out = [int(counts[t.rank, a:b].sum()) for a, b in zip(bounds, bounds[1:])]
    back = counts[:, bounds[t.rank]:bounds[t.rank + 1]].sum(axis=1).tolist()

    def exchange():  # dispatch and combine, forward and backward
        rows = x[:sum(out)]
        for _ in range(2):
            came, _ = all_to_all.all_to_all_v(t, rows, out, back)
            rows, _ = all_to_all.all_to_all_v(t, came, back, out)

    ways = {"experts on 2 ranks": lambda: step(divided), "all on each rank": lambda: step(whole),
            "dense": lambda: step(dense), "dispatch, combine": exchange}
    times = take_turns({name: on_all_ranks(t, work) for name, work in ways.items()}, args.repeats)
    all_sent = naive.all_reduce(t, np.array([sent, formula]))
    if t.rank == 0:
        figures = dict(times_s=times, sent=int(all_sent[0]), formula=int(all_sent[1]))
        write_figures(figures, args.measure)


def print_times(title, times):
    against = next(name for name in (PEER, "one rank", "dense") if name in times)
    print(f"\n{title:26}{'median ms':>10}{'min':>8}{'max':>8}{f'/ {against}':>12}{'least':>8}")
    for name, values in times.items():
        print(f"{name:26}{1e3 * statistics.median(values):>10.1f}{1e3 * min(values):>8.1f}"
              f"{1e3 * max(values):>8.1f}{ratio(values, times[against]):>12.2f}"
              f"{best_ratio(values, times[against]):>8.2f}")


def main():
    args = options()
    if args.worker:
        return experts_worker(args) if args.worker == "experts" else worker(args)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # so OpenBLAS uses its defaults
        os.environ.pop(name, None)
    print(heading())
    print(f"GPT: vocabulary, context, layers, heads, width {LARGE}, {args.rows} x {CONTEXT} bytes, "
          "one thread a rank")
    moe = on_ranks(2, __file__, "--worker", "experts", "--repeats", 3 * args.repeats, "--tokens",
                   args.tokens, **threads(1))
    print_times(f"{EXPERTS} experts, {args.tokens} tokens", moe["times_s"])
    print(f"sent by both ranks in a step: {moe['sent']:,} bytes; by the formula "
          f"{moe['formula']:,}")
    if args.only_experts:
        return finish(dict(experts=moe), [], [], args.out)
    left_out, kind = [], "torch"
    try:
        import torch
    except ImportError:
        left_out, kind = [NO_TORCH], "alone"
    else:
        print(f"PyTorch {torch.__version__} over gloo")
    times, slow = (on_ranks(2, __file__, "--worker", kind, "--repeats", args.repeats, "--rows",
                            args.rows, "--net", args.net, **threads(1))
                   for kind in (kind, "throttled"))
    print_times("2 ranks, shared memory", times)
    print_times(f"2 ranks, {args.net}", slow)
    bars, rows = report(args, times, slow)
    expert_bars, expert_rows = report_experts(moe)
    finish(dict(rows=args.rows, net=args.net, times_s=times, throttled_s=slow, experts=moe),
           bars + expert_bars, rows + expert_rows, args.out, left_out)


def report(args, times, slow):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    if PEER not in times:
        return [], []
    bars = [faster("PyTorch's tensor parallel step by minidl's, 2 ranks", times[PEER],
                   times["minidl"], 1.0)]
    gain, gain_slow = (ratio(of["minidl"], of["minidl, overlapped"]) for of in (times, slow))
    rows = [row("tensor parallelism: a GPT's step, 2 ranks through shared memory",
                "torch.distributed.tensor.parallel over gloo",
                f"{number(bars[0]['figure'])} times its speed", bars),
            row("... all-reduces that overlap the products, 2 cores", "one after the other",
                f"{number(gain)} times its speed"),
            row(f"... the same, throttled to {args.net}", "one after the other",
                f"{number(gain_slow)} times its speed")]
    return bars, rows


def report_experts(moe):
    times = moe["times_s"]
    bars = [bar("bytes of the experts' exchange / the formula",
                abs(moe["sent"] - moe["formula"]), 0, at_most=True)]
    share = ratio(times["dispatch, combine"], times["experts on 2 ranks"])
    return bars, [
        row("experts on 2 ranks: bytes of a layer's step", "the formula", "equal", bars),
        row("... forward and backward", "a dense layer of the same products",
            f"{number(ratio(times['experts on 2 ranks'], times['dense']))} times its time"),
        row("... dispatch and combine alone", "the layer",
            f"{number(100 * share)} % of its time")]


if __name__ == "__main__":
    main()
