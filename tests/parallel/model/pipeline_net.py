"""What the tests of pipelines train, and the one rank with which they are compared."""

import functools

import numpy as np

import minidl
from minidl import nn
from minidl.nn import functional as F
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import gpipe, interleaved, one_f_one_b, rank_of_stage, zb_h1

SIZES = (1, 2, 3, 4, 5, 8)
WIDTH = 6


class Block(nn.Module):
    """A product, a norm, a weight that is used twice, one that is never used, one that is frozen,
    and an activation that keeps its result."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(np.full(WIDTH, 1.1, np.float32))
        self.never = nn.Parameter(np.ones(2, np.float32))
        self.shift = nn.Parameter(np.full(WIDTH, 0.1, np.float32), requires_grad=False)

    def forward(self, x):
        return x + F.tanh(self.linear(self.norm(x * self.scale))) * self.scale + self.shift


def chain(n_blocks=16, dtype=np.float64):
    minidl.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(n_blocks)]).to(dtype)


def data(n, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(2, n, WIDTH)).astype(dtype)


def mse(output, target):
    return F.mse_loss(output, minidl.tensor(target))


@functools.cache
def reference(n_blocks, dtype, m):
    """(a chain with its gradients, its mean loss) on one rank."""
    model = chain(n_blocks, dtype)
    return model, one_rank([model], mse, *data(2 * m, dtype), m)


def one_rank(modules, loss, x, y, m, scaler=None, backward=True):
    """The mean loss of the modules in a chain on one rank, one micro-batch after the other, and the
    gradients in their parameters; as scaled as the scaler wants."""
    total, n = None, len(x) // m
    for i in range(m):
        out = x[i * n:(i + 1) * n]
        for module in modules:
            out = module(out)
        value = loss(out, y[i * n:(i + 1) * n]) / m
        total = value.detach() if total is None else total + value.detach()
        if backward:
            (value if scaler is None else scaler.scale(value)).backward()
    return total


def schedules(p, m, n_blocks=16):
    """Of so many ranks, every schedule that there is for a chain of so many blocks."""
    yield from (gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m))
    if m % p == 0 or m < 2 * p:
        yield from (interleaved(p, m, v) for v in (2, 3) if p * v <= n_blocks)


def pipeline(t, model, schedule, loss=mse, **options):
    return Pipeline(t, cut(model, len(rank_of_stage(schedule))), loss, schedule, **options)


def assert_gradients(pipe, want, equal=np.testing.assert_array_equal):
    """The gradients of this rank's stages are those of the whole model `want`, None where it has
    none."""
    n = 0
    for stage in pipe.stages.values():
        for name, p in stage.named_parameters():
            grad = want.get_parameter(name).grad
            if grad is None:
                assert p.grad is None, name
            else:
                equal(p.grad.array, grad.array, err_msg=name)
                n += 1
    assert n
