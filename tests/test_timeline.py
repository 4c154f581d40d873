"""Tests the sums over spans, and the trace for Chrome and Perfetto."""

import json

import pytest

from minidl.timeline import Span, Timeline


def timeline(*spans):
    made = Timeline()
    for span in spans:
        made.add(*span)
    return made


def test_busy_and_overlap_are_sums_of_seconds():
    made = timeline(("a", "1", 0.0, 2.0), ("b", "2", 1.0, 4.0), ("a", "3", 3.0, 5.0))
    assert made.busy("a") == 4.0 and made.busy("b") == 3.0 and made.busy("c") == 0
    assert made.overlap("a", "b") == made.overlap("b", "a") == 2.0
    for begin in (1.0, 1.5):  # the spans touch, or are apart
        assert timeline(("a", "1", 0.0, 1.0), ("b", "2", begin, 2.0)).overlap("a", "b") == 0
    assert made.spans[1] == Span("b", "2", 1.0, 4.0)


@pytest.mark.parametrize("n", [1, 3])
def test_a_trace_has_a_process_for_each_rank_and_a_thread_for_each_lane(n, tmp_path):
    path = tmp_path / "trace.json"
    first, *others = [timeline(("b", "x", rank, rank + 0.5), ("a", "y", 0.0, 1e-6),
                               ("b", "z", rank + 1, rank + 2)) for rank in range(n)]
    first.trace(path, *others)
    events = json.loads(path.read_text())["traceEvents"]
    for rank in range(n):
        mine = [e for e in events if e["pid"] == rank]
        names = {(e["name"], e.get("tid")): e["args"]["name"] for e in mine if e["ph"] == "M"}
        assert names == {("process_name", None): f"rank {rank}",
                         ("thread_name", 0): "b", ("thread_name", 1): "a"}
        spans = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in mine if e["ph"] == "X"]
        assert spans == [("x", 0, 1e6 * rank, 5e5), ("y", 1, 0.0, 1.0),
                         ("z", 0, 1e6 * (rank + 1), 1e6)]
