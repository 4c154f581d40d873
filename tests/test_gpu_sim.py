"""Tests for a GPU pass on the stand-in for CuPy (strict_cupy/), in a process of its own, because
`import cupy` must find the stand-in there and nothing here.

Here the quick part, one dtype of each op's row and what runs on one rank; `make test-gpu-sim` runs
all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
QUICK = [f"tests/{name}" for name in "ops nn optim precision memory fused cuda".split()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_for_a_gpu_pass_on_the_stand_in(needs_compiler):
    path = os.pathsep.join([str(ROOT / "tests" / "strict_cupy"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", "not f8- and not f2-",
         "-p", "no:cacheprovider", *QUICK],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 300 and "SKIPPED" not in done.stdout
