"""Activations that leave a GPU: streams wait for each other, and nobody's memory is lent too early.

Without a GPU: the stand-in of strict_cupy/, whose copies come down as late as somebody waits for
them, and which raises Race where two streams touch the same memory in no order, the pool's memory
that is lent again among it."""

from contextlib import nullcontext

import numpy as np
import pytest

import minidl
from minidl import memory, nn
from minidl.cuda.host_memory import CopyStream, copy_stream, pinned
from minidl.memory.offload import offload
from tests.devices import host as on_host
from tests.memory.test_offload import chain, gradients, same_bits

N_LAYERS, SHAPE = 8, (16, 32)
UNIT = 4 * 16 * 32


class Square(minidl.Function):
    """x * x; saves x."""

    def forward(self, x):
        self.save(x)
        return x * x

    def backward(self, gy):
        x, = self.saved
        gx = x * 2
        gx *= gy
        return gx


def leaf(place):
    x = minidl.Tensor(np.zeros(SHAPE, "f4"), requires_grad=True)
    x.data = place(np.random.default_rng(0).uniform(0.9, 1.1, SHAPE).astype("f4"))
    return x


def squares(x):
    y = x
    for _ in range(N_LAYERS):
        y = Square.apply(y)
    return y


def gradient(place, ahead=None, steps=1):
    """x's after so many steps, on the host; None: nothing travels."""
    x = leaf(place)
    for _ in range(steps):
        with offload(ahead) if ahead is not None else nullcontext() as host:
            y = squares(x)
        y.backward(place(np.full(SHAPE, 0.5, "f4")))
        if host:
            assert host.log == [("out", i, UNIT) for i in range(N_LAYERS - 1)] + [
                ("in", i, UNIT) for i in reversed(range(N_LAYERS - 1))]
    return on_host(x.grad)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_have_the_bits_of_arrays_that_stay(ahead, steps, strict_cupy):
    plain = gradient(np.array, steps=steps)
    assert same_bits([gradient(strict_cupy.asarray, steps=steps)], [plain])
    assert same_bits([gradient(strict_cupy.asarray, ahead, steps)], [plain])


def test_the_host_waits_for_no_copy(strict_cupy):
    x, gy = leaf(strict_cupy.asarray), strict_cupy.asarray(np.ones(SHAPE, "f4"))
    with strict_cupy.stand_in.counting() as count, offload() as host:
        squares(x).backward(gy)
    assert len(host.log) == 2 * (N_LAYERS - 1) and not count.waits and not count.uploads


