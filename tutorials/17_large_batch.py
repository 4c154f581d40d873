"""17  Large batches: what they save, and what they need.    60 minutes, needs: 06

Batch size changes the gradient's noise; and statistics of a small local batch are noisy too.

    mpirun -n 4 python tutorials/17_large_batch.py
    minidl run -n 4 tutorials/17_large_batch.py         the same
    python tutorials/17_large_batch.py --sim 4          picture: out/17_large_batch.png

1. Batch norm on p ranks normalises b samples, not p b: the mean of a channel of variance sigma^2 is
off by sigma/sqrt(b). Synchronised, ranks exchange (mean, M2 = sum (x - mean)^2, n) and merge them
(Chan's formula, exercise 17a). Sent per rank and layer: (p-1)(2C+1) numbers forward, an all-gather;
a ring all-reduce of 2C backward.

2. A gradient of b samples is the true one and noise, E |g_b|^2 = |G|^2 + tr(Sigma)/b. Data
parallelism has two sizes of batch in hand, the rank's b and all p b; two equations, two unknowns.
B_noise = tr(Sigma)/|G|^2 says how large a batch pays: a step along g_B, at the best rate, saves

    |G|^2 / (1 + B_noise/B)   of the most that it could   =>   steps(B) = S_min (1 + B_crit/B)

3. So with k times the batch the rate grows, by k at first (scaled_rate, warmed_up). The layer whose
gradient is longest beside its weights is the first that diverges. LARS and LAMB (exercise 17b) set
each layer's step to a share of that layer's own length: |step| = lr * trust * |w|.

Papers: Goyal et al. 2017 (arXiv 1706.02677); You et al. 2017 and 2019 (1708.03888, 1904.00962);
McCandlish et al. 2018 (1812.06162); Chan, Golub and LeVeque 1983.
Exercises: `minidl exercise 17` writes work/17_large_batch.py with the marked regions empty;
`minidl check 17` grades it.
"""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm.observe.ledger import Ledger
from minidl.course.out import BLUE, GREY, ORANGE, line_at
from minidl.course.tutorial import Table, gather, host, launch, picture, progress, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import DataParallel, NoiseScale
from minidl.parallel.data import sync_batchnorm


def merge(means, m2s, counts):
    """(mean, M2) of all samples, (C,) each, from those of p shares.

    means, m2s   (p, C) float32: of share k the mean of each channel, and sum (x - mean)^2
    counts       (p,) how many samples share k has; 0 is possible, then its mean and M2 are 0"""
    # >>> exercise 17a: merge the statistics of shares
    # mean = sum n_k mean_k / n. A sample's distance to the new mean is its distance to its own
    # share's mean and that one's to the new: M2 = sum (M2_k + n_k (mean_k - mean)^2).
    # Values may be large and their spread small: never subtract squares of means.
    n = np.asarray(counts, np.float64)[:, None]
    mean = (n * means).sum(axis=0) / n.sum()
    return mean, (m2s + n * (means - mean) ** 2).sum(axis=0)
    # <<<


def lamb(w, g, m, v, t, lr, b1, b2, eps, decay):
    """(w, m, v) after step t = 1, 2, ... of LAMB, new arrays; w one layer's weights."""
    # >>> exercise 17b: LAMB
    # Adam's m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2, both divided by 1 - b^t for use;
    # r = m^ / (sqrt(v^) + eps) + decay w. The step is lr |w| / |r| along r; where |w| or |r| is 0,
    # lr along r.
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w
    length, slope = np.linalg.norm(w), np.linalg.norm(r)
    ratio = length / slope if length > 0 and slope > 0 else 1.0
    return w - lr * ratio * r, m, v
    # <<<


# -- 1. batch norm over all ranks


