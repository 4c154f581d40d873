"""Grades work/24_stream.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

from minidl.course.grade import Wrong

IDLE = "idle", None, None
CASES = {  # name: (arrivals, partitions, window, slack, the right answer, the reason)
    "a label within its window, and a click without one": (
        [(0, "click", 7, 100), (0, "label", 7, 110), (0, "click", 8, 120), (0, "click", 9, 141)],
        1, 20, 0, [(2, 7, 1), (4, 8, 0)],
        "a click gets 1 as soon as both are read, and 0 as soon as the watermark is greater than "
        "time + window; a click that waits at the end is not given"),
    "a window ends when the watermark is greater, not when it is equal": (
        [(0, "click", 7, 100), (0, "click", 8, 120), (0, "label", 7, 120)],
        1, 20, 0, [(3, 7, 1)],
        "a label that happened exactly `window` after its click is within it"),
    "a label that is read before its click": (
        [(1, "label", 7, 105), (0, "click", 7, 100), (0, "click", 8, 300), (1, "label", 5, 300)],
        2, 20, 0, [(2, 7, 1)],
        "keep a label until its click has been read"),
    "a label that is read late, but happened in time": (
        [(1, "label", 1, 90), (0, "click", 7, 100), (0, "click", 8, 500), (0, "click", 9, 900),
         (1, "label", 7, 115), (1, "label", 6, 121)],
        2, 20, 0, [(5, 7, 1)],
        "a label counts by its event time, not by the time at which it is read, and the watermark "
        "is the smallest of the partitions' times"),
    "a label that happened after the window": (
        [(0, "click", 7, 100), (1, "label", 7, 121), (0, "click", 8, 125)],
        2, 20, 0, [(3, 7, 0)],
        "its click gets 0 when its window is over"),
    "a partition from which nothing was read yet": (
        [(0, "click", 7, 100), (0, "click", 8, 900), (1, "label", 7, 101)],
        2, 20, 0, [(3, 7, 1)],
        "its time is not known yet, so it holds the watermark at -inf"),
    "an idle partition": (
        [(0, "click", 7, 100), (1, "label", 1, 90), (0, "click", 8, 900), (1, *IDLE)],
        2, 20, 0, [(4, 7, 0)],
        "an idle partition must not hold up the windows of the others"),
    "an idle partition comes back": (
        [(0, "click", 7, 100), (1, *IDLE), (0, "click", 8, 115), (1, "label", 7, 101),
         (0, "click", 9, 190), (1, "label", 8, 116)],
        2, 20, 0, [(4, 7, 1), (6, 8, 1)],
        "with its next record it is not idle any more, and the watermark counts it again"),
    "all partitions are idle": (
        [(0, "click", 7, 100), (1, "label", 1, 100), (0, *IDLE), (1, *IDLE)],
        2, 20, 0, [],
        "then no window ends: the watermark stays"),
    "the watermark does not go back": (
        [(0, "click", 7, 100), (1, *IDLE), (0, "click", 8, 300), (1, "click", 9, 150)],
        2, 20, 0, [(3, 7, 0), (4, 9, 0)],
        "a partition that was idle may bring old records, but a window that is over stays over"),
    "slack": (
        [(0, "click", 7, 100), (0, "click", 8, 125), (0, "label", 7, 110), (0, "click", 9, 156)],
        1, 20, 10, [(3, 7, 1), (4, 8, 0)],
        "records may be out of order by `slack`: subtract it for the watermark"),
    "a record that comes twice": (
        [(0, "click", 7, 100), (0, "label", 7, 110), (0, "click", 7, 100), (0, "label", 7, 110),
         (0, "click", 8, 200), (0, "click", 8, 230), (0, "label", 8, 300), (0, "label", 8, 225)],
        1, 20, 0, [(2, 7, 1), (6, 8, 0)],
        "a key is given once; its first click and its first label count"),
}


def answered(module, arrivals, partitions, window, slack):
    """Returns what joined() returns, as plain numbers."""
    return [(int(n), int(key), int(label))
            for n, key, label in module.joined(list(arrivals), partitions, window, slack)]


def random_arrivals(seed):
    rng = np.random.default_rng([24, seed])
    partitions, found = int(rng.integers(1, 4)), []
    clock = rng.integers(0, 50, partitions)
    for _ in range(120):
        p = int(rng.integers(partitions))
        if rng.random() < 0.1:
            found.append((p, *IDLE))
            continue
        clock[p] += rng.integers(0, 12)
        kind = "click" if rng.random() < 0.6 else "label"
        found.append((p, kind, int(rng.integers(50)), int(clock[p] - rng.integers(0, 5))))
    return found, partitions, int(rng.integers(0, 40)), int(rng.integers(0, 8))


def grade_24a(student):
    """each click once, with the label that event time gives it, as soon as it is known."""
    for name, (*case, wanted, why) in CASES.items():
        found = sorted(student.run(answered, *case))
        if found != wanted:
            raise Wrong(f"{name}: wanted {wanted}; got {found}. The reason: {why}.\n"
                        f"The arrivals: {case[0]}, window {case[2]}, slack {case[3]}")
        yield name
    for seed in range(20):
        case = random_arrivals(seed)
        found = sorted(student.run(answered, *case))
        keys = [key for _, key, _ in found]
        if len(set(keys)) < len(keys):
            raise Wrong(f"120 random arrivals: a key is given twice: {found}")
        if found != reference(*case):
            raise Wrong(f"120 random arrivals: wanted {reference(*case)}; got {found}.\nThe "
                        f"arrivals: {case[0]}, window {case[2]}, slack {case[3]}")
    yield "20 times 120 random arrivals"


# >>> reference
def reference(arrivals, partitions, window, slack):
    """Returns the right answer. It goes over all arrivals once for each key."""
    marks, seen, idle, mark = [], [-math.inf] * partitions, set(), -math.inf
    for p, kind, _, time in arrivals:
        idle = idle | {p} if kind == "idle" else idle - {p}
        seen[p] = seen[p] if kind == "idle" else max(seen[p], time)
        mark = max(mark, min((s for i, s in enumerate(seen) if i not in idle), default=-math.inf)
                   - slack)
        marks.append(mark)
    found = []
    for key in {arrival[2] for arrival in arrivals} - {None}:
        first = {}
        for n, (_, kind, k, time) in enumerate(arrivals, 1):
            if k == key:
                first.setdefault(kind, (n, time))
        if "click" not in first:
            continue
        n, time = first["click"]
        over = next((i for i, m in enumerate(marks, 1) if i >= n and m > time + window), math.inf)
        both = math.inf
        if "label" in first and first["label"][1] <= time + window:
            both = max(n, first["label"][0])
        if min(both, over) < math.inf:
            found.append((both, key, 1) if both <= over else (over, key, 0))
    return sorted(found)
# <<<


# {exercise: {name of the mistake: ({right: wrong}, words that its message must have)}}
WRONG = {
    "24a": {
        "the furthest partition is the watermark": (
            {"min(awake, default": "max(awake, default"},
            "the watermark is the smallest of the partitions' times",
        ),
        "idle partitions count": (
            {"if p not in idle]": "]"},
            "an idle partition must not hold up",
        ),
        "idle for ever": (
            {"idle.discard(partition)": "pass"},
            "with its next record it is not idle any more",
        ),
        "no slack": (
            {" - slack)": ")"},
            "out of order by `slack`",
        ),
        "a key may come again": (
            {"if key not in done:": "if True:"},
            "a key is given once",
        ),
        "labels without a window": (
            {" and labels[key] <= clicks[key] + window": ""},
            "its click gets 0 when its window is over",
        ),
        "a window ends at the watermark": (
            {"when + window < watermark": "when + window <= watermark"},
            "exactly `window` after its click",
        ),
        "all idle: everything is over": (
            {"min(awake, default=-math.inf)": "min(awake, default=math.inf)"},
            "the watermark stays",
        ),
    },
}
