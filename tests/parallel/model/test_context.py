"""Context parallelism: n ranks with a part of the text each are one rank with all of it."""

import itertools
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.cuda import dispatch
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.ops import attention_kernel
from minidl.ops.attention import Attention
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3, average_gradients
from minidl.parallel.model import context
from minidl.parallel.model.context import context_parallel
from minidl.precision import amp
from minidl.tensor import Tensor
from tests.conftest import STEPS, each_once, ranks, some
from tests.devices import host

SIZES = (1, 2, 3, 4, 5, 8)
# float64: at most 8 blocks and 80 keys; the same sums in another order
CLOSE = dict(rtol=1e-12, atol=1e-13)


def data(n_heads, n_groups, length, dtype="f8", seed=0, n_batch=2, width=4):
    """q, k, v and the gradient of o, of the whole text; scores of a few units."""
    rng = np.random.default_rng(seed)
    heads = n_heads, n_groups, n_groups, n_heads
    return [rng.normal(size=(n_batch, h, length, width)).astype(dtype) * 1.5 for h in heads]


def one_rank(arrays, is_causal, scale=None, **options):
    """(o, gq, gk, gv) by attention on one rank; of shared key heads the sum of their copies."""
    q, k, v, g = arrays
    n_shared = q.shape[1] // k.shape[1]
    inputs = [Tensor(a, requires_grad=True) for a in (q, k, v)]
    wide = [a.repeat_interleave(n_shared, 1) if n_shared > 1 else a for a in inputs[1:]]
    o = F.scaled_dot_product_attention(inputs[0], *wide, is_causal=is_causal, scale=scale,
                                       **options)
    o.backward(g)
    return o.array, *(a.grad.array for a in inputs)


def parts(t, arrays, order):
    return [context.split(a, t, order, dim=2) for a in arrays]


def on_ranks(t, arrays, is_causal, order, method="ring", scale=None, **options):
    """(o, gq, gk, gv) of this rank's part."""
    *inputs, g = parts(t, arrays, order)
    inputs = [Tensor(a, requires_grad=True) for a in inputs]
    if method == "ring":
        o = context.ring_attention(*inputs, t, is_causal, scale, order, **options)
    else:
        o = context.ulysses_attention(*inputs, t, is_causal, scale, **options)
    o.backward(g)
    return o.array, *(a.grad.array for a in inputs)


# ---- the ring ----


@pytest.mark.parametrize("n_groups, way", each_once(
    [4, 2, 1], [("zigzag", True), ("contiguous", True), ("contiguous", False)]))
@ranks(*SIZES)
def test_the_ring_equals_one_rank(t, n_groups, way):
    order, is_causal = way
    arrays = data(4, n_groups, 6 * t.size)
    got = on_ranks(t, arrays, is_causal, order)
    for a, b in zip(got, parts(t, one_rank(arrays, is_causal), order), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **CLOSE)


@ranks(2, 3)
def test_a_rank_alone_is_something_else(t):
    """Negative control: what is compared above does depend on the other ranks' keys."""
    arrays = data(2, 2, 6 * t.size)
    want = parts(t, one_rank(arrays, True), "zigzag")
    alone = one_rank(parts(t, arrays, "zigzag"), True)
    for a, b in zip(alone, want, strict=True):
        assert abs(a - b).max() > 0.01


