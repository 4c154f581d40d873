"""Helpers for all benchmarks. They time functions in turn, run processes, and write three results:

    figures   the measurements as JSON: times, ratios, bytes; each benchmark chooses its own form
    bars      a list: each bar is a measured number with its goal (`bar`, `faster`)
    rows      a list: each row has a question, a peer, a measured number and the names of its bars
              (`row`). run_all.py makes a table of all rows

A ratio of times (`ratio`) is a median. Each round gives the ratio of two times of this round. The
ratio of the shortest times (`best_ratio`) is shown, too. This ratio depends less on a busy machine,
and more on luck. A goal is compared with the median.   Test: tests/benchmarks/test_figures.py
"""

import argparse
import atexit
import functools
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = 77  # exit status of a benchmark that this machine cannot run; automake uses 77, too
LOAD = os.getloadavg()[0]  # the load before anything is measured
QUIET_S = 0.06  # seconds. After a call, onnxruntime's threads use the processors for 36 ms
GLOO_S = 0.2  # seconds in which gloo's threads free their last tensors, before Python ends
ONE_ROUND = os.environ.get("MINIDL_ONE_ROUND") == "1"  # True under run_all.py --quick
NO_TORCH = "PyTorch, which is not installed: pip install 'minidl[bench]'"


def machine():
    """Returns one line: processor, cores for this process, memory, system, Python, NumPy."""
    from minidl.backend import n_cores

    parts = [
        _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        f"{n_cores()} cores",
        _field("/proc/meminfo", "MemTotal") or "memory unknown",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        f"NumPy {np.__version__}",
    ]
    return ", ".join(parts)


def heading(device="cpu"):
    """Returns `machine()`, the load before the benchmark, and the GPU if one is used."""
    return f"{machine()}, load {LOAD:.1f}" + (f", {gpu()}" if device != "cpu" else "")


def gpu():
    """Returns the name of the GPU that "cuda" selects."""
    from minidl import cuda
    from minidl.backend import import_cupy

    name = import_cupy().cuda.runtime.getDeviceProperties(cuda.current_device())["name"]
    return name.decode() if isinstance(name, bytes) else name


def versions():
    """Returns {package: version} of the installed packages that the results depend on."""
    found = {}
    for name in ("torch", "mpi4py", "mpich"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def skip(reason):
    """Ends a benchmark that cannot run here, with the status SKIPPED."""
    print(f"skipped: {reason}", file=sys.stderr)
    sys.exit(SKIPPED)


def import_torch():
    """Returns PyTorch. Skips the benchmark if it is missing."""
    try:
        import torch
    except ImportError:
        skip(f"it needs {NO_TORCH}")
    return torch


# -- devices


def device_option(parser, only_cpu=None):
    """Adds the option --device cpu or cuda. only_cpu: the reason why this benchmark runs only on
    the CPU. The error gives this reason if a user asks for another device."""
    parser.add_argument("--device", type=functools.partial(_device, only_cpu), default="cpu",
                        metavar="{cpu,cuda}", help=only_cpu or "device of the arrays (cpu)")


def _device(only_cpu, name):
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"want cpu or cuda, got {name!r}")
    if name == "cuda":
        from minidl import cuda

        if only_cpu:
            raise argparse.ArgumentTypeError(f"this benchmark runs only on the CPU: {only_cpu}")
        if not cuda.is_available():
            raise argparse.ArgumentTypeError("CuPy is not installed or finds no GPU; "
                                             "`minidl doctor` says why")
    return name


def put(x, device):
    """Copies the NumPy array x to the device, and returns the copy. On the CPU, returns x."""
    from minidl.backend import to_device

    return to_device(x, device)


def torch_runs_on(device):
    """Returns True if PyTorch is installed and can use the device. For a GPU, PyTorch must be built
    with CUDA."""
    try:
        import torch
    except ImportError:
        return False
    return device == "cpu" or torch.cuda.is_available()


def left_out_on(device):
    """Returns a list with the lines that `finish` prints about peers that were left out."""
    if torch_runs_on(device):
        return []
    return [NO_TORCH if device == "cpu" else "PyTorch, which is not installed or not for a GPU"]


# -- time


