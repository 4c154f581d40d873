"""A profile sees what runs, changes nothing, and when it has ended nothing is left of it."""

import contextlib
import importlib

import numpy as np
import pytest

import minidl
from minidl import comm, nn, optim
from minidl.comm import ring, tree
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.data.loader import DataLoader
from minidl.function import Function
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.profile import instrument
from minidl.timeline import recording


def model_and_step(seed=0):
    minidl.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def batch(n=6):
    rng = np.random.default_rng(0)
    return minidl.tensor(rng.normal(size=(n, 8)).astype("f4")), minidl.tensor(
        rng.integers(0, 4, n))


def spans(p, kind, rank=0, lane="main"):
    return [s for s in p.ranks[rank].lanes[lane] if s[0] == kind]


def wrapped():
    """Everything that a profile wraps, as it is now."""
    found = {(cls, phase): vars(cls).get(phase) for cls in instrument._all(Function)
             for phase in ("forward", "backward")}
    found[nn.Module, "__call__"] = nn.Module.__call__
    found[optim.SGD, "step"] = optim.SGD.step
    found[Function, "__init_subclass__"] = vars(Function).get("__init_subclass__")
    return found


def test_weights_are_the_same_bits_and_nothing_stays_wrapped():
    before, ends = wrapped(), []
    for profiled in (False, True):
        model, step = model_and_step()
        if profiled:
            with minidl.profile() as p:
                losses = [step(*batch()) for _ in range(4)]
        else:
            losses = [step(*batch()) for _ in range(4)]
        ends.append((losses, [w.array.tobytes() for w in model.parameters()]))
    assert ends[0] == ends[1]
    assert wrapped() == before and recording.get() is None and not instrument._users
    assert len(p.record.steps) == 4


def test_an_error_in_the_block_unwraps_too():
    before = wrapped()
    with pytest.raises(ZeroDivisionError), minidl.profile():
        raise ZeroDivisionError
    assert wrapped() == before and recording.get() is None


def test_operators_have_their_module_in_both_directions():
    _, step = model_and_step()
    with minidl.profile() as p:
        step(*batch())
    forward = [(s[1], s[4]) for s in spans(p, "forward")]
    assert forward == [("linear", "0"), ("relu", "1"), ("linear", "2"), ("cross_entropy", "")]
    assert [(s[1], s[4]) for s in spans(p, "backward")] == forward[::-1]
    assert [s[1] for s in spans(p, "module")] == ["0", "1", "2", "Sequential"]
    assert len(spans(p, "optimizer")) == 1


def test_a_function_that_is_defined_meanwhile_is_seen_and_one_that_inherits_counts_once():
    with minidl.profile() as p:
        class Twice(Function):
            def forward(self, x):
                return 2 * x

            def backward(self, gy):
                return 2 * gy

        class Thrice(Twice):
            op = "three_times"

            def forward(self, x):
                return super().forward(x) + x

        x = minidl.tensor([1.0], requires_grad=True)
        Twice.apply(x).sum().backward()
        Thrice.apply(x)
    assert [s[1] for s in spans(p, "forward")] == ["twice", "sum", "three_times"]
    assert [s[1] for s in spans(p, "backward")] == ["sum", "twice"]
    assert not hasattr(Twice.forward, "__wrapped__")


def test_input_is_the_wait_for_a_batch():
    data = [(np.ones(8, "f4"), i % 4) for i in range(6)]
    with minidl.profile() as p:
        for _ in DataLoader(data, batch_size=2):
            pass
        for _ in p.input([1, 2]):
            pass
        with p.span("mine"):
            pass
    assert len(spans(p, "input")) == 4 + 3 and spans(p, "user")[0][1] == "mine"  # and the ends


def test_steps_by_hand_take_the_place_of_the_optimizers():
    _, step = model_and_step()
    with minidl.profile() as p:
        for _ in range(3):
            step(*batch())
            step(*batch())
            p.step()
    assert len(p.record.steps) == 3
    assert repr(p).startswith("<Profile of 3 steps on 1 rank: print(p.report())")


def test_recompute_is_a_row_of_its_own():
    block = nn.Linear(64, 64)
    x = minidl.randn(256, 64, requires_grad=True)
    with minidl.profile() as p:
        recompute(lambda x: block(block(x)), x).sum().backward()
    rows = p.summary["ranks"][0]["rows"]
    assert rows["recompute"] > 0 and rows["forward"] > 0 and rows["backward"] > 0
    assert sum(rows.values()) == pytest.approx(p.summary["ranks"][0]["step_s"], rel=1e-9)


