"""minidl/data/stream/join.py: what event time says, whatever the ranks and the kills."""

import math
from itertools import islice

import numpy as np
import pytest

from minidl import nn, snapshot
from minidl.comm import objects, simulate, tree
from minidl.data.stream import FolderLog, Join
from minidl.data.stream.join import watermark
from tests.conftest import ranks
from tests.snapshot.test_snapshot import common_folder

CLICK = np.dtype([("id", "<i8"), ("x", "<f4")])
LABEL = np.dtype([("id", "<i8"), ("label", "<f4")])
P, N, HOUR = 3, 120, 3_600_000


def made(seed=0, disorder=0):
    """(clicks, labels) of each partition as [(time, id, value)], in the order of the log: clicks of
    some days, 70% with a label, up to 6 hours later; some labels come twice."""
    rng = np.random.default_rng(seed)
    clicks, labels = [], []
    for p in range(P):
        times = np.sort(rng.integers(0, 40 * HOUR, N))
        mine = [(int(t), P * k + p, float(k)) for k, t in enumerate(times)]
        delays = rng.integers(-disorder, 6 * HOUR, N)
        theirs = [(int(t + d), i, float(rng.integers(2))) for (t, i, _), d in
                  zip(mine, delays, strict=True) if rng.random() < 0.7]
        theirs += theirs[::9]
        for events, into in ((mine, clicks), (theirs, labels)):
            late = rng.integers(0, disorder + 1, len(events))  # in the log that much later
            order = np.argsort([t + d for (t, *_), d in zip(events, late, strict=True)],
                               kind="stable")
            into.append([events[i] for i in order])
    return clicks, labels


def logs(folder, clicks, labels):
    found = []
    for name, dtype, events in (("clicks", CLICK, clicks), ("labels", LABEL, labels)):
        log = FolderLog(folder / name, P, segment_bytes=500)
        for p, mine in enumerate(events):
            values = [np.array((i, v), dtype).tobytes() for _, i, v in mine]
            log.append(p, values, [t for t, *_ in mine])
        found.append(log)
    return found


def joined(t, logs, source=None, n_steps=None, **options):
    """([(partition, id, label, again, time)] of each step, ids that arrived)."""
    source = source or make(t, logs, **options)
    steps = []
    for parts, _ in islice(source, n_steps):
        given = [(part.partition, i, y, a, when) for part in parts for i, y, a, when in zip(
            part.samples.values["id"].tolist(), part.labels.tolist(), part.again.tolist(),
            part.samples.times.tolist(), strict=True)]
        steps.append((given, [i for part in parts for i in part.arrived.values["id"].tolist()]))
    return steps


def make(t, logs, **options):
    ends = [[log.newest(p) for p in range(P)] for log in logs]
    options = {"window_s": 7200, "slack_s": 0, "until": ends} | options
    return Join(*logs, t, key="id", of_click=CLICK, of_label=LABEL, **options)


def wanted(clicks, labels, window, late):
    """By a look at everything: {(partition, id): [(label, again, when)]}."""
    found = {}
    for p in range(P):
        first = {}
        for when, i, y in sorted(labels[p]):
            first.setdefault(i, (when, y))
        for when, i, _ in clicks[p]:
            came, y = first.get(i, (math.inf, 0.0))
            if came <= when + window and came < math.inf:
                found[p, i] = [(y, False, max(came, when))]
            elif window < math.inf:
                found[p, i] = [(0.0, False, when + window)]
                if late == "again" and y and came < math.inf:
                    found[p, i].append((y, True, came))
    return found


def by_id(steps):
    found = {}
    for given, _ in steps:
        for p, i, *rest in given:
            found.setdefault((p, i), []).append(tuple(rest))
    return found


