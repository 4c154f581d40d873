"""What do SyncBatchNorm, local SGD and DiLoCo send and cost? Peers: formulas and PyTorch.

    python benchmarks/bench_large_batch.py [--repeats 3] [--net 100Mbit,1ms] [--out FILE.json]

1. SyncBatchNorm: the bytes of a layer's forward and backward on 2, 4 and 8 simulated ranks must
   equal the formula. Then a small CNN's step is timed on 2 MPI ranks. The result is the time with
   SyncBatchNorm divided by the time with batch norm.
2. Times a GPT's step on 4 MPI ranks. Messages are slowed down to a link of 100 Mbit/s and 1 ms. C
   is the time of a step that sends nothing. D is the time that data parallelism adds. A method that
   averages only every H steps sends 1/H of the bytes. So a step of this method could take C + D/H.
   The goal is 90 % of the speed-up (C + D) / (C + D/H).
3. Models the times of steps in the simulator, with D = 20 C. DiLoCo with H = 32 must be at least 8
   times as fast as data parallelism. Then a small GPT (small_gpt.py) trains for 256 steps. Data
   parallelism does the first half of the steps, and local SGD or DiLoCo the second half. The final
   loss is divided by the final loss of a run with only data parallelism. The mean of this ratio
   over 3 seeds must be at most 1.02. Local SGD has H = 8 and momentum SGD. DiLoCo has H = 32,
   AdamW, and an outer momentum of 0.5, because there are only four rounds.
4. Times a round of local SGD (H = 8 steps) on 2 ranks without a slower link. PyTorch runs the same
   round in the same processes: DDP's post_localSGD hook with PeriodicModelAverager over gloo.

Each rank has one thread.
"""

import argparse
import statistics
from functools import partial

import numpy as np
from common import (
    NO_TORCH, bar, device_option, faster, finish, heading, number, on_all_ranks, on_ranks, ratio,
    row, start_gloo, take_turns, threads, write_figures,
)
from small_gpt import VOCAB, batch_of, final_losses

import minidl
from minidl import comm, nn, optim
from minidl.comm import Ledger, Links, Throttled, simulate
from minidl.comm.transport import links_text
from minidl.nn import functional as F
from minidl.parallel import DataParallel, DiLoCo, LocalSGD, SyncBatchNorm
from minidl.parallel.data import sync_batchnorm

GPT = VOCAB, 64, 4, 4, 256  # vocabulary, context, layers, heads, width
H = {"local SGD": 8, "DiLoCo": 32, "DiLoCo, streamed": 32}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--net", default="100Mbit,1ms", help="the link of part 2")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors; bytes are the same on a GPU")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # "norm", "throttled" or "torch"
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the worker writes this file
    return parser.parse_args()


# -- 1: batch norm


def wrong_bytes(t):
    """Counts the bytes that this rank sends in forward and in backward, for layers with 1, 3 and 64
    channels. Returns how many of these six counts differ from the formula."""
    wrong = 0
    for C in (1, 3, 64):
        ledger = Ledger(t)
        norm = SyncBatchNorm(C, t=ledger)
        x = minidl.tensor(np.ones((2, C), np.float32) * t.rank, requires_grad=True)
        y = norm(x)
        forward = ledger.bytes_sent
        y.backward(np.ones((2, C), np.float32))
        got = forward, ledger.bytes_sent - forward
        wrong += sum(a != b for a, b in zip(got, sync_batchnorm.bytes_sent(C, 4, t.size, t.rank)))
    return wrong


def cnn_steps(t):
    """Returns {name: a function without arguments}. The function does one training step of a CNN
    under DataParallel. One CNN has batch norm, the other has SyncBatchNorm."""
    def make(convert):
        minidl.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                              nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                              nn.Flatten(), nn.Linear(32 * 64, 10))
        if convert:
            model = SyncBatchNorm.convert(model, t)
        model = DataParallel(model, t, broadcast_buffers=False)
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        x = np.random.default_rng(t.rank).normal(size=(64, 1, 8, 8)).astype("f4")
        y = np.arange(64) % 10

        def step():
            optimizer.zero_grad()
            F.cross_entropy(model(minidl.tensor(x)), minidl.tensor(y)).backward()
            optimizer.step()

        return step

    return {"BatchNorm": make(False), "SyncBatchNorm": make(True)}


# -- 2: a throttled GPT


