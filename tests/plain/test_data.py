"""The page and the real loader: the same batches, where both have the same order."""

import numpy as np
import pytest

from minidl.data import DataLoader, DistributedSampler, TensorDataset
from minidl.data import sampler as real
from minidl.plain import data

N, SEED = 23, 7
X = np.arange(N * 3).reshape(N, 3)
Y = 100 + np.arange(N)


def same(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y.numpy())


@pytest.mark.parametrize("batch_size", [1, 4, 23, 30])
def test_batches_are_those_of_the_real_loader(monkeypatch, batch_size):
    monkeypatch.setattr(data, "order", real.order)
    sampler = DistributedSampler(N, 0, 1, seed=SEED)
    loader = DataLoader(TensorDataset(X, Y), batch_size, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        same(data.batches([X, Y], batch_size, SEED, epoch), loader)


def test_both_go_on_at_the_same_place(monkeypatch):
    monkeypatch.setattr(data, "order", real.order)
    sampler = DistributedSampler(N, 0, 1, seed=SEED)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 2, "consumed": 8})
    same(data.batches([X, Y], 4, SEED, 2, used=8),
         DataLoader(TensorDataset(X, Y), 4, sampler=sampler))


def test_each_epoch_has_another_order_of_all_samples():
    orders = [data.order(N, SEED, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(N)) for order in orders)
    assert len(set(map(tuple, orders))) == 3
    assert data.order(N, SEED, 1).tolist() == orders[1] != data.order(N, SEED + 1, 1).tolist()
