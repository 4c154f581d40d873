"""24  Training on a stream: exactly once, and late labels.    50 minutes, needs: 21, 26

    mpirun -n 2 python tutorials/24_stream.py
    python tutorials/24_stream.py --sim 2    picture: out/24_stream.png

A run must save its position in the stream together with its weights. A log has partitions, and a
record has an offset, its number in its partition. The log never ends: new records are added all the
time. If a run is killed, it continues from the last offset that it saved. If weights and offset are
saved by two writes, the run may be killed between the two writes. A step has m records, and the run
is killed k times:

    saved first            what happens to the records of the step    in all
    the offset             the model never sees them                  k m records lost
    the weights            the model sees them again                  k m records repeated
    both in one snapshot   there is no time between two writes        none lost, none repeated

Labels come late. An item is shown to a user. It is a positive if the user clicks it, after a delay
d. Let p be the probability of a click. A model may wait for a window w after the item was shown. An
item without a click in the window counts as a negative, and later clicks are dropped. Then some
positives count as negatives. If d is exponential with mean T, the model learns to predict
p (1 - exp(-w / T)) instead of p. There is another way: each item counts as a negative at once, and
again as a positive when its click comes. So every positive has been a negative before. Weights in
the loss correct this (nn/delayed.py), and the model predicts p.

When is a window over? The computer's clock cannot tell. A log can be read a second time, and then a
day of records takes only a minute. Both times the labels must be the same. So each record has an
event time, the time at which it happened. Records may be out of order by some time, the slack. The
watermark is the time that all partitions have reached, minus the slack. A window is over when the
watermark is past its end. A partition without new records must not stop the watermark for ever.
Such a partition is idle, and the watermark does not count it. data.stream.Join does this on logs,
over many ranks. train_clicks.py trains in this way on real flights.

Papers: Kreps et al. 2011 (Kafka); Akidau et al. 2015 (watermarks); Ktena et al. 2019 (late labels).
Exercise: `minidl exercise 24` writes work/24_stream.py with the marked region empty;
`minidl check 24` grades it.
"""

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np

import minidl
from minidl import nn, snapshot
from minidl.comm import objects, ring
from minidl.course.out import BLUE, GREEN, ORANGE
from minidl.course.tutorial import Table, launch, picture
from minidl.data.stream import FolderLog, Source
from minidl.data.stream.prequential import Prequential
from minidl.nn import delayed
from minidl.nn import functional as F

P = 2  # number of partitions
M = 8  # number of records that a step reads from a partition
DELAY, WINDOW = 60, 30  # the mean delay T of a click, and the window w, in minutes
ORDERS = {  # name: (the writes after a step, in order; (records lost, records repeated) by a kill)
    "the offset first": (("offset", "weights"), (P * M, 0)),
    "the weights first": (("weights", "offset"), (0, P * M)),
    "both in one snapshot": (("snapshot",), (0, 0)),
}


def joined(arrivals, partitions, window, slack):
    """Returns [(n, key, label)]. An entry means: after n arrivals it is known that the click `key`
    has this label, 0 or 1.

    arrivals  a list of (partition, kind, key, time), in the order in which they are read. time is
              the event time. kind is "click", "label" or "idle". Kind "idle" means: the
              partition is idle until its next record comes. In this case key and time are None
    window    a label counts if its time is at most `window` after the time of its click
    slack     by how much the times of records may be out of order"""
    # >>> exercise 24a: join records and labels by event time
    # A click and a label belong together if they have the same key. A click gets 1 as soon as the
    # click and a label in its window have been read. The label may be read first. A click gets 0 as
    # soon as the watermark is greater than the click's time + window.
    # The watermark: take the latest time of each partition that is not idle, and of these times the
    # smallest. Subtract `slack`. While a partition is not idle and nothing has been read from it,
    # the watermark is -math.inf. While all partitions are idle, the watermark stays. It never goes
    # back.
    # If a key has several clicks or labels, the first one that is read counts. Return each key
    # once. Do not return clicks that still wait at the end.
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
        awake = [seen[p] for p in seen if p not in idle]
        watermark = max(watermark, min(awake, default=-math.inf) - slack)
        known = {k: 0 for k, when in clicks.items() if when + window < watermark}
        if key in clicks and key in labels and labels[key] <= clicks[key] + window:
            known[key] = 1
        for k, label in known.items():
            del clicks[k]
            done.add(k)
            found.append((n, k, label))
    return found
    # <<<