def gpt_steps(t, kinds):
    """Returns {kind: (f, n)}. f() does n training steps of a GPT with the method `kind`."""
    x, y = batch_of(t.rank, 1, GPT[1])
    found = {}
    for kind in kinds:
        minidl.manual_seed(0)
        model = nn.GPT(*GPT)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        wrapped = {
            "computing": lambda m, o: m, "data parallel": lambda m, o: DataParallel(m, t),
            "local SGD": lambda m, o: LocalSGD(m, t, o, period=H["local SGD"]),
            "DiLoCo": lambda m, o: DiLoCo(m, t, o, period=H["DiLoCo"]),
            "DiLoCo, streamed": lambda m, o: DiLoCo(m, t, o, period=H["DiLoCo"], fragments=4,
                                                    delay=4)}[kind](model, optimizer)

        def steps(n, wrapped=wrapped, optimizer=optimizer):
            for _ in range(n):
                F.cross_entropy(wrapped(minidl.tensor(x)).reshape(-1, VOCAB),
                                minidl.tensor(y)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if hasattr(wrapped, "step"):
                    wrapped.step()

        n = H.get(kind, 4 if kind == "computing" else 2)
        found[kind] = partial(steps, n), n
    return found


# -- 3: modelled steps, and losses


def modelled(t, wrap, n_steps, compute_s):
    """Trains a model with 8 KB of weights in the simulator. Returns the modelled seconds of one
    step. wrap(model, t, optimizer) returns the module to train."""
    model = nn.Linear(64, 32)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, t, optimizer)
    x = np.ones((1, 64), np.float32)
    start = 0.0
    for step in range(n_steps + 2):
        if step == 2:  # step 0 also sends the order of the buckets, so it is not timed
            start = t.time()
            if hasattr(wrapped, "n_steps"):
                wrapped.n_steps = 0
        wrapped(minidl.tensor(x)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        t.compute(compute_s)
        if hasattr(wrapped, "step"):
            wrapped.step()
    return (t.time() - start) / n_steps


def dense(model, t, optimizer):
    return DataParallel(model, t, overlap=False)


def momentum(params):
    return optim.SGD(params, lr=0.1, momentum=0.9)


def adamw(params):
    return optim.AdamW(params, lr=3e-3)


def diloco(model, t, optimizer):
    return DiLoCo(model, t, optimizer, period=32)


def few_rounds(model, t, optimizer):
    """Returns a DiLoCo for four rounds. An outer momentum of 0.9 needs more rounds to build up."""
    def outer(params):
        return optim.SGD(params, lr=0.7, momentum=0.5, nesterov=True)

    return DiLoCo(model, t, optimizer, outer=outer, period=32)


def local(model, t, optimizer):
    return LocalSGD(model, t, optimizer, period=8)


N_STEPS = 256
# {name: (wrapper, optimizer, number of steps of data parallelism before the wrapper begins, name of
# the run with which the final loss is compared)}
TRAINED = {"data parallel, SGD": (dense, momentum, 0, None),
           "data parallel": (dense, adamw, 0, None),
           "local SGD": (local, momentum, N_STEPS // 2, "data parallel, SGD"),
           "DiLoCo": (few_rounds, adamw, N_STEPS // 2, "data parallel")}


def in_the_simulator():
    links = Links.uniform(1e-4, 1e-6)
    step_s = max(simulate(4, modelled, dense, 8, 0.0, links=links))
    found = {"D_s": step_s, "C_s": step_s / 20}
    for way, wrap, n_steps in (("data parallel", dense, 8), ("DiLoCo", diloco, 64)):
        found[way] = max(simulate(4, modelled, wrap, n_steps, step_s / 20, links=links))
    ways = {name: way[:3] for name, way in TRAINED.items()}
    found["losses"] = final_losses(ways, N_STEPS)
    return found


# -- 4: PyTorch's post-local SGD


def torch_round(t):
    """Returns a function without arguments. It does 8 steps of PyTorch's post-local SGD, which
    average the weights once."""
    import torch
    import torch_gpt
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    torch.set_num_threads(1)
    distributed = start_gloo(t)
    minidl.manual_seed(0)
    weights = {k: v.array.copy() for k, v in nn.GPT(*GPT).state_dict().items()}
    model = torch.nn.parallel.DistributedDataParallel(torch_gpt.make(weights, *GPT))
    alone, _ = distributed.new_subgroups(1)  # a group of one rank: the hook averages no gradients
    model.register_comm_hook(hook.PostLocalSGDState(None, alone, 0), hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=8, warmup_steps=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = map(torch.from_numpy, batch_of(t.rank, 1, GPT[1]))

    def steps():
        for _ in range(8):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x).view(-1, VOCAB), y).backward()
            optimizer.step()
            averager.average_parameters(model.parameters())

    return steps


def worker(args):
    """Runs on each rank. Times all methods in turn. Rank 0 writes {name: [seconds of a step]} to a
    file."""
    t = plain = comm.world()
    if args.worker == "throttled":
        t = Throttled(t, links_text.parse(args.net, t.size))
    if args.worker == "norm":
        contestants = {name: (step, 1) for name, step in cnn_steps(t).items()}
    else:
        contestants = gpt_steps(t, ["local SGD"] if args.worker == "torch"
                                else ["computing", "data parallel", *H])
    if args.worker == "torch":
        contestants["PyTorch"] = torch_round(plain), 8

    times = take_turns({name: on_all_ranks(plain, *it) for name, it in contestants.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures(times, args.measure)


def run(args, kind, n, repeats=None):
    return on_ranks(n, __file__, "--worker", kind, "--repeats", repeats or args.repeats, "--net",
                    args.net, **threads(1))


def main():
    args = options()
    if args.worker:
        return worker(args)
    print(heading())
    X = sum(p.numel() for p in nn.GPT(*GPT).parameters())
    figures = {"parameters": X, "net": args.net,
               "wrong_bytes": {n: sum(simulate(n, wrong_bytes)) for n in (2, 4, 8)}}
    figures["norm_s"] = run(args, "norm", 2, 4 * args.repeats)
    figures["throttled_s"] = run(args, "throttled", 4)
    figures["modelled"] = in_the_simulator()
    left_out = []
    try:
        import torch  # noqa: F401
    except ImportError:
        left_out = [NO_TORCH]
    else:
        figures["torch_s"] = run(args, "torch", 2)
    for part in ("norm_s", "throttled_s", "torch_s"):
        for name, values in figures.get(part, {}).items():
            print(f"{part:12} {name:20} {1e3 * statistics.median(values):>8.1f} ms a step")
    print("modelled, and losses:", figures["modelled"])
    finish(figures, *report(figures), args.out, left_out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    wrong = sum(figures["wrong_bytes"].values())
    bars = [bar("SyncBatchNorm: messages whose bytes differ from the formula", wrong, 0,
                at_most=True)]
    rows = [row("SyncBatchNorm: bytes of forward and backward, 2, 4 and 8 ranks",
                "(p-1)(2C+1) and 2(p-1)/p 2C numbers",
                f"{wrong} differ" if wrong else "equal, to the byte", bars)]
    norm = figures["norm_s"]
    by = ratio(norm["SyncBatchNorm"], norm["BatchNorm"])
    rows.append(row("a small CNN's step with SyncBatchNorm, two layers, 2 ranks",
                    "with batch norm", f"{number(by)} times its time"))
    times = figures["throttled_s"]
    for name, h in H.items():
        shares, speedups = [], []
        for c, both, mine in zip(times["computing"], times["data parallel"], times[name],
                                 strict=True):
            d = max(both - c, 0.0)
            speedups.append(both / mine)
            shares.append(speedups[-1] * (c + d / h) / (c + d))
        bars.append(bar(f"{name}, H = {h}: share of the possible speed-up, {figures['net']}",
                        statistics.median(shares), 0.9))
        rows.append(row(f"{name}, H = {h}: a GPT's step, 4 ranks, throttled to {figures['net']}",
                        "data parallelism",
                        f"{number(statistics.median(speedups))} times its speed, "
                        f"{100 * statistics.median(shares):.0f} % of what is possible", bars[-1:]))
    found = figures["modelled"]
    bars.append(bar("DiLoCo, H = 32, D = 20 C, modelled: times as fast",
                    found["data parallel"] / found["DiLoCo"], 8))
    rows.append(row("DiLoCo, H = 32, where messages take 20 times as long as computing (modelled)",
                    "data parallelism", f"{number(bars[-1]['figure'])} times its speed", bars[-1:]))
    losses = {way: statistics.mean(values) for way, values in found["losses"].items()}
    for way in ("local SGD", "DiLoCo"):
        bars.append(bar(f"{way}: last loss by data parallelism's, 3 seeds",
                        losses[way] / losses[TRAINED[way][3]], 1.02, at_most=True))
        rows.append(row(f"{way}: the last loss of a small GPT, 4 ranks, 3 seeds",
                        "data parallelism", f"{bars[-1]['figure']:.3f} times its loss", bars[-1:]))
    if "torch_s" in figures:
        mine, peer = figures["torch_s"]["local SGD"], figures["torch_s"]["PyTorch"]
        bars.append(faster("PyTorch's post_localSGD by minidl's local SGD, 2 ranks", peer, mine, 1))
        rows.append(row("local SGD, H = 8: a GPT's step, 2 ranks",
                        "PyTorch's post_localSGD over gloo",
                        f"{number(bars[-1]['figure'])} times its speed", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
