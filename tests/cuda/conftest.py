"""The runner's tests share one cache of compiled kernels, kept between runs in .pytest_cache."""

import os

import pytest

from minidl.cuda import KernelError, compiler, cpu


@pytest.fixture(autouse=True, scope="session")
def kernel_cache(request):
    before = os.environ.get("MINIDL_CACHE")
    os.environ["MINIDL_CACHE"] = str(request.config.cache.mkdir("minidl"))
    yield
    if before is None:
        del os.environ["MINIDL_CACHE"]
    else:
        os.environ["MINIDL_CACHE"] = before


@pytest.fixture(autouse=True)
def needs_compiler(kernel_cache):
    try:
        compiler.find_compiler()
    except KernelError as error:
        pytest.skip(str(error))


@pytest.fixture
def one_thread():
    before = cpu.set_threads(1)
    yield
    cpu.set_threads(before)