@ranks(1)
def test_on_one_rank_the_bits_are_attentions(t):
    for dtype in ("f4", "f8"):
        arrays = data(2, 2, 70, dtype)
        for a, b in zip(on_ranks(t, arrays, True, "zigzag"), one_rank(arrays, True), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype, bound", [("f4", 5e-6), ("f2", 4e-3)])
@ranks(2, 4, mpi=False)
def test_the_kernels_and_numpy_in_the_precision_of_the_arrays(t, dtype, bound, fused):
    """Against float64 of the same numbers. float32: 160 products summed in the order of the
    processor's vectors, 25 to 40 units of 2^-23. float16: a block's o is rounded, then merged in
    float32, 2^-11 of values up to 4."""
    arrays = data(2, 1, 40 * t.size, dtype, width=16)
    want = parts(t, one_rank([a.astype("f8") for a in arrays], True, 0.3), "zigzag")
    with minidl.use_fused(fused):
        got = on_ranks(t, arrays, True, "zigzag", scale=0.3)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == np.dtype(dtype)
        assert abs(a - b).max() < bound * max(1, abs(b).max())


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler for the kernels")
def test_every_block_is_the_kernels_where_it_fits(monkeypatch):
    """4 blocks on each of 4 ranks, forward and backward; none in float64, none of width 130."""
    for dtype, width, n_calls in (("f4", 16, 16), ("f8", 16, 0), ("f4", 130, 0)):
        with monkeypatch.context() as patched:
            forward = Mock(wraps=attention_kernel.by_kernel)
            backward = Mock(wraps=attention_kernel.by_kernel_backward)
            patched.setattr(attention_kernel, "by_kernel", forward)
            patched.setattr(attention_kernel, "by_kernel_backward", backward)
            simulate(4, on_ranks, data(1, 1, 16, dtype, width=width), True, "zigzag")
        assert forward.call_count == backward.call_count == n_calls


@ranks(3)
def test_queries_and_keys_of_unlike_lengths_where_nothing_is_causal(t):
    q, k, v, g = data(2, 2, 6 * t.size)
    arrays = [q[:, :, :2 * t.size], k, v, g[:, :, :2 * t.size]]
    got = on_ranks(t, arrays, False, "contiguous")
    want = parts(t, one_rank(arrays, False), "contiguous")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_merging_two_parts_by_hand():
    """Results 1 and 3 with log-sum-exp 0 and ln 3: 2.5 and ln 4. Scores of +-1000 overflow
    nothing."""
    for shift in (0, 1000, -1000):
        o, lse = np.ones((1, 1)), np.array([0.0 + shift])
        context.merge(np, o, lse, np.full((1, 1), 3.0), np.log([3.0]) + shift)
        np.testing.assert_allclose(o, 2.5, rtol=1e-12)
        np.testing.assert_allclose(lse, np.log(4) + shift, rtol=1e-12)


def test_the_work_of_each_rank_and_step():
    """64 tokens on 4 ranks: even in zigzag order, 1 : 6.6 in order."""
    zigzag = [context.pairs(64, 4, r, "zigzag") for r in range(4)]
    assert zigzag == [[136, 128, 128, 128]] * 4
    contiguous = [sum(context.pairs(64, 4, r, "contiguous")) for r in range(4)]
    assert contiguous == [136, 392, 648, 904]
    assert sum(map(sum, zigzag)) == sum(contiguous) == 64 * 65 // 2


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_no_pair_is_computed_beyond_the_formula(monkeypatch, order, n):
    """Counted in the calls of the one-rank class."""
    arrays, counted, attend = data(1, 1, 8 * n), {r: [] for r in range(n)}, Attention._attend

    def count(self, q, k, v, mask):
        rows, keys = q.shape[2], k.shape[2]
        counted[self.t.rank].append(rows * (rows + 1) // 2 if self.is_causal else rows * keys)
        return attend(self, q, k, v, mask)

    monkeypatch.setattr(Attention, "_attend", count)
    simulate(n, on_ranks, arrays, True, order)
    for r in range(n):
        assert counted[r] == [m for m in context.pairs(8 * n, n, r, order) if m]


@pytest.mark.parametrize("n_groups", [4, 2])
@ranks(*SIZES)
def test_bytes_and_messages_of_the_ring(t, n_groups):
    """Forward 2 c (n-1) elements, n-1 messages; backward as many and the sums, n-1 hops of both."""
    n = t.size
    for dtype, sumsize in (("f8", 8), ("f4", 4), ("f2", 4)):
        ledger, itemsize = Ledger(t), np.dtype(dtype).itemsize
        *inputs, g = parts(t, data(4, n_groups, 6 * n, dtype), "zigzag")
        inputs = [Tensor(a, requires_grad=True) for a in inputs]
        o = context.ring_attention(*inputs, ledger, is_causal=True)
        forward, backward = context.bytes_sent("ring", n, 2, 6 * n, 4, 4, n_groups, itemsize,
                                               sumsize)
        assert forward == 2 * (2 * n_groups * 6 * 4) * itemsize * (n - 1)
        assert (ledger.bytes_sent, ledger.messages_sent) == (forward, n - 1)
        o.backward(g)
        assert (ledger.bytes_sent, ledger.messages_sent) == (forward + backward, 3 * (n - 1))
        assert all(ledger.count(peer=p).messages_sent == 0 for p in range(n)
                   if p != (t.rank + 1) % n)


def test_the_next_block_travels_while_this_one_is_computed(monkeypatch):
    """Modelled: n blocks that take c seconds each, behind messages that take m. Forward max(c, m)
    for every step but the last, which is c."""
    n, arrays, attend = 4, data(2, 2, 32), Attention._attend
    n_bytes = context.bytes_sent("ring", n, 2, 32, 4, 2, itemsize=8)[0] // (n - 1)
    for compute_s, message_s in ((0.5, 0.2), (0.2, 0.5)):
        def slow(self, *args, seconds=compute_s):
            self.t.compute(seconds)
            return attend(self, *args)

        def body(t):
            on_ranks_forward = parts(t, arrays, "zigzag")[:3]
            context.ring_attention(*map(Tensor, on_ranks_forward), t, is_causal=True)
            return t.time()

        monkeypatch.setattr(Attention, "_attend", slow)
        times = simulate(n, body, alpha=0, beta=message_s / n_bytes)
        np.testing.assert_allclose(times, (n - 1) * max(compute_s, message_s) + compute_s)


def test_golden_bytes_of_both_methods():
    """Batch 1, 4,096 tokens, width 1,024, 4 ranks, 16 bits. The backward is 37,748,736 and not
    46,137,344: a block's own rank adds its part at home, which saves a hop of 8,388,608."""
    sizes = dict(n=4, n_batch=1, length=4096, width=64, n_heads=16, itemsize=2)
    assert context.bytes_sent("ring", **sizes) == (12582912, 46137344 - 8388608)
    assert context.bytes_sent("ulysses", **sizes) == (6291456, 6291456)


@pytest.mark.parametrize("h, g, equal_at", [(16, 16, 2), (12, 12, 2), (36, 12, 4), (48, 24, 3)])
def test_where_one_method_sends_less_than_the_other(h, g, equal_at):
    """ring / Ulysses = n g / (h + g), while ranks are not more than key heads."""
    for n in range(2, g + 1):
        if h % n == g % n == 0:
            around, ulysses = (context.bytes_sent(m, n, 1, n * h, 8, h, g)[0]
                               for m in ("ring", "ulysses"))
            np.testing.assert_allclose(around / ulysses, n * g / (h + g), rtol=1e-12)
            assert (around > ulysses) == (n > equal_at) and (around == ulysses) == (n == equal_at)


# ---- Ulysses ----


@pytest.mark.parametrize("is_causal, n_groups", each_once([True, False], [1, 2, "n", "h"]))
@ranks(*SIZES)
def test_ulysses_equals_one_rank_to_the_bit(t, n_groups, is_causal):
    """Every head is computed by one rank, as on one rank. With fewer key heads than ranks the
    gradients of copies are summed: in another order."""
    n_heads = 2 * t.size
    n_groups = {"n": t.size, "h": n_heads}.get(n_groups, n_groups)
    if t.size % n_groups and n_groups % t.size:
        n_groups = 1
    arrays = data(n_heads, n_groups, 5 * t.size)
    got = on_ranks(t, arrays, is_causal, "contiguous", "ulysses")
    want = parts(t, one_rank(arrays, is_causal), "contiguous")
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if i < 2 or n_groups >= t.size:
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.parametrize("n_groups", [1, "n", "h"])
@ranks(*SIZES)
def test_bytes_and_messages_of_ulysses(t, n_groups):
    n, n_heads = t.size, 2 * t.size
    n_groups = {"n": n, "h": n_heads}.get(n_groups, n_groups)
    ledger = Ledger(t)
    *inputs, g = parts(t, data(n_heads, n_groups, 4 * n, "f4"), "contiguous")
    inputs = [Tensor(a, requires_grad=True) for a in inputs]
    o = context.ulysses_attention(*inputs, ledger, is_causal=True)
    forward, backward = context.bytes_sent("ulysses", n, 2, 4 * n, 4, n_heads, n_groups)
    assert (ledger.bytes_sent, ledger.messages_sent) == (forward, 4 * (n - 1))
    o.backward(g)
    assert (ledger.bytes_sent, ledger.messages_sent) == (forward + backward, 8 * (n - 1))


# ---- masks, dropout, lengths that the ranks do not divide ----


def masks(kind, n_batch, n_heads, length):
    """(of the whole, for scaled_dot_product_attention; for the ranks)."""
    rng = np.random.default_rng(5)
    if kind == "padding":  # the second text is short; no query sees the first token of the first
        real = np.ones((n_batch, 1, 1, length), bool)
        real[1, ..., length // 2:] = real[0, ..., 0] = False
        return real, Tensor(real)
    if kind == "packed":  # of block-diagonal form; the ranks never have queries x keys
        text = np.sort(rng.integers(0, 3, (n_batch, length)))
        whole = text[:, None, :, None] == text[:, None, None, :]
        return whole, lambda q, k: text[:, None, q, None] == text[:, None, None, k]
    if kind == "bias":  # floating, another one for each head, some places hidden
        bias = rng.normal(size=(n_heads, length, length))
        bias[rng.random(bias.shape) < 0.3] = -np.inf
        return bias, bias
    return None, None


KINDS = ["padding", "packed", "bias", None]
LENGTHS = [lambda n: 1, lambda n: n - 1 or 2, lambda n: 2 * n + 1, lambda n: 5 * n - 1,
           lambda n: 6 * n]
# every mask with every length; the others in turn, so that each meets each
CASES = [(kind, length, (0.3, 0.0)[(i + i // 4) % 2], ("h", 1)[i // 8 % 2], i // 3 % 2 == 0,
          (("ring", "zigzag"), ("ulysses", "contiguous"), ("ring", "contiguous"))[i % 3])
         for i, (kind, length) in enumerate(itertools.product(KINDS, LENGTHS))]


@pytest.mark.parametrize("kind, length, dropout_p, n_groups, is_causal, way", some(CASES, of=4))
@ranks(*SIZES)
def test_of_any_mask_length_and_dropout_the_ranks_equal_one(t, kind, length, dropout_p, n_groups,
                                                            is_causal, way):
    n_heads, length, (method, order) = 2 * t.size, length(t.size), way
    arrays = data(n_heads, n_heads if n_groups == "h" else 1, length)
    whole, mask = masks(kind, 2, n_heads, length)
    generators = [minidl.Generator(9) for _ in range(2)]
    want = one_rank(arrays, is_causal, attn_mask=whole, dropout_p=dropout_p,
                    generator=generators[0])
    got = on_ranks(t, arrays, is_causal, order, method, attn_mask=mask, dropout_p=dropout_p,
                   length=length, generator=generators[1])
    for a, b in zip(got, parts(t, want, order), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, **CLOSE)
    assert generators[0].get_state() == generators[1].get_state()


@ranks(2, 3)
def test_what_is_compared_above_depends_on_mask_and_dropout(t):
    """Negative control: without them, or with those of a rank's own places, other numbers."""
    arrays = data(2 * t.size, 1, 5 * t.size - 1)
    whole, mask = masks("packed", 2, 0, 5 * t.size - 1)
    want = parts(t, one_rank(arrays, True, attn_mask=whole, dropout_p=0.3,
                             generator=minidl.Generator(9)), "zigzag")
    for options in (dict(dropout_p=0.3, generator=minidl.Generator(9)), dict(attn_mask=mask),
                    dict(attn_mask=mask, dropout_p=0.3, generator=minidl.Generator(9, t.rank + 1)),
                    dict(attn_mask=lambda q, k: mask(q - q.min(), k - k.min()), dropout_p=0.3,
                         generator=minidl.Generator(9))):
        got = on_ranks(t, arrays, True, "zigzag", length=5 * t.size - 1, **options)
        assert max(abs(a - b).max() for a, b in zip(got, want, strict=True)) > 0.01


@ranks(2, 4, mpi=False)
def test_masks_in_the_kernels(t):
    """float32, of a length that the ranks do not divide; dropout is NumPy's, of the same draws."""
    arrays = data(4, 4, 30 * t.size + 1, "f4", width=16)
    for kind, dropout_p in (("padding", 0), ("packed", 0), ("packed", 0.2)):
        whole, mask = masks(kind, 2, 4, 30 * t.size + 1)
        options = dict(dropout_p=dropout_p, generator=minidl.Generator(9))
        want = parts(t, one_rank(arrays, True, attn_mask=whole, **options), "zigzag")
        options["generator"] = minidl.Generator(9)
        got = on_ranks(t, arrays, True, "zigzag", attn_mask=mask, length=30 * t.size + 1, **options)
        for a, b in zip(got, want, strict=True):
            assert abs(a - b).max() < 5e-6 * max(1, abs(b).max())


@pytest.mark.parametrize("method, order", [("ring", "zigzag"), ("ring", "contiguous"),
                                           ("ulysses", "contiguous")])
@ranks(*SIZES)
def test_bytes_of_a_length_that_the_ranks_do_not_divide(t, method, order):
    n = t.size
    for length in (n - 1 or 1, 3 * n + 2):
        ledger, n_heads = Ledger(t), 2 * n
        *inputs, g = parts(t, data(n_heads, n, length), order)
        inputs = [Tensor(a, requires_grad=True) for a in inputs]
        if method == "ring":
            o = context.ring_attention(*inputs, ledger, True, order=order, length=length)
        else:
            o = context.ulysses_attention(*inputs, ledger, True, length=length)
        there, back = context.bytes_sent(method, n, 2, length, 4, n_heads, n, 8, 8, t.rank, order)
        assert ledger.bytes_sent == there
        o.backward(g)
        assert ledger.bytes_sent == there + back
        each = n - 1 if method == "ring" else 4 * (n - 1)
        assert ledger.messages_sent == (3 if method == "ring" else 2) * each


@pytest.mark.parametrize("length", [11, 12])
def test_the_lengths_of_the_parts(length):
    """By hand, on 3 ranks: 11 tokens in 6 chunks are 2 2 2 2 2 1, in 3 pieces 4 4 3."""
    zigzag = {11: [3, 4, 4], 12: [4, 4, 4]}[length]
    assert context.lengths(length, 3) == zigzag
    assert context.lengths(length, 3, "contiguous") == [4, 4, length - 8]
    places = [context.positions(length, 3, r).tolist() for r in range(3)]
    assert sorted(sum(places, [])) == list(range(length)) and [len(p) for p in places] == zigzag


# ---- a GPT of which every rank has a part of the text ----

V, WIDTH, HEADS = 11, 8, 4


def gpt(dtype="f8", layers=2, **options):
    minidl.manual_seed(1)
    return nn.GPT(V, 80, layers, HEADS, WIDTH, **options).to(np.dtype(dtype))


def batch(length, seed=0):
    """Ids and labels, shifted, of which the first half of the first text does not count."""
    text = np.random.default_rng(seed).integers(0, V, (2, length + 1))
    x, y = text[:, :-1].copy(), text[:, 1:].copy()
    y[0, :length // 2] = -100
    return x, y


def loss_of(model, x, y, n_tokens, *places):
    """This rank's part of the mean over n_tokens."""
    logits = model(x, *places).reshape(-1, V)
    return F.cross_entropy(logits, y.reshape(-1), reduction="sum") / n_tokens


def trained(model, steps, length, part=lambda x: x, average=None, scale=1, lr=0.3):
    """(losses, gradients of the last step) of plain SGD."""
    losses, params = [], list(model.parameters())
    for step in range(steps):
        x, y = batch(length, step)
        n_tokens = int((y >= 0).sum())
        model.zero_grad()
        loss = loss_of(model, part(x), part(y), n_tokens)
        (loss * scale).backward()
        if average:
            average(params)
        losses.append(loss.item())
        grads = [p.grad.array.copy() for p in params]
        for p in params:
            p.data -= lr * p.grad
    return losses, grads


WAYS = [("ring", "zigzag"), ("ring", "contiguous"), ("ulysses", None)]


def relative(got, want):
    """The largest difference, of the largest element."""
    return max(abs(a - b).max() / abs(b).max() for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("method, order", WAYS)
@ranks(1, 2, 3, 4, 5, 8)
def test_a_gpt_trains_as_on_one_rank(t, method, order):
    """float64; what does not count is unequally spread over the ranks. On 2 ranks many steps."""
    if method == "ulysses" and HEADS % t.size:
        return
    steps, length = (STEPS if t.size == 2 and order != "contiguous" else 2), 4 * t.size
    want, grads = trained(gpt(), steps, length)
    model = gpt()
    part = context_parallel(model, t, method, order)
    losses, grads_here = trained(model, steps, length, part,
                                 lambda params: average_gradients(t, params), t.size)
    np.testing.assert_allclose(ring.all_reduce(t, np.array(losses)), want, rtol=1e-12)
    assert relative(grads_here, grads) < 1e-12


@pytest.mark.parametrize("method, order, packed", some([
    ("ring", "zigzag", True), ("ulysses", None, True), ("ring", "contiguous", False)], of=3))
@ranks(*SIZES)
def test_packed_texts_dropout_and_an_odd_length_are_one_ranks(t, method, order, packed):
    """Dropout of probabilities, and between layers; the next generator state is one rank's, too."""
    if method == "ulysses" and HEADS % t.size:
        return
    length, (x, y) = 3 * t.size + 1, batch(3 * t.size + 1)
    places = np.arange(length) - (np.arange(length) > length // 2) * (length // 2 + 1)
    places = [np.stack([places, np.arange(length)])] * packed
    results = []
    for parallel in (False, True):
        model = gpt(layers=1, dropout=0.3)
        part = context_parallel(model, t if parallel else None, method, order, length)
        ids, labels, *where = map(part, (x, y, *places))
        minidl.manual_seed(4)
        logits = model(ids, *where)
        loss = F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1), reduction="sum")
        (loss * (t.size if parallel else 1)).backward()
        if parallel:
            average_gradients(t, model.parameters())
        total = ring.all_reduce(t, loss.array.reshape(1).copy()) if parallel else loss.array
        results.append([total.reshape(()), *(p.grad.array for p in model.parameters())])
        results[-1].append(np.array(minidl.random.default_generator().get_state()))
    want, got = results
    assert relative(got, want) < 1e-12


@ranks(2, 3)
def test_data_parallel_averages_what_is_to_be_summed(t):
    """Losses times the number of ranks, and every rank has as many texts: the same gradients, and
    with the buckets' messages between those of backward's ring."""
    length = 4 * t.size
    _, grads = trained(gpt(), 1, length)
    model = gpt()
    part = context_parallel(model, t)
    x, y = batch(length)
    replicas = DataParallel(model, t, bucket_bytes=1000, first_bucket_bytes=500)
    (loss_of(replicas, part(x), part(y), int((y >= 0).sum())) * t.size).backward()
    assert relative([p.grad.array for p in model.parameters()], grads) < 1e-12
    replicas.close()


@pytest.mark.parametrize("stage, way", some(
    [(Zero3, WAYS[0]), (Zero1, WAYS[0]), (Zero2, WAYS[0]), (Zero3, WAYS[2])], of=4))
@ranks(1, 2, 4)
def test_zero_over_the_ranks_of_a_text_is_one_rank(t, stage, way):
    """Stage 3 gathers weights between the messages of the attention, forward and backward."""
    length, (method, order) = 4 * t.size, way
    x, y = batch(length)
    n_tokens, states = int((y >= 0).sum()), []
    for parallel in (False, True):
        model = gpt()
        part = context_parallel(model, t if parallel else None, method, order)
        run = stage(model, t) if parallel else model
        optimizer = optim.SGD(run.shards() if parallel else run.parameters(), lr=0.3)
        (loss_of(run, part(x), part(y), n_tokens) * (t.size if parallel else 1)).backward()
        optimizer.step()
        if parallel:
            run.gather()
        with run.gathered() if parallel else nullcontext():
            states.append([p.array.copy() for p in model.parameters()])
    run.close()
    assert relative(states[1], states[0]) < 1e-12


@ranks(2, 3)
def test_a_mean_of_means_is_another_gradient(t):
    """Negative control: each rank's mean over its own labels, of which unequal numbers count."""
    length = 4 * t.size
    _, grads = trained(gpt(), 1, length)
    model = gpt()
    part = context_parallel(model, t, order="contiguous")
    x, y = batch(length)
    F.cross_entropy(model(part(x)).reshape(-1, V), part(y).reshape(-1)).backward()
    average_gradients(t, model.parameters())
    assert relative([p.grad.array for p in model.parameters()], grads) > 0.01


@ranks(2, 4)
def test_positions_follow_the_order(t):
    """Negative control: tokens in zigzag order with positions in order have another loss."""
    model, (x, y) = gpt(), batch(4 * t.size)
    model.position.weight.array[...] = np.random.default_rng(3).normal(size=(80, WIDTH))
    want = loss_of(model, x, y, 1).item()
    part = context_parallel(model, t)
    for positions, same in ((model.positions, True), (lambda xp, n: xp.arange(n) + n * t.rank,
                                                      False)):
        model.positions = positions
        loss = ring.all_reduce(t, np.array([loss_of(model, part(x), part(y), 1).item()]))[0]
        assert (abs(loss - want) < 1e-11) == same


@pytest.mark.parametrize("method, order", WAYS)
@ranks(2)
def test_recompute_has_the_same_bits_and_sends_forward_again(t, method, order):
    results, sent = [], []
    for again in (False, True):
        ledger, model = Ledger(t), gpt("f4")
        part = context_parallel(model, ledger, method, order)
        if again:
            for block in model.blocks:
                block.forward = partial(recompute, block.forward)
        _, grads = trained(model, 1, 8, part)
        results.append(grads)
        sent.append(ledger.bytes_sent)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    forward, backward = context.bytes_sent(method, 2, 2, 8, WIDTH // HEADS, HEADS)
    assert sent == [2 * (forward + backward), 2 * (2 * forward + backward)]


@ranks(2)
def test_under_autocast_halves_travel(t):
    ledger, model = Ledger(t), gpt("f4")
    part = context_parallel(model, ledger)
    x, _ = batch(8)
    with amp.autocast():
        model(part(x))
    assert ledger.bytes_sent == 2 * context.bytes_sent("ring", 2, 2, 8, WIDTH // HEADS, HEADS,
                                                       itemsize=2)[0]


# ---- what is refused, and what is undone ----


@ranks(2)
def test_what_does_not_fit_is_refused_on_every_rank_before_a_message(t):
    ledger = Ledger(t)
    qkv = Tensor(np.zeros((1, 3, 12)))
    four = Tensor(np.zeros((1, 4, 3, 2)))
    one = Tensor(np.zeros((1, 1, 3, 2)))
    wanting = Tensor(np.zeros((6, 6)), requires_grad=True)
    for wrong, words in [
        (lambda: context.ring_self_attention(qkv, 2, True, t=ledger, length=9), "; got 3"),
        (lambda: context.ulysses_self_attention(qkv, 2, True, t=ledger, length=8), "; got 3"),
        (lambda: context.ulysses_attention(four, four, four, ledger, length=9), "; got 3"),
        (lambda: context.ring_attention(four, four, four, ledger, attn_mask=wanting), "detach"),
        (lambda: context.ulysses_attention(four, four, four, ledger, attn_mask=wanting), "detach"),
        (lambda: context.ring_attention(four, four[:, :, :2], four[:, :, :2], ledger, True),
         "equal numbers of queries and keys"),
        (lambda: context.ulysses_self_attention(qkv, 1, True, t=ledger), "divisible by 2"),
        (lambda: context.ring_attention(four, one, four, ledger), "wanted query (B, H, L, E)"),
        (lambda: context.ring_attention(four, four, four, ledger, order="z"), "order='zigzag'"),
        (lambda: context_parallel(gpt(), t)(np.zeros((1, 10))), "got 10 tokens. Call "
                                                                "context_parallel with length=10"),
        (lambda: context_parallel(gpt(), t, length=9)(np.zeros((1, 8))), "number of tokens is 9;"),
        (lambda: context_parallel(nn.Linear(2, 2), t), "wants a model whose attention"),
        (lambda: context_parallel(nn.MultiheadAttention(4, 2), t), "wants a model whose att"),
        (lambda: context_parallel(gpt(), t, "tree"), "method='ring', or method="),
        (lambda: context_parallel(gpt(), t, "ulysses", "zigzag"), "order='contiguous'"),
    ]:
        with pytest.raises((ValueError, TypeError), match=f"rank {t.rank}: ") as error:
            wrong()
        assert words in str(error.value)
    model = gpt()
    part = context_parallel(model, ledger)
    with pytest.raises(ValueError, match="at most 80 tokens, .* got 84 tokens on 2 ranks"):
        model(part(np.zeros((1, 84), int)))
    assert ledger.bytes_sent == 0


def test_parts_of_unequal_lengths_are_an_error():
    def body(t):
        q = Tensor(np.zeros((1, 1, 2 + 2 * t.rank, 4)))
        context.ring_attention(q, q, q, t, is_causal=True)

    with pytest.raises(RankFailed, match="rank [01].*bytes"):
        simulate(2, body)


@ranks(2)
def test_a_model_is_itself_again_without_a_transport(t):
    model, (x, _) = gpt(), batch(8)
    want = model(x).array
    part = context_parallel(model, t)
    assert model(part(x)).shape == (2, 4, V)
    part = context_parallel(model, None)
    np.testing.assert_array_equal(model(part(x)).array, want)


@pytest.mark.gpu
def test_on_a_gpu_as_on_the_cpu():
    def body(t):
        for method in ("ring", "ulysses"):
            results = []
            for device in ("cpu", "cuda"):
                model = gpt("f4", dropout=0.2).to(device)
                part = context_parallel(model, t, method, length=9)
                minidl.manual_seed(4)
                places = np.stack([np.arange(9) % 5, np.arange(9)])
                x, y, places = (minidl.tensor(a, device=device) for a in (*batch(9), places))
                loss = loss_of(model, part(x), part(y), 12, part(places))
                loss.backward()
                results.append([host(a) for a in (loss.array, *(p.grad.array for p in
                                                              model.parameters()))])
            for a, b in zip(*results, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    simulate(2, body)
