"""Expert parallelism: n ranks with a few experts each are one rank with all of them."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import chunks, ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.nn import moe
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3, average_gradients
from minidl.parallel.model import experts
from minidl.parallel.model.context import context_parallel
from minidl.parallel.model.experts import expert_parallel, expert_parameters
from minidl.precision.grad_scaler import GradScaler
from minidl.tensor import Tensor
from tests.conftest import STEPS, ranks, some
from tests.devices import host

SIZES = (1, 2, 3, 4, 5, 8)
WIDTH = 3


def layer(n_experts, seed=0, dtype="f8", **options):
    minidl.manual_seed(seed)
    made = nn.MoE(WIDTH, n_experts=n_experts, **options).to(np.dtype(dtype))
    made.router.weight.array[...] = np.random.default_rng(seed).normal(size=(n_experts, WIDTH))
    return made


def bounds_of(n):
    """Unequal shares of tokens; with more than two ranks the second has none."""
    lengths = [2 * r + 3 for r in range(n)]
    if n > 2:
        lengths[1] = 0
    return np.concatenate([[0], np.cumsum(lengths)])


def tokens(n, seed=1):
    """(x, gradient of y) of all ranks; most of the first rank's tokens like the same expert."""
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(2, bounds_of(n)[-1], WIDTH))
    x[:5] = x[0] + 0.01 * x[:5]
    return x, g


def mine(t, *arrays):
    return [a[slice(*bounds_of(t.size)[t.rank:t.rank + 2])] for a in arrays]


def gradients(made):
    return {name: p.grad.array for name, p in made.named_parameters()}


def one_rank(made, x, g, alpha):
    """(y, gx, {name: gradient}) of sum of y g / T + alpha aux_loss."""
    x = Tensor(x, requires_grad=True)
    y = made(x)
    ((y * g).sum() / len(g) + alpha * made.aux_loss).backward()
    return y.array, x.grad, gradients(made)


CASES = [(1, 1.25, True), (2, None, False), (3, 0.4, True), (2, 0.7, False)]


@pytest.mark.parametrize("k, factor, average", CASES)
@ranks(*SIZES)
def test_n_ranks_equal_one_rank_with_all_tokens(t, k, factor, average):
    """Rows dropped among them, unequal shares, none on one rank, experts that n does not divide."""
    options = dict(n_experts=t.size + 2, top_k=k, capacity_factor=factor)
    whole, (x, g) = layer(**options), tokens(t.size)
    y, gx, want = one_rank(whole, x, g, 0.1)
    made = expert_parallel(layer(**options), t, average=average)
    x_here, g_here = mine(t, x, g)
    x_in = Tensor(x_here, requires_grad=True)
    y_here = made(x_in)
    n_tokens = max(len(g_here), 1) if average else len(g)  # a mean of one's own, or a part
    ((y_here * g_here).sum() / n_tokens + 0.1 * made.aux_loss).backward()
    close = dict(rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(y_here.array, mine(t, y)[0], **close)
    share = n_tokens / len(g)  # what data parallelism weights this rank's loss with
    np.testing.assert_allclose(x_in.grad * share, mine(t, gx)[0], **close)
    assert sum(ring.all_reduce(t, np.array([made.n_dropped]))) == whole.n_dropped
    if average:
        average_gradients(t, [made.router.weight], len(g_here))
    else:
        made.router.weight.grad = ring.all_reduce(t, made.router.weight.grad.array.copy())
    for name, p in made.named_parameters():
        np.testing.assert_allclose(p.grad, want[name], **close)
    first, end = chunks.bounds(t.size + 2, t.size)[t.rank:t.rank + 2]
    assert list(made.experts.keys()) == [str(e) for e in range(first, end)]
    assert len(expert_parameters(made)) == 4 * (end - first)


@ranks(1, 2, 4)
def test_an_experts_rows_come_in_the_order_of_one_rank(t):
    """So that its sums have the same order: with weights 1 the gradients have the same bits, where
    what goes in has."""
    seen = []

    def expert(width, bias, generator):
        made = nn.Linear(width, width, generator=generator)
        made.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].array))
        return made

    options = dict(n_experts=2 * t.size, top_k=2, expert=expert, capacity_factor=0.9)
    x, g = tokens(t.size)
    layer(**options)(Tensor(x))
    want, seen[:] = list(seen), []
    expert_parallel(layer(**options), t)(Tensor(mine(t, x)[0]))
    for e, rows in enumerate(seen):
        np.testing.assert_array_equal(rows, want[2 * t.rank + e])


