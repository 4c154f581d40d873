"""Data parallelism and ZeRO on device arrays between processes: threads of their own, and streams.

On the stand-in for CuPy a wait that is missing between two threads' streams is a Race."""

import pytest

from tests.mpi.launch import mpiexec

SCRIPT = """
import numpy as np
import minidl
from minidl import comm, nn, optim
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from tests.devices import host, put

t = comm.world()


def train(stage, device):
    minidl.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]).to(device)
    small = {} if stage is Zero3 else {"bucket_bytes": 300, "first_bucket_bytes": 300}
    model = stage(model, t, **small)
    zero = stage is not DataParallel
    optimizer = optim.AdamW(model.shards() if zero else model.parameters(), lr=0.1)
    data = np.random.default_rng(t.rank).normal(size=(2, 3, 16)).astype("f4")
    x, y = (minidl.Tensor(put(a, device)) for a in data)
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if zero:
            model.gather()
    state = [host(array).copy() for array in model.state_dict().values()]
    print(stage.__name__, model.way)
    model.close()
    return state


for stage in (DataParallel, Zero1, Zero2, Zero3):
    for ours, theirs in zip(train(stage, "cuda"), train(stage, "cpu"), strict=True):
        # a GPU's products may add up in another order
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
"""


@pytest.mark.gpu
@pytest.mark.mpi
@pytest.mark.slow
def test_two_ranks_train_on_the_device_what_they_train_on_the_host(tmp_path):
    script = tmp_path / "train_on_device.py"
    script.write_text(SCRIPT)
    done = mpiexec(2, "-m", "minidl.cli.rank", script, timeout=100, check=True)
    said = [line for line in done.stdout.splitlines() if "host memory" not in line]
    assert len(said) == 8 and all("No NCCL: " in line or " NCCL: " in line for line in said), said
