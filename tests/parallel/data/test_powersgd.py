"""PowerSGD against numbers worked out by hand, its limits, and PyTorch's hook."""

import json
import subprocess
import sys

import numpy as np
import pytest

from minidl import nn, optim
from minidl.comm import simulate
from minidl.nn import functional as F
from minidl.parallel import Compressed, PowerSGD
from minidl.parallel.data.powersgd import orthonormal
from minidl.plain import naive
from tests.conftest import ranks, whole_form
from tests.parallel.data.test_data_parallel import assert_equal_on_all_ranks

SIZES = (1, 2, 3, 4, 5, 8)


class Matrix(nn.Module):
    """A model whose gradient is the matrix that it is given."""

    def __init__(self, n, m):
        super().__init__()
        self.weight = nn.Parameter(np.zeros((n, m)))

    def forward(self, g):
        return (self.weight * g).sum()


def send(model, g):
    """What the weight gets where this rank's gradient is g."""
    weight = model.module.weight
    weight.grad = None
    model(g, n_samples=1).backward()
    return weight.grad.array.copy()


def owed(model):
    bucket, = model.reducer.buckets
    return bucket.views_of("residual")[0]


@ranks(2)
def test_golden_values(t):
    g = [np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 0, 1.0]]),
         np.array([[2, 0, 1], [1, 3, 1], [0, 1, 2], [1, 1, 1.0]])]
    model = Compressed(Matrix(4, 3), t, PowerSGD(rank=1, min_compression_rate=0, side="rows"))
    q, = model.reducer.buckets[0].common["q"].values()
    q[...] = [[1], [0], [0]]
    result = send(model, g[t.rank])
    np.testing.assert_allclose(result[0], [1.5, 1.913793, 2.206897], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(result - (g[0] + g[1]) / 2), 1.585676, atol=1e-6)
    # the sign of P and of Q is the factorisation's own affair
    np.testing.assert_allclose(np.abs(q[:, 0]), [4.66369, 5.950225, 6.86152], atol=1e-5)
    if t.rank == 0:  # a share: half of rank 0's
        np.testing.assert_allclose(2 * owed(model)[0], [-1.551724, -1, -0.586207], atol=1e-6)
    model.close()


@pytest.mark.parametrize("rank", [1, 2, 4])
@ranks(*SIZES)
def test_what_was_sent_and_what_is_owed_is_the_sum_of_means(t, rank):
    model = Compressed(Matrix(12, 9), t, PowerSGD(rank, min_compression_rate=1))
    total, means = np.zeros((12, 9)), np.zeros((12, 9))
    for step in range(6):
        gs = [np.random.default_rng([r, step]).standard_normal((12, 9)) for r in range(t.size)]
        result = send(model, gs[t.rank])
        assert_equal_on_all_ranks(t, [result])
        assert np.linalg.matrix_rank(result) <= rank
        total += result
        means += sum(gs) / t.size
    model.close()
    rest = naive.all_reduce(t, owed(model).copy())
    np.testing.assert_allclose(total + rest, means, rtol=0, atol=1e-12)  # float64, some 1e3 terms
    assert np.abs(rest).max() > 0.1


@ranks(1, 2, 4)
def test_a_matrix_of_the_rank_arrives_whole_in_one_step(t):
    model = Compressed(Matrix(9, 12), t, PowerSGD(rank=3, min_compression_rate=1))
    rng = np.random.default_rng(5)
    left = rng.standard_normal((9, 3))
    gs = [left @ rng.standard_normal((3, 12)) for _ in range(t.size)]  # one span of columns for all
    np.testing.assert_allclose(send(model, gs[t.rank]), sum(gs) / t.size, rtol=0, atol=1e-12)
    assert np.abs(owed(model)).max() < 1e-12
    model.close()


@ranks(2, 3)
def test_a_step_without_gradient_is_no_nan_and_pays_the_debt(t):
    model = Compressed(Matrix(12, 9), t, PowerSGD(rank=1, min_compression_rate=1))
    zeros = np.zeros((12, 9))
    assert (send(model, zeros) == 0).all()
    g = np.random.default_rng(t.rank).standard_normal((12, 9))
    send(model, g)
    before = np.linalg.norm(naive.all_reduce(t, owed(model).copy()))
    for _ in range(12):
        assert np.isfinite(send(model, zeros)).all()
    assert np.linalg.norm(naive.all_reduce(t, owed(model).copy())) < 0.5 * before
    model.close()


def residuals(n_steps, shape):
    """(the norm of what is a rank's own, of PyTorch's form, how much their updates differ) on rank
    0 of 2 after so many steps with unequal constant gradients; P is on the side of the rows."""
    rng = np.random.default_rng(1)
    g = rng.standard_normal((2, *shape))
    q = orthonormal(np, rng.standard_normal((shape[1], 1)))
    own, theirs = np.zeros_like(g), np.zeros_like(g)
    updates = []
    for _ in range(n_steps):
        results = []
        for e in (own, theirs):
            a = g + e
            p = orthonormal(np, sum(a) @ q)
            q_own = [x.T @ p for x in a]
            mean = p @ (sum(q_own) / 2).T
            e[...] = [x - p @ y.T for x, y in zip(a, q_own)] if e is own else a - mean
            results.append((mean, q_own))
        updates.append(np.abs(results[0][0] - results[1][0]).max())
        q = orthonormal(np, sum(results[0][1]))
    return np.linalg.norm(own[0]), np.linalg.norm(theirs[0]), max(updates)


