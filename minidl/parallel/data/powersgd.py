"""PowerSGD: sends a gradient matrix as the product of two thin matrices.

The plain form, with the names A, P and Q: minidl/plain/powersgd.py. A (n, m) is a gradient plus its
residual. P (n, r) and Q (m, r) are sent in place of A, and A is about P Q' (Q': the transpose of
Q). Here two all-reduces send all matrices of a bucket and also the tensors that are not compressed.
n is the shorter side of a matrix. The first steps may send uncompressed gradients.

A rank's residual is A - P P' A, computed from its own A. PyTorch's hook keeps A - P Q'/n_ranks
instead. With both residuals, the sum over ranks and the updates are the same. But suppose that the
ranks' data differ, and that g_r is the gradient of rank r. Then rank r's residual in PyTorch also
adds up g_r - mean(g) in every step. This part grows without bound, and no update needs it. In
float32 the rounding errors of this part finally become larger than the rest of the residual.

Our residual has no part in the directions of P's columns. So it stays bounded if the columns of P
point in all directions, one direction after the other, during the steps. The columns of P are
combinations of the columns of A, which are vectors of n elements. At most min(n, m) columns of A
are independent. If n is the shorter side, the columns can span all vectors of n elements. If n is
the longer side, they cannot. So for A we take the gradient matrix or its transpose, whichever has
fewer rows. (With side="rows" A is always the matrix, as in PyTorch.) test_powersgd.py compares our
residual with PyTorch's over 1,000 steps.

Tensors of one dimension are not compressed. A matrix is not compressed if P and Q together have
half of its elements or more: 2 r (n + m) >= n m.

        model = Compressed(net, t, PowerSGD(rank=4))          # any optimizer

Source: Vogels, Karimireddy & Jaggi 2019 (arXiv 1905.13727). The choice of tensors and the names of
the options are from PyTorch's PowerSGDState.
Test: tests/parallel/data/test_powersgd.py, test_compress.py   Tutorial: tutorials/16_dgc.py
"""

import math

import numpy as np

from minidl.comm import ring
from minidl.comm.labels import about
from minidl.parallel.data.compress import Method
from minidl.random import Generator


class PowerSGD(Method):
    """Sends two thin matrices in place of a gradient. Use: Compressed(net, t, PowerSGD(...)).

    rank:        the number of columns of P and Q. For a small matrix it is at most the length of
                 the matrix's shorter side
    start_step:  the number of the first step that sends P and Q. Earlier steps send whole
                 gradients, because gradients change fast at first
    min_compression_rate: a number c. A matrix is compressed only if it has more than c times as
                 many elements as P and Q together
    side:        "short" or "rows", see the top of the file
    warm_start:  if True, Q of the previous step is used again. If False, each step uses a new
                 random Q. Use False if gradients change fast
    seed:        the seed of the first Q

    Raises ValueError for a number out of its range."""

    def __init__(self, rank=1, start_step=0, min_compression_rate=2, warm_start=True, side="short",
                 seed=0):
        if rank < 1 or start_step < 0 or side not in ("short", "rows"):
            raise ValueError("PowerSGD wants rank >= 1, start_step >= 0 and side='short' or "
                             f"side='rows'; got rank={rank}, start_step={start_step}, "
                             f"side={side!r}")
        self.side = side
        self.rank, self.start_step, self.warm_start = rank, start_step, warm_start
        self.min_compression_rate, self.seed = min_compression_rate, seed

    def thin(self, p):
        """Returns (n, m, r) if p is sent as P (n, r) and Q (m, r). Returns None if p is sent
        uncompressed."""
        if len(p.shape) < 2 or not p.numel():
            return None
        n, m = p.shape[0], math.prod(p.shape[1:])
        if self.side == "short":
            n, m = min(n, m), max(n, m)
        r = min(n, m, self.rank)
        return (n, m, r) if (n + m) * r * self.min_compression_rate < n * m else None

    def prepare(self, bucket):
        xp = bucket.params[0]._xp
        generator = Generator(self.seed)  # the same numbers on all ranks
        bucket.common["q"] = {
            p: xp.asarray(generator.normal(*size[1:], dtype=np.float64).astype(bucket.flat.dtype))
            for p in bucket.params if (size := self.thin(p))}

    def reduce(self, t, bucket):
        if bucket.step < self.start_step:
            bucket.all_reduce(t, bucket.flat)
            return
        xp, q = bucket.params[0]._xp, bucket.common["q"]
        shares, rest = bucket.views, dict(zip(bucket.params, bucket.views_of("residual")))
        dense = [p for p in bucket.params if p not in q]
        if not self.warm_start and bucket.step > self.start_step:
            self.prepare_again(bucket)
        a, q_in = {}, {}
        for p in q:
            n, m, _ = self.thin(p)
            a[p], rest[p] = (x.reshape(n, m) if x.shape[0] == n else x.reshape(m, n).T
                             for x in (shares[p], rest[p]))
            a[p] += rest[p]
            q_in[p] = orthonormal(xp, q[p])
        p_out = self.summed(t, bucket, [*(a[p] @ q_in[p] for p in q), *(shares[p] for p in dense)],
                            "P, and the tensors that go whole")
        for p, whole in zip(dense, p_out[len(q):]):
            shares[p][...] = whole
        left = {p: orthonormal(xp, x) for p, x in zip(q, p_out)}
        own = {p: a[p].T @ left[p] for p in q}
        # The errors are computed now: the next loop overwrites `a`, which is a view of the bucket.
        for p in q:
            xp.subtract(a[p], product(left[p], own[p], a[p]), out=rest[p])
        for p, total in zip(q, self.summed(t, bucket, list(own.values()), "Q")):
            q[p][...] = total
            a[p][...] = product(left[p], total, a[p])

    def summed(self, t, bucket, arrays, what):
        """Returns the sums of the arrays over ranks, by one all-reduce. what: the name of this
        all-reduce in error messages."""
        if not arrays:
            return []
        xp = bucket.params[0]._xp
        whole = xp.concatenate([x.reshape(-1) for x in arrays])
        with about(what):
            bucket.all_reduce(t, whole)
        ends = np.cumsum([x.size for x in arrays]).tolist()
        return [whole[end - x.size:end].reshape(x.shape) for x, end in zip(arrays, ends)]

    def prepare_again(self, bucket):
        """Fills each Q with new random numbers. They are the same on all ranks."""
        generator = Generator(self.seed + 1 + bucket.step)
        for q in bucket.common["q"].values():
            q[...] = bucket.params[0]._xp.asarray(generator.normal(*q.shape, dtype=np.float64))

    def bytes_sent(self, t, bucket, step):
        def sent(n_elems):
            return ring.bytes_sent(n_elems, bucket.flat.itemsize, t.size, t.rank)

        sizes = [self.thin(p) for p in bucket.params]
        if step < self.start_step:
            return sent(bucket.flat.size)
        dense = sum(p.numel() for p, size in zip(bucket.params, sizes) if size is None)
        return (sent(dense + sum(n * r for n, _, r in filter(None, sizes)))
                + sent(sum(m * r for _, m, r in filter(None, sizes))))


def product(p, q, like):
    """Returns P Q' in the memory order of `like` (by rows or by columns). If two arrays have
    different orders, their subtraction takes four times as long."""
    return p @ q.T if like.flags.c_contiguous else (q @ p.T).T


def orthonormal(xp, x):
    """Returns a matrix with orthonormal columns. They span all columns of x. The matrix is computed
    by Householder's QR, which also works for columns of zeros. Gram-Schmidt divides by 0 for a
    column of zeros."""
    return xp.linalg.qr(x)[0]
