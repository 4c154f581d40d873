"""ZeRO: data parallel training in which each rank keeps a part of the state, and not a copy of all.

In data parallel training each of n ranks holds the same weights, computes the same mean gradient,
and keeps the same optimizer state. ZeRO cuts each vector of weights into n blocks. Every rank owns
one block, and only the owner keeps the optimizer's state of a block and updates it.

    one step      gradients     reduce-scatter: the owner gets the mean of its block
                  update        each rank, its own block
                  weights       all-gather: everybody gets all new blocks

    floats held for each weight, with Adam      weights   gradients   m and v
                           data parallel           1          1          2
                           stage 1                 1          1          2/n
                           stage 2                 1          1/n        2/n
                           stage 3                 1/n        1/n        2/n

    stage 1    only m and v are cut, the two numbers that Adam keeps for each weight
    stage 2    a gradient is scattered as soon as backward has made it, and the whole is let go
    stage 3    weights are gathered layer by layer: before a layer's forward, and before its
               backward. In between the rank has only its block

A ring all-reduce is a reduce-scatter and an all-gather. So stages 1 and 2 send what data parallel
training sends, 2 (n-1)/n K bytes a rank, and stage 3 sends 3 (n-1)/n K: it gathers the weights
twice, and scatters the gradients once.

Paper: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2020. The real one, minidl/parallel/zero/zero.py and minidl/parallel/zero/zero3.py, adds: vectors
of several parameters, sent while backward runs; the next layer's weights come while this one runs;
optimizers that need the norms of whole tensors; half precision; weights that do not train.
"""

import numpy as np

from minidl.plain import ring


def own(t, x):
    """This rank's block of a vector, a view: block r+1 on rank r, as in ring.reduce_scatter."""
    return np.array_split(x, t.size)[(t.rank + 1) % t.size]


def scatter(t, gradient):
    """This rank's block of the mean over ranks; overwrites the gradient."""
    ring.reduce_scatter(t, gradient)
    return own(t, gradient) / t.size


def update_and_gather(t, weights, blocks, update):
    """blocks: this rank's block of each mean gradient, that of the last vector first."""
    for i, block in zip(reversed(range(len(weights))), blocks):
        update(i, own(t, weights[i]), block)
        ring.all_gather(t, weights[i])


def step1(t, weights, backward, update):
    """weights: a list of vectors. backward(weights) yields their gradients, the last one first.
    update(i, w, g) is the optimizer's step on this rank's block w of vector i, in place."""
    gradients = list(backward(weights))  # list: all whole gradients are there at once
    blocks = [scatter(t, g) for g in gradients]
    update_and_gather(t, weights, blocks, update)


def step2(t, weights, backward, update):
    """The same, but each gradient is scattered before backward makes the next one."""
    blocks = [scatter(t, g) for g in backward(weights)]
    update_and_gather(t, weights, blocks, update)


def gather(t, shard, length):
    """The whole vector, where every rank has its block."""
    whole = np.empty(length, shard.dtype)
    own(t, whole)[:] = shard
    ring.all_gather(t, whole)
    return whole


def step3(t, shards, lengths, layers, x, loss_gradient, update):
    """shards: this rank's block of each layer's weights. A layer is two functions:
    forward(w, x) returns y, backward(w, x, gy) the gradients of w and x."""
    inputs = []
    for i in range(len(layers)):
        forward, _ = layers[i]
        inputs.append(x)
        x = forward(gather(t, shards[i], lengths[i]), x)
    gx = loss_gradient(x)
    blocks = []
    for i in reversed(range(len(layers))):
        _, backward = layers[i]
        gw, gx = backward(gather(t, shards[i], lengths[i]), inputs[i], gx)
        blocks.append(scatter(t, gw))
    for i, block in zip(reversed(range(len(layers))), blocks):
        update(i, shards[i], block)


if __name__ == "__main__":
    from minidl.comm import simulate

    def forward(w, x):
        return w * x

    def backward(w, x, gy):
        return gy * x, gy * w

    def example(t):
        x = np.array([1.0, 2.0, 3.0, 4.0]) * (t.rank + 1)  # this rank's sample; loss = sum(w * x)
        lines = []

        def update(i, w, g):
            lines.append(f"rank {t.rank} updates {w} with {g}")
            w -= g

        weights = [np.full(4, 10.0)]
        step2(t, weights, lambda weights: [x.copy()], update)
        lines.append(f"rank {t.rank} has after stage 2 {weights[0]}")
        shards = [own(t, np.full(4, 10.0)).copy()]
        step3(t, shards, [4], [(forward, backward)], x, np.ones_like, update)
        lines.append(f"rank {t.rank} has after stage 3 {shards[0]}")
        return "\n".join(lines)

    print(*simulate(2, example), sep="\n")
