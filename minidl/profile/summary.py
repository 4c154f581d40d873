"""Computes the numbers of a profile: where the time of a mean step went, on each rank.

The plain form of spans, own times and roofline: minidl/plain/profile.py. This file adds lanes of
several ranks and of a GPU, and the time that a rank waits in a collective.

Every moment of the main lane counts once, for the innermost span around it:

    main   |input|forward ....|backward  [forward again: recompute] ..|collective ....|optimizer|
                                                                      |wait  |moving  |
    a collective, all ranks:    rank 0  |======|====|     waiting until the last rank has entered,
                                rank 1         |====|     then moving bytes

Time outside of all spans counts as Python: the user's code and minidl's code between the operators.
There is one exception: the time before the first operator of a forward counts as input, because the
user's loop makes its batch in this time. Each kind of time, such as "forward" or "Python", is a row
of the report. The times of all rows add up to the time of the step. If there are three or more
steps, the first step does not count, because it compiles kernels and allocates memory.

The rows are times of the host. Times of a GPU are in the tables of operators, modules and kernels.
These tables count all work that the steps launched, also work that ran later.

Test: tests/profile/test_summary.py   Used by: report.py, advice.py, trace.py
"""

from bisect import bisect
from collections import Counter, defaultdict
from statistics import fmean

from minidl.profile import flops, peaks

ROWS = ("input", "forward", "backward", "recompute", "optimizer", "waiting for the slowest rank",
        "moving bytes", "waiting for background", "messages", "offload", "snapshot", "Python")
ROW_OF = {"forward": "forward", "backward": "backward", "input": "input", "optimizer": "optimizer",
          "message": "messages", "wait": "waiting for background", "offload": "offload",
          "snapshot": "snapshot", "collective": "moving bytes"}


def of(ranks, peak=None):
    """Returns the summary of a profile: a dict that can be written as JSON. ranks: the Records of
    all ranks. peak: the peaks of the machine. If None, uses the result of peaks.stored()."""
    peak = peak or peaks.stored("cuda" if any(r.devices for r in ranks) else "cpu") or {}
    last = _last_entries(ranks)
    parts = [_rank(record, last) for record in ranks]
    return {
        "n_steps": len(parts[0]["steps"]), "peak": peak,
        "ranks": [{"rank": record.rank, "error_s": record.error_s, "drift": record.drift,
                   "gpus": {lane: error_s for lane, (error_s, _) in record.devices.items()},
                   **{k: part[k] for k in ("step_s", "rows", "communication", "late_s")}}
                  for record, part in zip(ranks, parts)],
        "operators": _operators(parts, peak), "modules": _modules(parts),
        "kernels": _kernels(parts), "collectives": _collectives(parts),
        "shapes_differ": len({p["shapes"] for p in parts}) > 1,
        "memory": max((held for r in ranks for _, held in r.memory),
                      key=lambda held: sum(held.values()), default={})}  # bytes at the peak


def bounds(record):
    """Returns [(begin, end)], the times of the steps that count. If no step was recorded, the whole
    record is one step."""
    ends = [record.begin, *record.steps] if record.steps else [record.begin, record.end]
    steps = list(zip(ends, ends[1:], strict=False))
    return steps[1:] if len(steps) > 2 else steps


def nested(spans):
    """Returns [[span, parent, own seconds]] for the spans of one lane, in the order of their
    starts.

    parent:      the entry of this list for the span around this span, or None.
    own seconds: the span's time without the time of the spans inside of it.
    Raises ValueError if two spans overlap but neither is inside the other. This happens if two
    tasks wrote into one lane."""
    order = sorted(spans, key=lambda s: (s[2], -s[3]))
    stack, found = [], []  # stack: the indices in `found` of the open spans
    for span in order:
        while stack and found[stack[-1]][0][3] <= span[2]:
            stack.pop()
        parent = found[stack[-1]] if stack else None
        if parent is not None:
            if span[3] > parent[0][3] + 1e-9:
                raise ValueError(f"profile: the spans {span[1]} ({span[0]}) and {parent[0][1]} "
                                 f"({parent[0][0]}) overlap, but neither is inside the other. If "
                                 "this process runs several ranks, each rank must open its own "
                                 "profile: with minidl.profile(t)")
            parent[2] -= span[3] - span[2]
        stack.append(len(found))
        found.append([span, parent, span[3] - span[2]])
    return found


