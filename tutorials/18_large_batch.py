"""18  Large batches: what they save, and what they need.    60 minutes, needs: 07

    mpirun -n 4 python tutorials/18_large_batch.py      (or: minidl run -n 4 ...)
    python tutorials/18_large_batch.py --sim 4          picture: out/18_large_batch.png

1. A small batch has noisy statistics. There are p ranks, and each has b samples. Batch norm on a
rank normalises with the b samples of this rank, not with all p b. If a channel has variance
sigma^2, the mean of b samples has an error of about sigma/sqrt(b). In synchronised batch norm the
ranks exchange three statistics: the mean, M2 = sum (x - mean)^2, and the number n of samples. They
merge these by Chan's formula (exercise 18a). A layer has C channels. For each layer a rank sends
(p-1)(2C+1) numbers in forward, by an all-gather. In backward there is a ring all-reduce of 2C
numbers.

2. g_b, the gradient of b samples, is the true gradient G plus noise. If Sigma is the covariance of
the gradient of one sample, E |g_b|^2 = |G|^2 + tr(Sigma)/b. Data parallelism has gradients of two
batch sizes: b on each rank, and p b over all ranks. So there are two equations for the two unknowns
|G|^2 and tr(Sigma). B_noise = tr(Sigma)/|G|^2 tells up to which size a larger batch helps. Let g_B
be the gradient of a batch of B samples. At the best rate, a step along g_B lowers the loss less
than a step along G. It lowers the loss only 1 / (1 + B_noise/B) times as much. So a training needs

    steps(B) = S_min (1 + B_crit/B)        S_min: the steps with a very large batch

3. If the batch is k times as large, the learning rate may be up to k times as large (the functions
scaled_rate and warmed_up). The first layer that diverges has the largest |gradient| / |weights|. In
LARS and LAMB (exercise 18b) the length of a layer's step is a fixed share of the length of its
weights: |step| = lr * trust * |w|.

Papers: Goyal et al. 2017 (arXiv 1706.02677); You et al. 2017 and 2019 (1708.03888, 1904.00962);
McCandlish et al. 2018 (1812.06162); Chan, Golub and LeVeque 1983.
Exercises: `minidl exercise 18` writes work/18_large_batch.py, `minidl check 18` grades it.
"""

from functools import partial

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import Ledger, ring
from minidl.course.out import BLUE, GREY, ORANGE, line_at
from minidl.course.tutorial import Table, host, launch, picture, progress, put
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import DataParallel, NoiseScale
from minidl.parallel.data import sync_batchnorm


def merge(means, m2s, counts):
    """Returns (mean, M2) of all samples from the statistics of p shares. mean and M2 are (C,).

    means, m2s   (p, C) float32: for each share and each channel, the mean and sum (x - mean)^2
    counts       (p,) the number of samples in each share. If it is 0, the share's mean and M2 are 0
    """
    # >>> exercise 18a: merge the statistics of shares
    # Share k has n_k samples, and n = sum n_k. mean = sum n_k mean_k / n. A sample's difference
    # from `mean` is its difference from mean_k, plus mean_k - mean. So
    # M2 = sum (M2_k + n_k (mean_k - mean)^2).
    # Values may be large and their variance small. So do not compute a variance as the mean of the
    # squares minus the square of the mean.
    n = np.asarray(counts, np.float64)[:, None]
    mean = (n * means).sum(axis=0) / n.sum()
    return mean, (m2s + n * (means - mean) ** 2).sum(axis=0)
    # <<<


def lamb(w, g, m, v, t, lr, b1, b2, eps, decay):
    """Returns (w, m, v) after step t = 1, 2, ... of LAMB, as new arrays. w: one layer's weights."""
    # >>> exercise 18b: LAMB
    # As in Adam, the new m is b1 m + (1 - b1) g, and the new v is b2 v + (1 - b2) g^2.
    # m^ = m / (1 - b1^t), v^ = v / (1 - b2^t), and r = m^ / (sqrt(v^) + eps) + decay w.
    # The new w is w - lr (|w| / |r|) r. If |w| or |r| is 0, the new w is w - lr r.
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w
    length, slope = np.linalg.norm(w), np.linalg.norm(r)
    ratio = length / slope if length > 0 and slope > 0 else 1.0
    return w - lr * ratio * r, m, v
    # <<<


def run_norm(args, norm, x, gradient):
    """Returns (output, gradient of x) of a batch-norm layer. gradient: the output's gradient."""
    x = put(args, minidl.tensor(x)).requires_grad_()
    y = put(args, norm)(x)
    y.backward(put(args, minidl.tensor(gradient)))
    return host(y), host(x.grad)


