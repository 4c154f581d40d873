"""20  Fault tolerance: kill a rank, notice, go on to the same bits.    60 minutes, needs: 06, 10

    mpirun -n 4 python tutorials/20_fault_tolerance.py
    python tutorials/20_fault_tolerance.py --sim 4    picture: out/20_fault_tolerance.png
    minidl run -n 4 --restarts 3 tutorials/20_fault_tolerance.py --kill 13

The last one kills rank 1 in its 13th step; the launcher notices, says so, and starts all again.

A run of N machines fails N times as often as one: 10,000 of them, each once in five years, every
four hours. So a run saves its state and goes on from it. To the same bits, if the state is all that
the next step depends on: weights, optimizer, random generators, the position in the data, the loss
scale. And if the snapshot is whole: a fault may come while it is written, too (exercise 20a).

How often? With a snapshot each T seconds that costs delta, and a fault each M seconds on average:

    lost share of the time  =  delta / T  (saving)  +  T / 2M  (a fault loses T/2, on average)
    the least at  T = sqrt(2 delta M)       Young 1974;    Daly 2006 has the next terms, too

With faults at random (exponential gaps) T seconds of work take M (e^((T+delta)/M) - 1), exactly.
A cheaper delta is worth its root: copied in memory, written behind the next steps (CheckFreq).

Papers: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006;
Pillai et al. 2014 (what a crash may leave); Mohan et al. 2021 (CheckFreq).
Exercises: `minidl exercise 20` writes work/20_fault_tolerance.py with the marked regions empty;
`minidl check 20` grades it.
"""

import math
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import minidl
from minidl import elastic, memory, nn, optim, snapshot
from minidl.comm import chunks, objects, tree
from minidl.course.out import GREY, LINES
from minidl.data import DataLoader, DistributedSampler, Passes, datasets
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1
from minidl.tutorial import Table, launch, picture, put, say

BATCH = 48  # of all ranks
ATTEMPT = int(os.environ.get("MINIDL_ATTEMPT", 1))  # minidl run counts them


class PowerFailure(Exception):
    pass


class Disk:
    """The files of one folder, as an operating system keeps them: bytes are in memory until fsync,
    names until sync_folder. Before that they may be on the disk or not. Fails at call `dies_at`."""

    def __init__(self, files=(), dies_at=None):
        self.names = {name: i for i, name in enumerate(files)}  # name: number of a file
        self.bytes = {self.names[name]: files[name] for name in files}
        self.safe_names, self.safe_bytes = dict(self.names), dict(self.bytes)
        self.dies_at, self.calls = dies_at, 0

    def _call(self):
        self.calls += 1
        if self.calls == self.dies_at:
            raise PowerFailure

    def write(self, name, data):
        """Make the file, or empty it, and write the data, in three pieces."""
        number = self.names.setdefault(name, len(self.bytes))
        self.bytes[number] = b""
        for i in range(3):
            self._call()
            self.bytes[number] += data[i * len(data) // 3:(i + 1) * len(data) // 3]

    def read(self, name):
        return self.bytes[self.names[name]]

    def fsync(self, name):
        """The bytes of the file are safe; not its name."""
        self._call()
        self.safe_bytes[self.names[name]] = self.read(name)

    def rename(self, old, new):
        """The file `old` is called `new`, in one step; another of that name is gone."""
        self._call()
        self.names[new] = self.names.pop(old)

    def remove(self, name):
        self._call()
        self.names.pop(name)

    def sync_folder(self):
        """All names are safe; not what is in the files."""
        self._call()
        self.safe_names = dict(self.names)

    def after_failure(self):
        """The four ways in which the disk may be found: with or without names and bytes that are
        not safe."""
        return [Disk({name: files.get(number, b"") for name, number in names.items()})
                for names in (self.safe_names, self.names)
                for files in (self.safe_bytes, self.bytes)]


def save(disk, name, data):
    """Put `data` into the file `name`: after a failure at any moment it has the old or the new."""
    # >>> exercise 20a: an atomic snapshot
    # disk.write(name, data), .fsync(name), .rename(old, new), .sync_folder(), .remove(name). A
    # failure may come in the middle of any of them. When save returns, the new data must be safe:
    # its bytes (fsync) and its name (sync_folder). Only a rename is done in one step.
    temporary = name + ".tmp"
    disk.write(temporary, data)
    disk.fsync(temporary)
    disk.rename(temporary, name)
    disk.sync_folder()
    # <<<


class Toy:
    """A run without a framework: noisy momentum SGD with a loss scale, over shuffled samples."""

    def __init__(self):
        self.w, self.v = np.ones(4), np.zeros(4)
        self.gradient = np.zeros(4)  # of the last step
        self.random = minidl.Generator(7)  # its state: get_state(), three integers
        self.epoch = self.position = self.n_steps = 0  # position: samples of the epoch used
        self.scale, self.good_steps = 1024.0, 0
        self.data = np.random.default_rng(0).normal(size=(10, 4))  # the same in every run

    def step(self):
        if self.position == len(self.data):
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng(self.epoch).permutation(len(self.data))
        x = self.data[order[self.position]]
        noise = self.random.normal(4, dtype=np.float64)
        with np.errstate(over="ignore"):
            scaled = np.float16(self.scale * (self.w - x + noise / 4)).astype(float)
        self.position, self.n_steps = self.position + 1, self.n_steps + 1
        if not np.isfinite(scaled).all():  # too large for float16: skip the step
            self.scale, self.good_steps = self.scale / 2, 0
            return
        self.gradient = scaled / self.scale
        self.v = 0.9 * self.v + self.gradient
        self.w = self.w - 0.1 / (1 + 0.02 * self.n_steps) * self.v
        self.good_steps += 1
        if self.good_steps == 3:
            self.scale, self.good_steps = 2 * self.scale, 0

    def load(self, state):
        """Go on from {attribute: value}; of `random` the value is its state."""
        for name, value in state.items():
            if name == "random":
                self.random.set_state(value)
            else:
                setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)


