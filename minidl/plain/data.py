"""Data: batches of samples in a new random order each epoch, which a stopped run can continue.

An epoch is one pass over all samples. Its order is a permutation. A random generator makes the
permutation from (seed, epoch), and from nothing else. For example:

    epoch 0    7 2 9 0 | 4 1 8 3 | 5 6         ten samples in batches of 4
    epoch 1    3 0 6 5 | 9 7 1 2 | 8 4

    random      the order is random. In a fixed order, neighbours would always be in the same
                batch, and training might see all samples of one class first
    repeatable  the same seed gives the same batches. So two runs can be compared
    a position  two numbers say where a run is: the epoch, and how many of its samples were used.
                A stopped run makes the order of this epoch again, and continues there

The order is a list of indices. The samples themselves are not moved until a batch is made.

Source: Bottou, "Stochastic gradient descent tricks", 2012.
This page is the plain version. The real one, minidl/data/loader.py and minidl/data/sampler.py,
adds: samples that threads load one by one, ahead of time and also from files (page prefetch);
orders that are divided among ranks; and a copy to the GPU.
"""

import numpy as np


def order(n, seed, epoch):
    """Returns the order of n samples in this epoch."""
    return np.random.default_rng([seed, epoch]).permutation(n)


def batches(arrays, batch_size, seed, epoch, used=0):
    """Yields the batches of an epoch, after the first `used` samples.

    Each array has one row for each sample. A batch is a list: some rows of each array. The last
    batch may be smaller."""
    n = len(arrays[0])
    indices = order(n, seed, epoch)
    for start in range(used, n, batch_size):
        some = indices[start:start + batch_size]
        yield [array[some] for array in arrays]


if __name__ == "__main__":
    inputs = np.arange(10)
    targets = 100 * inputs
    epoch = list(batches([inputs, targets], 4, seed=1, epoch=0))
    print("sizes of batches:", [len(x) for x, _ in epoch])
    print("each sample once:", sorted(np.concatenate([x for x, _ in epoch]).tolist()))
    print("input and target belong together:", all((y == 100 * x).all() for x, y in epoch))

    again = list(batches([inputs, targets], 4, seed=1, epoch=0, used=4))
    print("after 4 samples:", len(again), "batches, the same as before:",
          all((a[0] == b[0]).all() for a, b in zip(again, epoch[1:])))
