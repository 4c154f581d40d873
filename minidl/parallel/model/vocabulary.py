"""The vocabulary is divided: each rank has some rows of the embedding, and some logits of a token.

    embedding      rank r looks up the ids whose rows it has, and gives 0 for other ids. One
                   all-reduce adds the ranks' results
    logits         rank r computes its columns of the output layer (ColumnLinear): (tokens, V / n)
    cross entropy  loss = lse - x[target],   lse = log sum over all V words of e^x

    rank r         computes lse_r over its own logits, and x_r. x_r is the logit of the target, or 0
                   if the target is in another rank's columns. lse_r and x_r are (tokens,)
    all ranks      m = max lse_r;   lse = m + log sum_r e^(lse_r - m);   x[target] = sum_r x_r
    sent           two all-reduces: the first for the maxima, the second for both sums. For each
                   token these are 3 numbers, not V

No rank ever holds all V logits of a token, or their gradients. With GPT-2's 50,257 words a batch of
8 x 1,024 tokens has 1.6 GB of logits. Backward sends nothing: gx = (e^(x - lse) - [x is the
target]) g. The bracket is 1 for the target and 0 for other words. The kernels of `F.cross_entropy`
are used on the rank's columns.

Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
Test: tests/parallel/model/test_vocabulary.py   Tutorial: tutorials/13_tensor_parallel.py
"""

import numpy as np

from minidl import backend
from minidl.comm import chunks, ring
from minidl.comm.labels import named
from minidl.comm.transport import device
from minidl.cuda.dispatch import pick
from minidl.function import Function
from minidl.nn import functional as F
from minidl.nn.layers import Embedding
from minidl.ops import cross_entropy as undivided
from minidl.ops.embedding import checked
from minidl.ops.loss import check_reduction
from minidl.parallel.model.tensor import Divided, cut, leaving


class VocabEmbedding(Divided, Embedding):
    """Embedding with some of the rows on each rank: ids (...) -> (..., width). With `seq` the
    result is this rank's block of the tokens. Without `seq` backward sends nothing. With `seq`
    backward runs an all-gather."""

    def divide(self, t, seq=None, all_reduce=None):
        super().divide(t, seq)
        self.all_reduce = all_reduce
        cut(self.weight, t, 0)

    def forward(self, ids):
        ids = backend.array_of(ids)
        xp, n = backend.xp_of([ids]), self.num_embeddings
        if xp is not np:
            ids = checked("embedding", ids, n)
        elif ids.size and not (0 <= int(ids.min()) and int(ids.max()) < n):
            raise IndexError(f"embedding wants ids from 0 to {n - 1} (all ranks together have {n} "
                             f"rows); got ids from {int(ids.min())} to {int(ids.max())}")
        first, end = self.weight.part.bounds[self.t.rank : self.t.rank + 2]
        here = (ids >= first) & (ids < end)
        padding = None if self.padding_idx is None else self.padding_idx % n - first
        if padding is not None and not 0 <= padding < end - first:
            padding = None
        y = F.embedding(xp.where(here, ids - first, 0), self.weight, padding_idx=padding)
        return leaving(self, y * here[..., None].astype(y.dtype))


