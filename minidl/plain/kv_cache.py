"""KV cache: a language model writes a text token by token, and keeps its earlier results.

A model that has read t tokens predicts the next one. Then the model reads this token, too, and so
on. In attention (page attention) the new token's query looks at the keys and values of all tokens
so far. No token looks at a later token (the causal mask):

    token      0    1    2    3 (new)
    keys      k0   k1   k2   k3          only k3 and v3 are new. The others depend only on earlier
    values    v0   v1   v2   v3          tokens, because a token never looks at later ones. So they
                                         do not change: they are kept, and not computed again
    o3 = the mean of v0 v1 v2 v3 with the weights softmax(q3 k0, q3 k1, q3 k2, q3 k3)

Without the cache a text of T tokens costs the work of 1 + 2 + ... + T tokens. With the cache it
costs the work of T tokens. (This counts the matrix products. The attention of a token still reads
the keys and values of all earlier tokens.) The results are the same in both cases. The price is
memory: for each token and layer one key and one value.

    bytes of the cache = 2 * layers * tokens * width * bytes of a number

The given text is called the prompt. It is read in one step (prefill), because all its tokens are
known. With the cache a step multiplies vectors by matrices, and uses each number that it reads from
memory only once. Reading a number takes longer than multiplying by it. So a step takes as long as
reading all weights and the whole cache.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022.
This page is the plain version. The real one, minidl/infer/cache.py and minidl/infer/decoder.py,
adds: many heads, many layers and texts, positions, sampling, and kernels for vectors and matrices.
"""

import numpy as np


def softmax(s):
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def attend_all(q, k, v):
    """Returns the attention of a whole text. q, k, v: (tokens, width). A token looks at itself and
    earlier tokens."""
    s = q @ k.T / np.sqrt(q.shape[1])
    return softmax(np.where(np.tri(len(q), dtype=bool), s, -np.inf)) @ v


def attend_next(cache, q, k, v):
    """Returns the attention of one new token. q, k, v: (width,).

    cache: two lists, the keys and the values so far. k and v are added to these lists."""
    keys, values = cache
    keys.append(k)
    values.append(v)
    s = np.array(keys) @ q / np.sqrt(len(q))
    return softmax(s) @ np.array(values)


# A model is a dict, and has one layer. Row i of model["token"] is the vector of token i. The other
# entries, "wq", "wk", "wv" and "wo", are matrices.
def predict_all(model, ids):
    """Returns, for each token of the text, the scores of all tokens that may come next."""
    x = model["token"][ids]
    o = attend_all(x @ model["wq"], x @ model["wk"], x @ model["wv"])
    return o @ model["wo"]


def prefill(model, cache, ids):
    """Reads a whole prompt in one step, and fills the cache. Returns the scores of all tokens that
    may come next."""
    x = model["token"][ids]  # (tokens, width)
    k, v = x @ model["wk"], x @ model["wv"]
    keys, values = cache
    keys.extend(k)  # one row for each token
    values.extend(v)
    o = attend_all(x @ model["wq"], k, v)
    return o[-1] @ model["wo"]  # only the last token's scores are needed


def predict_next(model, cache, id):
    """Reads one more token. Returns the scores of all tokens that may come next."""
    x = model["token"][id]
    o = attend_next(cache, x @ model["wq"], x @ model["wk"], x @ model["wv"])
    return o @ model["wo"]


def generate_again(model, ids, n):
    """Returns a list: ids, and n more tokens. Each new token is the token with the highest score.
    The scores are computed from the whole text so far."""
    ids = list(ids)
    for _ in range(n):
        scores = predict_all(model, ids)[-1]
        ids.append(int(scores.argmax()))
    return ids


def generate(model, ids, n):
    """Returns the same tokens as generate_again. Uses a cache."""
    ids, cache = list(ids), ([], [])
    scores = prefill(model, cache, ids)
    for _ in range(n):
        ids.append(int(scores.argmax()))
        scores = predict_next(model, cache, ids[-1])  # the last scores are not used
    return ids


if __name__ == "__main__":
    # "wq" is 0, so attention gives all tokens so far the same weight. Then number i of its result
    # is the share of token i in the text. "wo" moves these numbers by one place. So the score of
    # token 1 is the share of token 0. The score of token 2 is the share of token 1. The score of
    # token 0 is the share of token 2. After the text 0 0 1 1, tokens 1 and 2 have the same score.
    # Then argmax takes token 1, the first of the two.
    one, zero = np.eye(3), np.zeros((3, 3))
    model = {"token": one, "wq": zero, "wk": one, "wv": one, "wo": one[[1, 2, 0]]}
    print(generate_again(model, [0, 0], n=4))
    print(generate(model, [0, 0], n=4))
