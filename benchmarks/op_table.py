"""A table of ops and their peers, for bench_elementwise.py and bench_rows.py.

    kernel    the fused kernel, launched as the framework does
    chain     the formula in NumPy, with a new array for every step
    out=      the same formula, with every step written into one buffer
    torch     PyTorch's op
    copy      NumPy's copy of an array of the same size

The kernel and its peers are timed in turn. Times are medians in ns per element. A ratio is (peer's
time / kernel's time). If it is above 1, the kernel is faster. "bound" is the time to copy the bytes
that the op must move. Its ratio may exceed 1 on two threads, because NumPy's copy uses one thread.
On a GPU (--device cuda) chain and out= are left out, and the GPU makes the copy. There the ratio of
"bound" is the fraction of the GPU's bandwidth that a kernel reaches.
"""

import argparse
import statistics

from common import (
    bar, best_ratio, device_option, ratio, row, span, take_turns, timed, torch_runs_on,
)

import minidl.cuda as cuda

PEERS = {"chain": "NumPy's chain", "torch": "PyTorch"}
TIMES, RATIOS = ("kernel", "chain", "out=", "torch", "copy"), ("chain", "out=", "torch", "bound")


def options(doc):
    """Returns the options of bench_elementwise.py and bench_rows.py. doc: the benchmark's
    docstring."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5, help="above 1 M elements; else 3 times")
    parser.add_argument("--quick", action="store_true", help="only the smaller sizes")
    device_option(parser)
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args()
    if args.device != "cpu":
        args.threads = [1]  # on a GPU, CPU threads do not matter
    return args


def theirs(device, *arrays):
    """Returns PyTorch tensors of these NumPy arrays. On a CPU the tensors share the arrays' memory.
    If PyTorch cannot use the device, the tensors are on the CPU, and `compare` leaves PyTorch
    out."""
    import torch

    return [torch.from_numpy(a).to(device if torch_runs_on(device) else "cpu") for a in arrays]


def print_head(args):
    print(f"ns an element: medians of {3 * args.repeats} rounds at 1 M elements, {args.repeats} "
          "above, 1 to warm up")
    print(f"{'op':<27}{'shape':>14}{'threads':>8}", *(f"{name:>7}" for name in TIMES), " |",
          *(f"{name:>5}" for name in RATIOS), " / kernel")


def compare(op, shape, contestants, n_bytes, args):
    """Measures an op on an array of this shape for each number of threads. Prints and yields the
    results. n_bytes: the number of bytes that the op reads and writes for each element."""
    n = shape[0] * shape[1]
    if args.device != "cpu":
        peers = {"kernel", "copy", *["torch"] * torch_runs_on(args.device)}
        contestants = {name: f for name, f in contestants.items() if name in peers}
    repeats = args.repeats * (3 if n < 1 << 22 else 1)  # the times of small arrays vary more
    for n_threads in args.threads:
        cuda.set_threads(n_threads)
        if torch_runs_on("cpu"):
            import torch

            torch.set_num_threads(n_threads)
        times = take_turns({name: timed(f, device=args.device, alone=n_threads > 1)
                            for name, f in contestants.items()}, repeats)
        ns = {name: statistics.median(t) / n * 1e9 for name, t in times.items()}
        # a copy reads 4 bytes and writes 4 bytes for each element
        times["bound"] = [n_bytes / 8 * t for t in times["copy"]]
        ratios = {k: ratio(times[k], times["kernel"]) for k in RATIOS if k in times}
        best = {k: best_ratio(times[k], times["kernel"]) for k in PEERS if k in times}
        print(f"{op:<27}{f'{shape[0]} x {shape[1]}':>14}{n_threads:>8}",
              *(f"{ns[k]:>7.2f}" if k in ns else f"{'-':>7}" for k in TIMES), " |",
              *(f"{ratios[k]:>5.2f}" if k in ratios else f"{'-':>5}" for k in RATIOS), flush=True)
        yield dict(op=op, shape=shape, elements=n, threads=n_threads, ns=ns, ratio=ratios,
                   best=best)


def bars_of(figures, goals):
    """Returns {op: [bars]}. At each size an op must be goals[op] times as fast as NumPy's chain,
    and as fast as PyTorch. For each size, the bar uses the lowest ratio of all shapes and numbers
    of threads."""
    return {op: [bar(f"{op}, {n >> 20} M: {peer} / kernel",
                     min(f["ratio"][peer] for f in mine), wanted,
                     best=min(f["best"][peer] for f in mine))
                 for n in dict.fromkeys(f["elements"] for f in figures)
                 if (mine := [f for f in figures if f["op"] == op and f["elements"] == n])
                 for peer, wanted in (("chain", chain), ("torch", 1))]
            for op, chain in goals.items()}


def rows_of(figures, bars, questions):
    """Yields a row for each question and peer. A row covers all sizes, shapes and numbers of
    threads. questions: {question: the ops that it is about}."""
    for question, ops in questions.items():
        for peer, name in PEERS.items():
            about = [b for op in ops for b in bars[op] if f": {peer} /" in b["what"]]
            speed = span([f["ratio"][peer] for f in figures if f["op"] in ops])
            yield row(question, name, f"{speed} times its speed", about)
