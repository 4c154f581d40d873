"""Grid: three ways to divide the work at the same time, so each rank has an index on three axes.

    8 ranks = 2 tensor x 2 data x 2 pipeline           replica 0     replica 1

    rank = tensor + 2 (data + 2 stage)      stage 0      0  1          2  3
                                            stage 1      4  5          6  7

    axis        ranks of a group    a group has               each step they send each other
    tensor      0 1, 2 3, 4 5, 6 7  one stage, one replica    activations: 4 N C (n-1)/n
    data        0 2, 1 3, 4 6, 5 7  the same weights          gradients:   2 P (n-1)/n
    pipeline    0 4, 1 5, 2 6, 3 7  one replica               activations: N C to the next stage,
                                                              and N C of gradients back

n is the length of the axis. A replica is a set of ranks that together hold the model once. In a
step a replica computes N samples of C numbers. A rank has P weights. The table counts the numbers
that one rank sends for a stage of two matrices, as on the page tensor_parallel. There are two
all-reduces of N C numbers. In each of them a rank sends 2 (n-1)/n of the numbers.

The ranks of a group differ on one axis only. Tensor groups send most, and wait for every message.
So the ranks of a tensor group must be inside one node, where messages are fast. That is why the
index on the tensor axis changes first when the ranks are counted 0, 1, 2, ...: then the ranks of a
tensor group are neighbours.

A step uses three earlier pages (data_parallel, pipeline, tensor_parallel), each page in its own
group of ranks. The pipeline runs the micro-batches. The tensor group of a stage computes the stage.
At the end the replicas take the mean of their gradients.

Paper: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", 2021. This page is the plain version. The real one, minidl/comm/grid.py and
minidl/parallel/model/grid_gpt.py, adds: axes for the tokens of a text and for experts, groups along
several axes, other orders of the axes, formulas for the bytes that are sent, and a whole GPT.
"""

import numpy as np

from minidl.plain import data_parallel, pipeline, tensor_parallel
from minidl.plain.hierarchical import Group


def place(rank, sizes):
    """Returns {axis: index} of a rank. sizes: {axis: length}. When the ranks are counted, the index
    on the first axis changes first."""
    index = {}
    for axis, length in sizes.items():
        index[axis] = rank % length
        rank //= length
    return index


def group(t, sizes, axis):
    """Returns the group of this rank along `axis`: ranks with the same index on all other axes."""
    own = place(t.rank, sizes)
    ranks = []
    for rank in range(t.size):
        other = place(rank, sizes)
        if all(other[name] == own[name] for name in sizes if name != axis):
            ranks.append(rank)
    return Group(t, ranks)


def step(t, sizes, a, b, micro_batches, targets):
    """Returns the losses (an empty list if this is not the last stage), and the mean gradients of a
    and b.

    A stage computes relu(x A) B. a and b are this rank's parts of A and B. The loss is the mean of
    (y - target)^2 / 2. micro_batches and targets belong to this replica."""
    tensor, data, pipe = (group(t, sizes, axis) for axis in ("tensor", "data", "pipeline"))
    ga, gb = np.zeros_like(a), np.zeros_like(b)
    is_last = pipe.rank == pipe.size - 1

    def forward(x, i):
        y, mlp_backward = tensor_parallel.mlp(tensor, x, a, b)
        error = y - targets[i]

        def backward(gy):
            if is_last:  # gy is the gradient of the loss, a number. Here it becomes that of y
                gy = gy * error / error.size
            gx, da, db = mlp_backward(gy)
            ga[...] += da
            gb[...] += db
            return gx
        # the last stage's result is the loss
        return np.mean(error**2) / 2 if is_last else y, backward

    schedule = pipeline.one_f_one_b(pipe.rank, pipe.size, len(micro_batches))
    losses = pipeline.step(pipe, schedule, forward, micro_batches, micro_batches[0].shape)
    n_samples = sum(len(x) for x in micro_batches)
    return losses, data_parallel.mean_gradients(data, [ga, gb], n_samples)


if __name__ == "__main__":
    from minidl.comm import simulate

    sizes = {"tensor": 2, "data": 2, "pipeline": 2}

    def example(t):
        a = b = np.ones((1, 1))  # with two tensor ranks a stage computes y = 2 relu(x)
        x = np.array([[1.0 + place(t.rank, sizes)["data"]]])  # 1 for replica 0, 2 for replica 1
        losses, (ga, gb) = step(t, sizes, a, b, [x], targets=[np.zeros((1, 1))])
        return [group(t, sizes, axis).ranks for axis in sizes], losses, ga

    for rank, (groups, losses, ga) in enumerate(simulate(8, example)):
        print("rank", rank, " groups", *groups, " gradient", ga[0], " loss", *losses)
