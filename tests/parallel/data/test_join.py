"""Unequal numbers of batches: equal to one rank that has the batches of all."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
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
    with pytest.raises(ValueError, match="wanted at least one sample to evaluate; got no"):
        evaluate(t, [], lambda batch: (0, 0))


class Net(nn.Module):
    """A list of two units, and batch norm's statistics, which are rank 0's."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        self.norm = nn.BatchNorm1d(4, affine=False).eval()
        self.double()

    def forward(self, x):
        return self.layers(self.norm(x))


def train(model, net, optimizer, steps, zero):
    """steps: for each the rank's batch, or None."""
    x, y = np.full((3, 4), 7.0), np.full((3, 2), 7.0)
    for batch in steps:
        if batch is not None:
            x, y = batch
            F.mse_loss(model(minidl.tensor(x)), minidl.tensor(y)).backward()
        else:  # on any batch: counted, it would change everything
            model.absent(lambda x=x, y=y: F.mse_loss(model(minidl.tensor(x)), minidl.tensor(y)))
        optimizer.step()
        if zero:
            model.gather()
        model.zero_grad()


@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
@pytest.mark.parametrize("overlap", [True, False])
@ranks(1, 2, 3, 5)
def test_ranks_of_zero_that_have_run_out_count_with_no_samples(t, stage, overlap):
    minidl.manual_seed(3)
    net = Net()
    minidl.manual_seed(3)
    oracle = Net()
    model = stage(net, t, overlap=overlap)
    optimizer = optim.AdamW(model.shards(), lr=0.1)
    train(model, net, optimizer, join(t, batches(t.rank)), zero=True)
    together = []
    for i in range(max(N_BATCHES[: t.size])):
        parts = [batches(r)[i] for r in range(t.size) if N_BATCHES[r] > i]
        together.append([np.concatenate(arrays) for arrays in zip(*parts, strict=True)])
    train(oracle, oracle, optim.AdamW(oracle.parameters(), lr=0.1), together, zero=False)
    state = model.state_dict()
    for name, value in oracle.state_dict().items():
        # float64 sums in another order; Adam divides by a root, which keeps relative errors
        np.testing.assert_allclose(state[name], value, rtol=1e-9, err_msg=name)
    with model.gathered():  # each sample of unequal shares once, and no rank waits for another
        score = evaluate(t, batches(t.rank), lambda batch: (
            ((net(minidl.tensor(batch[0])).numpy() - batch[1]) ** 2).sum(), len(batch[0])))
    x, y = (np.concatenate(a) for a in zip(
        *[b for r in range(t.size) for b in batches(r)], strict=True))
    wanted = ((oracle(minidl.tensor(x)).numpy() - y) ** 2).sum() / len(x)
    np.testing.assert_allclose(score, wanted, rtol=1e-9)
    model.close()


@ranks(2)
def test_statistics_do_not_see_the_batch_of_an_absent_rank(t):
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = Zero3(net, t)
    before = None
    for batch in join(t, [1, 2][: t.rank + 1]):
        if batch is None:
            before = net[1].running_mean.numpy().copy()
            model.absent(lambda: model(minidl.ones(3, 4) * 50).sum())
            np.testing.assert_array_equal(net[1].running_mean.numpy(), before)
        else:
            model(minidl.ones(3, 4) * (t.rank + 1)).sum().backward()
        model.zero_grad()
    assert (before is None) == (t.rank == 1)
    model.close()


def test_stage_3_says_what_it_wants():
    def body(t):
        with pytest.raises(TypeError, match="Zero3.absent.. wants a function that runs the"):
            Zero3(network(), t).absent()

    simulate(2, body)
