"""Mixture of experts on one rank: who goes where, what is dropped, what is learnt."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.gradcheck import gradcheck
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.nn import moe
from minidl.precision import amp
from minidl.tensor import Tensor
from tests.devices import host

FIRSTS, SECONDS = [0, 0, 0, 1, 2, 0], [1, 2, 1, 0, 0, 2]


def one(choice, n_experts):
    """of_rounds of a single rank."""
    return moe.of_rounds(np.asarray(choice), n_experts)[None]


def planned(choice, n_experts, capacity):
    choice = np.asarray(choice)
    return moe.plan_of(choice, one(choice, n_experts), 0, capacity)


def layer(dtype="f8", width=3, seed=0, **options):
    minidl.manual_seed(seed)
    options = {"n_experts": 4, **options}
    made = nn.MoE(width, **options).to(np.dtype(dtype))
    made.router.weight.array[...] = np.random.default_rng(seed).normal(
        size=made.router.weight.shape)
    return made


def rows(n=10, width=3, seed=1, dtype="f8"):
    return np.random.default_rng(seed).normal(size=(n, width)).astype(dtype)


def by_hand(made, x):
    """Token by token; (y, kept choices)."""
    scores = x @ made.router.weight.array.T
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    biased = p + made.bias_rate * made.bias_steps.array
    order = np.argsort(-biased, axis=1, kind="stable")[:, :made.top_k]
    gates = np.take_along_axis(p, order, 1)
    if made.top_k > 1:
        gates = gates / gates.sum(1, keepdims=True)
    limit = np.ceil(made.capacity_factor * order.size / made.n_experts - 1e-9)
    taken, y, n_kept = [0] * made.n_experts, np.zeros_like(x), 0
    for j in range(made.top_k):
        for i, row in enumerate(x):
            e = order[i, j]
            taken[e] += 1
            if taken[e] <= limit:
                y[i] += gates[i, j] * made.experts[str(e)](Tensor(row[None])).array[0]
                n_kept += 1
    return y, n_kept


# ---- who goes where ----


@pytest.mark.parametrize("factor, n_tokens, k, n_experts, rows_each", [
    (1.25, 8, 1, 4, 3), (1.25, 10, 1, 4, 4), (1.25, 2, 1, 4, 1), (1.1, 50, 1, 1, 55),
    (1.0, 6, 2, 4, 3), (None, 7, 2, 4, 14), (2.0, 0, 1, 4, 0)])
def test_the_capacity_is_the_formulas(factor, n_tokens, k, n_experts, rows_each):
    """1.1 * 50 is 55.00000000000001 in float64: its ceiling would be 56."""
    choice = np.arange(n_tokens * k).reshape(n_tokens, k) % n_experts
    assert moe.capacity(factor, one(choice, n_experts)) == rows_each


def test_all_first_choices_come_before_all_second_ones():
    """Capacity 2. Positions count those dropped before, too: GShard's order."""
    plan = planned(np.stack([FIRSTS, SECONDS], 1), 3, 2)
    kept = plan.slot >= 0
    assert np.flatnonzero(kept[:, 0]).tolist() == [0, 1, 3, 4]
    assert np.flatnonzero(kept[:, 1]).tolist() == [0, 1]
    assert plan.counts.tolist() == [[2, 2, 2]]
    assert plan.source.tolist() == [0, 1, 0, 3, 1, 4]  # by expert, then by token


def test_every_kept_choice_has_a_row_of_its_own():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, k, n_experts = rng.integers(0, 20), rng.integers(1, 4), rng.integers(3, 6)
        choice = np.array([rng.permutation(n_experts)[:k] for _ in range(n)], int).reshape(n, k)
        limit = rng.integers(0, 8)
        plan = planned(choice, n_experts, limit)
        assert sorted(plan.slot[plan.slot >= 0]) == list(range(len(plan.source)))
        experts = np.repeat(np.arange(n_experts), plan.counts[0])
        for (i, j), slot in np.ndenumerate(plan.slot):
            if slot >= 0:
                assert plan.source[slot] == i and experts[slot] == choice[i, j]
        chosen = np.bincount(choice.reshape(-1), minlength=n_experts)
        assert plan.counts[0].tolist() == np.minimum(chosen, limit).tolist()


def test_of_equal_scores_the_lower_expert_counts_as_larger():
    assert moe.choose(np.array([[1.0, 2, 2, 1], [0, 0, 0, 0]]), 3).tolist() == [[1, 2, 0],
                                                                               [0, 1, 2]]


def test_top_k_is_from_one_to_all():
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"from 1 to 4, the .*; got {k}"):
            nn.MoE(3, n_experts=4, top_k=k)


