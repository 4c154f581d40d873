"""Deep gradient compression: send the largest thousandth of the gradient now, and the rest later.

The plain form: minidl/plain/dgc.py. Here a tensor of L elements sends its k largest elements, with
k = ceil(L (1 - sparsity)). The sparsity rises during warm-up. Gradients may be clipped. Small
tensors send all elements. All tensors of a bucket travel in one message. u and v are the momentum
and the accumulated updates of the plain form. u already contains the momentum. An optimizer with
momentum would apply the momentum a second time, so the optimizer must be optim.SGD without
momentum. The optimizer's weight decay acts without momentum, on every weight in every step.

    bytes that each of n ranks sends    all elements, around a ring       2 (n-1)/n 4L
                                        k pairs, by an all-gather         (n-1) 8k
    all elements divided by k pairs     L / (n k) = 1/(n rho), rho = k / L
    at rho = 0.001                      125 on 8 ranks, 1 on 1,000 ranks
    A pair has 8 bytes: an index and a value. Every rank gets every rank's pairs.

Tensors of one dimension (biases, norms) and tensors with fewer than `min_size` elements send all
their elements in every step. Momentum acts on these tensors, too. Training starts with warm-up: at
first most weights change fast, and old gradients do harm. So the sparsity rises in stages of
`stage_steps` steps. It may take about 1 / rho steps until an element is sent. So in a short run,
the warm-up must be a large part of the steps. The paper trains for tens of epochs; four of these
epochs are warm-up (docs/compression.md has the losses).

clip_norm bounds the norm of each tensor's gradient before the gradient is added to u. A rank has
only its share of the mean gradient; the mean is the sum of the n shares. If the shares are
independent noise, the norm of their sum is sqrt(n) times the norm of a share. So each share is
clipped to clip_norm / sqrt(n). DGC does not clip v, because v is the sum of many steps.

        model = Compressed(net, t, DGC(momentum=0.9, warm_up=..., stage_steps=len(loader)))
        optimizer = optim.SGD(net.parameters(), lr=0.1)

Source: Lin, Han, Mao, Wang & Dally 2018 (arXiv 1712.01887). The paper estimates a threshold from
some of the elements, and sends 0.8 k to 1.3 k pairs. Here each rank sends exactly k pairs
(topk_mask.py), so no rank has to send the number of its pairs.
Test: tests/parallel/data/test_dgc.py, test_compress.py   Tutorial: tutorials/16_dgc.py
"""

import math

from minidl.comm import compressed, ring
from minidl.comm.labels import about
from minidl.parallel.data import topk_mask
from minidl.parallel.data.compress import Method, wants_plain_sgd

# The sparsities of the paper's stages. Each stage sends a quarter as many elements as the previous
# stage. In the last stage 99.6 % of the elements are not sent.
WARM_UP = (0.75, 0.9375, 0.984375, 0.996)


