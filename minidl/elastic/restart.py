"""A training loop that continues after a restart, with the same bits.

The plain form: minidl/plain/elastic.py. This file adds four things. A launcher restarts the ranks.
Snapshots are written in the background. They have checksums. The number of ranks may change.

    minidl run -n 4 --restarts 3 script.py       the launcher (cli/restarts.py) starts the ranks,
        state(t)                                 notices what fails, and starts all of them again
        load the newest complete snapshot
        step 120 | 121 | 122 | ...               train(t, step, **objects), once each
               '== snapshot written =|           every `every` steps, in the background (behind.py)

The script:

    def state(t):                                # called at each start, on t.size ranks
        minidl.manual_seed(0, t.rank)
        model = DataParallel(Net(), t)
        ...
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches}

    def train(t, step, model, optimizer, scheduler, batches):
        x, y = next(batches)                     # data.Passes: a loader that remembers where it is
        ...

    elastic.run(train, state, n_steps=1000, folder="runs", every=50)

On the same number of ranks, a restarted run has the same bits as an uninterrupted run. For this,
everything that a step depends on must be in the objects of `state`, or must be computed from the
number `step`. On another number of ranks each sample is still used exactly once in an epoch, if the
ranks' batches are equal parts of one batch (data.Passes). A restart loses at most `every` - 1
steps, and the steps that were done while a snapshot was being written.

If the newest snapshot is damaged, its index is renamed, and a message reports this. Then the
previous snapshot is loaded.
Source: torchrun's contract (PyTorch, "Torch Distributed Elastic"): load_checkpoint, then train.
Test: tests/elastic/test_restart.py, tests/chaos/   Tutorial: tutorials/21_fault_tolerance.py
"""

import os
from pathlib import Path

from minidl import comm
from minidl.comm.transport import supervised
from minidl.elastic import heal
from minidl.elastic.parts import Parts
from minidl.elastic.resume import resume


def run(train, state, n_steps, folder="runs", every=50, t=None):
    """Builds the state, loads the newest complete snapshot of `folder`, and trains until n_steps
    steps are done. Returns the dict of objects that `state` returned.

    train    a function train(t, step, **objects) that does step number `step`, once. Its result is
             ignored
    state    a function state(t) that returns {name: object}, as for snapshot.save. The object
             "model" may also be a LocalSGD or DiLoCo. Then "optimizer" is each rank's own optimizer
    every    the number of steps between two snapshots; there is also a snapshot at the end
    t        the transport; by default comm.world()

    If `minidl run --heal` started the script, this function calls heal.run instead. Raises
    ValueError if `every` is below 1."""
    if os.environ.get("MINIDL_HEAL") == "1":
        return heal.run(train, state, n_steps, folder, every, t)
    if every < 1:
        raise ValueError("elastic.run: wanted every >= 1 (steps between two snapshots); got "
                         f"{every}")
    t = comm.world() if t is None else t
    objects = state(t)
    parts = Parts(t, Path(folder), objects)
    step = resume(t, parts, n_steps)
    supervised.say("step", step=step)
    due = False
    while step < n_steps:
        train(t, step, **objects)
        step += 1
        t.stepped()
        supervised.say("step", step=step)
        parts.check()
        due = due or step % every == 0 or step == n_steps
        if due and parts.may_save():
            parts.save(step)
            due = False
    parts.close()
    supervised.say("trained", first=t.rank == 0)
    return objects
