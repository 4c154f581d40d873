"""24  Training on a stream: exactly once, and late labels.    50 minutes, needs: 20, 26

Offsets belong into the snapshot, and a label counts by when it happened.

    mpirun -n 2 python tutorials/24_stream.py
    python tutorials/24_stream.py --sim 2    picture: out/24_stream.png

A log has partitions; a record has an offset in its partition. A run reads on and on, is killed, and
goes on from the offset that somebody has written down. Weights and offset are two things, written
one after the other, and a run may die between:

    the offset first      the records of this step are never seen:    killed k times, k m lost
    the weights first     they are seen again:                        k m repeated
    both in one snapshot  there is no between:                        none, none

Labels come late. What was shown is a positive if it is clicked, after a delay d; who waits for a
window w and then says "negative" is wrong about a part of the positives. If d is exponential with
mean T and late labels are dropped, a model learns to say

    p (1 - exp(-w / T))        instead of p

Or each record counts as a negative at once, and again as a positive if its label comes; weights in
the loss undo that every positive has been a negative before (nn/delayed.py), and the model says p.

When is a window over? Not when a clock says so: yesterday's log, read in a minute, must give the
same labels. Records carry the time at which they happened. What all inputs have passed, less the
slack by which records may be out of order, is the watermark; a window that ends before it is over.
An input without anything new must not stop the others for ever: it is idle, and left out.

A run need not begin from nothing: it takes over the rows of a model that was trained offline up to
a cut, with their optimizer's state, and reads the stream from the cut on (parallel.server.warm). A
gate compares the log loss on records after the cut, and refuses rows that predict worse.

Papers: Kreps et al. 2011 (Kafka); Akidau et al. 2015 (watermarks); Ktena et al. 2019 (delayed
feedback, arXiv 1907.06558). All of it on real flights: train_clicks.py.
Exercise: `minidl exercise 24` writes work/24_stream.py with the marked region empty;
`minidl check 24` grades it.
"""

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np

from minidl import Tensor, nn, snapshot
from minidl.comm import objects, ring
from minidl.course.out import BLUE, GREEN, ORANGE
from minidl.data.stream import FolderLog, Join, Source
from minidl.data.stream.prequential import Prequential
from minidl.nn import delayed
from minidl.nn import functional as F
from minidl.tutorial import Table, launch, picture, say

P, M = 2, 8  # partitions; records of each in a step
N_FEATURES, DELAY_S, WINDOW_S = 4, 3600, 1800
SHOWN = np.dtype([("id", "<i8"), ("x", "<f4", N_FEATURES)])
CLICKED = np.dtype([("id", "<i8")])
WAYS = {  # name: (window_s, late, loss)
    "window, late ones dropped": (WINDOW_S, "drop", F.binary_cross_entropy_with_logits),
    "at once and again, weighted": (0, "again", delayed.fake_negative_weighted),
}


def joined(arrivals, partitions, window, slack):
    """[(n, key, label)]: after n arrivals it was known that this key's label is 0 or 1.

    arrivals: (partition, kind, key, time) in the order in which they are read; time is when it
    happened. kind: "click"; "label"; or "idle": there is nothing new in this partition now (key and
    time are None), and so it stays until its next record is read."""
    # >>> exercise 24a: join records and labels by event time
    # A click whose label happened at most `window` after it gets 1, as soon as both have been read;
    # the label may be read first. It gets 0 as soon as the watermark is greater than its time +
    # window. The watermark is the least of the partitions' latest times, idle ones left out, less
    # `slack`. A partition of which nothing was read yet holds it at -math.inf; where all are idle
    # it stays; it never goes back. Of a key's clicks and labels the first one read counts, and a
    # key is given once. What waits at the end is not given.
    seen, idle, done = dict.fromkeys(range(partitions), -math.inf), set(), set()
    clicks, labels, found, watermark = {}, {}, [], -math.inf
    for n, (partition, kind, key, time) in enumerate(arrivals, 1):
        if kind == "idle":
            idle.add(partition)
        else:
            idle.discard(partition)
            seen[partition] = max(seen[partition], time)
            if key not in done:
                (clicks if kind == "click" else labels).setdefault(key, time)
            if key in clicks and key in labels and labels[key] <= clicks[key] + window:
                del clicks[key]
                done.add(key)
                found.append((n, key, 1))
        awake = [seen[p] for p in seen if p not in idle]
        watermark = max(watermark, min(awake, default=-math.inf) - slack)
        for over in [k for k, when in clicks.items() if when + window < watermark]:
            del clicks[over]
            done.add(over)
            found.append((n, over, 0))
    return found
    # <<<


class Killed(Exception):
    """Stands for kill -9 of all ranks. With real ones: tests/data/stream/test_kills.py."""