class DGC(Method):
    """Sends the largest accumulated updates (v). Use: Compressed(net, t, DGC(...)).

    momentum:    the number m in u = m u + g, v = v + u. g is the gradient. With 0 there is no
                 momentum, and u is g
    sparsity:    the fraction of each tensor's elements that is not sent
    warm_up:     a list of the sparsities of the warm-up stages
    stage_steps: the number of steps of a warm-up stage; use the number of steps of an epoch. With 0
                 there is no warm-up
    clip_norm:   see the top of the file. With None nothing is clipped
    nesterov:    if True, u = m (u + g), v = v + u + g
    masking:     if True, an element of u becomes 0 when the same element of v is sent, as in the
                 paper. Use False only to compare
    min_size:    tensors with fewer elements than this send all their elements

    Raises ValueError for a number out of its range."""

    kinds = ("momentum", "residual")

    def __init__(self, momentum=0.9, sparsity=0.999, warm_up=WARM_UP, stage_steps=0, clip_norm=None,
                 nesterov=False, masking=True, min_size=1024):
        if not (0 <= momentum < 1 and all(0 <= s < 1 for s in (*warm_up, sparsity))):
            raise ValueError("DGC wants momentum, sparsity and each number of warm_up in [0, 1); "
                             f"got momentum={momentum}, sparsity={sparsity}, warm_up={warm_up}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"DGC wants clip_norm over 0, or clip_norm=None; got {clip_norm}")
        self.momentum, self.sparsity, self.clip_norm = momentum, sparsity, clip_norm
        self.warm_up, self.stage_steps = tuple(warm_up), stage_steps
        self.nesterov, self.masking, self.min_size = nesterov, masking, min_size

    def check(self, rank, optimizer, group):
        if self.momentum:
            wants_plain_sgd("DGC", rank, optimizer, group)

    def sparsity_at(self, step):
        """Returns the sparsity of a step. Steps are counted from 0."""
        stage = step // self.stage_steps if self.stage_steps else len(self.warm_up)
        return (*self.warm_up, self.sparsity)[min(stage, len(self.warm_up))]

    def n_sent(self, p, step):
        """Returns the number of elements of p that are sent in a step. Returns None if all elements
        are sent; then no indices are sent."""
        if len(p.shape) < 2 or p.numel() < self.min_size:
            return None
        # round() comes before ceil(), because 1 - 0.999 is a little more than 0.001
        return math.ceil(round(p.numel() * (1 - self.sparsity_at(step)), 6))

    def reduce(self, t, bucket):
        xp = bucket.params[0]._xp
        self.accumulate(t.size, bucket)
        # `momentum` has u of each parameter, and `rest` has v. They are views of this rank's two
        # arrays for the bucket.
        momentum, rest = bucket.views_of("momentum"), bucket.views_of("residual")
        dense, index, value, at = [], [], [], 0
        for p, u, v in zip(bucket.params, momentum, rest, strict=True):
            k = self.n_sent(p, bucket.step)
            if k is None:
                dense.append((bucket.views[p], v))
            else:
                where, what = topk_mask.top_k(v.reshape(-1), k)
                what = what.astype("f4")  # sent in float32; a float64 v keeps the rounding error
                v.reshape(-1)[where] -= what
                if self.masking:
                    u.reshape(-1)[where] = 0
                index.append(where + xp.int32(at))
                value.append(what)
            at += p.numel()
        with about("the tensors that go whole"):
            whole = xp.concatenate([v.reshape(-1) for _, v in dense] or [bucket.flat[:0]])
            if dense:
                bucket.all_reduce(t, whole)
        if index:
            pairs = xp.concatenate(index), xp.concatenate(value)
            bucket.flat[...] = compressed.sparse_all_reduce(t, *pairs, len(bucket.flat), equal=True)
        at = 0
        for out, v in dense:
            out[...] = whole[at:at + v.size].reshape(v.shape)
            v[...] = 0
            at += v.size

    def accumulate(self, n, bucket):
        """Clips the shares in bucket.flat, and adds them to u and v. n: the number of ranks."""
        if self.clip_norm is not None:
            limit = self.clip_norm / math.sqrt(n)
            for g in bucket.views.values():
                norm = math.sqrt(float((g * g).sum()))
                if norm > limit:
                    g *= limit / norm
        g, u, v = bucket.flat, bucket.own["momentum"], bucket.own["residual"]
        if self.nesterov:
            u += g
            u *= self.momentum
            v += g
        else:
            u *= self.momentum
            u += g
        v += u

    def bytes_sent(self, t, bucket, step):
        counts = {p: self.n_sent(p, step) for p in bucket.params}
        dense = sum(p.numel() for p, k in counts.items() if k is None)
        pairs = sum(k for k in counts.values() if k is not None)
        return (ring.bytes_sent(dense, bucket.flat.itemsize, t.size, t.rank)
                + 8 * pairs * (t.size - 1))