# ---- the layer ----


@pytest.mark.parametrize("k, factor", [(1, 1.25), (2, 1.0), (4, 0.5), (1, 100), (3, 0.1)])
def test_a_layer_is_what_one_computes_token_by_token(k, factor):
    made, x = layer(top_k=k, capacity_factor=factor), rows(12)
    made.bias_steps.array[...] = [100, 0, -200, 50]
    want, n_kept = by_hand(made, x)
    got = made(Tensor(x.reshape(3, 4, 3)))
    np.testing.assert_allclose(got.array.reshape(12, 3), want, rtol=1e-12, atol=1e-14)
    assert made.n_dropped == 12 * k - n_kept


def test_a_dropped_token_gives_zero():
    """All tokens choose expert 0, which takes 1; negative control without a limit."""
    x = abs(rows(4))
    for factor, n_zero in ((1.0, 3), (None, 0)):
        made = layer(capacity_factor=factor)
        made.router.weight.array[...] = 0
        y = made(Tensor(x)).array
        assert (y == 0).all(axis=1).tolist() == [False] + [n_zero > 0] * 3
        assert made.n_dropped == n_zero


@pytest.mark.parametrize("k", [1, 2])
def test_gradients_of_input_router_and_experts(k):
    """Central differences; scores far enough apart that no choice changes."""
    made = layer(top_k=k, capacity_factor=0.8)

    def run(x):
        return made(x) * 2 + made.aux_loss

    x = Tensor(rows(6), requires_grad=True)
    gradcheck(run, x)
    y = run(x)
    y.backward(np.ones(y.shape))
    for p in (made.router.weight, made.experts["1"].down.weight):
        eps, at = 1e-6, (1, 2)
        values = []
        for step in (eps, -eps):
            p.array[at] += step
            values.append(run(x).sum().item())
            p.array[at] -= step
        np.testing.assert_allclose(p.grad[at], (values[0] - values[1]) / (2 * eps), atol=1e-8,
                                   rtol=1e-7)


def test_the_router_of_one_choice_learns_from_the_loss():
    """Negative control: a softmax over the one chosen score is 1, and has no gradient."""
    made, x = layer(capacity_factor=None), Tensor(rows())
    made(x).sum().backward()
    assert abs(made.router.weight.grad).max() > 1e-3


def test_of_renormalised_gates_the_sum_is_one():
    made = layer(top_k=2, capacity_factor=None, expert=lambda *_: nn.Identity())
    np.testing.assert_allclose(made(Tensor(rows())).array, rows(), rtol=1e-14)


# ---- balance ----


def test_the_balance_loss_is_1_where_balanced_and_E_where_collapsed():
    for k in (1, 2):
        made = layer(top_k=k, width=4)
        made.router.weight.array[...] = 50 * np.eye(4)
        made(Tensor(np.tile(np.eye(4) + 0.5 * np.roll(np.eye(4), 1, 1), (3, 1))))
        np.testing.assert_allclose(made.aux_loss.item(), 1, rtol=1e-12)
    made = layer(width=4)
    made.router.weight.array[...] = 50 * np.eye(4)
    made(Tensor(np.tile([1.0, 0, 0, 0], (6, 1))))
    np.testing.assert_allclose(made.aux_loss.item(), 4, rtol=1e-12)


def test_the_balance_losss_gradient_is_the_formulas():
    """dlogit_tj = E / T p_tj (f_j - sum_i f_i p_ti), f of the choices before any is dropped."""
    made, x = layer(capacity_factor=0.1), rows()
    made(Tensor(x))
    moe.balance_loss(made).backward()
    scores = x @ made.router.weight.array.T
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    f = np.bincount(p.argmax(1), minlength=4) / len(x)
    glogits = 4 / len(x) * p * (f - (p @ f)[:, None])
    np.testing.assert_allclose(made.router.weight.grad, glogits.T @ x, rtol=1e-12, atol=1e-15)


def test_the_bias_moves_against_the_load():
    made = layer()
    made.load = np.array([6, 2, 0, 0])
    moe.move_bias(made)
    np.testing.assert_allclose(made.bias_rate * made.bias_steps.array, [-1e-3, 0, 1e-3, 1e-3])
    assert made.load == 0 and "bias_steps" in made.state_dict()


