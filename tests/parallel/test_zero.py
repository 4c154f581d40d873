"""ZeRO's stages train what data parallelism trains, and hold and send what the formulas say."""

import math

import numpy as np
import pytest

import minidl
from minidl import amp, memory, nn, optim
from minidl.comm import chunks, ring, ring_blocks
from minidl.comm.ledger import Ledger
from minidl.nn import functional as F
from minidl.optim import lr_scheduler
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.bucket import Bucket
from minidl.parallel.zero1 import scatter_mean
from minidl.recompute import recompute
from tests.conftest import ranks

STAGES = {1: Zero1, 2: Zero2, 3: Zero3}
SIZES = (1, 2, 3, 4, 5, 8)
each_stage = pytest.mark.parametrize("stage", [1, 2, 3])


class Block(nn.Module):
    """Weights of 49, 7, 1, 3 and 7 elements: used, used, used, never used, frozen."""

    def __init__(self, again):
        super().__init__()
        self.again = again
        self.linear = nn.Linear(7, 7)
        self.scale = nn.Parameter(np.ones(1, np.float32))
        self.never = nn.Parameter(np.ones(3, np.float32))
        self.shift = nn.Parameter(np.full(7, 0.1, np.float32), requires_grad=False)

    def forward(self, x):
        if self.again:
            return x + recompute(self.tail, x)  # a part of a unit
        return x + self.tail(x)

    def tail(self, x):
        return F.tanh(self.linear(x)) * self.scale + self.shift


class Net(nn.Module):
    """5 -> 7 -> blocks -> 5, the last weight tied to the first; batch norm has buffers."""

    def __init__(self, again=""):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.blocks = nn.ModuleList(Block(again == "part") for _ in range(3))
        self.again = again

    def forward(self, x, n_blocks=3):
        x = self.norm(self.first(x))
        for block in list(self.blocks)[:n_blocks]:
            x = recompute(block, x) if self.again == "whole" else block(x)
        return x @ self.first.weight


def net(again="", dtype=np.float32):
    minidl.manual_seed(3)
    return Net(again).to(dtype)


def data(step, n_rows=19, dtype=np.float32):
    return np.random.default_rng(step).normal(size=(2, n_rows, 5)).astype(dtype)


def share(t, x):
    """This rank's rows; the first ranks have one more. With 8 ranks and 19 rows: 3 or 2."""
    return [minidl.tensor(np.array_split(a, t.size)[t.rank]) for a in x]


def parallel(stage, model, t, like=None, **options):
    """`model` at a stage; at stage 0 data parallel, in the buckets of the Zero* `like`."""
    if stage:
        return STAGES[stage](model, t, **options)
    model = DataParallel(model, t, all_reduce=ring_blocks.all_reduce)
    places = {p: i for i, p in enumerate(like.module.parameters())}
    mine = list(model.parameters())
    r = model.reducer
    r.buckets = [Bucket([mine[places[p]] for p in b.params]) for b in like.reducer.buckets]
    r.bucket_of = {p: b for b in r.buckets for p in b.params}
    r.rebuilt = True  # it would cut them anew after the first backward
    return model


def leaves(model, group=None):
    return model.shards(group) if isinstance(model, Zero1) else [
        p for b in model.reducer.buckets for p in b.params]


def gather(model):
    if isinstance(model, Zero1):
        model.gather()


def backward(model, x, y, factor=1.0, **options):
    loss = F.mse_loss(model(x, **options), y) * factor
    loss.backward()
    return loss.item()


def finish(model):
    state = {name: np.array(array) for name, array in model.state_dict().items()}
    model.close()
    return state


def assert_same_bits(got, want):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name, strict=True)


def train(model, t, n_steps=3, n_micro=1, sync_each=True, optimizer=None, dtype=np.float32):
    """The model's state after some steps on uneven shares, with a schedule; unused weights do not
    decay, because data parallelism leaves them alone."""
    optimizer = optimizer or optim.AdamW(leaves(model), lr=1e-2, weight_decay=0)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(n_steps):
        optimizer.zero_grad()
        for i in range(n_micro):
            x, y = share(t, data([step, i], dtype=dtype))
            if i == n_micro - 1 or sync_each:
                backward(model, x, y)
            else:
                with model.no_sync():
                    backward(model, x, y)
        optimizer.step()
        gather(model)
        scheduler.step()
    return finish(model)


