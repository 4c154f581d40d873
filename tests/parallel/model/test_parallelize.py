"""Converting models by a plan, and what goes with it: data parallelism, clipping, loss scaling."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, optim, random
from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.optim import clip_grad_norm_, over_ranks
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.model.parallelize import Column, Row, gpt_plan, parallelize, whole_state_dict
from minidl.parallel.model.tensor import whole
from minidl.precision import amp
from tests.conftest import ranks
from tests.parallel.model import tiny


class Net(nn.Module):
    """An encoder of two MLPs, for a plan of its own."""

    def __init__(self, width=6):
        super().__init__()
        g = random.Generator(2)
        self.norm = nn.LayerNorm(width)
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(width, 13, generator=g), nn.Tanh(),
                                                nn.Linear(13, width, generator=g))
                                  for _ in range(2))
        self.out = nn.Linear(width, 5, generator=g)

    def forward(self, x):
        for mlp in self.mlps:
            x = x + mlp(self.norm(x))
        return self.out(x)


PLAN = {"mlps.*.0": Column, "mlps.*.2": Row, "out": partial(Column, gather=True)}


@ranks(1, 2, 3, 4, 5)
def test_any_model_by_a_plan(t):
    x, y = np.random.default_rng(1).normal(size=(4, 6)), np.arange(4)
    alone, model = Net().double(), parallelize(Net().double(), Grid(t, tp=t.size), PLAN)
    F.cross_entropy(alone(x), y).backward()
    F.cross_entropy(model(x), y).backward()
    for (name, p), q in zip(alone.named_parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(whole(q, q.grad), p.grad, rtol=1e-12, atol=1e-15, err_msg=name)


@ranks(1, 2, 3)
def test_the_whole_state_is_that_of_the_undivided_model(t):
    model, alone = parallelize(tiny.gpt(), Grid(t, tp=t.size)), tiny.gpt().state_dict()
    state = whole_state_dict(model)
    assert list(state) == list(alone)
    assert all((state[name] == alone[name]).all() for name in alone)
    assert model.head.weight is model.token.weight  # the tie is kept


@ranks(1, 2, 3)
def test_text_is_generated_alike_on_all_ranks(t):
    ids = np.zeros((2, 3), int)
    wanted = tiny.gpt().generate(ids, 5, generator=random.Generator(4))
    model = parallelize(tiny.gpt(), Grid(t, tp=t.size))
    assert (model.generate(ids, 5, generator=random.Generator(4)) == wanted).all()


@pytest.mark.parametrize("sequence", [False, True])
@ranks(4)
def test_two_by_two_with_data_parallelism_and_clipping_is_one_rank(t, sequence):
    """Batch over dp, weights over tp: gradients averaged over dp, the norm summed over tp."""
    grid = Grid(ledger := Ledger(t), dp=2, tp=2)
    model = parallelize(tiny.gpt(), grid, sequence=sequence, split_logits=True)
    wrapped = DataParallel(model, grid.dp)
    alone = tiny.gpt()
    optimizers = [optim.AdamW(m.parameters(), lr=1e-2) for m in (model, alone)]
    mine = slice(2 * grid.coordinate["dp"], 2 * grid.coordinate["dp"] + 2)
    for step in range(2):
        ids, target = tiny.batch(step, n=4)
        for optimizer in optimizers:
            optimizer.zero_grad()
        ledger.reset()
        tiny.loss_of(wrapped, ids[mine], target[mine], grid.tp).backward()
        sent = ledger.count(group=grid.dp.ranks).bytes_sent
        tiny.loss_of(alone, ids, target).backward()
        norms = [clip_grad_norm_(m.parameters(), 0.1) for m in (model, alone)]
        np.testing.assert_allclose(*norms, rtol=1e-12)
        assert norms[0] > 0.1
        for optimizer in optimizers:
            optimizer.step()
    assert sent == wrapped.bytes_sent()  # of this rank's slices alone
    wrapped.close()
    for name, want in alone.state_dict().items():
        np.testing.assert_allclose(whole_state_dict(model)[name], want, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
@ranks(4)
def test_zero_over_the_data_parallel_axis_is_one_rank(t, stage):
    """Slices over tp, their optimizer state over dp; the norm over both, each weight once."""
    grid = Grid(t, dp=2, tp=2)
    divided = parallelize(tiny.gpt(), grid, split_logits=True)
    model = stage(divided, grid.dp)
    alone = tiny.gpt()
    optimizer = optim.AdamW(model.shards(), lr=1e-2)
    wanted = optim.AdamW(alone.parameters(), lr=1e-2)
    mine = slice(2 * grid.coordinate["dp"], 2 * grid.coordinate["dp"] + 2)
    for step in range(2):
        ids, target = tiny.batch(step, n=4)
        for each in optimizer, wanted:
            each.zero_grad()
        tiny.loss_of(model, ids[mine], target[mine], grid.tp).backward()
        tiny.loss_of(alone, ids, target).backward()
        norm = clip_grad_norm_(alone.parameters(), 0.1)
        np.testing.assert_allclose(model.grad_norm(), norm, rtol=1e-12)
        np.testing.assert_allclose(clip_grad_norm_(model.shards(), 0.1), norm, rtol=1e-12)
        for each in optimizer, wanted:
            each.step()
        model.gather()
    with model.gathered():
        for name, want in whole_state_dict(divided).items():
            np.testing.assert_allclose(want, alone.state_dict()[name], rtol=1e-10, atol=1e-13)
    groups = over_ranks.groups_of(model.shards())
    assert over_ranks.on_any_rank(groups, t.rank == 3)
    assert not over_ranks.on_any_rank(groups, False)
    model.close()


@ranks(2, 3, 4)
def test_a_parameter_on_all_ranks_counts_once_in_the_norm(t):
    model = parallelize(tiny.gpt(), Grid(t, tp=t.size))
    for p in model.parameters():
        p.grad = np.ones(p.shape)
    n_weights = sum(p.numel() for p in tiny.gpt().parameters())
    assert clip_grad_norm_(model.parameters(), 1e9) == pytest.approx(n_weights**0.5, rel=1e-14)
    flat = [p.copies for p in model.parameters()]
    assert set(flat) == {1, t.size}
    for p in model.parameters():  # the negative control
        p.declare(copies=1)
    assert clip_grad_norm_(model.parameters(), 1e9) > n_weights**0.5 + 0.1


@pytest.mark.parametrize("level", ["O1", "O2"])
@ranks(2, 4)
def test_all_ranks_skip_a_step_that_overflows_on_one(t, level):
    grid = Grid(t, tp=2, dp=t.size // 2)
    model = tiny.gpt().float()
    if level == "O2":
        amp.prepare(model, "O2")
    model = parallelize(model, grid)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    if level == "O2":
        optim.use_master_weights(optimizer)
    scaler = amp.GradScaler(init_scale=2.0)
    for step, bad in enumerate([False, True, False]):
        for p in model.parameters():
            p.grad = np.full(p.shape, 2.0, p.dtype)  # scaled: 1 each
        if bad and t.rank == 1:
            model.blocks[0].feed_forward.up.weight.grad[0, 0] = np.inf
        before = model.token.weight.array.copy()
        scaler.step(optimizer, max_norm=1.0)
        scaler.update()
        if grid.coordinate["dp"] == 0:
            assert (model.token.weight.array == before).all() == bad
            assert scaler.get_scale() == (2.0 if step == 0 else 1.0)
        if step == 0:  # the norm of all: each weight moves by lr / sqrt(their number)
            n = sum(p.numel() for p in tiny.gpt().parameters())
            moved = (before.astype(float) - model.token.weight.array).max()
            assert moved == pytest.approx(0.1 / n**0.5, rel=1e-3 if level == "O1" else 0.2)
            scaler = amp.GradScaler(init_scale=2.0)


def mixed(level, t=None, **options):
    """The losses of three steps in mixed precision, of one rank or divided over t."""
    model = tiny.gpt().float()
    if level == "O2":
        amp.prepare(model, "O2")
    elif level == "bf16":
        model.to(minidl.bfloat16)
    if t is not None:
        parallelize(model, Grid(t, tp=t.size), **options)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    if level != "O1":
        optim.use_master_weights(optimizer)
    scaler, losses = amp.GradScaler(init_scale=256.0), []
    for _ in range(3):
        optimizer.zero_grad()
        with amp.autocast(enabled=level == "O1"):
            loss = tiny.loss_of(model, *tiny.batch(), t if options else None)
        scaler.scale(loss).backward()
        scaler.step(optimizer, max_norm=1.0)
        scaler.update()
        losses.append(float(loss.item()))
    return losses


@pytest.mark.parametrize("level, tol", [("O1", 5e-3), ("O2", 5e-3), ("bf16", 2e-2)])
def test_mixed_precision_trains_alike(level, tol):
    """To the rounding of 2-byte activations, 2^-11 and 2^-8 each; the same bits on all ranks."""
    if level == "bf16":
        pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16")
    wanted = mixed(level)
    for options in {}, {"split_logits": True, "sequence": True}, {"split_logits": True,
                                                                  "overlap": 2}:
        first, second = simulate(2, lambda t, o=options: mixed(level, t, **o))
        assert first == second
        np.testing.assert_allclose(first, wanted, rtol=tol)


@pytest.mark.parametrize("plan, message", [
    ({"mlps.*.0": Column, "mpls.*.2": Row}, "'mpls.*.2' must match modules, .* got no match among"),
    ({"mlps.*": Column, "*.0": Row}, "got two rules for mlps.0"),
    (None, "without a plan wants an nn.GPT; got Net"),
])
def test_a_plan_that_does_not_fit_is_refused(plan, message):
    with pytest.raises(RankFailed, match=message):
        simulate(2, lambda t: parallelize(Net(), Grid(t, tp=2), plan))
    with pytest.raises(RankFailed, match="no other options; got sequence"):
        simulate(2, lambda t: parallelize(Net(), Grid(t, tp=2), PLAN, sequence=True))


@pytest.mark.parametrize("make, message", [
    (lambda ps: optim.LAMB(ps, lr=0.1), "LARS and LAMB want the norm of each whole tensor"),
    (lambda ps: optim.Muon([p for p in ps if p.ndim == 2]), "Muon wants whole matrices"),
])
def test_optimizers_of_whole_tensors_are_refused(make, message):
    def body(t):
        model = parallelize(tiny.gpt(), Grid(t, tp=2))
        optimizer = make(list(model.parameters()))
        tiny.loss_of(model, *tiny.batch()).backward()
        optimizer.step()

    with pytest.raises(RankFailed, match=message):
        simulate(2, body)


def test_the_plan_of_a_gpt_can_be_read_and_changed():
    plan = gpt_plan(sequence=True)
    assert {"token", "head", "position", "blocks.*.attention"} < set(plan)
    assert "position" not in gpt_plan()

    def body(t):  # the head left whole: its logits are everybody's
        plan = {k: rule for k, rule in gpt_plan().items() if k not in ("head", "token")}
        model = parallelize(tiny.gpt(), Grid(t, tp=2), plan)
        tiny.loss_of(model, *tiny.batch()).backward()
        return whole(model.token.weight, model.token.weight.grad)

    want = tiny.alone()[1]["token.weight"]
    for got in simulate(2, body):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-14)
