"""Losses for labels that come late: a sample x with label 0 now may have label 1 tomorrow.

    time ->   x ------- e ------- d ---->       A positive gets its label 1 after a delay d. At the
              |         |         |             earlier time e its label is still 0: it is a fake
              emitted   0         1, again      negative. If e is short, there are many fake
                                                negatives. A model that learns from them predicts
                                                probabilities that are too low

    the samples of the stream                                    loss                      e
    each x comes immediately, with label 0. A positive comes     fake_negative_weighted    0
        again, with label 1
    the same stream as above                                     calibrated                0
    each x comes at the time e, with its label at that time.     window_corrected          given
        A positive with d > e comes again, with label 1
    each x comes once, with its present label and the time       delayed_feedback          any
        since x was emitted

p is the true probability of a positive. In the first two streams each positive comes twice. So the
share of positives in the stream is b = p / (1 + p). There are two remedies:

    fake_negative_weighted   the weights 1 + p = p / b for y = 1, and (1 - p)(1 + p) for y = 0, give
                             the loss of the true labels. The p in the weights is the model's own
                             prediction, used as a constant without gradient
    calibrated               the loss has no weights, so the model predicts b. Then p = b / (1 - b)

With a window e, only positives with d > e come twice. The share of these positives among all x is
p_dp = P(y = 1, d > e). The weights are 1 + p_dp for y = 1, and (1 + p_dp) p_rn for y = 0. p_rn =
(1 - p) / (1 - p + p_dp) is the probability that a negative is real.

The losses take logits (n,) and labels (n,), each 0 or 1. They return the mean over the n samples.
Sources: Ktena et al. 2019 (RecSys, arXiv 1907.06558), the first two losses; Yang et al. 2021 (AAAI,
arXiv 2012.03245), the loss with a window; Chapelle 2014 (KDD), delayed_feedback.
Test: tests/nn/test_delayed.py   Used by: tutorials/train_clicks.py
"""

from minidl.nn import functional as F


def fake_negative_weighted(logits, labels):
    """Returns the mean of -[y (1 + p) log p + (1 - y) (1 - p)(1 + p) log(1 - p)], where p =
    sigmoid(logits) and y = labels. The weights 1 + p and (1 - p)(1 + p) are constants: they have no
    gradient. The result equals window_corrected with p_delayed = p."""
    return window_corrected(logits, labels, F.sigmoid(logits.detach()).array)


def calibrated(logits):
    """Returns an array (n,) without gradient: the probabilities p = b / (1 - b), at most 1. Here
    b = sigmoid(logits). Use this function if the model was trained with plain cross entropy on a
    stream in which positives come twice."""
    z = logits.detach().array
    return logits._xp.exp(logits._xp.minimum(z, 0))


def window_corrected(logits, labels, p_delayed):
    """Returns the mean of -[y (1 + p_dp) log p + (1 - y) (1 + p_dp) p_rn log(1 - p)], where p =
    sigmoid(logits), y = labels and p_rn = (1 - p) / (1 - p + p_dp).
    p_delayed: p_dp = P(y = 1, d > e), the probability that a sample is positive and that its delay
    d is longer than the window e. It is an array (n,) that a second model predicts, or one number,
    the mean over all samples. It gets no gradient."""
    p = F.sigmoid(logits.detach()).array
    real = (1 - p) / (1 - p + p_delayed)
    return F.binary_cross_entropy_with_logits(
        logits, labels, (1 + p_delayed) * (labels + (1 - labels) * real))


def delayed_feedback(logits, log_rate, labels, elapsed):
    """Returns the mean loss of the samples, where p = sigmoid(logits). The delay has an exponential
    distribution with rate r. The loss of a positive with the delay d is -log(p r exp(-r d)). If the
    label of a sample is still 0 at the time e after x came, its loss is -log(1 - p + p exp(-r e)).
    log_rate: log r, a Tensor. It gets a gradient, as the logits do. elapsed: d for a positive, e
    for all other samples."""
    rate = log_rate.exp()
    # If z is the logit, 1 - p + p exp(-r e) = (1 - p) (1 + exp(z - r e)). `negative` is -log of the
    # right side. The right side never needs log(0), even if p is rounded to 1.
    positive = F.softplus(-logits) - log_rate + rate * elapsed
    negative = F.softplus(logits) - F.softplus(logits - rate * elapsed)
    return (labels * positive + (1 - labels) * negative).mean()