@each_stage
@ranks(*SIZES)
def test_float32_has_the_bits_of_data_parallelism(t, stage):
    """Tied, frozen, unused and one-element weights; uneven shares; batch norm; buckets of 40 B."""
    options = {} if stage == 3 else dict(bucket_bytes=40, first_bucket_bytes=8)
    model = parallel(stage, net(), t, **options)
    assert len(model.reducer.buckets) >= 4
    want = train(parallel(0, net(), t, like=model), t)
    assert_same_bits(train(model, t), want)


@each_stage
@ranks(2, 3, 4)
def test_without_overlap_has_the_same_bits(t, stage):
    state = train(parallel(stage, net(), t, overlap=False), t, n_steps=2)
    assert_same_bits(state, train(parallel(stage, net(), t), t, n_steps=2))


@each_stage
@ranks(*SIZES)
def test_n_ranks_equal_one_rank_on_the_whole_batch(t, stage):
    """Without batch norm's layer, whose statistics are of a share."""
    def make():
        model = net(dtype=np.float64)
        model.norm = nn.Linear(7, 7).double()
        return model

    minidl.manual_seed(5)
    model = parallel(stage, make(), t)
    state = train(model, t, dtype=np.float64,
                  optimizer=optim.SGD(leaves(model), lr=0.1, momentum=0.9))
    minidl.manual_seed(5)
    alone = make()
    optimizer = optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(3):
        optimizer.zero_grad()
        backward(alone, *map(minidl.tensor, data([step, 0], dtype=np.float64)))
        optimizer.step()
        scheduler.step()
    for name, array in alone.state_dict().items():
        # float64 sums of a few dozen terms in another order
        np.testing.assert_allclose(state[name], array, rtol=1e-11, atol=1e-13, err_msg=name)


@each_stage
@ranks(2, 3)
def test_training_alone_is_something_else(t, stage):
    """Negative control: what the tests above compare does depend on the other ranks."""
    state = train(parallel(stage, net(), t), t)
    alone = net()
    optimizer = optim.AdamW(alone.parameters(), lr=1e-2, weight_decay=0)
    for step in range(3):
        optimizer.zero_grad()
        backward(alone, *share(t, data([step, 0])))
        optimizer.step()
    assert abs(state["first.weight"] - alone.first.weight.data).max() > 1e-3


def train_half(model, t, n_steps=3):
    """O2: half weights and gradients, float32 masters, dynamic scale; rank 0 overflows once."""
    optimizer = optim.use_master_weights(optim.AdamW(leaves(model), lr=1e-2, weight_decay=0))
    scaler = amp.GradScaler(2.0**8, agree=lambda bad: bool(
        ring.all_reduce(t, np.array([bad]), np.logical_or)[0]))
    taken = []
    for step in range(n_steps):
        optimizer.zero_grad()
        x, y = share(t, data(step, n_rows=2 * t.size))
        factor = 1e30 if step == 1 and t.rank == 0 else 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            scaler.scale(F.mse_loss(model(x), y) * factor).backward()
        taken.append(scaler.step(optimizer))
        scaler.update()
        gather(model)
    return taken, scaler.get_scale(), finish(model)


def half_net():
    model = net()
    amp.prepare(model, "O2")
    return model


@each_stage
@ranks(*SIZES)
def test_float16_has_the_bits_of_data_parallelism(t, stage):
    """Equal shares: gradients are not rounded before they travel. Batch norm stays float32."""
    model = parallel(stage, half_net(), t)
    *want, state = train_half(parallel(0, half_net(), t, like=model), t)
    *got, state_here = train_half(model, t)
    assert got == want == [[True, False, True], 2.0**7]
    assert_same_bits(state_here, state)
    assert state["first.weight"].dtype == np.float16


