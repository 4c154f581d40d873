"""All axes at once: data, tensor and pipeline parallelism on one grid, ZeRO over its dp, are one
rank's training; clipping and loss scaling see the whole model.

In its whole form (`make test-every`) 50 steps of every product on 8 and 16 ranks; minutes."""

import functools
from itertools import combinations

import numpy as np
import pytest

from minidl import nn, optim, random
from minidl.comm import average
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.parallel.data import header
from minidl.parallel.data.data_parallel import average_gradients
from minidl.parallel.model import functions
from minidl.parallel.model import schedule as schedules
from minidl.parallel.model.context import context_parallel
from minidl.parallel.model.cut import cut
from minidl.parallel.model.experts import expert_parallel, expert_parameters
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.pipeline import HEADER_BYTES, Pipeline
from minidl.parallel.model.tensor import whole
from minidl.precision.grad_scaler import GradScaler
from minidl.tensor import Tensor
from tests.conftest import EVERY, STEPS, ranks
from tests.parallel.model import tiny

# sums in another order; the keys' biases have gradients of zero but for rounding
CLOSE = dict(rtol=1e-12, atol=1e-14)
MICRO, ROWS = 2, 8  # micro-batches of a rank; windows of a step, over all ranks


def loss_of(logits, target):
    return tiny.F.cross_entropy(logits.reshape(-1, tiny.VOCAB), target.reshape(-1))


