"""Decides which snapshots a run saves: one snapshot, or two if the ranks' replicas differ.

    a model that all ranks train    runs/            everything
    LocalSGD, DiLoCo                runs/rank0/ ...  each rank's weights and its own optimizer
                                    runs/            the common weights, and the rest

The ranks' own snapshots are written first. If runs/ keeps k common snapshots, each rank keeps k + 1
of its own. So after a crash, the ranks' own snapshots of the step of the newest snapshot in runs/
always exist. A step can be loaded only if all of its snapshots exist. If the run continues on more
ranks, a new rank begins with an optimizer without moments.

LocalSGD is saved at the end of a round. Then all ranks have the same weights, and only the moments
differ between the ranks' own snapshots. DiLoCo is saved when no fragment is being sent. The common
snapshot of DiLoCo holds the common weights w and the outer optimizer. Rank r's own snapshot holds
the weights w_r that rank r trains.
Test: tests/elastic/test_parts.py   Used by: restart.py, heal.py
"""

import contextlib

from minidl.parallel.data.diloco import DiLoCo
from minidl.parallel.data.local_sgd import LocalSGD
from minidl.snapshot import durable
from minidl.snapshot import folder as snapshots
from minidl.snapshot import snapshot
from minidl.snapshot.behind import Behind

KEEP = 2  # the number of snapshots to keep: the newest may be damaged, so keep one more


class Parts:
    """The objects of a run, divided into a common snapshot and each rank's own snapshot.

    Raises TypeError for LocalSGD(without=), whose ranks are at different steps."""

    def __init__(self, t, folder, objects):
        self.t, self.folder = t, folder
        self.common, self.own, self.inside = dict(objects), None, contextlib.nullcontext
        model = objects.get("model")
        if getattr(model, "turns", None) is not None:
            raise TypeError(f"rank {t.rank}: with LocalSGD(without=) the ranks are at different "
                            "steps, but a snapshot has one step for all ranks. Leave out without=, "
                            "or save no snapshots")
        if isinstance(model, (LocalSGD, DiLoCo)):
            self.alone, self.at = t.subgroup([t.rank]), folder / f"rank{t.rank}"
            self.own = {"model": model.module, "optimizer": self.common.pop("optimizer")}
            if isinstance(model, DiLoCo):
                self.inside = model.common_weights
                self.common |= {"model": model.module, "optimizer": model.outer, "diloco": model}
            else:  # saves data_parallel, because its order of buckets decides the rounding
                self.common |= {"model": model.data_parallel, "rounds": model.rounds}
        self.model = model
        self.behinds = [Behind(t)]
        if self.own is not None:
            self.behinds.append(Behind(self.alone, after=self.behinds[0]))

    def may_save(self):
        """Returns True if all ranks have one common model now. The answer is the same on all
        ranks."""
        if isinstance(self.model, LocalSGD):
            return not self.model.rounds.since
        return not (isinstance(self.model, DiLoCo) and self.model.coming)

    def save(self, step):
        if self.own is not None:
            self.behinds[1].save(self.at, step, keep=KEEP + 1, **self.own)
        with self.inside():
            self.behinds[0].save(self.folder, step, keep=KEEP, **self.common)

    def load(self, step):
        with self.inside():
            snapshot.load(self.folder, self.t, step=step, **self.common)
        if self._has_own(step):
            snapshot.load(self.at, self.alone, step=step, **self.own)

    def begin(self, step):
        """Removes this rank's own snapshots of later steps. These steps have no common snapshot,
        because the run ended before the common snapshot was written."""
        for later in snapshots.steps(self.at) if self.own is not None else ():
            if later > step:
                durable.remove(snapshots.index_path(self.at, later))

    def steps(self):
        """Returns the steps that have a common snapshot, the newest first."""
        return snapshots.steps(self.folder)[::-1]

    def damage(self, step):
        """Checks the files of a snapshot that this rank reads. If a file is damaged, returns a
        sentence about it, else ""."""
        found = snapshots.damage(self.folder, step, self.t.rank, self.t.size)
        if not found and self._has_own(step):
            found = snapshots.damage(self.at, step)
        return found

    def _has_own(self, step):
        """Returns True if this rank wrote its own snapshot of this step."""
        return (self.own is not None
                and self.t.rank < len(snapshots.read_index(self.folder, step)["files"]))

    def check(self):
        for behind in self.behinds:
            behind.check()

    def close(self):
        for behind in self.behinds[::-1]:
            behind.wait()
        self.behinds[0].close()
