"""Tensor parallelism: each rank has a part of every matrix, and all ranks see all samples.

Two layers of a network compute y = relu(x A) B. The first matrix is cut into columns, the second
into rows. With two ranks:

    A = [A0 A1]      x A = [x A0   x A1]            a column of the result needs one column of A

    B = [B0]         [h0 h1] B = h0 B0 + h1 B1      each rank has one term of a sum
        [B1]

Here h = relu(x A). f and g mark where messages are sent. With one rank they do nothing:

    x ──f──► x A0 ──relu──► h0 B0 ──┐
                                    ├──g──► y       rank 0 computes the upper line,
    x ──f──► x A1 ──relu──► h1 B1 ──┘               rank 1 the lower one

relu works on each number separately. So h0 stays on its rank, and nothing is sent between the
layers. All ranks use x, so the gradient of x is a sum over ranks:

    f    forward   nothing: all ranks have x       backward   each rank has one term of the
                                                              gradient of x: all-reduce
    g    forward   all-reduce of the terms of y    backward   nothing: all ranks have the
                                                              gradient of y

Each rank holds 1/n of the weights and of h, and does 1/n of the work. The price is two all-reduces,
and all ranks wait for them: one of y in forward, and one of the gradient of x in backward.

Paper: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019. This page is the plain version. The real one, minidl/parallel/model/tensor.py
and minidl/parallel/model/functions.py, adds: biases, attention cut by heads, embeddings, sums that
are sent while the next product is computed, and a part of the tokens on each rank between the
layers.
"""

import numpy as np

from minidl.plain import ring


def columns(t, matrix):
    """Returns this rank's columns of the first matrix."""
    return np.array_split(matrix, t.size, axis=1)[t.rank]


def rows(t, matrix):
    """Returns this rank's rows of the second matrix."""
    return np.array_split(matrix, t.size, axis=0)[t.rank]


def sum_over_ranks(t, x):
    """Returns the sum of all ranks' x, with the shape of x."""
    return ring.all_reduce(t, x.ravel()).reshape(x.shape)


def f(t, x):
    """Returns x, and the backward of f: a function that sums the ranks' terms of the gradient."""
    return x, lambda term: sum_over_ranks(t, term)


def g(t, term):
    """Returns the sum of the ranks' terms, and the backward of g: a function that returns the
    gradient unchanged."""
    return sum_over_ranks(t, term), lambda gy: gy


def mlp(t, x, a, b):
    """Computes y = relu(x A) B. a is this rank's columns of A, and b this rank's rows of B.

    Returns y, and a function: backward(gy) returns the gradients of x, a and b."""
    x, f_backward = f(t, x)
    h = np.maximum(x @ a, 0)
    y, g_backward = g(t, h @ b)

    def backward(gy):
        gy = g_backward(gy)
        gb = h.T @ gy
        gh = (gy @ b.T) * (h > 0)
        ga = x.T @ gh
        gx = f_backward(gh @ a.T)
        return gx, ga, gb
    return y, backward


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        x = np.array([[1.0, 2.0]])
        a = columns(t, np.array([[1.0, 2.0], [3.0, 1.0]]))
        b = rows(t, np.array([[1.0], [10.0]]))
        y, backward = mlp(t, x, a, b)
        return y, *backward(np.array([[1.0]]))

    for rank, (y, gx, ga, gb) in enumerate(simulate(2, example)):
        print("rank", rank, " y", y[0], " gx", gx[0], " ga", ga.ravel(), " gb", gb[0])
