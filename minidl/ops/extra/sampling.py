"""Random choices with given probabilities.

    bernoulli(p)             1 with probability p, else 0, for each element
    multinomial(w, k)        k indices: index i has the probability w_i / sum(w)

With replacement: the weights divide [0, 1) into intervals. A uniform random number chooses an
interval.
Without replacement: each index i gets a random time, exponential with rate w_i. The k indices with
the smallest times are the sample (a race). The host draws all random numbers (minidl/random.py), so
that every device gets the same numbers.
Source: Efraimidis & Spirakis 2006 (the race).   Test: tests/ops/extra/test_sampling.py
"""

import numpy as np

from minidl.function import Function
from minidl.ops.extra.sort import order
from minidl.random import default_generator


class Bernoulli(Function):
    """1 where a uniform number is below the probability, else 0. The gradient is 0."""

    def forward(self, p, generator):
        if p.size and not (p.min() >= 0 and p.max() <= 1):
            raise ValueError("bernoulli: wants probabilities from 0 to 1; got numbers from "
                             f"{p.min()} to {p.max()}")
        u = self.xp.asarray(generator.uniform(p.shape, dtype=np.float64))
        return (u < p).astype(p.dtype)

    def backward(self, gy):
        return self.xp.zeros_like(gy)


class Multinomial(Function):
    """k random indices into the last dimension of w: (k,), or (rows, k)."""
    differentiable = False

    def forward(self, w, k, replacement, generator):
        xp = self.xp
        if w.ndim not in (1, 2) or w.dtype.kind != "f":
            raise ValueError(f"multinomial: wants floating weights (n,) or (rows, n), got "
                             f"{w.dtype} of shape {tuple(w.shape)}")
        w = w.astype(np.float64)
        if not (xp.isfinite(w).all() and (w >= 0).all() and (w.sum(axis=-1) > 0).all()):
            raise ValueError("multinomial: all weights must be finite and 0 or more, and each row "
                             "must have a weight above 0")
        if replacement:
            ends = w.cumsum(axis=-1)
            u = xp.asarray(generator.uniform((*w.shape[:-1], k), dtype=np.float64))
            # A number is in interval i if exactly i ends are <= the number. Because of rounding
            # this count may be too large. So the count is limited to the last index with a weight
            # above 0.
            drawn = (u * ends[..., -1:])[..., None]
            last = w.shape[-1] - 1 - (w > 0)[..., ::-1].argmax(axis=-1)
            return xp.minimum((ends[..., None, :] <= drawn).sum(axis=-1), last[..., None])
        if k > (w > 0).sum(axis=-1).min():
            raise ValueError(f"multinomial: {k} different indices need {k} weights above 0; got a "
                             f"row with {int((w > 0).sum(axis=-1).min())} such weights. With "
                             "replacement=True an index may be drawn several times")
        u = xp.asarray(generator.uniform(w.shape, dtype=np.float64))
        arrival = xp.where(w > 0, -xp.log1p(-u) / xp.where(w > 0, w, 1), np.inf)
        return order(xp, arrival, w.ndim - 1)[..., :k]


def bernoulli(input, p=None, *, generator=None):
    """Returns 0 or 1 for each element, in the input's dtype. The probability of a 1 is the element,
    or `p` if given. Raises ValueError if a probability is not between 0 and 1."""
    p = input if p is None else input * 0 + p
    return Bernoulli.apply(p, generator=generator or default_generator())


def multinomial(input, num_samples, replacement=False, *, generator=None):
    """Draws num_samples indices for each row of weights `input`, (n,) or (rows, n). The weights
    need not sum to 1. replacement: True if an index may be drawn several times."""
    if num_samples < 1:
        raise ValueError(f"multinomial: num_samples must be 1 or more; got {num_samples}")
    return Multinomial.apply(input, k=int(num_samples), replacement=replacement,
                             generator=generator or default_generator())
