"""Local SGD goes on without a straggler: who is in which round, by replicas averaged by hand;
bytes; modelled time; and that it is the local SGD that it was where nobody is slow."""

import time

import numpy as np
import pytest

from minidl import nn, optim
from minidl.comm import ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.elastic.parts import Parts
from minidl.parallel.data.local_sgd import LocalSGD
from tests.conftest import ranks
from tests.parallel.data.test_local_sgd import backward, net, weights

H = 2


def run(t, seconds, n_steps, without=2.0, log=None, momentum=0.9, dtype="f8"):
    """(weights, modelled seconds, LocalSGD); seconds(rank, step): of a step's computation."""
    model = net(dtype)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    local = LocalSGD(model, t, optimizer, period=H, without=without)
    while local.rounds.n_steps < n_steps:
        step = local.rounds.n_steps
        t.compute(seconds(t.rank, step))
        backward(local, step, t.rank, dtype)
        optimizer.step()
        optimizer.zero_grad()
        out = () if local.turns is None else sorted(local.turns.out)
        local.step()
        if log is not None:
            log.append((t.rank, step, out))
    local.finish()
    local.close()
    return weights(model), t.time(), local


def slow(which, factor, until=10**9):
    """`which` computes so many times longer, before that step."""
    return lambda rank, step: 1.0 * (factor if rank == which and step < until else 1)


def by_hand(n, straggler, rounds):
    """The weights of n replicas; rounds: of each whether the straggler is "in", "out" of it (and
    does nothing that counts), or comes "back" at its end. It trains a round each time that it is
    not back yet, from where it was, with its own momentum."""
    models = [net() for _ in range(n)]
    optimizers = [optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]

    def steps(k, first):
        for step in range(first, first + H):
            backward(models[k], step, k)
            optimizers[k].step()
            optimizers[k].zero_grad()

    left = None  # when the straggler's own round begins
    for i, kind in enumerate(rounds):
        others = [k for k in range(n) if k != straggler]
        for k in others:
            steps(k, i * H)
        if kind == "in" or left is None:
            steps(straggler, i * H)
            left = None if kind == "in" else i
        inside = range(n) if kind == "in" else others
        for copies in zip(*(m.parameters() for m in models)):
            mean = sum(copies[k].array for k in inside) / len(inside)
            for k in inside if kind == "out" else range(n):
                copies[k].array[...] = mean
        left = None if kind == "back" else left
    return models


@pytest.mark.parametrize("n, straggler", [(2, 1), (3, 0), (4, 2), (5, 4)])
def test_the_means_are_those_of_the_ranks_that_are_in(n, straggler):
    """3 times slower: the first two meetings have no measure of it and then one; it is out of three
    rounds, back at the end of the third, and out again, as it is as slow as before."""
    got = simulate(n, lambda t: run(t, slow(straggler, 3.0), 8 * H)[0])
    models = by_hand(n, straggler, ["in", "in", *["out", "out", "back"] * 2])
    for k in range(n):
        np.testing.assert_allclose(got[k], weights(models[k]), rtol=1e-9)  # sums in another order
        np.testing.assert_array_equal(got[k], got[0])
    everybody = by_hand(n, straggler, ["in"] * 8)  # negative control
    assert abs(got[0] - weights(everybody[0])).max() > 1e-4


def test_the_others_do_not_wait():
    """8 rounds of 2 steps of 1 s: two with the straggler's 3 s, six without; without the rule, and
    with one that names nobody, all take 3 s."""
    def seconds(without):
        return set(simulate(4, lambda t: run(t, slow(2, 3.0), 8 * H, without)[1],
                            alpha=0.0, beta=0.0))
    assert seconds(2.0) == {2 * 3 * H + 6 * H}
    assert seconds(None) == seconds(4.0) == {8 * 3 * H}


def test_one_that_was_slow_for_a_time_is_in_again():
    """Slow in steps 0 to 3 and in the first of its round in vain: at the end of that it is back;
    its pace was 2 times the median, so out once more; then it is in to the end."""
    log = []
    simulate(3, lambda t: run(t, slow(1, 3.0, until=5), 16 * H, log=log) and None)
    named = [out for rank, step, out in sorted(log) if rank == 0]
    assert named[:2 * H] == [[]] * 2 * H and named[2 * H:5 * H] == [[1]] * 3 * H
    assert named[-4 * H:] == [[]] * 4 * H
    steps = [step for rank, step, _ in sorted(log) if rank == 1]
    assert steps[-1] == 16 * H - 1 and len(steps) < 16 * H  # it was given the others' number