def test_a_capacity_for_each_rank_drops_other_tokens():
    """Negative control. 10 tokens, 4 experts, factor 1.25: an expert takes 4 in all. Five ranks
    with ceil(1.25 * 2 / 4) = 1 each would let it take 5."""
    def body(t):
        made = expert_parallel(layer(4 + 1, capacity_factor=1.25 * 5 / 4), t)
        made.router.weight.array[...] = 0  # all like expert 0
        made(Tensor(np.ones((2, WIDTH))))
        return made.n_dropped

    assert sum(simulate(5, body)) == 10 - 4
    assert simulate(5, body) == [0, 0, 2, 2, 2]  # the first ranks' tokens come first
    assert moe.capacity(1.25, np.full((1, 1, 4), 2.5)) == 4
    assert 5 * moe.capacity(1.25, np.full((1, 1, 4), 0.5)) == 5


@ranks(2, 3)
def test_a_balance_loss_of_each_ranks_own_choices_is_another(t):
    """Negative control: the mean of the ranks' losses is not that of global f and P. Rank r's
    tokens like expert r: balanced together, collapsed apart."""
    whole = layer(t.size)
    whole.router.weight.array[...] = 30 * np.eye(t.size, WIDTH)
    x = np.repeat(np.eye(t.size, WIDTH), 4, 0)[4 * t.rank:4 * t.rank + 4]
    whole(Tensor(x))
    np.testing.assert_allclose(whole.aux_loss.item(), t.size, rtol=1e-9)
    expert_parallel(whole, t)(Tensor(x))
    total = ring.all_reduce(t, np.array([whole.aux_loss.item()]))[0]
    np.testing.assert_allclose(total / t.size, 1, rtol=1e-9)


@pytest.mark.parametrize("k, factor", [(1, 1.25), (3, None)])
@ranks(*SIZES)
def test_bytes_and_messages_are_the_formulas(t, k, factor):
    n, n_experts, ledger = t.size, t.size + 2, Ledger(t)
    made = expert_parallel(layer(n_experts, top_k=k, capacity_factor=factor, dtype="f4"), ledger)
    x, _ = tokens(n)
    x_in = Tensor(mine(t, x)[0].astype("f4"), requires_grad=True)
    y = made(x_in)
    p = F.softmax(F.linear(Tensor(x.astype("f4")), made.router.weight), -1).array
    choice = moe.choose(p, k)
    counts = np.stack([moe.of_rounds(choice[a:b], n_experts)
                       for a, b in zip(bounds_of(n), bounds_of(n)[1:])])
    limit = moe.capacity(factor, counts)
    here = slice(*bounds_of(n)[t.rank:t.rank + 2])
    plan = moe.plan_of(choice[here], counts, t.rank, limit)
    of_counts, forward, backward = experts.bytes_sent(
        plan.counts, t.rank, chunks.bounds(n_experts, n), WIDTH, 4, k)
    assert of_counts == 8 * k * n_experts * (n - 1)
    assert ledger.count(label="experts.counts").bytes_sent == of_counts
    assert ledger.count(label="experts.forward").bytes_sent == forward
    assert ledger.messages_sent == 3 * (n - 1)
    y.backward(np.ones(y.shape, "f4"))
    assert ledger.bytes_sent == of_counts + forward + backward
    assert ledger.messages_sent == 5 * (n - 1)


