"""Writes one trace of all ranks, for ui.perfetto.dev or chrome://tracing.

    {"traceEvents": [...], "otherData": {"minidl": the dict of summary.py}}

    ph  of                      fields in addition to pid (the rank) and tid (the lane)
    M   names of ranks, lanes   name process_name or thread_name, args {"name"}. For a GPU's lane
                                also "error us": the error of its times against this rank's clock
    X   a span                  name, cat (its kind), ts, dur, args: module, bytes, peers, ...
    s   a message leaves        name "message", cat "flow", id, ts, args {"bytes"}
    f   this message arrives    the same id, bp "e"
    C   a counter               name memory, args {kind: bytes}; or name queue, args {"jobs"}

ts and dur are in microseconds by rank 0's clock, rounded to whole nanoseconds. Time 0 is when the
first rank began. tests/profile/cases.py checks more rules. If two spans of a lane overlap, one is
inside the other. Events of the same kind are in order of time. Each message id leaves once and
arrives once. A message does not arrive before it leaves. But clocks have errors, so a message may
seem to arrive too early, by at most these errors.

Source: the Trace Event Format (Google).   Test: tests/profile/test_trace.py
"""

import json
from pathlib import Path

from minidl.profile.flops import n_bytes, operations
from minidl.profile.summary import bounds

STEPS = "steps"  # the name of the lane that shows when steps begin and end


def events(ranks):
    """Returns the traceEvents, a list of dicts. ranks: the Records of all ranks."""
    origin = min(record.begin for record in ranks)
    ids, found = {}, []
    both = _both_ends(ranks)

    def us(at):
        return round((at - origin) * 1e9) / 1000

    for record in ranks:
        row = {"pid": record.rank}
        found.append({"ph": "M", **row, "name": "process_name",
                      "args": {"name": f"rank {record.rank}"}})
        steps = [("step", f"step {i}", a, b, "", None) for i, (a, b) in enumerate(bounds(record))]
        lanes = {STEPS: steps, **record.lanes}
        tids = {lane: tid for tid, lane in enumerate(lanes)}
        for lane, spans in lanes.items():
            off = {"error us": 1e6 * record.devices[lane][0]} if lane in record.devices else {}
            found.append({"ph": "M", **row, "tid": tids[lane], "name": "thread_name",
                          "args": {"name": lane, **off}})
            for span in sorted(spans, key=lambda s: (s[2], -s[3])):
                begin = us(span[2])
                found.append({"ph": "X", **row, "tid": tids[lane], "name": span[1], "cat": span[0],
                              "ts": begin, "dur": round(us(span[3]) - begin, 3),
                              "args": _arguments(span)})
        for way, key, at, size in sorted(record.messages, key=lambda m: m[2]):
            if key in both:
                number = ids.setdefault(key, len(ids))
                end = {"ph": "s"} if way == "send" else {"ph": "f", "bp": "e"}
                found.append({**end, **row, "tid": tids[key[0]], "name": "message", "cat": "flow",
                              "id": number, "ts": us(at), "args": {"bytes": size}})
        for at, held in record.memory:
            found.append({"ph": "C", **row, "tid": 0, "name": "memory", "ts": us(at),
                          "args": held})
        jobs = 0
        for at, n in sorted(record.queue, key=lambda entry: entry[0]):
            jobs += n
            found.append({"ph": "C", **row, "tid": 0, "name": "queue", "ts": us(at),
                          "args": {"jobs": jobs}})
    return found


def _both_ends(ranks):
    """Returns the keys of the messages that left and also arrived, in lanes that are recorded."""
    sent, got = set(), set()
    for record in ranks:
        for way, key, _, _ in record.messages:
            if key[0] in record.lanes:
                (sent if way == "send" else got).add(key)
    return sent & got


def _arguments(span):
    kind, name, _, _, module, detail = span
    args = {"module": module} if module else {}
    if kind == "collective":
        sent, received, messages, peers, group, number, line = detail
        args |= {"bytes sent": sent, "bytes received": received, "messages": messages,
                 "peers": list(peers), "group": list(group), "number": number, "line": line}
    elif kind in ("forward", "backward"):
        args |= {"shapes": [str(x[0]) for x in detail[0] if x is not None],
                 "dtypes": [x[1].name for x in detail[0] if x is not None],
                 "bytes": n_bytes(kind, detail)}
        if work := operations(name, kind, detail):
            args["flops"] = work
    elif kind == "kernel" and detail is not None:
        args["bytes"] = detail
    return args


def write(path, ranks, summary):
    """Writes the trace into the file `path`. ranks: the Records. summary: the dict that
    summary.of() returns."""
    page = {"traceEvents": events(ranks), "otherData": {"minidl": summary}}
    Path(path).write_text(json.dumps(page))


def read(path):
    """Returns (traceEvents, summary) from a trace file. summary: the dict that summary.of()
    returned. Raises ValueError if minidl did not write the file."""
    try:
        page = json.loads(Path(path).read_text())
        return page["traceEvents"], page["otherData"]["minidl"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"want a trace file that `minidl profile` or Profile.trace wrote; got "
                         f"{path}, which has another form") from None
