"""What the benchmarks share: taking turns, processes of their own, bars, rows of a table.

    figures   what was measured, as JSON: times, ratios, bytes, whatever the benchmark likes
    bars      [a figure beside what it has to be]: `bar`, `faster`
    rows      [question, peer, figure, names of its bars]: `row`; run_all.py makes a table of them

A ratio of times is the median over the rounds of two times of one round (`ratio`); beside it stands
the ratio of the least times (`best_ratio`), which a busy machine disturbs less and luck more. Bars
judge the median.   Test: tests/benchmarks/test_figures.py
"""

import argparse
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
SKIPPED = 77  # the exit status of a benchmark that this machine cannot run, as automake has it
LOAD = os.getloadavg()[0]  # before anything is measured
QUIET_S = 0.06  # after a call, onnxruntime's threads keep the processors busy for 36 ms
NO_TORCH = "PyTorch, which is not installed: pip install 'minidl[bench]'"


def machine():
    """One line: processor, cores this process may use, memory, system, Python, NumPy."""
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
    """`machine()`, how busy it was before, and which GPU is used."""
    return f"{machine()}, load {LOAD:.1f}" + (f", {gpu()}" if device != "cpu" else "")


def gpu():
    """The name of the GPU that "cuda" means."""
    from minidl import cuda
    from minidl.backend import import_cupy

    name = import_cupy().cuda.runtime.getDeviceProperties(cuda.current_device())["name"]
    return name.decode() if isinstance(name, bytes) else name


def versions():
    """Of the packages that the figures depend on, as far as they are installed."""
    found = {}
    for name in ("torch", "mpi4py", "mpich"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def skip(reason):
    """End a benchmark that cannot run here."""
    print(f"skipped: {reason}", file=sys.stderr)
    sys.exit(SKIPPED)


def import_torch():
    """PyTorch, for a benchmark that has nothing to say without it."""
    try:
        import torch
    except ImportError:
        skip(f"it needs {NO_TORCH}")
    return torch


# -- devices


def device_option(parser, only_cpu=None):
    """--device cpu or cuda. only_cpu: why there is no other here, a sentence: the error where one
    is asked for."""
    parser.add_argument("--device", type=functools.partial(_device, only_cpu), default="cpu",
                        metavar="{cpu,cuda}", help=only_cpu or "where the arrays lie (cpu)")


def _device(only_cpu, name):
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"want cpu or cuda, got {name!r}")
    if name == "cuda":
        from minidl import cuda

        if only_cpu:
            raise argparse.ArgumentTypeError(f"this benchmark runs on the CPU alone: {only_cpu}")
        if not cuda.is_available():
            raise argparse.ArgumentTypeError("CuPy is not installed or finds no GPU; "
                                             "`minidl doctor` says why")
    return name


def put(x, device):
    """An array of NumPy on the device."""
    from minidl.backend import to_device

    return to_device(x, device)


def torch_runs_on(device):
    """Whether PyTorch is installed and can use the device: on a GPU it is a peer only where it
    was built for one."""
    try:
        import torch
    except ImportError:
        return False
    return device == "cpu" or torch.cuda.is_available()


def left_out_on(device):
    """What `finish` says of peers that were left out."""
    if torch_runs_on(device):
        return []
    return [NO_TORCH if device == "cpu" else "PyTorch, which is not installed or not for a GPU"]


# -- time


def take_turns(contestants, repeats, warm_up=1):
    """Seconds of each contestant, {name: [repeats figures]}; each is a function returning its time.

    All run once per round, in an order drawn anew for it (the same on all ranks), so that a change
    of the machine's speed meets all, and nobody always follows the same neighbour, whose threads
    may still spin. Compare figures of the same round: `ratio`.
    """
    times = {name: [] for name in contestants}
    for i in range(warm_up + repeats):
        for name in random.Random(i).sample(list(contestants), len(contestants)):
            time_s = contestants[name]()
            if i >= warm_up:
                times[name].append(time_s)
    return times


