"""A run that goes on from a snapshot is the run that never stopped, on any number of ranks."""

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate, tree
from minidl.data import DistributedSampler
from minidl.nn import functional as F
from minidl.optim import lr_scheduler
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.precision.amp import GradScaler
from minidl.snapshot import snapshot
from minidl.snapshot.regions import by_leaf
from minidl.snapshot.snapshot import SnapshotError
from tests import conftest
from tests.conftest import ranks
from tests.devices import host
from tests.on_device import place, there
from tests.optim import every

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays

STAGES = {0: DataParallel, 1: Zero1, 2: Zero2, 3: Zero3}


class Net(nn.Module):
    """Odd sizes, a tied weight, a frozen one, a buffer, dropout from the rank's own generator."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 5)])
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(5, 3)
        self.tied = self.head
        self.frozen = nn.Parameter(minidl.randn(7).array)
        self.frozen.requires_grad = False

    def forward(self, x):
        x = x * self.frozen
        for block in self.blocks:
            x = F.relu(block(x))
        return self.tied(self.drop(self.norm(x)))


class Run:
    """All that a training run has."""

    def __init__(self, t, stage, seed=0, kind="AdamW", half=False):
        minidl.manual_seed(seed)  # the same weights on every rank
        self.t = t
        net = there(Net().half() if half else Net())
        self.model = STAGES[stage](net, t)
        leaves = self.model.shards() if stage else \
            [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = every.make(kind, every.fitting(kind, leaves))
        if half:
            optim.use_master_weights(self.optimizer)
        self.scaler = GradScaler(init_scale=2.0**4, growth_interval=2)
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=9)
        self.sampler = DistributedSampler(60, t.rank, t.size, seed=seed)
        self.parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler,
                      "scheduler": self.scheduler, "sampler": self.sampler}
        self.stage = stage
        self.loader = None
        self.half = half
        minidl.manual_seed(seed + 1, stream=t.rank)  # dropout differs between ranks

    def step(self):
        if self.loader is None:
            self.loader = iter(self.sampler)
        rows = [next(self.loader) for _ in range(2)]
        self.sampler.advance(2)
        data = np.random.default_rng(5)
        x, y = data.normal(size=(60, 7)).astype("f4")[rows], data.integers(0, 3, 60)[rows]
        self.optimizer.zero_grad()
        x = place(x.astype("f2") if self.half else x)
        loss = F.cross_entropy(self.model(x).float(), place(y))
        self.scaler.scale(loss).backward()
        if self.scaler.step(self.optimizer):
            self.scheduler.step()
        self.scaler.update()
        if self.stage:
            self.model.gather()
        return loss.item()

    def weights(self):
        return {k: np.array(host(v)) for k, v in self.model.state_dict().items()}

    def states(self):
        """{(kind, name): (first, values)} of the optimizer on this rank, and its numbers."""
        found = {}
        leaves = by_leaf(self.model)
        for leaf in self.optimizer.parameters():
            state = dict(self.optimizer.state.get(leaf, {}))
            owner = self.optimizer.low.get(leaf, leaf)
            if owner is not leaf:
                state["master"] = leaf.array
            for r in leaves[owner]:
                for kind, value in state.items():
                    if hasattr(value, "dtype") and not value.ndim:  # a step that a GPU counts
                        value = value.item()
                    array = getattr(value, "ndim", 0)
                    found[kind, r.name] = (r.first, host(r.of(value)).copy()) if array else value
        return found


@contextlib.contextmanager
def common_folder(t):
    """A new folder that all ranks know; rank 0 removes it."""
    with tempfile.TemporaryDirectory() if t.rank == 0 else contextlib.nullcontext("") as name:
        path = np.frombuffer(name.ljust(200).encode(), np.uint8).copy()
        yield Path(tree.broadcast(t, path, 0).tobytes().decode().strip())
        tree.barrier(t)


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        if isinstance(a[key], tuple):
            assert a[key][0] == b[key][0]
        x, y = (v[1] if isinstance(v, tuple) else v for v in (a[key], b[key]))
        np.testing.assert_array_equal(x, y, err_msg=str(key))


@pytest.mark.parametrize("stage, kind, half", dict.fromkeys([
    (1, "AdamW", False), (2, "SGD", False), (2, "AdamW", True), (3, "AdamW", False),
    *((0, kind, half) for kind in every.FOUND for half in (False, True)),
    *((stage, kind, False) for stage in (1, 2, 3) for kind in every.FOUND
      if kind not in every.MATRICES_ONLY and conftest.EVERY)]))
@ranks(1, 2, 3)
def test_a_resumed_run_is_the_run_that_never_stopped(t, stage, kind, half):
    with common_folder(t) as folder:
        run = Run(t, stage, kind=kind, half=half)
        for _ in range(3):
            run.step()
        snapshot.save(folder, 3, **run.parts)
        losses = [run.step() for _ in range(3)]
        again = Run(t, stage, seed=9, kind=kind, half=half)  # all different, until it loads
        assert snapshot.load(folder, **again.parts) == 3
        assert [again.step() for _ in range(3)] == losses
        same(again.weights(), run.weights())
        same(again.states(), run.states())
        for a, b in ((again.scaler, run.scaler), (again.scheduler, run.scheduler),
                     (again.sampler, run.sampler)):
            assert a.state_dict() == b.state_dict()
        assert again.optimizer.param_groups[0]["lr"] == run.optimizer.param_groups[0]["lr"]
        for model in (run.model, again.model):
            model.close()


def whole_states(all_ranks, shapes):
    """{(kind, name): array or number} put together from what each rank has."""
    found = {}
    for states in all_ranks:
        for (kind, name), value in states.items():
            if isinstance(value, tuple):
                array = found.setdefault((kind, name), np.full(shapes[name], np.nan).reshape(-1))
                array[value[0]:value[0] + len(value[1])] = value[1]
            else:
                assert found.setdefault((kind, name), value) == value
    return found


@pytest.mark.parametrize("stage, n, stage_after, n_after", [
    (0, 3, 2, 2), (1, 2, 3, 5), (2, 4, 0, 1), (3, 5, 1, 3), (3, 2, 3, 8), (2, 8, 2, 3)])
def test_any_stage_on_any_number_of_ranks_loads_it(stage, n, stage_after, n_after, tmp_path):
    def write(t):
        run = Run(t, stage)
        for _ in range(2):
            run.step()
        snapshot.save(tmp_path, 2, **run.parts)
        got = run.weights(), run.states(), run.sampler.state_dict()
        run.model.close()
        return got

    def read(t):
        run = Run(t, stage_after, seed=4)
        snapshot.load(tmp_path, **run.parts)
        got = run.weights(), run.states(), run.sampler.state_dict()
        run.step()  # and it trains
        run.model.close()
        return got

    before, after = simulate(n, write), simulate(n_after, read)
    shapes = {name: array.shape for name, array in before[0][0].items()}
    for weights, _, sampler in after:
        same(weights, before[0][0])
        assert sampler == before[0][2]
    wanted = whole_states([states for _, states, _ in before], shapes)
    same(whole_states([states for _, states, _ in after], shapes), wanted)
    assert len(wanted) == 3 * 8 and not any(np.isnan(v).any() for v in wanted.values())


class Crossed(nn.Module):
    """Runs its layers against their order of definition: gradients arrive in another order than
    the one that the first buckets are cut in."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(9, 9), nn.Linear(9, 9)

    def forward(self, x, turned=False):
        return self.first(self.last(x)) if turned else self.last(self.first(x))