def norms(t, table, args):
    """SyncBatchNorm beside batch norm on the whole batch; bytes; the noise of a local mean."""
    C, b = 8, args.batch
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(t.size * b, C)) * 3 + 5).astype(np.float32)
    mine, gradient = slice(t.rank * b, t.rank * b + b), draw.normal(size=x.shape).astype("f4")
    ledger = Ledger(t)
    sync, alone = nn.SyncBatchNorm(C, t=ledger), nn.BatchNorm1d(C)
    outputs = []
    for norm, rows in ((sync, mine), (alone, slice(None))):
        put(args, norm)
        x_in = put(args, minidl.tensor(x[rows])).requires_grad_()
        y = norm(x_in)
        y.backward(put(args, minidl.tensor(gradient[rows])))
        outputs.append((host(y), x_in.grad if args.device == "cpu" else x_in.grad.get()))
    for name, got, whole in zip(("output", "gradient"), outputs[0], outputs[1], strict=True):
        apart = float(abs(got - whole[mine]).max())  # float32 sums in another order
        table.row(f"SyncBN's {name}, unlike batch norm's of p b", apart, 0, "abs<1e-5")
    forward, backward = sync_batchnorm.bytes_sent(C, 4, t.size, t.rank)
    for way, theory in (("forward", forward), ("backward", backward)):
        sent = ledger.count(label=f"sync_batch_norm.{way}").bytes_sent
        table.row(f"SyncBN's bytes, {way}", sent, theory, "exact")
    shares = x.reshape(t.size, b, C)
    centred = shares - shares.mean(1, keepdims=True)
    mean, m2 = merge(shares.mean(1), (centred**2).sum(1), np.full(t.size, b))
    apart = float(abs(m2 / len(x) - x.astype("f8").var(0)).max())
    table.row("17a: merged variance, unlike that of all", apart, 0, "abs<1e-4")
    far = (1e4 + 0.01 * draw.normal(size=(4 * b, 1))).astype(np.float32)
    naive = float(((far**2).mean(0) - far.mean(0) ** 2)[0])
    table.row("variance 1e-4 at 1e4 by E[x^2] - E[x]^2, float32", naive)
    means = 5 + 3 * draw.normal(size=(4000, b, 1)).mean(1)
    table.row("variance of the mean of b samples: sigma^2/b", float(means.var()), 9 / b, "rel<0.1")
    return means[:, 0], 5 + 3 * draw.normal(size=(4000, t.size * b)).mean(1)


# -- 2. the noise scale


def digits():
    images, labels = datasets.digits()[0][:]
    return np.asarray(images, np.float32).reshape(-1, 64), np.asarray(labels)


def start(seed=0):
    minidl.manual_seed(seed)  # the same weights on every rank
    return nn.Linear(64, 10)


def exact_noise_scale(model, x, y):
    """tr(Sigma) / |G|^2 over single samples: the gradient of one is (p - onehot) times (x, 1)."""
    p = np.asarray(F.softmax(model(minidl.tensor(x)), -1).data, np.float64)
    p[np.arange(len(y)), y] -= 1
    inputs = np.concatenate([x, np.ones((len(x), 1))], 1)
    mean = p.T @ inputs / len(x)  # G, (10, 65)
    lengths = (p**2).sum(1) * (inputs**2).sum(1)  # |g_i|^2: a product of two vectors' lengths
    g2 = (mean**2).sum()
    return (lengths.mean() - g2) / g2


def measured_noise_scale(t, x, y, args):
    """The same as DataParallel finds it, at fixed weights, from batches that it draws."""
    model = DataParallel(put(args, start()), t)
    noise = NoiseScale(model, beta=1 - 1 / args.draws)
    draw = np.random.default_rng(100 + t.rank)
    for _ in progress(t, range(3 * args.draws), "measuring the noise"):
        rows = draw.integers(0, len(x), args.batch)
        model.zero_grad()
        F.cross_entropy(model(put(args, minidl.tensor(x[rows]))),
                        put(args, minidl.tensor(y[rows]))).backward()
    model.close()
    return noise.value


def steps_to(x, y, batch, target, most=1500):
    """The fewest steps, over rates, to a mean loss of `target` on all samples."""
    best = most
    for rate in 0.5 * 2.0 ** np.arange(-3, 4):
        draw = np.random.default_rng(batch)
        w = np.zeros((65, 10))
        inputs = np.concatenate([x, np.ones((len(x), 1))], 1)
        for step in range(best):
            rows = draw.integers(0, len(x), batch)
            w -= rate * inputs[rows].T @ softmax_minus(inputs[rows] @ w, y[rows]) / batch
            if step % 5 == 4 and loss_of(inputs @ w, y) <= target:
                best = step + 1
                break
    return best


def softmax_minus(z, y):
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p


