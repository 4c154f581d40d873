"""A stream without end in bounded memory: ten minutes, and the slope of what is held.

    python tests/data/stream/flat.py FOLDER 600        600 seconds
    python tests/data/stream/flat.py FOLDER 600 0.05   and 0.05 s of sleep a step: a third of a core
A server and two workers, in one process, so that its memory is that of all: a join whose labels
come late, rows that come and go, snapshots, and a log that forgets. New ids come for ever.

    slope    of the second half's samples: resident MiB a minute, and blocks of Python's allocator a
             thousand records; the median over all pairs of samples (Sen 1968), which one jump, of a
             cache that is emptied, does not move. Something kept of each record is 1,000 or more
Test: test_flat.py
"""

import functools
import gc
import os
import sys
import time
from pathlib import Path

import numpy as np

from minidl import nn, snapshot
from minidl.comm import simulate
from minidl.data.stream import FolderLog, Join
from minidl.parallel import Table, Tables, ftrl

P, M, SERVERS = 4, 64, 1  # partitions; records of each in a step, which is a second of event time
CLICK, LABEL = (np.dtype([("id", "<i8"), *more]) for more in ([("user", "<i8")], []))
EVERY, KEPT = 25, 40_000  # steps between snapshots; ms of event time in the log
AT_ONCE = 10  # seconds that come together: to wait for each takes longer than to train on it


def arrive(logs, p, step):
    """What partition p's logs get in a second; a part of the labels comes within 9 s."""
    rng = np.random.default_rng([p, step])
    clicks, times = np.empty(M, CLICK), 1000 * step + np.sort(rng.integers(0, 1000, M))
    clicks["id"] = np.arange(step * M, (step + 1) * M)
    clicks["user"] = P * (step * 5 + rng.integers(0, 100, M)) + p
    logs[0].append(p, [one.tobytes() for one in clicks], times)
    late = clicks["id"][rng.random(M) < 0.4]
    late = late - M * rng.integers(0, 9, len(late))
    late = late[late >= 0]
    labels = np.array(late, LABEL)
    logs[1].append(p, [one.tobytes() for one in labels], np.full(len(labels), 1000 * step + 999))


def train(t, folder, go_on, each_step):
    """each_step(records of this rank) until go_on() is false on some rank."""
    logs = [FolderLog(Path(folder) / name, P) for name in ("c", "l")]
    tables = Tables(t, [Table("user", 8, ftrl(), admit=2, ttl_s=10)], SERVERS, P)
    stream = Join(*logs, t, key="id", of_click=CLICK, of_label=LABEL, window_s=4, late="again",
                  keep_s=15, step_s=1.0, readers=range(SERVERS, t.size))
    runs = Path(folder) / "runs"
    objects = {"model": nn.Linear(1, 1), "tables": tables, "source": stream}
    for step in tables.serve() if tables.serves else ():
        snapshot.save(runs, step, t, **objects)
    if tables.serves:
        return
    writers = [FolderLog(log.path, segment_bytes=1 << 14) for log in logs]
    come = [(step, p) for step in range(2 * AT_ONCE) for p in stream.mine]
    with tables:
        for first, p in come:
            arrive(writers, p, first)
        for step, (parts, _) in enumerate(stream, 1):
            for part in parts:
                users = np.unique(part.samples.values["user"])
                rows = tables.pull("user", users)
                tables.push("user", users, np.cos(rows + users[:, None]), part.partition,
                            part.position, int(part.arrived.times.max()))
            tables.end_step(stream.mine)
            each_step(sum(part.arrived.n for part in parts))
            if step % EVERY == 0:
                tables.cut(step)
                snapshot.save(runs, step, t, **objects)
                for log in writers:
                    for p in stream.mine:
                        log.delete_before(p, log.at_time(p, 1000 * step - KEPT))
            if not go_on(step):
                return
            if step % AT_ONCE == 0:
                for first, p in come[:len(come) // 2]:
                    arrive(writers, p, step + AT_ONCE + first)


def watched(folder, seconds=None, n_steps=None, keep=None, sleep_s=0):
    """[(s, records, resident MiB, blocks, open files)], at most 200 of them; keep: a list that gets
    something of each record; sleep_s: in each step, that others have the processor."""
    samples, start, count, every = [], time.monotonic(), [0, 0], [AT_ONCE]

    @functools.lru_cache(100)  # the ranks must agree
    def go_on(step):
        return step < n_steps if n_steps else time.monotonic() - start < seconds or step % EVERY

    def each_step(n):
        count[0] += n
        count[1] += 1
        if keep is not None:
            keep.extend(object() for _ in range(n))
        time.sleep(sleep_s / 2)  # of both workers
        if count[1] % (2 * every[0]) == 0:
            gc.collect()
            samples.append((time.monotonic() - start, count[0], resident(),
                            sys.getallocatedblocks(), len(os.listdir("/proc/self/fd"))))
            if len(samples) == 200:
                del samples[::2]
                every[0] *= 2

    simulate(SERVERS + 2, lambda t: train(t, folder, go_on, each_step))
    return np.array(samples)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def slopes(samples):
    """(MiB a minute, blocks a thousand records) of the second half."""
    s, records, mib, blocks, _ = samples[len(samples) // 2:].T
    a, b = np.triu_indices(len(s), 1)
    return [np.median((y[b] - y[a]) / (x[b] - x[a])) for x, y in ((s / 60, mib),
                                                                  (records / 1000, blocks))]


def main(folder, seconds, sleep_s=0.0):
    samples = watched(folder, seconds, sleep_s=sleep_s)
    for s, records, mib, blocks, files in samples[::max(1, len(samples) // 10)]:
        print(f"{s:7.0f} s  {records:12,.0f} records  {mib:8.2f} MiB  {blocks:10,.0f} blocks  "
              f"{files:4.0f} open files")
    mib, blocks = slopes(samples)
    print(f"slope of the second half: {mib:+.3f} MiB a minute, "
          f"{blocks:+.2f} blocks a thousand records")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
