"""The gradient noise scale: how large a batch pays, measured while data parallelism trains.

    a gradient of b samples is the true one and noise:     E |g_b|^2 = |G|^2 + S / b
    data parallelism has two sizes of batch in hand:       rank k's share, n_k, and all, B = sum n_k

        small = mean over ranks of |g_k|^2 = |G|^2 + S u        u = mean of 1 / n_k
        large = |mean gradient|^2          = |G|^2 + S v        v = 1 / B
        S = (small - large) / (u - v)      |G|^2 = (u large - v small) / (u - v)

S / |G|^2 is a number of samples, B_simple. Far below it twice the batch halves the steps; far above
it buys nothing. It grows while the loss falls, as G shrinks.

Both are differences of noisy numbers, |G|^2 may come out negative: averages over many steps, each
by itself, then the quotient; the mean of quotients is something else. No pass is made for it: each
bucket's squares are summed before it is sent and when it has come, and one all-reduce of 24 bytes
joins the ranks.

        noise = NoiseScale(model)       # a DataParallel
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        noise.value                     # after some steps

Gradients must be of this step alone: zero_grad() before each synchronised backward. With a loss
scale that moves, give it: NoiseScale(model, loss_scale=scaler.get_scale).

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
    """(|G|^2, S) of the squared lengths of a small and of a large batch's gradient; u, v: one over
    the samples of each."""
    if not u > v:
        raise ValueError(f"want a large batch and smaller ones, got 1/b = {u}, 1/B = {v}")
    return (u * large - v * small) / (u - v), (small - large) / (u - v)


class NoiseScale:
    """Measures at each synchronised backward of `model`. beta: how much of the averages is kept."""

    def __init__(self, model, beta=0.95, loss_scale=None):
        reducer = model.reducer
        if not reducer.averages:
            raise TypeError(f"rank {model.t.rank}: the noise scale wants a plain DataParallel, "
                            f"which has whole gradients before and after; got "
                            f"{type(model).__name__}")
        if model.t.size == 1:
            raise ValueError("rank 0: one rank has one size of batch; the noise scale wants two. "
                             "Run on more ranks, or call add() with norms of micro-batches")
        self.model, self.beta, self.loss_scale = model, beta, loss_scale
        self.g2 = self.s = 0.0  # running averages
        self.small, self.large = [], []  # of each bucket of this backward
        self.n_samples = 0
        reducer.observer = self
        self.on_end, reducer.on_end = reducer.on_end, self.ended

    def before(self, flat, n_samples):
        """The Reducer's call: a bucket of local gradients is about to be sent."""
        self.n_samples = n_samples
        if n_samples:
            self.small.append(square_sum_of([flat]))

    def after(self, flat):
        """... it holds the mean of all ranks."""
        self.large.append(square_sum_of([flat]))

    def ended(self):
        self.on_end()
        small, large = (sum(float(x[0]) for x in sums) for sums in (self.small, self.large))
        self.small, self.large = [], []
        row = np.array([small, 1 / self.n_samples, 1.0] if self.n_samples else [0.0] * 3)
        with about("the noise scale"):
            small, u, n_ranks = ring.all_reduce(self.model.t, row)
        n_total = header.n_samples(self.model.reducer.header)
        if n_ranks > 1 and math.isfinite(small + large):  # inf: the scaler skips this step
            scale = 1.0 if self.loss_scale is None else self.loss_scale()
            self.add(small / n_ranks / scale**2, large / scale**2, u / n_ranks, 1 / n_total)

    def add(self, small, large, u, v):
        """One step's squared lengths into the averages."""
        g2, s = estimate(small, large, u, v)
        self.g2 += (1 - self.beta) * (g2 - self.g2)
        self.s += (1 - self.beta) * (s - self.s)

    @property
    def value(self):
        """B_simple, in samples; nan as long as the average of |G|^2 is not positive. (Both averages
        began at 0, so their quotient needs no correction.)"""
        return self.s / self.g2 if self.g2 > 0 else math.nan

    def state_dict(self):
        return {"g2": self.g2, "s": self.s}

    def load_state_dict(self, state):
        self.g2, self.s = float(state["g2"]), float(state["s"])

    def close(self):
        """Measure no more."""
        self.model.reducer.observer, self.model.reducer.on_end = None, self.on_end
