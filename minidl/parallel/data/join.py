"""Ranks with unequal numbers of batches: train on every batch, count every sample once.

    rank 0   batch  batch  batch            for batch in join(t, loader):
    rank 1   batch  batch  None                 if batch is None:  model.absent()
    rank 2   batch  None   None                 else:              loss(model, batch).backward()
                                                optimizer.step(); optimizer.zero_grad()

A rank without a batch takes part with 0 samples. In DataParallel and ZeRO the weight of a rank's
gradients is its number of samples. So the mean counts only the batches that exist. Before each step
a ring all-reduce of 1 byte tells every rank whether any rank still has a batch. ZeRO 3 gathers
weights in the forward. So with ZeRO 3 a rank without a batch runs forward and backward with any
batch: `model.absent(lambda: loss(model, last))`.

Evaluation does not need join(), because no rank waits for another rank in a forward. With ZeRO 3 a
forward waits for the other ranks, unless it runs inside `with model.gathered():`. At the end
`evaluate` adds up the scores and the numbers of samples of all ranks. Distribute the samples by
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
    """Yields this rank's batches, and then None while another rank still has batches.
    Collective."""
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
    """Returns the mean of a score over all samples of all ranks, each counted once. Collective.

    score(batch) returns (the sum over the batch's samples, the number of samples). Raises
    ValueError if no rank has a sample."""
    sums = np.zeros(2)
    with no_grad():
        for batch in batches:
            sums += [float(value) for value in score(batch)]
    with about("the sum of scores and the number of samples"):
        total, n_samples = ring.all_reduce(t, sums)
    if n_samples == 0:
        raise ValueError(f"rank {t.rank}: wanted at least one sample to evaluate; got no sample "
                         "on any rank")
    return total / n_samples
