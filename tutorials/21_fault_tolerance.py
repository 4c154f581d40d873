"""21  Fault tolerance: kill a rank, restart, get the same bits.    60 minutes, needs: 07, 11

    mpirun -n 4 python tutorials/21_fault_tolerance.py
    python tutorials/21_fault_tolerance.py --sim 4    picture: out/21_fault_tolerance.png
    minidl run -n 4 --restarts 3 tutorials/21_fault_tolerance.py --kill 13
                 kills rank 1 in its 13th step; the launcher prints this, and starts all ranks
                 again

A run of N machines fails N times as often as one machine. If each of 10,000 machines fails once in
five years, one fails every four hours. So a run saves its state and continues from the saved state.
It gets the same bits as a run without a fault if two things hold. The state has all that the next
step depends on: weights, optimizer, random generators, position in the data, loss scale (exercise
21b). And the snapshot is complete, even if a fault comes while it is written (exercise 21a).

How often should a run save? A run takes a snapshot every T seconds. A snapshot costs delta seconds.
There is a fault every M seconds on average, and a fault loses T/2 seconds of work on average:

    share of the time that is lost  =  delta / T  +  T / (2 M)
    it is lowest at  T = sqrt(2 delta M)          Young 1974; Daly 2006 adds the next terms

If the times between faults are exponential, the share is exactly
1 - T / (M (e^((T+delta)/M) - 1)). If delta becomes four times smaller, half as much time is lost.
So elastic.run stops the training only to copy the state in memory. It writes the copy to the disk
during the next steps (CheckFreq).

Papers: Young 1974; Daly 2006; Pillai et al. 2014 (crashes); Mohan et al. 2021 (CheckFreq).
Exercises: `minidl exercise 21` writes work/21_fault_tolerance.py with the marked regions empty;
`minidl check 21` grades it.
"""

import math
import os
import shutil
import signal
from contextlib import suppress

import numpy as np

import minidl
from minidl import elastic, nn, optim, snapshot
from minidl.comm import tree
from minidl.course.disk import PowerFailure, power_failures
from minidl.course.out import GREY, LINES
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.data import DataLoader, DistributedSampler, Passes, datasets
from minidl.nn import functional as F
from minidl.parallel import Zero1

BATCH = 12  # number of samples in a step on each rank
FOLDER = "out/20_runs"


def save(disk, name, data):
    """Puts `data` into the file `name`.

    If the power fails at any moment, the file has all of its old data or all of the new data."""
    # >>> exercise 21a: an atomic snapshot
    # The methods of `disk` are write(name, data), fsync(name), rename(old, new), sync_folder() and
    # remove(name). The power may fail in the middle of each call. Only rename is atomic: the
    # file has the old name or the new name, and nothing between. When save returns, the disk must
    # have the new data and the new name: fsync(name) brings a file's data to the disk, and
    # sync_folder() brings the names.
    temporary = name + ".tmp"
    disk.write(temporary, data)
    disk.fsync(temporary)
    disk.rename(temporary, name)
    disk.sync_folder()
    # <<<


class Toy:
    """A training run without a framework: momentum SGD with noise and a loss scale.

    The order of the samples is different in each epoch."""

    def __init__(self):
        self.w = np.ones(4)
        self.v = np.zeros(4)
        self.gradient = np.zeros(4)
        self.random = minidl.Generator(7)  # get_state() returns its state, three integers
        self.epoch = self.position = self.n_steps = 0  # position: how many of the epoch's samples
        # have been used
        self.scale = 1024.0
        self.good_steps = 0
        self.data = np.random.default_rng(0).normal(size=(10, 4))  # the same in every Toy()

    def step(self):
        if self.position == len(self.data):
            self.epoch += 1
            self.position = 0
        order = np.random.default_rng(self.epoch).permutation(len(self.data))
        x = self.data[order[self.position]]
        noise = self.random.normal(4, dtype=np.float64)
        with np.errstate(over="ignore"):
            scaled = np.float16(self.scale * (self.w - x + noise / 4)).astype(float)
        self.position += 1
        self.n_steps += 1
        if not np.isfinite(scaled).all():  # too large for float16, so skip this step
            self.scale /= 2
            self.good_steps = 0
            return

        self.gradient = scaled / self.scale
        self.v = 0.9 * self.v + self.gradient
        rate = 0.1 / (1 + 0.02 * self.n_steps)
        self.w = self.w - rate * self.v
        self.good_steps += 1
        if self.good_steps == 3:
            self.scale *= 2
            self.good_steps = 0


def state_of(run):
    """Returns {name of an attribute: its value}, all that a new Toy needs to continue `run`.

    The new Toy must get the same bits as `run` in all later steps."""
    # >>> exercise 21b: all that the next step depends on
    # Which attributes does the method Toy.step read before it sets them? These belong to the state.
    # Leave out attributes that are the same in every new Toy(). Also leave out attributes that
    # Toy.step always sets before it reads them. The run continues while the state is written, so
    # copy the arrays. For run.random store run.random.get_state().
    return {"w": run.w.copy(), "v": run.v.copy(), "random": run.random.get_state(),
            "epoch": run.epoch, "position": run.position, "n_steps": run.n_steps,
            "scale": run.scale, "good_steps": run.good_steps}
    # <<<


