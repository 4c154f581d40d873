"""Memory: what training holds in memory, computed before anything runs.

    states          the bytes of a parameter, which do not depend on the batch size. For mixed
                    precision with Adam (pages amp and optimizers) these are:

                    weight     gradient     master weight     m     v
                    float16    float16      float32           float32 each
                    2        + 2          + 4               + 4   + 4      = 16 bytes

    activations     the results that forward keeps for backward. They grow with the batch size. A
                    layer x @ w + b needs x for the gradient of w. A relu needs its result, to know
                    where it is positive. But this result is the x of the next layer. The last
                    result is not the input of a layer. So a network whose layers have the sizes
                    n0, n1, ... nL needs only the inputs of its L layers:

                    batch * (n0 + n1 + ... + n(L-1))    numbers

The engine of the page autograd keeps more: every Tensor keeps its parents, and so their arrays. For
each hidden layer it keeps the results of three operations: `x @ w`, `+ b` and `relu`. For the last
layer it keeps the results of `x @ w` and of `+ b`:

                    batch * (n0 + 3 (n1 + ... + n(L-1)) + 2 nL)    numbers

A billion parameters need 16 GB before the first sample comes. So the states are divided among ranks
(page zero), and activations are not kept, but computed a second time (page recompute).

Paper: Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models",
2020.
This page is the plain version. The real one, minidl/memory/predict.py and minidl/memory/ledger.py,
adds: other precisions and optimizers; states that are divided among ranks; a prediction of the
activations of any model, from two small forwards; and a record of every array that is made or
freed. The predicted bytes and the recorded bytes are equal.
"""

from itertools import pairwise

import numpy as np

from minidl.plain.autograd import Tensor, order
from minidl.plain.training import mlp


def n_parameters(sizes):
    """Returns the number of parameters of a network: each layer has a matrix and a bias."""
    return sum(n_in * n_out + n_out for n_in, n_out in pairwise(sizes))


def states(n):
    """Returns {state: its bytes} for n parameters, in mixed precision with Adam."""
    return {"weights": 2 * n, "gradients": 2 * n, "masters": 4 * n, "m": 4 * n, "v": 4 * n}


def needed(sizes, batch):
    """Returns how many numbers backward needs: batch * (n0 + n1 + ... + n(L-1)). sizes: n0, n1,
    ..., nL."""
    return batch * sum(sizes[:-1])


def kept_by_autograd(sizes, batch):
    """Returns how many numbers the Tensors of plain/autograd.py keep: batch * (n0 + 3 (n1 + ... +
    n(L-1)) + 2 nL). sizes: n0, n1, ..., nL."""
    return batch * (sizes[0] + 3 * sum(sizes[1:-1]) + 2 * sizes[-1])


def counted(y, weights):
    """Returns how many numbers are really kept by y and by the Tensors from which y was computed.
    The weights are not counted."""
    nodes = order(y)  # y and all Tensors from which y was computed
    return sum(node.array.size for node in nodes if node not in weights)


if __name__ == "__main__":
    sizes = [4, 8, 8, 2]
    n = n_parameters(sizes)
    print("parameters:", n, "  bytes of states:", sum(states(n).values()))
    weights = [Tensor(np.ones(shape)) for n_in, n_out in pairwise(sizes)
               for shape in [(n_in, n_out), (n_out,)]]
    for batch in 10, 100:
        y = mlp(weights, Tensor(np.ones((batch, 4))))
        print("batch", batch, " needed", needed(sizes, batch), " kept by autograd",
              kept_by_autograd(sizes, batch), " counted", counted(y, weights))
