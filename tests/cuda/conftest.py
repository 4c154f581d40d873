"""The kernel runner needs a compiler."""

import pytest

from minidl import cuda


@pytest.fixture(autouse=True)
def _compiler(needs_compiler):
    pass


@pytest.fixture
def one_thread():
    before = cuda.set_threads(1)
    yield
    cuda.set_threads(before)
