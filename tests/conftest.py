"""What all tests share."""

import inspect
import os
from pathlib import Path

import pytest

# Kernels that tests compile are kept between runs, apart from the user's own; subprocesses inherit.
os.environ["MINIDL_CACHE"] = str(Path(__file__).parents[1] / "build" / "kernels")


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
        test.__signature__ = inspect.Signature(
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters] + [n_ranks]
        )
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body, test.sizes = body, sizes if mpi else ()
        return pytest.mark.parametrize("n_ranks", sizes)(test)

    return decorate


def pytest_runtest_setup(item):
    """A test marked `gpu` skips where there is no GPU, and says why."""
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


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