@ranks(3, 4)
def test_sums_round_as_before_though_the_first_backward_has_buckets_of_its_own(t):
    def step(model, seed, turned=False):
        x = minidl.tensor(np.random.default_rng([seed, t.rank]).normal(size=(3, 9)).astype("f4"))
        model.zero_grad()
        (model(x, turned) ** 2).sum().backward()
        return [np.array(p.grad) for p in model.parameters()]

    with common_folder(t) as folder:
        minidl.manual_seed(0)
        model, again = DataParallel(Crossed(), t), DataParallel(Crossed(), t)
        step(model, 1)
        snapshot.save(folder, 1, model=model)
        snapshot.load(folder, model=again)
        # Later gradients may come in another order: buckets are cut anew once in a run, and a run
        # that goes on has done so.
        for seed, turned in ((2, True), (3, True), (4, False)):
            for a, b in zip(step(model, seed, turned), step(again, seed, turned), strict=True):
                np.testing.assert_array_equal(a, b)
        for m in (model, again):
            m.close()


def test_what_backward_has_saved_is_stale_after_a_load(tmp_path):
    """Also where another write follows: a version counts up alone."""
    model, x = nn.Linear(3, 2), minidl.ones(1, 3)
    x.requires_grad = True
    snapshot.save(tmp_path, 1, model=model)
    for n_writes in (0, 1, 2):
        y = model(x).sum()
        snapshot.load(tmp_path, model=model)
        with minidl.no_grad():
            for _ in range(n_writes):
                model.weight.add_(1.0)
        with pytest.raises(RuntimeError, match="version|in place|changed"):
            y.backward()


