"""What all tests share."""

import collections
import functools
import inspect
import os
import re
from pathlib import Path

import pytest

# Kernels that tests compile are kept between runs, apart from the user's own; subprocesses inherit.
os.environ["MINIDL_CACHE"] = str(Path(__file__).parents[1] / "build" / "kernels")
# A rank that waits sleeps: other ranks, and other test files, have the core. By default MPICH's and
# Open MPI's ranks look for messages all the time, and 4 ranks on 2 cores take twice the work.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


def ranks(*sizes, mpi=True):
    """Decorator: run the test body `body(t, ...)` on every rank of a group, for each group size.

    Here the ranks are simulated; tests/mpi/ runs the same body under mpiexec, where `mpi` allows
    it. Other parameters of the body come from pytest as usual (parametrize goes above this
    decorator, with values and not fixtures). Import: `from tests.conftest import ranks`.
    """

    def decorate(body):
        def test(n_ranks, **kwargs):
            from minidl.comm import simulate

            simulate(n_ranks, lambda t: body(t, **kwargs))

        parameters = list(inspect.signature(body).parameters.values())[1:]
        n_ranks = inspect.Parameter("n_ranks", inspect.Parameter.KEYWORD_ONLY)
        # device="cpu": under MPI the default, here the fixture
        test.__signature__ = inspect.Signature(
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty)
             for p in parameters] + [n_ranks]
        )
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body, test.sizes = body, sizes if mpi else ()
        return pytest.mark.parametrize("n_ranks", sizes)(test)

    return decorate


@pytest.fixture
def device(request):
    """The CPU; and in a case beside it "cuda", where CuPy finds a GPU or is strict_cupy/."""
    return getattr(request, "param", "cpu")


@pytest.fixture
def on_device(device, request, monkeypatch):
    """What tests/on_device.py places is on the device: at 1 to 4 ranks; with MINIDL_EVERY_SIZE=1 in
    the environment at every number of them, with MINIDL_EVERY_SIZE=0 at 2 alone."""
    case = getattr(request.node, "callspec", None)
    n_ranks = case.params.get("n_ranks", 2) if case else 2
    sizes = {"0": (2,), "": (1, 2, 3, 4)}.get(os.environ.get("MINIDL_EVERY_SIZE", ""))
    if device == "cuda" and sizes and n_ranks not in sizes:
        pytest.skip(f"device arrays at {sizes} ranks; at every number with MINIDL_EVERY_SIZE=1")
    monkeypatch.setattr("tests.on_device.DEVICE", device)


def pytest_generate_tests(metafunc):
    """Without a GPU there is no case for it, rather than one that skips."""
    if "device" in metafunc.fixturenames and not why_no_gpu():
        cases = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
        metafunc.parametrize("device", cases, indirect=True)


@pytest.fixture
def strict_cupy():
    """The stand-in as the module `cupy`, in this process, while the test runs."""
    from tests.devices import stand_in

    with stand_in() as cupy:
        yield cupy


def pytest_ignore_collect(collection_path, config):
    """`-m gpu` reads only files with such tests: to import all takes longer than to run these."""
    if config.getoption("markexpr") == "gpu" and collection_path.name.startswith("test_"):
        return True if not re.search(_FOR_A_GPU, collection_path.read_text()) else None


_FOR_A_GPU = r"mark\.gpu|def test\w*\([^)]*\bdevice\b"


def pytest_collection_modifyitems(config, items):
    """Without a GPU the tests marked `gpu` are left out, in one line, unless somebody asks for them
    alone: thousands that skip would hide others that do. Several processes (`make test`) take files
    with many slow tests first: none is left to one process at the end."""
    if hasattr(config, "workerinput"):  # of pytest-xdist
        is_slow = [item.path for item in items
                   if item.get_closest_marker("slow") or item.get_closest_marker("mpi")]
        n_slow = collections.Counter(is_slow)
        items.sort(key=lambda item: -n_slow[item.path])  # stable: a file's tests stay in order
    if config.getoption("markexpr") != "gpu" and why_no_gpu():
        left_out = [item for item in items if item.get_closest_marker("gpu")]
        if 1 < len(left_out) < len(items):
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def pytest_report_header():
    """Where the tests marked `gpu` are."""
    if reason := why_no_gpu():
        return f"gpu: left out ({reason}); `make test-gpu-sim` runs them on a stand-in"


def pytest_runtest_setup(item):
    """A test marked `gpu` that is asked for skips where there is no GPU, and says why."""
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


@functools.cache
def why_no_gpu():
    """None where CuPy finds a GPU, else a sentence."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'minidl[cuda12]' or 'minidl[cuda13]'"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no GPU: {error}"


@pytest.fixture
def needs_compiler():
    """Skip, saying why, where no kernel can be compiled."""
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler

    try:
        compiler.find_compiler()
    except KernelError as error:
        pytest.skip(str(error))
