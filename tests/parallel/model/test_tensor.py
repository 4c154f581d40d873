"""A model divided over ranks is the model: loss, gradients, training, bytes, memory."""

import numpy as np
import pytest

import minidl
from minidl import memory, nn, random
from minidl.backend import to_device
from minidl.comm import chunks, ring, ring_blocks, simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.scheduler import RankFailed
from minidl.cuda.run import Kernel
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel.model import functions, tensor
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.tensor import (
    ColumnLinear, ParallelAttention, RowLinear, SequenceRMSNorm, apart, sequence_norm, whole,
)
from minidl.plain import naive
from minidl.tensor import Tensor
from tests.conftest import STEPS, each_once, ranks
from tests.parallel.model import tiny

WAYS = {"whole logits": {}, "split logits": {"split_logits": True},
        "sequence": {"sequence": True},
        "gathered again": {"sequence": True, "gather_again": True},
        "sequence, split logits": {"sequence": True, "split_logits": True},
        "overlap": {"overlap": 2, "split_logits": True}, "naive": {"all_reduce": naive.all_reduce}}


@pytest.mark.parametrize("way", WAYS)
@ranks(1, 2, 3, 4, 5, 8)
def test_loss_and_every_gradient_are_those_of_one_rank(t, way):
    options = WAYS[way]
    n_tokens = 6 if options.get("sequence") and t.size == 3 else 5 if t.size == 5 else 8
    tiny.assert_equal_alone(t, Grid(t, tp=t.size), n_tokens=n_tokens, **options)


@pytest.mark.slow
@pytest.mark.parametrize("n, sequence", each_once([2, 4], [False, True]))
def test_many_steps_are_those_of_one_rank(n, sequence):
    """Adam divides by roots of small gradients, so differences of 1e-16 grow."""
    losses, weights = tiny.steps_alone(STEPS, clip=0.5)

    def body(t):
        model = parallelize(tiny.gpt(layers=1), Grid(t, tp=n), sequence=sequence, split_logits=True)
        return tiny.steps(model, STEPS, t, clip=0.5)

    for got, state in simulate(n, body):
        np.testing.assert_allclose(got, losses, rtol=1e-12)
        for name, want in weights.items():
            np.testing.assert_allclose(state[name], want, rtol=1e-9, atol=1e-11, err_msg=name)