def test_the_bias_balances_and_is_not_in_the_gates():
    """Tokens most of which like one expert best are spread; the loss has no second term."""
    made = layer(capacity_factor=None, bias_rate=0.005, expert=lambda *_: nn.Identity())
    x = Tensor(rows(64) * 0.3 + [2, 0, 0])
    made.router.weight.array[0] += [1, 0, 0]
    loads = []
    for _ in range(200):
        made(x)
        loads.append(made.load)
        moe.move_bias(made)
    assert loads[0].max() > 50 and np.mean(loads[-20:], 0).max() < 1.2 * 64 / 4
    p = F.softmax(F.linear(x, made.router.weight), -1).array
    chosen = moe.choose(p + made.bias_rate * made.bias_steps.array, 1)
    np.testing.assert_allclose(made(x).array[:, 0] / x.array[:, 0],  # an identity shows its gate
                               np.take_along_axis(p, chosen, 1)[:, 0], rtol=1e-12)


def test_the_load_counts_training_alone():
    made, x = layer(top_k=2), Tensor(rows())
    made.eval()(x)
    assert np.sum(made.load) == 0
    made.train()(x)
    made(x)
    assert made.load.sum() == 2 * 2 * 10


# ---- in a model ----

V = 7


def gpt(dtype="f8", **options):
    minidl.manual_seed(0)
    experts = partial(nn.MoE, **{"n_experts": 3, "top_k": 2, **options})
    return nn.GPT(V, 8, 2, 2, 8, feed_forward=experts).to(np.dtype(dtype))


def test_a_gpt_of_experts_learns():
    model = gpt("f4")
    names = dict(model.named_parameters())
    assert names["blocks.1.feed_forward.experts.2.down.weight"].shape == (8, 32)
    assert 0.01 < names["blocks.0.feed_forward.router.weight"].array.std() < 0.03
    optimizer = minidl.optim.AdamW(model.parameters(), lr=1e-2)
    ids = np.random.default_rng(0).integers(0, V, (4, 9))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, V), ids[:, 1:].reshape(-1))
        (loss + 0.01 * moe.balance_loss(model)).backward()
        optimizer.step()
        moe.move_bias(model)
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_recompute_has_the_same_bits_and_counts_once():
    ids, results = np.random.default_rng(0).integers(0, V, (2, 8)), []
    for again in (False, True):
        model = gpt("f4")
        if again:
            for block in model.blocks:
                block.forward = partial(recompute, block.forward)
        model(ids).sum().backward()
        results.append([p.grad.array for p in model.parameters()])
        assert all(layer.load.sum() == 2 * 16 for layer in moe.layers(model))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_balance_loss_that_recompute_would_lose_is_an_error():
    made, x = layer(), Tensor(rows(), requires_grad=True)
    recompute(made, x)
    with pytest.raises(ValueError, match="without recompute"):
        moe.balance_loss(made)
    with pytest.raises(ValueError, match="a model with nn.MoE"):
        moe.balance_loss(nn.Linear(2, 2))


def test_under_autocast_the_router_stays_in_float32():
    """Two scores that float16 cannot tell apart: around 5 it has steps of 0.004."""
    made = layer("f4", expert=lambda *_: nn.Linear(3, 3))
    made.router.weight.array[...] = [[5, 0, 0], [0, 0, 0], [5.001, 0, 0], [0, 0, 0]]
    with amp.autocast():
        made(Tensor(np.ones((2, 3), "f4"))).sum().backward()
    assert made.load.tolist() == [0, 0, 2, 0]
    assert made.router.weight.grad.dtype == np.float32


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_in_half_precision_the_sum_of_experts_is_made_in_float32(dtype):
    made, wide = layer(dtype, top_k=4, capacity_factor=None), layer(top_k=4, capacity_factor=None)
    wide.load_state_dict(made.state_dict())
    got, want = made(Tensor(rows(dtype=dtype))), wide(Tensor(rows(dtype=dtype).astype("f8")))
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_allclose(got.array, want.array, atol={"f4": 1e-6, "f2": 2e-3}[dtype])


def test_no_tokens_at_all():
    made, x = layer(), Tensor(rows(0), requires_grad=True)
    y = made(x)
    (y.sum() + made.aux_loss).backward()
    assert y.shape == x.grad.shape == (0, 3) and (made.router.weight.grad == 0).all()


@pytest.mark.gpu
def test_on_a_gpu_as_on_the_cpu():
    results = []
    for device in ("cpu", "cuda"):
        made = layer("f4", top_k=2).to(device)
        x = minidl.tensor(rows(dtype="f4"), device=device, requires_grad=True)
        y = made(x)
        (y.sum() + moe.balance_loss(made)).backward()
        moe.move_bias(made)
        gradients = [x.grad, *(p.grad for p in made.parameters())]
        results.append([host(a) for a in (y, *gradients, made.bias_steps)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
