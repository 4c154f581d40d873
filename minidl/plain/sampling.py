"""Sampling: temperature, top-k and top-p choose the next token from a model's scores.

A model gives a score for each token of its vocabulary. Softmax turns the scores into probabilities.
If the likeliest token is always taken, the text is dull and repeats itself. If a token is drawn
from all tokens, the text is sometimes nonsense. Each of ten thousand bad tokens is unlikely, but
the sum of their probabilities is not small.

    temperature T    softmax(scores / T). T < 1 makes likely tokens likelier. T > 1 makes all tokens
                     more alike. Near T = 0 the likeliest token gets all the probability
    top-k            only the k likeliest tokens are kept
    top-p            the likeliest tokens are kept, until the sum of their probabilities reaches p.
                     If the model is sure, few tokens are kept, otherwise many

    probabilities    0.5  0.25  0.15  0.1
    top-k, k = 3     0.5  0.25  0.15  -       then divided by their sum, 0.9
    top-p, p = 0.7   0.5  0.25  -     -       0.5 alone does not reach 0.7; divided by 0.75

To draw a token: lay the probabilities end to end on a line from 0 to 1. Take a random number u
between 0 and 1. The token is the one whose part of the line contains u.

Papers: Fan et al., "Hierarchical neural story generation" (top-k), 2018; Holtzman et al., "The
curious case of neural text degeneration" (top-p), 2020.
This page is the plain version. The real one, minidl/infer/decoder.py and minidl/nn/models.py, adds:
several texts at once, a cache of keys and values (page kv_cache), and a draw that needs no sums (it
adds random noise to the scores, and takes the largest).
"""

import numpy as np


def probabilities(scores, temperature=1.0, top_k=None, top_p=None):
    """Returns the probability of each token to be the next one. scores: (vocabulary,)."""
    p = np.exp((scores - scores.max()) / temperature)
    p /= p.sum()
    likeliest = np.argsort(-p, kind="stable")
    if top_k is not None:
        p[likeliest[top_k:]] = 0
        p /= p.sum()
    if top_p is not None:
        before = np.cumsum(p[likeliest]) - p[likeliest]  # the sum of p over likelier tokens
        p[likeliest[before >= top_p]] = 0  # keeps the token with which the sum reaches top_p
        p /= p.sum()
    return p


def draw(p, u):
    """Returns the token whose part of the line contains u (see the top of this file). u: a number
    with 0 <= u < 1. p: (vocabulary,)."""
    ends = np.cumsum(p)  # where the part of each token ends on the line; the last end is about 1
    return int(np.searchsorted(ends, u * ends[-1], side="right"))  # the first end after u


if __name__ == "__main__":
    scores = np.log([0.15, 0.5, 0.1, 0.25])  # softmax(scores) is (0.15, 0.5, 0.1, 0.25)
    print("temperature 1:  ", probabilities(scores).round(3))
    print("temperature 0.5:", probabilities(scores, temperature=0.5).round(3))
    print("top-k 2:        ", probabilities(scores, top_k=2).round(3))
    print("top-p 0.8:      ", probabilities(scores, top_p=0.8).round(3))
    p = probabilities(scores)
    print("draws:", [draw(p, u) for u in (0.1, 0.2, 0.6, 0.7, 0.9)])