def take_turns(contestants, repeats, warm_up=1):
    """Times functions in turn. Returns {name: [seconds of each round]}. contestants: {name: a
    function that does some work and returns its time}.

    All functions run once per round, in a random order that is the same on all ranks. So a change
    of the machine's speed affects all functions. The threads of a function may still be awake when
    the next function starts. With a random order this slows down all functions, not always the same
    one. `ratio` compares times of the same round. warm_up: the number of rounds before the first
    round that counts.
    """
    if ONE_ROUND:
        repeats, warm_up = 1, 0
    times = {name: [] for name in contestants}
    for i in range(warm_up + repeats):
        for name in random.Random(i).sample(list(contestants), len(contestants)):
            time_s = contestants[name]()
            if i >= warm_up:
                times[name].append(time_s)
    return times


def timed(work, calls=1, device="cpu", clock=time.perf_counter, alone=False):
    """Returns a function for `take_turns`. This function returns the seconds of one call of `work`,
    as the mean of `calls` calls. On a GPU a call only starts the work, so the function waits until
    the work is done.

    alone: for short calls with several threads. If True, the function first pauses until the
    threads of other functions fall asleep. Then it makes one call that wakes its own threads."""
    wait = _nothing
    if device != "cpu":
        from minidl.cuda import synchronize as wait

    def run():
        if alone:
            time.sleep(QUIET_S)
            work()
        wait()
        start = clock()
        for _ in range(calls):
            result = work()
        wait()
        time_s = (clock() - start) / calls
        del result  # frees its memory outside the measured time
        return time_s

    return run


def on_all_ranks(t, work, calls=1):
    """Returns a function for `take_turns`. All ranks of t run this function, and they begin
    together. The function returns the slowest rank's seconds for work(), divided by `calls`. calls:
    how many calls work() makes."""
    from minidl.plain import naive  # imported here, after a benchmark has set the environment

    def run():
        naive.all_reduce(t, np.zeros(1))  # a barrier
        start = time.perf_counter()
        work()
        slowest = np.array([time.perf_counter() - start])
        return float(naive.all_reduce(t, slowest, np.maximum)[0]) / calls

    return run


def _nothing():
    pass


def ratio(slower, faster):
    """Returns the median over the rounds of slower/faster. It is above 1 if `faster` is faster."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))


def best_ratio(slower, faster):
    """Returns (the shortest time in `slower`) / (the shortest time in `faster`)."""
    return min(slower) / min(faster)


# -- where minidl's time goes


def profile(step, *batch, n_steps=3):
    """Times every Function. Returns {(operation, 'forward' or 'backward'): seconds per step}, and
    the seconds of the whole step."""
    from minidl.function import Function  # imported here, after a benchmark has set the environment

    times = {}

    def timed_in(cls, phase):
        method = cls.__dict__[phase]

        def run(self, *args, **options):
            start = time.perf_counter()
            try:
                return method(self, *args, **options)
            finally:
                key = cls.__name__, phase
                times[key] = times.get(key, 0.0) + time.perf_counter() - start

        setattr(cls, phase, run)
        return lambda: setattr(cls, phase, method)

    undo = [timed_in(cls, phase) for cls in _subclasses(Function)
            for phase in ("forward", "backward") if phase in cls.__dict__]
    start = time.perf_counter()
    for _ in range(n_steps):
        step(*batch)
    total = time.perf_counter() - start
    for u in undo:
        u()
    return {k: v / n_steps for k, v in times.items()}, total / n_steps


def _subclasses(cls):
    return [s for c in cls.__subclasses__() for s in (c, *_subclasses(c))]


def print_profile(name, step, *batch):
    """Prints the table of `profile`. Returns it as {"operation.phase": seconds}."""
    table, total = profile(step, *batch)
    print(f"\nwhere the {1e3 * total:.0f} ms of {name} go (ms per step)\n"
          f"{'operation':28}{'forward':>9}{'backward':>10}{'share':>8}")
    names = sorted({n for n, _ in table}, key=lambda n: -sum(
        table.get((n, p), 0) for p in ("forward", "backward")))
    for name in names:
        f, b = (table.get((name, p), 0.0) for p in ("forward", "backward"))
        if (f + b) / total > 0.002:
            print(f"{name:28}{1e3 * f:>9.1f}{1e3 * b:>10.1f}{(f + b) / total:>8.1%}")
    rest = total - sum(table.values())
    print(f"{'optimizer, engine, Python':28}{1e3 * rest:>19.1f}{rest / total:>8.1%}")
    return {f"{n}.{p}": v for (n, p), v in table.items()}


# -- processes


def threads(n):
    """Returns the environment in which NumPy's BLAS and PyTorch use n threads. These libraries read
    the environment when they are loaded."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(n))


