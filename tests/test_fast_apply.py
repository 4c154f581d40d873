"""Tests that minidl/fast_apply.py does the same as function.apply. The tests of the engine use
fast_apply.apply by default. This file runs them again with function.apply."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from minidl import fast_apply, function
from tests.conftest import EVERY

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ["test_function.py", "test_backward.py", "test_saved.py", "test_versions.py",
          "test_tensor.py", "test_mode.py", "memory/test_recompute.py", "memory/test_ledger.py"]
ENGINE += ["ops/test_every_op.py"] * EVERY


def test_the_fast_one_is_used_and_says_what_the_plain_one_says():
    assert function.Function.apply.__func__ is fast_apply.apply
    assert fast_apply.apply.__doc__ == function.apply.__doc__
    fast, plain = (inspect.signature(f) for f in (fast_apply.apply, function.apply))
    assert fast.parameters == plain.parameters


@pytest.mark.skipif(not EVERY, reason="takes seconds: make test-every")
@pytest.mark.timeout(300)
def test_the_tests_of_the_engine_pass_with_the_plain_one():
    code = ("import sys, pytest; status = pytest.main(sys.argv[1:]); "
            "from minidl.function import Function; "
            "assert Function.apply.__module__ == 'tests.plain_apply'; sys.exit(status)")
    run = subprocess.run(
        [sys.executable, "-c", code, "-q", "-x", "-p", "tests.plain_apply",
         "-p", "no:cacheprovider", *(f"tests/{file}" for file in ENGINE)],
        cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
