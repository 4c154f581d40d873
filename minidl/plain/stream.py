"""Stream: training on records that never end, each used exactly once, also after a crash.

The records are in a log. New records are written to its end. Reading changes nothing. The number of
a record is its offset. A log has several partitions, which grow independently:

    partition 0   │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │   ◄── new records        rank 0 reads partitions 0 and 2
    partition 1   │ 0 │ 1 │ 2 │ 3 │                                  rank 1 reads partition 1
    partition 2   │ 0 │ 1 │ 2 │ 3 │ 4 │

There are n ranks, and partition p belongs to rank p % n. A step takes the next k records of every
partition, or fewer if the partition has fewer. So the records of a step do not depend on the number
of ranks.

The reader keeps, for each partition, the offset of the next record to read. After a crash it goes
on from the saved offsets. Each record counts exactly once in the weights if offsets and weights are
saved at the same moment:

    offset saved, then weights     a crash between them: some records are never used
    weights saved, then offset     a crash between them: some records are used twice
    both in one file               the file is complete or not written: each record is used once

All work after the last save is lost. Its records are read again. That is right: the saved weights
were not trained on these records. On this page one rank saves, into one file.

Paper: Kreps, Narkhede & Rao, "Kafka: a Distributed Messaging System for Log Processing", 2011.
This page is the plain version. The real one, minidl/data/stream/source.py and
minidl/data/stream/log.py, adds: logs in files and on servers, a shuffle of records that are near
each other, reading ahead, a restart on another number of ranks, and an error if a server has
deleted records before they were read.
"""

import json

from minidl.plain.elastic import write


def start(rank, n_ranks, log):
    """Returns {partition: offset of the next record} for the partitions of this rank. log: a list
    of partitions."""
    return {p: 0 for p in range(rank, len(log), n_ranks)}


def step(log, offsets, k):
    """Returns the next k records of each of this rank's partitions, and moves the offsets."""
    records = []
    for p, offset in offsets.items():
        part = log[p][offset:offset + k]
        offsets[p] += len(part)
        records += part
    return records


def save(path, offsets, weights):
    """Writes offsets and weights into one file. After a crash, the file is complete: it is the old
    file or the new file."""
    write(path, json.dumps({"offsets": offsets, "weights": weights}).encode())


def load(path):
    """Returns (offsets, weights) of the last save."""
    with open(path) as file:
        state = json.load(file)
    return {int(p): offset for p, offset in state["offsets"].items()}, state["weights"]


if __name__ == "__main__":
    import os
    import tempfile

    log = [[1, 2, 3, 4, 5], [10, 20, 30]]

    def train(offsets, weight, n_steps, path):
        """Trains n_steps steps. The "weight" is the sum of all records: it shows if a record was
        missed or used twice."""
        for i in range(n_steps):
            records = step(log, offsets, k=1)
            weight += sum(records)
            print("used", *records, " weight", weight)
            if i % 2 == 1:
                save(path, offsets, weight)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state")
        train(start(0, 1, log), 0, 3, path)  # the run stops after the third step
        print("restart from", *load(path))
        train(*load(path), 3, path)
    print("the sum of the log", sum(log[0] + log[1]))
