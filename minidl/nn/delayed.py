"""Losses for labels that come late: what is a negative now may be a positive tomorrow.

    time ->   x ------- e ------- d ---->       a positive's label comes after a delay d. Whoever
              |         |         |             trains at e has seen a negative: a fake one, more of
              emitted   0         1, again      them the shorter e. Trained on as they are, they
                                                make predictions too small

    what the stream holds                          loss                      e
    each x as 0 at once, positives again as 1      fake_negative_weighted    0
    the same                                       calibrated                0
    0 or 1 after a window e, late positives again  window_corrected          given
    0 or 1 as known now, with the time elapsed     delayed_feedback          any, no repeats

In the first two a share p of x comes twice, so the stream's positives are b = p / (1 + p) of it:
weights p / b = 1 + p for y = 1 and (1 - p)(1 + p) for y = 0 give the loss of the truth, with the
model's own p as a constant; or one trains on b and predicts p = b / (1 - b). With a window only the
part p_dp = P(y = 1, d > e) comes twice: weights 1 + p_dp, and (1 + p_dp) p_rn for a negative, which
is real with probability p_rn = (1 - p) / (1 - p + p_dp).

All take logits (n,) and labels (n,) of 0 and 1, and return the mean.
Sources: Ktena et al. 2019 (RecSys, arXiv 1907.06558), the first two; Yang et al. 2021 (AAAI, arXiv
2012.03245), the window; Chapelle 2014 (KDD), the delay as an exponential distribution.
Test: tests/nn/test_delayed.py   Used by: tutorials/train_clicks.py
"""

from minidl.nn import functional as F


def fake_negative_weighted(logits, labels):
    """-[y (1 + p) log p + (1 - y) (1 - p)(1 + p) log(1 - p)], the weights' p held constant: a
    window of 0."""
    return window_corrected(logits, labels, F.sigmoid(logits.detach()).array)


def calibrated(logits):
    """The probability p = b / (1 - b) behind b = sigmoid(logits), at most 1; no gradient. For a
    model that was trained by plain cross entropy on the stream with its repeats."""
    z = logits.detach().array
    return logits._xp.exp(logits._xp.minimum(z, 0))


def window_corrected(logits, labels, p_delayed):
    """-[y (1 + p_dp) log p + (1 - y) (1 + p_dp) p_rn log(1 - p)].
    p_delayed: P(y = 1, d > e) of each, of a model or a mean; a constant."""
    p = F.sigmoid(logits.detach()).array
    real = (1 - p) / (1 - p + p_delayed)
    return F.binary_cross_entropy_with_logits(
        logits, labels, (1 + p_delayed) * (labels + (1 - labels) * real))


def delayed_feedback(logits, log_rate, labels, elapsed):
    """-log of p r exp(-r d) for a positive, of 1 - p + p exp(-r e) for what is none yet.
    log_rate: log r, trained like the logits; elapsed: the delay d, or the time e since x came."""
    rate = log_rate.exp()
    # 1 - p + p exp(-r e) = (1 - p) (1 + exp(z - r e)), without a difference of large numbers
    positive = F.softplus(-logits) - log_rate + rate * elapsed
    negative = F.softplus(logits) - F.softplus(logits - rate * elapsed)
    return (labels * positive + (1 - labels) * negative).mean()
