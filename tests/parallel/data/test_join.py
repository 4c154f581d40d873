"""Unequal numbers of batches: equal to one rank that has the batches of all."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1
from minidl.parallel.data.join import evaluate, join
from tests.conftest import ranks

N_BATCHES = [3, 1, 0, 2, 5]  # of rank 0, 1, ...


def batches(rank):
    rng = np.random.default_rng(rank)
    sizes = [1 + (rank + i) % 3 for i in range(N_BATCHES[rank])]
    return [(rng.standard_normal((size, 4)), rng.standard_normal((size, 2))) for size in sizes]


def network():
    minidl.manual_seed(3)
    return nn.Linear(4, 2).double()


def serial(n):
    """One rank, which takes in step i the i-th batches of all n."""
    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for i in range(max(N_BATCHES[:n])):
        parts = [batches(r)[i] for r in range(n) if N_BATCHES[r] > i]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        F.mse_loss(net(minidl.tensor(x)), minidl.tensor(y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.weight.numpy()


@pytest.mark.parametrize("overlap", [True, False])
@ranks(1, 2, 3, 5)
def test_ranks_that_have_run_out_count_with_no_samples(t, overlap):
    net = network()
    model = DataParallel(net, t, overlap=overlap)
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    steps = 0
    for batch in join(t, batches(t.rank)):
        if batch is None:
            model.absent()
        else:
            F.mse_loss(model(minidl.tensor(batch[0])), minidl.tensor(batch[1])).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    assert steps == max(N_BATCHES[: t.size])
    # float64 sums in another order
    np.testing.assert_allclose(net.weight.numpy(), serial(t.size), rtol=1e-12)


@ranks(1, 2, 3, 4)
def test_every_sample_is_scored_once(t):
    x = np.arange(11.0)
    mine = x[t.rank :: t.size]
    score = evaluate(t, [mine[:2], mine[2:]], lambda batch: (np.sum(batch**2), len(batch)))
    assert score == np.mean(x**2)


@ranks(2)
def test_no_sample_anywhere_is_an_error(t):
    with pytest.raises(ValueError, match="wanted samples to evaluate; got none"):
        evaluate(t, [], lambda batch: (0, 0))


def test_a_zero_stage_says_what_to_do_instead():
    def body(t):
        net = network()
        with pytest.raises(TypeError, match="absent.. wants a plain DataParallel"):
            Zero1(net, t).absent()

    simulate(2, body)
