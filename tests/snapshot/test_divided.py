"""A model that is divided over a grid goes on from its snapshot on any other grid, and on none."""

import functools
import gc
import shutil
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file

import minidl
from minidl import backend, nn, optim, snapshot
from minidl.comm import average, simulate, tree
from minidl.comm.grid import Grid
from minidl.parallel import Compressed, DataParallel, ErrorFeedback, Zero1, Zero2, Zero3
from minidl.parallel.model import schedule as schedules
from minidl.parallel.model.cut import cut
from minidl.parallel.model.experts import expert_parallel
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.tensor import whole
from minidl.precision.grad_scaler import GradScaler
from minidl.snapshot import SnapshotError, fit
from minidl.snapshot import folder as folder_of
from minidl.snapshot import regions
from tests.conftest import ranks, some
from tests.parallel.model import tiny
from tests.parallel.model.test_hybrid import MICRO, batch_of, loss_of
from tests.snapshot.test_snapshot import common_folder

CLOSE = dict(rtol=1e-11, atol=1e-14)  # sums in another order, float64, 6 steps
LAYERS = 4
# eps: the gradient of the keys' biases is 0 but for rounding, and Adam would divide it by itself
KINDS = {"AdamW": functools.partial(optim.AdamW, lr=1e-2, eps=1e-4),
         "SGD": functools.partial(optim.SGD, lr=0.05, momentum=0.9)}


class Run:
    """Training on a grid (dp, pp, tp) of all ranks of t."""

    def __init__(self, t, axes=(1, 1, 1), zero=0, kind="AdamW", tied=True, seed=3, layers=LAYERS,
                 half=False):
        dp, pp, tp = axes
        minidl.manual_seed(seed)
        self.t, self.zero, self.grid = t, zero, Grid(t, dp=dp, pp=pp, tp=tp)
        model = tiny.gpt(seed=seed, layers=layers, tied=tied)
        model = parallelize(model.half() if half else model, self.grid)
        self.model = Pipeline(self.grid.pp, cut(model, pp), loss_of,
                              schedules.one_f_one_b(pp, MICRO), dp=self.grid.dp, zero=zero)
        trained = self.model.shards() if zero else self.model.parameters()
        self.optimizer = KINDS[kind](trained)
        if half:
            optim.use_master_weights(self.optimizer)
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=9)
        self.parts = {"model": self.model, "optimizer": self.optimizer,
                      "scheduler": self.scheduler}

    def steps(self, first, end):
        """The losses of these steps."""
        losses, dp = [], self.grid.dp
        for step in range(first, end):
            self.model.zero_grad()
            mean = self.model.everywhere(self.model.step(*batch_of(step, dp.rank, dp.size)))
            self.optimizer.step()
            self.scheduler.step()
            if self.zero:
                self.model.gather()
            losses.append(float(average.mean(dp, np.array([mean]))[0]))
        return losses

    def weights(self):
        """{name: whole array} of this rank's stages."""
        return {name: whole(p).copy() for p, name in self.model.names.items()}

    def close(self):
        self.model.close()


@functools.cache
def alone(kind, tied, n_steps=6):
    """(losses, weights) of one rank that never stopped: a plain model."""
    model = tiny.gpt(layers=LAYERS, tied=tied)
    optimizer = KINDS[kind](model.parameters())
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    losses = []
    for step in range(n_steps):
        optimizer.zero_grad()
        x, y = batch_of(step)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, {name: p.array for name, p in model.named_parameters()}


def check(losses, weights, kind, tied):
    """They are those of steps 3 to 5 of one rank."""
    expected, arrays = alone(kind, tied)
    np.testing.assert_allclose(losses, expected[3:], **CLOSE)
    for name, array in weights.items():
        np.testing.assert_allclose(array, arrays[name], **CLOSE, err_msg=name)


def size(axes):
    return axes[0] * axes[1] * axes[2]


