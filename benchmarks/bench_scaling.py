"""How do times grow with the number of ranks, and with the length of the context?

    python benchmarks/bench_scaling.py [--ranks 16 64 256 1024 4096] [--lengths 512 1024 ... 16384]
                                       [--threads 2] [--seconds 4] [--picture F.png] [--out F.json]

1. Ranks, simulated in one process without MPI. All-reduces of 4,096 floats and of 1 MiB run on a
network of 8 Gbit/s and 10 us per message. Every rank's result is checked.

    modelled   microseconds until the last rank is done, by the simulator's clock
    formula    the closed form of cost.py; modelled / formula must be 1
    wall       seconds of the simulation, including filling and checking the arrays
    *          marks the algorithm that select.choose picks by the formulas for these ranks and
               bytes; no other algorithm may be faster by the simulator's clock

Arrays of 1 MiB are left out if the arrays of all ranks together exceed 1 GiB. The next table is for
weak scaling. The planner (minidl plan) models a step of gpt2-xl, with 8 texts per rank, on nodes of
8 ranks. Efficiency is (time on one rank) / (time on n ranks). In the planner the all-reduce of the
gradients starts after backward, so the two do not overlap.

2. Context, measured in float32. Causal attention is timed forward and backward. The training step
of a GPT is timed, too (1 layer, width 64, 2 heads, vocabulary 256, one text, AdamW). First the
results and gradients of attention, and the losses of two steps of the GPT, are compared with
PyTorch's.

    minidl, torch   medians in ms; minidl and PyTorch are timed in turn
    torch/minidl    the median over the rounds; above 1, minidl is faster
    power           the p for which the time grows like context^p, from the previous length to this
                    length
    activations     MiB that forward saves for backward, at the peak, by memory.record; for torch
                    the MiB that autograd saves: each storage counts once, and parameters do not
                    count
    step            MiB of all new arrays at the peak of the step, without parameters and gradients

Neither library keeps attention's weights, a matrix of context^2 numbers for each head. So the bytes
must grow like the context. As a control, softmax(q k^T) v is also computed in plain ops, which keep
these weights. If the length doubles, the ledger must count nearly four times as many bytes for the
control.

Test: tests/benchmarks/test_scaling.py
"""

import argparse
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import (
    ONE_ROUND, ROOT, bar, device_option, faster, finish, heading, import_torch, measured, number,
    ratio, row, span, take_turns, timed, write_figures,
)

import minidl
from minidl import memory
from minidl.cli.machine import environment
from minidl.comm import cost, double_tree, halving_doubling, ring, select, simulate, tree
from minidl.comm.labels import label_of
from minidl.comm.transport import links_text
from minidl.nn import functional as F
from minidl.parallel.model import planner
from minidl.parallel.model.plan_network import Network

ALPHA, BETA = 10e-6, 1e-9  # seconds per message, seconds per byte (1 GB/s)
FORMULAS = {
    ring.all_reduce: cost.ring_all_reduce,
    halving_doubling.all_reduce: cost.halving_doubling_all_reduce,
    halving_doubling.doubling_all_reduce: cost.doubling_all_reduce,
    tree.all_reduce: cost.tree_all_reduce,
    double_tree.all_reduce: lambda n, n_bytes, alpha, beta: cost.double_tree_all_reduce(
        n, n_bytes, alpha, beta, segments=double_tree.segments(n_bytes)),
}
ARRAYS = {"4,096 floats": 4096, "1 MiB": 1 << 18}  # elements of float32
AFFORDED = 1 << 30  # arrays are left out if all ranks together need more bytes
NODE, NET = 8, "nodes={},intra=2Tbit,2us,inter=200Gbit,10us"  # for weak scaling
TEXTS = 8  # texts of a rank
LAYERS, WIDTH, HEADS = 1, 64, 2
CONTROL = 1024, 2048
OURS, TORCH = "minidl", "torch"
ATTENTION, GPT = "attention", "GPT"
MIB = 2**20


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4**k for k in range(2, 7)])
    lengths = [2**k for k in range(9, 12 if ONE_ROUND else 15)]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0,
                        help="about this long for each length, at least three rounds")
    parser.add_argument("--picture", default=str(ROOT / "out" / "bench_scaling.png"))
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "one part is simulated, and the peer of the other is PyTorch on a CPU")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the part writes this file
    return parser.parse_args()


