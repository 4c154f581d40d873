"""Batch norm over the batch of all ranks: statistics of p times as many samples.

The plain form: minidl/plain/sync_batchnorm.py. Here: one message in forward, 2C + 1 numbers a rank,
and one in backward, 2C numbers; images; running averages; any weights of the ranks' losses; ranks
without samples. All ranks wait for each other twice a step.

One message is enough in forward because a rank sends its own mean, M2 = sum (x - mean)^2 and n, and
all ranks merge them. Merging is Chan's formula, for shares of any lengths, none at all among them:

    n = sum n_k      mean = sum n_k mean_k / n      M2 = sum (M2_k + n_k (mean_k - mean)^2)

and not the mean of x^2 less the square of the mean: of values around 10,000 that spread by 0.01,
float32 squares have lost what is looked for before they are subtracted.

The gradients of weight and bias stay those of the share: data parallelism averages them with all
others. It weights a rank's by n_k, as each rank's loss is a mean over its own samples; so what the
ranks tell each other in backward must have that weight already, a_k = p n_k / n:

    gx = ... (g - sum a_j sum g_j / (n a_k) - ...)         losses="mean"; with equal shares a_k = 1

and without it (losses="sum", right for parts of one sum; PyTorch has no other) an uneven last batch
trains something else. Messages go through host memory, in float32 (float64 of float64); on a GPU
the host waits for them. All ranks must come to the layer, in the same order: one without samples
passes `x[:0]`.

Sources: Ioffe & Szegedy 2015; Peng et al. 2018 (MegDet, arXiv 1711.07240) for the ranks; Chan,
Golub & LeVeque 1983 for merging.
Test: tests/parallel/data/test_sync_batchnorm.py   Tutorial: tutorials/18_large_batch.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.comm import ring, ring_blocks
from minidl.comm.labels import named
from minidl.function import Function
from minidl.mode import current
from minidl.nn.norm import BatchNorm

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport


class Normalise(Function):
    """x seen as (N, C, places), of which other ranks have other samples. Saves xhat, 1 / std and w,
    as batch_norm; the running statistics are written in place."""

    op = "sync_batch_norm"
    precision = "black"
    axes = (0, 2)

    def forward(self, x, w, b, t, running, momentum, eps, losses):
        self.t, dtype = t, backend.accumulate_dtype(x.dtype)
        x3 = x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:])).astype(dtype, copy=False)
        with named("sync_batch_norm.forward"):
            mean, m2, self.n = merge(gather(t, share_of(self.xp, x3)))
        if self.n <= 1:
            raise ValueError(f"rank {t.rank}: sync_batch_norm wants more than one value per "
                             f"channel over all ranks, got {int(self.n)}")
        here = x3.shape[0] * x3.shape[2]
        self.weight = t.size * here / self.n if losses == "mean" else 1.0
        if not current().replaying:
            for average, batch in zip(running, (mean, m2 / (self.n - 1)), strict=True):
                if average is not None:
                    average *= 1 - momentum
                    average += momentum * self.xp.asarray(batch.astype(average.dtype))
        mean, r = (self.xp.asarray(a.astype(dtype)) for a in (mean, 1 / np.sqrt(m2 / self.n + eps)))
        xhat = x3 - column(mean)
        xhat *= column(r)
        self.save(xhat, r, w)
        y = xhat.copy() if w is None else xhat * column(w)
        if b is not None:
            y += column(b)
        return y.astype(x.dtype, copy=False).reshape(x.shape)

    def backward(self, gy):
        xhat, r, w = self.saved
        g = gy.reshape(xhat.shape).astype(xhat.dtype, copy=False)
        gb, gw = g.sum(axis=self.axes), (g * xhat).sum(axis=self.axes)
        if not self.needs[0]:  # of the first layer: the same on all ranks
            return None, gw, gb
        sums = backend.to_device(self.xp.concatenate([gb, gw]), "cpu")
        with named("sync_batch_norm.backward"):
            sums = ring.all_reduce(self.t, sums * sums.dtype.type(self.weight))
        sums /= sums.dtype.type(self.n * (self.weight or 1))  # 0: there is nothing here to divide
        mean_g, along = self.xp.asarray(sums).reshape(2, -1)
        gx = g - column(mean_g)
        gx -= xhat * column(along)
        gx *= column(r if w is None else r * w)
        return gx.reshape(gy.shape), gw, gb


def share_of(xp, x3):
    """(2C + 1,) on the host: mean, M2 and number of the values of each channel of x3, (N, C,
    places). Zeros of an empty one."""
    n, c = x3.shape[0] * x3.shape[2], x3.shape[1]
    row = np.zeros(2 * c + 1, x3.dtype)
    if n:
        mean = x3.mean(axis=(0, 2))
        centred = x3 - column(mean)
        m2 = xp.einsum("ncp,ncp->c", centred, centred)
        row[:-1] = backend.to_device(xp.concatenate([mean, m2]), "cpu")
        row[-1] = n
    return row


def gather(t, row):
    """All ranks' rows, (p, len(row)), in the order of ranks: the same bits everywhere."""
    rows = np.zeros((t.size, len(row)), row.dtype)
    rows[t.rank] = row
    ring_blocks.all_gather(t, rows.reshape(-1), [k * len(row) for k in range(t.size + 1)])
    return rows


