"""Healing in place: ranks die, the others keep their memory and do the interrupted step again.

    step 7 .. all-reduce ..  revoke, shrink | which state? | state(t) anew, restored | step 7 ..
              rank 2 dies                     a few messages   its shard from its buddy

`run` calls train for step 0, 1, 2, ... and before each keeps its state, and what only one rank has
also on another one (buddy.py). A death is an error in some rank's message, wherever it is at that
moment; the survivors then end each other's calls and make a new group (comm/transport/ulfm.py).
Parts of the old group, such as a bucket's transport, die with it: so `state` is called again, on
the new transport, and what it made gets the kept state, as if from a snapshot. No disk is touched.

    shrunk       n - 1 ranks do the step: the bits of n - 1 ranks that load it from a snapshot
    replaced     a new process has the lost number: the bits of the run without a fault
    both lost    a rank and its buddy at once: everybody goes back to the last snapshot
    divided      tensor or pipeline parallelism: healed where the dead are replaced, as `state` then
                 makes the same grid; on fewer ranks the last snapshot, if `state` makes a grid of
                 them

What is not in `state` is not rolled back: a list of losses has the interrupted step twice. Between
`comm.world()` and `run` send no messages: a newcomer starts the script from its top, while the
others do not. A death after `run` ends nobody else; but the run has failed if it was the group's
first rank, which by custom writes the result.

    minidl run --heal [--replacements 1] -n 4 script.py              wants Open MPI 5

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

REPLACEMENTS = "MINIDL_REPLACEMENTS"  # how many new processes a run may start: set by the launcher


def run(train, state, n_steps, folder="runs", every=50, t=None):
    """Do the steps up to n_steps; returns the objects after the last one.

    state(t)                  {name: object with state_dict() and load_state_dict()}, made on t: a
                              "model", and perhaps an "optimizer", a sampler, ...
    train(t, step, **those)   does step number `step` once
    folder, every             of snapshots, written behind the next steps: the run begins at the
                              newest whole one, and goes back to it if there is no other way; 0:
                              none is written
    t                         None: comm.world()"""
    t = world() if t is None else t
    if not (t.simulated or t.size == 1 or isinstance(t.innermost, ulfm.Healing)):
        raise RuntimeError(f"rank {t.rank}: wanted ranks that can go on without one that dies; got "
                           f"{t.library} without its fault tolerance. Start them with minidl run "
                           "--heal, under Open MPI 5")
    lane = recording.get()
    if lane is not None and lane.profile.t is not None:
        raise RuntimeError(f"rank {t.rank}: a profile of all ranks asks each of them at its end, "
                           "and one that has died never answers. Where ranks heal, each has its "
                           "own: minidl.profile() in place of profile(t)")
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
            ulfm.revoke(t.innermost)  # before this rank waits for anything
            ended = False
        if _all_have_ended(t, ended):
            supervised.say("trained", first=t.rank == 0)
            return parts.common
        if parts is not None:  # what this rank still writes comes to its end, or fails: a snapshot
            with contextlib.suppress(Exception):  # counts with the files of all ranks
                parts.close()
        supervised.say("heals")
        since, parts = time.monotonic(), None
        t = ulfm.survivors(t.innermost, int(os.environ.get(REPLACEMENTS, "0")))


def _keep(buddies, step):
    if step not in buddies.mine:  # after a death it was kept at once
        buddies.save(step)


def _begin(t, state, folder, n_steps, held, since):
    """(step from which all ranks go on, the one that is saved already, Parts): at first, and after
    a death at `since`.

    held: this rank's Buddies, none of a newcomer; then the new ones alone. Until those are whole on
    all ranks the old ones stay, for another death meanwhile."""
    reports = objects.all_gather(t, [each.report() for each in held])
    chosen = buddy.choose(reports)
    generations = [r.generation for each in reports for r in each]
    source = next((each for each in held if chosen and each.generation == chosen[0]), None)
    for each in held:
        each.let_go(chosen[1] if each is source else None)
    gc.collect()  # models and their hooks refer to each other
    divided = next((r.size for each in reports for r in each if r.divided), t.size)
    try:
        named = state(t)
    except Exception as error:
        if t.size < divided:
            raise RuntimeError(
                f"rank {t.rank}: a model that is divided over {divided} ranks cannot be healed on "
                f"{t.size}, of which state() makes none ({error}). minidl run --heal "
                "--replacements 1 puts new ranks in place of dead ones; minidl run --restarts "
                "starts all of them again, from the last snapshot") from error
        raise
    parts, saved = Parts(t, Path(folder), named), 0
    if parts.own is not None:
        raise TypeError(f"rank {t.rank}: wanted a model that all ranks train together; each rank "
                        f"of a {type(named['model']).__name__} has weights of its own, which no "
                        "other rank keeps: use minidl run --restarts in place of --heal")
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
    """One of the ranks that know says on stderr what happened."""
    lost = getattr(t.innermost, "lost", ())
    if t.rank != next((rank for rank, each in enumerate(reports) if each), 0) or not (lost or step):
        return
    text = f"{t.size} ranks go on from step {step}"
    if lost:
        text = f"{in_words(lost)} lost; {text}, after {time.monotonic() - since:.2f} s"
    if lost and not chosen:
        why = "Parts of a divided model have no place on fewer ranks" if too_few else \
            buddy.why_nothing(reports)
        text += f". {why}, so all is from "
        text += f"the start: {folder} has no snapshot" if not step else \
            f"the snapshot in {folder}"
    sys.stderr.write(f"minidl heal: {text}\n")


def _has_lost(t):
    return isinstance(t.innermost, ulfm.Healing) and ulfm.has_lost(t.innermost)


def _all_have_ended(t, ended):
    """Whether no rank needs another any more: the same answer on all of them. Each rank asks once
    in each group, wherever it learned of a death: the Shrink that follows is made of agreements,
    too, and must not meet another rank's question."""
    if isinstance(t.innermost, ulfm.Healing):
        if not ulfm.all_say(t.innermost, ended):
            return False
        t.innermost.leave()
    return True
