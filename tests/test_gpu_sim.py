"""Tests that are marked `gpu` pass on the stand-in for CuPy (strict_cupy/). They run in their own
process, because `import cupy` must find the stand-in only in this process.

This file runs a short form: each op in one dtype, and the launches of a step in mixed precision.
`make test-gpu-sim` runs all these tests, also in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
QUICK = ["tests/ops/test_every_op.py", "tests/cuda/test_launch.py",
         "tests/precision/test_step_on_gpu.py::test_kernels_make_up_the_step"]

# The tests in QUICK compare with the CPU and do not need PyTorch. Importing PyTorch takes longer
# than these tests.
WITHOUT_TORCH = """if True:
    import sys
    import pytest
    sys.modules["torch"] = None
    sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_for_a_gpu_pass_on_the_stand_in(needs_compiler):
    path = os.pathsep.join([str(ROOT / "tests" / "strict_cupy"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "-q", "-m", "gpu", "-k", "not f8- and not f2-",
         "-p", "no:cacheprovider", "-p", "no:xdist", *QUICK],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 300 and "SKIPPED" not in done.stdout
