"""Training on a stream, killed by SIGKILL at random moments until it ends: the same bits?

    python tests/data/stream/kills.py FOLDER 100 7        100 kills of a process, seed 7
    mpiexec -n 3 python tests/data/stream/kills.py FOLDER rank 1 5
                                                          rank 1 of 3 kills itself in its step 5
The grid of workers and servers is another one after each kill of a process. Each record adds 1 to a
count of its own, so a record that is lost or comes twice is seen at the end; a second table's
gradients depend on its weights, so every step must find those of the step before.
Test: test_kills.py
"""

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from minidl import nn, snapshot
from minidl.comm import simulate, world
from minidl.data.stream import FolderLog, Source
from minidl.parallel import Table, Tables, adagrad, ftrl

P, N, EVERY = 3, 400, 3  # partitions, records of each, steps between snapshots
GRIDS = [(1, 0), (2, 1), (3, 1), (4, 1), (4, 2)]  # (ranks, servers)


def log_in(folder):
    log = FolderLog(Path(folder) / "log", P, segment_bytes=1000)
    for p in range(P):
        if not log.newest(p):
            log.append(p, [b"%d" % (k * P + p) for k in range(N)], range(N))
    return log


def train(t, folder, servers, each_step=lambda rank, step: None):
    """{table: {id: its row's bytes}} of this rank at the end."""
    log, model = log_in(folder), nn.Linear(1, 1)
    tables = Tables(t, [Table("count", 1, adagrad(lr=0.0)), Table("user", 4, ftrl(), ttl_s=0.2)],
                    servers, P)
    source = Source(log, t, per_partition=16, block=64, until=[N] * P,
                    readers=range(servers, t.size))
    runs, step = Path(folder) / "runs", 0
    objects = {"model": model, "tables": tables, "source": source}
    if snapshot.latest(runs) is not None:
        step = snapshot.load(runs, t, **objects)
    if tables.serves:
        for step in tables.serve():
            each_step(t.rank, step)
            snapshot.save(runs, step, t, **objects)
        return held(tables)
    with tables:
        for parts, _ in source:
            each_step(t.rank, step)
            for part in parts:
                ids = np.array([int(v) for v in part.values])
                tables.push("count", ids, np.ones((part.n, 1)), part.partition, part.position, 0)
                users = np.unique(ids % 37)
                rows = tables.pull("user", users)
                tables.push("user", users, np.sin(9 * rows + users[:, None]), part.partition,
                            part.position, int(part.times.max()))
            tables.end_step(source.mine)
            step += 1
            if step % EVERY == 0:
                tables.cut(step)
                snapshot.save(runs, step, t, **objects)
    return held(tables)


def held(tables):
    return {name: dict(zip(table.rows()["id"].tolist(), [
        b"".join(array[i].tobytes() for array in (table.rows()[k] for k in table.arrays))
        for i in range(len(table))], strict=True)) for name, table in tables.tables.items()}


def digest(ranks):
    """A checksum of all rows; AssertionError unless every record was counted once."""
    count = {id: row for rank in ranks for id, row in rank["count"].items()}
    users = {id: row for rank in ranks for id, row in rank["user"].items()}
    times = {id: np.frombuffer(row, np.float32)[1] for id, row in count.items()}
    assert times == dict.fromkeys(range(N * P), 1.0), "every offset exactly once"
    return hashlib.sha256(repr(sorted(users.items())).encode()).hexdigest()


def attempt(folder, grid):
    size, servers = grid
    print(digest(simulate(size, lambda t: train(t, folder, servers))), flush=True)


def main(folder, n_kills, seed):
    """Runs, one after another, until so many kills have hit one."""
    rng, kills, runs = random.Random(seed), 0, 0
    os.fsync = lambda file: None  # it is for power failures; SIGKILL loses nothing that was written
    start = time.monotonic()
    wanted = digest(simulate(1, lambda t: train(t, f"{folder}/whole", 0)))
    whole_s = time.monotonic() - start
    while kills < n_kills:
        runs += 1
        while True:
            read, written = os.pipe()
            pid = os.fork()  # the simulator's threads have ended: nothing is copied half
            if not pid:
                os.dup2(written, 1)
                attempt(f"{folder}/{runs}", rng.choice(GRIDS))
                os._exit(0)
            os.close(written)
            time.sleep(rng.uniform(0, 0.8 * whole_s))
            os.kill(pid, signal.SIGKILL)
            with open(read) as said:
                found = said.read().strip()
            os.waitpid(pid, 0)
            rng.random()  # the child had its own copy
            if found:
                break
            kills += 1
        assert found == wanted, f"run {runs}, seed {seed}: other bits"
    print(f"{kills} kills in {runs} runs, each ended in the same bits, every offset once")


def one_rank(folder, rank, at):
    def each_step(mine, step):
        if mine == rank and step >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    from minidl.comm import objects

    t = world()
    ranks = objects.gather(t, train(t, folder, 1 if t.size > 1 else 0, each_step))
    if t.rank == 0:
        print(digest(ranks), flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "rank":
        one_rank(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
