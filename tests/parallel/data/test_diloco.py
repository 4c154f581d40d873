"""DiLoCo: an outer step on the mean movement; streamed fragment by fragment; identities; bytes."""

import numpy as np
import pytest

from minidl import nn, optim, snapshot
from minidl.comm import ring, simulate, tree
from minidl.comm.labels import current_subject
from minidl.comm.observe.ledger import Ledger
from minidl.parallel import DataParallel
from minidl.parallel.data.diloco import DiLoCo, fragments_of
from minidl.parallel.data.local_sgd import LocalSGD
from tests.conftest import ranks
from tests.parallel.data.test_local_sgd import (
    SIZES, adamw, backward, by_hand, data_parallel, net, sgd, train, weights,
)


def plain_outer(params):
    return optim.SGD(params, lr=1.0)


def test_the_outer_step_is_nesterovs():
    """A pseudo-gradient of 1 in each round: theta after four, as PyTorch's SGD has it."""
    def body(t):
        model = nn.Linear(1, 1, bias=False).double()
        model.weight.array[...] = 0
        diloco = DiLoCo(model, t, optim.SGD(model.parameters(), lr=1.0), period=1)
        found = []
        for _ in range(4):
            model.weight.data -= 1.0  # what the inner steps of a round have done
            diloco.step()
            found.append(float(model.weight.array[0, 0]))
        return found

    want = [-1.33, -3.227, -5.6343, -8.50087]
    np.testing.assert_allclose(simulate(2, body)[0], want, rtol=1e-12)


@ranks(*SIZES)
def test_a_plain_outer_step_averages_weights(t):
    """Rate 1 without momentum is local SGD, whatever the inner optimizer and H."""
    diloco, _ = train(t, adamw, n_steps=4, wrap=DiLoCo, period=2, outer=plain_outer)
    models = by_hand(t.size, adamw, lambda step: [range(t.size)] if step % 2 else [], 4)
    np.testing.assert_allclose(weights(diloco.module), weights(models[t.rank]), rtol=1e-9,
                               atol=1e-13)


@ranks(1, 2, 3)
def test_rounds_of_one_step_are_data_parallel_nesterov(t):
    """Inner SGD of rate a, outer 0.7 and 0.9: SGD with Nesterov's momentum, rate 0.7 a."""
    diloco, _ = train(t, sgd(), wrap=DiLoCo, period=1)
    want = data_parallel(t, lambda p: optim.SGD(p, lr=0.07, momentum=0.9, nesterov=True))
    np.testing.assert_allclose(weights(diloco.module), want, rtol=1e-9, atol=1e-13)
    longer, _ = train(t, sgd(), wrap=DiLoCo, period=7)
    assert abs(weights(longer.module) - want).max() > 1e-5  # negative control