def life(t, folder, writes, log, ends, dies):
    """Runs from the saved state to the end of the log. Returns the weights.

    Weight i is the number of times that record i was trained on. If `dies` is True, the run stops
    in its second step, before the last of its writes, and returns None. writes: what each step
    writes, in order, such as ["offset", "weights"]. ends: the number of records of each
    partition."""
    model = nn.Linear(1, sum(ends), bias=False)
    model.weight.array[...] = 0
    source = Source(log, t, per_partition=M, block=4 * M, until=ends)
    offset = folder / f"offset{t.rank}.npy"
    weights = folder / f"weights{t.rank}.npy"

    def write(what, step):
        if what == "offset":
            np.save(offset, source.rows()["place"])
        elif what == "weights":
            np.save(weights, model.weight.array)
        else:
            snapshot.save(folder, step, t, model=model, source=source)

    # Loads the state that the last run has saved.
    first = 0
    if snapshot.latest(folder):
        first = snapshot.load(folder, t, model=model, source=source)
    if offset.exists():
        source.load_rows({"place": np.load(offset)})
    if weights.exists():
        model.weight.array[...] = np.load(weights)

    for step, (parts, _) in enumerate(source, first + 1):
        seen = np.zeros(model.weight.shape, np.float32)
        for part in parts:
            records = [int(value) for value in part.values]
            seen[records, 0] += 1
        model.weight.data += ring.all_reduce(t, seen)

        for what in writes:
            if dies and step == first + 2 and what == writes[-1]:
                return None  # like kill -9, which tests/data/stream/test_kills.py uses
            write(what, step)
    return model.weight.array


def exactly_once(t, args, table, folder):
    """Runs with each order of writes. In each order the run is killed args.kills times.

    Returns {order: (number of records lost, number of records repeated)}."""
    log = FolderLog(folder / "log", P)
    n = args.records // P
    if t.rank == 0:
        for p in range(P):
            values = [b"%d" % (k * P + p) for k in range(n)]
            log.append(p, values, range(n))

    found = {}
    for order, (writes, (lost_by_kill, repeated_by_kill)) in ORDERS.items():
        (folder / order).mkdir(exist_ok=True)
        objects.broadcast(t, None)  # waits until rank 0 has written the log
        for k in range(args.kills + 1):
            counts = life(t, folder / order, writes, log, [n] * P, dies=k < args.kills)

        lost = int(np.sum(counts == 0))
        repeated = int(np.maximum(counts - 1, 0).sum())
        table.row(f"{order}: records lost", lost, args.kills * lost_by_kill, "exact")
        table.row(f"{order}: records repeated", repeated, args.kills * repeated_by_kill, "exact")
        found[order] = lost, repeated
    return found


def sigmoid(scores):
    return 1 / (1 + np.exp(-scores))


def shown_and_clicked(n):
    """Returns (x, clicked, delays of the clicks, arrivals) for n items. One item is shown each
    minute.

    x: (n, 5) features. clicked: (n,) bool. delays: minutes, for the items that were clicked.
    arrivals: the items and clicks in order of time, as an argument for joined()."""
    rng = np.random.default_rng(24)
    x = np.c_[np.ones(n), rng.standard_normal((n, 4))].astype(np.float32)
    w = np.array([-0.5, 1.0, -0.7, 0.4, 0.0])
    truth = rng.random(n) < sigmoid(x @ w)
    delays = rng.exponential(DELAY, n)

    arrivals = [(0, "click", k, k) for k in range(n)]
    arrivals += [(1, "label", k, k + delays[k]) for k in range(n) if truth[k]]
    arrivals += [(partition, "label", -1, math.inf) for partition in (0, 1)]  # they end all windows
    return x, truth, delays[truth], sorted(arrivals, key=lambda arrival: arrival[3])