def test_the_options_of_every_group_come_back(tmp_path):
    def make():
        model = nn.Linear(3, 2)
        return model, optim.AdamW([{"params": model.weight, "lr": 0.1},
                                   {"params": model.bias, "betas": (0.5, 0.6)}])

    model, optimizer = make()
    optimizer.param_groups[0]["lr"] = 0.1 / 3  # as a schedule of one's own would
    snapshot.save(tmp_path, 0, model=model, optimizer=optimizer)
    again, other = make()
    snapshot.load(tmp_path, model=again, optimizer=other)
    for a, b in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {**a, "params": 0} == {**b, "params": 0}
    alone = optim.AdamW(again.parameters())
    with pytest.raises(SnapshotError, match="wanted 2 parameter groups as in .* has 1"):
        snapshot.load(tmp_path, model=again, optimizer=alone)


def test_a_list_comes_back_in_place_of_what_it_held(tmp_path):
    model, losses, others = nn.Linear(3, 2), [np.float32(0.1), 2, "three"], [7] * 5
    snapshot.save(tmp_path, 1, model=model, losses=losses)
    losses.append(4)
    snapshot.load(tmp_path, model=model, losses=others)
    assert others == [float(np.float32(0.1)), 2, "three"]
    with pytest.raises(SnapshotError, match="the snapshot holds no history"):
        snapshot.load(tmp_path, model=model, history=[])


@ranks(1, 2, 3, 4)
def test_ranks_write_as_much_as_each_other(t):
    with common_folder(t) as folder:
        for stage in (0, 2):
            run = Run(t, stage)
            run.step()
            snapshot.save(folder / str(stage), 1, **run.parts)
            run.model.close()
            if t.rank == 0:
                index = json.loads((folder / str(stage) / "step-00000001.json").read_text())["body"]
                counts = [sum(end - first for key, first, end in file["holds"]
                              if not key.startswith("buffer/")) for file in index["files"]]
                n = sum(p.numel() for p in run.model.parameters())
                frozen = run.model.module.frozen.numel()
                assert sum(counts) == 3 * n - 2 * frozen  # w, m and v once; the frozen one w
                # stage 2 deals out a bucket and the frozen parameter, each to one element
                assert max(counts) - min(counts) <= (1 if stage == 0 else 3 + 1)


@ranks(1, 2, 3, 4)
def test_every_rank_gets_its_own_random_numbers_back(t):
    with common_folder(t) as folder:
        run = Run(t, 0)
        minidl.rand(10 * (t.rank + 1))
        snapshot.save(folder, 0, model=run.model)
        wanted = minidl.rand(5).array
        minidl.manual_seed(77)
        snapshot.load(folder, model=run.model)
        np.testing.assert_array_equal(minidl.rand(5).array, wanted)
        run.model.close()


def test_new_ranks_draw_other_numbers(tmp_path):
    def write(t):
        run = Run(t, 0)
        snapshot.save(tmp_path, 0, model=run.model)
        run.model.close()

    def read(t):
        run = Run(t, 0)
        snapshot.load(tmp_path, model=run.model)
        run.model.close()
        return minidl.rand(4).array.tobytes()

    simulate(2, write)
    assert len(set(simulate(5, read))) == 5


def test_a_snapshot_from_before_the_first_step_takes_the_momentum_away(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    snapshot.save(tmp_path, 0, model=model, optimizer=optimizer)
    before = model.weight.array.copy()

    def step():
        optimizer.zero_grad()
        model(np.ones((1, 3), np.float32)).sum().backward()
        optimizer.step()
        return model.weight.array.copy()

    first = step()
    step()
    snapshot.load(tmp_path, model=model, optimizer=optimizer)
    assert not optimizer.state
    np.testing.assert_array_equal(model.weight.array, before)
    np.testing.assert_array_equal(step(), first)


@pytest.mark.parametrize("make", [
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20),
    lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.2)])
def test_a_schedules_own_keys_of_a_group_come_back_whenever_the_schedule_is_made(tmp_path, make):
    def parts():
        minidl.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = parts()
    schedule = make(optimizer)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    snapshot.save(tmp_path, 3, model=model, optimizer=optimizer, schedule=schedule)
    for schedule_first in (True, False):
        model, other = parts()
        resumed = make(other) if schedule_first else None
        snapshot.load(tmp_path, model=model, optimizer=other)
        resumed = resumed or make(other)
        snapshot.load(tmp_path, model=model, optimizer=other, schedule=resumed)
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