@ranks(2, 3, 4, 5)
def test_float16_sums_have_float32_bits_in_the_rings_order(t):
    """Rank 0's and rank 1's large terms cancel: what is left of the others shows the order."""
    large = {0: 16384.0, 1: -16384.0}.get(t.rank)
    x = np.random.default_rng(t.rank).normal(size=1001) if large is None else np.full(1001, large)
    x = x.astype(np.float16)
    bounds = chunks.bounds(len(x), t.size)
    want = ring_blocks.reduce_scatter(t, x.astype(np.float32), bounds) / np.float32(t.size)
    got = scatter_mean(t, x, bounds, 1, t.size)
    np.testing.assert_array_equal(got, want.astype(np.float16))


@ranks(2, 3, 4)
def test_float16_with_uneven_shares_is_a_rounding_away(t):
    """A gradient times its share of the samples is rounded to float16 before it travels."""
    model = parallel(1, half_net(), t)
    reference = parallel(0, half_net(), t, like=model)
    for m in (model, reference):
        backward(m, *share(t, data(0, n_rows=2 * t.size + 1)), factor=2.0**8)
    for ours, theirs in zip(model.reducer.buckets, reference.reducer.buckets, strict=True):
        whole = np.concatenate([(np.zeros(p.shape) if p.grad is None else p.grad).reshape(-1)
                                for p in theirs.params]).astype(np.float64)
        # each rank's term is rounded by at most 2^-11 of itself; ranks' terms may cancel
        np.testing.assert_allclose(ours.shard.grad, np.array_split(whole, t.size)[t.rank],
                                   rtol=2**-10, atol=2**-10 * abs(whole).max())
    model.close()
    reference.close()


@each_stage
@ranks(1, 2, 3, 4)
def test_parameter_groups_have_shards_of_their_own(t, stage):
    def groups(model):
        decay = [p for p in model.parameters() if p.ndim > 1]
        return decay, [p for p in model.parameters() if p.ndim <= 1]

    module = net()
    model = parallel(stage, module, t, groups=groups(module))
    reference = parallel(0, net(), t, like=model)
    assert model.shards() != model.shards(0) and set(model.shards()) == {
        *model.shards(0), *model.shards(1)}
    # no decay in the second group: it has the unused weights
    states = []
    for m, (a, b) in ((model, (model.shards(0), model.shards(1))),
                      (reference, groups(reference.module))):
        optimizer = optim.AdamW([{"params": a, "weight_decay": 0.3, "lr": 2e-2},
                                 {"params": [p for p in b if p.requires_grad]}],
                                lr=1e-2, weight_decay=0)
        states.append(train(m, t, optimizer=optimizer))
    assert_same_bits(*states)


@ranks(2)
def test_groups_must_have_every_parameter_once(t):
    model = net()
    a, *rest = model.parameters()
    with pytest.raises(ValueError, match="first.weight is in 0"):
        Zero1(model, t, groups=[rest])
    with pytest.raises(ValueError, match="first.weight is in 2"):
        Zero2(model, t, groups=[[a], [a, *rest]])
    with pytest.raises(ValueError, match="not in the model"):
        Zero3(model, t, groups=[[a, *rest], [nn.Parameter(np.ones(2))]])


@each_stage
@ranks(1, 2, 3, 4)
def test_accumulation_under_no_sync_has_the_bits_of_data_parallelism(t, stage):
    ledger = Ledger(t)
    model = parallel(stage, net(), ledger)
    want = train(parallel(0, net(), t, like=model), t, n_micro=3, sync_each=False)
    start = ledger.count(label="ring_blocks.reduce_scatter").bytes_sent
    assert_same_bits(train(model, ledger, n_micro=3, sync_each=False), want)
    scattered = ledger.count(label="ring_blocks.reduce_scatter").bytes_sent - start
    assert scattered == 3 * sum(  # once a step
        4 * (b.bounds[-1] - len(b.shard.data)) for b in model.reducer.buckets)