def train(x, truth, labels, loss_of, rate=0.3):
    """Predicts and trains in the order of event time.

    Returns [(number of items shown so far, report on the predictions for the last 600 items)].
    labels: a list of (minute at which the label is known, key, label). Every 30 minutes the model
    predicts the items that were shown in these minutes. Then it trains on the items whose labels
    have come."""
    w = minidl.zeros(5, requires_grad=True)
    test = Prequential()
    curve = []
    for now in range(0, len(x), 30):
        new = slice(now, now + 30)
        test.add(sigmoid(x[new] @ w.array), truth[new])

        known = np.array([(key, y) for minute, key, y in labels if now <= minute < now + 30])
        if len(known):
            keys, y = known[:, 0], known[:, 1]
            scores = minidl.tensor(x[keys]) @ w
            loss_of(scores, np.float32(y)).backward()
            w = minidl.tensor(w.array - rate * w.grad.numpy(), requires_grad=True)
        if (now + 30) % 600 == 0:
            curve.append((now + 30, test.report()))
    return curve


def late_labels(args, table):
    """Trains in each of the two ways to treat late labels: to wait for a window, and to count each
    item at once.

    Returns {way: the list that train() returns}. All ranks do the same."""
    x, truth, delays, arrivals = shown_and_clicked(args.shown)
    times = [time for _, _, _, time in arrivals]
    once = [(times[n - 1], key, label) for n, key, label in joined(arrivals, 2, WINDOW, 0)]
    twice = [(time, key, int(kind == "label")) for _, kind, key, time in arrivals]
    n_positives = sum(label for _, _, label in once)
    n_in_window = int((delays <= WINDOW).sum())
    table.row("positives of the join: clicked within the window", n_positives, n_in_window, "exact")

    in_window = 1 - math.exp(-WINDOW / DELAY)  # the share of the clicks that come in the window
    ways = {  # name: (labels, loss, the share of the clicks that the model predicts)
        "window, late ones dropped": (once, F.binary_cross_entropy_with_logits, in_window),
        "at once and again, weighted": (twice, delayed.fake_negative_weighted, 1.0),
    }
    curves = {}
    for way, (labels, loss_of, theory) in ways.items():
        curve = train(x, truth, labels, loss_of)
        learnt = [good["calibration"] for n, good in curve if n > args.shown / 3]
        table.row(f"sum of predictions / clicks: {way}", float(np.mean(learnt)), theory, "abs<0.1")
        curves[way] = curve
    return curves


def main(t, args):
    table = Table(t)
    name = tempfile.mkdtemp() if t.rank == 0 else None
    folder = Path(objects.broadcast(t, name))
    kills = exactly_once(t, args, table, folder)
    if t.rank == 0:
        shutil.rmtree(folder)

    curves = late_labels(args, table)
    picture(t, args, draw, kills, curves)
    return table


OPTIONS = {
    "records": (800, "number of records in the log of the first part"),
    "kills": (12, "how often the run is killed"),
    "shown": (6000, "number of items shown in the second part"),
}


def draw(plt, kills, curves):
    figure, (left, right, auc) = plt.subplots(1, 3, figsize=(16, 4.4), width_ratios=[1.2, 1, 1])
    for i, (color, what) in enumerate(((ORANGE, "lost"), (BLUE, "repeated"))):
        bars = left.bar([x + 0.4 * i for x in range(3)], [both[i] for both in kills.values()], 0.4,
                        color=color, label=what)
        left.bar_label(bars)
    left.set(xticks=[x + 0.2 for x in range(3)], xticklabels=list(kills), ylabel="records",
             title="Killed between two writes")
    left.legend()
    for (way, curve), color in zip(curves.items(), (ORANGE, GREEN), strict=True):
        n, good = zip(*curve, strict=True)
        right.plot(n, [now["calibration"] for now in good], color=color, label=way)
        auc.plot(n, [now["auc"] for now in good], color=color)
    right.axhline(1, color="k", linewidth=0.5)
    right.axhline(1 - math.exp(-WINDOW / DELAY), color=ORANGE, linewidth=0.8, linestyle=":")
    right.set(xlabel="items shown", title="Sum of predictions / number of clicks", ylim=(0, 1.5))
    auc.set(xlabel="items shown", title="AUC: the two ways order items equally well",
            ylim=(0.5, 0.9))
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
