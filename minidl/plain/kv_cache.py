"""KV cache: a language model writes a text token by token, and keeps its earlier results.

A model that has read t tokens predicts the next one. Then that one is read, too, and so on. In
attention (page attention) the new token's query looks at the keys and values of all tokens so far,
and no token looks at a later one (the causal mask):

    token      0    1    2    3 (new)
    keys      k0   k1   k2   k3          only k3 and v3 are new. The others depend on earlier tokens
    values    v0   v1   v2   v3          alone, because a token never looks at later ones. So they
                                         are as they were: they are kept, and not computed again
    o3 = the mean of v0 v1 v2 v3 with the weights softmax(q3 k0, q3 k1, q3 k2, q3 k3)

Without the cache a text of T tokens costs the work of 1 + 2 + ... + T tokens, with it that of T.
Both give the same numbers. The price is memory: for each token and layer one key and one value.

    bytes of the cache = 2 * layers * tokens * width * bytes of a number

A step now multiplies vectors by matrices, and uses each number that it reads from memory only once.
So it takes as long as reading all weights and the cache.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022.
The real one, minidl/infer/cache.py and minidl/infer/decoder.py, adds: many heads, many layers and
texts, a prompt that is read in one go, positions, sampling, and kernels for vectors and matrices.
"""

import numpy as np


def softmax(s):
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def attend_all(q, k, v):
    """Attention of a whole text: (tokens, width) each. A token looks at itself and earlier ones."""
    s = q @ k.T / np.sqrt(q.shape[1])
    return softmax(np.where(np.tri(len(q), dtype=bool), s, -np.inf)) @ v


def attend_next(cache, q, k, v):
    """Attention of one new token: (width,) each. cache: the lists of keys and values so far."""
    keys, values = cache
    keys.append(k)
    values.append(v)
    s = np.array(keys) @ q / np.sqrt(len(q))
    return softmax(s) @ np.array(values)


# A model of one layer: rows of `token` are the vectors of the tokens; wq, wk, wv, wo are matrices.
def predict_all(model, ids):
    """For each token of the text the scores of all tokens that may come next."""
    x = model["token"][ids]
    o = attend_all(x @ model["wq"], x @ model["wk"], x @ model["wv"])
    return o @ model["wo"]


def predict_next(model, cache, id):
    """The scores after one more token."""
    x = model["token"][id]
    o = attend_next(cache, x @ model["wq"], x @ model["wk"], x @ model["wv"])
    return o @ model["wo"]


def generate_again(model, ids, n):
    """ids and n more tokens, each the one with the highest score, from the whole text so far."""
    ids = list(ids)
    for _ in range(n):
        scores = predict_all(model, ids)[-1]
        ids.append(int(scores.argmax()))
    return ids


def generate(model, ids, n):
    """The same with a cache."""
    ids, cache = list(ids), ([], [])
    for id in ids:
        scores = predict_next(model, cache, id)
    for _ in range(n):
        ids.append(int(scores.argmax()))
        scores = predict_next(model, cache, ids[-1])  # not used after the last token
    return ids


if __name__ == "__main__":
    # wq is 0, so all tokens so far count alike: o says how often each of 0, 1, 2 was there.
    # wo takes the most frequent token to the one after it: 0 to 1, 1 to 2, 2 to 0.
    # After 0 0 1 1 the scores of 1 and 2 are equal: argmax takes the first of them, 1.
    one, zero = np.eye(3), np.zeros((3, 3))
    model = {"token": one, "wq": zero, "wk": one, "wv": one, "wo": one[[1, 2, 0]]}
    print(generate_again(model, [0, 0], n=4))
    print(generate(model, [0, 0], n=4))
