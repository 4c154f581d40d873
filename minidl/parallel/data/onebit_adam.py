"""1-bit Adam: Adam that sends one bit for each element.

    warm-up, steps 1 ... T     whole gradients are sent; m and v are computed as in Adam
    afterwards                 v keeps its value of step T
                               m = sum over n ranks of code(b1 m / n + (1 - b1) g + residual)
    step t of every rank       m / (1 - b1^t) / (sqrt(v / (1 - b2^min(t, T))) + eps)
    m, v: Adam's moments. g: the rank's share of the mean gradient. b1, b2: betas

Error feedback corrects coding errors only if the step is linear in the coded array. Adam's step is
not linear in the gradient, because v squares it. But after some steps v changes only a little. With
a constant v, Adam is momentum SGD with a learning rate for each weight: its step is linear in m. So
m is coded, and v does not change. The code of an array is one sign for each element, and one scale
(comm/codec.py). m is coded twice. First each rank codes the parts of m that it sends. Then, for
each part, one rank adds what it has received, and codes the sum. The residual keeps the errors of
the two codings (comm/compressed.py). This sends 1/32 of the bytes of float32.

The result is Adam's step without the learning rate. optim.SGD(momentum=0) applies this step. Then
the weight decay of optim.SGD has the same effect as in AdamW. If a weight got no gradient in the
warm-up, its v is 0. This weight is not changed, because its step is only the noise of the code,
divided by eps. So the warm-up should use all of the data.

        model = Compressed(net, t, OneBitAdam(warm_up_steps=1000))
        optimizer = optim.SGD(net.parameters(), lr=1e-3, weight_decay=0.01)

Source: Tang et al. 2021 (arXiv 2102.02888). The paper does not correct the bias of m and v. Here
the bias is corrected as in Adam, so the warm-up equals Adam up to rounding.
Test: tests/parallel/data/test_onebit_adam.py, test_compress.py
"""

import math

from minidl.comm import codec, compressed, ring
from minidl.parallel.data import flat
from minidl.parallel.data.compress import Method, wants_plain_sgd


class OneBitAdam(Method):
    """1-bit Adam. Use: Compressed(net, t, OneBitAdam(...)).

    warm_up_steps: the number T of the table at the top of the file. It must be at least 1. betas,
    eps: as in Adam. codec: a codec of comm/codec.py. The paper uses ONE_BIT. With ONE_BIT_MEAN the
    norm of the error is never larger than the norm of the array. INT8 sends a quarter of the bytes
    of float32. Raises ValueError for a number out of its range."""

    def __init__(self, warm_up_steps=100, betas=(0.9, 0.999), eps=1e-8, codec=codec.ONE_BIT):
        if warm_up_steps < 1 or eps <= 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError("OneBitAdam wants warm_up_steps of at least 1, eps over 0 and betas "
                             f"in [0, 1); got warm_up_steps={warm_up_steps}, eps={eps}, "
                             f"betas={betas}")
        self.warm_up_steps, self.betas, self.eps, self.codec = warm_up_steps, betas, eps, codec

    def __repr__(self):
        return f"OneBitAdam(warm_up_steps={self.warm_up_steps}, betas={self.betas})"

    def prepare(self, bucket):
        bucket.moments = [bucket.params[0]._xp.zeros_like(bucket.flat) for _ in range(2)]
        shapes = [p.shape for p in bucket.params]
        for kind, whole in zip(("exp_avg", "exp_avg_sq"), bucket.moments):
            bucket.common[kind] = dict(zip(bucket.params, flat.views(whole, shapes)))

    def check(self, rank, optimizer, group):
        wants_plain_sgd("1-bit Adam", rank, optimizer, group)

    def reduce(self, t, bucket):
        xp, (b1, b2), g, (m, v) = bucket.params[0]._xp, self.betas, bucket.flat, bucket.moments
        step = bucket.step + 1
        if step <= self.warm_up_steps:
            bucket.all_reduce(t, g)
            m *= b1
            m += (1 - b1) * g
            v *= b2
            v += (1 - b2) * xp.square(g)
        else:
            g *= 1 - b1
            m *= b1 / t.size  # all n ranks have the same m, so each rank sends m / n
            m += g
            compressed.all_reduce(t, m, self.codec, residual=bucket.own["residual"])
        size = xp.sqrt(v)
        size /= math.sqrt(1 - b2 ** min(step, self.warm_up_steps))
        size += self.eps
        xp.divide(m, size, out=g)
        g /= 1 - b1 ** step
        if step > self.warm_up_steps:
            g[v == 0] = 0

    def bytes_sent(self, t, bucket, step):
        if step < self.warm_up_steps:
            return ring.bytes_sent(bucket.flat.size, bucket.flat.itemsize, t.size, t.rank)
        return compressed.bytes_sent(bucket.flat.size, self.codec, t.size, t.rank)
