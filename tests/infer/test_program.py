"""A plan notices when what it takes for granted is no longer so."""

import os
import threading
import time

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer import program
from tests.infer.models import array, same


def small():
    minidl.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
    x = minidl.tensor(array(5, 4))
    graph = infer.trace(net, x)
    infer.optimise(graph)
    return net, x, infer.compile(graph)


def test_the_result_is_the_callers_own():
    net, x, plan = small()
    first = plan(x)
    kept = first.array.copy()
    plan(x * 2.0)
    np.testing.assert_array_equal(first.array, kept)
    same(plan(x.array), net(x))  # arrays as well as tensors


def changed_weight(net):
    with minidl.no_grad():
        net[0].weight.mul_(2.0)


def assigned_weight(net):
    net[0].bias.data = net[0].bias.array * 2


def training(net):
    net.train()


def statistics(net):
    net.train()
    net(minidl.tensor(array(6, 4)))
    net.eval()


@pytest.mark.parametrize("change, message", [
    (changed_weight, "0.weight has changed"), (assigned_weight, "0.bias has changed"),
    (training, "training mode"), (statistics, "1.running_mean has changed")])
def test_a_change_of_the_model_is_noticed(change, message):
    net, x, plan = small()
    change(net)
    with pytest.raises(RuntimeError, match=f"{message}.*trace and compile the model again"):
        plan(x)


@pytest.mark.parametrize("x, message", [
    (array(6, 4), "input x is float32\\[6, 4\\]; this plan wants a NumPy array float32\\[5, 4\\]"),
    (array(5, 4).astype(np.float64), "is float64\\[5, 4\\]"), ([1.0], "is list")])
def test_other_inputs_are_refused(x, message):
    _, _, plan = small()
    with pytest.raises(TypeError, match=message):
        plan(x)
    with pytest.raises(TypeError, match="want 1 inputs, got 2"):
        plan(array(5, 4), array(5, 4))


def test_two_threads_on_one_plan_are_refused():
    x = minidl.tensor(array(3))
    inside, go = threading.Event(), threading.Event()
    graph = infer.trace(lambda x: x.cos(), x)
    plan, (node,) = infer.compile(graph), graph.nodes
    evaluate = node.evaluate

    def slow(arrays):
        inside.set()
        assert go.wait(30)
        return evaluate(arrays)

    node.evaluate = slow
    other = threading.Thread(target=plan, args=(x,))
    other.start()
    try:
        assert inside.wait(30)
        with pytest.raises(RuntimeError, match="running in another thread"):
            plan(x)
    finally:
        go.set()
        other.join()
    same(plan(x), np.cos(x.array))  # and it can run again


def test_poison_shows_bytes_that_are_used_too_late():
    """The negative control of every poisoned test: a lifetime that ends too early."""
    from dataclasses import replace

    def model(x):
        y = x.exp()
        return y.cumsum(0) + y

    x = minidl.tensor(array(4))
    plan = infer.compile(infer.trace(model, x), poison=True)
    same(plan(x), model(x))
    plan._spans = [replace(s, last=s.last - 1) for s in plan._spans]
    assert np.isnan(plan(x).array).any()


def test_the_memory_of_a_chain_is_that_of_two_layers():
    minidl.manual_seed(0)
    graph = infer.trace(nn.MLP(64, 64, 64, 64, 64).eval(), array(16, 64))
    infer.optimise(graph)
    memory = infer.compile(graph).memory
    assert memory.arena == memory.bound == 2 * 16 * 64 * 4 and memory.total == 5 * 16 * 64 * 4
    assert str(memory) == "20,480 bytes, shared 8,192, bound 8,192"


def test_a_compiled_plan_is_compiled_once():
    import time

    _, x, plan = small()
    start = time.process_time()
    again = infer.compile(plan.graph)
    assert time.process_time() - start < 0.2
    same(again(x), plan(x))


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2,
                    reason="two processors: with one nobody looks for work")
def test_between_the_launches_of_a_plan_its_threads_stay_awake():
    """They have nothing to do here, as each launch is one block, and look for work all the time."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(200))).eval()
    x = minidl.randn(32, 32)
    plan = infer.compile(infer.trace(model, x), threads=2)
    assert all(np.prod(launch.grid) == 1 for launch in plan.launches)
    before, of_others_s, until = time.process_time() - time.thread_time(), 0, time.monotonic() + 3
    while of_others_s < 0.01 and time.monotonic() < until:  # a busy machine may give them none yet
        plan(x)
        of_others_s = time.process_time() - time.thread_time() - before
    assert of_others_s >= 0.01


def test_large_inputs_and_results_are_used_where_they_lie():
    """Contiguous or not, in turns; an earlier result and the inputs stay as they are."""
    minidl.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 30), nn.ReLU(), nn.Linear(30, 2048)).eval()
    graph = infer.trace(model, array(64, 2048))
    infer.optimise(graph)
    plan = infer.compile(graph)
    direct = [plan._direct[v] for v in (*plan.graph.inputs, *plan.graph.outputs)]
    assert all(direct), "none of these is copied"
    inputs = [array(64, 2048), array(2048, 64).T, array(64, 4096)[:, ::2], array(64, 2048),
              np.frombuffer(b"-" + array(64, 2048).tobytes(), np.float32, 64 * 2048, 1)
              .reshape(64, 2048)]
    before = [np.array(x) for x in inputs]
    results = [plan(minidl.Tensor(x)) for x in inputs]
    for x, same_x, y in zip(inputs, before, results, strict=True):
        np.testing.assert_array_equal(x, same_x)
        same(y, model(minidl.Tensor(np.ascontiguousarray(same_x))))


def test_what_is_input_and_result_or_small_is_copied():
    class Both(nn.Module):
        def forward(self, x):
            return x.reshape(2048, 64), (x * 2).sum()

    x = minidl.tensor(array(64, 2048))
    plan = infer.compile(infer.trace(Both().eval(), x))
    assert not any(plan._direct[v] for v in plan.graph.outputs)
    view, total = plan(x)
    x.array[...] = 0
    assert view.array.any() and total.item() != 0


def test_an_eager_line_reads_large_inputs_in_the_arena():
    """`flip` has no kernel: its line reads what the arena has, so x is copied there."""
    def f(x):
        return x.relu() + x.flip(0).relu()

    n = program.DIRECT // 4 + 1
    x = minidl.tensor(array(n))
    graph = infer.trace(f, x)
    infer.optimise(graph)
    plan = infer.compile(graph)
    for seed in range(2):
        x = minidl.tensor(array(n, seed=seed))
        np.testing.assert_array_equal(plan(x).numpy(), f(x).numpy())
