"""What do the elementwise and optimizer kernels cost on this CPU? Peers: NumPy and PyTorch.

    python benchmarks/bench_elementwise.py [--threads 1 2] [--repeats 5] [--quick] [--device cuda]
                                           [--out FILE]

Measures GELU, AdamW, SGD, dropout, the check for inf and nan, the norm and the gradient of an
embedding, in float32. PyTorch's AdamW and SGD are the fused forms. GELU and dropout allocate their
output, as in training. Optimizers work in place. Each op is compared with a copy. The copy
allocates its output if the op allocates its output. op_table.py explains the columns.
"""

import math

import numpy as np
from common import finish, heading, import_torch, left_out_on, put
from op_table import bars_of, compare, options, print_head, rows_of, theirs

from minidl.backend import overwrite
from minidl.cuda import grad_norm, unscale_check
from minidl.ops import dropout, embedding, gelu
from minidl.ops.normal import cdf_and_pdf
from minidl.optim import adam, sgd

torch = import_torch()
SIZES = [1 << 20, 1 << 24]
COLS = 1024  # columns of the matrices
VOCABULARY = 8192  # rows of the embedding's table
# The bytes that an op moves for each element, if it reads each input once and writes its output
# once. Ops that are not in this table move 8 bytes for each element.
BYTES = {"gelu (tanh) backward": 12, "gelu (normal) backward": 12, "adamw": 28,
         "sgd with momentum": 20, "finite check": 4, "norm": 4, "embedding gradient": 12}
IN_PLACE = ("adamw", "sgd with momentum", "finite check", "norm")
QUESTIONS = {
    "GELU by a tanh, forward and backward, 1 and 16 million elements":
        ["gelu (tanh)", "gelu (tanh) backward"],
    "GELU by the normal distribution": ["gelu (normal)"],
    "AdamW, one array, 1 and 16 million elements": ["adamw"],
    "the gradient of an embedding": ["embedding gradient"],
}
GOALS = dict.fromkeys(sum(QUESTIONS.values(), []), 4)  # at least 4 times as fast as NumPy's chain
K, C = math.sqrt(2 / math.pi), 0.044715


def arrays(n, count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n // COLS, COLS), np.float32) for _ in range(count)]


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(K * (x + C * x * x * x)))


def gelu_tanh_backward(gy, x):
    t = np.tanh(K * (x + C * x * x * x))
    return gy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * K * (1 + 3 * C * x * x))


def gelu_tanh_in_place(x):
    u = x * x
    u *= C * K
    u += K
    u *= x
    np.tanh(u, out=u)
    u += 1
    u *= x
    u *= 0.5
    return u


def gelu_tanh_backward_in_place(gy, x):
    square = x * x
    t = square * (C * K)
    t += K
    t *= x
    np.tanh(t, out=t)
    square *= 3 * C * K
    square += K
    square *= x
    slope = t * t
    np.subtract(1, slope, out=slope)
    slope *= square
    slope += t
    slope += 1
    slope *= 0.5
    slope *= gy
    return slope


def gelu_normal_backward(gy, x):
    cdf, pdf = cdf_and_pdf(np, x)
    return gy * (cdf + x * pdf)


def gelu_peers(n, device):
    x, gy = arrays(n, 2)
    tx, tg = theirs(device, x, gy)
    on_x, on_gy = put(x, device), put(gy, device)
    forward, backward = torch.nn.functional.gelu, torch.ops.aten.gelu_backward

    yield "gelu (tanh)", {
        "kernel": lambda: gelu.by_kernel(on_x, "tanh"),
        "chain": lambda: gelu_tanh(x),
        "out=": lambda: gelu_tanh_in_place(x),
        "torch": lambda: forward(tx, approximate="tanh"),
    }
    yield "gelu (tanh) backward", {
        "kernel": lambda: gelu.by_kernel_backward(on_x, "tanh", on_gy),
        "chain": lambda: gelu_tanh_backward(gy, x),
        "out=": lambda: gelu_tanh_backward_in_place(gy, x),
        "torch": lambda: backward(tg, tx, approximate="tanh"),
    }
    yield "gelu (normal)", {
        "kernel": lambda: gelu.by_kernel(on_x, "none"),
        "chain": lambda: x * cdf_and_pdf(np, x)[0],
        "torch": lambda: forward(tx),
    }
    yield "gelu (normal) backward", {
        "kernel": lambda: gelu.by_kernel_backward(on_x, "none", on_gy),
        "chain": lambda: gelu_normal_backward(gy, x),
        "torch": lambda: backward(tg, tx, approximate="none"),
    }


def adamw_chain(w, g, m, v, t, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, decay=0.01):
    """Computes AdamW's formula with a new array for each operation."""
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    step = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    return (1 - lr * decay) * w - lr * step, m, v