@each_stage
@ranks(1, 2, 3)
def test_without_no_sync_every_backward_sends_and_means_add_up(t, stage):
    ledger = Ledger(t)
    model = parallel(stage, net(dtype=np.float64), ledger)
    reference = parallel(0, net(dtype=np.float64), t, like=model)
    sums = {p: 0 for p in reference.module.parameters() if p.requires_grad}
    for i in range(3):
        x, y = share(t, data(i, dtype=np.float64))
        ledger.reset()
        backward(model, x, y)
        sent = ledger.count(label="ring_blocks.reduce_scatter").bytes_sent
        assert sent == sum(8 * (b.bounds[-1] - b.shard.numel()) for b in model.reducer.buckets)
        reference.zero_grad()
        backward(reference, x, y)
        for p in sums:
            sums[p] = sums[p] + (0 if p.grad is None else p.grad)
    for ours, theirs in zip(model.reducer.buckets, reference.reducer.buckets, strict=True):
        whole = np.concatenate([np.broadcast_to(sums[p], p.shape).reshape(-1)
                                for p in theirs.params])
        np.testing.assert_allclose(ours.shard.grad, np.array_split(whole, t.size)[t.rank],
                                   rtol=1e-12, atol=1e-15)
    model.close()
    reference.close()


@each_stage
@ranks(1, 2, 3)
def test_clipping_is_by_the_norm_of_all_shards(t, stage):
    model = parallel(stage, net(), t)
    reference = parallel(0, net(), t, like=model)
    for m in (model, reference):
        backward(m, *share(t, data(0)))
    norm = optim.grad_norm(reference.module.parameters())
    # float32 squares against float64 ones
    assert model.grad_norm() == pytest.approx(norm, rel=1e-6)
    assert model.clip_grad_norm_(norm / 3) == pytest.approx(norm, rel=1e-6)
    assert model.grad_norm() == pytest.approx(norm / 3, rel=1e-5)
    before = [s.grad.copy() for s in model.shards()]
    model.clip_grad_norm_(norm)
    assert all((a == s.grad).all() for a, s in zip(before, model.shards(), strict=True))
    model.close()
    reference.close()


@each_stage
@ranks(1, 2, 3)
def test_a_scaler_clips_by_the_norm_of_all_shards(t, stage):
    """SGD with lr 1: the update is the clipped gradient, whose norm over all ranks is max_norm."""
    model = parallel(stage, half_net(), t)
    optimizer = optim.use_master_weights(optim.SGD(model.shards(), lr=1.0))
    scaler = amp.GradScaler(16.0, agree=model.on_any_rank, all_sum=model.sum_over_ranks)
    before = [p.data.copy() for p in optimizer.parameters()]
    x, y = share(t, data(0, n_rows=2 * t.size))
    scaler.scale(F.mse_loss(model(x), y)).backward()
    assert model.grad_norm() / 16 > 0.01
    assert scaler.step(optimizer, max_norm=0.01)
    moved = sum(float(np.square(p.data - a, dtype=np.float64).sum())
                for p, a in zip(optimizer.parameters(), before, strict=True))
    # float32 weights of about 1 moved by 0.001: five digits are left
    assert math.sqrt(model.sum_over_ranks(moved)) == pytest.approx(0.01, rel=1e-3)
    model.close()


@pytest.mark.parametrize("again", ["whole", "part"])
@ranks(1, 2, 3)
def test_units_may_be_recomputed(t, again):
    plain, recomputed = Ledger(t), Ledger(t)
    want = train(parallel(3, net(), plain), plain)
    assert_same_bits(train(parallel(3, net(again), recomputed), recomputed), want)
    assert recomputed.bytes_sent == plain.bytes_sent  # at home for both: run again, and backward


@each_stage
@ranks(2, 3)
def test_autocast(t, stage):
    """O1: float32 weights and gradients, half products."""
    ours, theirs = net(), net()
    amp.prepare(ours, "O1")
    amp.prepare(theirs, "O1")
    model = parallel(stage, ours, t)
    want = train(parallel(0, theirs, t, like=model), t, n_steps=2)
    assert_same_bits(train(model, t, n_steps=2), want)