def norms(t, table, args):
    """Compares SyncBatchNorm with batch norm on the whole batch, and counts the bytes that
    SyncBatchNorm sends.

    Then draws 4,000 batches of one channel. Returns two arrays (4000,): for each batch the mean of
    one rank's samples, and the mean of all ranks' samples."""
    C, b = 8, args.batch
    draw = np.random.default_rng(0)
    x = draw.normal(5, 3, (t.size * b, C)).astype(np.float32)
    gradient = draw.normal(5, 3, (t.size * b, C)).astype(np.float32)
    mine = slice(t.rank * b, t.rank * b + b)
    ledger = Ledger(t)
    synchronised = run_norm(args, nn.SyncBatchNorm(C, t=ledger), x[mine], gradient[mine])
    whole = run_norm(args, nn.BatchNorm1d(C), x, gradient)
    for name, got, wanted in zip(("output", "gradient"), synchronised, whole, strict=True):
        apart = float(abs(got - wanted[mine]).max())  # the float32 sums have another order
        table.row(f"SyncBN's {name}: difference from batch norm of p b", apart, 0, "abs<1e-5")

    theory = sync_batchnorm.bytes_sent(C, 4, t.size, t.rank)
    for way, n_bytes in zip(("forward", "backward"), theory, strict=True):
        sent = ledger.count(label=f"sync_batch_norm.{way}").bytes_sent
        table.row(f"SyncBN's bytes, {way}", sent, n_bytes, "exact")

    shares = x.reshape(t.size, b, C)
    _, m2 = merge(shares.mean(1), b * shares.var(1), [b] * t.size)
    apart = float(abs(m2 / len(x) - x.astype("f8").var(0)).max())
    table.row("18a: merged variance, difference from all samples'", apart, 0, "abs<1e-4")

    far = draw.normal(1e4, 0.01, 4 * b).astype(np.float32)
    naive = float((far**2).mean() - far.mean() ** 2)
    table.row("E[x^2] - E[x]^2 in float32; mean 1e4, variance 1e-4", naive)

    channel = draw.normal(5, 3, (4000, t.size, b))
    of_one_rank = channel[:, 0].mean(1)
    of_all_ranks = channel.mean((1, 2))
    table.row("variance of the mean of b samples: sigma^2/b", float(of_one_rank.var()), 9 / b,
              "rel<0.1")
    return of_one_rank, of_all_ranks


def noise_scale(x, y):
    """Returns tr(Sigma) / |G|^2, computed from the gradients of all samples, for weights of 0."""
    p = np.full((len(y), 10), 0.1)  # with weights of 0 each of the 10 classes has probability 0.1
    p[np.arange(len(y)), y] -= 1  # the gradient of sample i is the outer product of p[i] and x[i]
    g2 = ((p.T @ x / len(x)) ** 2).sum()  # |G|^2
    each = (p**2).sum(1) * (x**2).sum(1)  # |g_i|^2 = |p[i]|^2 |x[i]|^2
    return (each.mean() - g2) / g2


def measured_noise_scale(t, x, y, args):
    """Returns the noise scale that DataParallel measures on random batches."""
    layer = nn.Linear(64, 10, bias=False)
    layer.weight.array[...] = 0
    model = DataParallel(put(args, layer), t)
    noise = NoiseScale(model, beta=1 - 1 / args.draws)
    draw = np.random.default_rng(100 + t.rank)
    for _ in progress(t, range(3 * args.draws), "measuring the noise"):
        rows = draw.integers(0, len(x), args.batch)
        model.zero_grad()
        scores = model(put(args, x[rows]))
        F.cross_entropy(scores, put(args, y[rows])).backward()
    model.close()
    return noise.value


def steps_to(x, y, batch, target, most=1500):
    """Returns how many steps SGD needs from weights of 0 to a mean loss of `target`.

    Tries seven learning rates and returns the smallest number of steps. Returns `most` if no rate
    reaches the target in fewer steps."""
    for rate in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4):
        draw = np.random.default_rng(batch)
        w = minidl.zeros(10, 64, requires_grad=True)
        for step in range(1, most):
            rows = draw.integers(0, len(x), batch)
            F.cross_entropy(F.linear(x[rows], w), y[rows]).backward()
            w = minidl.tensor(w.array - rate * w.grad.numpy(), requires_grad=True)
            if step % 5 == 0 and F.cross_entropy(F.linear(x, w), y).item() <= target:
                most = step
                break
    return most


OPTIMIZERS = {
    "SGD": partial(optim.SGD, lr=0.1),
    "LARS": partial(optim.LARS, lr=10.0, weight_decay=0, momentum=0),
    "LAMB": partial(optim.LAMB, lr=0.01, weight_decay=0),
}


def layer_rates(table, x, y):
    """Returns {optimizer: [|step| / |w| of each layer]} for the first step of training."""
    shares = {}
    for name, make in OPTIMIZERS.items():
        minidl.manual_seed(1)
        model = nn.MLP(64, 32, 10)
        weights = [p for p in model.parameters() if p.ndim > 1]
        before = [p.array.copy() for p in weights]
        F.cross_entropy(model(x[:256]), y[:256]).backward()
        make(weights).step()
        shares[name] = [float(np.linalg.norm(p.array - w) / np.linalg.norm(w))
                        for p, w in zip(weights, before, strict=True)]
        for i, share in enumerate(shares[name], 1):
            quantity = f"{name}: |step| / |w| of layer {i}"
            if name == "SGD":
                table.row(quantity, share)
            else:  # LARS and LAMB have lr * trust = 0.01
                table.row(quantity, share, 0.01, "rel<1e-4")
    return shares


