"""Buckets: some gradients are sent while backward still computes the others.

    backward      | layer 4 | layer 3 | layer 2 | layer 1 |
    messages                          | bucket 4 3 |      | bucket 2 1 |
                                                           backward is over: all ranks wait for this

Backward makes the gradient of the last layer first. That gradient is complete, so it could be sent
immediately, while backward goes on with the layer below. But every message has a fixed cost, and
with one message for each gradient this cost is paid many times. One message for all gradients can
start only after backward. So gradients are sent in buckets. A bucket takes gradients in the order
in which backward makes them. When it holds `cap` bytes or more, it is sent, and the next gradient
begins a new bucket. All ranks have the same layers, so they send the same buckets.

On this page backward only starts the messages: isend and irecv do not wait. wait() is called
after backward. With L layers, K bytes in total and buckets of B bytes, a rank sends about K/B
messages to every other rank, and not L messages. Most buckets are sent while backward still
computes. While the last bucket is sent, there is nothing left to compute.

Paper: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
This page is the plain version. The real one, minidl/parallel/data/bucket.py, adds: a thread that
runs an all-reduce for each bucket, with fewer bytes than the exchange of this page; hooks in
backward that fill the buckets; buckets in the order of the first backward; and parameters that a
rank did not use.
"""

import numpy as np


def start(t, bucket):
    """Begins to send this rank's bucket to all other ranks, and to receive their buckets.

    Returns (arrays, requests). arrays: a list with the bucket of each rank. A received bucket is
    complete when wait() of its request has returned."""
    arrays, requests = [], []
    own = np.concatenate([g.ravel() for g in bucket])
    for rank in range(t.size):
        if rank == t.rank:
            arrays.append(own)
        else:
            arrays.append(np.empty_like(own))
            requests.append(t.irecv(arrays[rank], rank))
            requests.append(t.isend(own, rank))
    return arrays, requests


def finish(arrays, requests):
    """Waits for the messages of one bucket. Returns the mean of the bucket over all ranks."""
    for request in requests:
        request.wait()
    return sum(arrays) / len(arrays)


def mean_gradients(t, gradients, cap):
    """Returns a list: the mean of each gradient over the ranks. Collects gradients in a bucket, and
    sends the bucket as soon as it has `cap` bytes or more. The last bucket may be smaller.

    `gradients` yields this rank's gradients one by one, as backward computes them."""
    buckets, started = [[]], []
    for g in gradients:
        buckets[-1].append(g)
        if sum(g.nbytes for g in buckets[-1]) >= cap:
            started.append(start(t, buckets[-1]))
            buckets.append([])
    if buckets[-1]:
        started.append(start(t, buckets[-1]))

    means = []
    for bucket, (arrays, requests) in zip(buckets, started):
        flat = finish(arrays, requests)
        for g in bucket:
            means.append(flat[:g.size].reshape(g.shape))
            flat = flat[g.size:]
    return means


if __name__ == "__main__":
    from minidl.comm import simulate
    from minidl.plain.hierarchical import Group

    class Loud(Group):  # a group of all ranks that prints what it sends
        def isend(self, array, to):
            print("    rank 0 sends", array)
            return super().isend(array, to)

    def backward(rank):
        for layer in (4, 3, 2, 1):
            if rank == 0:
                print("backward of layer", layer)
            yield np.array([10.0 * layer + rank])

    def example(t):
        loud = Loud(t, range(t.size)) if t.rank == 0 else t
        return mean_gradients(loud, backward(t.rank), cap=16)  # 16 bytes are two numbers

    print("means", *simulate(2, example)[0])