def state_of(run):
    """What Toy.load needs, so that a new Toy goes on to the same bits: {attribute: value}."""
    # >>> exercise 20b: all that the next step depends on
    # Look at Toy.step: which attributes does it read before it writes them? What a new Toy() has
    # anyway, and what step computes anew, need not be kept. The run goes on while the state is
    # being written: copy the arrays. Of run.random the state is run.random.get_state().
    return {"w": run.w.copy(), "v": run.v.copy(), "random": run.random.get_state(),
            "epoch": run.epoch, "position": run.position, "n_steps": run.n_steps,
            "scale": run.scale, "good_steps": run.good_steps}
    # <<<


def by_hand(table):
    """Both exercises: a failure in every call of a save, and a toy that dies at random."""
    wrong, k, old, new = 0, 0, b"old" * 5, b"new!" * 5
    while True:
        k += 1
        disk = Disk({"run": old}, dies_at=k)
        try:
            save(disk, "run", new)
        except PowerFailure:
            wrong += sum("run" not in found.names or found.read("run") not in (old, new)
                         for found in disk.after_failure())
        else:
            break
    table.row(f"power failures ({k - 1} calls x 4 disks) that leave no snapshot", wrong, 0, "exact")
    whole, rng = Toy(), np.random.default_rng(0)
    for _ in range(40):
        whole.step()
    other = 0
    for dies in rng.integers(1, 40, 10):
        first, again = Toy(), Toy()
        for _ in range(dies):
            first.step()
        again.load(state_of(first))
        for _ in range(40 - dies):
            again.step()
        other += not np.array_equal(again.w, whole.w)
    table.row("toy runs (of 10 that died) with other bits", other, 0, "exact")


class Fault(Exception):
    """Stands for a death of all ranks: mpirun alone would not start them again."""


