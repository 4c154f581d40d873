"""A run for test_heal_mpi.py: it trains, and on the way some of its ranks die.

    minidl run --heal -n 4 healing.py OUT STAGE N_STEPS EVERY WHERE AT RANK [RANK ...]

WHERE these ranks die in step AT, all at once: "reduce" (in the middle of a bucket's collective:
some messages are sent), "step" (when all is done), "exit" (likewise, by os._exit(3)), "state" (the
first as "step", the last while the state is made anew after that), "write" (while the snapshot of
step AT - 1 is written behind the next steps: when half of the rank's file is there), "shard" (when
its shard of after the step is to go to its buddy), "all" or "pair" (before MPI makes a group of all
ranks, or of ranks 1 and 2, for which the others call), "early" (before world()), "late" (after
elastic.run), "instant" (the same pair, when all members
have said that they are here), or so many seconds after its beginning, wherever they are then, at
the latest in the last step.
A rank that lives writes OUT/PID.pickle, and on stdout when steps ended."""

import os
import pickle
import sys
import threading
import time
from pathlib import Path

from minidl import comm, elastic, snapshot
from minidl.comm.transport import communicators
from minidl.elastic import buddy
from minidl.snapshot import durable
from tests.elastic import bodies

out, stage, n_steps, every, where, at, *doomed = sys.argv[1:]
n_steps, every, at, doomed = int(n_steps), int(every), int(at), [int(rank) for rank in doomed]
if where == "early" and int(os.environ["OMPI_COMM_WORLD_RANK"]) in doomed:
    bodies.die()
t = comm.world()
newcomer, first = t.newcomer, t.rank
log, sent, states = {}, [], []
if newcomer or where == "state" and first != doomed[0]:
    dies_at = None
else:
    dies_at = at if first in doomed else None


def die():
    print(f"killed {time.time()}", flush=True)
    if where in ("reduce", "step", "exit"):  # one after the other would be two healings
        Path(out, f"dies-{first}").touch()
        while not all(Path(out, f"dies-{rank}").exists() for rank in doomed):
            time.sleep(0.001)
    if where == "exit":
        os._exit(3)
    bodies.die()


class Dying:
    """`os` for durable.py, whose first write ends the process, half done, when others have begun
    theirs."""

    def __getattr__(self, name):
        return getattr(os, name)

    def write(self, file, data):
        os.write(file, data[:len(data) // 2])
        time.sleep(0.3)
        die()


def third_message(inner):
    """`inner`, but at the third call the process dies."""

    def call(*args, **options):
        sent.append(None)
        return die() if len(sent) == 3 else inner(*args, **options)

    return call


def make_groups(t):
    """Of all ranks, or of 1 and 2; the doomed die at it."""
    world = t.innermost
    if world.lost:  # this is after it
        return
    members = range(world.size) if where == "all" else (1, 2)
    if first in doomed and where == "instant":
        agreed = communicators._agreed
        communicators._agreed = lambda *all_of_it: (agreed(*all_of_it), die())
    elif first in doomed:
        die()
    if first in members:
        world.subgroup(members)


def train(t, step, **named):
    if step == at and where in ("all", "pair", "instant"):
        make_groups(t)
    if step == dies_at and where == "reduce":
        way = named["model"].reducer.t
        way.isend, way.sendrecv = third_message(way.isend), third_message(way.sendrecv)
    if where == "write" and dies_at == step + 2:
        while not snapshot.latest(f"{out}/runs"):  # the one before is whole
            time.sleep(0.01)
        durable.os = Dying()
    if step == dies_at and where == "shard":
        buddy._send = lambda *_: die()
    if step == dies_at and where[0].isdigit():
        threading.Timer(float(where), die).start()
    if step == n_steps - 1 and dies_at is not None and where[0].isdigit():
        time.sleep(60)  # the timer ends this process here at the latest, before elastic.run ends
    bodies.train(t, step, **named)
    if step == dies_at and where in ("step", "exit", "state"):
        die()
    log[step] = bodies.batch(t, step)[0].tolist()
    print(f"finished {step} {t.rank} {time.time()}", flush=True)


def state(t):
    global rank
    rank = t.rank
    states.append(None)
    if where == "state" and len(states) == 2 and first == doomed[-1]:
        die()
    return bodies.state_of(stage)(t)


named = elastic.run(train, state, n_steps, folder=f"{out}/runs", every=every, t=t)
if where == "late" and first in doomed:
    die()
Path(out, f"{os.getpid()}.pickle").write_bytes(pickle.dumps(
    {"weights": bodies.weights(named), "log": log, "first": first, "rank": rank,
     "newcomer": newcomer}))