@ranks(3)
def test_a_straggler_on_either_clock(t):
    def seconds(rank, step):
        if not t.simulated:
            time.sleep(0.05 if rank == 1 else 0.002)
        return 0.05 if rank == 1 else 0.002

    log = []
    got, _, local = run(t, seconds, 20 * H, log=log)
    assert local.rounds.n_steps == 20 * H and local.rounds.n_rounds == 20
    assert (len(log) < 20 * H) == (t.rank == 1)
    np.testing.assert_array_equal(ring.all_reduce(t, got.copy(), np.maximum), got)


@ranks(1, 2, 3)
def test_where_nobody_is_slow_it_is_local_sgd_to_the_bit(t):
    ratio = 2.0 if t.simulated else 1e9  # a clock on the wall names anybody in steps this short
    got, _, local = run(t, lambda rank, step: 1.0 + 0.3 * rank, 5 * H, ratio, dtype="f4")
    plain, _, _ = run(t, lambda rank, step: 1.0, 5 * H, without=None, dtype="f4")
    np.testing.assert_array_equal(got, plain)
    assert not local.turns.out and local.rounds.n_rounds == 5


def test_bytes_are_those_of_the_ranks_that_are_in():
    n, out = 4, 2

    def body(t):
        t = Ledger(t)
        run(t, slow(out, 3.0), 0, dtype="f4")  # the weights at first
        before = t.bytes_sent
        run(t, slow(out, 3.0), 8 * H, dtype="f4")
        return t.bytes_sent - 2 * before

    size = sum(p.numel() for p in net("f4").parameters())
    sent = simulate(n, body)
    inside = [0, 1, 3]
    for rank in range(n):
        # meetings after rounds 1, 2, 5, 8 and at the end; the first two in rank order, the others
        # with the straggler as the last of the ring
        places = [rank, rank, *[[*inside, out].index(rank)] * 3]
        want = sum(ring.bytes_sent(size, 4, n, place) for place in places) + 5 * 64 * (n - 1)
        if rank != out:
            want += 4 * ring.bytes_sent(size, 4, n - 1, inside.index(rank))
        assert sent[rank] == want


def test_buffers_are_those_of_a_rank_that_was_in():
    """Rank 0 is out, so its averages of batch norm are not those that all get."""
    def body(t):
        model = nn.BatchNorm1d(3)
        local = LocalSGD(model, t, optim.SGD(model.parameters(), lr=0.1), period=H, without=2.0)
        while local.rounds.n_steps < 5 * H:
            t.compute(slow(0, 3.0)(t.rank, 0))
            local(np.random.default_rng(t.rank).normal(t.rank, size=(4, 3)).astype("f4"))
            mine = model.running_mean.array.copy()
            local.step()
        return mine, model.running_mean.array

    got = simulate(3, body)
    for _, after in got:
        np.testing.assert_array_equal(after, got[1][0])
    assert abs(got[0][0] - got[1][0]).max() > 0.1


def test_the_end_waits_for_whoever_is_out():
    """6 rounds and a step: then the straggler is in a round 8 times as long as the others'."""
    got = simulate(3, lambda t: run(t, slow(0, 8.0), 6 * H + 1)[0])
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[2], got[1])


def test_a_straggler_that_counts_its_own_steps_is_told():
    def body(t):
        local = LocalSGD(net(), t, optim.SGD([*net().parameters()], lr=0.1), period=H, without=2.0)
        for _ in range(5 * H):
            t.compute(slow(1, 8.0)(t.rank, 0))
            local.step()
        local.finish()

    with pytest.raises(RankFailed, match="rank 1: the other ranks finished at step 10"):
        simulate(3, body)


@ranks(2)
def test_what_does_not_go_together_is_refused(t):
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for options in (dict(period=1), dict(period=4, rule=max), dict(period=4, inside=(t, 2))):
        with pytest.raises(ValueError, match="without= wants rounds of 2 steps or more"):
            LocalSGD(model, t, optimizer, without=2.0, **options)
    with pytest.raises(ValueError, match="wants without= above 1 .*; got 1.0"):
        LocalSGD(model, t, optimizer, period=2, without=1.0)
    local = LocalSGD(model, t, optimizer, period=2, without=2.0)
    with pytest.raises(TypeError, match="the ranks are at different steps, but a snapshot has one"):
        Parts(t, None, {"model": local, "optimizer": optimizer})
    local.close()