def before_forwards(spans, steps):
    """Yields the seconds of each gap in which the user's loop makes a batch. A gap ends where a
    forward starts. The gap begins at the end of the last backward or optimizer before this forward,
    or at the start of the step."""
    top = [span for span, parent, _ in nested([s for s in spans if s[0] in ROW_OF])
           if parent is None]
    for begin, end in steps:
        kind, since = "optimizer", begin
        for span in top:
            if begin <= span[2] < end:
                if span[0] == "forward" and kind in ("optimizer", "backward"):
                    yield span[2] - since
                kind, since = span[0], span[3]


def _last_entries(ranks):
    """Returns {(lane, group, number of a collective): (the time when the last rank entered this
    collective, the number of this rank)}."""
    last = {}
    for record in ranks:
        for lane, spans in record.lanes.items():
            for span in spans:
                if span[0] == "collective":
                    key = lane, *span[5][4:6]
                    last[key] = max(last.get(key, (float("-inf"), 0)), (span[2], record.rank))
    return last


def _rank(record, last):
    """Returns the numbers of one rank, a dict. The entry "rows" tells how the seconds of a mean
    step are divided. last: the dict from _last_entries."""
    steps = bounds(record)
    begin, end = steps[0][0], steps[-1][1]
    rows, late_s, ops, collectives = Counter(), Counter(), [], []
    spans, on_gpu = {}, []
    for lane, all_spans in record.lanes.items():
        _, moments = record.devices.get(lane, (0.0, [s[2] for s in all_spans]))
        spans[lane] = [s for s, at in zip(all_spans, moments, strict=True) if begin <= at < end]
        if lane in record.devices:
            on_gpu += [(span, own_s) for span, _, own_s in nested(
                [s for s in spans[lane] if s[0] in ROW_OF])]
    # `idle` lists the waits in collectives, of all lanes except "main". An entry is (the end of the
    # wait, its start, the rank that entered the collective last).
    idle = []
    for lane in spans:
        for span in spans[lane]:
            if span[0] == "collective":
                when, who = last[lane, *span[5][4:6]]
                wait_s = min(max(when - span[2], 0.0), span[3] - span[2])
                collectives.append((span, wait_s, span[3] - span[2] - wait_s))
                if lane != "main":
                    idle.append((span[2] + wait_s, span[2], who))
    idle.sort()
    ends = [at for at, _, _ in idle]
    for span, parent, own_s in nested([s for s in spans.get("main", ()) if s[0] in ROW_OF]):
        kind, row, waits = span[0], ROW_OF[span[0]], []
        while kind == "forward" and parent is not None:  # looks for recompute among the parents
            row, parent = ("recompute" if parent[0][1] == "recompute" else row), parent[1]
        if kind == "collective":
            when, who = last["main", *span[5][4:6]]
            waits = [(min(max(when - span[2], 0.0), own_s), who)]
        elif kind == "wait":  # main waits for another lane, and that lane may wait for a rank
            near = idle[bisect(ends, span[2]):bisect(ends, span[3]) + 1]
            waits = [(min(b, span[3]) - max(a, span[2]), who) for b, a, who in near]
        if kind in ("forward", "backward"):
            ops.append((span, own_s))
        for wait_s, who in waits:
            if wait_s > 0:
                rows["waiting for the slowest rank"] += wait_s
                late_s[str(who)] += wait_s * (who != record.rank)
                own_s -= wait_s
        rows[row] += own_s
    there = set(map(_operator_of, on_gpu))
    ops = [*on_gpu, *(op for op in ops if _operator_of(op) not in there)]
    n = len(steps)
    rows["input"] += sum(before_forwards(record.lanes.get("main", ()), steps))
    rows["Python"] = end - begin - sum(rows.values())
    exposed_s = rows["moving bytes"] + rows["waiting for background"] + rows["messages"]
    total_s = max(sum(moving_s for _, _, moving_s in collectives) + rows["messages"], exposed_s)
    return {"steps": steps, "step_s": (end - begin) / n, "rows": {r: rows[r] / n for r in ROWS},
            "ops": ops, "collectives": collectives,
            "late_s": {who: s / n for who, s in late_s.items()},
            "kernels": [(lane.split()[0] if lane in record.devices else "cpu", *s)
                        for lane in spans for s in spans[lane] if s[0] == "kernel"],
            "communication": {"total_s": total_s / n, "exposed_s": exposed_s / n},
            "shapes": tuple(str(s[5][0]) for s, _ in ops if s[0] == "forward")}


