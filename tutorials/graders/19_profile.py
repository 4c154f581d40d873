"""Grades work/19_profile.py.   Test: tests/tutorials/test_exercises.py"""

import itertools

import numpy as np

from minidl.course.grade import Wrong, kind_of

SEED = 0  # `minidl check --student NAME` sets another one for each student

FAULTS = "synchronisation", "loader", "float64"
HINTS = {"synchronisation": "One small collective a step is allowed, such as for the loss. Do not "
                            "count large collectives, or collectives that send nothing",
         "loader": "A rank may be slow for many reasons: compare bytes, not seconds",
         "float64": "A little is no fault. It is a fault above 5 % of the operators' seconds"}


def span(kind, name, s, n_bytes=0, dtype=None):
    return {"kind": kind, "name": name, "s": s, "bytes": n_bytes, "dtype": dtype}


def traced(seed, faults=(), n_ranks=2, n_steps=5, n_tiny=1, n_empty=0, slow=None, wide=None,
           spread=None, many_large=0):
    """Returns a trace with these faults, and with things that look like faults.

    n_tiny     collectives of 8 bytes in a step that are no fault, such as an all-reduce of the loss
    n_empty    collectives of 0 bytes
    slow       a rank that takes five times as long for the same work
    wide       seconds of an operator on float64 / seconds of one on float32
    spread     bytes of the rank with the long texts / bytes of another rank
    many_large collectives of 4096 bytes"""
    rng = np.random.default_rng(SEED + seed)
    wide = float("float64" in faults) if wide is None else wide
    spread = 1.0 + 2.0 * ("loader" in faults) if spread is None else spread
    n_tiny += 4 if "synchronisation" in faults else 0
    ranks = [[] for _ in range(n_ranks)]
    for i in range(n_steps):
        full = rng.integers(100, 900) * 1000
        for rank, steps in enumerate(ranks):
            pace = (5 if rank == slow else 1) * rng.uniform(0.5, 1.5) * 1e-3
            moved = int(full * (spread if (rank + i) % n_ranks == 0 else 1))
            spans = [span("input", "input", pace)]
            for phase in ("forward", "backward"):
                spans += [span(phase, "linear", pace, moved, "float32"),
                          span(phase, "embedding", 0.1 * pace, moved // 10, None)]
                if wide:
                    spans.append(span(phase, "mul", wide * 1.1 * pace, moved // 5, "float64"))
            spans += [span("collective", "ring.all_reduce", pace, 8) for _ in range(n_tiny)]
            spans += [span("collective", "ring.all_reduce", pace, 0) for _ in range(n_empty)]
            spans += [span("collective", "ring.all_reduce", pace, 4096)
                      for _ in range(many_large)]
            spans.append(span("collective", "ring.all_reduce", 2 * pace, 400_000))
            spans.append(span("optimizer", "optimizer", pace))
            steps.append([spans[j] for j in rng.permutation(len(spans))])
    return ranks


def called(module, seed, faults, options):
    """Returns what find_faults() returns, sorted, or its type if it is no set, list or tuple."""
    found = module.find_faults(traced(seed, faults, **options))
    if not isinstance(found, (set, frozenset, list, tuple)):
        return kind_of(found)
    return sorted(map(str, found))


def judge(student, who, seed, faults=(), hint="", **options):
    found = student.run(called, seed, list(faults), options)
    if isinstance(found, str):
        raise Wrong(f"wanted a set of names from find_faults; got {found}")
    unknown = sorted(set(found) - set(FAULTS))
    if unknown:
        raise Wrong(f"{who}: {unknown[0]!r} is none of the names {', '.join(FAULTS)}")
    for name in FAULTS:
        if (name in found) != (name in faults):
            said = "was not found" if name in faults else "was found, but is not there"
            if name not in faults:
                hint = hint or HINTS[name]
            raise Wrong(f"{who}: {name!r} {said}. {hint}".rstrip())


def grade_19a(student):
    """the names of the faults in traces with all, some and none of them."""
    for n_ranks in (2, 3):
        for k in range(4):
            for faults in itertools.combinations(FAULTS, k):
                who = f"{n_ranks} ranks, {' and '.join(faults) or 'no fault'}"
                judge(student, who, n_ranks + k, faults, n_ranks=n_ranks)
        yield f"{n_ranks} ranks: every choice of the three faults"
    judge(student, "one collective of 8 bytes a step", 1)
    judge(student, "20 collectives of 0 bytes a step", 2, n_empty=20,
          hint="These collectives send nothing. Count collectives of 1 to 64 bytes")
    judge(student, "20 collectives of 4096 bytes a step", 2, many_large=20,
          hint="Count only collectives of at most 64 bytes")
    judge(student, "5 ranks, one tiny collective a step on each", 3, n_ranks=5,
          hint="A fault is more than one a step: divide by the ranks and by the steps")
    yield "tiny collectives: their number, ranks and size"
    for seed in range(3):
        judge(student, "a rank that is five times as slow", seed, slow=1)
    judge(student, "one rank's batches are 1.1 times as large", 4, spread=1.1,
          hint="The largest divided by the smallest must be above 1.25")
    judge(student, "in turn one rank moves 1.5 times the bytes of the other", 5, ["loader"],
          spread=1.5, hint="Over all steps the ranks move equal bytes: compare in each step")
    yield "batches of different sizes: in each step, by bytes"
    judge(student, "1 % of the time is on float64", 6, wide=0.01)
    judge(student, "20 % of the time is on float64, on both ranks", 7, ["float64"],
          wide=0.2, hint="A fault is over 5 % of the seconds of forward and backward operators. "
                         "Do not count operators, and do not leave out the backward ones")
    yield "float64: by its share of the operators' time"


SMALL = "1 <= s[\"bytes\"] <= 64"
WRONG = {
    "19a": {
        "always all three": ("return {'synchronisation', 'loader', 'float64'}",
                             "was found, but is not there"),
        "empty collectives count": ({SMALL: "s[\"bytes\"] <= 64"},
                                    "These collectives send nothing"),
        "all collectives count": ({SMALL: "s[\"bytes\"] >= 1"}, "was found, but is not there"),
        "not divided by the ranks": ({"small > len(ranks) * len(steps)": "small > len(steps)"},
                                     "was found, but is not there"),
        "loader by seconds": ({"sum(s[\"bytes\"] for s in rank if s[\"kind\"] == \"forward\")":
                               "sum(s[\"s\"] for s in rank if s[\"kind\"] == \"forward\")"},
                              "'loader'"),
        "over all steps": ({"np.mean([max(step) / min(step) for step in moved]) > 1.25":
                            "max(np.sum(moved, axis=0)) / min(np.sum(moved, axis=0)) > 1.25"},
                           "'loader' was not found"),
        "any float64": ({"wide_s > 0.05 * sum(s[\"s\"] for s in work)": "wide_s > 0"},
                        "A little is no fault"),
    },
}
