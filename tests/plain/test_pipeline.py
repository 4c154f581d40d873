"""The page and the real one: the same schedules, and the same bits of losses and gradients."""

import numpy as np
import pytest

import minidl
from minidl.parallel.model import schedule as real
from minidl.plain import pipeline
from tests.conftest import ranks
from tests.parallel.model import pipeline_net
from tests.parallel.model.pipeline_net import WIDTH, chain, data, mse

SCHEDULES = {"gpipe": (pipeline.gpipe, real.gpipe),
             "1f1b": (pipeline.one_f_one_b, real.one_f_one_b)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedules_are_the_real_ones(name):
    ours, theirs = SCHEDULES[name]
    for n in (1, 2, 3, 4, 5, 8):
        for m in (1, 2, n, n + 1, 2 * n):
            want = [[f"{do.kind}{do.micro}" for do in lane] for lane in theirs(n, m)]
            assert [ours(stage, n, m) for stage in range(n)] == want


@pytest.mark.parametrize("name", SCHEDULES)
@ranks(1, 2, 3, 4, 5, 8)
def test_losses_and_gradients_have_the_bits_of_the_real_one(t, name):
    ours, theirs = SCHEDULES[name]
    m = 5
    x, y = data(2 * m, "float64")
    pipe = pipeline_net.pipeline(t, chain(8, "float64"), theirs(t.size, m))
    loss = pipe.step(x, y)

    stage, = pipeline_net.pipeline(t, chain(8, "float64"), theirs(t.size, m)).stages.values()

    def forward(x, i):
        x = minidl.tensor(x, requires_grad=True)
        out = stage(x)
        if t.rank == t.size - 1:
            out = mse(out, minidl.tensor(y[2 * i:2 * i + 2]))

        def backward(gy):
            out.backward(minidl.tensor(gy))
            return x.grad.numpy()
        return out.detach().numpy(), backward

    micro_batches = [x[2 * i:2 * i + 2] for i in range(m)]
    losses = pipeline.step(t, ours(t.rank, t.size, m), forward, micro_batches, (2, WIDTH))
    assert loss is None and not losses or sum(y / m for y in losses) == loss.item()
    for p, q in zip(stage.parameters(), pipe.parameters(), strict=True):
        np.testing.assert_array_equal(p.grad, q.grad)