@ranks(1, 2, 3)
def test_a_unit_that_was_fetched_for_nothing_comes_with_new_values(t):
    """Forward through some of the units fetches the next one, which then is not used."""
    model = parallel(3, net(), t)
    reference = parallel(0, net(), t, like=model)
    states = []
    for m in (model, reference):
        optimizer = optim.SGD(leaves(m), lr=0.1)
        for step, n_blocks in enumerate((3, 2, 3)):
            optimizer.zero_grad()
            backward(m, *share(t, data(step)), n_blocks=n_blocks)
            with minidl.no_grad():
                m(share(t, data(9))[0], n_blocks=1)
            optimizer.step()
            gather(m)
        states.append(finish(m))
    assert_same_bits(*states)


# -- what is held, what is sent


def gpt():
    """Every parameter's size is a multiple of 16, so 2, 4 and 8 ranks have equal blocks."""
    minidl.manual_seed(0)
    return nn.GPT(vocab_size=32, context=8, width=16, n_layers=3, n_heads=2)


def tokens(t, step=0):
    ids = np.random.default_rng([step, t.rank]).integers(0, 32, (2, 9))
    return minidl.tensor(ids[:, :-1]), minidl.tensor(ids[:, 1:].reshape(-1))


def step_of(model, t, optimizer, scale=1.0):
    x, y = tokens(t)
    optimizer.zero_grad()
    (F.cross_entropy(model(x).reshape(-1, 32), y) * scale).backward()
    optimizer.step(unscale=1 / scale)
    model.gather()


@each_stage
@ranks(*SIZES)
def test_memory_is_the_formula(t, stage):
    """O2 with AdamW, X parameters: 4X + 12X/N, 2X + 14X/N, 16X/N. Nothing is padded: a rank's
    share of a bucket is longer than another's by at most one element."""
    module = gpt()
    X = sum(p.numel() for p in module.parameters())
    amp.prepare(module, "O2")
    model = STAGES[stage](module, t)
    optimizer = optim.use_master_weights(optim.AdamW(model.shards(), lr=1e-2))
    step_of(model, t, optimizer, 64.0)
    own = sum(len(s.data) for s in model.shards())
    held = memory.totals(model, optimizer)
    assert held["parameters"] == 2 * (X if stage < 3 else own)
    assert held["gradients"] == 2 * (X if stage < 2 else own)
    assert held["master weights"] == 4 * own and held["optimizer"] == 8 * own
    if all(b.bounds[-1] % t.size == 0 for b in model.reducer.buckets):
        formula = {1: 4 * X + 12 * X // t.size, 2: 2 * X + 14 * X // t.size, 3: 16 * X // t.size}
        assert own * t.size == X and sum(held.values()) == formula[stage]
    else:
        assert t.size in (3, 5)
        assert abs(own - X / t.size) < len(model.shards())
    model.close()


@pytest.mark.parametrize("half", [False, True])
@each_stage
@ranks(1, 2, 3, 4, 8)
def test_traffic_is_the_formula(t, stage, half):
    ledger = Ledger(t)
    module = gpt()
    if half:
        amp.prepare(module, "O2")
    model = STAGES[stage](module, ledger)
    optimizer = optim.SGD(model.shards(), lr=1e-2)
    step_of(model, t, optimizer)  # the first forward knows no order; its bytes are the same
    ledger.reset()
    step_of(model, t, optimizer)
    width = 2 if half else 4
    buckets = model.reducer.buckets
    X = sum(b.bounds[-1] for b in buckets)
    root = sum(b.bounds[-1] for b in buckets if b.n_gathers == 1) if stage == 3 else X
    scatter = "all_to_all.all_to_all_v" if half else "ring_blocks.reduce_scatter"
    sent = {label: ledger.count(label=label).bytes_sent
            for label in (scatter, "ring_blocks.all_gather", "ring.all_reduce")}
    assert sent[scatter] == width * sum(b.bounds[-1] - len(b.shard.data) for b in buckets)
    assert sum(sent.values()) == ledger.bytes_sent == model.bytes_sent()
    everybody = ring.all_reduce(t, np.array([*sent.values()]))
    n_params = len(model.reducer.params)
    assert everybody.tolist() == [  # over all ranks exactly n-1 times: no byte twice
        (t.size - 1) * width * X,
        (t.size - 1) * width * (2 * X - root),
        2 * (t.size - 1) * 8 * (1 + n_params)]
    if X % t.size == 0 and all(b.bounds[-1] % t.size == 0 for b in buckets):
        units = 2 if stage < 3 else 3
        assert sent[scatter] + sent["ring_blocks.all_gather"] == \
            units * width * X * (t.size - 1) // t.size - \
            (width * root * (t.size - 1) // t.size if stage == 3 else 0)
    model.close()


@ranks(2, 4)
def test_a_model_of_units_alone_sends_three_times(t):
    minidl.manual_seed(1)
    ledger = Ledger(t)
    model = Zero3(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), ledger)
    X = sum(b.bounds[-1] for b in model.reducer.buckets)
    x = minidl.tensor(np.ones((2, 8), np.float32))
    backward(model, x, x)
    model.gather()
    header = 2 * (t.size - 1) * 8 * 9
    total = ring.all_reduce(t, np.array([ledger.bytes_sent]))[0]
    assert total - header - _broadcast_bytes(t, ledger) == 3 * (t.size - 1) * 4 * X
    model.close()


def _broadcast_bytes(t, ledger):
    return ring.all_reduce(t, np.array([ledger.count(label="tree.broadcast").bytes_sent]))[0]


@ranks(1, 2, 4)
def test_small_units_stay(t):
    states = []
    for stay_below in (0, 132):
        minidl.manual_seed(1)
        module = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(4, 8))
        ledger = Ledger(t)
        model = Zero3(module, ledger, stay_below=stay_below)
        optimizer = optim.SGD(model.shards(), lr=0.1)
        x = minidl.tensor(np.random.default_rng(t.rank).normal(size=(2, 8)).astype(np.float32))
        for _ in range(2):
            ledger.reset()
            optimizer.zero_grad()
            backward(model, x, x)
            optimizer.step()
            model.gather()
        assert ledger.bytes_sent == model.bytes_sent()
        at_home = [b.weights is not None for b in reversed(model.reducer.buckets)]
        assert at_home == [False, stay_below > 0, stay_below > 0]  # 288, 132 and 40 elements
        states.append(finish(model))
    assert_same_bits(*states)


@pytest.mark.parametrize("no_sync", [False, True])
@ranks(1, 2, 4)
def test_two_units_and_a_share_of_the_weights_are_at_home_at_most(t, no_sync):
    module = gpt()
    X = sum(p.numel() for p in module.parameters())
    model = Zero3(module, t)
    root = sum(b.bounds[-1] for b in model.root)
    unit = max(b.bounds[-1] for b in model.reducer.buckets if not b.is_root)
    optimizer = optim.SGD(model.shards(), lr=1e-2)
    for _ in range(2):
        with memory.record(model, optimizer) as ledger:
            if no_sync:
                with model.no_sync():
                    F.cross_entropy(model(tokens(t)[0]).reshape(-1, 32), tokens(t)[1]).backward()
            else:
                step_of(model, t, optimizer)
    share = X / t.size
    # and no fewer: while one is in use, the next is on its way
    assert ledger.most("parameters") == 4 * (share + root + 2 * unit) < 4 * (share + X)
    assert memory.totals(model, optimizer)["parameters"] == pytest.approx(4 * share)
    model.close()


@pytest.mark.parametrize("stage", [1, 2])
@ranks(1, 2)
def test_stage_2_frees_gradients_while_backward_runs(t, stage):
    model = STAGES[stage](gpt(), t, bucket_bytes=4096, first_bucket_bytes=4096)
    X = sum(b.bounds[-1] for b in model.reducer.buckets)
    largest = max(b.bounds[-1] for b in model.reducer.buckets)
    assert largest < X / 2
    step_of(model, t, optim.SGD(model.shards(), lr=1e-2))
    held = sum(b.flat is not None for b in model.reducer.buckets)
    assert held == (len(model.reducer.buckets) if stage == 1 else 0)
    if stage == 2:  # a view would keep the whole bucket alive
        assert all(shard.grad.base is None for shard in model.shards())
    model.close()