def batch_of(step, part=0, n_parts=1):
    return [array[part * ROWS // n_parts:(part + 1) * ROWS // n_parts]
            for array in tiny.batch(step, n=ROWS)]


def build(grid, zero, layers, make_schedule=schedules.one_f_one_b, **options):
    model = parallelize(tiny.gpt(layers=layers, tied=not zero), grid)
    stages = cut(model, grid.pp.size)
    schedule = make_schedule(grid.pp.size, MICRO)
    return Pipeline(grid.pp, stages, loss_of, schedule, dp=grid.dp, zero=zero, **options)


@functools.cache
def alone(n_steps, layers, max_norm, tied):
    """(losses, norms, {name: weight}) of one rank with the whole batch."""
    model = tiny.gpt(layers=layers, tied=tied)
    optimizer, losses, norms = optim.SGD(model.parameters(), 0.05, momentum=0.9), [], []
    for step in range(n_steps):
        optimizer.zero_grad()
        x, y = batch_of(step)
        loss = loss_of(model(x), y)
        loss.backward()
        norms.append(optim.clip_grad_norm_(model.parameters(), max_norm))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, {name: p.array for name, p in model.named_parameters()}


def steps(grid, pipe, n_steps, max_norm):
    """(losses, norms) of this rank's part of the same."""
    trained = pipe.shards() if pipe.zero else pipe.parameters()
    optimizer, losses, norms = optim.SGD(trained, 0.05, momentum=0.9), [], []
    for step in range(n_steps):
        pipe.zero_grad()
        mean = pipe.everywhere(pipe.step(*batch_of(step, grid.dp.rank, grid.dp.size)))
        norms.append(optim.clip_grad_norm_(trained, max_norm))
        optimizer.step()
        if pipe.zero:
            pipe.gather()
        losses.append(float(average.mean(grid.dp, np.array([mean]))[0]))
    return losses, norms


def grids_of(n):
    """Every (dp, pp, tp) whose product is n."""
    return [(dp, pp, n // dp // pp) for dp in range(1, n + 1) if n % dp == 0
            for pp in range(1, n // dp + 1) if n // dp % pp == 0]


def check(t, dp, pp, tp, zero, n_steps):
    grid, layers = Grid(t, dp=dp, pp=pp, tp=tp), max(2, pp)
    pipe = build(grid, zero, layers)
    losses, norms = steps(grid, pipe, n_steps, max_norm=0.5)
    expected = alone(n_steps, layers, 0.5, not zero)
    np.testing.assert_allclose(losses, expected[0], **CLOSE)
    np.testing.assert_allclose(norms, expected[1], **CLOSE)
    for stage in pipe.stages.values():
        for name, p in stage.named_parameters():
            if name == "head.weight" and not zero:  # which is token.weight
                name = "token.weight"
            np.testing.assert_allclose(whole(p), expected[2][name], **CLOSE, err_msg=name)
    pipe.close()


@ranks(1, 2, 3, 4, 5)
def test_every_grid_trains_as_one_rank(t):
    for dp, pp, tp in grids_of(t.size):
        if ROWS % (dp * MICRO) == 0:
            check(t, dp, pp, tp, zero=0, n_steps=2)


@pytest.mark.parametrize("dp, pp, tp", grids_of(8))
@ranks(8, mpi=False)
def test_every_product_of_8_ranks_trains_as_one_rank(t, dp, pp, tp):
    if ROWS % (dp * MICRO) == 0:
        check(t, dp, pp, tp, zero=int(dp > 1), n_steps=50 if EVERY else 3)


@pytest.mark.parametrize("dp, pp, tp", grids_of(16) if EVERY else [
    (2, 2, 4), (2, 4, 2), (4, 2, 2), (1, 4, 4), (4, 4, 1)])
@ranks(16, mpi=False)
def test_products_of_16_ranks_train_as_one_rank(t, dp, pp, tp):
    if ROWS % (dp * MICRO) == 0 and tp <= 8:  # the net has 8 heads
        check(t, dp, pp, tp, zero=int(EVERY and dp > 1), n_steps=50 if EVERY else 1)


@pytest.mark.slow
@ranks(8, mpi=False)
def test_many_steps_of_all_three_axes_and_zero(t):
    check(t, 2, 2, 2, zero=1, n_steps=STEPS)


@ranks(4)
def test_zero_2_over_dp(t):
    for dp, pp, tp in ((4, 1, 1), (2, 2, 1), (2, 1, 2)):
        check(t, dp, pp, tp, zero=2, n_steps=2)


@ranks(8, mpi=False)
def test_the_bytes_of_each_axis_are_its_formula(t):
    """What a rank sends in a step, in all, is the sum of what its three groups send."""
    ledgers = {}

    class Counted(Grid):
        def group(self, *axes):
            group = super().group(*axes)
            return ledgers.setdefault(axes, Ledger(group))

    grid = Counted(t, dp=2, pp=2, tp=2)
    pipe = build(grid, 0, 2)
    for step in range(3):  # the second step of data parallelism tells the order of its buckets
        before = {axes: ledger.bytes_sent for axes, ledger in ledgers.items()}
        pipe.zero_grad()
        pipe.step(*batch_of(step, grid.dp.rank, grid.dp.size))
    sent = {axes[0]: ledgers[axes].bytes_sent - before[axes] for axes in ledgers}
    rows, item = ROWS // grid.dp.size // MICRO, 8
    activation = rows * tiny.TOKENS * tiny.WIDTH * item
    # 2 (n-1)/n of the gradients, n = 2; and which were used: a number each, and of the samples
    parameters = pipe.parameters()
    assert sent["dp"] == sum(p.nbytes for p in parameters) + header.n_bytes(len(parameters))
    ahead = HEADER_BYTES if grid.pp.rank == 0 else 0
    assert sent["pp"] == MICRO * activation + ahead + pipe.tied[0][0].nbytes
    # of one block: 4 all-reduces of an activation; of the first stage: the embedding's sum; of the
    # last: the gradient of the logits' input, and its columns of the logits
    blocks, end = 4 * MICRO * activation, MICRO * activation
    columns = len(range(tiny.VOCAB)[grid.tp.rank::2])  # 6 and 5 of 11
    logits = MICRO * rows * tiny.TOKENS * columns * item
    assert sent["tp"] == blocks + end + (logits if grid.pp.rank else 0)


@ranks(8, mpi=False)
def test_a_rank_with_inf_makes_all_ranks_skip(t):
    grid = Grid(t, dp=2, pp=2, tp=2)
    pipe = build(grid, 1, 2)
    optimizer = optim.SGD(pipe.shards(), lr=0.1)
    scaler = GradScaler(init_scale=1.0)
    before = [shard.array.copy() for shard in pipe.shards()]
    pipe.step(*batch_of(0, grid.dp.rank, 2), scaler=scaler)
    if t.rank == 5:
        pipe.shards()[0].grad[0] = np.inf
    assert not scaler.step(optimizer, max_norm=1.0)
    for shard, values in zip(pipe.shards(), before, strict=True):
        np.testing.assert_array_equal(shard.array, values)


@ranks(4, mpi=False)
def test_what_does_not_go_together_is_refused(t):
    grid = Grid(t, dp=2, pp=2)
    stages = cut(tiny.gpt(), 2)
    schedule = schedules.gpipe(2, 2)
    with pytest.raises(ValueError, match="1 shared weights"):
        Pipeline(grid.pp, stages, loss_of, schedule, dp=grid.dp, zero=1)
    with pytest.raises(ValueError, match="no weight that two pipeline stages share; got zero=3"):
        Pipeline(grid.pp, stages, loss_of, schedule, dp=grid.dp, zero=3)


@pytest.mark.parametrize("method", ["ring", "ulysses"])
@ranks(4, 8, mpi=False)
def test_heads_and_texts_divided_at_once(t, method):
    """Tensor parallelism over pairs, each text over the pairs: one rank's loss and gradients."""
    x, y = tiny.batch(n=2)
    whole_model = tiny.gpt()
    wanted = loss_of(whole_model(x), y)
    wanted.backward()
    grid = Grid(t, tp=2, cp=t.size // 2)
    model = parallelize(tiny.gpt(), grid)
    part = context_parallel(model, grid.cp, method)
    logits = model(part(x))
    loss = tiny.F.cross_entropy(logits.reshape(-1, tiny.VOCAB), part(y).reshape(-1),
                                reduction="sum") / y.size
    (loss * grid.cp.size).backward()
    average_gradients(grid.cp, model.parameters())
    total = average.mean(grid.cp, np.array([loss.item()]))[0] * grid.cp.size
    np.testing.assert_allclose(total, wanted.item(), rtol=1e-12)
    for name, p in model.named_parameters():
        expected = whole_model.get_parameter(name).grad
        np.testing.assert_allclose(whole(p, p.grad), expected, rtol=1e-11,
                                   atol=1e-14, err_msg=name)


@pytest.mark.parametrize("method, length", [("ring", None), ("ring", 8), ("ulysses", 8)])
@ranks(4, mpi=False)
def test_every_block_of_the_tokens_has_a_dropout_mask_of_its_own(t, method, length):
    """Red before: ranks along cp dropped the same of their texts between tensor parallelism's
    regions, with sequence parallelism."""
    random.manual_seed(5)
    grid = Grid(t, tp=2, cp=2)
    model = parallelize(tiny.gpt(dropout=0.5), grid, sequence=True)
    part = context_parallel(model, grid.cp, method, length=length)
    tiny.loss_of(model, *map(part, tiny.batch())).backward()
    masks = [module(Tensor(np.ones((2, 2, 99)))).array != 0 for module in
             (model.drop, model.blocks[0].drop)]
    every = functions.gather(t, Tensor(np.stack([masks], dtype=float)), 0).array
    assert every.shape[0] == 4
    for a, b in combinations(every.reshape(8, -1), 2):
        assert 0.35 < (a == b).mean() < 0.65
    counters = functions.gather(t, Tensor(np.array([random.default_generator().counter], float)), 0)
    assert (counters.array == counters.array[0]).all()


def of_experts():
    ff = functools.partial(nn.MoE, n_experts=4, top_k=2, capacity_factor=None)
    return nn.GPT(tiny.VOCAB, tiny.TOKENS, 2, 4, tiny.WIDTH, feed_forward=ff,
                  generator=random.Generator(3)).double()


@pytest.mark.parametrize("name", ["zb_h1", "one_f_one_b"])
@pytest.mark.parametrize("axes", [{"cp": 2}, {"ep": 2}, {"cp": 2, "ep": 2}])
@ranks(4, 8, mpi=False)
def test_stages_whose_ranks_share_texts_and_experts(t, axes, name):
    """Two stages, in each the texts divided over cp, the experts over ep, and the rest replicas:
    one rank's loss and gradients."""
    make = of_experts if "ep" in axes else tiny.gpt
    one, (x, y) = make(), batch_of(0)
    wanted = loss_of(one(x), y)
    wanted.backward()
    if t.size // 2 % np.prod(list(axes.values())):
        return
    grid = Grid(t, pp=2, dp=t.size // 2 // int(np.prod(list(axes.values()))), **axes)
    model, same = make(), grid.group("dp", "cp")
    part = context_parallel(model, grid.cp) if "cp" in axes else np.asarray
    if "ep" in axes:
        expert_parallel(model, grid.ep)
    pipe = Pipeline(grid.pp, cut(model, 2), loss_of, getattr(schedules, name)(2, MICRO),
                    dp=grid.group("dp", "ep", "cp"))
    share = grid.group("dp", "ep")
    x, y = (part(a) for a in batch_of(0, share.rank, share.size))
    mean = pipe.everywhere(pipe.step(x, y))
    if own := expert_parameters(model):
        average_gradients(same, [p for p in own if p in pipe.names])
    total = average.mean(grid.group("dp", "ep", "cp"), np.array([mean]))[0]
    np.testing.assert_allclose(total, wanted.item(), rtol=1e-12)
    for p, name in pipe.names.items():
        np.testing.assert_allclose(p.grad, one.get_parameter(name).grad, rtol=1e-11, atol=1e-14,
                                   err_msg=name)
    pipe.close()
