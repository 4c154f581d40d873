"""Expert parallelism: each of n ranks has E/n of the E experts. An expert gets tokens of all ranks.

The plain form, with the picture and one expert on each rank: minidl/plain/experts.py. Here the
layer has a backward, and a rank may have several experts. Experts may have replicas. The experts of
an existing nn.MoE are divided in place.

Each token chooses k experts. First the ranks exchange counts. Each rank sends k E counts: how many
of its tokens chose each expert as 1st, ..., k-th choice. From these counts a rank computes:

    the capacity of an expert, ceil(f T k / E) for the T tokens of all ranks (f: capacity factor)
    the position of each token of the rank in an expert's queue. First come the 1st choices of all
        ranks, then the 2nd choices, ...; within a choice, lower ranks come first
    how many rows come from each rank
    f_e: the fraction of all choices that are expert e, for the balance loss (nn/moe.py)

Compare the n ranks with a single rank that has the tokens of all ranks, in the order of ranks. The
n ranks drop exactly the same tokens as the single rank, and compute the same results. (It is common
to give each rank its own capacity; then other tokens are dropped.) Rows arrive sorted by rank, and
are put into the order that they have on a single rank.

For a layer each rank sends 8 k E (n-1) bytes of counts. Then a rank sends the rows whose experts
are on other ranks. It also returns the results of the rows that came from other ranks. Backward
sends the same number of rows again. On average a rank sends 4 f T k (n-1) / n^2 rows of C elements
in a step.

**Gradients.** An expert's gradient is already a sum over the tokens of all n ranks. The part that
comes from one rank's loss gets the weight that data parallelism gives to this rank's gradients.
With average=True the weight is the rank's fraction of all tokens. Use this with DataParallel or
average_gradients, if each rank's loss is a mean. With average=False the weight is 1. Use this if
the losses are parts of one sum. In both cases an optimizer can use the gradient without another
factor. If several groups of ranks have replicas of the experts, average the gradients over the
replicas.

The gradients of the rows are not weighted, because each gradient goes back to the rank whose loss
it belongs to. `optim.clip_grad_norm_` and GradScaler include all ranks' experts (shards.py).

Sources: Lepikhin et al. 2020 (GShard, arXiv 2006.16668), section 3.2; Rajbhandari et al. 2022
(DeepSpeed-MoE, arXiv 2201.05596) for the two groups of ranks: the ranks of `t` divide the experts,
and the capacity is computed from the tokens of all ranks of `over`.
Test: tests/parallel/model/test_experts.py   Tutorial: tutorials/23_experts.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import all_to_all, chunks, ring_blocks
from minidl.comm.labels import named
from minidl.function import Function
from minidl.nn.moe import each, layers
from minidl.ops.shape import cat
from minidl.parallel.shards import Shards

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.nn.module import Module


def expert_parallel(model: Module, t: Transport, over: Transport | None = None,
                    average: bool = True) -> Module:
    """Divides the experts of every nn.MoE in `model` over t, in place. Returns the model.

    All ranks must have the same model. Rank r keeps the experts from chunks.bounds(E, n)[r] up to
    the next bound.

    over: a transport. Capacity and balance are computed from the tokens of all its ranks. It must
    include the ranks of t; the default is t. If `over` has more ranks than t, and DataParallel uses
    `over`, other groups have replicas of these experts. Keep the replicas equal by
    average_gradients(transport of the replicas, expert_parameters(model), number of tokens of the
    ranks of t). average: see the top of the file. Raises ValueError if there are fewer experts than
    ranks."""
    for layer in layers(model):
        if layer.n_experts < t.size:
            raise ValueError(f"rank {t.rank}: expert_parallel wants at least one expert for each "
                             f"of {t.size} ranks; got {layer.n_experts} experts. Use groups of at "
                             f"most {layer.n_experts} ranks, where each group has all experts")
        bounds = chunks.bounds(layer.n_experts, t.size)
        for e in range(layer.n_experts):
            if not bounds[t.rank] <= e < bounds[t.rank + 1]:
                del layer.experts[str(e)]
        for p in layer.experts.parameters():
            p.declare(is_local=True)
        layer.ranks, layer.joins_ranks = Ranks(t, over or t, average, bounds), True
    for p in model.parameters():
        if not p.is_local:
            p.declare(copies=p.copies * t.size)
    Shards(t, model.parameters())  # then clipping and GradScaler use the gradients of all ranks
    return model


def expert_parameters(model: Module):
    """Returns the parameters of this rank's own experts."""
    return [p for p in model.parameters() if p.is_local]


