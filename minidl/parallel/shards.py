"""What joins the ranks that hold the parts of one model: one norm to clip by, one decision to skip.

    rank 0 of tp   [columns 0..] norm ──┐       the norm of all gradients counts each part once:
    rank 1 of tp   [columns k..] norm ──┘       sum over ranks of  |g|^2 / copies
                                  └── the same on both: 2 copies

Tensor parallelism cuts some weights and repeats the others; a pipeline gives each rank layers of
its own, and may give two of them a tied weight. Each says of its parameters on how many ranks they
are (`copies`). Clipping and GradScaler ask each group in `sharded_by` for the sum over its ranks
(optim/over_ranks.py).

Test: tests/parallel/model/test_parallelize.py, test_pipeline.py, test_hybrid.py
"""

import numpy as np

from minidl.comm import ring


class Shards:
    """Joins the ranks of t for these parameters: each is on `p.copies` of them. A parameter may be
    divided over the ranks of another axis already; then it belongs to both groups."""

    def __init__(self, t, parameters):
        self.t = t
        for p in parameters:
            p.declare(sharded_by=(*p.sharded_by, self))

    def on_any_rank(self, flag):
        """Returns whether it is true on any rank: GradScaler skips a step on all of them."""
        return bool(ring.all_reduce(self.t, np.array([bool(flag)]), np.logical_or)[0])

    def sum_over_ranks(self, x):
        """Returns the sum of all ranks' x, a float: of squared norms, for clipping."""
        return float(ring.all_reduce(self.t, np.array([float(x)]))[0])
