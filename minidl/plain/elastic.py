"""Elastic: a run that dies at any moment is restarted, and ends with the same bits.

Every few steps all ranks write their state to the disk: this is a snapshot. If a rank dies, all
ranks are started again. They load the newest snapshot, and go on from its step:

    first run     0  1  2  3 │ 4  5  6     the run dies after step 6
                             snapshot
    second run               │ 4  5  6  7 │ 8  9 ...        steps 4 to 6 are done again
                                          snapshot

Two conditions make the bits the same. First, a step must depend only on the saved state and on the
number of the step. The weights, the momentum and the states of random generators are in the state.
The number tells which samples the step takes. Second, a rank may die at any moment. Then a
snapshot must be complete or not exist at all:

    write x.tmp ─► fsync: the bytes are    ─► rename x.tmp to x, ─► fsync of the folder: the new
                   on the disk, not only      in one moment         name is on the disk, too
                   in the system's memory                    (a folder holds the names)

A reader finds x with all its bytes, or no x. It never reads x.tmp. There is one file for each rank
and saved step. The files with the names step4-... have the state before step 4. A step counts as
saved if the files of all n ranks exist.

With a snapshot every E steps, a death loses at most E steps of work.

Paper: Pillai et al., "All File Systems Are Not Created Equal", 2014 (what is left of a file after a
crash).
This page is the plain version. The real one, minidl/elastic/restart.py and
minidl/snapshot/durable.py, adds: a launcher that starts the ranks again, checksums, writing while
training goes on, and another number of ranks after a restart.
"""

import io
import os

import numpy as np


def write(path, data):
    """Writes bytes to a file. After a crash the file has the old bytes or the new bytes."""
    with open(path + ".tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def file_of(folder, step, rank):
    return os.path.join(folder, f"step{step}-rank{rank}.npz")


def save(t, folder, step, state):
    """Saves the state of this rank before `step`. state: {name: array}."""
    file = io.BytesIO()
    np.savez(file, **state)
    write(file_of(folder, step, t.rank), file.getvalue())


def load(t, folder, step):
    """Returns the state of this rank before `step`, {name: array}."""
    with np.load(file_of(folder, step, t.rank)) as file:
        return dict(file)


def newest(t, folder):
    """Returns the last step that all ranks have saved, or 0 if there is none. Rank 0 looks into the
    folder, and sends the step to the other ranks."""
    step = np.array([0])
    if t.rank > 0:
        return int(t.recv(step, 0)[0])
    for name in os.listdir(folder):
        if name.endswith("-rank0.npz"):
            n = int(name.removeprefix("step").removesuffix("-rank0.npz"))
            if all(os.path.exists(file_of(folder, n, rank)) for rank in range(t.size)):
                step[0] = max(step[0], n)
    for rank in range(1, t.size):
        t.send(step, rank)
    return int(step[0])


def run(t, folder, state, train, n_steps, every):
    """Trains from the newest snapshot to step n_steps. Returns the state after n_steps steps.

    train(step, state) does one step, in place. A snapshot is saved once in `every` steps."""
    step = newest(t, folder)
    if step > 0:
        state = load(t, folder, step)
    while step < n_steps:
        train(step, state)
        step += 1
        if step % every == 0:
            save(t, folder, step, state)
    return state


if __name__ == "__main__":
    import tempfile

    from minidl.comm import simulate

    def example(t, folder, n_steps):
        done = []

        def train(step, state):
            done.append(step)
            state["sum"] += step
        state = run(t, folder, {"sum": np.array(0)}, train, n_steps, every=4)
        return *done, "sum", int(state["sum"])

    with tempfile.TemporaryDirectory() as folder:
        print(*simulate(2, example, folder, 7)[0])  # the run stops before step 7
        print(*simulate(2, example, folder, 10)[0])
