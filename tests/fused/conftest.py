"""Fused kernels need a compiler."""

import pytest


@pytest.fixture(autouse=True)
def _compiler(needs_compiler):
    pass
