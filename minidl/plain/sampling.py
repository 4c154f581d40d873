"""Sampling: from a model's scores to the next token: temperature, top-k and top-p.

A model gives a score for each token of its vocabulary; softmax makes probabilities of them. If one
always takes the likeliest token, the text is dull and repeats itself. If one draws from all tokens,
it is nonsense now and then: ten thousand unlikely tokens together are not unlikely.

    temperature T    softmax(scores / T). T < 1 sharpens: likely tokens become likelier. T > 1
                     flattens. Near 0 the likeliest gets everything
    top-k            only the k likeliest tokens
    top-p            the likeliest tokens, as few as together reach the probability p: few where
                     the model is sure, many where it is not

    probabilities    0.5  0.25  0.15  0.1
    top-k, k = 3     0.5  0.25  0.15  -       then divided by their sum, 0.9
    top-p, p = 0.7   0.5  0.25  -     -       0.5 alone does not reach 0.7; divided by 0.75

To draw: lay the probabilities end to end on a line from 0 to 1, throw a random number u between 0
and 1 onto it, and take the token that it hits.

Papers: Fan et al., "Hierarchical neural story generation" (top-k), 2018; Holtzman et al., "The
curious case of neural text degeneration" (top-p), 2020.
The real one, minidl/infer/decoder.py and minidl/nn/models.py, adds: several texts at once, a cache
of keys and values (page kv_cache), and a draw that needs no sums (random noise is added to the
scores, and the largest one wins).
"""

import numpy as np


def probabilities(scores, temperature=1.0, top_k=None, top_p=None):
    """The probability of each token to be the next one; scores (vocabulary,)."""
    p = np.exp((scores - scores.max()) / temperature)
    p /= p.sum()
    likeliest = np.argsort(-p, kind="stable")
    if top_k is not None:
        p[likeliest[top_k:]] = 0
        p /= p.sum()
    if top_p is not None:
        before = np.cumsum(p[likeliest]) - p[likeliest]  # what all likelier tokens have together
        p[likeliest[before >= top_p]] = 0  # so the token with which the sum reaches p stays
        p /= p.sum()
    return p


def draw(p, u):
    """The token that u, in [0, 1), hits; p (vocabulary,) are its probabilities."""
    ends = np.cumsum(p)  # where each token's part of the line ends; the last is 1, or nearly
    return int(np.searchsorted(ends, u * ends[-1], side="right"))  # the first end behind u


if __name__ == "__main__":
    scores = np.log([0.15, 0.5, 0.1, 0.25])  # softmax gives these probabilities back
    print("temperature 1:  ", probabilities(scores).round(3))
    print("temperature 0.5:", probabilities(scores, temperature=0.5).round(3))
    print("top-k 2:        ", probabilities(scores, top_k=2).round(3))
    print("top-p 0.8:      ", probabilities(scores, top_p=0.8).round(3))
    p = probabilities(scores)
    print("draws:", [draw(p, u) for u in (0.1, 0.2, 0.6, 0.7, 0.9)])
