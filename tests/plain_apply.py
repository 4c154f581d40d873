"""A plugin of pytest: ops use function.apply, the readable form, instead of fast_apply.apply.

    python -m pytest -p tests.plain_apply tests/test_function.py
"""

import sys
from types import ModuleType


def apply(cls, *inputs, **options):
    return sys.modules["minidl.function"].apply(cls, *inputs, **options)


assert "minidl" not in sys.modules, "load this before minidl: ops keep their apply"
sys.modules["minidl.fast_apply"] = ModuleType("minidl.fast_apply")
sys.modules["minidl.fast_apply"].apply = apply
