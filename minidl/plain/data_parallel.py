"""Data parallel training: every rank has the whole model, and a part of the batch.

    rank 0   weights ── part 0 ──► gradient 0 ─┐
    rank 1   weights ── part 1 ──► gradient 1 ─┼─ all-reduce ──► the mean gradient ──► the same step
    rank 2   weights ── part 2 ──► gradient 2 ─┘                 on all ranks

The loss is a mean over samples, and so is its gradient. Rank r has m_r of the m samples:

    gradient of the whole batch = sum over r of  m_r / m * gradient of part r

All ranks begin with the same weights and take the same steps. So their weights stay equal, and the
result is the same as on one rank with the whole batch.

Paper: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
This page is the plain version. The real one, minidl/parallel/data/data_parallel.py, adds: messages
with the first gradients, which are sent while backward computes the others (page buckets);
parameters without a gradient on some rank; ranks without samples; and several batches between two
all-reduces.
"""

import numpy as np

from minidl.plain import ring


def mean_gradients(t, gradients, n_samples):
    """Returns the mean of the ranks' gradients. A rank with more samples has more weight.

    gradients: this rank's gradients, a list of arrays. n_samples: how many samples this rank
    has."""
    total = ring.all_reduce(t, np.array([float(n_samples)]))[0]  # m, the number of all samples
    means = []
    for g in gradients:
        flat = g.ravel() * (n_samples / total)
        means.append(ring.all_reduce(t, flat).reshape(g.shape))
    return means


def step(t, weights, gradients, inputs, targets, lr):
    """Does one step of gradient descent, in place.

    gradients(weights, inputs, targets) returns a list of arrays: the gradients of the mean loss
    over this rank's part of the batch."""
    means = mean_gradients(t, gradients(weights, inputs, targets), len(inputs))
    for w, g in zip(weights, means):
        w -= lr * g


if __name__ == "__main__":
    from minidl.comm import simulate

    def gradients(weights, inputs, targets):  # the loss is the mean of (w x - y)^2 / 2
        w, = weights
        return [np.mean((w * inputs - targets) * inputs, keepdims=True)]  # an array of one number

    def example(t):
        inputs = np.array([1.0, 2.0, 3.0])[t.rank::t.size]  # rank 0: 1 and 3, rank 1: 2
        weights = [np.array([0.0])]
        for _ in range(20):
            step(t, weights, gradients, inputs, 5 * inputs, lr=0.1)
        return weights[0].round(2)

    print(simulate(2, example))
