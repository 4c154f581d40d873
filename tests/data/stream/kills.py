"""Training on a stream, killed by SIGKILL at random moments until it ends: the same bits?

    python tests/data/stream/kills.py FOLDER 100 7        100 kills of a process, seed 7
    python -m tests.data.stream.kills FOLDER mpi 100 7    100 kills of one rank of MPI
    mpiexec -n 3 python tests/data/stream/kills.py FOLDER rank 1 2 5 0.01
                                                          of 3 ranks, 1 of which serves, rank 2
                                                          dies 0.01 s after it began its step 5
The grid of workers and servers is another one after each kill. Each record adds 1 to a count of its
own, so a record that is lost or comes twice is seen at the end; a second table's gradients depend
on its weights, so every step must find those of the step before.
Test: test_kills.py
"""

import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from minidl import nn, snapshot
from minidl.comm import objects, simulate, world
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
                grads = np.sin(9 * rows + users[:, None] + part.partition)
                tables.push("user", users, grads, part.partition, part.position,
                            int(part.times.max()))
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


def under_mpi(folder, n_kills, seed, mpi="mpi"):
    """The same, and each kill hits one rank, a server or a worker, of a job under mpiexec."""
    from tests.mpi.launch import mpiexec

    rng, kills, runs = random.Random(seed), Counter(), 0
    wanted = digest(simulate(1, lambda t: train(t, f"{folder}/whole", 0)))
    while kills.total() < n_kills:
        runs, found, grids = runs + 1, None, []
        while found is None:
            size, servers = rng.choice(GRIDS)
            rank, mine, grids = rng.randrange(size), f"{folder}/{runs}", [*grids, (size, servers)]
            at = (snapshot.latest(f"{mine}/runs") or 0) + rng.randrange(3 * EVERY)
            done = mpiexec(size, __file__, mine, "rank", servers, rank, at, rng.uniform(0, 0.03),
                           timeout=120, mpi=mpi)
            if done.returncode:
                os.unlink(f"{mine}/killed")  # by ourselves, not by a fault
                assert "Traceback" not in done.stderr, done.stderr
                kills["rank alone" if size == 1 else "server" if rank < servers else "worker"] += 1
            else:
                found = done.stdout.split()[-1]
        assert found == wanted, f"run {runs}, seed {seed}: other bits"
        print(f"run {runs}: (ranks, servers) {grids}", flush=True)
    print(f"{kills.total()} kills ({dict(kills)}) in {runs} runs, each ended in the same bits, "
          "every offset once")


def one_rank(folder, servers, rank, at, later_s):
    """This process of a job under mpiexec."""
    def kill():
        time.sleep(later_s)
        Path(folder, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def each_step(mine, step):
        if mine == rank and step >= at and not dying:
            dying.append(threading.Thread(target=kill, daemon=True))
            dying[0].start()

    t, dying = world(), []
    ranks = objects.gather(t, train(t, folder, servers, each_step))
    if t.rank == 0:
        print(digest(ranks), flush=True)


if __name__ == "__main__":
    folder, how, *numbers = sys.argv[1:]
    if how == "rank":
        one_rank(folder, *map(int, numbers[:3]), float(numbers[3]))
    elif how == "mpi":
        under_mpi(folder, *map(int, numbers[:2]), *numbers[2:])
    else:
        main(folder, int(how), int(numbers[0]))
