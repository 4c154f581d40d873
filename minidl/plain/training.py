"""Training: a small network learns to classify, by gradient descent on the cross entropy.

    x ──► @ w0 + b0 ──► relu ──► @ w1 + b1 ──► scores ──► softmax ──► p ──► loss = -log p[target]

    scores     one number for each class. A row of x is a sample. Each sample has a row of scores
    softmax    p_c = e^score_c / (sum over classes of e^score): all positive, with the sum 1
    loss       the mean over the samples of -log p[target]. It is 0 if the network is sure and
               right, and log(n) if all n classes have the same probability
    a step     w <- w - lr * (the gradient of the loss with respect to w), for every weight

The gradient of one sample's loss with respect to its scores is p - onehot(target), where onehot is
1 at the target and 0 elsewhere. The code does not need this formula, because autograd computes the
gradient. The formula helps to check a step by hand. The log of the softmax is score_c - log(sum of
e^score). The code first subtracts the largest score from all scores. This does not change the log
of the softmax, and e^score cannot become too large for a float.

Source: Goodfellow, Bengio & Courville, "Deep Learning", 2016, chapter 6.
This page is the plain version. The real one, minidl/ops/cross_entropy.py and minidl/optim/sgd.py,
adds: softmax and logarithm in one operation with its own gradient, rows that are left out, weights
of classes, and one kernel that updates all weights.
"""

import numpy as np

from minidl.plain.autograd import Tensor, grad


def mlp(weights, x):
    """Returns the scores (samples, classes) of x (samples, features). weights: w0, b0, w1, ..."""
    for i in range(0, len(weights), 2):
        if i > 0:
            x = x.relu()
        x = x @ weights[i] + weights[i + 1]
    return x


def cross_entropy(scores, targets):
    """Returns the mean of -log softmax(scores)[target] over the rows. targets: ints (samples,)."""
    n = len(targets)
    # The maximum that is subtracted does not change the loss. So the maximum needs no gradient, and
    # .array takes it out of autograd.
    scores = scores - scores.array.max(axis=1, keepdims=True)
    log_p = scores - scores.exp().sum(1).log()  # sum(1) keeps the axis, with length 1
    return -log_p[np.arange(n), targets].sum() / n


def step(weights, x, targets, lr):
    """Does one step of gradient descent. Returns the loss before this step, and the new weights."""
    loss = cross_entropy(mlp(weights, Tensor(x)), targets)
    gradients = grad(loss, weights)
    return loss.array.item(), [Tensor(w.array - lr * g.array) for w, g in zip(weights, gradients)]


if __name__ == "__main__":
    x = np.array([[1.0], [-1.0]])  # two samples of one feature; a positive feature means class 0
    targets = np.array([0, 1])
    weights = [Tensor(np.zeros((1, 2))), Tensor(np.zeros(2))]  # one layer without relu
    for _ in range(2):
        loss, weights = step(weights, x, targets, lr=1.0)
        w = weights[0].array[0].round(3)
        print("loss before the step:", round(loss, 3), "  w after it:", w)
    print("right:", (mlp(weights, Tensor(x)).array.argmax(1) == targets).sum(), "of", len(targets))
