"""A GPT's training step on a GPU, kernels and mixed precision on: the host waits for nothing but
the loss that is read, and nothing reaches the GPU but through pinned memory. Counted by the
stand-in for CuPy; on a GPU the losses alone are compared."""

import contextlib

import numpy as np
import pytest

import minidl
from minidl import backend, nn, optim
from minidl.memory.offload import offload
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.precision import amp
from tests.devices import put

pytestmark = pytest.mark.gpu
VOCAB, CONTEXT, BATCH = 65, 16, 3


class Again(nn.Module):
    """A block that keeps its input alone."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return recompute(self.block, x)


def training(device, dropout, level, clip="max_norm", how=""):
    """A function that makes one step and returns its loss, a Tensor. how: "recompute" the block,
    "offload" activations, or "accumulation", of the batch's rows, whose last loss it returns."""
    minidl.manual_seed(0)
    model = nn.GPT(VOCAB, CONTEXT, 1, 4, 32, dropout=dropout).to(device)
    if how == "recompute":
        model.blocks = nn.ModuleList(map(Again, model.blocks))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, scaler = amp.initialize(model, optimizer, level)
    ids = np.random.default_rng(0).integers(0, VOCAB, (BATCH, CONTEXT + 1))
    x, y = (minidl.Tensor(put(a.copy(), device)) for a in (ids[:, :-1], ids[:, 1:]))

    def step():
        minidl.manual_seed(7)  # the two sides share the default generator
        optimizer.zero_grad()
        n = BATCH if how == "accumulation" else 1
        for rows in [slice(i, i + BATCH // n) for i in range(0, BATCH, BATCH // n)]:
            with offload(ahead=2) if how == "offload" else contextlib.nullcontext():
                loss = F.cross_entropy(model(x[rows]).reshape(-1, VOCAB), y[rows].reshape(-1)) / n
            scaler.scale(loss).backward()
        if clip == "max_norm":
            scaler.step(optimizer, max_norm=1.0)
        else:
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(optimizer.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()
        return loss

    return step


@pytest.mark.parametrize("dropout, level, clip", [
    (0.0, "O0", "max_norm"), (0.1, "O1", "clip_grad_norm_"), (0.1, "O2", "max_norm"),
    (0.0, "O2", "clip_grad_norm_")])
def test_losses_are_the_cpus_and_nobody_waits(dropout, level, clip):
    here, there = (training(d, dropout, level, clip) for d in ("cpu", "cuda"))
    tolerance = 2e-5 if level == "O0" else 3e-2  # fp16: other orders of sums, a few roundings
    for _ in range(3):
        assert float(there()) == pytest.approx(float(here()), rel=tolerance)
    try:
        from cupy import stand_in
    except ImportError:
        return
    with stand_in.counting() as count:
        loss = there()
    assert not count.waits and not count.uploads, count
    with stand_in.counting() as count:
        loss.item()
    assert sum(count.waits.values()) == 1 and not count.uploads, count


@pytest.mark.parametrize("how", ["recompute", "offload"])
def test_nobody_waits_where_activations_are_not_kept(how):
    stand_in = pytest.importorskip("cupy.stand_in", reason="counted by the stand-in alone")
    plain, step = training("cuda", 0.1, "O2"), training("cuda", 0.1, "O2", how=how)
    for _ in range(2):
        assert float(step()) == float(plain())
    with stand_in.counting() as count:
        step()
    assert not count.waits and not count.uploads, count


def test_kernels_make_up_the_step():
    """What is no kernel of ours is a launch of CuPy's, at some 10 us each: as few as may be."""
    stand_in = pytest.importorskip("cupy.stand_in", reason="counted by the stand-in alone")
    step = training("cuda", 0.0, "O2")
    step()
    step()
    with stand_in.counting() as count:
        step()
    assert sum(count.launches.values()) > 25
    assert sum(count.ops.values()) < 120, count.ops


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_bfloat16_on_a_gpu(level):
    def losses(device):
        minidl.manual_seed(0)
        model = nn.GPT(VOCAB, CONTEXT, 1, 2, 16).to(device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer, scaler = amp.initialize(model, optimizer, level, dtype=minidl.bfloat16)
        ids = np.random.default_rng(0).integers(0, VOCAB, (BATCH, CONTEXT + 1))
        x, y = (minidl.Tensor(put(a.copy(), device)) for a in (ids[:, :-1], ids[:, 1:]))
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1))
            scaler.scale(loss).backward()
            scaler.step(optimizer, max_norm=1.0)
            scaler.update()
            yield float(loss)

    pytest.importorskip("ml_dtypes")
    np.testing.assert_allclose(list(losses("cuda")), list(losses("cpu")), rtol=2e-2)  # 8 bits


def test_generate_takes_ids_of_either_side():
    ids = np.array([[1, 2, 3]])
    texts = []
    for device in "cpu", "cuda":
        minidl.manual_seed(3)
        model = nn.GPT(VOCAB, CONTEXT, 1, 2, 16).to(device)
        for given in ids, put(ids, device), minidl.Tensor(put(ids, device)):
            generator = minidl.Generator(5)
            text = model.generate(given, 20, temperature=0.8, top_k=10, generator=generator)
            assert type(text) is type(backend.array_of(given))
            texts.append(np.asarray(text if isinstance(text, np.ndarray) else text.get()))
    for text in texts[1:]:
        np.testing.assert_array_equal(text, texts[0])
