"""What the benchmarks share: naming the machine, taking turns, writing figures down."""

import json
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np


def machine():
    """One line: processor, cores this process may use, memory, versions, and how busy it is now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        f"{cores} cores",
        _field("/proc/meminfo", "MemTotal") or "memory unknown",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        f"NumPy {np.__version__}",
        f"load {os.getloadavg()[0]:.1f}",
    ]
    return ", ".join(parts)


def take_turns(contestants, repeats, warm_up=1):
    """Seconds of each contestant, {name: [repeats figures]}; each is a function returning its time.

    All run once per round, in turning order, so that a change of the machine's speed meets all and
    nobody always follows the same neighbour. Compare figures of the same round: `ratio`.
    """
    names = list(contestants)
    times = {name: [] for name in names}
    for i in range(warm_up + repeats):
        shift = i % len(names)
        for name in names[shift:] + names[:shift]:
            time_s = contestants[name]()
            if i >= warm_up:
                times[name].append(time_s)
    return times


def timed(work):
    """A contestant for `take_turns`: the seconds of one call of `work`."""

    def run():
        start = time.perf_counter()
        result = work()
        time_s = time.perf_counter() - start
        del result  # gives its memory back outside the measured time
        return time_s

    return run


def ratio(slower, faster):
    """The median over the rounds of slower/faster: over 1 where `faster` is."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))


def bar(what, figure, wanted, at_most=False):
    """A figure beside what it has to be, at least or at most; for `print_bars` and for JSON."""
    met = figure <= wanted if at_most else figure >= wanted
    return dict(what=what, figure=figure, wanted=wanted, at_most=at_most, met=bool(met))


def print_bars(bars):
    """A line for each bar: figure, bar, met or not."""
    print("\nbars")
    for b in bars:
        sign, verdict = "<=" if b["at_most"] else ">=", "met" if b["met"] else "NOT MET"
        print(f"  {b['what']:<64} {b['figure']:>8.3g} {sign} {b['wanted']:<6g} {verdict}")


def best_ratio(slower, faster):
    """The ratio of the least times: for bars, because a busy machine only adds."""
    return min(slower) / min(faster)


def write_json(result, path, default_name):
    """Write `result` to `path`, or to benchmarks/results/default_name; prints where."""
    path = Path(path or Path(__file__).parent / "results" / default_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}")


def _field(path, name):
    """The value of the first 'name: value' line of a file, if there is one."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