def measured(*command, **environ):
    """Runs `command` with --measure FILE. Returns the JSON that the command wrote to this file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [*map(str, command), "--measure", str(path)]
        subprocess.run(command, env={**os.environ, **environ}, check=True)
        return json.loads(path.read_text())


def on_ranks(n, *command, python=sys.executable, **environ):
    """Runs a Python script with --measure FILE on n ranks. Returns the JSON that the script wrote
    to this file.

    python: the interpreter that runs the script. The mpiexec in the folder of this interpreter
    starts the ranks. If there is no mpiexec in this folder, find_mpiexec() finds one."""
    from minidl.cli.machine import environment, find_mpiexec

    mpiexec = Path(python).parent / "mpiexec"
    mpiexec = mpiexec if mpiexec.exists() else find_mpiexec()
    # The ranks run without Watch, because only bench_watch.py measures the cost of Watch.
    environ = {**environment(n), "PYTHONPATH": str(ROOT), "MINIDL_WATCH": "no", **environ}
    return measured(mpiexec, "-n", n, python, *command, **environ)


def write_figures(figures, path):
    """Writes the measurements as JSON to the file `path`. measured() reads this file."""
    Path(path).write_text(json.dumps(figures))


def start_gloo(t):
    """Starts torch.distributed over gloo for t's ranks. They connect by a port of this host.

    A thread of gloo frees its last tensor a little after the collective has returned. If it does so
    while Python ends, the process is aborted. So Python ends a little later."""
    import socket

    from torch import distributed

    from minidl.plain import naive

    port = np.zeros(1, np.int64)
    if t.rank == 0:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port[0] = s.getsockname()[1]
    naive.all_reduce(t, port)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port[0]}", rank=t.rank,
                                   world_size=t.size)
    atexit.register(distributed.destroy_process_group)
    atexit.register(time.sleep, GLOO_S)  # functions of atexit run in reverse order
    return distributed


# -- figures


def bar(what, figure, wanted, at_most=False, best=None):
    """Returns a bar: a measured number with its goal. The goal is at least `wanted`, or at most
    `wanted` if at_most is True. best: the same number, computed from the shortest measured
    times."""
    met = figure <= wanted if at_most else figure >= wanted
    return dict(what=what, figure=figure, best=best, wanted=wanted, at_most=at_most, met=bool(met))


def faster(what, peer, ours, wanted):
    """Returns the bar "ours is at least `wanted` times as fast as the peer". Compares times of the
    same round."""
    return bar(what, ratio(peer, ours), wanted, best=best_ratio(peer, ours))


def row(question, peer, figure, bars=()):
    """Returns a row of the table in docs/figures.md. The bars of the row give its goals, and tell
    if the goals are reached."""
    return dict(question=question, peer=peer, figure=figure, bars=[b["what"] for b in bars])


def number(x):
    """Returns x as a text. A number below 10 has two digits after the point ('1.04'), a number
    below 100 has one ('13.7'), and a larger number has none ('1,024')."""
    return f"{x:,.{2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0}f}"


def span(figures):
    """Returns the smallest and the largest number as a text: '1.04 to 13.7'. If they are equal,
    returns only one: '1.04'."""
    least, largest = number(min(figures)), number(max(figures))
    return least if least == largest else f"{least} to {largest}"


def print_bars(bars):
    """Prints a line for each bar. The line has the measured number, the same number by the shortest
    times, and the goal. It also tells if the goal is reached."""
    print("\nbars (of ratios: the median of turns; in brackets that of the least times)")
    for b in bars:
        sign, verdict = "<=" if b["at_most"] else ">=", "met" if b["met"] else "NOT MET"
        best = "" if b["best"] is None else f"({b['best']:.3g})"
        print(f"  {b['what']:<64} {b['figure']:>8.3g} {best:>8} {sign} {b['wanted']:<6g} {verdict}")


def finish(figures, bars, rows, path, left_out=()):
    """Prints the bars, and what this machine could not measure. If `path` is given, writes all
    arguments into this file, as JSON."""
    if bars:
        print_bars(bars)
    for what in left_out:
        print(f"left out: {what}")
    if path:
        about = {"machine": machine(), "load_before": LOAD, "versions": versions()}
        found = {"figures": figures, "bars": bars, "rows": rows, "left_out": list(left_out)}
        Path(path).write_text(json.dumps({**about, **found}, indent=1) + "\n")
        print(f"wrote {path}")


def _field(path, name):
    """Returns the value of the first 'name: value' line of a file, if there is one."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