def test_bytes_of_an_even_layer_are_the_lectures():
    """k T h (n-1)/n elements, four times: T tokens on each rank, spread evenly."""
    n, n_tokens, k, width = 4, 16, 2, 8
    counts = np.full((n, 8), n_tokens * k // 8)
    _, forward, backward = experts.bytes_sent(counts, 1, chunks.bounds(8, n), width, 2, k)
    assert forward + backward == 4 * k * n_tokens * width * (n - 1) // n * 2


@ranks(2, 3, 4)
def test_a_rank_whose_experts_nobody_wants(t):
    """It takes part, and its gradients are zeros, not None."""
    made = expert_parallel(layer(t.size, capacity_factor=None), t)
    made.router.weight.array[...] = 0  # all like expert 0
    made(Tensor(np.ones((3, WIDTH)))).sum().backward()
    for p in expert_parameters(made):
        assert (p.grad.array.any()) == (t.rank == 0)


# ---- a GPT whose experts are divided ----

V = 7


def gpt(dtype="f8", n_experts=4, **options):
    minidl.manual_seed(0)
    one = partial(nn.MoE, **{"n_experts": n_experts, "top_k": 2, "capacity_factor": 1.0, **options})
    return nn.GPT(V, 8, 1, 2, 8, feed_forward=one).to(np.dtype(dtype))


def batch(step, n_texts=8):
    text = np.random.default_rng(step).integers(0, V, (n_texts, 7))
    return text[:, :-1], text[:, 1:]


def loss_of(model, x, y, alpha):
    loss = F.cross_entropy(model(x).reshape(-1, V), y.reshape(-1))
    return loss + alpha * moe.balance_loss(getattr(model, "module", model)), loss.item()


ALL = slice(None)


def trained(model, steps, share=ALL, finish=None, alpha=0.01, all_sum=None):
    """Losses of this share's texts, and {name: parameter}, by plain SGD."""
    inner = getattr(model, "module", model)
    losses = []
    for step in range(steps):
        x, y = (a[share] for a in batch(step))
        inner.zero_grad()
        total, loss = loss_of(model, x, y, alpha)
        total.backward()
        if finish:
            finish()
        optim.clip_grad_norm_(inner.parameters(), 0.5)
        for p in inner.parameters():
            p.data -= 0.5 * p.grad
        moe.move_bias(inner, all_sum=all_sum)
        losses.append(loss)
    return losses, {name: p.array.copy() for name, p in inner.named_parameters()}


def agree(got, want):
    for name, value in got.items():
        assert abs(value - want[name]).max() <= 1e-12 * abs(want[name]).max(), name


@pytest.mark.slow
@ranks(1, 2, 4)
def test_a_gpt_trains_as_on_one_rank(t):
    """Many steps on 2 ranks, float64, with drops, both kinds of balance, and clipping: the losses
    and every parameter at the end."""
    steps = STEPS if t.size == 2 else 3
    share = slice(*chunks.bounds(8, t.size)[t.rank:t.rank + 2])
    want, parameters = trained(gpt(bias_rate=0.02), steps)
    model = expert_parallel(gpt(bias_rate=0.02), t)
    replicas = DataParallel(model, t, bucket_bytes=1000, first_bucket_bytes=500)
    got, mine_ = trained(replicas, steps, share, all_sum=partial(ring.all_reduce, t))
    np.testing.assert_allclose(ring.all_reduce(t, np.array(got)) / t.size, want, rtol=1e-12)
    agree(mine_, parameters)
    assert any(layer.bias_steps.array.any() for layer in moe.layers(model))
    replicas.close()


@ranks(4)
def test_replicas_of_divided_experts(t):
    """Experts in pairs of ranks, tokens of all four counted together: twice 2 and not 4."""
    want, parameters = trained(gpt(), 4)
    pair = t.subgroup([0, 1]) or t.subgroup([2, 3])
    others = t.subgroup([0, 2]) or t.subgroup([1, 3])
    model = expert_parallel(gpt(), pair, over=t)
    replicas = DataParallel(model, t)
    replicate = partial(average_gradients, others, expert_parameters(model))
    got, mine_ = trained(replicas, 4, slice(2 * t.rank, 2 * t.rank + 2), replicate,
                         all_sum=partial(ring.all_reduce, t))
    np.testing.assert_allclose(ring.all_reduce(t, np.array(got)) / 4, want, rtol=1e-12)
    agree(mine_, parameters)
    replicas.close()


@ranks(3)
def test_inf_in_one_ranks_expert_makes_all_ranks_skip(t):
    model = expert_parallel(gpt(), t)
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), GradScaler(init_scale=1.0)
    x, y = batch(0)
    loss_of(model, x, y, 0.01)[0].backward()
    for p in model.parameters():  # an expert without a token has none
        p.grad = np.zeros(p.shape, p.dtype) if p.grad is None else p.grad
    if t.rank == 1:
        expert_parameters(model)[0].grad[...] = np.inf
    before = [p.array.copy() for p in model.parameters()]
    assert not scaler.step(optimizer)
    for p, values in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.array, values)