class VocabCrossEntropy(Function):
    """Computes -log softmax(x)[target]. x (rows, V / n) has this rank's columns. Saves three
    arrays: x, which the previous layer keeps, too; the targets; and lse, one number for each row.

    Suppose that all logits of a row on one rank are -inf (masked words). Then the rank's lse of
    this row is -inf, and the rank's part of the sum is 0. If a row has only -inf on all ranks, its
    loss is nan, as in PyTorch.

    With label smoothing a, the loss is (1 - a) (lse - x[target]) + a (lse - mean of x), over all V
    columns. The ranks then also add their sums of x."""

    precision = "black"
    op = "cross_entropy"

    def forward(self, x, target, t, bounds, ignore_index, reduction, smoothing):
        xp = self.xp
        first, end = bounds[t.rank : t.rank + 2]
        here = (target >= first) & (target < end) & (target != ignore_index)
        # If another rank has the target's column, column 0 is read. Its logit is not used then.
        local = xp.ascontiguousarray(xp.where(here, target - first, 0), np.int64)
        x = xp.ascontiguousarray(x)
        with np.errstate(invalid="ignore"):  # a row of only -inf gives nan, which is replaced below
            loss, lse = pick(undivided.by_kernel, undivided.by_numpy, x)(x, local, NONE)
            logits = lse - loss
        if xp is not np or np.isnan(lse).any():
            masked = xp.isneginf(x.max(axis=1))
            lse, logits = xp.where(masked, -np.inf, lse), xp.where(masked, -np.inf, logits)
        parts = [xp.where(here, logits, 0)]
        if smoothing:
            parts.append(x.sum(axis=1, dtype=lse.dtype))
        with named("cross_entropy.forward"):
            top = device.all_reduce(t, lse.copy(), np.maximum)
            sums = device.all_reduce(t, xp.stack([xp.exp(lse - top), *parts]))
        lse = top + xp.log(sums[0])
        counts = target != ignore_index
        self.total, self.reduction = counts.sum().astype(lse.dtype), reduction
        self.counts, self.elsewhere = counts, ~here
        self.smoothing, self.n_classes = smoothing, bounds[-1]
        self.save(x, local, lse)
        loss = lse - sums[1]
        if smoothing:
            loss = (1 - smoothing) * loss + smoothing * (lse - sums[2] / self.n_classes)
        loss = xp.where(counts, loss, 0)
        return undivided.reduce_loss(xp, loss, self.total, reduction, loss.shape).astype(
            x.dtype, copy=False)

    def backward(self, gy):
        xp = self.xp
        x, local, lse = self.saved
        g = xp.empty_like(lse)
        g[...] = undivided.spread_loss(xp, gy, self.total, self.reduction)
        g *= self.counts
        run = pick(undivided.by_kernel_backward, undivided.by_numpy_backward, x)
        gx = run(g, x, lse, local, NONE)
        # If another rank has the target's column, `run` has subtracted 1 in column 0. So column 0
        # is computed again.
        gx[:, 0] = xp.where(self.elsewhere, g * xp.exp(x[:, 0] - lse), gx[:, 0])
        if self.smoothing:  # a fraction of the target's probability goes to all classes, evenly
            moved = (g * self.smoothing).astype(gx.dtype)
            gx -= moved[:, None] / self.n_classes
            gx[xp.arange(len(gx)), local] += xp.where(self.elsewhere, 0, moved)
        return gx, None


NONE = -1  # no target has this value, so the kernel leaves out no row


def cross_entropy(t, input, target, n_classes, *, ignore_index=-100, reduction="mean",
                  label_smoothing=0.0):
    """Returns F.cross_entropy of logits whose columns are divided over the ranks of t. The result
    is the same on all ranks.

    input: this rank's columns of the logits, of shape (rows, number of this rank's columns).
    n_classes: the number of columns on all ranks. target: the classes, of shape (rows,), the same
    on all ranks. Raises ValueError for other shapes, and IndexError for a target that is not a
    class. Collective."""
    check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"rank {t.rank}: cross_entropy wants label_smoothing from 0 to 1; got "
                         f"{label_smoothing}")
    bounds = chunks.bounds(n_classes, t.size)
    mine = bounds[t.rank + 1] - bounds[t.rank]
    target = backend.array_of(target)
    if input.ndim != 2 or input.shape[1] != mine or tuple(target.shape) != tuple(input.shape[:1]):
        raise ValueError(f"rank {t.rank}: cross_entropy wants input of shape (rows, {mine}), with "
                         f"this rank's {mine} of {n_classes} columns, and target of shape (rows,); "
                         f"got input {tuple(input.shape)} and target {tuple(target.shape)}. Use "
                         f"logits.reshape(-1, {mine}) and target.reshape(-1)")
    xp = backend.xp_of([target])
    if xp is np:
        wrong = target[(target != ignore_index) & ((target < 0) | (target >= n_classes))]
        if wrong.size:
            raise IndexError(f"cross_entropy wants targets from 0 to {n_classes - 1}, or "
                             f"ignore_index ({ignore_index}); got {int(wrong[0])}")
    else:
        target = checked("cross_entropy", target, n_classes, ignore_index)
    return VocabCrossEntropy.apply(input, target, t=t, bounds=bounds, ignore_index=ignore_index,
                                   reduction=reduction, smoothing=float(label_smoothing))


def bytes_sent(n_rows, itemsize, n, rank, smooths=False):
    """Returns the bytes that `rank` of n ranks sends in `cross_entropy`.

    itemsize: the bytes of an element of the sums. For float16 this is 4, too. smooths: True with
    label smoothing."""
    n_sums = 3 if smooths else 2
    return ring.bytes_sent(n_rows, itemsize, n, rank) + ring.bytes_sent(
        n_sums * n_rows, itemsize, n, rank)
