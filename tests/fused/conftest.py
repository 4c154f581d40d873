"""Fused kernels need a compiler; compiled ones are kept between runs, in pytest's cache folder."""

import os

import pytest

from minidl.cuda import KernelError, compiler


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
