"""24  Training on a stream: exactly once, and late labels.    50 minutes, needs: 21, 26

    mpirun -n 2 python tutorials/24_stream.py
    python tutorials/24_stream.py --sim 2    picture: out/24_stream.png

The offset belongs in the snapshot. A log has partitions, and a record has an offset in its
partition. A run reads the log without an end. If it is killed, it continues from the last offset
that it saved. Weights and offset are two writes, and the run may die between them. If a step has m
records and the run is killed k times:

    the offset first      the records of this step are never seen     k m records lost
    the weights first     they are seen again                         k m records repeated
    both in one snapshot  no write is between                         none lost, none repeated

Labels come late. A shown item is a positive if it is clicked, after a delay d. A model that waits
for a window w and then counts the rest as negatives is wrong for some positives. If d is
exponential with mean T and late labels are dropped, the model predicts p (1 - exp(-w / T)) instead
of p. There is another way: each record counts as a negative at once, and again as a positive when
its label comes. Every positive has been a negative before, and weights in the loss correct this
(nn/delayed.py). Then the model predicts p.

When is a window over? A clock cannot tell: if yesterday's log is read in a minute, it must give the
same labels. So each record has the time at which it happened, its event time. The watermark is the
time that all inputs have reached, minus the slack by which records may be out of order. A window is
over when the watermark is past its end. An input without new records must not stop the others for
ever. It is idle, and the watermark leaves it out. data.stream.Join does this on logs, over many
ranks. train_clicks.py trains in this way on real flights.

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

P = 2  # partitions
M = 8  # records of a partition in a step
DELAY, WINDOW = 60, 30  # minutes
ORDERS = {  # name: (the writes after a step, in order; (records lost, repeated) by a kill)
    "the offset first": (("offset", "weights"), (P * M, 0)),
    "the weights first": (("weights", "offset"), (0, P * M)),
    "both in one snapshot": (("snapshot",), (0, 0)),
}


def joined(arrivals, partitions, window, slack):
    """Returns [(n, key, label)]: after n arrivals the label of this key is known, 0 or 1.

    arrivals: (partition, kind, key, time) in the order in which they are read. time: the event
    time. kind: "click", "label" or "idle". "idle" means that this partition has nothing new, until
    its next record is read. Its key and time are None."""
    # >>> exercise 24a: join records and labels by event time
    # A click gets 1 if its label happened at most `window` after it, as soon as both have been
    # read. The label may be read first. It gets 0 as soon as the watermark is greater than its time
    # + window. The watermark is the smallest of the partitions' latest times, minus `slack`,
    # without the idle partitions. While nothing was read from a partition that is not idle, the
    # watermark is -math.inf. While all are idle, it stays. It never goes back. If a key has several
    # clicks or labels, the first one read counts. Give each key once. Give no click that still
    # waits at the end.
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
    """Run from the saved state to the end of the log, or until it dies.

    Returns the weights, which count how often each record was trained on. With `dies` it dies in
    the second step, before the last of its writes, and returns None."""
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

    # load the state that the last run has saved
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
    """Run each order of writes, with kills. Returns {order: (records lost, records repeated)}."""
    log = FolderLog(folder / "log", P)
    n = args.records // P
    if t.rank == 0:
        for p in range(P):
            values = [b"%d" % (k * P + p) for k in range(n)]
            log.append(p, values, range(n))

    found = {}
    for order, (writes, (lost_by_kill, repeated_by_kill)) in ORDERS.items():
        (folder / order).mkdir(exist_ok=True)
        objects.broadcast(t, None)  # wait until rank 0 has written the log
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
    """Returns (x, clicked, delays of the clicks, arrivals) of n items, one shown each minute.

    x: (n, 5) features. clicked: (n,) bool. arrivals: the same in the form that joined() takes, in
    order of time."""
    rng = np.random.default_rng(24)
    x = np.c_[np.ones(n), rng.standard_normal((n, 4))].astype(np.float32)
    w = np.array([-0.5, 1.0, -0.7, 0.4, 0.0])
    truth = rng.random(n) < sigmoid(x @ w)
    delays = rng.exponential(DELAY, n)

    arrivals = [(0, "click", k, k) for k in range(n)]
    arrivals += [(1, "label", k, k + delays[k]) for k in range(n) if truth[k]]
    arrivals += [(partition, "label", -1, math.inf) for partition in (0, 1)]  # end all windows
    return x, truth, delays[truth], sorted(arrivals, key=lambda arrival: arrival[3])


def train(x, truth, labels, loss_of, rate=0.3):
    """Predict and train by event time. Returns [(records shown, report on the last 600)].

    labels: (minute at which it is known, key, label). Every half hour it predicts the new records,
    then trains on the records whose labels have come."""
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
    """Train with both ways to treat late labels. Returns {way: reports over time}.

    All ranks do the same."""
    x, truth, delays, arrivals = shown_and_clicked(args.shown)
    times = [time for _, _, _, time in arrivals]
    once = [(times[n - 1], key, label) for n, key, label in joined(arrivals, 2, WINDOW, 0)]
    twice = [(time, key, int(kind == "label")) for _, kind, key, time in arrivals]
    n_positives = sum(label for _, _, label in once)
    n_in_window = int((delays <= WINDOW).sum())
    table.row("positives of the join: clicked within the window", n_positives, n_in_window, "exact")

    in_window = 1 - math.exp(-WINDOW / DELAY)  # the share of the clicks
    ways = {  # name: (labels, loss, the predicted share of the clicks)
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
    "records": (800, "records of the first part"),
    "kills": (12, "how often the run is killed"),
    "shown": (6000, "records of the second part"),
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
    right.set(xlabel="records shown", title="Sum of predictions / clicks", ylim=(0, 1.5))
    auc.set(xlabel="records shown", title="AUC: both order records equally well", ylim=(0.5, 0.9))
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
