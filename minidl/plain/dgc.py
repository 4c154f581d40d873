"""Deep gradient compression: send the k largest elements of the gradient now, the others later.

    u = momentum * u + g            before the choice: an element that waits collects momentum, too
    v = v + u                       what this rank still has to send
    send the k largest |v|          as pairs of index and value
    u = 0, v = 0 at their indices   other elements stay in v. They grow, and are sent later
    w = w - rate * (the sum over ranks of what was sent)

g is this rank's share of the mean gradient: its own gradient, divided by n, the number of ranks. So
the sum of all elements that the ranks send is a part of the mean gradient. The rest is sent later:
nothing is lost.

The momentum must be applied before sending, in u. An element may wait for ten steps. If momentum
came after the sum over ranks, the ten gradients would arrive together as one large gradient,
without the momentum that nine of them should have collected. u becomes 0 together with v, because
the gradients in u were computed with old weights. Otherwise u would go on in a direction that may
be wrong by now.

Each rank gets the pairs of all ranks: (n-1) * 8 k bytes, with 4 bytes for an index and 4 for a
value. The ring needs 2 (n-1)/n * 4 L bytes for all L elements. Usually k is a thousandth of L.

Paper: Lin et al., "Deep Gradient Compression", 2018. This page is the plain version. The real one,
minidl/parallel/data/dgc.py, adds: a larger share k / L in the first epochs, clipping of the
gradients before they are added, small tensors that are sent whole, several tensors in one message,
and snapshots of u and v.
"""

import numpy as np

from minidl.plain import ring


def gather(t, row):
    """Returns the rows of all ranks, in rank order. row: this rank's row."""
    rows = np.zeros((t.size, len(row)), row.dtype)
    rows[(t.rank + 1) % t.size] = row  # ring.all_gather starts with chunk r+1 on rank r
    ring.all_gather(t, rows.reshape(-1))
    return np.roll(rows, -1, axis=0)  # row r of rank r, instead of row r+1


def step(t, w, gradient, u, v, k, rate, momentum=0.9):
    """Does one step on the weights w, a vector, in place. k: how many elements a rank sends.

    u and v: vectors of this rank. They are zeros at first, and are changed in place."""
    u *= momentum
    u += gradient / t.size
    v += u
    largest = np.argsort(-np.abs(v), kind="stable")[:k].astype(np.int32)
    indices = gather(t, largest)
    values = gather(t, v[largest])
    u[largest] = 0
    v[largest] = 0
    total = np.zeros_like(w)
    np.add.at(total, indices, values)  # adds both values if two ranks sent the same index
    w -= rate * total


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        gradient = np.array([8.0, 6.0, 0.0]) if t.rank == 0 else np.array([0.0, 6.0, 8.0])
        w, u, v = np.zeros(3), np.zeros(3), np.zeros(3)
        lines = []
        for _ in range(3):
            step(t, w, gradient, u, v, k=1, rate=1, momentum=0)  # with momentum 0 u is gradient / 2
            lines.append(f"weights {w}  rank 0 must still send {v}")
        return lines

    print(*simulate(2, example)[0], sep="\n")