def test_graphs_that_are_dropped_leave_no_copy_into_memory_of_others(strict_cupy):
    """The stream holds pinned memory until its copy is over, and nobody waits for that."""
    x = leaf(strict_cupy.asarray)
    copies = copy_stream(x.array)
    with strict_cupy.stand_in.counting() as count:
        with offload() as host:
            y = squares(x)
        del y
        assert host.held_bytes == 0
        del host
    assert copies.under_way and not count.waits
    others = [pinned(strict_cupy, UNIT // 4, "f4") for _ in range(N_LAYERS)]
    for other in others:
        other[...] = 5
    copies.stream.synchronize()
    assert all((other == 5).all() for other in others)
    copies.copy(x.array, others[0])
    assert len(copies.under_way) == 1


def test_a_stream_that_goes_waits_for_its_copies(strict_cupy):
    """Else their pinned memory would be lent to others while the copy still comes."""
    x = leaf(strict_cupy.asarray)
    copies = CopyStream(x.array)
    stream = copies.stream
    copies.copy(x.array, pinned(strict_cupy, x.array.size, "f4").reshape(x.array.shape))
    del copies
    other = pinned(strict_cupy, x.array.size, "f4")
    other[...] = 5
    stream.synchronize()
    assert (other == 5).all()


def test_pinned_memory_is_lent_to_others_when_its_copies_are_over(strict_cupy):
    x = leaf(strict_cupy.asarray)
    with offload() as host:
        y = squares(x)
    y.array.get()  # the copies out are over, but for those that nobody waits for yet
    y.backward(strict_cupy.asarray(np.full(SHAPE, 0.5, "f4")))
    assert host.held_bytes == 0
    others = [pinned(strict_cupy, UNIT // 4, "f4") for _ in range(N_LAYERS)]
    for other in others:
        other[...] = 5
    assert same_bits([x.grad.array.get()], [gradient(np.array)])
    assert all((other == 5).all() for other in others)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_ledger_counts_on_a_gpu_what_it_counts_on_the_cpu(ahead, strict_cupy):
    most = []
    for place in (np.array, strict_cupy.asarray):
        with memory.record() as ledger:
            gradient(place, ahead)
        most.append(ledger.most("activations"))
    assert most == [(1 + ahead) * UNIT] * 2


def test_views_come_back_as_they_lay(strict_cupy):
    class Keep(minidl.Function):
        def forward(self, x):
            y = x.copy()
            self.save(y.transpose((1, 0)), y[:, ::2], y, y)
            return y

        def backward(self, gy):
            kept.append(self.saved)
            return gy

    kept, x = [], leaf(strict_cupy.asarray)
    with offload(min_bytes=1) as host:
        y = Keep.apply(x)
    assert len(host.log) == 3  # y twice is one array
    wanted = y.array.get()
    y.backward(strict_cupy.asarray(np.ones(SHAPE, "f4")))
    transposed, half, whole, again = kept[0]
    assert np.array_equal(transposed.get(), wanted.T) and transposed.flags.f_contiguous
    assert np.array_equal(half.get(), wanted[:, ::2])
    assert whole is again and np.array_equal(whole.get(), wanted)


def test_a_modelled_link_is_none_of_a_gpus(strict_cupy):
    x = leaf(strict_cupy.asarray)
    with offload(bytes_per_s=1e9), pytest.raises(ValueError, match="on cuda:0. Leave bytes_per_s"):
        squares(x)


@pytest.mark.gpu
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_real_gpu_gets_the_same_bits(ahead):
    minidl.manual_seed(0)
    attention = nn.Sequential(*[nn.TransformerBlock(64, 4) for _ in range(2)])
    for model, shape in ((chain(), (64, 32)), (attention, (4, 16, 64))):
        model = model.to("cuda")
        x = minidl.Tensor(minidl.Generator(1).normal(*shape)).to("cuda").requires_grad_()
        found = []
        for how in (None, ahead, ahead):  # the second time in memory that has been used
            with offload(how, min_bytes=1) if how is not None else nullcontext():
                y = model(x)
            y.backward(minidl.Tensor(minidl.Generator(2).normal(*shape)).to("cuda"))
            found.append([g.get() for g in gradients(model, x)])
        # cuBLAS gives the same bits each time where one stream computes
        assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])


@pytest.mark.gpu
@pytest.mark.parametrize("ahead", [None, 0, 1, 3])
def test_the_ledgers_peak_is_that_of_cupys_pool(ahead):
    import cupy

    pool = cupy.get_default_memory_pool()

    class Peak(cupy.cuda.MemoryHook):
        name, n_bytes = "peak", 0

        def malloc_postprocess(self, **_):
            self.n_bytes = max(self.n_bytes, pool.used_bytes())

    n, rows, width = 8, 1024, 128  # in multiples of the 512 bytes to which the pool rounds up
    unit = 4 * rows * width
    minidl.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh())
                            for _ in range(n)]).to("cuda")
    x = minidl.Tensor(minidl.Generator(1).normal(rows, width)).to("cuda")

    gy = minidl.Tensor(minidl.Generator(2).normal(rows, width)).to("cuda")

    def step():
        with offload(ahead) if ahead is not None else nullcontext():
            y = model(x)
        y.backward(gy)

    step()  # kernels are compiled
    model.zero_grad()
    with memory.record(model) as ledger:
        step()
    model.zero_grad()
    before = pool.used_bytes()
    with Peak() as peak:
        step()
    seen = ledger.peak_bytes - ledger.peak["parameters"] - ledger.peak["inputs"]
    # Both count what Python holds. The pool has, besides, the copy of gy that backward starts from,
    # two temporaries inside tanh's derivative, and its result before it is handed on.
    assert seen <= peak.n_bytes - before <= seen + 4 * unit
