"""What joins the ranks that hold the parts of one model: one norm to clip by, one decision to skip.

    rank 0 of tp   [columns 0..] norm ──┐       the norm of all gradients counts each part once:
    rank 1 of tp   [columns k..] norm ──┘       sum over ranks of  |g|^2 / copies
                                  └── the same on both: 2 copies

Tensor parallelism cuts some weights and repeats the others; a pipeline gives each rank layers of
its own, and may give two of them a tied weight. Each says of its parameters on how many ranks they
are (`copies`); clipping (optim/clip.py) and GradScaler ask `sharded_by` for the sum over the ranks.

Test: tests/parallel/model/test_parallelize.py, test_pipeline.py, test_hybrid.py
"""

import numpy as np

from minidl.comm import ring


class Shards:
    """Joins the ranks of t for these parameters: each is on `p.copies` of them.

    outer: what joined them before, over the ranks of another axis; it is asked, too"""

    def __init__(self, t, parameters):
        parameters = list(parameters)
        self.t = t
        self.outer = next((p.sharded_by for p in parameters if p.sharded_by is not None), None)
        for p in parameters:
            p.declare(sharded_by=self)

    def on_any_rank(self, flag):
        """Whether it is true on any rank: GradScaler skips a step on all of them."""
        found = bool(ring.all_reduce(self.t, np.array([bool(flag)]), np.logical_or)[0])
        return found if self.outer is None else self.outer.on_any_rank(found)

    def sum_over_ranks(self, x):
        """The sum of all ranks' x, a float: of squared norms, for clipping."""
        total = float(ring.all_reduce(self.t, np.array([float(x)]))[0])
        return total if self.outer is None else self.outer.sum_over_ranks(total)
