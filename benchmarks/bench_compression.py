"""How much time does gradient compression save, what does it cost, and how fast is PyTorch?

    python benchmarks/bench_compression.py [--repeats 5] [--net 100Mbit,1ms] [--steps 256] [--out F]

1. Finds the largest 0.1 % of 25 million elements. Three functions are timed in turn:
   parallel/data/topk_mask.py, NumPy's argpartition of the magnitudes, and torch.topk.
2. Times a step of bench_train_step.py's GPT on 4 MPI ranks, with 8 texts of 256 bytes per rank. The
   messages are slowed down to a link of 100 Mbit/s. C is the time of a step without communication.
   D is the time that the dense ring adds. A method that sends a share s of the dense bytes could
   take C + D s. The goal is 90 % of the speed-up (C + D) / (C + D s).
3. Simulates the communication of a step of this GPT. The times are modelled, without noise, and C
   is chosen so that D = 20 C.
4. Times a step on 2 ranks without a slower link. minidl's steps and PyTorch's steps over gloo are
   timed in turn, in the same processes. PyTorch uses the hooks fp16_compress_hook, and PowerSGD
   with matrices of the same rank. In minidl and in PyTorch, the first two steps of PowerSGD are
   dense. Later steps give the same results in minidl and in PyTorch if they begin with the same Q
   (tests/parallel/data/test_powersgd.py).
5. Trains a small GPT with each method, and divides the final loss by the final loss of dense
   training. The GPT learns the standard library's text with AdamW, on 4 simulated ranks, for three
   seeds. DGC is compared with a dense run of its own. Both use SGD, a smaller GPT and four times as
   many steps. At a sparsity of 99 % DGC sends an element only every 100 steps on average, and at
   99.9 % only every 1,000 steps.

Each rank has one thread.
"""

import argparse
import statistics
from functools import partial

import numpy as np
from common import (
    NO_TORCH, bar, device_option, faster, finish, heading, number, on_all_ranks, on_ranks, row,
    start_gloo, take_turns, threads, timed, write_figures,
)
from small_gpt import VOCAB, batch_of, final_losses, step_of

import minidl
from minidl import comm, nn, optim
from minidl.comm import Throttled, codec, simulate
from minidl.comm.transport import links_text
from minidl.parallel import DGC, Compressed, DataParallel, ErrorFeedback, PowerSGD
from minidl.parallel.data import topk_mask
from minidl.parallel.data.dgc import WARM_UP

LARGE, ROWS = (VOCAB, 256, 4, 8, 256), 8  # shape and batch of bench_train_step.py
ONE_LAYER = VOCAB, 16, 1, 2, 32  # vocabulary, context, layers, heads, width
METHODS = {
    "fp16": lambda: ErrorFeedback(codec.FP16),
    "int8": lambda: ErrorFeedback(codec.INT8),
    "DGC 99.9 %": lambda: DGC(momentum=0.9),
    "PowerSGD rank 4": lambda: PowerSGD(rank=4),
}
AS_PYTORCH = {"fp16": METHODS["fp16"],
              "PowerSGD rank 4": lambda: PowerSGD(rank=4, start_step=2, side="rows")}
MODELLED = {"int8": 2.0, "DGC 99.9 %": 3.0, "PowerSGD rank 4": 3.0}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of one step each")
    parser.add_argument("--net", default="100Mbit,1ms", help="the link of part 2")
    parser.add_argument("--steps", type=int, default=256,
                        help="training steps of part 5; 0 leaves it out")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors; bytes are the same on a GPU")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # "throttled" or "torch"
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the worker writes this file
    return parser.parse_args()


# -- 1: top-k


