"""Joins the ranks that hold parts of one model. They clip by one norm, and skip steps together.

    rank 0 of tp   [columns 0..] norm ──┐       the norm of all gradients counts each part once:
    rank 1 of tp   [columns k..] norm ──┘       sum over ranks of  |g|^2 / copies
                                  └── the same on both ranks: 2 copies

Tensor parallelism divides some weights, and each rank holds a copy of the other weights. A pipeline
gives each rank its own layers, and two ranks may hold one tied weight. Tensor parallelism and
pipelines declare for each parameter how many ranks hold this parameter (`copies`). Clipping asks
each group in `sharded_by` for the sum over the group's ranks. GradScaler asks each group whether a
rank must skip the step (optim/over_ranks.py).

Test: tests/parallel/model/test_parallelize.py, test_pipeline.py, test_hybrid.py
"""

import numpy as np

from minidl.comm import ring


class Shards:
    """Connects parameters with the ranks of t, so that clipping and GradScaler include all these
    ranks. `p.copies` is the number of these ranks that hold p.

    Adds this object to p.sharded_by of each parameter p. If a parameter is already divided over the
    ranks of another axis, its sharded_by then has two groups."""

    def __init__(self, t, parameters):
        self.t = t
        for p in parameters:
            p.declare(sharded_by=(*p.sharded_by, self))

    def on_any_rank(self, flag):
        """Returns True if flag is true on any rank. GradScaler then skips the step on all ranks.
        Collective."""
        return bool(ring.all_reduce(self.t, np.array([bool(flag)]), np.logical_or)[0])

    def sum_over_ranks(self, x):
        """Returns a float: the sum of all ranks' x. Clipping calls this function to sum squared
        norms. Collective."""
        return float(ring.all_reduce(self.t, np.array([float(x)]))[0])
