"""Each sentence of advice, with its cause planted in a training that runs."""

import time

import numpy as np
import pytest

import minidl
from minidl import comm, nn, optim, snapshot
from minidl.comm import ring, tree
from minidl.memory import offload
from minidl.memory.recompute import recompute
from minidl.parallel import DataParallel
from minidl.profile import advice
from tests.mpi.launch import mpiexec


def train(t, n_steps=4, width=64, rows=lambda rank, step: 128, between=None, wide=False,
          loader=None, parallel=False, optimizer=optim.SGD, around=None, dtype="f4"):
    """n_steps of a small model, with a cause planted by the arguments."""
    minidl.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    if wide:
        model.to("float64")
    forward = DataParallel(model, t) if parallel else model
    step = optimizer(model.parameters(), lr=1e-3)
    with minidl.profile(None if t is None else t) as p:
        rank = 0 if t is None else t.rank
        batches = [np.ones((rows(rank, i), width), "f8" if wide else "f4") for i in range(n_steps)]
        for i, x in enumerate(p.input(loader(batches, rank)) if loader else batches):
            step.zero_grad()
            x = minidl.tensor(x)
            y = around(forward, x) if around else forward(x)
            (y * y).mean().backward()
            if between:
                between(t, i, model, step)
            step.step()
    return p


def said(p):
    return " | ".join(advice.sentences(p.summary))


def late(batches, rank=0):
    for x in batches:
        time.sleep(0.02)
        yield x


def test_there_are_always_three_and_without_a_cause_no_remedy():
    for _ in range(5):  # a busy machine may take the processor away between two operators
        p = train(None, width=256, rows=lambda *_: 1024)
        sentences = advice.sentences(p.summary)
        assert len(sentences) == 3
        if sentences[0].startswith("The operator that takes the most time is linear"):
            break
    assert sentences[0].startswith("The operator that takes the most time is linear"), sentences
    assert not any(word in said(p) for word in ("raise", "cast", "buckets"))


def test_input():
    assert said(train(None, loader=late)).startswith("Rank 0 waits for input ")
    assert "raise prefetch" in said(train(None, loader=late))


def test_a_generator_of_ones_own_is_input_too():
    """Red before: the time that it takes was 'Python between the operators'."""
    def batches(n):
        for _ in range(n):
            time.sleep(0.02)
            yield minidl.ones(8, 16)

    def loop(p_step, accumulate):
        minidl.manual_seed(0)
        model = nn.Linear(16, 4)
        step = optim.SGD(model.parameters(), lr=1e-3)
        with minidl.profile() as p:
            for i, x in enumerate(batches(6 * accumulate)):
                (model(x) ** 2).mean().backward()
                if (i + 1) % accumulate == 0:
                    step.step()
                    if p_step:
                        p.step()
        return p

    for p_step, accumulate in ((False, 1), (True, 1), (False, 3)):
        p = loop(p_step, accumulate)
        row = p.summary["ranks"][0]["rows"]
        assert row["input"] >= 0.9 * 0.02 * accumulate, row
        assert row["Python"] < 0.25 * row["input"]
        assert said(p).startswith("Rank 0 waits for input ")


def test_time_after_the_forward_is_not_input():
    row = train(None, between=lambda *_: time.sleep(0.02)).summary["ranks"][0]["rows"]
    assert row["Python"] >= 0.9 * 0.02 and row["input"] < 0.01


def test_float64_names_the_operator_and_its_module():
    text = said(train(None, wide=True, width=256, rows=lambda *_: 512))
    assert "Operators on float64 take" in text and "linear (" in text


def test_recompute():
    class Slow(minidl.Function):
        """The same number, late: an operator whose forward takes as long on every machine."""

        def forward(self, x):
            time.sleep(0.01)
            return x

        def backward(self, gy):
            return gy

    text = said(train(None, around=lambda f, x: recompute(lambda x: Slow.apply(f(x)), x)))
    assert "Recompute takes" in text


def test_optimizer():
    class Slow(optim.SGD):
        def update_group(self, *args):
            time.sleep(0.01)
            super().update_group(*args)

    assert said(train(None, optimizer=Slow)).startswith("The optimizer takes")


def test_snapshot(tmp_path):
    def save(t, step, model, optimizer):
        snapshot.save(tmp_path, step, model=model, optimizer=optimizer)

    assert "save less often" in said(train(None, between=save))


def test_offload():
    def around(forward, x):
        with offload.offload(bytes_per_s=2e6):
            return forward(x)

    assert "Offload takes" in said(train(None, around=around))


def test_python():
    def around(forward, x):
        y = forward(x)
        time.sleep(0.01)  # what calls cost on small arrays, whatever the machine
        return y

    text = said(train(None, around=around))
    assert "Python between the operators" in text and "a larger batch" in text


def slow_rank(t, *_):
    if t.rank == 1:
        time.sleep(0.05)
    ring.all_reduce(t, np.ones(1000))


def in_turn(t, step, *_):
    """As with batches that are long now on one rank, now on another."""
    if (t.rank + step) % 2:
        time.sleep(0.05)
    ring.all_reduce(t, np.ones(1000))


@pytest.mark.mpi
def test_ranks_that_wait_for_one_and_ranks_that_wait_in_turn():
    """Processes: in the simulator one rank's work is every rank's delay."""
    code = ("from tests.profile.test_advice import *\n"
            "t = comm.world()\n"
            "one = train(t, 9, between=slow_rank)\n"
            "turn = train(t, 9, rows=lambda r, i: 8 + 8 * ((r + i) % 2), between=in_turn)\n"
            "same = train(t, 9, between=in_turn)\n"
            "if t.rank == 0: print(*map(said, (one, turn, same)), sep='\\n')\n")
    one, turn, same = mpiexec(2, "-c", code, timeout=60, check=True).stdout.splitlines()
    assert "The ranks wait for rank 1" in one and "mostly in Python" in one
    assert "sometimes for one rank and sometimes for another" in turn and "buckets" in turn
    assert "sometimes for one rank and sometimes for another" in same and "other programs" in same


def test_a_synchronisation_in_the_loop_is_named_with_its_line():
    def between(t, *_):
        for _ in range(20):
            tree.barrier(t)

    text = said(comm.simulate(2, lambda t: train(t, between=between))[0])
    assert "only a few bytes" in text and "20.0 times a step" in text
    assert "test_advice.py" in text


def test_exposed_communication():
    def between(t, *_):
        ring.all_reduce(t, np.ones(1 << 20))

    text = said(comm.simulate(2, lambda t: train(t, rows=lambda *_: 16, between=between))[0])
    assert "Exposed communication takes" in text and "behind backward" in text


def test_many_small_collectives():
    def between(t, *_):
        for _ in range(40):
            ring.all_reduce(t, np.ones(100))

    text = said(comm.simulate(2, lambda t: train(t, rows=lambda *_: 16, between=between))[0])
    assert "40 collectives a step send 800 bytes each" in text
