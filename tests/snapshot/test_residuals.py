"""What gradient compression owes goes with the snapshot, to any number of ranks."""

import contextlib

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import codec, simulate
from minidl.nn import functional as F
from minidl.parallel import DGC, Compressed, DataParallel, ErrorFeedback, OneBitAdam, PowerSGD
from minidl.plain import naive
from minidl.snapshot import snapshot
from minidl.snapshot.snapshot import SnapshotError
from tests.conftest import ranks
from tests.snapshot.test_snapshot import common_folder

METHODS = {
    "int8": lambda: ErrorFeedback(codec.INT8),
    "dgc": lambda: DGC(momentum=0.9, sparsity=0.97, warm_up=(0.5, 0.8), stage_steps=2, min_size=20),
    "1-bit adam": lambda: OneBitAdam(warm_up_steps=1),
    "powersgd": lambda: PowerSGD(rank=1, start_step=1, min_compression_rate=1),
}


def build(t, method, seed=0):
    minidl.manual_seed(seed)
    net = nn.MLP(6, 9, 3)
    model = Compressed(net, t, method(), bucket_bytes=100, first_bucket_bytes=50)
    return model, optim.SGD(net.parameters(), lr=0.1)


def steps(t, model, opt, first, n):
    for step in range(first, first + n):
        rng = np.random.default_rng([t.rank, step])
        opt.zero_grad()
        x, y = rng.standard_normal((4, 6)).astype("f4"), rng.integers(0, 3, 4)
        F.cross_entropy(model(x), y).backward()
        opt.step()


def everything(model):
    return [p.array.copy() for p in model.parameters()] + [
        x.copy() for b in model.reducer.buckets for x in b.own.values()]


@pytest.mark.parametrize("name", METHODS)
@ranks(1, 2, 3)
def test_a_resumed_run_is_the_run_that_never_stopped(t, name):
    with common_folder(t) as folder:
        model, opt = build(t, METHODS[name])
        steps(t, model, opt, 0, 3)
        snapshot.save(folder, 3, model=model, optimizer=opt)
        steps(t, model, opt, 3, 3)
        again, opt_again = build(t, METHODS[name], seed=9)
        steps(t, again, opt_again, 50, 1)  # something else is owed, and is to be forgotten
        assert snapshot.load(folder, model=again, optimizer=opt_again) == 3
        steps(t, again, opt_again, 3, 3)
        for a, b in zip(everything(model), everything(again), strict=True):
            np.testing.assert_array_equal(a, b)
        model.close()
        again.close()


def kept(t, model):
    """The sum over ranks of every own array, by kind and parameter's number."""
    index = {p: i for i, p in enumerate(model.module.parameters())}
    return {(kind, index[p]): naive.all_reduce(t, view.astype("f8"))
            for b in model.reducer.buckets for kind in b.own
            for p, view in zip(b.params, b.views_of(kind))}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("n, n_after", [(4, 2), (3, 1), (2, 3), (5, 3)])
def test_on_other_ranks_the_sum_is_kept(name, n, n_after, tmp_path):
    def write(t):
        model, opt = build(t, METHODS[name])
        steps(t, model, opt, 0, 3)
        snapshot.save(tmp_path, 3, model=model, optimizer=opt)
        model.close()
        return kept(t, model)

    def read(t):
        model, opt = build(t, METHODS[name], seed=9)
        snapshot.load(tmp_path, model=model, optimizer=opt)
        model.close()
        assert all(b.step == 3 for b in model.reducer.buckets)
        return kept(t, model)

    before, after = simulate(n, write)[0], simulate(n_after, read)[0]
    assert before.keys() == after.keys()
    assert max(np.abs(x).max() for x in before.values()) > 0
    for key, x in before.items():
        np.testing.assert_allclose(after[key], x, rtol=0, atol=1e-7)  # sums of a few float32


def test_what_is_owed_is_not_forgotten_in_silence(tmp_path):
    def body(t):
        model, opt = build(t, METHODS["dgc"])
        steps(t, model, opt, 0, 1)
        snapshot.save(tmp_path, 1, model=model, optimizer=opt)
        other, _ = build(t, METHODS["int8"])
        plain = DataParallel(nn.MLP(6, 9, 3), t)
        with pytest.raises(SnapshotError, match="holds residuals of DGC, which this model"):
            snapshot.load(tmp_path, model=plain, optimizer=optim.SGD(plain.parameters()))
        with pytest.raises(SnapshotError, match="holds DGC with .* the model has ErrorFeedback"):
            snapshot.load(tmp_path, model=other)
        assert snapshot.load(tmp_path, model=plain) == 1  # the weights alone
        for m in (model, other, plain):
            m.close()

    simulate(2, body)


@ranks(2)
def test_a_run_that_was_not_compressed_owes_nothing(t):
    with common_folder(t) as folder, contextlib.ExitStack() as closing:
        plain = DataParallel(nn.MLP(6, 9, 3), t)
        closing.callback(plain.close)
        snapshot.save(folder, 7, model=plain)
        model, opt = build(t, METHODS["dgc"])
        closing.callback(model.close)
        assert snapshot.load(folder, model=model) == 7
        assert not any(x.any() for x in kept(t, model).values())
