"""PowerSGD: a gradient matrix is sent as the product of two thin matrices.

    A      n x m    this rank's gradient, divided by the number of ranks, plus `owed` (see below)
    Q_old  m x r    the Q of the last step, with columns made orthonormal. It is equal on all ranks
    P      n x r    the sum over ranks of A Q_old: an all-reduce. Its columns are made orthonormal
    Q      m x r    the sum over ranks of A' P: an all-reduce. (' swaps rows and columns)

    every rank uses P Q' as the mean gradient. It keeps the missing part of its A for the next
    step: owed = A - P P' A

Let S be the sum of the A of all ranks. Then P Q' = P P' S. No other combination of P's columns is
nearer to S, because the columns of P are orthonormal. Another P may have columns that come nearer
to S. With an unchanged S, each step gives a better P, and many steps give the best P. This is the
power method. Gradients change slowly, so S changes slowly, too. Each step begins with the Q of the
last step, so one pair of products in a step is enough. The part of A that P cannot rebuild is not
lost: the rank adds it to its next gradient ("error feedback").

Each rank computes the products A Q_old and A' P of its own A. The sum of all A Q_old is S Q_old,
and the sum of all A' P is S' P. So an all-reduce can add the products. The two all-reduces add
r (n + m) numbers instead of n m. For a matrix of 768 x 768 and r = 4 this is 1/96 of the numbers.

Paper: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", 2019. This page is the plain version. The real one,
minidl/parallel/data/powersgd.py, adds: all matrices of a model in two messages; vectors and small
matrices that are sent whole; matrices with more rows than columns, which are transposed first;
whole gradients in place of P and Q in the first steps; and snapshots that save `owed`.
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
