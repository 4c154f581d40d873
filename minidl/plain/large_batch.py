"""Large batches: with more samples in a step, the learning rate grows, and each layer has its own.

Many ranks make the batch large. A step on 8 times as many samples should go about 8 times as far,
or training needs 8 times as many samples. Three rules:

    linear scaling   rate = base rate * batch / base batch
    warm-up          at first so large a step would be wild: weights and gradients change fast. So
                     the rate begins at the base rate, and rises by the same amount every step
    layer by layer   one rate does not fit all layers: |g| / |w|, the gradient's length divided by
                     the weights', differs between them by factors of 100 and more. LARS and LAMB
                     make a step as long as a share of |w|, however long g is

    LARS    local = trust * |w| / (|g| + decay * |w|)
            v = momentum * v + rate * local * (g + decay * w)
            w = w - v

    LAMB    m and v as in Adam, corrected for their start at 0
            r = m / (sqrt(v) + eps) + decay * w
            w = w - rate * |w| / |r| * r

|w| is the length of all weights of a layer together, the root of the sum of their squares.

Papers: Goyal et al., "Accurate, Large Minibatch SGD", 2017; You et al., "Large Batch Training of
Convolutional Networks", 2017 (LARS); You et al., "Large Batch Optimization for Deep Learning", 2019
(LAMB). The real one, minidl/optim/lars.py and minidl/optim/lamb.py, adds: layers whose weights or
gradients are all 0, layers that keep the common rate, bounds for the ratio, kernels that update all
layers in one pass, and lengths of layers that are cut into parts on several ranks.
"""

import numpy as np


def learning_rate(step, base_rate, batch, base_batch, n_warmup):
    """The rate of a step, counted from 0: from base_rate to the scaled rate in n_warmup steps."""
    scaled = base_rate * batch / base_batch
    return base_rate + (scaled - base_rate) * min(step / n_warmup, 1)


def length(x):
    return np.sqrt(np.sum(x * x))


def lars(w, g, v, rate, momentum=0.9, decay=5e-4, trust=1e-3):
    """One step of LARS on one layer: weights w and velocity v change in place."""
    local = trust * length(w) / (length(g) + decay * length(w))
    v *= momentum
    v += rate * local * (g + decay * w)
    w -= v


def lamb(w, g, m, v, step, rate, beta1=0.9, beta2=0.999, eps=1e-6, decay=0.01):
    """One step of LAMB on one layer, counted from 1: w, m and v change in place."""
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    m_corrected = m / (1 - beta1**step)
    v_corrected = v / (1 - beta2**step)
    r = m_corrected / (np.sqrt(v_corrected) + eps) + decay * w
    w -= rate * length(w) / length(r) * r


if __name__ == "__main__":
    print("rates", *[round(learning_rate(step, 0.1, 1024, 256, 3), 2) for step in range(5)])
    for g in (np.array([0.6, 0.8]), np.array([600.0, 800.0])):
        w, v = np.array([3.0, 4.0]), np.zeros(2)
        lars(w, g, v, rate=1, decay=0, trust=0.1)
        print("LARS", w.round(3), " gradient", g)
    w, m, v = np.array([3.0, 4.0, 0.0, 0.0]), np.zeros(4), np.zeros(4)
    lamb(w, np.array([1.0, 20.0, 300.0, 4000.0]), m, v, step=1, rate=0.2, decay=0)
    print("LAMB", w.round(3))
