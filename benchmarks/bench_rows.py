"""What do the row kernels cost on this CPU, beside NumPy and PyTorch?

    python benchmarks/bench_rows.py [--threads 1 2] [--repeats 5] [--quick] [--out FILE]

Layer norm, softmax and cross entropy, forward and backward, float32, each making its own output:

    kernel    the fused kernel, launched as the framework does
    chain     the formula as one writes it in NumPy, an array for every step
    out=      the same with every step into one buffer
    torch     PyTorch's own op; its backward alone, and for cross entropy forward and backward

Bound: memory. A copy of the same array moves 8 bytes an element; "bound/kernel" is the time of a
copy of the bytes that the op must move (BYTES) over the kernel's. It may pass 1 on two threads,
because a copy uses one. Peers take turns; figures are medians, in ns an element, ratios over 1 are
in the kernel's favour and medians over the rounds; bars compare the least times. NumPy uses one
thread for all of this.
"""

import argparse
import statistics

import numpy as np
import torch
from common import bar, best_ratio, machine, print_bars, ratio, take_turns, timed, write_json

import minidl.cuda as cuda
from minidl.fused import cross_entropy, layer_norm, softmax

SHAPES = [(4096, 256), (1024, 1024), (16384, 1024), (2048, 8192)]  # twice 1 M, twice 16 M
# an element: what is read once, and written
BYTES = {"layer_norm": 8, "layer_norm backward": 12, "softmax": 8, "softmax backward": 12,
         "cross_entropy": 4, "cross_entropy both ways": 12}


def layer_norm_peers(x, gy):
    w, b = (np.random.default_rng(i).standard_normal(x.shape[1], np.float32) for i in (2, 3))
    _, mean, rstd = layer_norm.forward(x, w, b, 1e-5)
    tx, tg, tw, tb, tm, tr = map(torch.from_numpy, (x, gy, w, b, mean[:, None], rstd[:, None]))

    def chain():
        d = x - x.mean(axis=1, keepdims=True)
        return d / np.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-5) * w + b

    def in_place():
        d = np.subtract(x, x.mean(axis=1, keepdims=True))
        d /= np.sqrt(np.einsum("ij,ij->i", d, d)[:, None] / x.shape[1] + 1e-5)
        d *= w
        d += b
        return d

    def chain_backward():
        xhat, g = (x - mean[:, None]) * rstd[:, None], gy * w
        gx = g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True)
        return gx * rstd[:, None], (gy * xhat).sum(axis=0), gy.sum(axis=0)

    def in_place_backward():
        xhat, g = x - mean[:, None], gy * w
        xhat *= rstd[:, None]
        gw, gb = np.einsum("ij,ij->j", gy, xhat), np.ones(len(x), x.dtype) @ gy
        xhat *= np.einsum("ij,ij->i", g, xhat)[:, None] / x.shape[1]
        g -= g.mean(axis=1, keepdims=True)
        g -= xhat
        g *= rstd[:, None]
        return g, gw, gb

    native = torch.ops.aten.native_layer_norm_backward
    yield "layer_norm", {
        "kernel": lambda: layer_norm.forward(x, w, b, 1e-5),
        "chain": chain,
        "out=": in_place,
        "torch": lambda: torch.native_layer_norm(tx, x.shape[1:], tw, tb, 1e-5),
    }
    yield "layer_norm backward", {
        "kernel": lambda: layer_norm.backward(gy, x, w, mean, rstd),
        "chain": chain_backward,
        "out=": in_place_backward,
        "torch": lambda: native(tg, tx, x.shape[1:], tm, tr, tw, tb, [True] * 3),
    }


def softmax_peers(x, gy):
    y = softmax.forward(x)
    tx, tg, ty = map(torch.from_numpy, (x, gy, y))

    def in_place():
        e = x - x.max(axis=1, keepdims=True)
        np.exp(e, out=e)
        e /= e.sum(axis=1, keepdims=True)
        return e

    def in_place_backward():
        g = gy - np.einsum("ij,ij->i", gy, y)[:, None]
        g *= y
        return g

    yield "softmax", {
        "kernel": lambda: softmax.forward(x),
        "chain": lambda: softmax.reference(x),
        "out=": in_place,
        "torch": lambda: torch.softmax(tx, 1),
    }
    yield "softmax backward", {
        "kernel": lambda: softmax.backward(gy, y),
        "chain": lambda: softmax.reference_backward(gy, y),
        "out=": in_place_backward,
        "torch": lambda: torch._softmax_backward_data(tg, ty, 1, torch.float32),
    }


