"""A training that is profiled, and the rules of a trace (minidl/profile/trace.py) as a check."""

import functools
from collections import defaultdict

import numpy as np

import minidl
from minidl import comm, nn, optim
from minidl.comm import ring
from minidl.nn import functional as F
from minidl.parallel import DataParallel


@functools.cache
def hundred_steps():
    """The profile of 4 ranks and 100 steps, made once for all files."""
    return comm.simulate(4, training, 100)[0]


def training(t, n_steps=5, memory=False):
    """A profile of a few steps of data parallelism, with a collective of its own in each."""
    minidl.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    parallel = DataParallel(model, t)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    rng = np.random.default_rng(t.rank)
    with minidl.profile(t, memory=memory) as p:
        for _ in range(n_steps):
            x, y = rng.normal(size=(4, 8)).astype("f4"), rng.integers(0, 4, 4)
            optimizer.zero_grad()
            loss = F.cross_entropy(parallel(minidl.tensor(x)), minidl.tensor(y))
            loss.backward()
            optimizer.step()
            ring.all_reduce(t, np.array([loss.item()]))
    return p


def problems(events, error_s=0.0):
    """Sentences: what in the traceEvents breaks the rules above. error_s: the clocks' error."""
    found, spans, flows, last = [], defaultdict(list), defaultdict(list), {}
    named = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name"}
    wanted = {"X": {"cat", "dur", "args"}, "s": {"id"}, "f": {"id", "bp"}, "C": {"args"}}
    for e in events:
        if e["ph"] == "M":
            continue
        if e["ph"] not in wanted or not wanted[e["ph"]] | {"pid", "tid", "ts", "name"} <= e.keys():
            found.append(f"an event without its fields: {e}")
            continue
        if e["ph"] != "C" and (e["pid"], e["tid"]) not in named:
            found.append(f"rank {e['pid']}: lane {e['tid']} has no name")
        if e["ts"] < 0 or e.get("dur", 0) < 0:
            found.append(f"rank {e['pid']}: {e['name']} at {e['ts']} has a negative time")
        order = e["pid"], e["tid"], "flow" if e["ph"] in "sf" else e["ph"], e["name"] * (
            e["ph"] == "C")
        if e["ts"] < last.get(order, 0.0):
            found.append(f"rank {e['pid']}: {e['name']} at {e['ts']} us comes after one at "
                         f"{last[order]}")
        last[order] = e["ts"]
        if e["ph"] == "X":
            spans[e["pid"], e["tid"]].append(e)
        elif e["ph"] in "sf":
            flows[e["id"]].append(e)
    for (rank, _), lane in spans.items():
        open_ends = []
        for e in lane:
            begin = round(e["ts"] * 1000)
            end = begin + round(e["dur"] * 1000)
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                found.append(f"rank {rank}: {e['name']} at {e['ts']} us ends after the span that "
                             "it lies in")
            open_ends.append(end)
    for number, ends in flows.items():
        if sorted(e["ph"] for e in ends) != ["f", "s"]:
            found.append(f"message {number} has the ends {[e['ph'] for e in ends]}, not s and f")
            continue
        left, came = sorted(ends, key=lambda e: e["ph"] == "f")
        if came["ts"] < left["ts"] - 1e6 * error_s:
            found.append(f"message {number} arrives at {came['ts']} us, before it leaves at "
                         f"{left['ts']}")
    return found