class Ranks:
    """Exchanges counts and rows between the ranks, for an nn.MoE layer. The layer uses a Ranks
    object in place of nn.moe.Alone."""

    def __init__(self, t, over, average, bounds):
        if not set(t.ranks) <= set(over.ranks):
            raise ValueError(f"rank {t.rank}: expert_parallel wants all ranks of t in over=; got "
                             f"over= with the ranks {over.ranks}, and t with the ranks {t.ranks}")
        self.t, self.over, self.average, self.bounds = t, over, average, bounds
        self.members = [over.ranks.index(rank) for rank in t.ranks]

    def gather(self, n_chosen):
        """Returns (counts, index). counts: the counts of all ranks of `over`, an array (n, k, E).
        index: this rank's index in the first dimension. n_chosen (k, E): how many tokens of this
        rank chose each expert as their 1st to k-th choice. Collective."""
        counts = np.zeros((self.over.size, *n_chosen.shape), np.int64)
        counts[self.over.rank] = n_chosen
        with named("experts.counts"):
            ring_blocks.all_gather(self.over, counts.reshape(-1),
                                   [r * n_chosen.size for r in range(self.over.size + 1)])
        self.n_tokens = counts[self.members, 0].sum(axis=1)  # tokens of each rank of t
        return counts, self.over.rank

    def divisor(self, n_tokens, me):
        """Returns the number by which the sum of this rank's probabilities is divided. If gradients
        are averaged, this is the rank's own number of tokens, else the number of tokens of all
        ranks."""
        return n_tokens[me] if self.average else n_tokens.sum()

    def run(self, experts, rows, plan):
        """Sends every row to the rank of its expert, runs the experts, and returns the results in
        the order of the rows."""
        t, counts = self.t, plan.counts[self.members]
        out = [int(counts[t.rank, a:b].sum()) for a, b in zip(self.bounds, self.bounds[1:])]
        here = counts[:, self.bounds[t.rank]:self.bounds[t.rank + 1]]  # (ranks, local experts)
        back = here.sum(axis=1).tolist()
        weight = 1
        if self.average and rows.shape[0]:
            weight = self.n_tokens[t.rank] / self.n_tokens.sum()
        came = Exchange.apply(rows, t=t, counts=out, counts_in=back, after=1 / weight)
        n_here = here.shape[1]
        parts = came.split(here.reshape(-1).tolist())  # sorted by rank, then by expert
        done = each(experts, [cat(parts[e::n_here]) for e in range(n_here)])
        parts = done.split(here.T.reshape(-1).tolist())  # sorted by expert, then by rank
        done = cat([part for r in range(t.size) for part in parts[r::t.size]])
        return Exchange.apply(done, t=t, counts=back, counts_in=out, before=weight)


class Exchange(Function):
    """Sends counts[j] rows to rank j, and receives counts_in[i] rows from rank i. Backward
    multiplies the gradients by the number `before`, and sends them back. Then it multiplies the
    gradients that it receives by the number `after`."""

    def forward(self, rows, t, counts, counts_in, before=1, after=1):
        self.t, self.counts, self.counts_in, self.scale = t, counts, counts_in, (before, after)
        with named("experts.forward"):
            return all_to_all.all_to_all_v(t, rows, counts, counts_in)[0]

    def backward(self, g):
        before, after = self.scale
        with named("experts.backward"):
            g = all_to_all.all_to_all_v(self.t, g if before == 1 else g * g.dtype.type(before),
                                        self.counts_in, self.counts)[0]
        return g if after == 1 else g * g.dtype.type(after)


def bytes_sent(counts, rank, bounds, width, itemsize, k):
    """Returns the bytes that `rank` sends for one layer, as three numbers: for the counts, for rows
    in forward, and for rows in backward.

    counts (n, E): the number of rows from each rank for each expert (Plan.counts). bounds: rank r
    has the experts from bounds[r] up to bounds[r+1] - 1."""
    n, mine = len(counts), slice(bounds[rank], bounds[rank + 1])
    leave = counts[rank].sum() - counts[rank, mine].sum()
    come = counts[:, mine].sum() - counts[rank, mine].sum()
    rows = int(leave + come) * width * itemsize
    return 8 * k * counts.shape[1] * (n - 1), rows, rows