def test_the_residual_stays_bounded_where_pytorchs_form_grows_with_the_steps():
    for shape in ((6, 8), (8, 6)):
        ours, theirs, _ = zip(*(residuals(n, shape) for n in (200, 1000)))
        assert theirs[1] > 4 * theirs[0]
        if shape == (6, 8):  # on the shorter side
            assert max(ours) < 50 < theirs[0]
        else:  # on the longer side what is a rank's own grows, too
            assert ours[1] > 4 * ours[0]
    assert residuals(50, (6, 8))[2] < 1e-9  # and yet both send the same


@ranks(2, mpi=False)
def test_the_residual_is_the_bounded_one_whichever_side_is_shorter(t):
    for shape in ((8, 6), (6, 8)):
        model = Compressed(Matrix(*shape), t, PowerSGD(rank=1, min_compression_rate=1))
        g = np.random.default_rng(1).standard_normal((2, *shape))[t.rank]
        norms = []
        for _ in range(150):
            send(model, g)
            norms.append(np.linalg.norm(owed(model)))
        model.close()
        assert max(norms) < 1.5 * max(norms[:50]) < 60


def test_which_tensors_are_compressed():
    def thin(*shape, **options):
        return PowerSGD(**options).thin(nn.Parameter(np.zeros(shape)))

    assert thin(4, 4) is None  # (4 + 4) 2 = 4 * 4 saves exactly half: not enough
    assert thin(5, 4) == (4, 5, 1) and thin(100) is None and thin(0, 4) is None
    assert thin(4, 5) == thin(5, 4) and thin(5, 4, side="rows") == (5, 4, 1)
    assert thin(8, 3, 5, 5) == (8, 75, 1)  # a convolution: output channels by all the rest
    assert thin(100, 3, rank=8, min_compression_rate=0) == (3, 100, 3)
    with pytest.raises(ValueError, match="PowerSGD wants rank >= 1"):
        PowerSGD(rank=0)


@ranks(2, 3, mpi=False)
def test_a_new_q_in_every_step_is_the_same_on_all_ranks_and_another(t):
    model = Compressed(Matrix(12, 9), t, PowerSGD(warm_start=False, min_compression_rate=1))
    g = np.random.default_rng(t.rank).standard_normal((12, 9))
    first = send(model, g)
    owed(model)[...] = 0
    second = send(model, g)
    assert_equal_on_all_ranks(t, [first, second])
    assert np.abs(first - second).max() > 1e-3
    model.close()


PYTORCHS = """
import json, os, sys
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

given = np.load(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = torch.nn.Sequential(torch.nn.Linear(12, 16, bias=False), torch.nn.ReLU(),
                          torch.nn.Linear(16, 10, bias=False))
for i, p in enumerate(net.parameters()):
    p.data[...] = torch.from_numpy(given[f"w{i}"])
state = hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
state.p_memory_dict[0] = torch.empty(int(given["n_p"]))
state.q_memory_dict[0] = torch.from_numpy(given["q"])
model = torch.nn.parallel.DistributedDataParallel(net)
model.register_comm_hook(state, hook.powerSGD_hook)
opt, losses = torch.optim.SGD(net.parameters(), lr=0.3), []
for x, y in zip(given["x"], given["y"]):
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    opt.step()
    losses.append(loss.item())
print(json.dumps(losses), flush=True)
os._exit(0)
"""


@pytest.mark.slow
@whole_form
def test_training_is_pytorchs_hook_step_by_step(tmp_path):
    """One process each: the hook compresses there, too. Same weights, same Q, same batches.

    PyTorch's is not this one: where a model with gloo is freed, its end waits for a thread that
    waits for Python's lock, which the one that waits holds: now and then it never ended."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shapes = [(16, 12), (10, 16)]
    weights = [rng.standard_normal(s).astype("f4") / 4 for s in shapes]
    batches = [(rng.standard_normal((32, 12)).astype("f4"), rng.integers(0, 10, 32))
               for _ in range(10)]
    qs = {}

    def ours(t):
        net = nn.Sequential(nn.Linear(12, 16, bias=False), nn.ReLU(), nn.Linear(16, 10, bias=False))
        for p, w in zip(net.parameters(), weights):
            p.array[...] = w
        model = Compressed(net, t, PowerSGD(rank=2, start_step=2, side="rows"))
        bucket, = model.reducer.buckets
        qs.update({p.shape: q.copy() for p, q in bucket.common["q"].items()})
        opt, losses = optim.SGD(net.parameters(), lr=0.3), []
        for x, y in batches:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(float(loss.array))
        model.close()
        return losses

    mine, = simulate(1, ours)
    order = shapes[::-1]  # of arrival
    np.savez(tmp_path / "given.npz", w0=weights[0], w1=weights[1],
             x=np.stack([x for x, _ in batches]), y=np.stack([y for _, y in batches]),
             n_p=sum(2 * n for n, _ in order), q=np.concatenate([qs[s].ravel() for s in order]))
    done = subprocess.run([sys.executable, "-c", PYTORCHS, tmp_path / "given.npz"], timeout=100,
                          capture_output=True, text=True, check=True)
    # float32, 10 steps
    np.testing.assert_allclose(mine, json.loads(done.stdout), rtol=0, atol=1e-5)
