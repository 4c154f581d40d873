"""Kernels of this run are compiled into a cache of this run: their paths never come again."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def kernel_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDL_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield
