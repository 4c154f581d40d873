"""Methods that send less, on device arrays: the same numbers as on the CPU, step by step.

Exact where no product or sum is taken over many elements in another order, else to rounding."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import codec, simulate
from minidl.nn import functional as F
from minidl.parallel import DGC, Compressed, DiLoCo, ErrorFeedback, LocalSGD, OneBitAdam, PowerSGD
from tests.devices import put

METHODS = {
    "fp16": lambda: ErrorFeedback(codec.FP16),
    "int8": lambda: ErrorFeedback(codec.INT8),
    "powersgd": lambda: PowerSGD(rank=2),
    "dgc": lambda: DGC(momentum=0.9, sparsity=0.9, min_size=64),
    "onebit_adam": lambda: OneBitAdam(warm_up_steps=2),
}
ROUNDS = {
    "local": lambda m, t, o: LocalSGD(m, t, o, period=2),
    "diloco": lambda m, t, o: DiLoCo(m, t, o, period=2),
    "streamed": lambda m, t, o: DiLoCo(m, t, o, period=4, fragments=2, delay=1),
}


def trained(t, name, device):
    """The weights after 6 steps, on the host."""
    minidl.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 3)).to(device)
    optimizer = optim.SGD(net.parameters(), lr=0.05)
    if name in METHODS:
        model = Compressed(net, t, METHODS[name]())
    else:
        model = ROUNDS[name](net, t, optimizer)
    rng = np.random.default_rng(t.rank)
    for _ in range(6):
        x, y = (minidl.Tensor(put(rng.normal(size=(5, n)).astype("f4"), device)) for n in (12, 3))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if name in ROUNDS:
            model.step()
    assert {p.device[:4] for p in net.parameters()} == {device[:4]}
    return [p.detach().cpu().numpy() for p in net.parameters()]


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*METHODS, *ROUNDS])
def test_a_gpu_trains_what_a_cpu_trains(name):
    here, there = (simulate(2, trained, name, device) for device in ("cpu", "cuda"))
    for a, b in zip(here, there, strict=True):
        for expected, got in zip(a, b, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