def merge(rows):
    """(mean (C,), M2 (C,), n), float64, of rows of (mean, M2, n): Chan's formula."""
    means, m2s, counts = np.split(rows.astype(np.float64), [rows.shape[1] // 2, -1], axis=1)
    n = counts.sum()
    mean = (counts * means).sum(axis=0) / max(n, 1)
    return mean, (m2s + counts * (means - mean) ** 2).sum(axis=0), float(n)


def column(v):
    """A value per channel, (C,), to broadcast over (N, C, places)."""
    return v[None, :, None]


def bytes_sent(n_channels, itemsize, n, rank):
    """(forward, backward): bytes that `rank` of n sends for one layer; for x in fp16, too, itemsize
    is 4. Of x without a gradient there is no backward."""
    row = 2 * n_channels + 1
    bounds = [k * row for k in range(n + 1)]
    return (ring_blocks.bytes_sent(bounds, itemsize, rank, n_scatters=0),
            ring.bytes_sent(2 * n_channels, itemsize, n, rank))


def checked(losses):
    if losses not in ("mean", "sum"):
        raise ValueError(f"losses is 'mean' or 'sum', got {losses!r}")
    return losses


class SyncBatchNorm(BatchNorm):
    """nn.SyncBatchNorm: BatchNorm1d and 2d over the ranks of `t` in training; in eval the running
    averages, and nothing is sent. x (N, C), (N, C, L) or (N, C, H, W), N other on other ranks.

    t: the ranks whose samples differ, PyTorch's process_group: of a grid, grid.dp, and of parts of
    texts grid.group("dp", "cp"). Ranks along tp have the same samples; with them in t each sample
    counts tp times, which changes no mean or gradient, but n/(n-1) of the running variance.
    The running averages are the same on all ranks: DataParallel(broadcast_buffers=False) need not
    send them. losses: "mean", where DataParallel weights each rank's mean by its samples, or "sum"
    (above): with equal shares the same."""

    ndims = (2, 3, 4)
    joins_ranks = True  # a rank that skips forward is waited for: DataParallel.absent refuses

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True, *, t: Transport,
                 losses: str = "mean"):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.t, self.losses = t, checked(losses)

    def batch_norm(self, x, use_batch, momentum):
        if not (self.training and use_batch):
            return super().batch_norm(x, use_batch, momentum)
        if x.shape[1] != self.num_features:
            raise ValueError(f"rank {self.t.rank}: SyncBatchNorm wants {self.num_features} "
                             f"channels, got shape {tuple(x.shape)}")
        running = [backend.array_of(v) for v in (self.running_mean, self.running_var)]
        return Normalise.apply(x, self.weight, self.bias, t=self.t, running=running,
                               momentum=momentum, eps=self.eps, losses=self.losses)

    @classmethod
    def convert(cls, model, t, losses="mean", done=None):
        """`model` with every BatchNorm1d and 2d in it replaced by a SyncBatchNorm over t that has
        its parameters, buffers and hooks themselves; returns the model, or where that is a batch
        norm the new one. done: {module: its replacement} so far."""
        done = {} if done is None else done
        if model in done:  # at two places in the model
            return done[model]
        done[model] = model
        if isinstance(model, BatchNorm) and not isinstance(model, cls):
            new = done[model] = cls.__new__(cls)
            new.__dict__.update(model.__dict__)
            new.t, new.losses = t, checked(losses)
            return new
        for name, child in list(model.named_children()):
            if cls.convert(child, t, losses, done) is not child:
                setattr(model, name, done[child])
        return model

    convert_sync_batchnorm = convert  # PyTorch's name