@pytest.mark.parametrize("disorder", [0, HOUR // 2])
@pytest.mark.parametrize("late", ["drop", "again"])
@pytest.mark.parametrize("window_s", [None, 0, 7200])
def test_joins_are_what_event_time_says(tmp_path, window_s, late, disorder):
    clicks, labels = made(disorder=disorder)
    window = math.inf if window_s is None else 1000 * window_s
    steps = simulate(1, lambda t: joined(t, logs(tmp_path, clicks, labels), late=late,
                                         window_s=window_s, slack_s=3 * disorder / 1000))[0]
    assert by_id(steps) == wanted(clicks, labels, window, late)
    assert sorted(i for _, arrived in steps for i in arrived) == list(range(P * N))


@ranks(2, 3, 4, 5)
def test_steps_do_not_depend_on_the_number_of_ranks(t):
    with common_folder(t) as folder:
        if t.rank == 0:
            logs(folder, *made())
        tree.barrier(t)
        both = [FolderLog(folder / name) for name in ("clicks", "labels")]
        found = objects.gather(t, joined(t, both, late="again"))
        if t.rank == 0:
            one = joined(t.subgroup([0]), both, late="again")
            assert len(one) > 30, "steps of an hour"
            for whole, *parts in zip(one, *found, strict=True):
                assert sorted(whole[0]) == sorted(x for part in parts for x in part[0])
                assert sorted(whole[1]) == sorted(x for part in parts for x in part[1])


@pytest.mark.parametrize("late, window_s", [("again", 7200), ("drop", None)])
def test_a_resume_goes_on_with_what_waited(tmp_path, late, window_s):
    """On 3 ranks, then 2, then 1, then 3 ..., each for two steps."""
    both = logs(tmp_path, *made(disorder=HOUR // 2))
    options = {"late": late, "window_s": window_s, "slack_s": 5400, "step_s": 5 * 3600}
    whole = simulate(1, lambda t: joined(t, both, **options))[0]

    def some(t):
        source, step = make(t, both, **options), 0
        if snapshot.latest(tmp_path) is not None:
            step = snapshot.load(tmp_path, t, model=nn.Linear(1, 1), source=source)
        steps = joined(t, both, source, 2)
        snapshot.save(tmp_path, step + 1, t, model=nn.Linear(1, 1), source=source)
        return steps

    found = []
    for size in [3, 2, 1] * 20:
        ranks = simulate(size, some)
        found += [(sum((part[0] for part in parts), []), sum((part[1] for part in parts), []))
                  for parts in zip(*ranks, strict=True)]
        if not ranks[0]:
            break
    assert [(sorted(a), sorted(b)) for a, b in found] == [(sorted(a), sorted(b)) for a, b in whole]


@pytest.mark.parametrize("slack_s", [0, 1])
def test_a_label_at_the_end_of_the_window_counts(tmp_path, slack_s):
    """However the logs lie: the next click is later, at the same time, or there is none."""
    clicks = [[(1000, 1, 0.0), (9000, 2, 0.0)], [(1000, 1, 0.0), (3000, 2, 0.0)], [(1000, 1, 0.0)]]
    labels = [[(3000, 1, 1.0)]] * P
    steps = simulate(1, lambda t: joined(t, logs(tmp_path, clicks, labels), window_s=2,
                                         slack_s=slack_s))[0]
    found = by_id(steps)
    assert [found[p, 1] for p in range(P)] == [[(1.0, False, 3000)]] * P
    assert found == wanted(clicks, labels, 2000, "drop")


def test_a_label_before_its_click_a_second_one_and_one_without(tmp_path):
    clicks = [[(1000, 1, 0.0), (2000, 1, 9.0), (3000, 2, 0.0), (9000, 4, 0.0)], [], []]
    labels = [[(900, 1, 1.0), (950, 1, 0.0), (1000, 3, 1.0), (3500, 2, 1.0), (3600, 2, 0.0)], [],
              []]

    def body(t):
        both = logs(tmp_path, clicks, labels)
        source = make(t, both, slack_s=0.2, window_s=None)
        return joined(t, both, source), source

    (steps, source), = simulate(1, body)
    assert by_id(steps) == {(0, 1): [(1.0, False, 1000)], (0, 2): [(1.0, False, 3500)]}
    assert source.counts["labels without a click"] == 2, "of 3, and the second of 2"


def test_the_watermark_leaves_out_idle_inputs_only():
    assert watermark([5000, 3000], [False, False], 500) == 2500
    assert watermark([5000, 3000], [False, True], 500) == 4500
    assert watermark([math.inf, 3000], [False, False], 0) == 3000
    assert watermark([math.inf, math.inf], [False, False], 10) == math.inf
    assert watermark([5000, 3000], [True, True], 0) == -math.inf


def test_an_idle_input_does_not_hold_up_windows(tmp_path):
    """Partition 0 has no labels at all, and nobody says that none will come."""
    clicks = [[(k * HOUR, k, 0.0) for k in range(9)], [], []]
    both = logs(tmp_path, clicks, [[], [], []])

    def body(t):
        source = make(t, both, until=None, idle_s=0.02)
        return joined(t, both, source, 8)

    given = [sample for step, _ in simulate(1, body)[0] for sample in step]
    assert given == [(0, k, 0.0, False, (k + 2) * HOUR) for k in range(len(given))] and len(given)


def test_wrong_use_is_refused(tmp_path):
    both = logs(tmp_path, *made())
    with pytest.raises(RuntimeError, match="the same number of partitions, and late="):
        simulate(1, lambda t: make(t, both, late="never"))

    def other(t):
        make(t, both).load_state_dict({**make(t, both).state_dict(), "late": "again"})

    with pytest.raises(RuntimeError, match="the snapshot's stream has late again, here drop"):
        simulate(1, other)
