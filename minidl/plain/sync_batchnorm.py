"""Batch norm over all ranks: each channel uses the mean and the variance of the whole batch.

    y = weight * (x - mean) / sqrt(variance + eps) + bias        for each channel, a column of x

In data parallel training a rank sees a part of the batch. The mean of a small part can be far from
the mean of the batch, so every rank would use a different mean and variance. So here the ranks
first add up their sums. All ranks together have n samples. `normal` is (x - mean) / sqrt(...), and
g is the gradient of the loss with respect to y:

    forward     mean = (sum of x) / n
                variance = (sum of (x - mean)^2) / n
    backward    gx = weight / sqrt(variance + eps)
                     * (g - (sum of g) / n - normal * (sum of g * normal) / n)

Every sum goes over all samples of all ranks: it is an all-reduce of one number for each channel.
The second term of gx, with the sum of g, is there because x also changes the mean. The third term
is there because x also changes the variance. The gradients of weight and bias are sums over this
rank's samples only. Later, data parallel training adds the gradients of all weights over the ranks,
also the gradients of weight and bias.

For C channels there are two all-reduces of C numbers in forward, and two in backward. One more
all-reduce, of one number, adds up n.

Papers: Ioffe & Szegedy, "Batch Normalization", 2015; Peng et al., "MegDet: A Large Mini-Batch
Object Detector", 2018. This page is the plain version. The real one,
minidl/parallel/data/sync_batchnorm.py, adds: one message in forward and one in backward; running
averages for evaluation; images; weights for ranks whose losses are means over unequal parts; and
ranks without samples.
"""

import numpy as np

from minidl.plain import ring


def total(t, numbers):
    """Returns the sum of the numbers of all ranks, element by element."""
    return ring.all_reduce(t, np.array(numbers, float))


def batch_norm(t, x, weight, bias, eps=1e-5):
    """Returns y and a function: backward(g) returns the gradients of x, weight and bias.

    x: this rank's samples, (samples, channels)."""
    n = total(t, [len(x)])
    mean = total(t, x.sum(0)) / n
    variance = total(t, ((x - mean)**2).sum(0)) / n
    scale = 1 / np.sqrt(variance + eps)
    normal = (x - mean) * scale

    def backward(g):
        g_bias = g.sum(0)
        g_weight = (g * normal).sum(0)
        through_mean = total(t, g_bias) / n
        through_variance = normal * total(t, g_weight) / n
        gx = weight * scale * (g - through_mean - through_variance)
        return gx, g_weight, g_bias

    return weight * normal + bias, backward


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        x = np.array([[1.0], [1.0]]) if t.rank == 0 else np.array([[3.0], [3.0]])
        y, backward = batch_norm(t, x, weight=np.ones(1), bias=np.zeros(1), eps=0)
        g = np.array([[1.0], [0.0]]) if t.rank == 0 else np.array([[0.0], [0.0]])
        gx, g_weight, g_bias = backward(g)
        return y.ravel(), gx.ravel()

    for rank, (y, gx) in enumerate(simulate(2, example)):
        print("rank", rank, " y", y, " gradient of x", gx)
