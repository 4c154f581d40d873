"""What ran on a GPU is in lanes of its own, with the times that the GPU measured.

On the stand-in for CuPy time is simulated, so that the true times are known."""

import contextlib
import importlib
import json
import re

import numpy as np
import pytest

import minidl
from minidl import comm
from minidl.profile import report, trace
from tests.profile import cases
from tests.profile.test_record import batch, model_and_step

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    return importlib.import_module("cupy")


@pytest.fixture
def simulated(cupy):
    """The stand-in's clocks."""
    if not hasattr(cupy, "stand_in"):
        pytest.skip("only the stand-in knows the true times")
    return cupy.stand_in


def adder(cupy, n=1 << 14):
    """A function that launches add3 on n elements on the current device and stream."""
    add3 = minidl.kernel("add3.cu", "add3")
    arrays = [cupy.ones(n, "f4") for _ in range(4)]
    return lambda: add3((-(-n // 256),), (256,), (*arrays, n))


def on_gpu(p, rank=0):
    """{lane: its spans} of the GPUs."""
    return {lane: p.ranks[rank].lanes[lane] for lane in p.ranks[rank].devices}


def near(p, lane, ran):
    """The lane's kernels are those that ran: when, to the error that is said, and how long. Where
    the device waited for the host a kernel's time begins with its launch."""
    spans, (error_s, _) = p.record.lanes[lane], p.record.devices[lane]
    assert [s[1] for s in spans] == [r[0] for r in ran] and 0 < error_s < 1e-3
    before = None
    for span, (_, _, _, begin, end) in zip(spans, ran, strict=True):
        assert abs(span[3] - end) <= error_s and span[2] <= begin + error_s
        if begin == before:
            assert abs(span[2] - begin) <= error_s
            assert abs((span[3] - span[2]) - (end - begin)) <= 2 * error_s  # of both ends
        before = end
    assert len(ran) < 2 or begin == ran[-2][4], "none was launched while another ran"


@pytest.mark.parametrize("pace", [1.0, 1 + 1e-4, 1 - 1e-4])
def test_a_kernel_has_the_times_of_the_device_though_its_clock_drifts(cupy, simulated, pace):
    """Of 3 s, in which such a clock is 300 us off."""
    add = adder(cupy)
    with simulated.device_time(lambda kernel, n_bytes: 0.6, pace) as ran:
        with minidl.profile(clock=simulated.host_s) as p:
            for _ in range(5):
                add()
    assert len(ran) == 5
    near(p, "cuda:0 stream 0", ran)


def test_after_seconds_a_microsecond_is_still_one(cupy, simulated):
    """cudaEventElapsedTime's float of 32 bits is 2 us coarse after 16 s, 31 us after 256 s."""
    add = adder(cupy)
    times = iter([5.0, 7e-6] * 64)
    with simulated.device_time(lambda kernel, n_bytes: next(times)) as ran:
        with minidl.profile(clock=simulated.host_s) as p:
            for _ in range(128):
                add()
    near(p, "cuda:0 stream 0", ran)


def test_each_device_and_stream_has_a_lane(cupy, simulated):
    """Also a device that is first used in the block; it is waited for there, once."""
    first, stream = adder(cupy), cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.Device(1):
        second = adder(cupy)
    with simulated.device_time(lambda kernel, n_bytes: 0.5) as ran:
        with minidl.profile(clock=simulated.host_s) as p, simulated.counting() as count:
            first()
            with stream:
                adder(cupy, 100)()
            assert not count.waits
            with cupy.cuda.Device(1):
                second()
                waits = count.waits.copy()
                second()
    assert set(map(lambda words: words.split()[1], waits)) == {"Event.synchronize"}
    assert count.waits == waits
    assert list(on_gpu(p)) == ["cuda:0 stream 0", "cuda:0 stream 1", "cuda:1 stream 0"]
    for lane, where in zip(on_gpu(p), ((0, 0), (0, stream.ptr), (1, 0)), strict=True):
        near(p, lane, [r for r in ran if r[1:3] == where])


def test_another_task_on_the_same_stream_has_a_lane_of_its_own(cupy):
    add = adder(cupy)

    def run(t):
        with minidl.profile(t) as p:
            add()
            t.spawn(add).wait()
        return p

    p = comm.simulate(1, run)[0]
    assert [lane.partition(",")[0] for lane in on_gpu(p)] == ["cuda:0 stream 0"] * 2
    assert sorted(lane.partition(", ")[2] for lane in on_gpu(p)) == ["", "task 0"]


def training(cupy, n_steps=4):
    """(profile, waits and uploads in its steps) of a few steps on the GPU."""
    stand_in = getattr(cupy, "stand_in", None)
    model, _ = model_and_step()
    model.to("cuda")
    optimizer = minidl.optim.AdamW(model.parameters(), lr=0.1)
    x, y = (tensor.to("cuda") for tensor in batch())
    clock = {"clock": stand_in.host_s} if stand_in else {}
    counting = stand_in.counting() if stand_in else contextlib.nullcontext()
    with minidl.profile(**clock) as p, counting as count:
        for _ in range(n_steps):
            optimizer.zero_grad()
            minidl.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return p, count.waits + count.uploads if stand_in else {}


def test_operators_and_kernels_of_a_step_are_there_and_nobody_waits(cupy, tmp_path):
    p, waits = training(cupy)
    assert not waits
    (lane,) = on_gpu(p)
    spans, host = p.record.lanes[lane], p.record.lanes["main"]
    for kind in ("forward", "backward"):
        assert [s[:2] + s[4:] for s in spans if s[0] == kind] == [
            s[:2] + s[4:] for s in host if s[0] == kind] != []
    assert sorted(s[1] for s in spans if s[0] == "kernel") == sorted(
        s[1] for s in host if s[0] == "launch")
    assert not any(s[0] == "kernel" for s in host)
    p.trace(tmp_path / "trace.json")
    events, figures = trace.read(tmp_path / "trace.json")
    assert cases.problems(events) == []
    named = [e["args"] for e in events if e["name"] == "thread_name"]
    error_s, _ = p.record.devices[lane]
    assert {"name": lane, "error us": 1e6 * error_s} in named and {"name": "main"} in named
    assert report.text(figures) == p.report()
    assert f"own clock, which agrees with the host's clock to {1e6 * error_s:.1f} us" in p.report()


def test_a_kernel_in_the_report_has_its_bytes_a_second_on_the_device(cupy, simulated):
    add = adder(cupy, 1 << 20)
    with simulated.device_time(lambda kernel, n_bytes: n_bytes / 300e6):
        with minidl.profile(clock=simulated.host_s) as p:
            for _ in range(5):
                for _ in range(8):
                    add()
                p.step()
    (row,) = p.summary["kernels"]
    assert row["on"] == "cuda:0" and row["calls"] == 8 and row["bytes"] == 8 * 16 << 20
    assert row["bytes"] / row["s"] == pytest.approx(300e6, rel=1e-2)  # a busy host launches late
    assert re.search(r"add3 +cuda:0 +44\d\.\d\d +8 +134\.22 +0\.3\n", p.report())


def test_what_a_step_launched_counts_whenever_it_ran(cupy, simulated):
    """The host is through with its steps when the device has hardly begun."""
    add = adder(cupy)
    with simulated.device_time(lambda kernel, n_bytes: 0.1):
        with minidl.profile(clock=simulated.host_s) as p:
            for _ in range(5):
                add()
                p.step()
    (row,) = p.summary["kernels"]
    assert row["calls"] == 1 and row["s"] == pytest.approx(0.1, rel=1e-3)
    assert p.summary["ranks"][0]["step_s"] < 0.1


def test_an_operator_has_its_time_on_the_device_in_the_report(cupy, simulated):
    x = minidl.tensor(np.ones((64, 64), "f4")).to("cuda")
    with simulated.device_time():
        with minidl.profile(clock=simulated.host_s) as p:
            for _ in range(4):
                x @ x
                p.step()
    (op,) = p.summary["operators"]
    spans = [s for s in on_gpu(p)["cuda:0 stream 0"] if s[1] == "matmul"][1:]
    assert op["calls"] == 1 and op["s"] == pytest.approx(sum(s[3] - s[2] for s in spans) / 3)


def test_the_page_shows_the_lane(cupy, tmp_path):
    p, _ = training(cupy, 2)
    p.html(tmp_path / "p.html")
    data = json.loads(re.search(r'id="data">(.*?)</script>', (tmp_path / "p.html").read_text())[1])
    row = data["lanes"].index("rank 0: cuda:0 stream 0")
    drawn = [s for s in data["spans"] if s[0] == row]
    assert len(drawn) == len(p.record.lanes["cuda:0 stream 0"])
    assert {s[4] for s in data["spans"]} <= data["colours"].keys()


def test_ranks_with_a_device_each_are_in_one_trace(cupy, simulated):
    def run(t):
        cupy.cuda.Device(t.rank).use()
        add = adder(cupy)
        with minidl.profile(t, clock=lambda: simulated.host_s() + 5 * t.rank) as p:
            for _ in range(3):
                add()
                comm.tree.barrier(t)
                p.step()
        return p

    with simulated.device_time(lambda kernel, n_bytes: 0.2) as ran:
        p = comm.simulate(2, run)[0]
    assert cases.problems(trace.events(p.ranks), 1e-3) == []
    for rank in (0, 1):
        (lane,), record = on_gpu(p, rank), p.ranks[rank]
        error_s = record.devices[lane][0] + record.error_s
        for span, true in zip(record.lanes[lane], [r for r in ran if r[1] == rank], strict=True):
            assert abs(span[3] - true[4]) <= error_s < 1e-3


def test_without_a_launch_there_is_no_lane_and_off_there_are_no_events(cupy, monkeypatch):
    with minidl.profile() as p:
        pass
    assert not p.record.devices
    monkeypatch.setattr(cupy.cuda, "Event", None)
    adder(cupy)()


def test_the_stand_in_refuses_what_cuda_refuses(cupy, simulated):
    event, later, plain = cupy.cuda.Event(), cupy.cuda.Event(), cupy.cuda.Event(
        disable_timing=True)
    error, add = cupy.cuda.runtime.CUDARuntimeError, adder(cupy)
    add()  # it is compiled now
    with pytest.raises(error, match="InvalidResourceHandle"):
        cupy.cuda.get_elapsed_time(event, later)  # never recorded
    event.record()
    with simulated.device_time(lambda kernel, n_bytes: 0.25):
        add()
    later.record()
    plain.record()
    with pytest.raises(error, match="NotReady"):
        cupy.cuda.get_elapsed_time(event, later)
    later.synchronize()
    assert 249.9 < cupy.cuda.get_elapsed_time(event, later) < 5000
    plain.synchronize()
    with pytest.raises(error, match="InvalidResourceHandle"):
        cupy.cuda.get_elapsed_time(event, plain)
    with cupy.cuda.Device(1):
        other = cupy.cuda.Event()
        other.record()
        other.synchronize()
        with pytest.raises(error, match="InvalidResourceHandle"):
            cupy.cuda.get_elapsed_time(event, other)
    with pytest.raises(error, match="InvalidResourceHandle"):
        other.record(cupy.cuda.Stream.null)  # device 0's
