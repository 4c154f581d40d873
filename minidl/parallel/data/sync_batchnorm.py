"""Batch norm over the samples of all ranks: with p ranks, over p times as many samples.

The plain form: minidl/plain/sync_batchnorm.py. Here each rank gathers one row of 2C + 1 numbers
from all ranks in forward, and all-reduces 2C numbers in backward (C channels). The input may be
images. The layer keeps running averages. The ranks' losses may have any weights, and ranks may be
without samples. All ranks wait for each other twice in a step.

One row is enough in forward. It has the mean of the rank's own values, M2 = sum (x - mean)^2, and
n, the number of values. All ranks merge the rows by Chan's formula. The formula holds for shares of
any length, also for length 0 (k: a rank):

    n = sum n_k      mean = sum n_k mean_k / n      M2 = sum (M2_k + n_k (mean_k - mean)^2)

The variance is also the mean of x^2 minus the square of the mean, but this formula is inexact. If
values have the mean 10,000 and the standard deviation 0.01, their squares need more digits than
float32 has.

The gradients of weight and bias are for this rank's share only, because data parallelism averages
them over ranks later. Data parallelism gives rank k's gradients the weight n_k, because each rank's
loss is a mean over its own samples. So the sums that the ranks exchange in backward must already
contain this weight. For p ranks it is a_k = p n_k / n:

    gx = ... (g - sum a_j sum g_j / (n a_k) - ...)         losses="mean"; with equal shares a_k = 1

losses="sum" leaves out the weights a_k. This is right if the ranks' losses are parts of one sum.
(PyTorch always leaves out these weights.) The last batch of an epoch may have shares of different
sizes. If the losses are means over these shares, losses="sum" gives wrong gradients. Messages go
through host memory in float32 (for float64 inputs in float64), and on a GPU the host waits for the
messages. All ranks must run their SyncBatchNorm layers in the same order. A rank without samples
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
    """Batch norm as a Function. x is treated as an array (N, C, places). The ranks have different
    samples. Saves xhat, 1 / std and w, as batch_norm does. Updates the running statistics in
    place."""

    op = "sync_batch_norm"
    precision = "black"
    axes = (0, 2)

    def forward(self, x, w, b, t, running, momentum, eps, losses):
        self.t, dtype = t, backend.accumulate_dtype(x.dtype)
        x3 = x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:])).astype(dtype, copy=False)
        with named("sync_batch_norm.forward"):
            mean, m2, self.n = merge(gather(t, share_of(self.xp, x3)))
        if self.n <= 1:
            raise ValueError(f"rank {t.rank}: sync_batch_norm wants at least 2 values of a channel "
                             f"on all ranks together; got {int(self.n)}. Use larger batches")
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
        if not self.needs[0]:  # in the first layer, x needs no gradient on any rank
            return None, gw, gb
        sums = backend.to_device(self.xp.concatenate([gb, gw]), "cpu")
        with named("sync_batch_norm.backward"):
            sums = ring.all_reduce(self.t, sums * sums.dtype.type(self.weight))
        # a rank without samples has the weight 0 and an empty gx
        sums /= sums.dtype.type(self.n * (self.weight or 1))
        mean_g, along = self.xp.asarray(sums).reshape(2, -1)
        gx = g - column(mean_g)
        gx -= xhat * column(along)
        gx *= column(r if w is None else r * w)
        return gx.reshape(gy.shape), gw, gb


def share_of(xp, x3):
    """Returns a row (2C + 1,) on the host. It has the means of the C channels of x3, then the C
    values of M2, and then the number of values in a channel. x3: (N, C, places). If x3 is empty,
    all elements of the row are 0."""
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
    """Returns all ranks' rows as an array (p, len(row)), in the order of ranks. All ranks get the
    same bits. Collective."""
    rows = np.zeros((t.size, len(row)), row.dtype)
    rows[t.rank] = row
    ring_blocks.all_gather(t, rows.reshape(-1), [k * len(row) for k in range(t.size + 1)])
    return rows


def merge(rows):
    """Merges rows of (mean, M2, n) by Chan's formula. Returns (mean (C,), M2 (C,), n), in
    float64."""
    means, m2s, counts = np.split(rows.astype(np.float64), [rows.shape[1] // 2, -1], axis=1)
    n = counts.sum()
    mean = (counts * means).sum(axis=0) / max(n, 1)
    return mean, (m2s + counts * (means - mean) ** 2).sum(axis=0), float(n)


def column(v):
    """Returns v in the shape (1, C, 1), which broadcasts over (N, C, places). v: (C,)."""
    return v[None, :, None]


def bytes_sent(n_channels, itemsize, n, rank):
    """Returns (forward, backward): the bytes that `rank` of n ranks sends for one layer. itemsize:
    8 if x is float64, else 4 (also for fp16). If x needs no gradient, backward sends nothing."""
    row = 2 * n_channels + 1
    bounds = [k * row for k in range(n + 1)]
    return (ring_blocks.bytes_sent(bounds, itemsize, rank, n_scatters=0),
            ring.bytes_sent(2 * n_channels, itemsize, n, rank))


def checked(losses):
    """Returns `losses`. Raises ValueError unless `losses` is "mean" or "sum"."""
    if losses not in ("mean", "sum"):
        raise ValueError(f"SyncBatchNorm wants losses='mean' or losses='sum'; got {losses!r}")
    return losses


class SyncBatchNorm(BatchNorm):
    """BatchNorm1d and BatchNorm2d over the ranks of `t`. In eval mode it uses the running averages
    and sends nothing. The input is (N, C), (N, C, L) or (N, C, H, W). N may differ between ranks.

    t: the ranks whose samples differ (PyTorch's process_group). In a grid t is grid.dp, or
    grid.group("dp", "cp") if ranks hold parts of texts. The ranks along tp have the same samples,
    so leave these ranks out. If t includes them, each sample counts tp times. This does not change
    means and gradients, but it changes the factor n/(n-1) of the running variance.

    losses: "mean" if each rank's loss is a mean over its samples, and DataParallel weights the
    ranks' gradients by their numbers of samples. Else "sum" (see the top of the file). With equal
    shares "mean" and "sum" give the same gradients.

    The running averages are the same on all ranks, so DataParallel(broadcast_buffers=False) works.
    Raises ValueError for a wrong number of channels, and for fewer than 2 values in a channel."""

    ndims = (2, 3, 4)
    joins_ranks = True  # ranks wait for each other in forward, so absent() refuses such a layer

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
                             f"channels; got {x.shape[1]} (dimension 1 of shape {tuple(x.shape)})")
        running = [backend.array_of(v) for v in (self.running_mean, self.running_var)]
        return Normalise.apply(x, self.weight, self.bias, t=self.t, running=running,
                               momentum=momentum, eps=self.eps, losses=self.losses)

    @classmethod
    def convert(cls, model, t, losses="mean", done=None):
        """Replaces every BatchNorm1d and BatchNorm2d in `model` by a SyncBatchNorm over t.

        Each new layer shares the parameters, buffers and hooks of the old layer. Returns the model.
        If the model itself is a batch norm, returns the new layer. done: {module: its replacement},
        used in the recursion."""
        done = {} if done is None else done
        if model in done:  # a model can use the same module at two places
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