def cross_entropy_peers(x, gy):
    target = np.random.default_rng(4).integers(0, x.shape[1], len(x))
    rows, g = np.arange(len(x)), np.full(len(x), 1 / len(x), x.dtype)
    tx, tt = torch.from_numpy(x).requires_grad_(), torch.from_numpy(target)

    def kernel_both():
        loss, lse = cross_entropy.forward(x, target)
        return loss.mean(), cross_entropy.backward(g, x, lse, target)

    def chain_both():
        loss, lse = cross_entropy.reference(x, target)
        return loss.mean(), cross_entropy.reference_backward(g, x, lse, target)

    def in_place(backward=False):
        e = x - x.max(axis=1, keepdims=True)
        picked = e[rows, target]
        np.exp(e, out=e)
        total = e.sum(axis=1)
        loss = (np.log(total) - picked).mean()
        if backward:
            e *= (g / total)[:, None]
            e[rows, target] -= g
        return loss, e

    def torch_both():
        tx.grad = None
        torch.nn.functional.cross_entropy(tx, tt).backward()

    yield "cross_entropy", {
        "kernel": lambda: cross_entropy.forward(x, target)[0].mean(),
        "chain": lambda: cross_entropy.reference(x, target)[0].mean(),
        "out=": in_place,
        "torch": lambda: torch.nn.functional.cross_entropy(tx, tt),
    }
    yield "cross_entropy both ways", {
        "kernel": kernel_both,
        "chain": chain_both,
        "out=": lambda: in_place(backward=True),
        "torch": torch_both,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the small shapes alone")
    parser.add_argument("--out", help="JSON file (default: benchmarks/results/rows.json)")
    args = parser.parse_args()
    print(machine())
    print(f"PyTorch {torch.__version__}; ns an element, median of {3 * args.repeats} rounds at 1 M "
          f"elements, {args.repeats} above, 1 warm-up")
    print(f"{'op':<24}{'rows x cols':>14}{'threads':>8}{'kernel':>8}{'chain':>8}{'out=':>8}"
          f"{'torch':>8}{'copy':>8} | {'chain':>6}{'out=':>6}{'torch':>6}{'bound':>6}  / kernel")
    figures = []
    for rows, cols in SHAPES[:2] if args.quick else SHAPES:
        rng = np.random.default_rng(0)
        x, gy = (rng.standard_normal((rows, cols), np.float32) for _ in range(2))
        repeats = args.repeats * (3 if x.size < 1 << 22 else 1)  # short times vary more
        for peers in (layer_norm_peers, softmax_peers, cross_entropy_peers):
            for op, contestants in peers(x, gy):
                for threads in args.threads:
                    cuda.set_threads(threads)
                    torch.set_num_threads(threads)
                    turns = {name: timed(f) for name, f in contestants.items()}
                    times = take_turns(turns | {"copy": timed(x.copy)}, repeats)
                    figures.append(row(op, rows, cols, threads, times))
    bars = list(bars_of(figures))
    print_bars(bars)
    result = {"machine": machine(), "rows": figures, "bars": bars}
    write_json(result, args.out, "rows.json")


def row(op, rows, cols, threads, times):
    """One line of the table, printed, and as a dictionary."""
    ns = {name: statistics.median(t) / rows / cols * 1e9 for name, t in times.items()}
    ratios = {name: ratio(times[name], times["kernel"]) for name in ("chain", "out=", "torch")}
    ratios["bound"] = ratio([BYTES[op] / 8 * t for t in times["copy"]], times["kernel"])
    columns = "".join(f"{ns[name]:>8.2f}" for name in ("kernel", "chain", "out=", "torch", "copy"))
    print(f"{op:<24}{f'{rows} x {cols}':>14}{threads:>8}{columns} | "
          + "".join(f"{r:>6.2f}" for r in ratios.values()), flush=True)
    best = {name: best_ratio(times[name], times["kernel"]) for name in ("chain", "torch")}
    return {"op": op, "rows": rows, "cols": cols, "threads": threads, "ns": ns, "ratio": ratios,
            "best": best}


def bars_of(figures):
    """Each op at each size: 4 times NumPy's chain, as fast as PyTorch, in its worst shape and
    number of threads."""
    for op in BYTES:
        for size in dict.fromkeys(f["rows"] * f["cols"] for f in figures):
            mine = [f for f in figures if f["op"] == op and f["rows"] * f["cols"] == size]
            for peer, wanted in (("chain", 4), ("torch", 1)):
                yield bar(f"{op}, {size >> 20} M: {peer} / kernel",
                          min(f["best"][peer] for f in mine), wanted)


if __name__ == "__main__":
    main()
