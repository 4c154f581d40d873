"""Buckets are arrays of the parameters' own library: data parallelism of a model on a GPU.

On the stand-in for CuPy, where what is not waited for is an error."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import ring, simulate
from minidl.function import Function
from minidl.parallel import DataParallel, Offload, Zero2, average_gradients

SHAPES = {"f4": [(3, 5), (7,), (1,)], "f2": [(4, 4), (2,)]}


class Given(Function):
    """A loss whose gradients are given, each computed when backward comes to it."""

    def forward(self, model, *params):
        self.gradients = model.gradients
        return self.xp.ones((), "f4")

    def backward(self, gy):
        return (None, *(make() for make in self.gradients))


class Model(nn.Module):
    """Parameters 3, 3, ... on rank 0, and other ones elsewhere; `gradients` computes theirs."""

    def __init__(self, rank, place):
        super().__init__()
        for dtype, shapes in SHAPES.items():
            for i, shape in enumerate(shapes):
                p = nn.Parameter(np.full(shape, 3 + rank, dtype))
                p.data = place(p.array)
                setattr(self, f"{dtype}_{i}", p)

    def forward(self, x):
        return Given.apply(self, *self.parameters())


def gradients(rank, step):
    rng = np.random.default_rng([rank, step])
    return [rng.normal(size=shape).astype(dtype)
            for dtype, shapes in SHAPES.items() for shape in shapes]


def one(cupy, g):
    """By which the current stream multiplies: so it is what computes the gradient."""
    return cupy.ones((), g.dtype)


def train(t, cupy, naive=False, bucket_bytes=24, **options):
    """The host's copies of weights and gradients, after each of three uneven steps."""
    model = Model(t.rank, cupy.asarray if cupy else np.array)
    parallel = None if naive else DataParallel(model, t, bucket_bytes=bucket_bytes, **options)
    seen = []
    for step in range(3):
        model.gradients = [lambda g=g: cupy.asarray(g) * one(cupy, g) if cupy else g.copy()
                           for g in gradients(t.rank, step)]
        x = np.zeros((2 + t.rank, 1), "f4")  # this rank's samples
        (model if naive else parallel)(x).backward()
        if naive:
            average_gradients(t, model.parameters(), len(x), **options)
        arrays = [p.grad.array for p in model.parameters()] + [p.array for p in model.parameters()]
        seen.append([a.get() if cupy else a.copy() for a in arrays])
        if step:
            model.zero_grad()  # once they add up
    if parallel:
        parallel.close()
    return seen


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("how", [{}, {"overlap": False}, {"naive": True}])
def test_a_model_on_a_gpu_gets_the_bits_of_one_on_the_cpu(n, how, strict_cupy):
    want = simulate(n, lambda t: train(t, None, **how))
    got = simulate(n, lambda t: train(t, strict_cupy, **how))
    for ours, theirs in zip(got, want, strict=True):
        for a, b in zip(sum(ours, []), sum(theirs, []), strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
    if not how.get("naive"):
        assert all((a == 3).all() for a in got[-1][0][len(gradients(0, 0)):])  # rank 0's weights


def test_an_all_reduce_of_ones_own_gets_device_arrays_and_never_the_header(strict_cupy):
    cupy = strict_cupy

    def mine(t, x):
        assert isinstance(x, cupy.ndarray)
        host = ring.all_reduce(t, x.get())
        x[...] = cupy.asarray(host)
        return x

    simulate(2, lambda t: train(t, cupy, all_reduce=mine))


def test_one_launch_copies_a_buckets_gradients(strict_cupy):
    with strict_cupy.stand_in.counting() as count:
        simulate(1, lambda t: train(t, strict_cupy, bucket_bytes=1 << 20))
    # the arrays of float32 and those of float16: rank 0's weights, then each step's gradients
    assert count.launches["pack_many"] == 4 * 2, count.launches


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_two_ranks_on_a_real_gpu_average_as_the_naive_way_does(dtype):
    def body(t):
        x = minidl.Tensor(np.random.default_rng(t.rank).normal(size=(4 + t.rank, 6)).astype(dtype))
        gradients = []
        for naive in (True, False):
            minidl.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3)).to(np.dtype(dtype)).to("cuda")
            parallel = model if naive else DataParallel(model, t, bucket_bytes=100)
            parallel(x.to("cuda")).float().mean().backward()
            if naive:
                average_gradients(t, model.parameters(), 4 + t.rank)
            else:
                parallel.close()
            gradients.append([p.grad.array.get() for p in model.parameters()])
        for a, b in zip(*gradients, strict=True):
            # the same sums of two terms; a GPU may multiply matrices in another order each time
            np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "f4" else 2e-3, atol=1e-4)

    simulate(2, body)


def test_offload_wants_all_parameters_in_one_memory(strict_cupy):
    cupy = strict_cupy
    params = [nn.Parameter(np.ones(3, "f4")), nn.Parameter(np.ones(3, "f4"))]
    params[1].data = cupy.asarray(params[1].array)
    with pytest.raises(TypeError, match="Offload got arrays on two devices, cpu and cuda"):
        Offload(minidl.optim.SGD(params, lr=0.1))


def test_arrays_that_a_gpu_was_reading_are_let_go_of_after_the_step(strict_cupy):
    def body(t):
        minidl.manual_seed(0)
        model = Zero2(nn.Linear(3, 2).cuda(), t)
        held = []
        model.reducer.on_end = lambda: held.append(len(model.reducer.held))
        reduce, most = model.reducer.reduce, []

        def counted(*args):
            reduce(*args)
            most.append(len(model.reducer.held))

        model.reducer.reduce = counted
        model(minidl.tensor(np.ones((2, 3), "f4")).cuda()).sum().backward()
        model.close()
        return max(most), held

    assert simulate(2, body) == [(1, [0])] * 2
