"""A language model: from the characters of a text to a program that writes a similar text.

    ids ──► token vectors ──► block ──► block ──► RMSNorm ──► head ──► scores     (page transformer)
    (T,)        (T, C)       (T, C)    (T, C)     (T, C)             (T, V)

A token is a character here. V is the number of different characters. Row t of the scores has a
score for each of the V characters that may come after characters 0 to t. Two matrices are learned,
together with the blocks:

    embedding    the matrix `token` (V, C). Row i is the vector of character i
    head         the matrix `head` (C, V). Its product with the last vector gives the scores

    train        ids      t h e _ c a      the inputs, without the last character
                 targets  h e _ c a t      the same text, moved by one character
                 The loss is the mean of -log p[target] over the T targets (page training). A
                 model that knows nothing has the loss log(V). Adam changes the weights (page
                 optimizers)
    write        the scores of the last row give the next character, with a temperature (page
                 sampling). This character is added to the text. Then the model reads the text again

A step costs about 6 * (number of weights) * T operations: 2 in forward, 4 in backward.

Papers: Bengio et al., "A neural probabilistic language model", 2003; Radford et al., "Improving
language understanding by generative pre-training" (GPT), 2018.
This page is the plain version. The real one, minidl/nn/llama.py, adds: a batch of texts, float32
and GPUs, fewer heads of keys than of queries, a head that shares its matrix with the embedding, and
a cache of keys and values.
"""

import numpy as np

from minidl.plain.autograd import Tensor, grad
from minidl.plain.optimizers import adam_step
from minidl.plain.sampling import draw, probabilities
from minidl.plain.training import cross_entropy
from minidl.plain.transformer import block, rms_norm


def new_model(rng, vocabulary, width, hidden, n_blocks):
    """Returns a dict of random weights. The blocks are a list of dicts (page transformer)."""
    def matrix(n_in, n_out):
        return Tensor(rng.normal(size=(n_in, n_out)) / n_in**0.5)

    blocks = []
    for _ in range(n_blocks):
        weights = {name: matrix(width, width) for name in ("query", "key", "value", "out")}
        weights["gate"] = matrix(width, hidden)
        weights["up"] = matrix(width, hidden)
        weights["down"] = matrix(hidden, width)
        weights["norm1"], weights["norm2"] = Tensor(np.ones(width)), Tensor(np.ones(width))
        blocks.append(weights)
    return {"token": Tensor(rng.normal(size=(vocabulary, width))), "blocks": blocks,
            "norm": Tensor(np.ones(width)), "head": matrix(width, vocabulary)}


def weights_of(model):
    """Returns a list of all weights. Each weight is a Tensor."""
    weights = [model["token"], model["norm"], model["head"]]
    for block_weights in model["blocks"]:
        weights += block_weights.values()
    return weights


def scores(model, ids, n_heads):
    """Returns the scores (T, V) of the next character after each of the T characters `ids`."""
    x = model["token"][ids]
    for block_weights in model["blocks"]:
        x = block(x, block_weights, n_heads)
    return rms_norm(x, model["norm"]) @ model["head"]


def loss(model, ids, n_heads):
    """Returns the mean loss of T predictions, a number in nats. ids: T + 1 characters."""
    return cross_entropy(scores(model, ids[:-1], n_heads), ids[1:])


def train(model, ids, n_heads, n_steps, length, lr, rng):
    """Trains the weights in place. Each step uses `length` + 1 characters from a random place in
    the text. Returns a list of the losses."""
    weights, losses = weights_of(model), []
    m = [np.zeros(w.array.shape) for w in weights]
    v = [np.zeros(w.array.shape) for w in weights]
    for t in range(1, n_steps + 1):
        start = rng.integers(len(ids) - length)
        y = loss(model, ids[start:start + length + 1], n_heads)
        for i, g in enumerate(grad(y, weights)):
            adam_step(weights[i].array, g.array, m[i], v[i], t, lr)
        losses.append(y.array.item())
    return losses


def write(model, ids, n_heads, n, temperature, rng):
    """Returns a list: ids, and n more characters, each drawn from the model's probabilities."""
    ids = list(ids)
    for _ in range(n):
        last = scores(model, np.array(ids), n_heads).array[-1]
        ids.append(draw(probabilities(last, temperature), rng.random()))
    return ids


if __name__ == "__main__":
    text = "the cat sees the dog. the dog sees the bird. the bird sees the cat. " * 3
    letters = sorted(set(text))
    ids = np.array([letters.index(letter) for letter in text])
    rng = np.random.default_rng(0)
    model = new_model(rng, len(letters), width=16, hidden=32, n_blocks=2)
    losses = train(model, ids, n_heads=2, n_steps=200, length=24, lr=0.01, rng=rng)
    print("log(V):", round(np.log(len(letters)), 2))
    for t in 0, 50, 100, 199:
        print("step", t, " loss", round(losses[t], 2))
    for temperature in 0.1, 1.0, 3.0:
        written = write(model, ids[:4], 2, 40, temperature, rng)
        print("temperature", temperature, ":", "".join(letters[i] for i in written))
