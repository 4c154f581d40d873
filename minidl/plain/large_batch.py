"""Large batches: more samples in a step need a larger learning rate, and each layer has its own.

With many ranks the batch is large. The gradient is a mean over the batch. So with 8 times as many
samples the gradient is more exact, but its norm does not grow. The same number of samples takes an
eighth of the steps, so each step should go about 8 times as far. Three rules:

    linear scaling   rate = base rate * batch / base batch
    warm-up          the first gradients change fast from step to step, and long steps go in wrong
                     directions. So the rate begins at the base rate, and rises by the same amount
                     every step
    layer by layer   one rate does not fit all layers. Compared with the weights w, the gradient g
                     of one layer can be 100 times shorter than the gradient of another. In LARS and
                     LAMB the length of a step is a share of |w|, for any length of g. In LARS the
                     share is rate * trust, and momentum then adds earlier steps. In LAMB the share
                     is rate

    LARS    v: velocity, a sum of steps in which older steps fade. decay: pulls weights towards 0
            local = trust * |w| / (|g| + decay * |w|)
            v = momentum * v + rate * local * (g + decay * w)
            w = w - v

    LAMB    m, v: means of past g and g^2, as in Adam (page optimizers), corrected for their
            start at 0. r: the direction of Adam's step
            r = m / (sqrt(v) + eps) + decay * w
            w = w - rate * |w| / |r| * r

|w| is the length of all weights of a layer together: the square root of the sum of their squares.

Papers: Goyal et al., "Accurate, Large Minibatch SGD", 2017; You et al., "Large Batch Training of
Convolutional Networks", 2017 (LARS); You et al., "Large Batch Optimization for Deep Learning", 2019
(LAMB). This page is the plain version. The real one, minidl/optim/lars.py and minidl/optim/lamb.py,
adds: layers whose weights or gradients are all 0, layers that keep the common rate, bounds for |w|
/ |r|, kernels that update all layers in one pass, and layers that are cut into parts on several
ranks.
"""

import numpy as np


def learning_rate(step, base_rate, batch, base_batch, n_warmup):
    """Returns the learning rate of a step. The steps are counted from 0. The rate rises from
    base_rate to the scaled rate in n_warmup steps."""
    scaled = base_rate * batch / base_batch
    return base_rate + (scaled - base_rate) * min(step / n_warmup, 1)


def length(x):
    return np.sqrt(np.sum(x * x))


def lars(w, g, v, rate, momentum=0.9, decay=5e-4, trust=1e-3):
    """Does one step of LARS on one layer. Changes the weights w and the velocity v in place."""
    local = trust * length(w) / (length(g) + decay * length(w))
    v *= momentum
    v += rate * local * (g + decay * w)
    w -= v


def lamb(w, g, m, v, step, rate, beta1=0.9, beta2=0.999, eps=1e-6, decay=0.01):
    """Does one step of LAMB on one layer. Changes w, m and v in place. step: counted from 1."""
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
