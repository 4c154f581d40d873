"""minidl/cuda/cuda_graph.py: what a CUDA graph asks of a step, on the stand-in for CuPy. That
captures nothing itself. It shows: no wait, no upload, the same numbers passed each time."""

import contextlib

import numpy as np
import pytest

from minidl.cuda.cuda_graph import graphed
from tests.precision.test_step_on_gpu import training

pytestmark = pytest.mark.gpu


@pytest.fixture
def capturing(monkeypatch):
    """A list of what happens: begin, end, launch; CuPy's names where the stand-in has none."""
    cupy = pytest.importorskip("cupy.stand_in", reason="a real GPU captures") and __import__("cupy")
    log = []

    class Graph:
        def launch(self, stream=None):
            log.append("launch")

    class MemoryPool:
        malloc = None

    monkeypatch.setattr(cupy.cuda.Stream, "begin_capture", lambda s: log.append("begin"),
                        raising=False)
    monkeypatch.setattr(cupy.cuda.Stream, "end_capture", lambda s: log.append("end") or Graph(),
                        raising=False)
    monkeypatch.setattr(cupy.cuda, "MemoryPool", MemoryPool, raising=False)
    monkeypatch.setattr(cupy.cuda, "using_allocator", lambda malloc: contextlib.nullcontext(),
                        raising=False)
    return log


def test_a_step_is_captured_once_and_replayed(capturing):
    steps = []
    replay = graphed(lambda: steps.append(len(capturing)) or "the loss", warm_up=2)
    assert steps == [0, 0, 1] and capturing == ["begin", "end"]
    assert replay() == replay() == "the loss"
    assert capturing[2:] == ["launch"] * 2 and len(steps) == 3


def test_a_step_that_draws_random_numbers_is_refused(capturing):
    step = training("cuda", 0.1, "O2")
    with pytest.raises(RuntimeError, match="every replay would draw the same"):
        graphed(step, warm_up=1)


@pytest.mark.parametrize("level, how", [("O0", ""), ("O2", ""), ("O1", "recompute")])
def test_replayed_steps_train_as_usual_ones(level, how):
    import cupy

    if hasattr(cupy, "stand_in"):
        pytest.skip("a real GPU captures")
    usual = training("cuda", 0.0, level, how=how)
    wanted = [float(usual().item()) for _ in range(8)]
    replay = graphed(training("cuda", 0.0, level, how=how), warm_up=2)  # the capture runs nothing
    found = [float(replay().item()) for _ in range(6)]
    np.testing.assert_allclose(found, wanted[2:], rtol=2e-3 if level != "O0" else 1e-5)


@pytest.mark.parametrize("level, how", [("O0", ""), ("O2", ""), ("O1", "recompute"),
                                        ("O2", "accumulation")])
def test_steps_differ_in_no_number_that_the_host_passes(level, how, monkeypatch):
    """So a replay of one step is the next: what changes is in the device's memory."""
    cupy_raw = pytest.importorskip("cupy._raw", reason="recorded on the stand-in")
    stand_in = pytest.importorskip("cupy.stand_in")
    step = training("cuda", 0.0, level, how=how)
    launches, launch = [], cupy_raw.RawKernel.__call__

    def recording(self, grid, block, args, **options):
        numbers = [a.item() for a in args if not hasattr(a, "device") and a is not None]
        launches.append((self.name, grid, block, numbers))
        launch(self, grid, block, args, **options)

    step()
    monkeypatch.setattr(cupy_raw.RawKernel, "__call__", recording)
    step()
    first = launches[:]
    launches.clear()
    with stand_in.counting() as count:
        step()
    assert launches == first and len(first) > 25
    assert not count.waits and not count.uploads
