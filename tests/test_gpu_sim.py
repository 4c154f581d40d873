"""Tests for a GPU pass on the stand-in for CuPy (strict_cupy/), in a process of its own, because
`import cupy` must find the stand-in there and nothing here.

Here a short form: each op's row in one dtype, launches, checked indices, and what a step in mixed
precision is made of. `make test-gpu-sim` runs all of them, and CI runs that too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
QUICK = ["tests/cuda", *(f"tests/{name}.py" for name in (
    "ops/test_every_op", "cuda/test_launch", "cuda/test_philox", "memory/test_recompute",
    "optim/test_master", "precision/test_amp", "precision/test_loss_scale"))]
QUICK.append("tests/precision/test_step_on_gpu.py::test_kernels_make_up_the_step")

# These compare with the CPU. To import PyTorch, for other tests of the same files, takes longer.
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