def adamw_in_place(w, g, m, v, t, work, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, decay=0.01):
    """Updates one parameter like the NumPy form in minidl/optim/adam.py."""
    w *= 1 - lr * decay
    np.multiply(g, 1 - b1, out=work)
    m *= b1
    m += work
    np.multiply(g, g, out=work)
    work *= 1 - b2
    v *= b2
    v += work
    np.sqrt(v, out=work)
    work /= math.sqrt(1 - b2**t)
    work += eps
    np.divide(m, work, out=work)
    work *= lr / (1 - b1**t)
    w -= work


def optimizer_peers(n, device):
    g, work = arrays(n, 2)
    w, m, v = arrays(n, 3, seed=1)
    np.abs(v, out=v)
    tw, tg = theirs(device, w.copy(), g)
    tw = tw.detach().requires_grad_()
    tw.grad = tg
    on_w, on_g, on_m, on_v = (put(a, device) for a in (w, g, m, v))
    torch_adamw, torch_sgd = (
        make([tw], lr=1e-3, fused=True, **options)
        for make, options in ((torch.optim.AdamW, {}), (torch.optim.SGD, dict(momentum=0.9)))
    )

    def sgd_chain():
        new_v = 0.9 * v + (g + 0.01 * w)
        return w - 1e-3 * new_v, new_v

    def sgd_in_place():
        np.multiply(w, 0.01, out=work)
        np.add(work, g, out=work)  # g + decay w
        np.multiply(v, 0.9, out=v)
        np.add(v, work, out=v)
        np.multiply(v, 1e-3, out=work)
        np.subtract(w, work, out=w)

    yield "adamw", {
        "kernel": lambda: adam.by_kernel([on_w], [on_g], [on_m], [on_v], [9]),
        "chain": lambda: adamw_chain(w, g, m, v, 9),
        "out=": lambda: adamw_in_place(w, g, m, v, 9, work),
        "torch": torch_adamw.step,
    }
    yield "sgd with momentum", {
        "kernel": lambda: sgd.by_kernel([on_w], [on_g], [on_v], [False], lr=1e-3, momentum=0.9,
                                  weight_decay=0.01),
        "chain": sgd_chain,
        "out=": sgd_in_place,
        "torch": torch_sgd.step,
    }


def other_peers(n, device):
    (x,) = arrays(n, 1)
    index, state = np.random.default_rng(5).integers(0, VOCABULARY, len(x)), (0, 0, 0)
    tx, torch_index = theirs(device, x, index)
    on_x, on_index = put(x, device), put(index, device)

    def add_at():
        out = np.zeros((VOCABULARY, COLS), np.float32)
        np.add.at(out, index, x)
        return out

    yield "embedding gradient", {
        "kernel": lambda: embedding.by_kernel(on_index, on_x, VOCABULARY),
        "chain": add_at,
        "torch": lambda: torch.ops.aten.embedding_dense_backward(tx, torch_index, VOCABULARY, -1,
                                                                 False),
    }
    yield "dropout", {
        "kernel": lambda: dropout.by_kernel(on_x, 0.1, state),
        "chain": lambda: dropout.by_numpy(x, 0.1, state),
        "torch": lambda: torch.nn.functional.dropout(tx, 0.1),
    }
    yield "finite check", {
        "kernel": lambda: unscale_check.count_bad([on_x]),
        "chain": lambda: np.isfinite(x).all(),
        "torch": lambda: torch.isfinite(tx).all(),
    }
    yield "norm", {
        "kernel": lambda: grad_norm.two_norm([on_x]),
        "chain": lambda: math.sqrt((x * x).sum()),
        "out=": lambda: math.sqrt(x.reshape(-1) @ x.reshape(-1)),
        "torch": lambda: torch.linalg.vector_norm(tx).item(),
    }


def main():
    args = options(__doc__)
    print(f"{heading(args.device)}, PyTorch {torch.__version__}")
    print_head(args)
    figures = []
    for n in SIZES[:1] if args.quick else SIZES:
        x, out = (put(a, args.device) for a in arrays(n, 2))
        copies = {True: lambda x=x, out=out: overwrite(out, x), False: x.copy}
        for peers in (gelu_peers, optimizer_peers, other_peers):
            for op, contestants in peers(n, args.device):
                contestants["copy"] = copies[op in IN_PLACE]
                figures += compare(op, x.shape, contestants, BYTES.get(op, 8), args)
    judged = report(figures) if args.device == "cpu" else ([], [])  # the goals are for a CPU only
    finish(figures, *judged, args.out, left_out_on(args.device))


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars = bars_of(figures, GOALS)
    return sum(bars.values(), []), list(rows_of(figures, bars, QUESTIONS))


if __name__ == "__main__":
    main()
