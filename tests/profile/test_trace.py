"""The trace of all ranks follows the rules that trace.py has in writing."""

import json

import numpy as np
import pytest

import minidl
from minidl import comm
from minidl.profile import report, trace
from tests.profile import cases


@pytest.fixture(scope="module")
def four_ranks():
    return cases.hundred_steps()


@pytest.fixture(scope="module")
def two_ranks():
    return trace.events(comm.simulate(2, cases.training, 3)[0].ranks)


def test_4_ranks_times_100_steps_are_valid(four_ranks, tmp_path):
    path = tmp_path / "trace.json"
    four_ranks.trace(path)
    events, figures = trace.read(path)
    assert cases.problems(events, max(r["error_s"] for r in figures["ranks"])) == []
    assert {e["pid"] for e in events} == {0, 1, 2, 3}
    per_step = 2 * 3 * 2  # a bucket and the loss: rings of 4 ranks, 6 messages of a rank each
    sent = [e for e in events if e["ph"] == "s"]
    assert len(sent) >= 4 * 100 * per_step
    assert sum(e["args"]["bytes"] for e in sent) == sum(
        e["args"]["bytes"] for e in events if e["ph"] == "f")
    assert sum(e["cat"] == "step" for e in events if e["ph"] == "X") == 4 * 99
    assert {e["name"] for e in events if e["ph"] == "C"} == {"queue"}


def test_the_report_is_the_same_from_the_file(four_ranks, tmp_path):
    four_ranks.trace(tmp_path / "t.json")
    _, figures = trace.read(tmp_path / "t.json")
    assert report.text(figures) == four_ranks.report()
    (tmp_path / "no.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="want a trace file that"):
        trace.read(tmp_path / "no.json")


def test_a_message_goes_to_the_rank_that_it_was_sent_to():
    def run(t):
        with minidl.profile(t) as p:
            t.sendrecv(np.ones(3 + t.rank), (t.rank + 1) % 3, np.ones(3 + (t.rank - 1) % 3),
                       (t.rank - 1) % 3)
            if t.rank == 0:
                t.send(np.ones(7), 2)
            elif t.rank == 2:
                t.recv(np.ones(7), 0)
        return p

    events = trace.events(comm.simulate(3, run)[0].ranks)
    ends = {}
    for e in events:
        if e["ph"] in "sf":
            ends.setdefault(e["id"], {})[e["ph"]] = e["pid"], e["args"]["bytes"]
    pairs = sorted((both["s"], both["f"]) for both in ends.values())
    assert pairs == [((0, 24), (1, 24)), ((0, 56), (2, 56)), ((1, 32), (2, 32)),
                     ((2, 40), (0, 40))]


def test_memory_is_a_counter():
    p = comm.simulate(1, cases.training, 2, True)[0]
    events = trace.events(p.ranks)
    assert cases.problems(events) == []
    held = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "memory"]
    assert held and all(isinstance(n, int) for h in held for n in h.values())


def break_(events, how):
    """The events with one rule broken."""
    events = json.loads(json.dumps(events))
    spans = [e for e in events if e["ph"] == "X"]
    flows = [e for e in events if e["ph"] == "f"]
    if how == "a flow without its end":
        events.remove(flows[0])
    elif how == "arrives before it leaves":
        flows[0]["ts"] = 0.0
    elif how == "spans cross":
        inner = next(e for e in spans if e["cat"] == "forward")
        inner["dur"] = 1e9
    elif how == "time runs back":
        i = [i for i, e in enumerate(events) if e["ph"] == "X" and e["cat"] != "step"]
        events[i[0]], events[i[-1]] = events[i[-1]], events[i[0]]
    elif how == "no duration":
        del spans[0]["dur"]
    elif how == "a lane without a name":
        spans[0]["tid"] = 99
    elif how == "a negative time":
        spans[0]["dur"] = -1.0
    return events


@pytest.mark.parametrize("how, words", [
    ("a flow without its end", "not s and f"), ("arrives before it leaves", "before it leaves"),
    ("spans cross", "ends after the span"), ("time runs back", "comes after one at"),
    ("no duration", "without its fields"), ("a lane without a name", "has no name"),
    ("a negative time", "negative time"), ("nothing", None)])
def test_a_broken_trace_is_found(two_ranks, how, words):
    found = cases.problems(break_(two_ranks, how), 1e-4)
    assert any(words in text for text in found) if words else found == []
