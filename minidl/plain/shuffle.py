"""Shuffle: a new order of the samples in every epoch, divided among any number of ranks.

    order of the epoch    7 2 9 0 4 1 8 3 5 6      a permutation that depends only on (seed, epoch)
    rank of the sample    a b c a b c a b c a      rank a has 7 0 8 6, b has 2 4 3, c has 9 1 5

The order is a function of two numbers (page data). So all ranks compute the same order, and send no
message. Rank r of n takes the positions r, r + n, r + 2n, ... So each sample is used once.

This also makes the position of a run simple. When each rank has used k samples, the ranks together
have used the first k * n samples of the order. So one number tells how much the whole run has used.
A restarted run divides the rest among its ranks. There may be more or fewer ranks than before:

    used = 3 (one by each rank) 7 2 9 │ 0 4 1 8 3 5 6
    the rest, to two ranks              a b a b a b a

The last samples may not be enough for all ranks: above, rank a has one more. Often some samples
from the beginning of the order are repeated, to give all ranks the same number. This page does not
do that.

Source: torch.utils.data.distributed.DistributedSampler. This page is the plain version. The real
one, minidl/data/sampler.py and minidl/data/partition.py, adds: three rules for the last samples,
groups of neighbours that stay together, and ranks with unequal numbers of used samples.
"""

import numpy as np

from minidl.plain.data import order


def share(order, rank, n_ranks, used=0):
    """Returns the samples of this rank. The first `used` samples of the order are done already."""
    return order[used:][rank::n_ranks]


if __name__ == "__main__":
    epoch = order(10, seed=0, epoch=0)
    shares = [share(epoch, rank, 4) for rank in range(4)]
    print("number of samples of each rank", [len(samples) for samples in shares])
    print("the samples of all ranks", np.sort(np.concatenate(shares)))

    done = [samples[:2] for samples in shares]  # each rank uses two samples, then the run stops
    rest = [share(epoch, rank, 3, used=8) for rank in range(3)]  # the run goes on with three ranks
    print("done and rest together", np.sort(np.concatenate(done + rest)))
    print("the next epoch has the same order:", np.array_equal(epoch, order(10, seed=0, epoch=1)))
