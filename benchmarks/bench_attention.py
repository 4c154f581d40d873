"""What does attention cost on this CPU, compared with PyTorch and the plain op?

    python benchmarks/bench_attention.py [--threads 1 2] [--repeats 15] [--quick] [--device cuda]
                                         [--out FILE.json]

Measures forward, and forward with backward, with and without a causal mask, in float32. q, k and v
are the three thirds of one projection, as in a transformer:

    kernel   kernels/cpu/attention_tile.cu      torch   scaled_dot_product_attention, same strides
    plain    minidl/ops/attention.py: NumPy, block by block. NumPy's BLAS computes the products
    bound    only the matrix products, by NumPy's BLAS: 2 in forward, 5 in backward. With a causal
             mask the bound is half of this time

GFLOP/s count only the operations of the products. For B texts of L tokens and H heads of width E,
these are 4 B H L^2 E in forward and 10 B H L^2 E in backward. The four functions are timed in turn.
Times are medians in ms. A ratio divides two times of one round. The table shows the ratio's median
over the rounds.
"""

import argparse
import math
import statistics
import sys

from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, left_out_on, measured, put,
    ratio, row, span, take_turns, threads, timed, torch_runs_on, write_figures,
)

SHAPES = [(8, 8, 256, 32), (1, 12, 1024, 64)]


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="5 repeats, one thread")
    device_option(parser)
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the child writes this file
    args = parser.parse_args()
    if args.quick:
        args.threads, args.repeats = [1], 5
    if args.device != "cpu":
        args.threads = [1]  # on a GPU, CPU threads do not matter
    return args


def contestants(shape, is_causal, with_backward, device="cpu", n_threads=1):
    """Returns {name: a function that runs attention and returns its time in s}. First compares the
    results of all these functions."""
    import numpy as np

    import minidl
    from minidl.nn import functional as F

    n_batch, n_heads, length, width = shape
    rng = np.random.default_rng(0)
    host = rng.standard_normal((n_batch, length, 3, n_heads, width)).astype(np.float32)
    x = put(host, device)
    qkv = [x[:, :, i].swapaxes(1, 2) for i in range(3)]
    go = put(rng.standard_normal((n_batch, length, n_heads, width)).astype(np.float32), device)
    go = go.swapaxes(1, 2)

    def ours(kernels):
        def run():
            tensors = [minidl.Tensor(a, requires_grad=with_backward) for a in qkv]
            with minidl.use_fused(kernels):
                y = F.scaled_dot_product_attention(*tensors, is_causal=is_causal)
                if with_backward:
                    y.backward(go)
            return y.array, *(t.grad.array for t in tensors if with_backward)

        return run

    def theirs():
        tensors = [t.detach().requires_grad_(with_backward) for t in their_qkv]
        y = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        if with_backward:
            y.backward(their_go)
        return y.detach(), *(t.grad for t in tensors if with_backward)

    peers = {"kernel": ours(True)}
    if torch_runs_on(device):
        import torch

        their_x = torch.from_numpy(host).to(device)
        their_qkv = [their_x[:, :, i].swapaxes(1, 2) for i in range(3)]
        their_go = torch.from_numpy(put(go, "cpu")).to(device)
        peers["torch"] = theirs
    peers["plain"] = ours(False)
    xp = minidl.backend.xp_of([x])
    q, k, v = (xp.ascontiguousarray(a) for a in qkv)
    p = xp.ones((n_batch, n_heads, length, length), np.float32)

    def products():
        for _ in range(2 if with_backward else 1):  # backward computes the scores again
            xp.matmul(q, k.swapaxes(-1, -2))
        xp.matmul(p, v)
        if with_backward:
            xp.matmul(go, v.swapaxes(-1, -2))
            xp.matmul(p, k)
            xp.matmul(p.swapaxes(-1, -2), q)
            xp.matmul(p.swapaxes(-1, -2), go)

    for other in list(peers.values())[1:]:
        for a, b in zip(peers["kernel"](), other(), strict=True):
            a, b = put(a, "cpu"), b.cpu().numpy() if hasattr(b, "cpu") else put(b, "cpu")
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)  # atol is for sums of 1024 terms
    peers["bound"] = products
    return {name: timed(f, device=device, alone=n_threads > 1) for name, f in peers.items()}


def one_thread_count(n_threads, repeats, device):
    if torch_runs_on(device):
        import_torch().set_num_threads(n_threads)
    print(f"\n{n_threads} threads, ms (GFLOP/s)\n"
          f"{'(B, H, L, E)':18}{'':20}{'kernel':>16}{'torch':>10}{'plain':>10}{'bound':>10}"
          f" | {'torch':>6}{'plain':>6}{'bound':>6}  / kernel")
    result = {}
    for shape in SHAPES:
        for is_causal in (False, True):
            for with_backward in (False, True):
                times = take_turns(contestants(shape, is_causal, with_backward, device, n_threads),
                                   repeats)
                ms = {name: 1e3 * statistics.median(t) for name, t in times.items()}
                n_ops = math.prod(shape) * shape[2] * (14 if with_backward else 4) / (1 + is_causal)
                what = "causal " * is_causal + "forward" + "+backward" * with_backward
                bound = [t / (1 + is_causal) for t in times["bound"]]
                ms["bound"] /= 1 + is_causal
                peers = {name: times[name] for name in ("torch", "plain") if name in times}
                peers["bound"] = bound
                ratios = {name: ratio(t, times["kernel"]) for name, t in peers.items()}
                nan = math.nan
                print(f"{shape!s:18}{what:24}{ms['kernel']:>6.1f} "
                      f"({n_ops / ms['kernel'] / 1e6:3.0f}){ms.get('torch', nan):>10.1f}"
                      f"{ms['plain']:>10.1f}{ms['bound']:>10.1f} | "
                      f"{ratios.get('torch', nan):>6.2f}{ratios['plain']:>6.2f}"
                      f"{ratios['bound']:>6.2f}", flush=True)
                best = best_ratio(times["torch"], times["kernel"]) if "torch" in times else None
                result[f"{shape} {what}"] = {"ms": ms, "ratio": ratios, "best": best}
    return result


def main():
    args = options()
    if args.measure:  # BLAS reads its number of threads only once, so this is a new process
        found = one_thread_count(args.threads[0], args.repeats, args.device)
        return write_figures(found, args.measure)
    if args.device == "cpu":
        import_torch()
    print(heading(args.device), flush=True)
    figures = {n: measured(sys.executable, __file__, "--threads", n, "--repeats", args.repeats,
                           "--device", args.device, **threads(n)) for n in args.threads}
    judged = report(figures) if args.device == "cpu" else ([], [])  # the goals are for a CPU only
    finish(figures, *judged, args.out, left_out_on(args.device))


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    settings = [(n, what, f) for n, found in figures.items() for what, f in found.items()]
    bars = [bar(f"{what}, {n} threads: torch / kernel", f["ratio"]["torch"], 1, best=f["best"])
            for n, what, f in settings]
    shapes = " and ".join(map(str, SHAPES))
    return bars, [row(f"attention, {shapes}: {len(settings)} settings",
                      "PyTorch's `scaled_dot_product_attention`",
                      f"{span([b['figure'] for b in bars])} times its speed", bars)]


if __name__ == "__main__":
    main()