def by_hand(table):
    """Checks the two exercises.

    21a: the power fails in each disk call of save(). 21b: a Toy stops after each step, and a new
    Toy continues from its state."""
    old, new = b"old" * 5, b"new!" * 5
    n_calls, found = power_failures(save, old, new)
    n_lost = sum(data not in (old, new) for data in found)
    table.row(f"power failures ({n_calls} calls x 4 disks) without a snapshot", n_lost, 0,
              "exact")

    whole, dying = Toy(), Toy()
    for _ in range(40):
        whole.step()
        dying.step()
        state = state_of(dying)
        dying = Toy()  # the old Toy is gone; this new Toy continues from `state`
        dying.random.set_state(state.pop("random"))
        vars(dying).update(state)
    n_unlike = int((dying.w != whole.w).sum())
    table.row("different weights after a Toy died 40 times", n_unlike, 0,
              "exact")


def train(t, args, folder, fault=None):
    """Trains with elastic.run. Returns the weights after args.steps steps, as a vector.

    fault: the number of the step in which the run is killed, or None if it is not killed."""
    digits, _ = datasets.digits()

    def state(t):
        minidl.manual_seed(0)
        net = nn.Sequential(nn.Dropout(0.1), nn.MLP(64, 32, 10))
        model = Zero1(put(args, net), t)
        optimizer = optim.AdamW(model.shards(), lr=1e-2)
        sampler = DistributedSampler(len(digits), t.rank, t.size, seed=1)
        batches = Passes(DataLoader(digits, BATCH, sampler=sampler, prefetch=0))
        minidl.manual_seed(1, t.rank)
        return {"model": model, "optimizer": optimizer, "batches": batches}

    def step(t, number, model, optimizer, batches):
        if number == fault and (t.simulated or not args.kill):
            raise PowerFailure  # all ranks stop, because mpirun cannot restart one rank alone
        if number == fault and t.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = next(batches)
        x = put(args, x.reshape(len(x), -1))
        y = put(args, y)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.gather()

    end = elastic.run(step, state, args.steps, folder, args.every, t)
    weights = end["model"].state_dict().values()
    return np.concatenate([np.ravel(host(x)) for x in weights])


def killed(t, args, table):
    """Kills and restarts a run. Compares its weights with the weights of a run without a fault.

    Returns (step of the fault, step of the snapshot from which the run continues)."""
    fault = args.kill or args.steps - args.every // 2
    whole, broken = FOLDER + "/whole", FOLDER + "/killed"
    if os.environ.get("MINIDL_ATTEMPT", "1") == "1":  # minidl run counts the attempts
        if t.rank == 0:
            shutil.rmtree(FOLDER, ignore_errors=True)
        tree.barrier(t)
        train(t, args, whole)
        with suppress(PowerFailure):
            train(t, args, broken, fault)
        t.pause(0.5)  # waits until the snapshot is written
        tree.barrier(t)

    saved = snapshot.latest(broken) or 0
    say(t, f"a fault in step {fault}; the newest snapshot on the disk is from step {saved}")
    weights = train(t, args, whole)
    again = train(t, args, broken)
    table.row("different weights after the restart", int((again != weights).sum()), 0, "exact")
    # The bound is 2 * args.every steps. A snapshot is written to the disk during the next steps. So
    # the newest snapshot can be incomplete at the time of the fault.
    table.row("steps done again, at most", fault - saved, 2 * args.every, "<=")
    return fault, saved


def lost(interval, delta, mtbf, n_faults=20_000):
    """Returns the share of the time that a simulated run loses.

    interval, delta, mtbf: T, delta and M, in seconds. Between two faults only the intervals with a
    complete snapshot count. The rest of the time is lost."""
    gaps = np.random.default_rng(0).exponential(mtbf, n_faults)
    n_kept = (gaps // (interval + delta)).sum()
    return 1 - interval * n_kept / gaps.sum()


def main(t, args):
    table = Table(t)
    by_hand(table)
    fault, begins = killed(t, args, table)

    delta, mtbf = args.delta, args.mtbf
    young = math.sqrt(2 * delta * mtbf)
    sweep = [young * 2.0 ** (k / 2) for k in range(-5, 6)]  # sweep[5] is Young's interval
    shares = [lost(T, delta, mtbf) for T in sweep]
    theory = delta / young + young / (2 * mtbf)
    table.row("share of the time lost at Young's interval, simulated", shares[5], theory,
              "rel<1e-1")
    away = abs(int(np.argmin(shares)) - 5)
    table.row("factors of sqrt 2 from the best interval to Young's", away, 1, "<=")
    picture(t, args, draw, sweep, shares, delta, mtbf, (fault, begins, args.steps))
    return table


OPTIONS = {
    "steps": (24, "number of training steps"),
    "every": (6, "number of steps from one snapshot to the next"),
    "delta": (5.0, "seconds that a snapshot costs"),
    "mtbf": (1000.0, "mean time between faults, in seconds"),
    "kill": (0, "kill rank 1 in this step of the first attempt (with minidl run --restarts)"),
}


def exact(interval, delta, mtbf):
    return 1 - interval / (mtbf * math.expm1((interval + delta) / mtbf))


def draw(plt, sweep, measured, delta, mtbf, steps):
    """Draws the run with its fault (left), and the lost time over the interval (right).

    steps: (step of the fault, step of the snapshot, last step)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.4))
    fault, begins, end = steps
    left.plot([0, fault], [0, fault], color=LINES[0], label="until the fault")
    left.plot([fault, fault], [fault, begins], color=GREY, linestyle=":",
              label="back to a snapshot")
    left.plot([fault, fault + end - begins], [begins, end], color=LINES[1], label="after restart")
    left.set(xlabel="steps computed, with those done twice", ylabel="step of the run",
             title="A fault and the restart")
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