# -- what a user meets


@each_stage
@ranks(1, 2, 3)
def test_a_state_goes_into_another_stage_and_back(t, stage):
    minidl.manual_seed(8)
    source = Zero1(Net(), t)
    state = source.state_dict()
    model = parallel(stage, net(), t)
    model.load_state_dict(state)
    assert_same_bits(model.state_dict(), state)
    want, got = train(source, t, n_steps=1), train(model, t, n_steps=1)
    for name in want:  # their buckets differ, so sums of three ranks may round otherwise
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4, err_msg=name)


@each_stage
@ranks(1, 3)
def test_at_home_is_the_whole_module(t, stage):
    model = parallel(stage, net(), t)
    with model.at_home() as module:
        assert module is model.module
        want = net().first.weight.data
        np.testing.assert_array_equal(module.first.weight.data, want)
        x = minidl.tensor(data(0)[0])
        with minidl.no_grad():
            if t.rank == 0:  # nothing is sent inside: a rank may be alone
                module.eval()(x)
            inside = module.eval()(x).data
    with minidl.no_grad():
        np.testing.assert_array_equal(model(x).data, inside)
    model.close()  # an ordinary module again
    backward(module, x, x)
    assert module.blocks[2].linear.weight.grad is not None


@ranks(2)
def test_a_weight_that_is_away_says_where_it_is(t):
    model = parallel(3, net(), t)
    weight = model.module.first.weight
    for use in (lambda: weight.data.sum(), lambda: weight * 2, lambda: 2 - weight,
                lambda: np.asarray(weight.data), lambda: model.module(share(t, data(0))[0])):
        with pytest.raises(Exception, match="is away, on its owners' ranks"):
            use()
    model.close()


@ranks(2)
def test_a_weight_in_two_units_is_an_error(t):
    linear = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="2 parameters are in more than one unit"):
        Zero3(nn.Sequential(linear, nn.Tanh(), nn.Sequential(linear)), t)


@each_stage
@ranks(2)
def test_forgetting_to_gather_is_an_error(t, stage):
    model = parallel(stage, net(), t)
    optimizer = optim.SGD(model.shards(), lr=0.1)
    x, y = share(t, data(0))
    backward(model, x, y)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"call model.gather\(\) after optimizer.step"):
        model(x)
    model.close()


@each_stage
@ranks(2)
def test_zero_grad_of_the_model_forgets_the_shards_gradients(t, stage):
    model = parallel(stage, net(), t)
    backward(model, *share(t, data(0)))
    assert all(s.grad is not None for s in model.shards())
    model.zero_grad()
    assert all(s.grad is None for s in model.shards())
    model.close()


@each_stage
@ranks(1, 2, 3, 4)
def test_norms_of_whole_tensors(t, stage):
    """What LAMB and LARS need: ||w|| of each parameter, wherever its elements are."""
    model = parallel(stage, net(), t)
    norms = model.tensor_norms([s.data for s in model.shards()])
    with model.at_home() as module:
        for p in module.parameters():
            if p.requires_grad:
                # float64 sums of up to 49 squares
                assert norms[p] == pytest.approx(np.linalg.norm(p.data.astype(float)), rel=1e-12)
    model.close()


@each_stage
@ranks(1, 2, 3, 5)
def test_owned_slices_cover_every_parameter_once(t, stage):
    model = parallel(stage, net(), t)
    covered = {name: np.zeros(p.numel(), int) for name, p in model.module.named_parameters()}
    for line in model.owned().splitlines()[1:]:
        _, _, name, begin, _, end, *_ = line.replace("[", "").replace("]", "").split()
        covered[name][int(begin):int(end)] += 1
    for name, p in model.module.named_parameters():
        assert (ring.all_reduce(t, covered[name]) == int(p.requires_grad)).all()
    model.close()