@pytest.mark.parametrize("stage", some([Zero3, Zero1, Zero2], of=3))
@ranks(1, 2, 3, 4)
def test_zero_shards_what_all_ranks_have(t, stage):
    """AdamW, and the experts' parameters beside the shards: each is one rank's already. In stage 3
    the other weights come and go around the exchange of tokens."""
    def run(model, zero):
        dp = zero(model, t) if zero else None
        params = [*dp.shards(), *expert_parameters(model)] if zero else model.parameters()
        optimizer = optim.AdamW(params, lr=0.01)
        for step in range(3):
            x, y = batch(step)
            if zero:
                x, y = (np.array_split(a, t.size)[t.rank] for a in (x, y))
            optimizer.zero_grad()
            F.cross_entropy((dp or model)(x).reshape(-1, V), y.reshape(-1)).backward()
            optimizer.step()
            if zero:
                dp.gather()
        with dp.gathered() if zero is Zero3 else nullcontext():
            result = {name: p.array.copy() for name, p in model.named_parameters()}
        if zero:
            dp.close()
        return result

    want = run(gpt(), None)
    for name, value in run(expert_parallel(gpt(), t), stage).items():
        # AdamW divides by sqrt(v): small gradients, their roundings made larger
        np.testing.assert_allclose(value, want[name], rtol=1e-8, atol=1e-10)


@ranks(2)
def test_recompute_exchanges_again_and_counts_once(t):
    share, results = slice(4 * t.rank, 4 * t.rank + 4), []
    for again in (False, True):
        ledger = Ledger(t)
        model = expert_parallel(gpt("f4"), ledger)
        if again:
            for block in model.blocks:
                block.forward = partial(recompute, block.forward)
        x, y = (a[share] for a in batch(0))
        F.cross_entropy(model(x).reshape(-1, V), y.reshape(-1)).backward()
        assert all(layer.load.sum() == 2 * 4 * 6 for layer in moe.layers(model))
        forward = ledger.count(label="experts.forward").bytes_sent
        results.append((forward, [p.grad.array for p in model.parameters()]))
    assert results[1][0] == 2 * results[0][0]
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


@ranks(2)
def test_what_is_refused(t):
    with pytest.raises(ValueError, match=f"rank {t.rank}: expert_parallel wants at least"):
        expert_parallel(layer(1), t)
    with pytest.raises(ValueError, match=f"rank {t.rank}: expert_parallel wants all ranks"):
        expert_parallel(layer(2), t, over=t.subgroup([0]) or t.subgroup([1]))
    model = DataParallel(expert_parallel(gpt(), t), t)
    with pytest.raises(TypeError, match="layer blocks.0.feed_forward waits for all ranks"):
        model.absent()
    model.close()


@pytest.mark.gpu
def test_on_a_gpu_as_on_the_cpu():
    def body(t):
        results = []
        for device in ("cpu", "cuda"):
            made = expert_parallel(layer(4, top_k=2, dtype="f4"), t).to(device)
            x, g = (minidl.tensor(a.astype("f4"), device=device) for a in mine(t, *tokens(2)))
            x.requires_grad_()
            y = made(x)
            ((y * g).sum() + made.aux_loss).backward()
            results.append([host(a) for a in (y.array, x.grad, *gradients(made).values())])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    simulate(2, body)


@ranks(4)
def test_with_texts_in_parts_and_replicas(t):
    """2 x 2 ranks: each pair has its own texts, each rank of it half of every one, and each of the
    four has one of four experts. Nothing is dropped: in zigzag order tokens queue in another."""
    none = dict(capacity_factor=None)
    whole, (x, y) = gpt(**none), (a[:, :4] for a in batch(0))
    total, _ = loss_of(whole, x, y, 0.01)
    total.backward()
    want = {name: p.grad.array for name, p in whole.named_parameters()}
    pair = t.subgroup([0, 1]) or t.subgroup([2, 3])
    model = expert_parallel(gpt(**none), t)
    part = context_parallel(model, pair)
    replicas = DataParallel(model, t)
    x, y = (part(a[4 * (t.rank // 2):][:4]) for a in (x, y))
    total, _ = loss_of(replicas, x, y, 0.01)  # of as many tokens on every rank: the mean is right
    total.backward()
    agree({name: p.grad.array for name, p in model.named_parameters()}, want)
    replicas.close()