def life(t, folder, order, log, ends, dies_at):
    """From what the last life has left to the end, or to its step number dies_at: weights that
    count, for each record, how often it was trained on."""
    model, source = nn.Linear(1, sum(ends), bias=False), Source(
        log, t, per_partition=M, block=4 * M, until=ends)
    model.weight.data[...] = 0
    offsets, weights = folder / f"offsets{t.rank}.npy", folder / f"weights{t.rank}.npy"
    first = 0
    if order == "both in one snapshot":
        if snapshot.latest(folder) is not None:
            first = snapshot.load(folder, t, model=model, source=source)
    else:
        if offsets.exists():
            source.load_rows({"place": np.load(offsets)})
        if weights.exists():
            model.weight.data[...] = np.load(weights)
    for step, (parts, _) in enumerate(source, first):
        seen = np.zeros(model.weight.shape, np.float32)
        for part in parts:
            seen[[int(value) for value in part.values], 0] += 1
        model.weight.data += ring.all_reduce(t, seen)
        if order == "both in one snapshot":
            if step == first + dies_at:
                raise Killed
            snapshot.save(folder, step + 1, t, model=model, source=source)
            continue
        writes = [lambda: np.save(offsets, source.rows()["place"]),
                  lambda: np.save(weights, model.weight.data)]
        first_write, second_write = writes if order == "the offset first" else writes[::-1]
        first_write()
        if step == first + dies_at:
            raise Killed
        second_write()
    return model.weight.data


