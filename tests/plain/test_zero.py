"""Each stage of the page and the real one: the same bits, step after step, and the same bytes.

In the real ones rank r owns block r and adds last to it. On the page rank r owns block r+1, and
rank r+1 begins it. So the page gets ranks that are moved on by one place: then both add in the same
order, and a rank owns the same block."""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import Ledger, chunks, ring_blocks, simulate
from minidl.nn import functional as F
from minidl.parallel import Zero1, Zero2, Zero3
from minidl.plain import zero
from minidl.plain.hierarchical import Group
from tests.conftest import ranks
from tests.parallel.zero.zero_net import finish

SIZES = (1, 2, 3, 4, 5, 8)
N_STEPS = 3
ONE_EACH = dict(bucket_bytes=1, first_bucket_bytes=1)  # the real ones cut each parameter alone


def moved_on(t):
    return Group(t, [(i + 1) % t.size for i in range(t.size)])


def network():
    """Weights and biases of 35, 7, 49, 7, 21 and 3 elements: blocks begin anywhere."""
    minidl.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 3))


def batch(t, step):
    """This rank's: as many rows on every rank."""
    rng = np.random.default_rng([step, t.rank])
    return [minidl.tensor(rng.normal(size=(4, m)).astype("f4")) for m in (5, 3)]


def adam(params):
    return optim.AdamW(params, lr=1e-2)


class Updates:
    """AdamW for the page: an optimizer of its own for each vector's block."""

    def __init__(self):
        self.of = {}

    def __call__(self, i, w, g):
        if i not in self.of:
            leaf = nn.Parameter(minidl.tensor(w.copy()))
            self.of[i] = leaf, adam([leaf])
        leaf, optimizer = self.of[i]
        leaf.grad = minidl.tensor(g)
        optimizer.step()
        w[...] = leaf.detach().numpy()


def put(params, values):
    for p, w in zip(params, values):
        p.data = minidl.tensor(w.reshape(p.shape).copy())


def real(t, stage, **options):
    model = stage(network(), t, **options)
    optimizer = adam(model.shards())
    for step in range(N_STEPS):
        optimizer.zero_grad()
        x, y = batch(t, step)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        model.gather()
    return finish(model)


def check_bytes(ledger, lengths, n_gathers):
    t = ledger
    want = sum(ring_blocks.bytes_sent(chunks.bounds(length, t.size), 4, t.rank,
                                      n_scatters=N_STEPS, n_gathers=N_STEPS * n_gathers)
               for length in lengths)
    assert ledger.bytes_sent == want


def train(t, step_of_page):
    """The weights by stage 1 or 2 of the page, with the real engine's gradients."""
    engine, update, ledger = network(), Updates(), Ledger(t)
    params = list(engine.parameters())
    weights = [p.detach().numpy().reshape(-1).copy() for p in params]
    for step in range(N_STEPS):
        def backward(weights, step=step):
            put(params, weights)
            engine.zero_grad()
            x, y = batch(t, step)
            F.mse_loss(engine(x), y).backward()
            for p in reversed(params):
                yield p.grad.numpy().reshape(-1).copy()

        step_of_page(moved_on(ledger), weights, backward, update)
    check_bytes(ledger, [len(w) for w in weights], n_gathers=1)
    assert [leaf.shape[0] for i, (leaf, _) in sorted(update.of.items())] == [
        chunks.size(len(w), t.size, t.rank) for w in weights], "one block's m and v"
    return weights


@ranks(*SIZES)
def test_stage_1_has_the_bits_of_the_real_one(t):
    want = real(t, Zero1, **ONE_EACH)
    for w, (name, array) in zip(train(t, zero.step1), want.items(), strict=True):
        np.testing.assert_array_equal(w, array.reshape(-1), err_msg=name)


@ranks(*SIZES)
def test_stage_2_has_the_bits_of_the_real_one(t):
    want = real(t, Zero2, **ONE_EACH)
    for w, (name, array) in zip(train(t, zero.step2), want.items(), strict=True):
        np.testing.assert_array_equal(w, array.reshape(-1), err_msg=name)


def test_stage_2_scatters_a_gradient_before_backward_makes_the_next():
    def body(t, step_of_page):
        log, ledger = [], Ledger(t)

        def backward(weights):
            for w in reversed(weights):
                log.append(ledger.messages_sent)
                yield np.ones_like(w)

        step_of_page(ledger, [np.ones(4), np.ones(5)], backward, lambda i, w, g: None)
        return log

    assert simulate(3, body, zero.step2)[0] == [0, 2] and simulate(3, body, zero.step1)[0] == [0, 0]


@ranks(*SIZES)
def test_stage_3_has_the_bits_of_the_real_one(t):
    engine, ledger = network(), Ledger(t)
    group, update = moved_on(ledger), Updates()

    def functions(layer):
        params = list(layer.parameters())

        def run(w, x):
            put(params, np.split(w, np.cumsum([p.numel() for p in params])[:-1]))
            x = minidl.tensor(x, requires_grad=True)
            return x, layer(x)

        def backward(w, x, gy):
            layer.zero_grad()
            x, y = run(w, x)
            y.backward(minidl.tensor(gy))
            return np.concatenate([p.grad.numpy().reshape(-1) for p in params]), x.grad.numpy()

        return lambda w, x: run(w, x)[1].detach().numpy(), backward

    whole = [np.concatenate([p.detach().numpy().reshape(-1) for p in layer.parameters()])
             for layer in engine]
    shards = [zero.own(group, w).copy() for w in whole]
    lengths = [len(w) for w in whole]
    layers = [functions(layer) for layer in engine]
    for step in range(N_STEPS):
        x, y = batch(t, step)

        def loss_gradient(output, y=y):
            output = minidl.tensor(output, requires_grad=True)
            F.mse_loss(output, y).backward()
            return output.grad.numpy()

        zero.step3(group, shards, lengths, layers, x.numpy(), loss_gradient, update)
    check_bytes(ledger, lengths, n_gathers=2)
    want = real(t, Zero3)
    for i, shard in enumerate(shards):
        vector = np.concatenate([want[f"{i}.weight"].reshape(-1), want[f"{i}.bias"]])
        np.testing.assert_array_equal(shard, chunks.split(vector, t.size)[t.rank])


def test_the_ranks_batches_matter():
    """Negative control: with another rank's batches the weights are others."""
    two, three = (simulate(n, real, Zero1)[0] for n in (2, 3))
    assert all((two[name] != three[name]).any() for name in two)