class Plain:
    """A model that is not cut into stages, over dp and perhaps over tp."""

    def __init__(self, t, axes, wrap, kind="AdamW", tied=True, seed=3):
        dp, _, tp = axes
        self.grid = Grid(t, dp=dp, tp=tp)
        model = tiny.gpt(seed=seed, layers=LAYERS, tied=tied)
        model = parallelize(model, self.grid) if tp > 1 else model
        self.model = model if wrap is None else wrap(model, self.grid.dp)
        self.shards = getattr(self.model, "shards", self.model.parameters)
        self.optimizer = KINDS[kind](self.shards())
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=9)
        self.parts = {"model": self.model, "optimizer": self.optimizer,
                      "scheduler": self.scheduler}

    def steps(self, first, end):
        losses, dp = [], self.grid.dp
        for step in range(first, end):
            self.optimizer.zero_grad()
            x, y = batch_of(step, dp.rank, dp.size)
            loss = loss_of(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            if isinstance(self.model, Zero1):
                self.model.gather()
            losses.append(float(average.mean(dp, np.array([loss.item()]))[0]))
        return losses

    def weights(self):
        if self.shards != self.model.parameters:
            return {}  # of stage 3 the parameters are freed; the losses tell
        return {name: whole(p).copy() for p, name in regions.names(self.model).items()}

    def close(self):
        if isinstance(self.model, DataParallel):
            self.model.close()


def make(t, axes, how, **options):
    """how: ZeRO's stage, of a pipeline; or what a model without stages is wrapped in."""
    return (Run if isinstance(how, int) else Plain)(t, axes, how, **options)


def write(t, folder, axes, how, **options):
    run = make(t, axes, how, **options)
    run.steps(0, 3)
    snapshot.save(folder, 3, t, **run.parts)
    run.close()


def go_on(t, folder, axes, how, kind="AdamW", tied=True):
    """Load on another grid, and train."""
    run = make(t, axes, how, kind=kind, tied=tied, seed=8)  # all different, until it loads
    assert snapshot.load(folder, t, **run.parts) == 3
    check(run.steps(3, 6), run.weights(), kind, tied)
    run.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(axes, how, kind, tied): a folder that this grid has written; once for many tests."""
    @functools.cache
    def folder(axes, how=0, kind="AdamW", tied=True):
        path = tmp_path_factory.mktemp("runs")
        simulate(size(axes), lambda t: write(t, path, axes, how, kind=kind, tied=tied))
        return path

    return folder


# (what wrote it), (what read it): axes dp, pp, tp, and ZeRO's stage or a wrapper of the whole model
PAIRS = [
    (((1, 1, 1), 0, "AdamW", True), ((1, 2, 2), 0), ((2, 1, 4), 1)),
    (((1, 2, 2), 0, "AdamW", True), ((1, 1, 1), 0), ((1, 2, 1), 0), ((1, 1, 4), 0),
     ((1, 1, 1), None), ((4, 1, 1), DataParallel)),
    (((2, 2, 2), 1, "AdamW", False), ((1, 1, 1), 0), ((4, 2, 1), 2), ((1, 4, 2), 0),
     ((2, 1, 1), Zero3), ((2, 1, 2), Zero2)),
    (((4, 2, 1), 2, "SGD", False), ((2, 2, 2), 0), ((2, 1, 4), 1), ((2, 1, 2), DataParallel)),
    (((1, 4, 2), 0, "SGD", True), ((2, 1, 1), 2), ((1, 1, 3), None)),
    (((2, 1, 1), Zero1, "AdamW", True), ((2, 2, 1), 0)),
    (((2, 1, 2), Zero3, "AdamW", False), ((1, 2, 2), 0)),
    (((1, 1, 2), None, "AdamW", False), ((2, 2, 1), 1)),
]


@pytest.mark.parametrize("before, after", some([(before, after) for before, *all_of in PAIRS
                                                for after in all_of], of=3))
def test_what_one_grid_wrote_another_goes_on_from(before, after, saved):
    _, _, kind, tied = before
    folder = saved(*before)
    simulate(size(after[0]), lambda t: go_on(t, folder, *after, kind, tied))


@pytest.mark.parametrize("before, after", [
    (((2, 1, 2), 1), ((1, 2, 2), 0)), (((1, 4, 1), 0), ((2, 2, 1), 2))])
@ranks(4)
def test_another_grid_of_as_many_ranks(t, before, after):
    with common_folder(t) as folder:
        write(t, folder, *before, tied=False)
        go_on(t, folder, *after, tied=False)


def tensors_in(folder):
    """({key: array}, state of the optimizer, of the rest) that the files of a folder hold."""
    index = folder_of.read_index(folder)
    arrays = {}
    for key, written in fit.written(index).items():
        arrays[key] = np.concatenate([
            load_file(folder / name)[inner] for _, _, (name, inner) in sorted(written)])
    return arrays, index["state"], index["groups"], index["others"]


@pytest.mark.parametrize("axes, zero", some([((3, 1, 2), 2), ((1, 2, 3), 0)]))
def test_masters_of_halves_and_the_scale_are_the_same_bits_on_every_grid(axes, zero, tmp_path):
    """Loaded by each grid and saved by it again: the same files but for who wrote what."""
    def pass_on(t, axes, zero, read, written):
        run = Run(t, axes, zero, tied=False, half=True, seed=3 if read is None else 8)
        scaler = GradScaler(init_scale=2.0**6 if read is None else 2.0)
        if read is None:
            run.model.step(*batch_of(0), scaler=scaler)
            scaler.step(run.optimizer)
        else:
            snapshot.load(read, t, **run.parts, scaler=scaler)
        snapshot.save(written, 3, t, **run.parts, scaler=scaler)
        run.model.close()

    first, second, third = (tmp_path / name for name in "abc")
    simulate(1, pass_on, (1, 1, 1), 0, None, first)
    simulate(size(axes), pass_on, axes, zero, first, second)
    simulate(2, pass_on, (1, 2, 1), 0, second, third)
    (wanted, *states), *others = map(tensors_in, (first, second, third))
    assert {key.partition("/")[0] for key in wanted} == {"param", "master", "exp_avg", "exp_avg_sq"}
    for arrays, *rest in others:
        assert rest == states and arrays.keys() == wanted.keys()
        for key, array in arrays.items():
            assert array.dtype == wanted[key].dtype
            np.testing.assert_array_equal(array, wanted[key], err_msg=key)


def test_arrays_on_a_gpu_are_read_and_written(strict_cupy, tmp_path):
    def body(t):
        grid, runs = Grid(t, pp=2, tp=2), []
        for seed in (3, 8):
            model = parallelize(tiny.gpt(seed=seed).to("cuda"), grid)
            pipe = Pipeline(grid.pp, cut(model, 2), loss_of, schedules.gpipe(2, MICRO))
            runs.append((pipe, optim.AdamW(pipe.parameters())))
        pipe, optimizer = runs[0]
        pipe.step(*(backend.to_device(x, "cuda") for x in batch_of(0)))
        optimizer.step()
        snapshot.save(tmp_path, 1, t, model=pipe, optimizer=optimizer)
        again, other = runs[1]
        snapshot.load(tmp_path, t, model=again, optimizer=other)
        for p, q in zip(pipe.parameters(), again.parameters(), strict=True):
            assert (p.array.get() == q.array.get()).all()
            for kind in ("exp_avg", "exp_avg_sq"):
                assert (optimizer.state[p][kind].get() == other.state[q][kind].get()).all()

    simulate(4, body)


@pytest.mark.parametrize("axes, zero", some([((2, 2, 2), 1), ((4, 2, 1), 0)]))
@ranks(8, mpi=False)
def test_the_same_grid_goes_on_to_the_same_bits(t, axes, zero):
    with common_folder(t) as folder:
        run = Run(t, axes, zero, tied=False)
        run.steps(0, 3)
        snapshot.save(folder, 3, t, **run.parts)
        losses = run.steps(3, 6)
        again = Run(t, axes, zero, tied=False, seed=8)
        snapshot.load(folder, t, **again.parts)
        assert again.steps(3, 6) == losses
        wanted = run.weights()
        for name, array in again.weights().items():
            np.testing.assert_array_equal(array, wanted[name], err_msg=name)
        for r in (run, again):
            r.model.close()


@pytest.mark.parametrize("axes, zero", some([((1, 2, 2), 0), ((2, 1, 2), 2), ((2, 2, 1), 1)]))
@ranks(4)
def test_the_files_hold_each_tensor_whole_and_once_and_of_equal_size(t, axes, zero):
    with common_folder(t) as folder:
        run = Run(t, axes, zero, tied=False)
        run.steps(0, 1)
        snapshot.save(folder, 1, t, **run.parts)
        holds = [file["holds"] for file in folder_of.read_index(folder)["files"]]
        keys = [key for file in holds for key, first, _ in file if not first]
        assert sum(map(len, holds)) == len(set(keys)) == 3 * len(alone("AdamW", False)[1])
        sizes = [sum(end - first for _, first, end in file) for file in holds]
        largest = max(end for file in holds for *_, end in file)
        by_stage = [[sizes[rank] for rank in group] for group in run.grid.members("dp", "tp")]
        assert all(max(group) - min(group) <= largest for group in by_stage)
        run.model.close()


@ranks(4, mpi=False)
def test_ranks_that_have_not_all_of_the_model_are_refused(t):
    run = Run(t, (1, 2, 2))
    with common_folder(t) as folder:
        with pytest.raises(ValueError, match="Pass their transport"):
            snapshot.save(folder, 1, model=run.model)
        with pytest.raises(SnapshotError, match=r"the ranks' slices of param/.* t has 2 r"):
            snapshot.save(folder / str(run.grid.tp.rank), 1, run.grid.pp, model=run.model)
        with pytest.raises(SnapshotError, match=r"no rank has the stages \[[01]\]"):
            snapshot.save(folder / str(run.grid.pp.rank), 1, run.grid.tp, model=run.model)
        assert not list(folder.glob("*.json"))


def test_no_rank_has_more_than_a_tensor_beside_its_own_part(tmp_path):
    """4 ranks in one process: each has a tensor whole and a slice of one, and a message."""
    def body(t):
        grid = Grid(t, pp=2, tp=2)
        model = nn.GPT(11, 8, 4, 4, 128, generator=minidl.random.Generator(0)).double()
        n_bytes = [p.nbytes for p in model.parameters()]
        pipe = Pipeline(grid.pp, cut(parallelize(model, grid), 2), loss_of,
                        schedules.one_f_one_b(2, MICRO))
        optimizer = optim.AdamW(pipe.parameters())
        del model
        pipe.step(*batch_of(0))
        tree.barrier(t)
        if t.rank == 0:
            tracemalloc.start()  # before the optimizer's state, which the load replaces
        tree.barrier(t)
        optimizer.step()
        peaks = []
        for act in (lambda: snapshot.save(tmp_path, 1, t, model=pipe, optimizer=optimizer),
                    lambda: snapshot.load(tmp_path, t, model=pipe, optimizer=optimizer)):
            tree.barrier(t)
            if t.rank == 0:
                gc.collect()
                tracemalloc.reset_peak()
                start = tracemalloc.get_traced_memory()[0]
            tree.barrier(t)
            act()
            tree.barrier(t)
            if t.rank == 0:
                peaks.append(tracemalloc.get_traced_memory()[1] - start)
        return peaks, max(n_bytes), 3 * sum(n_bytes)

    try:
        (saving, loading), largest, everything = simulate(4, body)[0]
    finally:
        tracemalloc.stop()
    assert 4 * 2.2 * largest < 0.3 * everything  # else this test could not tell

    assert saving < 4 * 2.2 * largest and loading < 4 * 2.2 * largest, (saving, loading, largest)


@pytest.mark.parametrize("axes", [(1, 1, 1), (1, 2, 2)])
def test_a_damaged_file_is_refused_by_all_ranks(axes, saved, tmp_path):
    shutil.copytree(saved((1, 2, 2)), tmp_path, dirs_exist_ok=True)
    path = next(tmp_path.glob("*.3-of-4.*"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def load(t):
        run = Run(t, axes, seed=8)
        before = run.weights()
        with pytest.raises(SnapshotError, match=rf"{path.name} was altered: wanted sha256 "):
            snapshot.load(tmp_path, t, **run.parts)
        for name, array in run.weights().items():
            np.testing.assert_array_equal(array, before[name])

    simulate(size(axes), load)


@pytest.mark.parametrize("other, words", [
    ({"layers": LAYERS - 1}, ["param/blocks.3.norm1.weight: wanted shape and dtype ((16,), "
                              "'float64') as in the snapshot; the model has none"]),
    ({"tied": False}, ["param/head.weight: wanted nothing as in the snapshot; the model has ((11, "
                       "16), 'float64')",
                       "head.weight is updated by the optimizer here, but by no"])])
def test_another_model_is_refused_with_all_that_differs_by_all_ranks(other, words, saved):
    folder = saved((1, 2, 2))

    def load(t):
        run = Run(t, (1, 2, 2), seed=8, **other)
        before = run.weights()
        with pytest.raises(SnapshotError) as caught:
            snapshot.load(folder, t, **run.parts)
        for name, array in run.weights().items():
            np.testing.assert_array_equal(array, before[name])
        assert not run.optimizer.state
        return str(caught.value)

    texts = simulate(4, load)
    assert len(set(texts)) == 1
    for text in words:
        assert text in texts[0], texts[0]
    assert "blocks.0" not in texts[0]


def test_ranks_that_divide_a_layer_draw_alike_on_every_grid(tmp_path):
    def draws(t, axes, seed):
        run = Run(t, axes)
        minidl.manual_seed(seed, stream=t.rank // axes[2])  # tp ranks alike
        minidl.rand(3)
        if seed:
            snapshot.load(tmp_path, t, model=run.model)
        else:
            snapshot.save(tmp_path, 1, t, model=run.model)
        return minidl.rand(4).array.tobytes()

    before = simulate(4, draws, (2, 1, 2), 0)
    assert before[0] == before[1] != before[2] == before[3]
    assert simulate(4, draws, (2, 1, 2), 9) == before
    alone = simulate(4, draws, (2, 2, 1), 9)
    assert alone[:2] == before[::2] and len(set(alone)) == 4
    assert set(simulate(4, draws, (1, 1, 4), 9)) == set(before[:1])


@pytest.mark.parametrize("n", [1, 3])
def test_experts_load_onto_another_number_of_ranks(n, tmp_path):
    def model(t, seed):
        net = nn.MoE(6, generator=minidl.random.Generator(seed), n_experts=5)
        return expert_parallel(net, t) if t.size > 1 else net

    simulate(2, lambda t: snapshot.save(tmp_path, 1, t, model=model(t, 3)))

    def read(t):
        net = model(t, 4)
        snapshot.load(tmp_path, t, model=net)
        return {name: p.array for name, p in net.named_parameters()}

    wanted = dict(nn.MoE(6, generator=minidl.random.Generator(3), n_experts=5).named_parameters())
    got = simulate(n, read)
    assert set().union(*got) == set(wanted)
    for arrays in got:
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, wanted[name].array)


@ranks(2, mpi=False)
def test_layers_of_one_name_are_refused(t):
    """Stages that are not the parts of a whole model: which weight is `weight`?"""
    pipe = Pipeline(t, [nn.Linear(3, 3), nn.Linear(3, 3)], loss_of, schedules.gpipe(2, 2))
    with common_folder(t) as folder:
        with pytest.raises(SnapshotError, match="param/weight is the name of two tensors"):
            snapshot.save(folder, 1, t, model=pipe)


@ranks(2, mpi=False)
def test_what_compression_owes_of_slices_is_refused(t):
    grid = Grid(t, tp=2)
    model = Compressed(parallelize(tiny.gpt(), grid), grid.dp, ErrorFeedback())
    with common_folder(t) as folder:
        with pytest.raises(SnapshotError, match="the residuals of a divided model cannot be saved"):
            snapshot.save(folder, 1, t, model=model)
    model.close()
