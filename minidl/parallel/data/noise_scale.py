"""The gradient noise scale tells up to which size a larger batch helps. `NoiseScale` measures it.

The gradient g_b of b samples is the true gradient G plus noise. So |g_b|^2 has the expected value
|G|^2 + S / b. S is the variance of one sample's gradient, summed over its elements. Data
parallelism has batches of two sizes. The small batch is rank k's share, with n_k samples and the
gradient g_k. The large batch is all shares together, with B = sum n_k samples. So

        small = mean over ranks of |g_k|^2 = |G|^2 + S u        u = mean of 1 / n_k
        large = |mean gradient|^2          = |G|^2 + S v        v = 1 / B
        S = (small - large) / (u - v)      |G|^2 = (u large - v small) / (u - v)

S / |G|^2 is a number of samples, B_simple. If the batch is far smaller than B_simple, a batch twice
as large needs half the steps. If the batch is far larger than B_simple, a larger batch saves almost
no steps. B_simple grows during training, because G shrinks while the loss falls.

S and |G|^2 are differences of noisy numbers, and the estimate of |G|^2 may be negative. So S and
|G|^2 are first averaged over many steps, and then the averages are divided. (The mean of the
quotients is another number.) No extra backward is needed: each bucket's squares are summed before
the bucket is sent, and again after it has been averaged. One all-reduce of 24 bytes combines the
ranks' sums.

        noise = NoiseScale(model)       # a DataParallel
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        noise.value                     # after some steps

Gradients must come from this step only: call zero_grad() before each synchronised backward. If the
loss scale changes, pass it: NoiseScale(model, loss_scale=scaler.get_scale).

Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.
Test: tests/parallel/data/test_noise_scale.py   Tutorial: tutorials/18_large_batch.py
"""

import math

import numpy as np

from minidl.comm import ring
from minidl.comm.labels import about
from minidl.cuda.grad_norm import square_sum_of
from minidl.parallel.data import header


def estimate(small, large, u, v):
    """Returns estimates of (|G|^2, S).

    small: the squared norm of the gradient of a small batch. u: 1 / the number of samples of this
    batch. large, v: the same two numbers for a large batch. Raises ValueError unless u > v."""
    if not u > v:
        raise ValueError("the noise scale wants fewer samples in the small batch than in the large "
                         f"batch, so u must be above v; got u={u}, v={v}")
    return (u * large - v * small) / (u - v), (small - large) / (u - v)


class NoiseScale:
    """Measures the noise scale at each synchronised backward of `model`, a DataParallel.

    beta: the weight of the old average in each running average. loss_scale: a function that returns
    the loss scale of this step, or None if the loss is not scaled. Raises TypeError if `model` is a
    ZeRO wrapper, and ValueError if there is only one rank."""

    def __init__(self, model, beta=0.95, loss_scale=None):
        reducer = model.reducer
        if not reducer.averages:
            raise TypeError(f"rank {model.t.rank}: the noise scale wants a DataParallel model, "
                            f"where each rank has whole gradients; got a {type(model).__name__}")
        if model.t.size == 1:
            raise ValueError("rank 0: the noise scale compares the gradients of several ranks; "
                             "wanted at least 2 ranks, got 1. Run on more ranks")
        self.model, self.beta, self.loss_scale = model, beta, loss_scale
        self.g2 = self.s = 0.0  # running averages of |G|^2 and of S
        self.small, self.large = [], []  # squared norms of this backward's buckets
        self.n_samples = 0
        reducer.observer = self
        self.on_end, reducer.on_end = reducer.on_end, self.ended

    def before(self, flat, n_samples):
        """Computes the squared norm of the local gradients in `flat`. The Reducer calls this before
        it sends a bucket."""
        self.n_samples = n_samples
        if n_samples:
            self.small.append(square_sum_of([flat]))

    def after(self, flat):
        """Computes the squared norm of the mean gradients in `flat`. The Reducer calls this when
        the bucket holds the mean over all ranks."""
        self.large.append(square_sum_of([flat]))

    def ended(self):
        """Sums the squared norms over the ranks, and updates the running averages. The Reducer
        calls this after a backward. Collective."""
        self.on_end()
        small, large = (sum(float(x[0]) for x in sums) for sums in (self.small, self.large))
        self.small, self.large = [], []
        row = np.array([small, 1 / self.n_samples, 1.0] if self.n_samples else [0.0] * 3)
        with about("the noise scale"):
            small, u, n_ranks = ring.all_reduce(self.model.t, row)
        n_total = header.n_samples(self.model.reducer.header)
        if n_ranks > 1 and math.isfinite(small + large):  # else the scaler skips this step
            scale = 1.0 if self.loss_scale is None else self.loss_scale()
            self.add(small / n_ranks / scale**2, large / scale**2, u / n_ranks, 1 / n_total)

    def add(self, small, large, u, v):
        """Adds one step's estimates to the running averages. Arguments: see estimate()."""
        g2, s = estimate(small, large, u, v)
        self.g2 += (1 - self.beta) * (g2 - self.g2)
        self.s += (1 - self.beta) * (s - self.s)

    @property
    def value(self):
        """The noise scale B_simple, a number of samples (a float). It is nan while the average of
        |G|^2 is not positive. The averages of S and |G|^2 began at 0, so they have the same bias.
        The bias cancels in their quotient."""
        return self.s / self.g2 if self.g2 > 0 else math.nan

    def state_dict(self):
        return {"g2": self.g2, "s": self.s}

    def load_state_dict(self, state):
        self.g2, self.s = float(state["g2"]), float(state["s"])

    def close(self):
        """Stops the measurement. Afterwards the model's Reducer no longer calls this object."""
        self.model.reducer.observer, self.model.reducer.on_end = None, self.on_end
