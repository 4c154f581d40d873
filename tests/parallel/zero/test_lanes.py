"""Lanes work beside each other as the formula says, modelled and in real time."""

import json
import time

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.parallel import Offload
from minidl.parallel.zero.lanes import Modelled, Threads
from tests.parallel.zero.test_offload import backward, network


def test_modelled_lanes_overlap_as_the_formula_says(tmp_path):
    # three equal layers: a bucket each, of b bytes down and up; c seconds of backward for each,
    # u of update, d of copy
    minidl.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(3)]).half()
    alpha, beta, c, n = 1e-6, 1e-8, 4e-6, 256
    d = 2 * n * beta
    for u_each in (2e-8, 1e-9):  # the update is slower than the copy, or faster
        lanes = Modelled((alpha, beta), update_s=u_each)
        u = n * u_each
        removes = [p.on_grad_ready(lambda p, lanes=lanes: lanes.compute(c, "backward"))
                   for p in model.parameters()]
        off = Offload(optim.AdamW(model.parameters()), lanes, bucket_bytes=1)
        x = minidl.tensor(np.ones((2, 16), "f2"))
        model(x).float().sum().backward()
        assert lanes.time() == pytest.approx(3 * c, rel=1e-12)  # a few additions
        off.step()
        # down: the first copy begins at c; then one after the other, c or d apart
        last_down = c + 2 * max(c, d) + d + alpha
        # host: the last update begins when its gradient is there and the others are done; those
        # cannot begin before backward is over
        first = max(3 * c, c + d + alpha)
        ends = [first + u]
        for i in (1, 2):
            ends.append(max(ends[-1], c + i * max(c, d) + d + alpha, 3 * c) + u)
        assert ends[-1] >= last_down
        # up: each copy after its update, and after the copy before
        wire = 0.0
        for end in ends:
            wire = max(wire, end) + d
        assert lanes.time() == pytest.approx(wire + alpha, rel=1e-12)
        assert lanes.overlap("device", "down") > 0, "gradients go down behind backward"
        assert lanes.overlap("host", "up") > 0, "weights come up behind the next update"
        assert lanes.overlap("device", "up") == 0, "no weight changes under backward"
        for remove in removes:
            remove()
        off.close()
    lanes.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == 3 + 3 + 3 + 3


def test_a_delayed_update_works_beside_the_next_backward():
    model = network(True)
    n = sum(p.numel() for p in model.parameters())
    shares = {}
    for delay_after in (None, 0):
        lanes = Modelled((1e-6, 1e-9), update_s=1e-7)
        off = Offload(optim.AdamW(model.parameters()), lanes, 100, delay_after)
        for step in range(4):
            lanes.compute(n * 1e-7, "forward and backward")
            backward(model, step)
            off.step(unscale=1 / 64)
        shares[delay_after] = lanes.overlap("device", "host") / lanes.busy("host")
        off.close()
    assert shares[None] == 0
    assert shares[0] > 0.7  # 3 of 4 updates: nothing follows the last one


def test_threads_overlap_in_real_time():
    # sleeps stand for backward, so that a busy machine makes nothing shorter: what is asserted is
    # only that copies and backward, and copies up and updates, lie beside each other somewhere
    model = network(True)
    lanes = Threads(link=(1e-3, 1e-6))
    for p in model.parameters():
        p.on_grad_ready(lambda p: lanes.compute(2e-3, "backward"))
    off = Offload(optim.AdamW(model.parameters()), lanes, bucket_bytes=1)
    start = time.perf_counter()
    for step in range(2):
        backward(model, step)
        off.step(unscale=1 / 64)
    took = time.perf_counter() - start
    assert lanes.overlap("device", "down") > 0
    n_bytes = 2 * sum(p.numel() for p in model.parameters())
    for lane in ("down", "up"):
        assert lanes.bytes[lane] == 2 * n_bytes
        # each copy takes its time, never less
        assert 2 * (n_bytes * 1e-6 + 6 * 1e-3) <= lanes.busy(lane) <= took
    off.close()


def test_an_error_in_a_lane_reaches_the_caller():
    model = network(False)
    off = Offload(optim.AdamW(model.parameters()), Threads())
    backward(model, 0)
    off.inner.param_groups[0]["betas"] = None
    with pytest.raises(TypeError):
        off.step()
    for remove in off.remove_hooks:
        remove()
    off.lanes.close()
