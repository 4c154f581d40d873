"""The ledger's bytes: of the states exactly the formula, of a step what Python itself allocates."""

import tracemalloc
import weakref

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim
from minidl.comm import simulate
from minidl.memory.recompute import recompute_sequential
from minidl.mode import current
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.precision import amp


def mlp(width=64, depth=4, out=10):
    minidl.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, out))


def batch(rows, width=64, out=10):
    rng = np.random.default_rng(0)
    return (minidl.tensor(rng.standard_normal((rows, width), dtype=np.float32)),
            minidl.tensor(rng.integers(0, out, rows)))


def step(model, optimizer, x, y, scaler=None):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("level, widths", [("O0", (4, 4, 0, 8)), ("O1", (4, 4, 0, 8)),
                                           ("O2", (2, 2, 4, 8)), ("O3", (2, 2, 0, 4))])
def test_states_are_sixteen_bytes_a_parameter(level, widths):
    model = mlp()
    optimizer = optim.AdamW(model.parameters(), eps=1e-4)  # O3: fp16 knows no 1e-8
    model, optimizer, scaler = amp.initialize(model, optimizer, level)
    step(model, optimizer, *batch(8), scaler)
    n = sum(p.numel() for p in model.parameters())
    held = memory.totals(model, optimizer)
    assert [held[kind] for kind in memory.STATES] == [width * n for width in widths]
    assert held["communication"] == 0
    if level != "O3":
        assert sum(held.values()) == 16 * n
    assert f"{sum(held.values()):,}" in memory.report(model, optimizer)


def test_shared_weights_and_views_count_once_and_buffers_count():
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    model[0].bias = model[1].bias
    n = 25 + 5 + 5
    running = 4 * (5 + 5) + 8  # mean, variance, count
    assert memory.totals(model)["parameters"] == 4 * n + running
    flat = np.zeros(n, np.float32)
    for p, (a, b) in zip(model.parameters(), [(0, 25), (25, 30), (30, 35)], strict=True):
        p.grad = flat[a:b].reshape(p.shape)
    assert memory.totals(model)["gradients"] == flat.nbytes


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_buckets_are_gradients_and_scratch_is_communication(n_ranks):
    def body(t):
        model = DataParallel(mlp(), t)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):  # the first backward ends with new buckets, in order of arrival
            step(model, optimizer, *batch(8))
        held = memory.totals(model, optimizer, [model])
        n = sum(p.numel() for p in model.parameters())
        assert held["gradients"] == 4 * n
        largest = max(b.flat.nbytes for b in model.reducer.buckets)
        # the ring's scratch holds one chunk of the largest array it has seen
        assert held["communication"] <= -(-largest // 4 // t.size) * 4 + 8 * (n_ranks + 8)
        model.close()

    simulate(n_ranks, body)


@pytest.mark.parametrize("fused", [True, False])
def test_the_recorded_peak_is_what_python_allocates(fused):
    model = mlp(width=128)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = batch(512, width=128)
    with minidl.use_fused(fused):
        step(model, optimizer, x, y)
        optimizer.zero_grad()
        with memory.record(model, optimizer) as ledger:
            step(model, optimizer, x, y)
        optimizer.zero_grad()
        tracemalloc.start()
        step(model, optimizer, x, y)
        traced = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    seen = ledger.peak_bytes - ledger.peak["parameters"] - ledger.peak["inputs"]
    # The ledger sees no temporaries inside expressions: at most two of the largest activation.
    assert seen <= traced + 4096
    assert traced <= seen + 2 * 512 * 128 * 4 + 100_000


def test_activations_are_the_saved_bytes_by_op_and_by_module():
    model, (x, y) = mlp(), batch(32)
    with memory.record(model) as ledger:
        loss = F.cross_entropy(model(x), y)
        saved = minidl.memory.saved_bytes(loss)
    unit = 32 * 64 * 4
    assert ledger.most("activations") == saved - x.nbytes - y.nbytes  # the caller's
    assert ledger.most("inputs") == x.nbytes + y.nbytes
    assert ledger.by_op()["Tanh"] == 4 * unit
    modules = ledger.by_module()
    assert {name: modules[name] for name in ("1", "3", "5", "7")} == dict.fromkeys("1357", unit)
    assert sum(ledger.by_op().values()) == sum(modules.values()) == ledger.peak["activations"]
    assert "Tanh" in ledger.report() and "at the peak" in ledger.report()


def test_what_runs_after_a_submodule_belongs_to_the_module_around_it():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Tanh()

        def forward(self, x):
            return self.inner(x).exp()

    model, x = Outer(), minidl.ones(4, 5, requires_grad=True)
    with memory.record(model) as ledger:
        y = model(x)
    assert ledger.by_module() == {"inner": y.nbytes, "": y.nbytes}


def test_backward_frees_activations_as_it_makes_gradients():
    model, (x, y) = mlp(), batch(32)
    with memory.record(model) as ledger:
        F.cross_entropy(model(x), y).backward()
    activations = [held["activations"] for _, held in ledger.timeline]
    gradients = [held["gradients"] for _, held in ledger.timeline]
    top = activations.index(max(activations))
    assert activations[-1] == 0 and gradients[-1] == memory.totals(model)["parameters"]
    assert activations[top:] == sorted(activations[top:], reverse=True)
    assert gradients == sorted(gradients)
    assert all(kind >= 0 for _, held in ledger.timeline for kind in held.values())


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_recompute_lowers_the_recorded_peak_to_k_plus_n_over_k(k):
    minidl.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(8)]
    model, (x, _) = nn.Sequential(*layers), batch(256)
    with memory.record(model) as ledger:
        recompute_sequential(layers, x, k).backward(np.ones(x.shape, np.float32))
    # A layer keeps one unit, its result, which is the next one's input. Held are the inputs of the
    # k segments but the first, which is the caller's; the n/k results of one segment; the result.
    assert ledger.most("activations") == (k - 1 + 8 // k + 1) * x.nbytes


def test_what_a_node_saved_is_free_when_the_next_one_runs():
    left = []

    class Keep(minidl.Function):
        def forward(self, x):
            mine = np.zeros(5)
            self.mine = weakref.ref(mine)
            self.save(mine)
            return x * 2

        def backward(self, gy):
            left.append(sum(node.mine() is not None for node in nodes))
            return gy * 2

    x = minidl.ones(3, requires_grad=True)
    y, nodes = x, []
    for _ in range(3):
        y = Keep.apply(y)
        nodes.append(y.grad_fn)
    y.backward(np.ones(3, np.float32))
    assert left == [3, 2, 1]


def test_nothing_is_recorded_outside_the_block_nor_kept_alive_by_it():
    model, (x, _) = mlp(), batch(8)
    with memory.record(model) as ledger:
        y0 = model(x)
    n = len(ledger.timeline)
    model(x)
    del y0
    assert len(ledger.timeline) == n and current().ledger is None
    with pytest.raises(ZeroDivisionError):
        with memory.record(model):
            1 / 0
    assert current().ledger is None
    assert model[0]._forward_hooks == []


def test_the_timeline_as_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    model = mlp()
    with memory.record(model) as ledger:
        step(model, optim.AdamW(model.parameters()), *batch(8))
    ledger.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes()[1:4] == b"PNG"
