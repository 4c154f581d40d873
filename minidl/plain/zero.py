"""ZeRO: data parallel training in which each rank keeps only a part of the state.

In data parallel training each of n ranks holds the same weights, computes the same mean gradient,
and keeps the same optimizer state. ZeRO cuts each vector of weights into n blocks. Every rank owns
one block. Only the owner keeps the optimizer's state of a block, and only the owner updates the
block.

    one step      gradients     reduce-scatter: the owner gets the mean of its block
                  update        each rank, its own block
                  weights       all-gather: every rank gets all new blocks

    floats held for each weight, with Adam      weights   gradients   m and v
                           data parallel           1          1          2
                           stage 1                 1          1          2/n
                           stage 2                 1          1/n        2/n
                           stage 3                 1/n        1/n        2/n

    stage 1    only m and v are cut, the two numbers that Adam keeps for each weight
    stage 2    a gradient is scattered as soon as backward has made it. Then the whole gradient is
               freed
    stage 3    weights are gathered layer by layer: before a layer's forward, and before its
               backward. In between a rank has only its own block

A ring all-reduce is a reduce-scatter and an all-gather. Let the weights have K bytes. In stages 1
and 2 a rank sends 2 (n-1)/n K bytes, as in data parallel training. In stage 3 it sends 3 (n-1)/n K
bytes: it gathers the weights twice, and scatters the gradients once.

Paper: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2020. This page is the plain version. The real one, minidl/parallel/zero/zero.py and
minidl/parallel/zero/zero3.py, adds: vectors of several parameters, which are sent while backward
runs; the next layer's weights, which are gathered while this layer runs; optimizers that need the
norms of whole tensors; half precision; and weights that do not train.
"""

import numpy as np

from minidl.plain import ring


def own(t, x):
    """Returns a view of this rank's block of a vector. Rank r has block r+1, and the last rank has
    block 0, as in ring.reduce_scatter."""
    return np.array_split(x, t.size)[(t.rank + 1) % t.size]


def scatter(t, gradient):
    """Returns this rank's block of the mean of the ranks' gradients. Overwrites `gradient`."""
    ring.reduce_scatter(t, gradient)
    return own(t, gradient) / t.size


def update_and_gather(t, weights, blocks, update):
    """Updates this rank's block of each vector of weights, then gathers the whole vector.

    blocks: this rank's block of each mean gradient, in order from the last vector to the first."""
    for i, block in zip(reversed(range(len(weights))), blocks):
        update(i, own(t, weights[i]), block)
        ring.all_gather(t, weights[i])


def step1(t, weights, backward, update):
    """Does one step of stage 1. weights: a list of vectors, changed in place.

    backward(weights) yields the gradient of each vector, the last vector first.
    update(i, w, g) does the optimizer's step in place on w, this rank's block of vector i."""
    gradients = list(backward(weights))  # all whole gradients exist at the same time
    blocks = [scatter(t, g) for g in gradients]
    update_and_gather(t, weights, blocks, update)


def step2(t, weights, backward, update):
    """Does one step of stage 2: each gradient is scattered before backward makes the next one."""
    blocks = [scatter(t, g) for g in backward(weights)]
    update_and_gather(t, weights, blocks, update)


def gather(t, shard, length):
    """Returns the whole vector of `length` numbers. shard: this rank's block of the vector."""
    whole = np.empty(length, shard.dtype)
    own(t, whole)[:] = shard
    ring.all_gather(t, whole)
    return whole


def step3(t, shards, lengths, layers, x, loss_gradient, update):
    """Does one step of stage 3. shards: this rank's block of each layer's weights.

    lengths: for each layer, how many weights it has. x: the input of the first layer.
    loss_gradient(y) returns the gradient of the loss with respect to y, the result of the last
    layer. update: as in step1. A layer is two functions: forward(w, x) returns y, and backward(w,
    x, gy) returns the gradients of w and x."""
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
        x = np.array([1.0, 2.0, 3.0, 4.0]) * (t.rank + 1)  # this rank's sample. loss = sum(w * x)
        lines = []

        def update(i, w, g):
            lines.append(f"rank {t.rank} updates {w} with {g}")
            w -= g

        weights = [np.full(4, 10.0)]
        step2(t, weights, lambda weights: [x.copy()], update)
        lines.append(f"rank {t.rank} after a step of stage 2: {weights[0]}")
        shards = [own(t, np.full(4, 10.0)).copy()]
        step3(t, shards, [4], [(forward, backward)], x, np.ones_like, update)
        lines.append(f"rank {t.rank} after a step of stage 3: {shards[0]}")
        return "\n".join(lines)

    print(*simulate(2, example), sep="\n")
