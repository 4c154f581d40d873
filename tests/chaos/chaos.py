"""Training that is hit at random moments: does each run end in the uninterrupted run's bits?

    make chaos                    100 runs under both MPIs          make chaos ARGS="20 7 600"
                                                                    20 runs, seed 7, of which
                                                                    those begin that fit in 600 s
Each run has one or two faults, one an attempt: a rank is killed, stopped, or breaks down at a
random moment (also inside a save, which takes most of these short steps), raises an exception,
finds the disk full, or is killed and then a file of the newest snapshot is cut or has a bit
flipped. What counts:

    the weights of all ranks are the bits of the run without a fault (of the simulator, whose sums
    are those of MPI), or the run ends with a status and a sentence;
    no attempt begins earlier than the newest snapshot that can be whole;
    no run takes longer than LIMIT_S, or as many times that as tasks share a core.

A seed is the run: the same faults at the same steps; only what happens within a step differs.
Test: test_chaos.py runs some of them.
"""

import json
import os
import random
import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minidl import elastic
from minidl.comm import simulate
from tests.chaos.script import EVERY, STEPS
from tests.cli.faults import minidl_run
from tests.elastic import runs
from tests.mpi.launch import PYTHONS

HOWS = ["SIGKILL", "SIGSTOP", "segmentation fault", "exception", "full disk", "truncated snapshot",
        "flipped snapshot"]
LIMIT_S = 120  # three attempts of 3 ranks take 10 s, mostly imports
SILENCE_S = 4  # a step takes milliseconds
START_S = 60


def wanted(kind, n):
    """The weights of the run that nothing hits."""
    with tempfile.TemporaryDirectory() as folder:
        return simulate(n, lambda t: runs.digest(
            elastic.run(runs.step, runs.state(kind), STEPS, folder, STEPS, t)["model"]))


def plan(seed):
    """(kind, number of ranks, faults) of a run."""
    rng = random.Random(seed)
    kind, n = rng.choice(runs.KINDS), rng.choice([2, 3])
    steps = sorted(rng.sample(range(STEPS), rng.choice([1, 2])))  # the second must come, too
    return kind, n, [
        {"how": rng.choice(HOWS), "rank": rng.randrange(n), "step": step, "seed": rng.random(),
         "after_s": rng.uniform(0, 0.03), "k": rng.randint(1, 12)} for step in steps]


def shared():
    """How many tasks want each core: all takes so many times as long."""
    return max(1.0, os.getloadavg()[0] / os.cpu_count())


def one(folder, seed, mpi, weights):
    """(what is wrong or "", what came of it, what was said) of one run."""
    kind, n, faults = plan(seed)
    times = shared()
    done = minidl_run(mpi, "--restarts", len(faults), "--silence", SILENCE_S * times,
                      "--start-limit", START_S * times, Path(__file__).with_name("script.py"),
                      kind, folder, json.dumps(faults), n=n, limit_s=LIMIT_S * times)
    if "HUNG" in done.stderr:
        return f"longer than {LIMIT_S * times:.0f} s", "hung", done.stderr
    table = re.findall(r"^ +\d+ +\d+ +(\S+) +(\S+) +\S+ {1,9}(?:-|rank)", done.stderr, re.M)
    for (_, to), (begin, _) in zip(table, table[1:], strict=False):
        # the newest is being written while EVERY steps are done, or waits for the end of a round;
        # a damaged one is set aside for the one before; local SGD may save 2 steps late
        if begin != "-" and to != "-" and int(to) - int(begin) > 3 * EVERY + 2:
            return f"from step {to} back to {begin}", "lost steps", done.stderr
    if done.returncode:
        said = re.search("^minidl run: .*|SnapshotError: .*", done.stderr, re.M)
        return ("" if said else "no word"), "refused", done.stderr
    got = dict(re.findall(r"^weights of rank (\d): (\w+)", done.stdout, re.M))
    if [got.get(str(rank)) for rank in range(n)] != weights(kind, n):
        return "other weights", "other weights", f"{got}\n{done.stderr}"
    return "", "the same bits", done.stderr


def main(n_runs=100, seed=None, seconds=86_400):
    until = time.monotonic() + seconds
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"seed {seed}, {n_runs} runs")
    known, came, wrong, longest = {}, Counter(), 0, [0.0]
    for kind in runs.KINDS:
        for n in (2, 3):
            known[kind, n] = wanted(kind, n)
    mpis = [mpi for mpi, python in PYTHONS.items() if Path(python).exists()]

    def run(i):
        start, name = time.monotonic(), f"{seed}.{i}"
        if start > until:
            return name, "", ("", "not begun", "")
        found = one(Path(folder) / str(i), name, mpis[i % len(mpis)],
                    lambda kind, n: known[kind, n])
        longest.append(time.monotonic() - start)
        return name, mpis[i % len(mpis)], found

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for name, mpi, (what, result, said) in pool.map(run, range(n_runs)):
            kind, n, faults = plan(name)
            hows = ", then ".join(f"{f['how']} at step {f['step']} of rank {f['rank']}"
                                  for f in faults)
            came[result] += 1
            if what or result == "refused":
                wrong += bool(what)
                print(f"run {name}: {mpi}, {kind} on {n} ranks, {hows}: {what or result}\n{said}")
            elif os.environ.get("VERBOSE"):
                print(f"run {name}: {mpi}, {kind} on {n} ranks, {hows}: {result}")
    print(", ".join(f"{count} {result}" for result, count in came.items())
          + f"; longest {max(longest):.1f} s; seed {seed}")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
