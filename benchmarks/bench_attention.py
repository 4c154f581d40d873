"""What does attention cost on this CPU, beside PyTorch and the plain op?

    python benchmarks/bench_attention.py [--threads 1 2] [--repeats 15] [--quick] [--out FILE.json]

Forward, and forward with backward, causal and not, float32; q, k, v are the three thirds of one
projection, as a transformer has them:

    kernel   kernels/attention_tile.cu      torch   scaled_dot_product_attention, same strides
    plain    minidl/ops/attention.py: blocks of NumPy, products by its BLAS
    bound    the matrix products alone, by NumPy's BLAS: 2 forward, 5 backward, half where causal

The products are 4 B H L^2 E operations forward and 10 backward, which the GFLOP/s count.
Peers take turns; figures are medians in ms, ratios are medians over the rounds.
"""

import argparse
import math
import statistics
import sys

from common import (
    bar, best_ratio, finish, heading, import_torch, measured, ratio, row, span, take_turns, threads,
    timed, write_figures,
)

SHAPES = [(8, 8, 256, 32), (1, 12, 1024, 64)]


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="5 repeats, one thread")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the file of one number of threads
    args = parser.parse_args()
    if args.quick:
        args.threads, args.repeats = [1], 5
    return args


def contestants(shape, is_causal, with_backward):
    """{name: function returning seconds}; results are compared first."""
    import numpy as np
    import torch

    import minidl
    from minidl.nn import functional as F

    n_batch, n_heads, length, width = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_batch, length, 3, n_heads, width)).astype(np.float32)
    qkv = [x[:, :, i].swapaxes(1, 2) for i in range(3)]
    go = rng.standard_normal((n_batch, length, n_heads, width)).astype(np.float32).swapaxes(1, 2)

    def ours(kernels):
        def run():
            tensors = [minidl.Tensor(a, requires_grad=with_backward) for a in qkv]
            with minidl.use_fused(kernels):
                y = F.scaled_dot_product_attention(*tensors, is_causal=is_causal)
                if with_backward:
                    y.backward(go)
            return y.numpy(), *(t.grad for t in tensors if with_backward)

        return run

    def theirs():
        tensors = [torch.from_numpy(a).requires_grad_(with_backward) for a in qkv]
        y = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        if with_backward:
            y.backward(torch.from_numpy(go))
        return y.detach().numpy(), *(t.grad.numpy() for t in tensors if with_backward)

    q, k, v = (np.ascontiguousarray(a) for a in qkv)
    p = np.ones((n_batch, n_heads, length, length), np.float32)

    def products():
        for _ in range(2 if with_backward else 1):  # the scores are made again in backward
            np.matmul(q, k.swapaxes(-1, -2))
        np.matmul(p, v)
        if with_backward:
            np.matmul(go, v.swapaxes(-1, -2))
            np.matmul(p, k)
            np.matmul(p.swapaxes(-1, -2), q)
            np.matmul(p.swapaxes(-1, -2), go)

    peers = {"kernel": ours(True), "torch": theirs, "plain": ours(False)}
    for a, b in zip(peers["kernel"](), theirs(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)  # float32, sums of 1024
    return {name: timed(f) for name, f in (peers | {"bound": products}).items()}


def one_thread_count(n_threads, repeats):
    import_torch().set_num_threads(n_threads)
    print(f"\n{n_threads} threads, ms (GFLOP/s)\n"
          f"{'(B, H, L, E)':18}{'':20}{'kernel':>16}{'torch':>10}{'plain':>10}{'bound':>10}"
          f" | {'torch':>6}{'plain':>6}{'bound':>6}  / kernel")
    result = {}
    for shape in SHAPES:
        for is_causal in (False, True):
            for with_backward in (False, True):
                times = take_turns(contestants(shape, is_causal, with_backward), repeats)
                ms = {name: 1e3 * statistics.median(t) for name, t in times.items()}
                n_ops = math.prod(shape) * shape[2] * (14 if with_backward else 4) / (1 + is_causal)
                what = "causal " * is_causal + "forward" + "+backward" * with_backward
                bound = [t / (1 + is_causal) for t in times["bound"]]
                ms["bound"] /= 1 + is_causal
                peers = {"torch": times["torch"], "plain": times["plain"], "bound": bound}
                ratios = {name: ratio(t, times["kernel"]) for name, t in peers.items()}
                print(f"{shape!s:18}{what:24}{ms['kernel']:>6.1f} "
                      f"({n_ops / ms['kernel'] / 1e6:3.0f}){ms['torch']:>10.1f}{ms['plain']:>10.1f}"
                      f"{ms['bound']:>10.1f} | {ratios['torch']:>6.2f}{ratios['plain']:>6.2f}"
                      f"{ratios['bound']:>6.2f}", flush=True)
                result[f"{shape} {what}"] = {
                    "ms": ms, "ratio": ratios, "best": best_ratio(times["torch"], times["kernel"])}
    return result


def main():
    args = options()
    if args.measure:  # NumPy's BLAS takes its threads when it is loaded
        return write_figures(one_thread_count(args.threads[0], args.repeats), args.measure)
    import_torch()
    print(heading(), flush=True)
    figures = {n: measured(sys.executable, __file__, "--threads", n, "--repeats", args.repeats,
                           **threads(n)) for n in args.threads}
    finish(figures, *report(figures), args.out)


def report(figures):
    """(bars, rows) of the figures."""
    settings = [(n, what, f) for n, found in figures.items() for what, f in found.items()]
    bars = [bar(f"{what}, {n} threads: torch / kernel", f["ratio"]["torch"], 1, best=f["best"])
            for n, what, f in settings]
    shapes = " and ".join(map(str, SHAPES))
    return bars, [row(f"attention, {shapes}: {len(settings)} settings",
                      "PyTorch's `scaled_dot_product_attention`",
                      f"{span([b['figure'] for b in bars])} times its speed", bars)]


if __name__ == "__main__":
    main()
