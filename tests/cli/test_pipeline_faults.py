"""A pipeline of three ranks in which one dies, raises or sleeps: the run ends and says why."""

import re

import pytest

from tests.cli.faults import minidl_run

SCRIPT = """\
import os, signal, sys, time
import numpy as np
import minidl
from minidl import nn
from minidl.comm import world
from minidl.nn import functional as F
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b

class Layer(nn.Linear):
    calls = 0
    def forward(self, x):
        Layer.calls += 1
        if t.rank == 1 and Layer.calls == 3:
            if sys.argv[1] == "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
            if sys.argv[1] == "raise": raise KeyError("planted")
            if sys.argv[1] == "sleep": time.sleep(1000)
        return super().forward(x)

def loss(y, target):
    return F.mse_loss(y, minidl.tensor(target))

t = world()
pipe = Pipeline(t, [Layer(6, 6) for _ in range(3)], loss, one_f_one_b(3, 4))
batch = np.ones((8, 6), np.float32)
for step in range(3):
    pipe.step(batch, batch)
"""
WAITS = (r"rank 0 waits for a message from rank 1, tag 4, in pipeline gradients, at .*script.py:27",
         r"rank 2 waits for a message from rank 1, tag 3, in pipeline activations, at ")


@pytest.mark.mpi
@pytest.mark.parametrize("how, status, said", [
    ("SIGKILL", 137, ["rank 1 .* was killed by SIGKILL in the middle of its script"]),
    ("raise", 1, ["rank 1: KeyError: 'planted'", "rank 1, in F1.2: stage 1, micro-batch 2"]),
    ("sleep", 1, [r"rank 1 computes: .* last seen at .*script.py:17", *WAITS])])
def test_a_rank_that_fails_in_a_pipeline_is_explained(tmp_path, how, status, said):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = minidl_run("mpi", "--deadline", "2", tmp_path / "script.py", how)
    assert run.returncode == status, run.stderr
    for pattern in said:
        assert re.search(pattern, run.stderr), run.stderr