def mlp(t, x, gy, columns, rows):
    """y, gx and all whole gradients of gelu(x A) B, on these layers."""
    x = Tensor(x.copy(), True)
    y = rows(F.gelu(columns(x)))
    y.backward(gy)
    return [y.array, x.grad, *(whole(p, p.grad) for m in (columns, rows) for p in m.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@ranks(1, 2, 3, 4, 5, 8)
def test_an_mlp_of_a_width_that_no_rank_divides(t, bias):
    g = random.Generator(1)
    up = nn.Linear(6, 13, bias, generator=g).double()
    down = nn.Linear(13, 6, bias, generator=g).double()
    rng = np.random.default_rng(2)
    x, gy = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    wanted = mlp(t, x, gy, up, down)
    for layer in up, down:
        layer.zero_grad()
    got = mlp(t, x, gy, ColumnLinear.of(up, t), RowLinear.of(down, t))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@ranks(1, 2, 3, 4)
def test_gathered_columns_and_scattered_rows_stand_alone(t):
    layers = [nn.Linear(5, 7, generator=random.Generator(4)).double() for _ in range(2)]
    x = np.random.default_rng(5).normal(size=(2, 3, 5))
    wanted = layers[0](x).array
    column = ColumnLinear.of(layers[0], t, gather=True)
    row = RowLinear.of(layers[1], t, scatter=True)
    for layer in column, row:
        leaf = Tensor(x.copy(), True)
        y = layer(leaf)
        np.testing.assert_allclose(y.array, wanted, **tiny.CLOSE)
        y.backward(np.ones(y.shape))
        np.testing.assert_allclose(leaf.grad, np.ones((2, 3, 7)) @ whole(layer.weight),
                                   **tiny.CLOSE)


@ranks(1, 2, 3, 4, 8)
def test_a_constructor_draws_the_whole_and_keeps_a_slice(t):
    full = nn.Linear(6, 8, generator=random.Generator(9))
    own = ColumnLinear(6, 8, t=t, generator=random.Generator(9))
    first, end = chunks.bounds(8, t.size)[t.rank : t.rank + 2]
    assert (own.weight.array == full.weight.array[first:end]).all()
    assert (whole(own.weight) == full.weight.array).all() and own.weight.array.base is None
    if t.size <= 6:
        row = RowLinear(6, 8, t=t, bias=False, generator=random.Generator(9))
        assert (whole(row.weight) == full.weight.array).all()
    attention = ParallelAttention(16, 8, t=t, generator=random.Generator(2))
    alone = nn.CausalSelfAttention(16, 8, generator=random.Generator(2))
    for a, b in zip(attention.parameters(), alone.parameters(), strict=True):
        assert (whole(a) == b.array).all()
    assert f"rank {t.rank} of {t.size}" in repr(own)


@pytest.mark.parametrize("sequence, again", [(False, False), (True, False), (True, True)])
@ranks(1, 2, 4)
def test_bytes_and_messages_of_a_step_are_the_formula(t, sequence, again):
    n, r = t.size, t.rank
    model = parallelize(tiny.gpt(), Grid(ledger := Ledger(t), tp=n), sequence=sequence,
                        split_logits=True, gather_again=again)
    loss = tiny.loss_of(model, *tiny.batch(), model.token.t)
    forward = ledger.bytes_sent
    loss.backward()
    n_rows, layers = tiny.BATCH * tiny.TOKENS, tiny.LAYERS
    K = 8 * n_rows * tiny.WIDTH
    part = (n - 1) * K // n  # of a reduce-scatter or an all-gather, which n divides
    softmax = tiny_softmax(n_rows, n, r)
    # forward: embedding, attention and MLP of each block; backward: these and the head
    if not sequence:
        assert forward == 2 * part * (1 + 2 * layers) + softmax
        assert ledger.bytes_sent == forward + 2 * part * (2 * layers + 1)
        assert ledger.messages_sent == 2 * (n - 1) * (4 * layers + 2 + 2)
        return
    # as many bytes: a reduce-scatter and an all-gather of each region in place of an all-reduce
    assert forward == part * (1 + 4 * layers + 1) + softmax
    weights = 2 * (2 * layers + 1) + 2 * layers  # of norms, and biases of row layers: one each
    summed = weights * ring.bytes_sent(tiny.WIDTH, 8, n, r)
    position = ring_blocks.bytes_sent([8 * tiny.WIDTH * i // n for i in range(n + 1)], 8, r,
                                      n_scatters=0)
    assert ledger.count(label="copy.backward").bytes_sent == summed
    gathered = part * (2 * layers + 1) * again  # of qkv, up and head
    assert ledger.count(label="all_gather.again").bytes_sent == gathered
    assert ledger.bytes_sent == forward + part * (1 + 4 * layers + 1) + summed + position + gathered


def tiny_softmax(n_rows, n, r):
    return ring.bytes_sent(n_rows, 8, n, r) + ring.bytes_sent(2 * n_rows, 8, n, r)


@pytest.mark.parametrize("sequence", [False, True])
def test_a_rank_holds_a_slice_of_the_weights_and_of_the_activations(sequence):
    def body(t):
        model = parallelize(tiny.gpt(), Grid(t, tp=t.size), sequence=sequence, split_logits=True)
        with memory.record(model) as ledger:
            tiny.loss_of(model, *tiny.batch(), t).backward()
        return sum(p.numel() for p in model.parameters()), ledger.most("activations")

    (n_alone, kept_alone), = simulate(1, body)
    for n_params, kept in simulate(4, body):
        small = sum(p.numel() for p in tiny.gpt().parameters() if p.ndim == 1)
        position = tiny.TOKENS * tiny.WIDTH
        assert n_params < (n_alone - small - position) / 4 + small + position + tiny.WIDTH
        assert kept < kept_alone * (0.42 if sequence else 0.62)


@ranks(1, 2, 3, 4, 5, 8)
def test_what_is_gathered_again_is_not_held(t):
    """Saved at the end of forward: K (n-1)/n less for each of 3 column layers, on every rank."""
    n, held = t.size, []
    ids, target = tiny.batch(n_tokens=n)
    for again in (False, True):
        model = parallelize(tiny.gpt(layers=1), Grid(t, tp=n), sequence=True, gather_again=again,
                            split_logits=True)
        with memory.record(model) as ledger:
            loss = tiny.loss_of(model, ids, target, t)
            held.append(ledger.most("activations"))
            loss.backward()
    K = 8 * tiny.BATCH * n * tiny.WIDTH
    assert held[0] - held[1] == 3 * K * (n - 1) // n


@ranks(2, 3, 4)
def test_dropout_differs_inside_the_regions_and_agrees_outside(t):
    minidl.manual_seed(5)
    x = np.ones((4, 12, 24))
    outside = F.dropout(Tensor(x)).array
    own = apart(t)
    inside = F.dropout(Tensor(x), generator=own).array
    everywhere = functions.gather(t, Tensor(np.stack([outside, inside])[None]), 0).array
    for r in range(1, t.size):
        assert (everywhere[r, 0] == everywhere[0, 0]).all()
        assert 0.4 < (everywhere[r, 1] == everywhere[0, 1]).mean() < 0.6  # independent
    again = apart(t)
    assert (F.dropout(Tensor(x), generator=again).array != inside).any()
    assert minidl.random.default_generator().counter == len(x.reshape(-1)) // 8 + 2


@pytest.mark.parametrize("sequence", [False, True])
@ranks(1, 2, 4)
def test_recompute_and_dropout_give_the_same_bits(t, sequence):
    """The blocks run again in backward: collectives, and masks, come again."""
    found = []
    for again in False, True:
        minidl.manual_seed(1)
        model = parallelize(tiny.gpt(dropout=0.3), Grid(t, tp=t.size), sequence=sequence)
        if again:
            for block in model.blocks:
                block.forward = lambda x, run=block.forward: recompute(run, x)
        loss = tiny.loss_of(model, *tiny.batch())
        loss.backward()
        found.append([loss.array, *(p.grad.array for p in model.parameters())])
    assert all((a == b).all() for a, b in zip(*found, strict=True))


@ranks(2, 4)
def test_replicated_weights_stay_the_same_bits_on_all_ranks(t):
    """Dropout, and sums: a mask that differs outside would pull the copies apart."""
    model = parallelize(tiny.gpt(dropout=0.2), Grid(t, tp=t.size))
    tiny.steps(model, 3)
    for p in model.parameters():
        if p.part is None:
            every = functions.gather(t, Tensor(p.array[None]), 0).array
            assert (every == every[0]).all()


@pytest.mark.usefixtures("needs_compiler")
def test_the_kernels_are_those_of_one_rank(monkeypatch):
    ids, target = tiny.batch()
    launched, real = {}, Kernel.__call__

    def launch(kernel, *args, **options):
        launched.setdefault(now, []).append(kernel.name)
        return real(kernel, *args, **options)

    def body(t):
        model = parallelize(tiny.gpt().float(), Grid(t, tp=t.size), split_logits=True)
        tiny.loss_of(model, ids, target, t).backward()

    monkeypatch.setattr(Kernel, "__call__", launch)
    now = "alone"
    tiny.loss_of(tiny.gpt().float(), ids, target).backward()
    now = "two ranks"
    simulate(2, body)
    assert sorted(launched["two ranks"]) == sorted(2 * launched["alone"]) and launched["alone"]


@ranks(2, 3)
def test_a_norm_of_one_ranks_tokens_has_a_part_of_its_gradient(t):
    """And its form for sequences the whole; the negative control is the norm as it was."""
    rng = np.random.default_rng(1)
    x, gy = rng.normal(size=(2, 6, 5)), rng.normal(size=(2, 6, 5))
    for make in nn.LayerNorm, nn.RMSNorm:
        alone = make(5).double()
        alone(Tensor(x)).backward(gy)
        first, end = chunks.bounds(6, t.size)[t.rank : t.rank + 2]
        for form in (lambda m: m, lambda m: sequence_norm(m, t)):
            norm = form(make(5).double())
            norm(Tensor(x[:, first:end].copy())).backward(gy[:, first:end].copy())
            right = np.allclose(norm.weight.grad, alone.weight.grad, rtol=1e-12)
            assert right == (type(norm) is not make)
    assert isinstance(norm, SequenceRMSNorm)


@ranks(2, 3)
def test_a_bias_before_the_sum_counts_once_a_rank(t):
    """The negative control of `bias once`."""
    layer = nn.Linear(6, 5, generator=random.Generator(1)).double()
    wanted = layer(Tensor(np.ones((2, 6)))).array
    bias = layer.bias.array
    row = RowLinear.of(layer, t, scatter=True)
    np.testing.assert_allclose(row(Tensor(np.ones((2, 6)))).array, wanted, **tiny.CLOSE)
    x = functions.scatter(t, Tensor(np.ones((2, 6))), -1)
    wrong = functions.all_reduce(t, F.linear(x, row.weight, row.bias)).array
    np.testing.assert_allclose(wrong - wanted, np.tile((t.size - 1) * bias, (2, 1)), rtol=1e-12)


@ranks(2)
def test_autocast_keeps_the_dtypes_of_the_whole_model(t):
    from minidl.precision import amp

    model, divided = tiny.gpt().float(), parallelize(tiny.gpt().float(), Grid(t, tp=2))
    with amp.autocast():
        a = model.blocks[0].attention(Tensor(np.ones((1, 4, tiny.WIDTH), np.float32)))
        b = divided.blocks[0].attention(Tensor(np.ones((1, 4, tiny.WIDTH), np.float32)))
    assert a.dtype == b.dtype == np.float16
    np.testing.assert_allclose(a.array, b.array, rtol=2e-2, atol=2e-2)  # fp16, other sums


@pytest.mark.parametrize("make, message", [
    (lambda t: ParallelAttention(4, 2, t=t), "at least one head for each of 3 ranks; got 2 heads"),
    (lambda t: ColumnLinear(4, 2, t=t), "row or column for each of 3 ranks, along dimension 0"),
    (lambda t: RowLinear(2, 4, t=t), r"3 ranks, along dimension 1 of a weight of shape \(4, 2"),
    (lambda t: ColumnLinear(4, 8, t=t, gather_again=True), "wants sequence parallelism"),
    (lambda t: sequence_norm(nn.BatchNorm1d(3), t), "wants a LayerNorm or RMSNorm"),
    (lambda t: tensor.cut(ColumnLinear(4, 6, t=t).weight, t, 1), "must cut it in the same way"),
])
def test_what_cannot_be_divided_is_refused(make, message):
    with pytest.raises(RankFailed, match=message):
        simulate(3, make)


def test_tokens_that_the_ranks_do_not_divide_are_refused_in_sequence_parallelism():
    def body(t):
        parallelize(tiny.gpt(), Grid(t, tp=2), sequence=True)(np.zeros((1, 5), int))

    with pytest.raises(RankFailed, match="number of tokens divisible by 2, .* got 5 tokens"):
        simulate(2, body)


@pytest.mark.parametrize("way", ["whole logits", "sequence, split logits", "overlap"])
def test_device_arrays_stay_on_their_device(strict_cupy, way):
    """On the stand-in for CuPy, which refuses what a GPU would."""
    wanted, gradients = tiny.alone()
    options = WAYS[way]

    def body(t):
        model = parallelize(tiny.gpt().to("cuda"), Grid(t, tp=t.size), **options)
        ids, target = (to_device(array, "cuda") for array in tiny.batch())
        loss = tiny.loss_of(model, ids, target, t if options.get("split_logits") else None)
        loss.backward()
        assert abs(loss.item() - wanted) < 1e-13
        for name, p in model.named_parameters():
            assert isinstance(p.grad.array, strict_cupy.ndarray)
            np.testing.assert_allclose(to_device(whole(p, p.grad), "cpu"), gradients[name],
                                       rtol=1e-10, atol=1e-13)

    simulate(2, body)


@ranks(2, 3)
def test_a_watch_compares_the_calls_and_finds_nothing(t):
    grid = Grid(Watch(t), tp=t.size)
    tiny.assert_equal_alone(t, grid, n_tokens=6, sequence=True, split_logits=True)
