"""Linear layers whose all-reduce runs at the same time as their own matrix products.

    column, backward    gx = gy W │ all-reduce of gx ────────┐
                                  │ gw = gy^T x, gb ─────────┴─► all done

    row, forward        y0 = x0 W^T │ all-reduce of y0 │
                                    │ y1 = x1 W^T      │ all-reduce of y1 │
                                                       │ y2 = x2 W^T      │ ...

The all-reduce is a job of the transport's background thread (background.py). This thread can run
while NumPy multiplies, because NumPy then releases Python's lock. As many bytes are sent as
without overlap, but in more messages. Overlap helps if the network does not need the processor. In
a measurement with 2 ranks on 2 cores, training was slower with overlap. If an all-reduce took 10
ms, training was as fast as without overlap (benchmarks/bench_tensor_parallel.py). So overlap is off
by default.

Source: Shoeybi et al. 2019; for a product in parts, Wang et al. 2023 (ASPLOS, "Overlap
communication with dependent computation via decomposition").
Test: tests/parallel/model/test_tensor.py
"""

from minidl.comm import chunks
from minidl.comm.labels import named
from minidl.ops import linear
from minidl.parallel.model import functions


def column_linear(t, x, w, b, all_reduce=None):
    """Returns linear(copy(t, x), w, b). Backward computes gw and gb while gx is summed over t."""
    return ColumnProduct.apply(x, w, b, t=t, all_reduce=all_reduce or functions.total)


def row_linear(t, x, w, parts, all_reduce=None):
    """Returns all_reduce(t, linear(x, w)). The rows of x are cut into `parts` parts. Each part of
    the result is summed over ranks while the next part is computed."""
    return RowProduct.apply(x, w, t=t, parts=parts, all_reduce=all_reduce or functions.total)


class ColumnProduct(linear.Linear):
    """Computes y = x w^T + b. Backward sums the gradient of x over t."""

    op = "linear"

    def forward(self, x, w, b, t, all_reduce):
        self.t, self.all_reduce = t, all_reduce
        return super().forward(x, w, b)

    def backward(self, gy):
        needs = self.needs
        if not needs[0]:
            return super().backward(gy)
        self.needs = [True, False, False]
        gx, _, _ = super().backward(gy)
        with named("copy.backward"):
            summed = self.all_reduce(self.t, gx, wait=False)
        self.needs = [False, *needs[1:]]
        _, gw, gb = super().backward(gy)
        self.needs = needs
        return summed.wait(), gw, gb


class RowProduct(linear.Linear):
    """Computes the sum over t of y = x w^T. For bfloat16 the sum is in float32, and float32 is
    sent (bf16.py)."""

    op = "linear"

    def forward(self, x, w, t, parts, all_reduce):
        rows = linear.as_matrix(x)
        self.needs = [*self.needs, False]  # the last False is for the missing bias
        y = self.xp.empty((len(rows), w.shape[0]), x.dtype)
        jobs = []
        for part, into in zip(chunks.split(rows, parts), chunks.split(y, parts), strict=True):
            into[...] = super().forward(part, w, None)
            with named("all_reduce.forward"):
                jobs.append(all_reduce(t, into, wait=False))
        for job in jobs:
            job.wait()
        self.x_shape = x.shape
        self.save(rows if self.needs[1] else None, w if self.needs[0] else None)
        return y.reshape(*x.shape[:-1], w.shape[0])

    def backward(self, gy):
        return super().backward(gy)[:2]