# -- part 1: many ranks


def in_ranks(args):
    """Returns the results of the first part. The process that calls in_ranks() ends afterwards, so
    its memory is freed."""
    print(f"\n{'ranks':>5} {'array':>12}  {'all-reduce':37}{'modelled us':>12}{'formula us':>12}"
          f"{'ratio - 1':>10}{'wall s':>8}")
    found = {array: {} for array in ARRAYS}
    for array, n_elems in ARRAYS.items():
        for n in args.ranks:
            n_bytes = 4 * n_elems
            if n * n_bytes > AFFORDED and n_elems > min(ARRAYS.values()):
                print(f"{n:5} {array:>12}  left out: all ranks' arrays are "
                      f"{n * n_bytes / 2**30:.0f} GiB, and messages and scratch need more")
                continue
            # The simulator counts no time for sums, and has no shared memory.
            links = select.Figures(ALPHA, BETA, 0.0, None, None, 0.0)
            chosen = label_of(select.choose(n, n_bytes, links))
            times = {label_of(fn): all_reduce(n, n_elems, fn) for fn in FORMULAS}
            found[array][n] = {"chosen": chosen, "times": times}
            for name, (modelled, formula, wall) in times.items():
                mark = " *" * (name == chosen)
                print(f"{n:5} {array:>12}  {name + mark:37}"
                      f"{1e6 * modelled:12,.1f}{1e6 * formula:12,.1f}"
                      f"{modelled / formula - 1:10.0e}{wall:8.2f}", flush=True)
    print_messages(max(args.ranks), found["4,096 floats"])
    return {"all-reduce": found, "weak scaling": weak_scaling(args.ranks)}


def all_reduce(n, n_elems, reduce):
    """Returns (modelled seconds, seconds by formula, wall seconds) of one all-reduce of n ranks."""
    pattern = np.resize(np.arange(5, dtype=np.float32), n_elems)
    want = n * pattern + n * (n - 1) // 2  # whole numbers below 2^24 are exact in float32

    def body(t):
        x = reduce(t, pattern + np.float32(t.rank))
        assert np.array_equal(x, want), f"rank {t.rank}: {label_of(reduce)} is wrong"
        return t.time()

    start = time.perf_counter()
    modelled = max(simulate(n, body, alpha=ALPHA, beta=BETA))
    wall = time.perf_counter() - start
    return modelled, FORMULAS[reduce](n, 4 * n_elems, ALPHA, BETA).time_s, wall


def print_messages(n, found):
    """Prints the wall time of a message, for two all-reduces."""
    print()
    for fn in (ring.all_reduce, halving_doubling.all_reduce):
        n_messages = n * FORMULAS[fn](n, 4096 * 4, ALPHA, BETA).messages
        wall = found[n]["times"][label_of(fn)][2]
        print(f"{label_of(fn)}, {n:,} ranks: {n_messages:,} messages, "
              f"{1e6 * wall / n_messages:.2f} us of wall time each")


def weak_scaling(ranks):
    """Returns {ranks: {"dp": ..., "best": ..., "plan": ...}}, all modelled. "dp": the efficiency
    with only data parallelism. "best": the efficiency of the best division. "plan": the name of
    this division."""
    print(f"\nweak scaling, gpt2-xl, {TEXTS} texts a rank, modelled; {NODE} ranks a node\n"
          f"{'ranks':>5}{'dp alone':>10}{'best':>10}   division")
    alone, _ = modelled_step(1)
    found = {}
    for n in ranks:
        dp, best = modelled_step(n)
        found[n] = {"dp": alone.time_s / dp.time_s, "best": alone.time_s / best.time_s,
                    "plan": best.name}
        print(f"{n:5}{found[n]['dp']:10.1%}{found[n]['best']:10.1%}   {best.name}", flush=True)
    return found


