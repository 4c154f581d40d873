"""Linear layers whose all-reduce runs beside their own products.

    column, backward    gx = gy W │ all-reduce of gx ────────┐
                                  │ gw = gy^T x, gb ─────────┴─► all done

    row, forward        y0 = x0 W^T │ all-reduce of y0 │
                                    │ y1 = x1 W^T      │ all-reduce of y1 │
                                                       │ y2 = x2 W^T      │ ...

The all-reduce is a job of the transport's background thread (background.py); NumPy's products let
it run. The same bytes as without, in more messages. It is for networks that work by themselves: 2
ranks on 2 cores were slower with it, and level where an all-reduce took 10 ms
(benchmarks/bench_tensor_parallel.py), so it is off unless asked for.

Source: Shoeybi et al. 2019; in chunks, Wang et al. 2023 (ASPLOS, "Overlap communication with
dependent computation via decomposition").   Test: tests/parallel/model/test_tensor.py
"""

from minidl.comm import chunks
from minidl.comm.labels import named
from minidl.ops import linear
from minidl.parallel.model import functions


def column_linear(t, x, w, b, all_reduce=None):
    """linear(copy(t, x), w, b); backward sums gx over t while it computes gw and gb."""
    return ColumnProduct.apply(x, w, b, t=t, all_reduce=all_reduce or functions.total)


def row_linear(t, x, w, parts, all_reduce=None):
    """all_reduce(t, linear(x, w)) in so many parts of x's rows, each summed beside the next."""
    return RowProduct.apply(x, w, t=t, parts=parts, all_reduce=all_reduce or functions.total)


class ColumnProduct(linear.Linear):
    """y = x w^T + b, the gradient of x summed over t."""

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
    """The sum over t of y = x w^T; of bfloat16 in float32, which then travels (bf16.py)."""

    op = "linear"

    def forward(self, x, w, t, parts, all_reduce):
        rows = linear.as_matrix(x)
        self.needs = [*self.needs, False]  # no bias
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
