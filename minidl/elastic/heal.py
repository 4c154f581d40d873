"""Healing: if ranks die, the other ranks keep their memory and repeat the interrupted step.

    step 7 .. all-reduce ..  revoke, shrink | which state? | state(t), then restored | step 7 ..
              rank 2 dies                     a few messages   its shard from its buddy

`run` calls train for step 0, 1, 2, ... Before each step every rank keeps a copy of its state. State
that only one rank has is also copied to another rank (buddy.py). If a rank dies, a send or a
receive of some other rank raises an error. The survivors then interrupt each other's calls and make
a new group (comm/transport/ulfm.py). Objects that use the old group, such as a bucket's transport,
no longer work. So `state` is called again, on the new transport, and the kept state is loaded into
the new objects, as a snapshot is loaded. No disk is used.

    shrunk       n - 1 ranks repeat the step. They get the same bits as n - 1 ranks that load a
                 snapshot of this step
    replaced     a new process gets the lost rank number. The run gets the same bits as a run
                 without a fault
    both lost    if a rank and its buddy died together, all ranks go back to the last snapshot
    divided      with tensor or pipeline parallelism, the step is repeated only if new processes
                 replace the dead processes, because `state` then makes the same grid. With fewer
                 ranks, all ranks go back to the last snapshot, if `state` can make a grid of the
                 remaining ranks

Only the objects that `state` returns are rolled back. If the interrupted step changed other
objects, these changes remain. For example, the script's own list of losses has the loss of this
step twice. Send no messages between `comm.world()` and `run`: a new process starts the script from
its top, but the other ranks do not. If a rank dies after `run`, the others end normally. But if the
group's first rank dies after `run`, the run has failed, because this rank usually writes the
result.

    minidl run --heal [--replacements 1] -n 4 script.py              needs Open MPI 5

Source: Bland et al. 2013 (ULFM); Gamell et al. 2014, "Exploring automatic, online failure recovery"
Test: tests/elastic/test_heal.py, test_heal_mpi.py   Used by: elastic/__init__.py
"""

import contextlib
import gc
import os
import sys
import time
from pathlib import Path

from minidl.comm import objects, tree
from minidl.comm.transport import supervised, ulfm
from minidl.comm.transport.world import world
from minidl.elastic import buddy
from minidl.elastic.parts import Parts
from minidl.elastic.resume import resume
from minidl.text import in_words
from minidl.timeline import recording

REPLACEMENTS = "MINIDL_REPLACEMENTS"  # the launcher sets it to the number of new processes allowed


def run(train, state, n_steps, folder="runs", every=50, t=None):
    """Trains until n_steps steps are done. Returns the objects after the last step.

    state(t)                    makes the objects on t. Returns {name: object with state_dict() and
                                load_state_dict()}: a "model", and if needed an "optimizer", a
                                sampler, ...
    train(t, step, **objects)   does step number `step` once
    folder                      the folder of the snapshots. The run begins at the newest undamaged
                                snapshot. It goes back to a snapshot only if the copies in memory
                                are not enough
    every                       the number of steps between two snapshots. 0 means no snapshots
    t                           the transport; by default comm.world()

    Raises RuntimeError if the transport has no fault tolerance: then ranks cannot continue after
    another rank has died. Open MPI 5 has fault tolerance."""
    t = world() if t is None else t
    if not (t.simulated or t.size == 1 or isinstance(t.innermost, ulfm.Healing)):
        raise RuntimeError(f"rank {t.rank}: wanted ranks that continue when one of them dies; got "
                           f"{t.library} without fault tolerance. Start the ranks with minidl run "
                           "--heal, under Open MPI 5")
    lane = recording.get()
    if lane is not None and lane.profile.t is not None:
        raise RuntimeError(f"rank {t.rank}: profile(t) asks all ranks at its end, but a rank that "
                           "has died never answers. With --heal, use minidl.profile() instead of "
                           "profile(t): then each rank has its own profile")
    held, parts, since = [], None, None
    while True:
        try:
            if parts is None:
                if lane is not None:
                    lane.profile.forget()
                step, saved, parts = _begin(t, state, folder, n_steps, held, since)
                supervised.say("step", step=step)
            while step < n_steps:
                _keep(held[-1], step)
                if every and step != saved and step % every == 0:
                    parts.save(step)
                train(t, step, **parts.common)
                step += 1
                supervised.say("step", step=step)
                parts.check()
            _keep(held[-1], step)
            held[-1].settle()
            parts.close()
            ended = True
        except Exception:
            if not _has_lost(t):
                raise
            ulfm.revoke(t.innermost)  # comes first: it ends the calls of the other ranks
            ended = False
        if _all_have_ended(t, ended):
            supervised.say("trained", first=t.rank == 0)
            return parts.common
        if parts is not None:
            # Waits for a snapshot that is being written. An error is ignored, because a snapshot
            # counts only if the files of all ranks exist.
            with contextlib.suppress(Exception):
                parts.close()
        supervised.say("heals")
        since, parts = time.monotonic(), None
        t = ulfm.survivors(t.innermost, int(os.environ.get(REPLACEMENTS, "0")))


def _keep(buddies, step):
    if step not in buddies.mine:  # after a death, _begin() has saved this step already
        buddies.save(step)


def _begin(t, state, folder, n_steps, held, since):
    """Prepares training, at the beginning or after a death at time `since`. Returns three
    values: the step from which all ranks continue, the step of the loaded snapshot (0 if no
    snapshot was loaded), and the Parts. All ranks must call _begin().

    held: a list of this rank's Buddies, empty on a new process. The list is changed in place: at
    the end it has only the new Buddies. The old Buddies stay in the list until the new Buddies are
    complete on all ranks, in case another rank dies."""
    reports = objects.all_gather(t, [each.report() for each in held])
    chosen = buddy.choose(reports)
    generations = [r.generation for each in reports for r in each]
    source = next((each for each in held if chosen and each.generation == chosen[0]), None)
    for each in held:
        each.let_go(chosen[1] if each is source else None)
    gc.collect()  # frees the old models: a model and its hooks refer to each other
    divided = next((r.size for each in reports for r in each if r.divided), t.size)
    try:
        named = state(t)
    except Exception as error:
        if t.size < divided:
            raise RuntimeError(
                f"rank {t.rank}: a model that is divided over {divided} ranks cannot be healed on "
                f"{t.size} ranks: state() fails on this number of ranks ({error}). minidl run "
                "--heal --replacements 1 replaces a dead rank by a new process. minidl run "
                "--restarts starts all ranks again, from the last snapshot") from error
        raise
    parts, saved = Parts(t, Path(folder), named), 0
    if parts.own is not None:
        raise TypeError(f"rank {t.rank}: wanted a model that all ranks train together; each rank "
                        f"of a {type(named['model']).__name__} has weights of its own. No other "
                        "rank keeps a copy of them, so use minidl run --restarts instead of --heal")
    if chosen:
        step = chosen[1]
        buddy.restore(t, source, reports, chosen, named)
    else:
        step = saved = resume(t, parts, n_steps)
    held.append(buddy.Buddies(t, named, max(generations, default=-1) + 1))
    held[-1].save(step)
    held[-1].settle()
    tree.barrier(t)
    del held[:-1]
    _say(t, reports, chosen, folder, step, since, t.size < divided)
    return step, saved, parts


def _say(t, reports, chosen, folder, step, since, too_few):
    """Prints on stderr what happened. Only one rank prints: the first rank that is not a new
    process."""
    lost = getattr(t.innermost, "lost", ())
    if t.rank != next((rank for rank, each in enumerate(reports) if each), 0) or not (lost or step):
        return
    text = f"{t.size} ranks go on from step {step}"
    if lost:
        text = f"{in_words(lost)} lost; {text}, after {time.monotonic() - since:.2f} s"
    if lost and not chosen:
        why = "The parts of a divided model do not fit on fewer ranks" if too_few else \
            buddy.why_nothing(reports)
        text += f". {why}, so all ranks go back to "
        text += f"the start: {folder} has no snapshot" if not step else \
            f"the snapshot in {folder}"
    sys.stderr.write(f"minidl heal: {text}\n")


def _has_lost(t):
    return isinstance(t.innermost, ulfm.Healing) and ulfm.has_lost(t.innermost)


def _all_have_ended(t, ended):
    """Returns True if all ranks have finished training, so that no rank needs another rank. The
    result is the same on all ranks. Each rank must call this function exactly once in each group.
    The call is an agreement, and the Shrink that follows also consists of agreements. If one rank
    leaves out this call, the first agreement of this rank's Shrink is paired with the call of
    another rank."""
    if isinstance(t.innermost, ulfm.Healing):
        if not ulfm.all_say(t.innermost, ended):
            return False
        t.innermost.leave()
    return True