def modelled_step(n):
    """Returns (the plan with only data parallelism, the best plan) for n ranks."""
    links = links_text.parse(NET.format(max(1, n // NODE)), n)
    task = planner.Task(n, links, 80e9, planner.MODELS["gpt2-xl"], batch=TEXTS * n)
    tried = planner.candidates(task, n, 1, 1, Network(links, n))
    dp = min((plan for plans in tried for plan in plans), key=partial(planner.rank_key, task))
    return dp, planner.plans(task)[0]


# -- part 2: long contexts


def in_context(args):
    """Returns the results of the second part. Needs the environment that `minidl run` sets."""
    import_torch().set_num_threads(args.threads)
    found = {}
    for what, make in ((ATTENTION, attention), (GPT, partial(gpt, args.threads))):
        print(f"\n{what}, {args.threads} threads\n{'context':>8}{'rounds':>8}{'minidl ms':>11}"
              f"{'torch ms':>10}{'torch/minidl':>14}{'power':>8}{'torch':>7}"
              f"{'activations':>13}{'torch':>8}{'step':>8}")
        found[what], before = {}, None
        for length in args.lengths:
            steps, same, sizes = make(length)
            f = found[what][length] = {"times": in_turns(steps, same, args), "bytes": sizes()}
            show(length, f, before)
            before = length, f
    found["control"] = {length: control_bytes(length) for length in CONTROL}
    print("\ncontrol, activations of softmax(q k^T) v: " + ", ".join(
        f"{n_bytes / MIB:.1f} MiB at {length:,}" for length, n_bytes in found["control"].items()))
    return found


def in_turns(steps, same, args):
    """Compares the results of two steps of each function in `steps`. Then times these functions in
    turn. Returns {name: [seconds of each round]}. same: as in attention()."""
    for _ in range(2):
        start = time.perf_counter()
        same(*(step() for step in steps.values()))
        took = time.perf_counter() - start
    rounds = int(np.clip(args.seconds / took, 3, 25))
    return take_turns({name: timed(step, alone=args.threads > 1) for name, step in steps.items()},
                      rounds, warm_up=0)


def show(length, found, before):
    """Prints one line of the table. before: (length, results) of the line above."""
    times, sizes = found["times"], found["bytes"]
    powers = [power(before[0], before[1]["times"][name], length, times[name]) if before else
              math.nan for name in (OURS, TORCH)]
    print(f"{length:8,}{len(times[OURS]):8}{1e3 * statistics.median(times[OURS]):11.1f}"
          f"{1e3 * statistics.median(times[TORCH]):10.1f}{ratio(times[TORCH], times[OURS]):14.2f}"
          f"{powers[0]:8.2f}{powers[1]:7.2f}{sizes['activations'] / MIB:13.2f}"
          f"{sizes[TORCH] / MIB:8.2f}{sizes['step'] / MIB:8.2f}", flush=True)


def power(short, short_s, long, long_s):
    """Returns the p for which the median time grows like context^p."""
    growth = statistics.median(long_s) / statistics.median(short_s)
    return math.log(growth) / math.log(long / short)


def attention(length):
    """Returns (steps, same, sizes). steps: {name: a function that runs attention forward and
    backward once}. same: a function that compares the results of the steps. sizes: a function that
    returns the bytes. q, k and v are parts of one array, as in a transformer."""
    import torch
    import torch_gpt

    rng = np.random.default_rng(0)
    head = WIDTH // HEADS
    x = rng.standard_normal((1, length, 3, HEADS, head)).astype(np.float32)
    gy = rng.standard_normal((1, length, HEADS, head)).astype(np.float32).swapaxes(1, 2)
    qkv = [x[:, :, i].swapaxes(1, 2) for i in range(3)]
    their_qkv, their_gy = [torch.from_numpy(a) for a in qkv], torch.from_numpy(gy)

    def ours():
        tensors = [minidl.Tensor(a, requires_grad=True) for a in qkv]
        y = F.scaled_dot_product_attention(*tensors, is_causal=True)
        y.backward(gy)
        return y.array, *(t.grad.array for t in tensors)

    def forward(*tensors):
        return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)

    def theirs():
        tensors = [t.detach().requires_grad_() for t in their_qkv]
        y = forward(*tensors)
        y.backward(their_gy)
        return y.detach().numpy(), *(t.grad.numpy() for t in tensors)

    def same(mine, others):
        for a, b in zip(mine, others, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)  # atol is for sums of 16,384 terms

    def sizes():
        tensors = [t.detach().requires_grad_() for t in their_qkv]
        return bytes_of(ours) | {TORCH: torch_gpt.saved_bytes(lambda: forward(*tensors))}

    return {OURS: ours, TORCH: theirs}, same, sizes


def gpt(n_threads, length):
    """Returns the same as attention(), for a GPT's training step."""
    from bench_train_step import Size, make_minidl, make_torch

    size = Size(LAYERS, WIDTH, HEADS, length, batch=1)
    ids = np.random.default_rng(0).integers(0, size.vocab, (1, length + 1))
    batch = ids[:, :-1].copy(), ids[:, 1:].copy()
    model, ours = make_minidl("cpu", size)
    weights = {name: value.array.copy() for name, value in model.state_dict().items()}
    theirs, saved_bytes = make_torch(weights, n_threads, "cpu", size)

    def same(mine, others):
        np.testing.assert_allclose(mine, others, rtol=1e-4)  # losses of about 5.5 in float32

    steps = {OURS: partial(ours, *batch), TORCH: partial(theirs, *batch)}
    return steps, same, lambda: bytes_of(steps[OURS], model) | {TORCH: saved_bytes(*batch)}


def bytes_of(step, model=None):
    """Returns two numbers of bytes, counted by the ledger in one step. "activations": the bytes
    saved for backward, with the inputs. "step": the bytes of all new arrays at the peak."""
    with memory.record(model) as ledger:
        result = step()
    del result
    saved = max(held["activations"] + held["inputs"] for _, held in ledger.timeline)
    made = ledger.peak_bytes - ledger.peak["parameters"] - ledger.peak["gradients"]
    return {"activations": saved, "step": made}


def control_bytes(length):
    """Returns the bytes that attention saves for backward if it keeps its weights."""
    x = np.ones((1, HEADS, length, WIDTH // HEADS), np.float32)

    def run():
        q, k, v = (minidl.Tensor(x, requires_grad=True) for _ in range(3))
        (F.softmax(q @ k.swapaxes(-1, -2), -1) @ v).sum().backward()

    return bytes_of(run)["activations"]


# -- both parts


PARTS = {"ranks": in_ranks, "context": in_context}


def main():
    args = options()
    if args.part:
        return write_figures(PARTS[args.part](args), args.measure)
    import_torch()
    print(heading(), flush=True)
    words = ["--ranks", *args.ranks, "--lengths", *args.lengths, "--threads", args.threads,
             "--seconds", args.seconds]
    figures = {part: measured(sys.executable, __file__, "--part", part, *words,
                              **environment(1, args.threads)) for part in PARTS}
    draw(figures, Path(args.picture))
    finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    of_ranks, of_context = (part(figures[name]) for name, part in
                            (("ranks", report_ranks), ("context", report_context)))
    return of_ranks[0] + of_context[0], of_ranks[1] + of_context[1]


def report_ranks(found):
    bars, rows = [], []
    for array, by_ranks in found["all-reduce"].items():
        if not by_ranks:
            continue
        ns = list(map(int, by_ranks))
        where = f"{min(ns):,} to {max(ns):,} simulated ranks" if len(ns) > 1 else f"{ns[0]:,} ranks"
        names = list(next(iter(by_ranks.values()))["times"])
        off = [bar(f"{array}, {name}: modelled / formula - 1", max(
            abs(f["times"][name][0] / f["times"][name][1] - 1) for f in by_ranks.values()), 1e-9,
            at_most=True) for name in names]
        rows.append(row(f"an all-reduce of {array} on {where}, {len(names)} algorithms: modelled "
                        "time", "its closed form in cost.py",
                        f"{max(b['figure'] for b in off):.0e} of it off at most", off))
        best = [f["times"][f["chosen"]][0] / min(modelled for modelled, *_ in f["times"].values())
                for f in by_ranks.values()]
        bars += [*off, bar(f"{array}: modelled time of the chosen / of the fastest", max(best),
                           1 + 1e-9, at_most=True)]
        chosen = " / ".join(dict.fromkeys(f["chosen"] for f in by_ranks.values()))
        rows.append(row(f"the one that is chosen there by formula: {chosen}",
                        "the fastest of them by the simulator's clock",
                        f"{number(max(best))} times its time", bars[-1:]))
    few = found["all-reduce"][min(ARRAYS, key=ARRAYS.get)]
    n = max(few, key=int)
    walls = {name: wall for name, (*_, wall) in few[n]["times"].items()}
    bars.append(bar(f"{int(n):,} simulated ranks, all {len(walls)}, wall time, s",
                    sum(walls.values()), 60, at_most=True))
    rows.append(row(f"{int(n):,} simulated ranks: wall time to simulate {' / '.join(walls)}", "",
                    " / ".join(map(number, walls.values())) + " s", bars[-1:]))
    weak = found["weak scaling"]
    rows.append(row(f"weak scaling of gpt2-xl, {TEXTS} texts a rank, on {' / '.join(weak)} ranks, "
                    "modelled: efficiency of data parallelism alone", "of the best division: "
                    + " / ".join(f"{f['best']:.0%}" for f in weak.values()),
                    " / ".join(f"{f['dp']:.0%}" for f in weak.values())))
    return bars, rows


def report_context(found):
    bars, rows = [], []
    for what, question, peer in (
        (ATTENTION, f"causal attention, forward and backward, {HEADS} heads of {WIDTH // HEADS}",
         "PyTorch's `scaled_dot_product_attention`"),
        (GPT, f"a GPT's training step, {LAYERS} layer, width {WIDTH}", "PyTorch eager"),
    ):
        by_length = {int(length): f for length, f in found[what].items()}
        lengths = sorted(by_length)
        shown = " / ".join(f"{length:,}" for length in lengths)
        times = {length: f["times"] for length, f in by_length.items()}
        speed = [faster(f"{what}, context {length:,}: torch / minidl", times[length][TORCH],
                        times[length][OURS], 1) for length in lengths]
        rows.append(row(f"{question}, context {shown}", peer,
                        " / ".join(number(b["figure"]) for b in speed) + " times its speed", speed))
        bars += speed
        if len(lengths) < 2:
            continue
        first, last = lengths[0], lengths[-1]
        ours, torch = (power(first, times[first][name], last, times[last][name])
                       for name in (OURS, TORCH))
        bars.append(bar(f"{what}: p of context^p, {first:,} to {last:,}", ours, 2, at_most=True))
        rows.append(row(f"the same: p where its time grows like context^p, {first:,} to {last:,}",
                        f"PyTorch's: {number(torch)}", number(ours), bars[-1:]))
        half = lengths[-2]
        goal = 1.025 * last / half  # at most 2.05 times the bytes for twice the length
        growth = {kind: by_length[last]["bytes"][kind] / by_length[half]["bytes"][kind]
                  for kind in ("activations", "step")}
        linear = [bar(f"{what}: bytes of {words}, {last:,} / {half:,}", growth[kind], goal,
                      at_most=True) for kind, words in (("activations", "activations"),
                                                        ("step", "all that it makes"))]
        sizes = by_length[last]["bytes"]
        rows.append(row(f"the same: the activations' bytes, and all that it makes, {last:,} / "
                        f"{half:,}", f"PyTorch saves {number(sizes[TORCH] / MIB)} MiB at {last:,}",
                        f"{span(growth.values())} times, {number(sizes['activations'] / MIB)} MiB",
                        linear))
        bars += linear
    short, long = (found["control"][key] for key in sorted(found["control"], key=int))
    bars.append(bar(f"control, weights kept: bytes, {CONTROL[1]:,} / {CONTROL[0]:,}", long / short,
                    3.5))
    rows.append(row(f"a control that keeps attention's weights: the ledger's bytes at "
                    f"{CONTROL[1]:,} / at {CONTROL[0]:,}", "4, as context^2",
                    f"{number(long / short)} times", bars[-1:]))
    return bars, rows


def draw(figures, path):
    """Draws the curves in one picture. Prints a sentence if matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed (pip install 'minidl[bench]')")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    draw_ranks(axes[0], figures["ranks"])
    draw_context(axes[1], figures["context"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"\npicture: {path}")


def draw_ranks(axes, found):
    array = min(ARRAYS, key=ARRAYS.get)
    by_ranks = found["all-reduce"][array]
    ns = list(map(int, by_ranks))
    for name in next(iter(by_ranks.values()))["times"]:
        modelled, formula, _ = zip(*(f["times"][name] for f in by_ranks.values()), strict=True)
        line, = axes[0].plot(ns, [1e6 * s for s in formula], alpha=0.6)
        axes[0].plot(ns, [1e6 * s for s in modelled], "o", color=line.get_color(), label=name)
    axes[0].set(xscale="log", yscale="log", xlabel="simulated ranks", ylabel="us, modelled",
                title=f"All-reduce of {array}: points simulated, lines by formula")
    axes[0].legend(fontsize="small")
    weak = {int(n): f for n, f in found["weak scaling"].items()}
    for kind, label in (("dp", "data parallelism alone"), ("best", "the best division")):
        axes[1].plot(list(weak), [100 * f[kind] for f in weak.values()], "o-", label=label)
    axes[1].set(xscale="log", ylim=(0, 105), xlabel="ranks", ylabel="efficiency, %, modelled",
                title=f"Weak scaling of gpt2-xl, {TEXTS} texts a rank")
    axes[1].legend(fontsize="small")
    for ax in axes:
        ax.set_xticks(ns, [f"{n:,}" for n in ns])
        ax.minorticks_off()


def draw_context(axes, found):
    for what, style in ((ATTENTION, "--"), (GPT, "-")):
        by_length = {int(length): f for length, f in found[what].items()}
        for name, color in ((OURS, "C0"), (TORCH, "C1")):
            ms = [1e3 * statistics.median(f["times"][name]) for f in by_length.values()]
            axes[0].plot(list(by_length), ms, style, marker="o", color=color,
                         label=f"{what}, {name}")
        mib = [f["bytes"]["activations"] / MIB for f in by_length.values()]
        axes[1].plot(list(by_length), mib, style, marker="o", color="C0", label=f"{what}, minidl")
    control = {int(length): n_bytes / MIB for length, n_bytes in found["control"].items()}
    axes[1].plot(list(control), list(control.values()), "s:", color="C3",
                 label="attention, weights kept")
    axes[0].set(ylabel="ms, measured", title="Time: forward and backward, and a step")
    axes[1].set(ylabel="MiB of activations", title="Saved for backward, by the ledger")
    ticks = list(map(int, found[GPT]))
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel="context")
        ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
        ax.minorticks_off()
        ax.legend(fontsize="small")


if __name__ == "__main__":
    main()
