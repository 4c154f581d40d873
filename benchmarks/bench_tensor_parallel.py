"""What does tensor parallelism cost on 2 ranks, beside PyTorch's, and what does overlap give?

    python benchmarks/bench_tensor_parallel.py [--repeats 15] [--rows 4] [--net 1Gbit,50us]
        [--out FILE.json]

1. A step of one GPT with AdamW, its blocks divided over 2 MPI ranks of this host, one thread a
   rank: embedding and output layer are whole on both, in ours and in theirs
   (torch.distributed.tensor.parallel over gloo: ColwiseParallel and RowwiseParallel on the same
   layers, the rows of its qkv put in the order that gives each rank q, k and v of its heads). All
   take turns in the same processes; a ratio is the median over the rounds. First all are checked to
   have the same losses.

    minidl                    ring all-reduces (the default)
    ... shared memory         all-reduces through a window, comm/shared_memory.py
    ... overlapped            row layers in 2 parts, column layers' sums beside their gradients
    ... sequences             sequence parallelism
    one rank                  the whole model, at the same time on both ranks: no message

2. Ring and overlapped again, their messages slowed down to a link of 1 Gbit/s
   (minidl/comm/transport/throttled.py): there a core is free while a message travels.

Bar: at most PyTorch's time.
"""

import argparse
import os
import statistics

import numpy as np
from common import (
    NO_TORCH, best_ratio, device_option, faster, finish, heading, number, on_all_ranks, on_ranks,
    ratio, row, start_gloo, take_turns, threads, write_figures,
)

import minidl
from minidl import comm, nn, optim
from minidl.comm import links_text, shared_memory
from minidl.comm.grid import Grid
from minidl.comm.throttled import Throttled
from minidl.nn import functional as F
from minidl.parallel.model.parallelize import gpt_plan, parallelize

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH = LARGE = 256, 64, 4, 4, 256
WHOLE = ("token", "head")  # of theirs, too
WAYS = {"minidl": {}, "minidl, shared memory": {"all_reduce": shared_memory.all_reduce},
        "minidl, overlapped": {"overlap": 2}}
PEER = "PyTorch"


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="rounds of one step each")
    parser.add_argument("--rows", type=int, default=4, help="windows of 64 bytes")
    parser.add_argument("--net", default="1Gbit,50us", help="the link of part 2")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors; bytes are the same on a GPU")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # "torch", "alone", "throttled"
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # its file
    return parser.parse_args()


def batch(rows):
    ids = np.random.default_rng(0).integers(0, VOCAB, (rows, CONTEXT + 1))
    return ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()


def network():
    minidl.manual_seed(0)
    return nn.GPT(*LARGE)


def ours(t, x, y, way):
    """A function that takes one step and returns its loss; way: options of the plan, or None."""
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
    """The step of PyTorch's."""
    import torch
    import torch_gpt
    from torch.distributed.tensor import parallel

    torch.set_num_threads(1)
    distributed = start_gloo(t)
    weights = {k: v.copy() for k, v in network().state_dict().items()}
    for name, array in weights.items():
        if ".qkv." in name:  # (3, ranks, a rank's rows): its q, k and v are to be neighbours
            rest = array.shape[1:]
            array[...] = array.reshape(3, t.size, -1, *rest).swapaxes(0, 1).reshape(array.shape)
    model = torch_gpt.make(weights, *LARGE)
    mesh = distributed.device_mesh.init_device_mesh("cpu", (t.size,))
    column, across = parallel.ColwiseParallel, parallel.RowwiseParallel
    parallel.parallelize_module(model, mesh, {
        "blocks.*.attention.qkv": column(), "blocks.*.attention.proj": across(),
        "blocks.*.feed_forward.up": column(), "blocks.*.feed_forward.down": across()})
    # an optimizer for each kind: a list of tensors of both is refused
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
    """One rank: all contestants take turns; rank 0 writes {name: seconds}."""
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
    for name, values in losses.items():  # float32: three steps of the same formulas
        np.testing.assert_allclose(values, losses["one rank"], rtol=1e-4, err_msg=name)

    times = take_turns({name: on_all_ranks(plain, step) for name, step in steps.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures(times, args.measure)
    if args.worker == "torch":
        from torch import distributed
        distributed.destroy_process_group()


def print_times(title, times):
    against = PEER if PEER in times else "one rank"
    print(f"\n{title:26}{'median ms':>10}{'min':>8}{'max':>8}{f'/ {against}':>12}{'least':>8}")
    for name, values in times.items():
        print(f"{name:26}{1e3 * statistics.median(values):>10.1f}{1e3 * min(values):>8.1f}"
              f"{1e3 * max(values):>8.1f}{ratio(values, times[against]):>12.2f}"
              f"{best_ratio(values, times[against]):>8.2f}")


def main():
    args = options()
    if args.worker:
        return worker(args)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # who sets them tries something else
        os.environ.pop(name, None)
    print(heading())
    print(f"GPT: vocabulary, context, layers, heads, width {LARGE}, {args.rows} x {CONTEXT} bytes, "
          "one thread a rank")
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
    finish(dict(rows=args.rows, net=args.net, times_s=times, throttled_s=slow), bars, rows,
           args.out, left_out)


def report(args, times, slow):
    """(bars, rows) of the figures."""
    if PEER not in times:
        return [], []
    bars = [faster("PyTorch's tensor parallel step by minidl's, 2 ranks", times[PEER],
                   times["minidl"], 1.0)]
    gain, gain_slow = (ratio(of["minidl"], of["minidl, overlapped"]) for of in (times, slow))
    rows = [row("tensor parallelism: a GPT's step, 2 ranks through shared memory",
                "torch.distributed.tensor.parallel over gloo",
                f"{number(bars[0]['figure'])} times its speed", bars),
            row("... all-reduces beside the products, 2 cores", "one after the other",
                f"{number(gain)} times its speed"),
            row(f"... the same, throttled to {args.net}", "one after the other",
                f"{number(gain_slow)} times its speed")]
    return bars, rows


if __name__ == "__main__":
    main()
