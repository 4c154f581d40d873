"""Ranks with unequal numbers of batches: train on all of them, count every sample once.

    rank 0   batch  batch  batch            for batch in join(t, loader):
    rank 1   batch  batch  None                 if batch is None:  model.absent()
    rank 2   batch  None   None                 else:              loss(model, batch).backward()
                                                optimizer.step(); optimizer.zero_grad()

A rank without a batch takes part with no samples: DataParallel and ZeRO weight gradients by
samples, so the mean is the one over the batches that there are. Before each step the ranks ask each
other whether anybody has one: a ring all-reduce of 1 byte. ZeRO 3 gathers weights in the forward,
so there the rank runs along with any batch: `model.absent(lambda: loss(model, last))`.

For evaluation nothing need be joined: nobody waits for anybody in a forward (of ZeRO 3: inside
`with model.gathered():`), and `evaluate` adds up sums and counts at the end. Deal the samples by
DistributedSampler(tail="uneven").

Sources: Horovod's join operation; PyTorch's `Join` (torch.distributed.algorithms).
Test: tests/parallel/data/test_join.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import ring
from minidl.comm.labels import about
from minidl.mode import no_grad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from minidl.comm.transport.protocol import Transport

_END = object()


def join(t: Transport, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield this rank's batches, then None as long as another rank has batches. Collective."""
    batches = iter(batches)
    mine = next(batches, _END)
    while _anybody(t, mine is not _END):
        if mine is _END:
            yield None
        else:
            yield mine
            mine = next(batches, _END)


def _anybody(t, flag):
    with about("whether a rank has a batch"):
        return ring.all_reduce(t, np.array([flag]), np.logical_or)[0]


def evaluate(t: Transport, batches: Iterable[Any], score: Callable[[Any], Any]) -> Any:
    """The mean of a score over all samples of all ranks, each once; collective.

    score(batch) returns (the sum over the batch's samples, how many they are)."""
    sums = np.zeros(2)
    with no_grad():
        for batch in batches:
            sums += [float(value) for value in score(batch)]
    with about("the sum of scores and the number of samples"):
        total, n_samples = ring.all_reduce(t, sums)
    if n_samples == 0:
        raise ValueError(f"rank {t.rank}: wanted samples to evaluate; got none on any rank")
    return total / n_samples
