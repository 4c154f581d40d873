"""Activations that wait elsewhere: the same bits, a lower peak, every byte out once and in once."""

import time

import numpy as np
import pytest

import minidl
from minidl import memory, nn
from minidl.memory import offload as activation_offload
from minidl.memory.offload import offload
from minidl.memory.recompute import recompute_sequential
from minidl.mode import current
from minidl.nn import functional as F

N_LAYERS, ROWS, WIDTH = 8, 64, 32
UNIT = 4 * ROWS * WIDTH


def chain():
    minidl.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())
                           for _ in range(N_LAYERS)])


def data():
    return minidl.Tensor(minidl.Generator(1).normal(ROWS, WIDTH), requires_grad=True)


def backward(y):
    y.backward(minidl.Generator(2).normal(*y.shape))


def gradients(model, *leaves):
    found = [t.grad.array for t in (*leaves, *model.parameters())]
    model.zero_grad()
    for leaf in leaves:
        leaf.grad = None
    return found


def same_bits(a, b):
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("fused", [True, False])
def test_a_gpt_with_dropout_gets_the_same_bits(fused):
    minidl.manual_seed(0)
    model = nn.GPT(32, 12, n_layers=2, n_heads=2, width=16, dropout=0.2)
    ids = minidl.Generator(1).integers(0, 32, (3, 12))

    def loss():
        minidl.manual_seed(5)
        return F.cross_entropy(model(ids).reshape(-1, 32), ids.reshape(-1))

    with minidl.use_fused(fused):
        loss().backward()
        plain = gradients(model)
        with offload(min_bytes=1) as host:
            offloaded = loss()
        # outside the block: backward needs no setting
        assert current().packers == () and host.log
        offloaded.backward()
    assert same_bits(gradients(model), plain)
    del offloaded
    assert host.held_bytes == 0


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_each_array_goes_out_once_and_comes_back_in_reverse_order(ahead):
    model, x = chain(), data()
    with offload(ahead) as host:
        y = model(x)
    n = N_LAYERS  # a layer's result is saved by its tanh and by the next product: one array
    assert host.log == [("out", i, UNIT) for i in range(n)]
    assert host.held_bytes == host.peak_bytes == n * UNIT
    backward(y)
    assert host.log[n:] == [("in", i, UNIT) for i in reversed(range(n))]
    assert host.held_bytes == 0


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_device_holds_what_is_in_use_and_what_is_ahead(ahead):
    model, x = chain(), data()
    backward(model(x))
    plain = gradients(model, x)
    with memory.record(model) as ledger:
        with offload(ahead):
            y = model(x)
        backward(y)
    # the one in use and those on their way; the result, which the caller holds, is not counted
    assert ledger.most("activations") == (1 + ahead) * UNIT
    assert same_bits(gradients(model, x), plain)
    with memory.record(model) as kept:
        y = model(x)
        backward(y)
    assert kept.most("activations") == N_LAYERS * UNIT
    # with all that is on its way; here the result is an activation, there it is a temporary
    peaks = [max(held["activations"] + held["temporary"] for _, held in book.timeline)
             for book in (kept, ledger)]
    assert peaks[0] - peaks[1] >= (N_LAYERS - 2 - ahead) * UNIT


def test_only_the_inputs_of_recomputed_segments_travel():
    model, x = chain(), data()
    backward(model(x))
    plain = gradients(model, x)
    with offload() as host:
        y = recompute_sequential(model, x, 4)
    assert host.log == [("out", i, UNIT) for i in range(3)]  # the first segment's is the caller's
    backward(y)
    assert [way for way, _, _ in host.log[3:]] == ["in"] * 3
    assert same_bits(gradients(model, x), plain)


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("ahead", [0, 1])
def test_recomputed_segments_hold_one_segment_and_the_inputs_on_their_way(k, ahead):
    model, x = chain(), data()
    with memory.record(model) as ledger:
        with offload(ahead):
            y = recompute_sequential(model, x, k)
        backward(y)
    # instead of k - 1 inputs (the first is the caller's); a segment's results; the result of all
    assert ledger.most("activations") == (min(1 + ahead, k - 1) + N_LAYERS // k + 1) * UNIT


def test_what_is_small_or_held_by_others_stays():
    model, x = chain(), data()
    with offload(min_bytes=UNIT + 1) as host:
        backward(model(x))
    assert host.log == []
    w = minidl.ones(WIDTH, WIDTH, requires_grad=True)
    for batch in (x, x.detach(), x.array):
        with offload(min_bytes=1) as host:
            y = minidl.matmul(batch, w)  # saves both, which are the caller's
        assert host.log == []
        backward(y)


def test_arrays_of_another_library_are_refused():
    class Elsewhere:
        nbytes = 1 << 20

    with offload() as host, pytest.raises(TypeError, match="NumPy or CuPy, .* a Elsewhere"):
        host._store(Elsewhere())


def test_views_with_other_strides_come_back_with_them():
    class Keep(minidl.Function):
        def forward(self, x):
            y = x * 2
            self.save(y.T, y[:, ::2], y, y)
            return y

        def backward(self, gy):
            kept.append(self.saved)
            return gy

    kept, x = [], data()
    with offload(min_bytes=1) as host:
        y = Keep.apply(x)
    wanted = y.array.copy()
    assert len(host.log) == 3  # y twice is one array
    y.backward(np.ones_like(wanted))
    transposed, half, whole, again = kept[0]
    assert np.array_equal(transposed, wanted.T) and transposed.flags.f_contiguous
    assert np.array_equal(half, wanted[:, ::2])
    assert whole is again and np.array_equal(whole, wanted)


def test_backward_twice_with_retain_graph():
    model, x = chain(), data()
    with offload() as host:
        y = model(x)
    y.backward(np.ones(y.shape, np.float32), retain_graph=True)
    once = [g.copy() for g in gradients(model, x)]
    y.backward(np.ones(y.shape, np.float32))
    assert same_bits(gradients(model, x), once)
    assert sum(way == "in" for way, _, _ in host.log) == N_LAYERS


def test_nothing_is_used_before_it_has_arrived_and_few_arrays_leave_at_once(monkeypatch):
    class Late:
        """A copy that is made when somebody waits for it; until then there is nan."""

        def __init__(self, way, source, into):
            self.way, self.source, self.into = way, source, into
            into.fill(np.nan)
            under_way.append(way)
            most.append(under_way.count("out"))

        def result(self):
            np.copyto(self.into, self.source)
            under_way.remove(self.way)

    under_way, most = [], []
    monkeypatch.setattr(activation_offload.Host, "copy",
                        lambda self, way, number, source, into: Late(way, source, into))
    model, x = chain(), data()
    backward(model(x))
    plain = gradients(model, x)
    with offload(ahead=2):
        y = model(x)
    backward(y)
    assert same_bits(gradients(model, x), plain)
    assert under_way == [] and max(most) == activation_offload.IN_FLIGHT + 1


def test_a_slow_link_makes_the_computation_wait_and_changes_nothing():
    model, x = chain(), data()
    backward(model(x))
    plain = gradients(model, x)
    start = time.perf_counter()
    with offload(bytes_per_s=UNIT / 2e-3) as host:  # 2 ms an array
        y = model(x)
    backward(y)
    all_s = time.perf_counter() - start
    assert same_bits(gradients(model, x), plain)
    assert 0 < host.waited_s < all_s  # how much of the 32 ms is left depends on the machine
    assert [way for way, _, _ in host.log] == ["out"] * N_LAYERS + ["in"] * N_LAYERS
