"""PowerSGD: a gradient matrix is sent as the product of two thin matrices.

    A      n x m    this rank's gradient, divided by the number of ranks, plus `owed` (see below)
    Q_old  m x r    the Q of the last step, with columns made orthonormal. It is equal on all ranks
    P      n x r    the sum over ranks of A Q_old: an all-reduce. Its columns are made orthonormal
    Q      m x r    the sum over ranks of A' P: an all-reduce. (' swaps rows and columns)

    every rank uses P Q' as the mean gradient. It keeps the missing part of its A for the next
    step: owed = A - P P' A

P Q' is P P' (the sum of all A). No other combination of P's columns is nearer to the sum, because
the columns are orthonormal. One such step turns P towards the r columns
from which the sum can be rebuilt best: this is the power method. Gradients change slowly, and the
next step begins with this Q, so one step is enough each time. The part of A that P cannot rebuild
is not lost: the rank adds it to its next gradient ("error feedback").

Both products are linear in A. So the sum of all ranks' products is the product with the sum of all
A, and an all-reduce can add the products. The two all-reduces add r (n + m) numbers instead of n m.
For a matrix of 768 x 768 and r = 4 this is 1/96 of the numbers.

Paper: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", 2019. This page is the plain version. The real one,
minidl/parallel/data/powersgd.py, adds: all matrices of a model in two messages, vectors and small
matrices that are sent whole, the transpose of a matrix with more rows than columns, whole gradients
in the first steps, and snapshots of `owed`.
"""

import numpy as np

from minidl.plain import ring


def total(t, x):
    """Returns the sum of the x of all ranks."""
    return ring.all_reduce(t, x.flatten()).reshape(x.shape)


def orthonormal(x):
    """Returns a matrix whose columns span the same space as the columns of x. The new columns have
    length 1, and are orthogonal to each other."""
    return np.linalg.qr(x)[0]


def mean_gradient(t, gradient, q, owed):
    """Returns the approximate mean of the ranks' gradients, n x m, and the Q for the next step.

    gradient: this rank's gradient, n x m. q: the Q of the last step, m x r. owed: an array n x m,
    at first zeros. It is changed in place."""
    a = gradient / t.size + owed
    p = orthonormal(total(t, a @ orthonormal(q)))
    own = a.T @ p
    owed[...] = a - p @ own.T
    q = total(t, own)
    return p @ q.T, q


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        q, owed = np.array([[1.0], [0.0]]), np.zeros((2, 2))
        for gradient in ([[3.0, 0.0], [4.0, 0.0]], [[3.0, 1.0], [4.0, 0.0]]):
            mean, q = mean_gradient(t, np.array(gradient), q, owed)
            print("mean", *mean.round(2), " owed", *(owed.round(2) + 0))  # + 0 turns -0 into 0

    simulate(1, example)