def streamed_by_hand(n, n_fragments, period, delay, alpha, n_steps):
    """n replicas of DiLoCo in one process, fragment by fragment, from the formulas."""
    models = [net() for _ in range(n)]
    optimizers = [adamw(m.parameters()) for m in models]
    params = [list(m.parameters()) for m in models]
    index = {p: i for i, p in enumerate(params[0])}
    runs = [[index[p] for p in run] for run in fragments_of(params[0], n_fragments)]
    common = [p.array.copy() for p in params[0]]
    v, coming = [np.zeros_like(w) for w in common], {}
    for step in range(1, n_steps + 1):
        for k in range(n):
            backward(models[k], step - 1, k)
            optimizers[k].step()
            optimizers[k].zero_grad()
        every = period // n_fragments
        if step % every == 0:
            run = runs[(step // every - 1) % n_fragments]
            coming[step + delay] = [(i, np.mean([common[i] - params[k][i].array for k in range(n)],
                                                axis=0)) for i in run]
        for i, d in coming.pop(step, []):
            v[i] = 0.9 * v[i] + d
            common[i] = common[i] - 0.7 * (d + 0.9 * v[i])
            for k in range(n):
                p = params[k][i]
                p.array[...] = common[i] + alpha * (p.array - common[i])
    return models, common


@pytest.mark.parametrize("n_fragments, delay, alpha", [
    (1, 0, 0.0), (2, 0, 0.0), (2, 1, 0.5), (4, 0, 0.3), (2, 1, 1.0)])
@ranks(2, 3)
def test_streams_of_fragments_are_what_the_formulas_say(t, n_fragments, delay, alpha):
    diloco, _ = train(t, adamw, wrap=DiLoCo, n_steps=11, period=4, fragments=n_fragments,
                      delay=delay, alpha=alpha)
    models, common = streamed_by_hand(t.size, n_fragments, 4, delay, alpha, 11)
    # float64, eleven steps of AdamW, whose sqrt(v) is small at first
    np.testing.assert_allclose(weights(diloco.module), weights(models[t.rank]), rtol=1e-8,
                               atol=1e-12)
    for p, w in zip(diloco.module.parameters(), common, strict=True):
        np.testing.assert_allclose(diloco.common[p], w, rtol=1e-8, atol=1e-12)
    diloco.close()


@ranks(1, 2, 3)
def test_an_all_reduce_of_the_users_sums_and_hears_what_it_sums(t):
    heard = []

    def mine(t, x):
        heard.append(current_subject())
        return tree.all_reduce(t, x)

    for n_fragments, subjects in ((1, {" of pseudo-gradients"}),
                                  (2, {" of fragment 0", " of fragment 1"})):
        heard.clear()
        train(t, adamw, n_steps=4, wrap=DiLoCo, period=2, fragments=n_fragments, all_reduce=mine)
        assert set(heard) == subjects


@ranks(*SIZES)
def test_bytes_are_one_message_of_the_weights_a_period(t):
    """Whole, or a fragment at a time, and none in between: 1/H of data parallelism's."""
    for n_fragments, delay in ((1, 0), (2, 0), (2, 1)):
        ledger = Ledger(t)
        model = net("f4")
        optimizer = adamw(model.parameters())
        diloco = DiLoCo(model, ledger, optimizer, period=4, fragments=n_fragments, delay=delay)
        before, sent = ledger.bytes_sent, []
        for step in range(8 + delay):
            backward(diloco, step, t.rank, "f4")
            optimizer.step()
            optimizer.zero_grad()
            diloco.step()
            sent.append(ledger.bytes_sent - before)
        sizes = [sum(p.numel() for p in run) for run in diloco.fragments]
        parts = [ring.bytes_sent(n, 4, t.size, t.rank) for n in sizes]
        assert sent[-1] == diloco.bytes_sent(2) == 2 * sum(parts)
        if not delay:
            steps = np.diff([0, *sent])
            every = 4 // n_fragments
            assert list(steps[every - 1::every]) == [parts[i % n_fragments]
                                                     for i in range(2 * n_fragments)]
            assert sum(steps) == sum(steps[every - 1::every])
        diloco.close()


@ranks(2)
def test_common_weights_and_outer_momentum_have_the_same_bits_on_all_ranks(t):
    diloco, _ = train(t, adamw, dtype="f4", wrap=DiLoCo, n_steps=8, period=4, fragments=2, delay=1)
    assert diloco.divergence() > 0
    with diloco.common_weights() as model:
        assert diloco.divergence() == 0
        w = weights(model)
    np.testing.assert_array_equal(ring.all_reduce(t, w.copy(), np.maximum), w)
    for p in diloco.module.parameters():
        v = diloco.outer.state[p]["momentum_buffer"]
        np.testing.assert_array_equal(ring.all_reduce(t, v.copy(), np.maximum), v)
        moment = diloco.inner.state[p]["exp_avg"]  # each rank's own, and never reset
        assert (ring.all_reduce(t, moment.copy(), np.maximum) != moment).any() or t.rank == 0
        assert diloco.inner.state[p]["step"] == 8
    assert diloco.divergence() > 0
    diloco.close()


@ranks(2)
def test_the_inner_gradients_stay(t):
    model = net("f4")
    optimizer = adamw(model.parameters())
    diloco = DiLoCo(model, t, optimizer, period=1)
    backward(diloco, 0, t.rank, "f4")
    before = [p.grad.array for p in model.parameters()]
    optimizer.step()
    diloco.step()
    assert all(p.grad.array is g for p, g in zip(model.parameters(), before, strict=True))


def test_a_snapshot_goes_on_to_the_same_bits(tmp_path):
    """The common weights and the outer momentum in one; each rank's weights and moments in a folder
    of its own. In streams, where ranks are never equal, too."""
    def run(t, restart):
        def made():
            model = net("f4")
            inner = adamw(model.parameters())
            return model, inner, DiLoCo(model, t, inner, period=4, fragments=2, delay=1)

        model, inner, diloco = made()
        alone = t.subgroup([t.rank])
        for step in range(9):
            backward(diloco, step, t.rank, "f4")
            inner.step()
            inner.zero_grad()
            diloco.step()
            if step == 3:
                with pytest.raises(ValueError, match="got step 4. Save after step 5"):
                    diloco.state_dict()
            if step == 4 and restart:
                own, common = tmp_path / f"rank{t.rank}", tmp_path / "common"
                snapshot.save(own, 5, alone, model=model, optimizer=inner)
                with diloco.common_weights():
                    snapshot.save(common, 5, t, model=model, optimizer=diloco.outer, diloco=diloco)
                diloco.close()
                model, inner, diloco = made()
                with diloco.common_weights():
                    snapshot.load(common, t, model=model, optimizer=diloco.outer, diloco=diloco)
                snapshot.load(own, alone, model=model, optimizer=inner)
        diloco.close()
        return weights(model), np.concatenate([w.reshape(-1) for w in diloco.common.values()])

    for a, b in zip(simulate(2, run, False), simulate(2, run, True)):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


def test_fragments_are_runs_of_about_the_same_size():
    params = [nn.Parameter(np.zeros(n)) for n in (10, 10, 5, 5, 10, 1)]
    assert [[p.numel() for p in run] for run in fragments_of(params, 2)] == [[10, 10, 5],
                                                                            [5, 10, 1]]
    for n in range(1, 7):
        runs = fragments_of(params, n)
        assert len(runs) == n and all(runs) and sum(runs, []) == params
    heavy = [nn.Parameter(np.zeros(n)) for n in (1, 1, 100)]
    assert [len(run) for run in fragments_of(heavy, 3)] == [1, 1, 1]
    with pytest.raises(ValueError, match="from 1 to 3 fragments"):
        fragments_of(heavy, 4)


@ranks(2)
def test_what_does_not_go_together_is_refused(t):
    model = net("f4")
    inner = adamw(model.parameters())
    for options, message in ((dict(period=5, fragments=2), "a period that is divisible by 2"),
                             (dict(period=4, fragments=2, delay=2),
                             "0 <= delay < period / 2; got period=4"),
                             (dict(period=4, fragments=[[model.parameters]]), "in exactly one")):
        with pytest.raises(ValueError, match=message):
            DiLoCo(model, t, inner, **options)
    half = optim.use_master_weights(adamw(net("f2").parameters()))
    with pytest.raises(ValueError, match="got an optimizer with fp32 master copies"):
        DiLoCo(model, t, half)
    parallel = DataParallel(model, t)
    for wrap in (DiLoCo, LocalSGD):
        with pytest.raises(TypeError, match="wants a model that is not wrapped; got a DataP"):
            wrap(parallel, t, inner, period=2)
    parallel.close()


@ranks(2)
def test_all_ranks_begin_with_rank_0s_weights(t):
    model = nn.Linear(2, 2)
    model.weight.array[...] = t.rank
    DiLoCo(model, t, optim.SGD(model.parameters()))
    assert not model.weight.array.any()
