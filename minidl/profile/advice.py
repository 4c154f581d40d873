"""Makes three sentences from the summary of a profile: what takes most of the time, and what to do.

Each cause of lost time has a sentence, and takes a share of the step. The three causes with the
largest shares give the three sentences. If there are fewer than three causes, sentences about the
largest operator, Python's share and the roofline follow.

Test: tests/profile/test_advice.py, each sentence with a planted cause   Numbers: summary.py
"""

from collections import Counter
from itertools import chain
from statistics import fmean, median

from minidl.profile.summary import mean_rows

SMALL = 64  # bytes: a collective that sends no more bytes than this only synchronises the ranks
WAITING = "waiting for the slowest rank"
SIMPLE = [  # (row, the smallest share that gives a sentence, the sentence)
    ("recompute", 0.15, "Recompute takes {} of the step: if memory allows, recompute fewer "
     "segments, or keep their matrix products (keep=)."),
    ("optimizer", 0.25, "The optimizer takes {} of the step: use a larger batch, or ZeRO, which "
     "divides it over the ranks."),
    ("snapshot", 0.05, "Snapshots take {} of the time: save less often."),
    ("offload", 0.05, "Offload takes {} of the step: raise ahead=, or offload only larger arrays "
     "(min_bytes=)."),
    ("Python", 0.25, "Python between the operators takes {} of the step: the arrays are so small "
     "that the calls take longer than the work on the arrays. Use a larger batch, or minidl.fuse."),
]


def sentences(summary, n=3):
    """Returns a list of n sentences. summary: the dict that summary.of() returns."""
    step_s = fmean(r["step_s"] for r in summary["ranks"])
    causes = chain(_of_rows(summary, step_s), _of_communication(summary, step_s))
    said = [text for _, text in sorted(causes, reverse=True)]
    return [*said, *_filling(summary, step_s, said)][:n]


def _of_rows(summary, step_s):
    for row, least, text in SIMPLE:
        if (share := mean_rows(summary)[row] / step_s) > least:
            yield share, text.format(f"{share:.0%}")
    share, rank = max((r["rows"]["input"] / r["step_s"], r["rank"]) for r in summary["ranks"])
    if share > 0.05:
        yield share, (f"Rank {rank} waits for input during {share:.0%} of the step: raise "
                      "prefetch= of the DataLoader, or prepare the data before the training.")
    wide = [op for op in summary["operators"] if op["dtype"] == "float64"]
    if (share := sum(op["s"] for op in wide) / step_s) > 0.05:
        where = f" ({wide[0]['module']})" if wide[0]["module"] else ""
        yield share, (f"Operators on float64 take {share:.0%} of the step, most of it "
                      f"{wide[0]['name']}{where}: cast the inputs to float32, which is twice as "
                      "fast and half as large.")
    if (share := mean_rows(summary)[WAITING] / step_s) > 0.05:
        yield share, f"The ranks wait for {_whom(summary, f'{share:.0%} of the step')}"


def _whom(summary, share):
    """Returns the rest of the sentence "The ranks wait for ...". If the ranks mostly wait for the
    same rank, the text names this rank. If the summary shows a reason, the text names the reason.
    share: a text such as "30% of the step"."""
    late = sum((Counter(r["late_s"]) for r in summary["ranks"]), Counter())
    who, most = late.most_common(1)[0]
    if most > 0.8 * late.total():
        rows = {str(r["rank"]): {k: s for k, s in r["rows"].items() if k != WAITING}
                for r in summary["ranks"]}
        mine, others = rows.pop(who), list(rows.values())
        times = sum(mine.values()) / median(sum(other.values()) for other in others)
        row = max(mine, key=lambda row: mine[row] - median(other[row] for other in others))
        return (f"rank {who} during {share}. Without its waits, a step of this rank takes "
                f"{times:.1f} times as long as a step of the other ranks. The difference is mostly "
                f"in {row}.")
    if summary["shapes_differ"]:
        return (f"each other during {share}, sometimes for one rank and sometimes for another. "
                "Their batches have different shapes: put samples of similar length into a batch "
                "(buckets).")
    return (f"each other during {share}, sometimes for one rank and sometimes for another. Do "
            "other programs share the cores?")


def _of_communication(summary, step_s):
    exposed, total = (fmean(r["communication"][k] for r in summary["ranks"])
                      for k in ("exposed_s", "total_s"))
    if exposed > 0.1 * step_s:
        yield exposed / step_s, (
            f"Exposed communication takes {exposed / step_s:.0%} of the step. This is "
            f"{exposed / total:.0%} of all communication. DataParallel's buckets hide "
            "communication behind backward. A larger batch or compression needs less "
            "communication.")
    tiny = [c for c in summary["collectives"] if c["sent"] <= SMALL * c["calls"]]
    share = sum(c["wait_s"] + c["moving_s"] for c in tiny) / step_s
    if share > 0.05:
        c = max(tiny, key=lambda c: c["wait_s"] + c["moving_s"])
        yield share, (f"Collectives that send only a few bytes take {share:.0%} of the step. The "
                      f"longest is {c['name']}, called {c['calls']:.1f} times a step at "
                      f"{c['line']}: take this call out of the loop.")
    rest = [c for c in summary["collectives"] if c not in tiny]
    calls, sent, moving_s = (sum(c[k] for c in rest) for k in ("calls", "sent", "moving_s"))
    if calls > 8 and sent / calls < 1 << 16 and moving_s > 0.05 * step_s:
        yield moving_s / step_s, (
            f"{calls:.0f} collectives a step send {sent / calls:,.0f} bytes each: latency takes "
            f"{moving_s / step_s:.0%} of the step. Send several arrays in one collective.")


def _filling(summary, step_s, said):
    roof_s = sum(op.get("roof_s", 0.0) for op in summary["operators"])
    if summary["operators"]:
        op = summary["operators"][0]
        roof = f", {op['s'] / op['roof_s']:.1f} times the time of its roofline" if roof_s else ""
        yield (f"The operator that takes the most time is {op['name']} {op['phase']}: "
               f"{op['s'] / step_s:.0%} of the step{roof}.")
    if not any(text.startswith("Python") for text in said):
        share = mean_rows(summary)["Python"] / step_s
        yield f"Python between the operators takes {share:.0%} of the step."
    if roof_s:
        yield (f"With every operator at its roofline the step would be {step_s / roof_s:.1f} times "
               "as fast.")
    yield "A roofline needs this machine's peaks: `minidl doctor --peaks` measures them."
