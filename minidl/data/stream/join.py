"""Joins records and their labels by event time. A label comes later than its record.

The plain form: minidl/plain/late_labels.py. This file adds partitions over ranks, records out of
order, late labels that still count, idle inputs, and a position that can be saved.

    clicks   ---a----b-----c--------------d------->  event time     a: its label comes within the
    labels   ------a------------------c----------->                 window
                          |                 |                       b: no label when its window
                    b's window ends    c is late                    ends, so it counts as a negative
                    emitted with 0     dropped, or emitted again with its label

    src = Join(clicks, labels, t, key="id", of_click=CLICK, of_label=LABEL, window_s=900)
    for parts, total in src:              a step is step_s of event time, on all ranks
        for part in parts:
            part.arrived                  records that came in this step: predict them
            part.samples, part.labels     records that got a label in this step: train on them

A clock must not decide when a window ends, because a second run must give the same result. The
watermark decides. The watermark is the event time that all inputs have passed. To find it, the join
takes the latest event time of each input. The smallest of these times, minus slack_s, is the
watermark. slack_s is subtracted because records may be out of order. Idle inputs do not count. A
label is late if its event time is after the window. The time when the label was read does not
matter. window_s=None waits for every label. window_s=0 with late="again" emits each record as a
negative without waiting. If a label comes later, the record is emitted again. The losses of
nn/delayed.py need this.

A record and its label are in partitions with the same number. So each partition is joined alone,
and the records of a step do not depend on the number of ranks. The position of a partition is the
number of samples so far, two offsets, two latest times, and the offsets of the records and labels
that still wait. A resumed run reads these records and labels again. So the size of the snapshot
does not grow with the logs.

Sources: Akidau et al. 2015 (VLDB), watermarks; Ananthanarayanan et al. 2013 (SIGMOD), joining
clicks exactly once.   Test: tests/data/stream/test_join.py
Tutorial: tutorials/24_stream.py, train_clicks.py
"""

import heapq
import math
from collections import Counter

import numpy as np

from minidl.data.prefetch import prefetch
from minidl.data.stream.log import Records, none_of
from minidl.data.stream.source import Steps, fresh

# Three kinds of records and labels wait. OPEN: a record that waits for its label. SHUT: a record
# that was emitted as a negative, and is kept for a late label. EARLY: a label that came before its
# record.
OPEN, SHUT, EARLY = range(3)
CHUNK = 1024  # records in one read


def watermark(times, idle, slack):
    """Returns the event time before which no record is expected, or -inf if all inputs are idle.
    times: the latest time seen in each input, or inf if the input has ended. idle: a bool for each
    input. Idle inputs do not count."""
    times = [time for time, is_idle in zip(times, idle, strict=True) if not is_idle]
    return min(times) - slack if times else -math.inf


class JoinedPart:
    """The result of one step for one partition.

    arrived:  Records of the clicks that came in this step
    samples:  Records of the clicks that got their labels. `times` are the times of the labels. If a
              label is earlier than its record, the time is the time of the record. The time of a
              negative is the end of its window
    labels:   float32, one for each sample
    again:    bool, one for each sample: True if the sample was emitted before
    position: how many samples the partition has emitted until now, including these samples
    n:        the number of samples plus the number of arrived records"""

    def __init__(self, partition, arrived, samples, labels, again, position):
        self.partition, self.arrived, self.samples = partition, arrived, samples
        self.labels, self.again = np.array(labels, np.float32), np.array(again, bool)
        self.position, self.n = position, samples.n + arrived.n