def test_memory_by_kind_over_time():
    model, step = model_and_step()
    with minidl.profile(memory=True) as p:
        for _ in range(3):
            step(*batch())
    peak = p.summary["memory"]
    assert peak["parameters"] == sum(w.nbytes for w in model.parameters())
    assert peak["activations"] > 0 and sum(peak.values()) == p.ledger.peak_bytes
    assert [at for at, _ in p.record.memory] == sorted(at for at, _ in p.record.memory)


@pytest.mark.parametrize("watched", [False, True])
def test_a_collective_has_its_bytes_peers_and_line(watched):
    def run(t):
        t = Watch(t) if watched else t
        with minidl.profile(t) as p:
            ledger = Ledger(t)
            ring.all_reduce(ledger, np.ones(1000, "f4"))
            tree.barrier(ledger)
        mine = [s for s in p.record.lanes["main"] if s[0] == "collective"]
        return p, [(s[1], s[5][0], s[5][1], s[5][2]) for s in mine], ledger

    for rank, (p, found, ledger) in enumerate(comm.simulate(4, run)):
        for name, sent, received, messages in found:
            count = ledger.count(label=name)
            assert (sent, received, messages) == (
                count.bytes_sent, count.bytes_received, count.messages_sent)
        assert [f[0] for f in found] == ["ring.all_reduce", "tree.barrier"]
        assert len(p.ranks) == (4 if rank == 0 else 1)
    p = comm.simulate(4, run)[0][0]
    detail = spans(p, "collective", rank=2)[0][5]
    assert detail[3] == (1, 3) and detail[4] == (0, 1, 2, 3) and "test_record.py:" in detail[6]


def test_background_communication_has_a_lane_and_a_queue_of_its_own():
    def run(t):
        model, _ = model_and_step()
        parallel, found = DataParallel(model, t), []
        for _ in range(2):  # the second of a run, too: its background is the first one's
            with minidl.profile(t) as p:
                for _ in range(2):
                    F.cross_entropy(parallel(batch()[0]), batch()[1]).backward()
                    p.step()
            found.append(p)
        return found

    for p in comm.simulate(2, run)[0]:
        lane = p.ranks[1].lanes["communication"]
        assert {s[0] for s in lane} == {"collective"} and lane[-1][3] < p.ranks[1].end
        assert spans(p, "wait") and "ring.all_reduce" not in {s[1] for s in spans(p, "collective")}
        depths = np.cumsum([n for _, n in sorted(p.ranks[0].queue)])
        assert max(depths) >= 1 and depths[-1] == 0 and min(depths) >= 0
        c = p.summary["ranks"][0]["communication"]
        assert 0 <= c["exposed_s"] <= c["total_s"]


def test_off_no_wrapper_is_called():
    with minidl.profile():
        pass
    from tests.test_calls import AT_MOST, calls_of
    assert not any("taps" in call for call in calls_of(AT_MOST["linear"][0]))


def test_what_is_wrapped_is_there_by_that_name():
    """Red before: a function had another name by then, and its time was called Python's."""
    for where, cls, method, _ in instrument.TAPS:
        module = importlib.import_module(f"minidl.{where}")
        owners = instrument._all(getattr(module, cls), itself=True) if cls else [module]
        assert any(method in vars(owner) for owner in owners), (where, cls, method)


@pytest.mark.gpu
def test_a_step_on_a_gpu_is_recorded_and_nobody_waits_more(tmp_path):
    """Its rows, kernels and memory are there; `synchronize` waits once for each operator."""
    model, _ = model_and_step()
    model.to("cuda")
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    x, y = (tensor.to("cuda") for tensor in batch())

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    stand_in = getattr(importlib.import_module("cupy"), "stand_in", None)
    for synchronize in (False, True):
        counting = stand_in.counting() if stand_in else contextlib.nullcontext()
        with minidl.profile(memory=True, synchronize=synchronize) as p, counting as count:
            for _ in range(2):
                step()
        n = len(spans(p, "forward") + spans(p, "backward"))
        assert n == 2 * 8 and len(spans(p, "optimizer")) == 2
        kernels = {s[1] for s in spans(p, "kernel", lane="cuda:0 stream 0")}
        assert kernels >= {"adamw_many", "cross_entropy_v4"}
        assert p.record.memory and "adamw_many" in p.report()
        p.trace(tmp_path / "trace.json")
        if stand_in:
            assert sum(count.waits.values()) == synchronize * n and not count.uploads
