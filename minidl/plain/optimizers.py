"""Optimizers: how momentum, Adam, clipping and a schedule make a training step from a gradient.

g is the gradient of the loss with respect to the weights w, and has the same shape. Every operation
below works on each element by itself. There is one exception: the norm in clipping is one number
for all gradients together.

    momentum    v <- momentum * v + g                     a sum in which older gradients fade. Equal
                w <- w - lr * v                           signs add up, and changing signs cancel

    Adam        m <- b1 m + (1 - b1) g                    a mean of past g, in which older g fade
                v <- b2 v + (1 - b2) g^2                  the same mean of g^2
                w <- w - lr * m' / (sqrt(v') + eps)       for constant g, m' / sqrt(v') is 1 or -1:
                                                          a step of about lr, for any size of g
                m' = m / (1 - b1^t),  v' = v / (1 - b2^t)     t = 1, 2, ... m and v begin at 0 and
                                                              are too small at first. The divisor
                                                              1 - b^t corrects this

    clipping    all g <- all g * min(1, max_norm / norm),  norm = sqrt(sum of all g^2):
                the direction does not change, and one bad batch cannot move the weights far

    schedule    the lr of each step. It rises in a straight line during the warmup, when the weights
                are still random. Then it falls along half a cosine. The formula gives 0 at
                step `total`, but the last step is total - 1

Memory: momentum keeps one number for each weight, Adam keeps two.

Papers: Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013;
Kingma & Ba, "Adam", 2014; Pascanu et al., "On the difficulty of training recurrent neural
networks", 2012; Loshchilov & Hutter, "SGDR", 2016.
This page is the plain version. The real one, minidl/optim/adam.py and minidl/optim/clip.py, adds:
weight decay (AdamW), all weights updated in one pass over memory, weights of two bytes, and norms
of weights that are divided among ranks.
"""

import math

import numpy as np


def momentum_step(w, g, v, lr, momentum=0.9):
    """Does one step with momentum on w, in place. v: the velocity, zeros at first, changed in
    place."""
    v[...] = momentum * v + g
    w -= lr * v


def adam_step(w, g, m, v, t, lr, b1=0.9, b2=0.999, eps=1e-8):
    """Does step number t of Adam on w, in place. m, v: zeros at first, changed in place. t begins
    at 1."""
    m[...] = b1 * m + (1 - b1) * g
    v[...] = b2 * v + (1 - b2) * g**2
    mean = m / (1 - b1**t)  # m'
    mean_square = v / (1 - b2**t)  # v'
    w -= lr * mean / (np.sqrt(mean_square) + eps)


def clip(gradients, max_norm):
    """Scales all gradients in place, so that their norm together is at most max_norm. Returns the
    norm before clipping."""
    norm = math.sqrt(sum((g**2).sum() for g in gradients))
    scale = min(1, max_norm / (norm + 1e-6))  # 1e-6 prevents a division by 0
    for g in gradients:
        g *= scale
    return norm


def schedule(step, warmup, total, lr):
    """Returns the learning rate of a step. step: from 0 to total - 1. lr: the largest rate."""
    if step < warmup:
        return lr * (step + 1) / warmup
    way = (step - warmup) / (total - warmup)  # from 0 to almost 1
    return lr * (1 + math.cos(math.pi * way)) / 2


if __name__ == "__main__":
    w, v = np.zeros(1), np.zeros(1)
    for _ in range(3):
        momentum_step(w, np.array([1.0]), v, lr=1.0, momentum=0.5)
        print("momentum: v", v, " w", w)

    w, g = np.zeros(2), np.array([100.0, -0.001])
    adam_step(w, g, np.zeros(2), np.zeros(2), t=1, lr=0.1)
    print("Adam's first step:", w.round(3))

    gradients = [np.array([3.0]), np.array([0.0, 4.0])]
    print("norm", clip(gradients, max_norm=1.0), " clipped", *[g.round(3) for g in gradients])
    print("schedule", *[round(schedule(step, 2, 6, lr=1.0), 2) for step in range(6)])