def topk_times(repeats, n=25_000_000, k=25_000):
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    contestants = {
        "minidl": timed(lambda: topk_mask.top_k(x, k)),
        "NumPy": timed(lambda: np.argpartition(np.abs(x), n - k)[n - k:]),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(1)
        there = torch.from_numpy(x)
        contestants["PyTorch"] = timed(lambda: torch.topk(there.abs(), k, sorted=False))
    index, _ = topk_mask.top_k(x, k)
    assert set(index) == set(np.argpartition(np.abs(x), n - k)[n - k:])
    return take_turns(contestants, repeats)


# -- 2 to 4: steps


def wrapped(t, name, shape=LARGE, methods=METHODS):
    """Returns the GPT, wrapped for the method `name`. With "alone" the ranks do not communicate."""
    minidl.manual_seed(0)
    net = nn.GPT(*shape)
    if name == "alone":
        return net
    return DataParallel(net, t) if name == "dense" else Compressed(net, t, methods[name]())


def stepper(model, x, y):
    return step_of(model, optim.SGD(model.parameters(), lr=0.01), x, y)


def theirs(t, x, y):
    """Returns {name: a function without arguments}, one function for each hook of PyTorch. The
    function does one training step."""
    import torch
    import torch_gpt
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    torch.set_num_threads(1)
    distributed = start_gloo(t)
    minidl.manual_seed(0)
    weights = {k: v.array.copy() for k, v in nn.GPT(*LARGE).state_dict().items()}
    state = powerSGD_hook.PowerSGDState(distributed.new_group(), matrix_approximation_rank=4,
                                        start_powerSGD_iter=2)

    def hooked(hook_state, hook):
        # One bucket. With two buckets, two threads could start PowerSGD's collectives in
        # a different order on each rank, and gloo would abort.
        model = torch.nn.parallel.DistributedDataParallel(
            torch_gpt.make(weights, *LARGE), bucket_cap_mb=1000,
            process_group=distributed.new_group())
        model.register_comm_hook(hook_state, hook)
        return torch_gpt.step_of(model, torch.optim.SGD(model.parameters(), lr=0.01), x, y)

    return {"PyTorch fp16": hooked(distributed.group.WORLD, default_hooks.fp16_compress_hook),
            "PyTorch PowerSGD": hooked(state, powerSGD_hook.powerSGD_hook)}


def worker(args):
    """Runs on each rank. Times all methods in turn. Rank 0 writes the seconds and bytes to a
    file."""
    t = plain = comm.world()
    if args.worker == "throttled":
        t = Throttled(t, links_text.parse(args.net, t.size))
        names = ["alone", "dense", *METHODS]
    else:
        names = list(AS_PYTORCH)
    x, y = batch_of(t.rank, ROWS, LARGE[1])
    methods = AS_PYTORCH if args.worker == "torch" else METHODS
    models = {name: wrapped(t, name, methods=methods) for name in names}
    steps = {name: stepper(model, x, y) for name, model in models.items()}
    if args.worker == "torch":
        steps |= theirs(plain, x, y)
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    if args.worker == "torch":
        for peer, name in (("PyTorch fp16", "fp16"), ("PyTorch PowerSGD", "PowerSGD rank 4")):
            np.testing.assert_allclose(losses[peer], losses[name], rtol=1e-3, err_msg=name)
    n_bytes = {name: model.bytes_sent() for name, model in models.items() if name != "alone"}

    times = take_turns({name: on_all_ranks(plain, step) for name, step in steps.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures({"seconds": times, "bytes": n_bytes}, args.measure)


def run(args, kind, n):
    return on_ranks(n, __file__, "--worker", kind, "--repeats", args.repeats, "--net", args.net,
                    **threads(1))


def modelled():
    """Returns {name: modelled seconds of a step's communication}, for 4 ranks and a link of
    100 Mbit/s and 1 ms."""
    def body(t, name):
        x, y = batch_of(t.rank, 1, LARGE[1])
        step = stepper(wrapped(t, name), x, y)
        step()  # the first step also sends the order of the buckets
        start = t.time()
        step()
        return t.time() - start

    return {name: max(simulate(4, body, name, alpha=1e-3, beta=8e-8))
            for name in ["dense", *MODELLED]}


# -- 5: losses


def ways(n_steps):
    """Returns {name: (wrap, make_optimizer)}, the argument `ways` of small_gpt.final_losses."""
    def by(name):
        return lambda net, t, optimizer: Compressed(net, t, METHODS[name]())

    def power(net, t, optimizer):  # the first steps are dense; PyTorch does 1,000 dense steps
        return Compressed(net, t, PowerSGD(rank=4, start_step=n_steps // 4))

    def dense(net, t, optimizer):
        return DataParallel(net, t)

    # With lr=3e-3 the final losses of three dense runs differ by 17 %. For a goal of 2 % this is
    # too much.
    adamw = partial(optim.AdamW, lr=1e-3)
    found = {"dense": (dense, adamw)}
    found |= {name: (by(name), adamw) for name in ("fp16", "int8")}
    return found | {"PowerSGD rank 4": (power, adamw)}


def dgc_ways(n_steps):
    """Returns the same as `ways`, for DGC. The learning rate 0.2 is the best of 0.1, 0.2 and 0.4
    for the dense run. The runs are short, so DGC needs a long warm-up (docs/compression.md)."""
    def dense(net, t, optimizer):
        return DataParallel(net, t)

    def dgc(sparsity, warm_up, share):  # share: the fraction of the steps that is warm-up
        stage = int(n_steps * share / len(warm_up))
        return lambda net, t, optimizer: Compressed(
            net, t, DGC(momentum=0.9, sparsity=sparsity, warm_up=warm_up, stage_steps=stage))

    sgd = partial(optim.SGD, lr=0.2)
    return {"dense, SGD": (dense, partial(sgd, momentum=0.9)),
            "DGC 99 %, SGD": (dgc(0.99, WARM_UP[:3], 0.25), sgd),
            "DGC 99.9 %, SGD": (dgc(0.999, WARM_UP, 0.6), sgd)}


def main():
    args = options()
    if args.worker:
        return worker(args)
    print(heading())
    figures, left_out = {"topk_s": topk_times(args.repeats), "net": args.net}, []
    figures["throttled"] = run(args, "throttled", 4)
    print("\nmodelled seconds of communication:", figures.setdefault("modelled_s", modelled()))
    try:
        import torch  # noqa: F401
    except ImportError:
        left_out = [NO_TORCH]
    else:
        figures["torch"] = run(args, "torch", 2)
    figures["losses"] = {}
    if args.steps:
        print(f"\nfinal losses of {args.steps} steps, three seeds")
        figures["losses"] = final_losses(ways(args.steps), args.steps)
        print(f"of DGC's {4 * args.steps} steps")
        figures["losses"] |= final_losses(dgc_ways(4 * args.steps), 4 * args.steps, shape=ONE_LAYER)
    else:
        left_out.append("final losses (--steps 0)")
    finish(figures, *report(figures), args.out, left_out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md. Prints the tables."""
    bars, rows, topk = [], [], figures["topk_s"]
    for peer, wanted in (("NumPy", 10), ("PyTorch", 3)):
        if peer in topk:
            bars.append(faster(f"top 0.1 % of 25 million: {peer} by minidl", topk[peer],
                               topk["minidl"], wanted))
            name = {"NumPy": "argpartition of the magnitudes", "PyTorch": "torch.topk"}[peer]
            rows.append(row("the largest 0.1 % of 25 million elements", name,
                            f"{number(bars[-1]['figure'])} times its speed", bars[-1:]))
    seconds, n_bytes = figures["throttled"]["seconds"], figures["throttled"]["bytes"]
    C = statistics.median(seconds["alone"])
    D = statistics.median(d - c for d, c in zip(seconds["dense"], seconds["alone"], strict=True))
    print(f"\n4 ranks, {figures['net']}: C = {1e3 * C:.0f} ms, D = {1e3 * D:.0f} ms\n{'':20}"
          f"{'bytes':>12}{'of dense':>10}{'ms':>8}{'speed-up':>10}{'possible':>10}")
    for name in METHODS:
        share = n_bytes[name] / n_bytes["dense"]
        got = statistics.median(d / s for d, s in zip(seconds["dense"], seconds[name], strict=True))
        possible = (C + D) / (C + D * share)
        print(f"{name:20}{n_bytes[name]:>12,}{share:>10.4f}"
              f"{1e3 * statistics.median(seconds[name]):>8.0f}{got:>10.2f}{possible:>10.2f}")
        bars.append(bar(f"{name}: of the possible speed-up, 4 ranks, {figures['net']}",
                        got / possible, 0.9))
        rows.append(row(f"{name}: a GPT's step, 4 ranks, {figures['net']}",
                        "(C + D) / (C + D bytes / dense bytes)",
                        f"{number(got)} of {number(possible)} times dense's speed", bars[-1:]))
    dense = figures["modelled_s"]["dense"]
    for name, wanted in MODELLED.items():
        got = (dense / 20 + dense) / (dense / 20 + figures["modelled_s"][name])
        bars.append(bar(f"{name}: modelled, D = 20 C: times dense's speed", got, wanted))
        rows.append(row(f"{name}: modelled, communication 20 times the computation, 4 ranks",
                        "the dense ring", f"{number(got)} times its speed", bars[-1:]))
    for peer, name in (("PyTorch fp16", "fp16"), ("PyTorch PowerSGD", "PowerSGD rank 4")):
        if "torch" in figures:
            times = figures["torch"]["seconds"]
            bars.append(faster(f"{peer} by minidl's, 2 ranks", times[peer], times[name], 1.0))
            rows.append(row(f"{name}: a GPT's step, 2 ranks through shared memory",
                            f"{peer}'s hook over gloo",
                            f"{number(bars[-1]['figure'])} times its speed", bars[-1:]))
    losses = figures["losses"]
    for name, values in losses.items():
        if not name.startswith("dense"):
            base = losses["dense, SGD" if name.endswith("SGD") else "dense"]
            by = statistics.mean(values) / statistics.mean(base)
            bars.append(bar(f"{name}: final loss by dense's, mean of three seeds", by, 1.02,
                            at_most=True))
            rows.append(row(f"{name}: final loss of a small GPT, three seeds", "dense",
                            f"{by:.3f} times its loss", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
