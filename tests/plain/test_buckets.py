"""The page and the real one: the same buckets, each sent as soon as it is full, and the bits of
DataParallel where its all-reduce adds in rank order, too."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.parallel.data import bucket as real
from minidl.plain import buckets, naive
from minidl.plain.hierarchical import Group
from tests.conftest import ranks

CAPS = (1, 24, 100, 1 << 20)


def network():
    minidl.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3))


def backward(t, model):
    rng = np.random.default_rng(t.rank)
    x, y = (minidl.tensor(rng.normal(size=(4, m)).astype("f4")) for m in (5, 3))
    F.mse_loss(model(x), y).backward()


@ranks(1, 2, 3, 4, 5, 8)
def test_means_have_the_bits_of_data_parallel(t):
    alone = network()
    backward(t, alone)
    gradients = [p.grad.numpy() for p in alone.parameters()][::-1]
    for cap in CAPS:
        model = DataParallel(network(), t, all_reduce=naive.all_reduce, bucket_bytes=cap,
                             first_bucket_bytes=cap)
        backward(t, model)
        means = buckets.mean_gradients(t, iter(gradients), cap)
        for mean, p in zip(means, reversed(list(model.parameters())), strict=True):
            np.testing.assert_array_equal(mean, p.grad.numpy())
        model.close()


@pytest.mark.parametrize("cap", CAPS)
@ranks(2, 3)
def test_a_bucket_is_sent_when_it_is_full_and_before_the_next_gradient(t, cap):
    sizes, log = [3, 1, 10, 4, 4, 0, 30, 2], []

    class Logged(Group):
        def isend(self, array, to):
            log.append(array.tolist())
            return super().isend(array, to)

    def gradients():
        for i, size in enumerate(sizes):
            log.append(f"gradient {i}")
            yield np.full(size, float(i))

    buckets.mean_gradients(Logged(t, range(t.size)), gradients(), cap)
    want = []
    for run in real.assign([8 * size for size in sizes], cap):
        want += [f"gradient {i}" for i in run]
        want += [[float(i) for i in run for _ in range(sizes[i])]] * (t.size - 1)
    assert log == want