def _operator_of(op):
    (kind, name, _, _, _, detail), _ = op
    return name, kind, flops.dtype_of(detail)


def _sums(parts, what, figures_of):
    """Adds up the numbers of all items with the same key, and divides each sum by the number of
    ranks times the number of steps. Returns [(key, {name: mean})], the longest time first.

    parts: the dicts from _rank. The items are in the lists part[what] of these dicts. figures_of: a
    function; figures_of(*item) returns (key, {name: number})."""
    found = defaultdict(Counter)
    for part in parts:
        n = len(part["steps"]) * len(parts)
        for item in part[what]:
            key, figures = figures_of(*item)
            found[key].update({name: x / n for name, x in figures.items()})
    return sorted(found.items(), key=lambda row: -row[1]["s"])


def _operators(parts, peak):
    """Returns a row (a dict) for each operator, phase and dtype. row["module"] is the module in
    which this operator takes the most time."""
    def figures_of(span, own_s):
        kind, name, _, _, _, detail = span
        dtype = flops.dtype_of(detail)
        work, moved = flops.operations(name, kind, detail), flops.n_bytes(kind, detail)
        roof_s = 0.0
        if peak:
            roof_s = max(work / peak.get(dtype, peak["float32"]), moved / peak["bandwidth"])
        return (name, kind, dtype), dict(s=own_s, calls=1, flops=work, bytes=moved, roof_s=roof_s)

    places = _sums(parts, "ops", lambda span, own_s: (
        (span[1], span[0], flops.dtype_of(span[5]), span[4]), {"s": own_s}))
    module = {key[:3]: key[3] for key, _ in reversed(places)}  # the last place has the longest time
    return [{"name": key[0], "phase": key[1], "dtype": key[2], "module": module[key], **figures}
            for key, figures in _sums(parts, "ops", figures_of)]


def _modules(parts):
    """Returns [(path of a module, seconds of forward, seconds of backward)]."""
    rows = _sums(parts, "ops", lambda span, own_s: (
        span[4] or "(no module)", {"s": own_s, span[0]: own_s}))
    return [(path, s["forward"], s["backward"]) for path, s in rows]


def _kernels(parts):
    """Returns a row (a dict) for each kernel. row["bytes"] is None if the kernel gets a table of
    addresses, because the sizes of the arrays are then not known."""
    rows = _sums(parts, "kernels", lambda on, _, name, start, end, module, n_bytes: (
        (name, on), {"s": end - start, "calls": 1, "bytes": n_bytes or 0,
                     "unseen": n_bytes is None}))
    return [{"name": name, "on": on, "s": f["s"], "calls": f["calls"],
             "bytes": None if f["unseen"] else f["bytes"]} for (name, on), f in rows]


def _collectives(parts):
    """Returns a row (a dict) for each pair (algorithm, line). The algorithm is a name such as
    ring.all_reduce. The line is a line of code that calls this algorithm."""
    def figures_of(span, wait_s, moving_s):
        sent, received, messages, peers, _, _, line = span[5]
        return (span[1], line, peers), dict(
            s=wait_s + moving_s, calls=1, sent=sent, received=received, messages=messages,
            wait_s=wait_s, moving_s=moving_s)

    found = {}
    for (name, line, peers), figures in _sums(parts, "collectives", figures_of):
        row = found.setdefault((name, line), {"name": name, "line": line, "peers": []})
        row["peers"] = sorted({*row["peers"], *peers})
        row.update({k: row.get(k, 0) + x for k, x in figures.items()})
    return list(found.values())


def mean_rows(summary):
    """Returns {name of a row, such as "forward": its mean over the ranks, in seconds}."""
    return {row: fmean(r["rows"][row] for r in summary["ranks"]) for row in ROWS}


def slowest(summary):
    """Returns the entry of `summary` for the slowest rank: the rank that waits least for other
    ranks."""
    return min(summary["ranks"], key=lambda r: r["rows"]["waiting for the slowest rank"])
