"""The kernel runner needs a compiler."""

import pytest

from minidl.cuda.host import cpu


@pytest.fixture(autouse=True)
def _compiler(needs_compiler):
    pass


@pytest.fixture
def one_thread():
    before = cpu.set_threads(1)
    yield
    cpu.set_threads(before)