def lamb_by_hand(table):
    """Compares five steps of lamb(), exercise 18b, with five steps of optim.LAMB."""
    draw = np.random.default_rng(3)
    m = v = 0.0
    w = draw.normal(size=(5, 4))
    p = minidl.tensor(w, requires_grad=True)
    optimizer = optim.LAMB([p], lr=0.1, weight_decay=0.1)
    for step in range(1, 6):
        p.grad = draw.normal(size=w.shape)
        w, m, v = lamb(w, p.grad.array, m, v, step, lr=0.1, b1=0.9, b2=0.999, eps=1e-6, decay=0.1)
        optimizer.step()
    table.row("18b: LAMB, difference from optim.LAMB", float(abs(w - p.array).max()), 0,
              "abs<1e-9")


def steps_of_all(t, x, y, batches, loss):
    """Returns an array: for each batch size, the number of steps until the loss is `loss`.

    The ranks share the work: each rank trains with some of the batch sizes."""
    steps = np.zeros(len(batches), int)
    for i, batch in enumerate(progress(t, batches, "training")):
        if i % t.size == t.rank:
            steps[i] = steps_to(x, y, batch, loss)
    return ring.all_reduce(t, steps)


def main(t, args):
    table = Table(t)
    images, labels = datasets.digits()[0][:]
    x = np.asarray(images, np.float32).reshape(-1, 64)
    y = np.asarray(labels)
    means = norms(t, table, args)

    noise = noise_scale(x, y)
    if t.size > 1:
        found = measured_noise_scale(t, x, y, args)
        table.row("noise scale from b and p b, samples", found, noise, "rel<0.15")
    batches = 2 ** np.arange(2, 10)
    steps = steps_of_all(t, x, y, batches, args.loss)
    # Fits the line steps = product / B + smallest by least squares of the relative errors.
    product, smallest = np.polyfit(1 / batches, steps, 1, w=1 / steps)
    critical = product / smallest
    for i in (0, -1):
        theory = smallest * (1 + critical / batches[i])
        table.row(f"steps to a loss of {args.loss:g}, batch {batches[i]}: S_min (1 + B_crit/B)",
                  int(steps[i]), theory, "factor<2")
    table.row("B_crit of the fit, near the noise scale, samples", critical, noise, "factor<10")
    table.row("samples used with batch 512 / with batch 4", 512 * steps[-1] / (4 * steps[0]))
    rate = optim.scaled_rate(0.1, 512, base_batch=64)
    table.row("rate for 512 samples if 0.1 is right for 64", rate, 0.8, "rel<1e-9")

    rates = layer_rates(table, x, y)
    lamb_by_hand(table)
    picture(t, args, draw, batches, steps, smallest, critical, noise, means, rates)
    return table


def draw(plt, batches, steps, smallest, critical, noise, means, shares):
    """Draws three plots: the steps for each batch size, the means that batch norm subtracts, and
    |step| / |w| of each layer."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(17, 5))
    left.loglog(batches, steps, "o", color=BLUE, label="trained")
    fine = np.geomspace(batches[0], batches[-1], 100)
    left.loglog(fine, smallest * (1 + critical / fine), color=GREY,
                label="$S_{min}(1 + B_{crit}/B)$")
    line_at(left, "noise scale", x=noise, at=0.6)
    left.set(xlabel="batch B", ylabel="steps", title="Steps to the same loss, at the best rate")
    left.legend()
    bins = np.linspace(min(m.min() for m in means), max(m.max() for m in means), 50)
    for name, values, colour in zip(("of one rank", "of all ranks"), means, (ORANGE, BLUE)):
        middle.hist(values, bins, alpha=0.7, color=colour, label=name)
    middle.set(xlabel="mean of a channel", ylabel="batches",
               title="Means that batch norm subtracts")
    middle.legend()
    width = 0.8 / len(shares)
    for i, (name, values) in enumerate(shares.items()):
        right.bar(np.arange(len(values)) + i * width, values, width, label=name)
    highest = max(map(max, shares.values()))
    right.set(xticks=np.arange(len(values)) + width, ylabel="|step| / |w|", ylim=(0, 1.2 * highest),
              xticklabels=[f"layer {k + 1}" for k in range(len(values))],
              title="Length of each layer's step / length of its weights")
    right.legend(loc="upper left", ncols=3)
    return figure


OPTIONS = {
    "batch": (16, "number of samples of a rank"),
    "draws": (60, "number of batches over which the noise scale is averaged"),
    "loss": (0.3, "training stops at this loss"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