def train(t, args, folder, fault=None, used=None, kill=0):
    """The weights after args.steps, by elastic.run."""

    def state(t):
        minidl.manual_seed(0)
        model = Zero1(put(args, nn.MLP(64, 32, 10)), t)
        sampler = DistributedSampler(len(digits), t.rank, t.size, seed=1)
        minidl.manual_seed(1, t.rank)
        optimizer = optim.AdamW(model.shards(), lr=1e-2)
        return {"model": model, "optimizer": optimizer,
                "batches": Passes(DataLoader(digits, BATCH // t.size, sampler, prefetch=0))}

    def step(t, number, model, optimizer, batches):
        if fault == number:
            raise Fault
        if kill and kill == number and t.rank == 1 and ATTEMPT == 1 and not t.simulated:
            os.kill(os.getpid(), signal.SIGKILL)
        if used is not None:
            used.append((number, batches.state_dict()["consumed"]))
        x, y = (put(args, array) for array in next(batches))
        F.cross_entropy(model(x.reshape(len(x), -1)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.gather()

    digits = datasets.digits()[0]
    model = elastic.run(step, state, args.steps, folder, args.every, t)["model"]
    return np.concatenate([np.ravel(x) for x in model.state_dict().values()])


def exposed(t, args, table, folder):
    """What a snapshot costs the training: written, or copied and written behind."""
    minidl.manual_seed(0)
    model = DataParallel(put(args, nn.MLP(64, 500, 500, 10)), t)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x, y = put(args, np.ones((2, 64), np.float32)), put(args, np.zeros(2, int))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    behind, start = snapshot.Behind(t), time.perf_counter()
    behind.save(folder, 1, model=model, optimizer=optimizer)
    copied = time.perf_counter()
    held = memory.totals(communication=[behind])["communication"]
    behind.close()
    X = sum(p.numel() for p in model.parameters())
    first, end = chunks.bounds(3 * X, t.size)[t.rank : t.rank + 2]
    table.row("bytes of the copy: this rank's share of 12 X", held, 4 * (end - first), "exact")
    table.row("ms that training waits for the copy; for the disk",
              round(1e3 * (copied - start), 1), round(1e3 * (time.perf_counter() - start), 1),
              "info")


def lost(interval, delta, mtbf, n_segments, seed=0):
    """The share of the time that a simulated machine loses: faults at exponential gaps, each of
    which throws away what was done since the last snapshot."""
    gaps = iter(np.random.default_rng(seed).exponential(mtbf, 8 * n_segments))
    now, fails, done = 0.0, next(gaps), 0
    while done < n_segments:
        end = now + interval + delta
        if fails < end:
            now = fails
            fails += next(gaps)
        else:
            now, done = end, done + 1
    return 1 - interval * n_segments / now


def exact(interval, delta, mtbf):
    return 1 - interval / (mtbf * math.expm1((interval + delta) / mtbf))


def main(t, args):
    if BATCH % t.size or not 0 < args.every < args.steps:
        raise SystemExit(f"wanted a number of ranks that divides {BATCH} and --every below --steps;"
                         f" got {t.size} ranks, {args.every}, {args.steps}")
    table = Table(t)
    by_hand(table)
    folder, holder = Path(args.folder), None
    if not args.kill:
        holder = tempfile.TemporaryDirectory() if t.rank == 0 else None
        folder = Path(objects.broadcast(t, holder.name if holder else None))
    elif ATTEMPT == 1 and t.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    tree.barrier(t)
    whole = train(t, args, folder / "whole")
    fault, before, after = args.steps - args.every // 2, [], []
    if args.kill:
        fault = args.kill
    else:
        try:
            train(t, args, folder / "again", fault, before)
        except Fault:
            t.pause(0.5)  # for the thread that writes
            say(t, f"a fault in step {fault}; on the disk: {snapshot.steps(folder / 'again')}")
        tree.barrier(t)
    again = train(t, args, folder / "again", None, after, args.kill)
    table.row("weights unlike the uninterrupted run's", int((again != whole).sum()), 0, "exact")
    begins = after[0][0] if after else args.steps
    if not args.kill:
        # the newest may not be on the disk yet when the fault comes: the one before it
        table.row("steps done again, at most", fault - begins, 2 * args.every, "<=")
        table.row("samples used by these steps, first and again",
                  sum(entry not in before for entry in after if entry[0] < fault), 0, "exact")
    exposed(t, args, table, folder / "behind")
    delta, mtbf = args.delta, args.mtbf
    young = math.sqrt(2 * delta * mtbf)
    x = math.sqrt(delta / (2 * mtbf))
    daly = young * (1 + x / 3 + x * x / 9) - delta
    sweep = [young * 2.0 ** (k / 2) for k in range(-5, 6)]
    measured = [lost(T, delta, mtbf, args.segments) for T in sweep]
    best = sweep[int(np.argmin(measured))]
    say(t, f"delta {delta:g} s, MTBF {mtbf:g} s: Young {young:.1f} s, Daly {daly:.1f} s")
    table.row("share of the time lost at Young's interval (simulated)", measured[5],
              exact(young, delta, mtbf), "rel<5e-2")
    table.row("best interval of the sweep, in steps of sqrt 2 from Young's",
              abs(2 * math.log2(best / young)), 1.0, "<=")
    table.row("... by delta/T + T/2M", measured[5], delta / young + young / (2 * mtbf), "rel<1e-1")
    picture(t, draw, sweep, measured, delta, mtbf, (fault, begins, args.steps))
    tree.barrier(t)
    if holder:
        holder.cleanup()
    return table


OPTIONS = {
    "steps": (24, "training steps"),
    "every": (6, "steps between snapshots"),
    "delta": (5.0, "seconds that a snapshot costs"),
    "mtbf": (1000.0, "mean seconds between faults"),
    "segments": (20000, "snapshots of a simulated run"),
    "kill": (0, "kill rank 1 in this step of the first attempt (with minidl run --restarts)"),
    "folder": ("out/20_runs", "folder of the snapshots, with --kill"),
}


def draw(plt, sweep, measured, delta, mtbf, steps):
    """Left: steps over the work that was done, with the fault. Right: cost against the interval."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.4))
    fault, begins, end = steps
    left.plot([0, fault], [0, fault], color=LINES[0], label="until the fault")
    left.plot([fault, fault], [fault, begins], color=GREY, linestyle=":",
              label="back to a snapshot")
    left.plot([fault, fault + end - begins], [begins, end], color=LINES[1], label="started again")
    left.set(xlabel="steps of work", ylabel="step of the run", title="A fault, and the way on")
    left.legend()
    curve = np.geomspace(sweep[0], sweep[-1], 100)
    right.plot(curve, [100 * exact(T, delta, mtbf) for T in curve], color=GREY, label="exact")
    right.plot(curve, [100 * (delta / T + T / (2 * mtbf)) for T in curve], color=GREY,
               linestyle="--", label="delta/T + T/2M")
    right.plot(sweep, [100 * share for share in measured], "o", color=LINES[0], label="simulated")
    right.axvline(math.sqrt(2 * delta * mtbf), color=LINES[1], label="sqrt(2 delta M)")
    right.set(xscale="log", xlabel="seconds between snapshots", ylabel="% of the time lost",
              title="How often to save")
    right.set_xticks(sweep[::2], [f"{T:.0f}" for T in sweep[::2]])
    right.minorticks_off()
    right.legend(loc=(0.52, 0.66))
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