def timed(work, calls=1, device="cpu", clock=time.perf_counter, alone=False):
    """A contestant for `take_turns`: the seconds of one call of `work`, the mean of so many. On a
    GPU until its work is done, which a call alone only starts.

    alone: first a pause, in which the threads of the others fall asleep, and a call that wakes
    one's own: for short calls with several threads."""
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
        del result  # gives its memory back outside the measured time
        return time_s

    return run


def on_all_ranks(t, work, calls=1):
    """A contestant for `take_turns` that all ranks of t run: the seconds of the slowest for `work`,
    which is so many calls of what is measured; all begin together."""
    from minidl.plain import naive  # here: a benchmark may set the environment first

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
    """The median over the rounds of slower/faster: over 1 where `faster` is."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))


def best_ratio(slower, faster):
    """The ratio of the least times."""
    return min(slower) / min(faster)


# -- where minidl's time goes


def profile(step, *batch, n_steps=3):
    """{(operation, 'forward' or 'backward'): seconds per step}, every Function timed, and the
    whole step."""
    from minidl.function import Function  # here: a benchmark may set the environment first

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
    """Print `profile`'s table; returns it as {"operation.phase": seconds}."""
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
    """The environment in which NumPy's BLAS and PyTorch use so many threads: read when loaded."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(n))


def measured(*command, **environ):
    """What a process of `command` wrote as JSON into the file that it got as --measure FILE."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [*map(str, command), "--measure", str(path)]
        subprocess.run(command, env={**os.environ, **environ}, check=True)
        return json.loads(path.read_text())


def on_ranks(n, *command, python=sys.executable, **environ):
    """As `measured`, of n ranks of a Python script; `python` decides which MPI."""
    from minidl.cli.machine import environment, find_mpiexec

    mpiexec = Path(python).parent / "mpiexec"
    mpiexec = mpiexec if mpiexec.exists() else find_mpiexec()
    # no Watch: what it costs, bench_watch.py says
    environ = {**environment(n), "PYTHONPATH": str(ROOT), "MINIDL_WATCH": "no", **environ}
    return measured(mpiexec, "-n", n, python, *command, **environ)


def write_figures(figures, path):
    """What `measured` reads."""
    Path(path).write_text(json.dumps(figures))


def start_gloo(t):
    """PyTorch's torch.distributed over gloo among t's ranks, which meet at a port of this host."""
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
    return distributed


# -- figures


def bar(what, figure, wanted, at_most=False, best=None):
    """A figure beside what it has to be, at least or at most; `best`: the same by least times."""
    met = figure <= wanted if at_most else figure >= wanted
    return dict(what=what, figure=figure, best=best, wanted=wanted, at_most=at_most, met=bool(met))


def faster(what, peer, ours, wanted):
    """The bar that our times are at least `wanted` times as fast as the peer's, turn by turn."""
    return bar(what, ratio(peer, ours), wanted, best=best_ratio(peer, ours))


def row(question, peer, figure, bars=()):
    """A line of docs/figures.md; its goal, and whether it is reached, are its bars'."""
    return dict(question=question, peer=peer, figure=figure, bars=[b["what"] for b in bars])


def number(x):
    """Three digits, but no fewer than all before the point: 1.04, 13.7, 1,024."""
    return f"{x:,.{2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0}f}"


def span(figures):
    """'1.04', or '1.04 to 13.7': the least and the largest."""
    least, largest = number(min(figures)), number(max(figures))
    return least if least == largest else f"{least} to {largest}"


def print_bars(bars):
    """A line for each bar: figure, bar, met or not; and what the least times would say."""
    print("\nbars (of ratios: the median of turns; in brackets that of the least times)")
    for b in bars:
        sign, verdict = "<=" if b["at_most"] else ">=", "met" if b["met"] else "NOT MET"
        best = "" if b["best"] is None else f"({b['best']:.3g})"
        print(f"  {b['what']:<64} {b['figure']:>8.3g} {best:>8} {sign} {b['wanted']:<6g} {verdict}")


def finish(figures, bars, rows, path, left_out=()):
    """Print the bars, and what this machine could not measure; write all as JSON to `path`, if
    there is one."""
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
    """The value of the first 'name: value' line of a file, if there is one."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
