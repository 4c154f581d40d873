"""What do the row kernels cost on this CPU? Peers: NumPy and PyTorch.

    python benchmarks/bench_rows.py [--threads 1 2] [--repeats 5] [--quick] [--device cuda]
                                    [--out FILE]

Measures layer norm, softmax and cross entropy, forward and backward, in float32. Each op allocates
its output. PyTorch's backward is timed without its forward. Only for cross entropy, forward and
backward are timed together. op_table.py explains the columns.
"""

import numpy as np
from common import finish, heading, import_torch, left_out_on, put
from op_table import bars_of, compare, options, print_head, rows_of, theirs

from minidl.ops import cross_entropy, layer_norm, softmax

torch = import_torch()
SHAPES = [(4096, 256), (1024, 1024), (16384, 1024), (2048, 8192)]  # 1 M, 1 M, 16 M, 16 M elements
# The bytes that an op moves for each element, if it reads each input once and writes its output
# once.
BYTES = {"layer norm": 8, "layer norm backward": 12, "softmax": 8, "softmax backward": 12,
         "cross entropy": 4, "cross entropy both ways": 12}


def layer_norm_peers(x, gy, device):
    w, b = (np.random.default_rng(i).standard_normal(x.shape[1], np.float32) for i in (2, 3))
    _, mean, rstd = layer_norm.by_kernel(x, w, b, 1e-5)
    tx, tg, tw, tb, tm, tr = theirs(device, x, gy, w, b, mean[:, None], rstd[:, None])
    on = [put(a, device) for a in (x, w, b, gy, mean, rstd)]

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
    yield "layer norm", {
        "kernel": lambda: layer_norm.by_kernel(*on[:3], 1e-5),
        "chain": chain,
        "out=": in_place,
        "torch": lambda: torch.native_layer_norm(tx, x.shape[1:], tw, tb, 1e-5),
    }
    yield "layer norm backward", {
        "kernel": lambda: layer_norm.by_kernel_backward(on[3], on[0], on[1], *on[4:]),
        "chain": chain_backward,
        "out=": in_place_backward,
        "torch": lambda: native(tg, tx, x.shape[1:], tm, tr, tw, tb, [True] * 3),
    }


def softmax_peers(x, gy, device):
    y = softmax.by_kernel(x)
    tx, tg, ty = theirs(device, x, gy, y)
    on_x, on_gy, on_y = (put(a, device) for a in (x, gy, y))

    def chain(x):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

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
        "kernel": lambda: softmax.by_kernel(on_x),
        "chain": lambda: chain(x),
        "out=": in_place,
        "torch": lambda: torch.softmax(tx, 1),
    }
    yield "softmax backward", {
        "kernel": lambda: softmax.by_kernel_backward(on_gy, on_y),
        "chain": lambda: y * (gy - (gy * y).sum(axis=1, keepdims=True)),
        "out=": in_place_backward,
        "torch": lambda: torch._softmax_backward_data(tg, ty, 1, torch.float32),
    }


def cross_entropy_peers(x, gy, device):
    target = np.random.default_rng(4).integers(0, x.shape[1], len(x))
    rows, g = np.arange(len(x)), np.full(len(x), 1 / len(x), x.dtype)
    tx, tt = theirs(device, x, target)
    tx = tx.detach().requires_grad_()
    on_x, on_target, on_g = (put(a, device) for a in (x, target, g))

    def kernel_both():
        loss, lse = cross_entropy.by_kernel(on_x, on_target)
        return loss.mean(), cross_entropy.by_kernel_backward(on_g, on_x, lse, on_target)

    def chain_both():
        loss, lse = cross_entropy.by_numpy(x, target)
        return loss.mean(), cross_entropy.by_numpy_backward(g, x, lse, target)

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

    yield "cross entropy", {
        "kernel": lambda: cross_entropy.by_kernel(on_x, on_target)[0].mean(),
        "chain": lambda: cross_entropy.by_numpy(x, target)[0].mean(),
        "out=": in_place,
        "torch": lambda: torch.nn.functional.cross_entropy(tx, tt),
    }
    yield "cross entropy both ways", {
        "kernel": kernel_both,
        "chain": chain_both,
        "out=": lambda: in_place(backward=True),
        "torch": torch_both,
    }


def main():
    args = options(__doc__)
    print(f"{heading(args.device)}, PyTorch {torch.__version__}")
    print_head(args)
    figures = []
    for shape in SHAPES[:2] if args.quick else SHAPES:
        rng = np.random.default_rng(0)
        x, gy = (rng.standard_normal(shape, np.float32) for _ in range(2))
        for peers in (layer_norm_peers, softmax_peers, cross_entropy_peers):
            for op, contestants in peers(x, gy, args.device):
                contestants["copy"] = put(x, args.device).copy
                figures += compare(op, shape, contestants, BYTES[op], args)
    judged = report(figures) if args.device == "cpu" else ([], [])  # the goals are for a CPU only
    finish(figures, *judged, args.out, left_out_on(args.device))


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars = bars_of(figures, dict.fromkeys(BYTES, 4))
    rows = rows_of(figures, bars, {f"{op}, 1 and 16 million elements": [op] for op in BYTES})
    return sum(bars.values(), []), list(rows)


if __name__ == "__main__":
    main()