class Join(Steps):
    """Yields ([JoinedPart], total) for each step of event time. `total` is the number of samples
    and arrived records of all ranks. Each step is a collective: all readers must iterate.

    clicks, labels      two logs with the same number of partitions. A record and its label are in
                        partitions with the same number
    key                 the name of a field of both dtypes. A record and its label have the same
                        value in this field
    of_click, of_label  the dtypes of clicks and labels. A label without a field `label` counts as 1
    window_s            how long a record waits for its label. If None, it waits until the label
                        comes
    late                "drop": a label after the window is ignored. "again": its record is emitted
                        again, with the label, unless the label is 0
    slack_s             the largest time by which records may be out of order
    keep_s              how long a record is kept for a late label
    step_s              the length of a step in event time
    until               (offsets of clicks, offsets of labels): the offset at which each partition
                        ends. If None, there is no end
    readers, idle_s     as in Source

    All times are in seconds of event time, but idle_s is measured by a clock."""

    def __init__(self, clicks, labels, t, *, key, of_click, of_label, window_s=None, late="drop",
                 slack_s=0.0, keep_s=7 * 86400.0, step_s=3600.0, until=None, readers=None,
                 idle_s=None):
        if clicks.partitions != labels.partitions or late not in ("drop", "again"):
            raise ValueError(
                f"rank {t.rank}: a join wants two logs with the same number of partitions, and "
                f"late='drop' or 'again'; got {clicks.partitions} and {labels.partitions} "
                f"partitions, late={late!r}")
        super().__init__(t, clicks.partitions, readers)
        self.logs, self.dtypes, self.key = (clicks, labels), (of_click, of_label), key
        self.window, self.slack, self.keep, self.step = (
            math.inf if s is None else round(1000 * s) for s in (window_s, slack_s, keep_s, step_s))
        self.late, self.until, self.idle_s = late, until or (None, None), idle_s
        self.counts = Counter()  # on this rank: {"late labels": n, "clicks twice": n, ...}
        self.place = {p: (0, clicks.oldest(p), labels.oldest(p), -(2**62), -(2**62))
                      for p in self.mine}
        self.kept = {p: [] for p in self.mine}  # (kind, offset) of each record or label that waits

    def _same(self):
        return {"logs": [log.id for log in self.logs], "key": self.key, "late": self.late,
                "times": str(
            (self.window, self.slack, self.keep, self.step))}

    def rows(self):
        """Returns the position of this rank's partitions:

        place: (k, 6) int64. The columns are: partition, number of emitted samples, next offset of
               clicks, next offset of labels, latest time of clicks, latest time of labels
        kept:  (m, 3) int64, a row for each record or label that waits: partition, kind (OPEN, SHUT
               or EARLY), offset"""
        place = [(p, *self.place[p]) for p in self.mine]
        kept = [(p, *one) for p in self.mine for one in sorted(self.kept[p])]
        return {"place": np.array(place, np.int64).reshape(-1, 6),
                "kept": np.array(kept, np.int64).reshape(-1, 3)}

    def load_rows(self, rows):
        """Loads the rows of this rank's partitions. rows: the rows() of all ranks, joined."""
        for p, *place in rows["place"].tolist():
            if p in self.place:
                self.place[p], self.kept[p] = tuple(place), []
        for p, kind, offset in rows["kept"].tolist():
            if p in self.kept:
                self.kept[p].append((kind, offset))

    def _open(self, stop):
        return [_Merge(self, p, stop) for p in self.mine]

    def _step(self, readers, at):
        parts = [] if at is None else [
            merge.until((at // self.step + 1) * self.step) for merge in readers]
        for merge in readers if at is not None else ():
            self.place[merge.partition], self.kept[merge.partition] = merge.place()
        times = [merge.next() for merge in readers]
        parts = [part for part in parts if part.n]
        return (parts, sum(part.n for part in parts),
                any(time is None or time < math.inf for time in times),
                min((time for time in times if time is not None), default=math.inf))


class _Side:
    """One input of a partition's join: clicks or labels. Gives the records one by one, in the order
    of the log."""

    def __init__(self, join, i, partition, first, seen, stop):
        until = join.until[i] and join.until[i][partition]
        chunks = fresh(join.logs[i], partition, first, CHUNK, until, join.idle_s, stop)
        self.chunks = prefetch(chunks, lambda chunk: chunk.typed(join.dtypes[i]), 2)
        self.key, self.chunk, self.at, self.first, self.seen = join.key, none_of(0), 0, first, seen
        self.idle = self.ended = False

    def close(self):
        self.chunks.close()

    def time(self, ask=False):
        """Returns the event time of the next record. Returns inf after the last record, and None if
        the input is idle. ask: if True, an idle input is read again."""
        if self.at == self.chunk.n and not self.ended and (ask or not self.idle):
            _, chunk = next(self.chunks, (None, None))
            self.ended = chunk is None
            self.idle = not self.ended and not chunk.n
            if not (self.ended or self.idle):
                self.chunk, self.at, self.times = chunk, 0, chunk.times.tolist()
                self.keys = chunk.values[self.key].tolist()
        if self.at < self.chunk.n:
            self.seen = max(self.seen, self.times[self.at])
            return self.times[self.at]
        return math.inf if self.ended else None

    def take(self):
        """Takes the next record. Returns (key, offset, time, value). value: an array (1,)."""
        i, self.at = self.at, self.at + 1
        offset = int(self.chunk.offsets[i])
        self.first = offset + 1
        return self.keys[i], offset, self.times[i], self.chunk.values[i:i + 1]


class _Merge:
    """The join of one partition. It handles the records of both inputs and the ends of windows in
    the order of event time."""

    def __init__(self, join, partition, stop):
        self.join, self.partition, self.counts = join, partition, join.counts
        self.n_given, *place = join.place[partition]
        self.sides = [_Side(join, i, partition, place[i], place[2 + i], stop) for i in (0, 1)]
        self.waits = ({}, {}, {})  # for each kind: {key: (offset, time, value)}
        self.ends = []  # a heap of (time at which the wait ends, kind, offset, key)
        for kind, offset in join.kept[partition]:
            i = int(kind == EARLY)
            one = join.logs[i].read(partition, offset, 1).typed(join.dtypes[i])
            self._wait(kind, one.values[join.key].tolist()[0], offset, int(one.times[0]),
                       one.values)

    def close(self):
        for side in self.sides:
            side.close()

    def place(self):
        """Returns the values of `place` and `kept` in Join.rows() for this partition, without the
        partition's number."""
        kept = [(kind, entry[0]) for kind, waits in enumerate(self.waits)
                for entry in waits.values()]
        clicks, labels = self.sides
        return (self.n_given, clicks.first, labels.first, clicks.seen, labels.seen), kept

    def next(self):
        """Returns the event time of the next event: a record, or the end of a window. Returns inf
        if there is no event, and None if the time is unknown because the inputs are idle."""
        times = [side.time(ask=True) for side in self.sides]
        known = [time for time in times if time is not None]
        waits = self.join.window < math.inf and self.waits[OPEN]
        if self.ends and len(known) == 2 and (waits or min(known) < math.inf):
            known.append(self.ends[0][0] + self.join.slack)
        return min(known, default=None)

    def until(self, end):
        """Handles all records and ends of windows before the event time `end`. Returns the result,
        a JoinedPart."""
        self.arrived, self.given = [], []
        while True:
            times = [side.time() for side in self.sides]
            now = watermark([math.inf if time == math.inf else side.seen
                             for time, side in zip(times, self.sides, strict=True)],
                            [time is None for time in times], self.join.slack)
            if self.ends and self.ends[0][0] < now and self.ends[0][0] + self.join.slack < end:
                self._ended(*heapq.heappop(self.ends))
                continue
            known = [(time, i) for i, time in enumerate(times) if time is not None and time < end]
            if not known:
                return self._part()
            _, i = min(known)  # if a click and its label have the same time, the click is first
            (self._label if i else self._click)(*self.sides[i].take())

    def _click(self, key, offset, time, value):
        self.arrived.append((offset, time, value))
        if key in self.waits[OPEN] or key in self.waits[SHUT]:
            self.counts["clicks twice"] += 1
        elif key in self.waits[EARLY]:
            _, came, label = self.waits[EARLY].pop(key)
            self._give(offset, max(came, time), value, _label_of(label))
        else:
            self._wait(OPEN, key, offset, time, value)

    def _label(self, key, offset, time, value):
        if key in self.waits[OPEN]:
            entry = self.waits[OPEN][key]
            if time <= entry[1] + self.join.window:
                del self.waits[OPEN][key]
                self._give(entry[0], time, entry[2], _label_of(value))
                return
            self._negative(key)  # the click's window had ended before this label
        if key in self.waits[SHUT]:
            offset, _, click = self.waits[SHUT].pop(key)
            self.counts["late labels"] += 1
            if _label_of(value):
                self._give(offset, time, click, _label_of(value), again=True)
        elif key not in self.waits[EARLY]:  # the label's click may still come
            self._wait(EARLY, key, offset, time, value)

    def _wait(self, kind, key, offset, time, value):
        self.waits[kind][key] = offset, time, value
        when = time + (self.join.window, self.join.keep, 0)[kind]
        if when < math.inf:
            heapq.heappush(self.ends, (when, kind, offset, key))

    def _ended(self, when, kind, offset, key):
        """Handles the end of a wait. A record whose window is over becomes a negative. A record or
        label that was kept for long enough is dropped."""
        if self.waits[kind].get(key, (None,))[0] != offset:
            return  # the awaited record or label has come already
        if kind == OPEN:
            self._negative(key)
        else:
            del self.waits[kind][key]
            self.counts["labels without a click"] += kind == EARLY

    def _negative(self, key):
        offset, time, value = self.waits[OPEN].pop(key)
        self._give(offset, time + self.join.window, value, 0.0)
        if self.join.late == "again":
            self._wait(SHUT, key, offset, time, value)

    def _give(self, offset, time, value, label, again=False):
        self.given.append((offset, time, value, label, again))
        self.n_given += 1

    def _part(self):
        def records(entries):
            if not entries:
                return none_of(self.partition).typed(self.join.dtypes[0])
            offsets, times, values = zip(*(entry[:3] for entry in entries), strict=True)
            return Records(self.partition, np.array(offsets), np.array(times),
                           np.concatenate(values))

        return JoinedPart(self.partition, records(self.arrived), records(self.given),
                          [entry[3] for entry in self.given], [entry[4] for entry in self.given],
                          self.n_given)


def _label_of(value):
    return float(value["label"][0]) if "label" in value.dtype.names else 1.0
