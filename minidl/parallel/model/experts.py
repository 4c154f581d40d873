"""Expert parallelism: the tokens of all ranks, and E/n of the experts on each.

The plain form, with the picture and one expert on each rank: minidl/plain/experts.py. Here:
backward, several experts on a rank, replicas of them, and a nn.MoE that is divided in place.

First the ranks tell each other how many tokens chose which expert: k E numbers each. From these a
rank knows all that it needs: the capacity, ceil(f T k / E) of the T tokens of all ranks; the places
of its own tokens in every expert's queue, behind all of earlier choices and of ranks before it; how
many rows come from whom; f of the balance loss. So n ranks drop what one rank would that has their
tokens in the order of ranks, to the token, and are that rank in all they compute. (With a capacity
for each rank, as is common, they drop others.) Rows arrive sorted by rank and are put in the order
of one rank's.

Sent per rank and layer: 8 k E (n-1) bytes of counts; then the rows that leave it, once to dispatch
them, and what comes back for the rows that came, and both again in backward: on average
4 f T k / n (n-1)/n rows of C elements.

**Gradients.** An expert's has the tokens of all n ranks in it already. What a rank's loss gave it
is weighted as data parallelism weights that rank's gradients: by its share of the tokens (average=
True, for DataParallel or average_gradients, where each rank's loss is a mean), or by 1 (False, for
parts of one sum). So an optimizer may take it as it is. With several groups of experts, replicas of
each other, it is averaged over the replicas; no divisor is left for the user to think of.

The rows' own gradients are not weighted: they go back to the loss they came from.
`optim.clip_grad_norm_` and GradScaler see all ranks' experts (shards.py).

Sources: Lepikhin et al. 2020 (GShard, arXiv 2006.16668), section 3.2; Rajbhandari et al. 2022
(DeepSpeed-MoE, arXiv 2201.05596) for two groups.
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
    """Divide the experts of every nn.MoE in `model` over t, in place; returns the model. All ranks
    come with the same model, and keep its experts chunks.bounds(E, n)[rank] and on.

    over: the ranks whose tokens count together for capacity and balance, t's among them; t unless
    given. With DataParallel over them t may be a part: replicas of the experts are then to be kept
    alike with average_gradients(the replicas, expert_parameters(model), tokens of their t).
    average: what is done with the other gradients afterwards (above)."""
    for layer in layers(model):
        if layer.n_experts < t.size:
            raise ValueError(f"rank {t.rank}: wanted an expert for each rank at least; got "
                             f"{layer.n_experts} for {t.size} ranks. Let several groups have all")
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
    Shards(t, model.parameters())  # clipping and GradScaler ask all ranks of t
    return model


def expert_parameters(model: Module):
    """The parameters that other ranks have other ones of."""
    return [p for p in model.parameters() if p.is_local]


class Ranks:
    """What joins the ranks of an nn.MoE layer: in place of nn.moe.Alone."""

    def __init__(self, t, over, average, bounds):
        if not set(t.ranks) <= set(over.ranks):
            raise ValueError(f"rank {t.rank}: wanted `over` with all ranks of t in it; got "
                             f"{over.ranks} for {t.ranks}")
        self.t, self.over, self.average, self.bounds = t, over, average, bounds
        self.members = [over.ranks.index(rank) for rank in t.ranks]

    def gather(self, n_chosen):
        """(n, k, E) of all ranks' (k, E), and this rank's place among them."""
        counts = np.zeros((self.over.size, *n_chosen.shape), np.int64)
        counts[self.over.rank] = n_chosen
        with named("experts.counts"):
            ring_blocks.all_gather(self.over, counts.reshape(-1),
                                   [r * n_chosen.size for r in range(self.over.size + 1)])
        self.n_tokens = counts[self.members, 0].sum(axis=1)  # of each rank of t
        return counts, self.over.rank

    def divisor(self, n_tokens, me):
        """For the sum of this rank's p: its tokens, or all."""
        return n_tokens[me] if self.average else n_tokens.sum()

    def run(self, experts, rows, plan):
        """Every row through its expert, wherever that is."""
        t, counts = self.t, plan.counts[self.members]
        out = [int(counts[t.rank, a:b].sum()) for a, b in zip(self.bounds, self.bounds[1:])]
        here = counts[:, self.bounds[t.rank]:self.bounds[t.rank + 1]]  # (n, experts here)
        back = here.sum(axis=1).tolist()
        weight = 1
        if self.average and rows.shape[0]:
            weight = self.n_tokens[t.rank] / self.n_tokens.sum()
        came = Exchange.apply(rows, t=t, counts=out, counts_in=back, after=1 / weight)
        n_here = here.shape[1]
        parts = came.split(here.reshape(-1).tolist())  # of rank 0 for each expert, of rank 1 ...
        done = each(experts, [cat(parts[e::n_here]) for e in range(n_here)])
        parts = done.split(here.T.reshape(-1).tolist())  # of expert 0 for each rank, ...
        done = cat([part for r in range(t.size) for part in parts[r::t.size]])
        return Exchange.apply(done, t=t, counts=back, counts_in=out, before=weight)


class Exchange(Function):
    """counts[j] rows to rank j, counts_in[i] from rank i. Backward: the gradients the other way,
    times `before` here, and times `after` where they have come home."""

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
    """(of counts, of rows in forward, in backward) that `rank` sends for one layer. counts (n, E):
    rows of each rank for each expert (Plan.counts), bounds: which are whose."""
    n, mine = len(counts), slice(bounds[rank], bounds[rank + 1])
    leave = counts[rank].sum() - counts[rank, mine].sum()
    come = counts[:, mine].sum() - counts[rank, mine].sum()
    rows = int(leave + come) * width * itemsize
    return 8 * k * counts.shape[1] * (n - 1), rows, rows