def loss_of(z, y):
    z = z - z.max(1, keepdims=True)
    return float((np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean())


def fit(batches, steps):
    """(S_min, B_crit) of steps = S_min (1 + B_crit / B), least squares of relative errors."""
    batches, steps = np.array(batches, float), np.array(steps, float)
    columns = np.stack([1 / steps, 1 / (batches * steps)], 1)
    (smallest, product), *_ = np.linalg.lstsq(columns, np.ones(len(steps)), rcond=None)
    return smallest, product / smallest


# -- 3. a rate for each layer


def layer_rates(t, table, x, y):
    """How far a step takes each layer, as a share of its length."""
    shares = {}
    for name, make in (("SGD", lambda p: optim.SGD(p, lr=0.1)),
                       ("LARS", lambda p: optim.LARS(p, lr=10.0, weight_decay=0, momentum=0)),
                       ("LAMB", lambda p: optim.LAMB(p, lr=0.01, weight_decay=0))):
        minidl.manual_seed(1)
        model = nn.MLP(64, 32, 10)
        weights = [p for p in model.parameters() if p.ndim > 1]
        before = [p.data.copy() for p in weights]
        F.cross_entropy(model(minidl.tensor(x[:256])), minidl.tensor(y[:256])).backward()
        make(weights).step()
        shares[name] = [float(np.linalg.norm(p.data - w) / np.linalg.norm(w))
                        for p, w in zip(weights, before, strict=True)]
        for i, share in enumerate(shares[name], 1):
            rule = () if name == "SGD" else (0.01, "rel<1e-4")  # lr * trust = 0.01: either way
            table.row(f"{name}: step of layer {i} over its length", share, *rule)
    draw = np.random.default_rng(3)
    p = minidl.tensor(draw.normal(size=(5, 4)), requires_grad=True)
    w, m, v = p.data.copy(), np.zeros((5, 4)), np.zeros((5, 4))
    optimizer = optim.LAMB([p], lr=0.1, weight_decay=0.1)
    for step in range(1, 6):
        p.grad = draw.normal(size=(5, 4))
        w, m, v = lamb(w, p.grad, m, v, step, 0.1, 0.9, 0.999, 1e-6, 0.1)
        optimizer.step()
    table.row("17b: LAMB, unlike optim.LAMB", float(abs(w - p.data).max()), 0, "abs<1e-9")
    return shares


def main(t, args):
    table, (x, y) = Table(t), digits()
    say(t, f"1. Batch norm on {t.size} ranks of {args.batch} samples.")
    means = norms(t, table, args)
    say(t, "2. The noise of a gradient, and what a larger batch saves.")
    noise = exact_noise_scale(start(), x, y)
    if t.size > 1:
        found = measured_noise_scale(t, x, y, args)
        table.row("noise scale from b and p b, samples", found, noise, "rel<0.15")
    batches = [4, 8, 16, 32, 64, 128, 256, 512]
    parts = gather(t, {b: steps_to(x, y, b, args.loss) for b in batches[t.rank::t.size]})
    if t.rank > 0:
        return table
    steps = {b: n for part in parts for b, n in part.items()}
    smallest, critical = fit(batches, [steps[b] for b in batches])
    for b in (batches[0], batches[-1]):
        table.row(f"steps to a loss of {args.loss:g}, batch {b}: S_min (1 + B_crit/B)", steps[b],
                  smallest * (1 + critical / b), "factor<2")
    table.row("B_crit of the fit, samples: of the noise's order", critical, noise, "factor<10")
    table.row("samples used: batch 512's over batch 4's",
              512 * steps[512] / (4 * steps[4]))
    base = optim.scaled_rate(0.1, 512, base_batch=64)
    table.row("rate for 512 samples where 0.1 is right for 64", base, 0.8, "rel<1e-9")
    say(t, "3. A rate for each layer.")
    shares = layer_rates(t, table, x, y)
    picture(t, draw, steps, smallest, critical, noise, means, shares)
    return table


def draw(plt, steps, smallest, critical, noise, means, shares):
    """Steps to a loss over batch sizes; local and synchronised means; a step's share of a layer."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(17, 5))
    batches = np.array(sorted(steps))
    left.loglog(batches, [steps[b] for b in batches], "o", color=BLUE, label="trained")
    fine = np.geomspace(batches[0], batches[-1], 100)
    left.loglog(fine, smallest * (1 + critical / fine), color=GREY,
                label="$S_{min}(1 + B_{crit}/B)$")
    line_at(left, "noise scale", x=noise, at=0.6)
    left.set(xlabel="batch B", ylabel="steps", title="Steps to the same loss, at the best rate")
    left.legend()
    bins = np.linspace(min(m.min() for m in means), max(m.max() for m in means), 50)
    for name, values, colour in zip(("of one rank", "of all ranks"), means, (ORANGE, BLUE)):
        middle.hist(values, bins, alpha=0.7, color=colour, label=name)
    middle.set(xlabel="mean of a channel", ylabel="batches", title="What batch norm subtracts")
    middle.legend()
    width = 0.8 / len(shares)
    for i, (name, values) in enumerate(shares.items()):
        right.bar(np.arange(len(values)) + i * width, values, width, label=name)
    highest = max(map(max, shares.values()))
    right.set(xticks=np.arange(len(values)) + width, ylabel="|step| / |w|", ylim=(0, 1.2 * highest),
              xticklabels=[f"layer {k + 1}" for k in range(len(values))],
              title="A step as a share of each layer")
    right.legend(loc="upper left", ncols=3)
    return figure


OPTIONS = {
    "batch": (16, "samples of a rank"),
    "draws": (60, "batches that the noise scale is averaged over"),
    "loss": (0.3, "the loss that is trained to"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
