"""Local SGD and DiLoCo: ranks train by themselves, and communicate only after every H steps.

    rank 0   w ─ step ─ step ─► w0 ─┐              ┌─ w ─ step ─ step ─► ...
    rank 1   w ─ step ─ step ─► w1 ─┼─ all-reduce ─┼─ w ─ step ─ step ─► ...        H = 2
    rank 2   w ─ step ─ step ─► w2 ─┘              └─ w ─ step ─ step ─► ...

    local SGD    w = mean of w0, w1, w2
    DiLoCo       d = mean of w - w0, w - w1, w - w2
                 m = momentum * m + d
                 w = w - rate * (d + momentum * m)

On average the ranks have gone from w to w - d. So d has the sign of a gradient: the loss falls in
the direction of -d. DiLoCo uses d as a gradient of w, and does one step of SGD with it. Its
momentum is Nesterov's: the step is d + momentum * m, and not m.

Local SGD is DiLoCo with rate 1 and momentum 0. The sum m contains the d of earlier rounds. With
this momentum, H can be several hundred.

A rank sends the weights once in H steps. Data parallel training sends gradients of the same size in
each step. So local SGD sends 1/H of the bytes. The price: a step of a rank uses only the rank's own
samples. The mean of w0, w1, w2 differs from the weights that one rank with all samples would get.
The two are equal only with H = 1 and plain SGD.

Papers: Stich, "Local SGD Converges Fast and Communicates Little", 2019; Douillard et al., "DiLoCo:
Distributed Low-Communication Training of Language Models", 2023. This page is the plain version.
The real one, minidl/parallel/data/local_sgd.py and minidl/parallel/data/diloco.py, adds: data
parallel steps at the beginning, periods that depend on the loss, rounds without slow ranks, parts
of the weights that are sent while the ranks continue to train, and the averages of batch norm.
"""

import numpy as np

from minidl.plain import ring


def mean(t, x):
    """Returns the mean of all ranks' x, a new array."""
    return ring.all_reduce(t, x.flatten()).reshape(x.shape) / t.size


def local_sgd(t, weights, step, n_steps, period):
    """Trains n_steps steps, in place. Every `period` steps the weights are averaged over the ranks.

    step(weights) does one step of any optimizer on this rank's samples, in place."""
    for i in range(1, n_steps + 1):
        step(weights)
        if i % period == 0:
            for w in weights:
                w[...] = mean(t, w)


def diloco(t, weights, step, n_steps, period, rate=0.7, momentum=0.9):
    """Trains like local_sgd. But at the end of a round, the ranks do not continue with the mean of
    their weights. They do one step of SGD on the weights from the start of the round. The gradient
    of this step is d, the mean over ranks of (weights at the start - weights at the end). rate,
    momentum: the learning rate and the momentum of this step."""
    common = [w.copy() for w in weights]  # `common` and `ms` are equal on all ranks
    ms = [np.zeros_like(w) for w in weights]
    for i in range(1, n_steps + 1):
        step(weights)
        if i % period == 0:
            for w, start, m in zip(weights, common, ms):
                d = mean(t, start - w)
                m *= momentum
                m += d
                start -= rate * (d + momentum * m)
                w[...] = start


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        def step(weights):
            weights[0] -= t.rank / 2  # rank 0 does not move, rank 1 moves by 1/2, rank 2 by 1

        result = []
        for n_steps in (2, 4, 6):
            one, other = [np.zeros(1)], [np.zeros(1)]
            local_sgd(t, one, step, n_steps, period=2)
            diloco(t, other, step, n_steps, period=2)
            result.append((one[0].round(2), other[0].round(2)))
        return result

    for n_rounds, (one, other) in enumerate(simulate(3, example)[0], 1):
        print("rounds", n_rounds, " local SGD", one, " DiLoCo", other)