def exactly_once(t, args, table, folder):
    """{order: (lost, repeated)}."""
    ends, found = [args.records // P] * P, {}
    log = FolderLog(folder / "log", P)
    if t.rank == 0:
        for p, n in enumerate(ends):
            log.append(p, [b"%d" % (k * P + p) for k in range(n)], range(n))
    objects.broadcast(t, None)
    for order in ("the offset first", "the weights first", "both in one snapshot"):
        mine = folder / order
        mine.mkdir(exist_ok=True)
        objects.broadcast(t, None)
        counts, kills = None, 0
        while counts is None:
            try:
                counts = life(t, mine, order, log, ends, 1 if kills < args.kills else math.inf)
            except Killed:
                kills += 1
        lost, repeated = int((counts == 0).sum()), int(np.maximum(counts - 1, 0).sum())
        found[order] = lost, repeated
        table.row(f"{order}: kills", kills, args.kills, "exact")
        a_step = args.kills * P * M
        theory = {"the offset first": (a_step, 0), "the weights first": (0, a_step)}
        for what, n, wanted in zip(("lost", "repeated"), found[order],
                                   theory.get(order, (0, 0)), strict=True):
            table.row(f"{order}: records {what}", n, wanted, "exact")
    return found


def shown_and_clicked(folder, n):
    """Two logs: what was shown, one a minute, and the clicks, later. Also all truths by id."""
    rng = np.random.default_rng(24)
    shown, truth = np.empty(n, SHOWN), np.empty(n, bool)
    shown["id"], shown["x"] = np.arange(n), rng.standard_normal((n, N_FEATURES))
    logits = shown["x"] @ np.array([1.0, -0.7, 0.4, 0.0]) - 0.5
    truth = rng.random(n) < 1 / (1 + np.exp(-logits))
    times = 60_000 * np.arange(1, n + 1)
    clicked = np.zeros(truth.sum(), CLICKED)
    clicked["id"] = np.flatnonzero(truth)
    when = times[truth] + (1000 * rng.exponential(DELAY_S, truth.sum())).astype(np.int64)
    order = np.argsort(when, kind="stable")
    both = []
    for name, records, at in (("shown", shown, times), ("clicked", clicked[order], when[order])):
        log = FolderLog(folder / name, P)
        for p in range(P):
            mine = records["id"] % P == p
            log.append(p, [r.tobytes() for r in records[mine]], at[mine])
        both.append(log)
    return both, truth


def train(t, both, truth, way, rate=0.3):
    """(calibration over time, that of the last two thirds, labels given); on all ranks alike."""
    window_s, late, loss_of = WAYS[way]
    ends = [[log.newest(p) for p in range(P)] for log in both]
    stream = Join(*both, t, key="id", of_click=SHOWN, of_label=CLICKED, window_s=window_s,
                  late=late, step_s=1800.0, until=ends)
    weights = Tensor(np.zeros(N_FEATURES + 1, np.float32), requires_grad=True)
    curve, some, whole, n_shown, labels = [], Prequential(), Prequential(), 0, []
    for parts, _ in stream:
        gradient = np.zeros(N_FEATURES + 3, np.float32)
        for part in parts:
            x = part.arrived.values["x"]  # test ...
            p = 1 / (1 + np.exp(-(x @ weights.data[1:] + weights.data[0])))
            y = truth[part.arrived.values["id"]]
            some.add(p, y)
            later = part.arrived.values["id"] > len(truth) / 3
            whole.add(p[later], y[later])
            gradient[-1] += part.arrived.n
            labels += zip(part.samples.values["id"].tolist(), part.labels.tolist(), strict=True)
            if part.samples.n:  # ... then train
                x = Tensor(part.samples.values["x"])
                loss = loss_of((x * weights[1:]).sum(1) + weights[0], part.labels)
                (loss * part.samples.n).backward()
                gradient[:-2] += weights.grad
                gradient[-2] += part.samples.n
                weights.grad = None
        gradient = ring.all_reduce(t, gradient)
        weights.data -= rate * gradient[:-2] / max(gradient[-2], 1)
        n_shown += gradient[-1]
        if n_shown > 500 * (len(curve) + 1):
            curve.append((n_shown, some.report(t)["calibration"]))
    return curve, whole.report(t)["calibration"], labels


def late_labels(t, args, table, folder):
    if t.rank == 0:
        shown_and_clicked(folder, args.shown)
    objects.broadcast(t, None)
    both = [FolderLog(folder / name) for name in ("shown", "clicked")]
    truth = np.zeros(args.shown, bool)
    for p in range(P):
        truth[both[1].read(p, 0, args.shown).typed(CLICKED).values["id"]] = True
    curves = {}
    theory = {"window, late ones dropped": 1 - math.exp(-WINDOW_S / DELAY_S)}
    for way in WAYS:
        curve, whole, labels = train(t, both, truth, way)
        curves[way] = curve, whole
        table.row(f"says of the truth: {way}", whole, theory.get(way, 1.0), "abs<0.1")
        if way == "window, late ones dropped":
            alike(t, table, both, labels)
    return curves


def alike(t, table, both, labels):
    """The loop above and data.stream.Join give the same labels, partition by partition."""
    ours = []
    for p in range(P)[t.rank :: t.size]:
        shown, clicked = (log.read(p, 0, 10**6).typed(kind)
                          for log, kind in zip(both, (SHOWN, CLICKED), strict=True))
        arrivals = [(0, "click", key, time) for key, time in
                    zip(shown.values["id"].tolist(), shown.times.tolist(), strict=True)]
        arrivals += [(1, "label", key, time) for key, time in
                     zip(clicked.values["id"].tolist(), clicked.times.tolist(), strict=True)]
        arrivals.sort(key=lambda one: one[3])
        arrivals += [(p, "label", -1, 2**60) for p in (0, 1)]  # all windows are over
        ours += [one[1:] for one in joined(arrivals, 2, 1000 * WINDOW_S, 0)]
    differ = len(set(ours) ^ {(key, int(label)) for key, label in labels})
    n, differ = ring.all_reduce(t, np.array([len(ours), differ]))
    table.row("labels of this file's join", n, sum(log.newest(p) for log in both[:1]
                                                   for p in range(P)), "exact")
    table.row("of them unlike data.stream.Join's", differ, 0, "exact")


def main(t, args):
    table = Table(t)
    folder = Path(objects.broadcast(t, tempfile.mkdtemp() if t.rank == 0 else None))
    kills = exactly_once(t, args, table, folder)
    say(t, f"killed {args.kills} times between two writes")
    curves = late_labels(t, args, table, folder)
    picture(t, draw, kills, curves)
    if t.rank == 0:
        shutil.rmtree(folder)
    return table


OPTIONS = {
    "records": (800, "records of the first part"),
    "kills": (12, "how often it is killed"),
    "shown": (6000, "records of the second part"),
}


def draw(plt, kills, curves):
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4))
    for i, (color, what) in enumerate(((ORANGE, "lost"), (BLUE, "repeated"))):
        bars = left.bar([x + 0.4 * i for x in range(3)], [both[i] for both in kills.values()], 0.4,
                        color=color, label=what)
        left.bar_label(bars)
    left.set(xticks=[x + 0.2 for x in range(3)], xticklabels=list(kills), ylabel="records",
             title="Killed between two writes")
    left.legend()
    for (way, (curve, whole)), color in zip(curves.items(), (ORANGE, GREEN), strict=True):
        right.plot(*zip(*curve, strict=True), color=color, label=f"{way}: {whole:.2f}")
    right.axhline(1, color="k", linewidth=0.5)
    right.axhline(1 - math.exp(-WINDOW_S / DELAY_S), color=ORANGE, linewidth=0.8, linestyle=":")
    right.set(xlabel="records shown", title="Sum of predictions / clicks", ylim=(0, 2))
    right.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
