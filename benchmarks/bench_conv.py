"""How long do convolutional nets take, in minidl and in PyTorch, on a CPU?

    python benchmarks/bench_conv.py [--threads 1 2] [--isa native avx2] [--rows mnist U-Net]
                                    [--repeats 7] [--profile] [--no-memory] [--out FILE.json]

    step       forward, backward and SGD with momentum, for a net in conv_nets.py
    layer      one 3 x 3 convolution: forward, and the gradients of input, weight and bias
    forward    the same convolution under no_grad
    plan       the convolution's plan by minidl.infer; PyTorch runs the convolution eagerly

PyTorch's convolutions on a CPU come from oneDNN. Both libraries get the same weights. First the
losses of a net, or the arrays of a layer, are compared. Then the libraries are timed in turn.
"part" is a library's rate, divided by the processor's peak. The rate is the number of multiply-adds
in convolutions and linear layers, divided by the time of all work. So other work takes time but
counts as 0 operations. The peak is the best rate of bench_peak.py's loop on registers. The part may
be over 100 %, because minidl uses Winograd's algorithm for 3 x 3, which needs fewer multiplications
than are counted.

With one thread, times are CPU time, which a busy machine disturbs less. With two threads, times are
wall time, which is reliable only on a quiet machine.

Each number of threads and each instruction set (--isa) is measured in its own process. avx2 limits
both libraries to AVX2, which most laptops have. The limit is set by the environment variables in
bench_peak.py.

Memory: each row and library has a new process. It measures how many bytes two steps add to the
process's peak resident memory. This memory includes the model, its gradients and the optimizer's
state.
--profile prints only a table of minidl's time by operation.
"""

import argparse
import importlib
import math
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from bench_memory import MIB, of_process
from bench_peak import AVX2, part, peak, rate_of_peak
from common import (
    bar, best_ratio, device_option, finish, heading, import_torch, measured, number, print_profile,
    ratio, row, take_turns, timed, write_figures,
)
from conv_nets import LAYERS, NETS, TINY, operations, step_of

import minidl
from minidl.cli.machine import environment

OURS, TORCH = "minidl", "PyTorch eager"
MOST, MOST_MEAN, MOST_MEMORY = 1, 0.9, 1  # largest allowed ratios to PyTorch
TURN_S = 0.03  # seconds of a turn. It has several calls, because one short call is mostly noise
TOLERANCE = 1e-5  # relative to the largest number. Each library adds numbers in its own order


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=["native"], choices=("native", "avx2"))
    parser.add_argument("--rows", nargs="+", default=[""], help="rows that contain one of these")
    parser.add_argument("--repeats", type=int, default=7, help="turns")
    parser.add_argument("--profile", action="store_true", help="only the table by operation")
    parser.add_argument("--no-memory", action="store_true", help="measure only times")
    device_option(parser, "it measures a CPU's peak, and the memory of a process")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)  # the library to measure
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.rows = [name for name in ROWS if any(text in name for text in args.rows)]
    return args


# -- rows


def step(lib, name):
    """Returns (model, input, a function that does one training step and returns the loss)."""
    net = NETS[name]
    minidl.manual_seed(0)
    model, (x, y) = net.make(lib), net.batch()
    return model, lib.tensor(x), step_of(lib, model, x, y)


def layer(lib, name):
    """Returns (convolution, input, a function that runs the convolution forward and backward)."""
    channels = int(name.split()[0])
    minidl.manual_seed(0)
    rng = np.random.default_rng(0)
    x, gradient = (lib.tensor(rng.standard_normal(LAYERS[channels]).astype(np.float32))
                   for _ in range(2))
    conv = lib.nn.Conv2d(channels, channels, 3, padding=1)
    x.requires_grad_()

    def run():
        x.grad = conv.weight.grad = conv.bias.grad = None
        conv(x).backward(gradient)
        return [x.grad, conv.weight.grad, conv.bias.grad]

    return conv, x, run


def forward(lib, name):
    """Returns (convolution, input, a function that runs the convolution only forward)."""
    conv, x, _ = layer(lib, name)
    x.requires_grad_(False)

    def run():
        with lib.no_grad():
            return [conv(x)]

    return conv, x, run


def plan(lib, name):
    """Returns the same as forward(), but in minidl the function runs the compiled plan."""
    conv, x, run = forward(lib, name)
    if lib is not minidl:
        return conv, x, run
    from minidl import infer

    graph = infer.trace(conv.eval(), x.array)
    infer.optimise(graph)
    compiled = infer.compile(graph, threads=int(os.environ["OMP_NUM_THREADS"]))
    return conv, x, lambda: [compiled(x.array)]


ROWS = {f"step: {name}": (step, name) for name in NETS}
for kind in layer, forward, plan:
    ROWS |= {f"{kind.__name__}: {channels} channels": (kind, f"{channels} channels")
             for channels in LAYERS}


def contestants(name):
    """Returns ({library: a function}, the number of operations of one call). Checks first that the
    functions of both libraries give the same result."""
    import torch

    kind, what = ROWS[name]
    ours, x, run = kind(minidl, what)
    theirs, _, their_run = kind(torch, what)
    theirs.load_state_dict({k: torch.tensor(np.asarray(v)) for k, v in ours.state_dict().items()})
    if kind is step:
        losses = [[f() for _ in range(2)] for f in (run, their_run)]
        np.testing.assert_allclose(*losses, rtol=1e-4, err_msg=name)
    else:
        for a, b in zip(run(), their_run(), strict=True):
            wrong = np.abs(a.array - b.numpy()).max() / np.abs(b.numpy()).max()
            assert wrong < TOLERANCE, f"{name} differs by {wrong:.1e} of the largest number"
    n_forward, n_backward = operations(minidl, ours, x)
    return {OURS: run, TORCH: their_run}, n_forward + (kind in (step, layer)) * n_backward


# -- in a process of its own


def measure(args):
    """Returns {row: a dict with three entries}. "operations": the number of operations of one call.
    "peak": the number of operations of the loop on registers. "times_s": {name: [seconds of each
    round]} for the libraries and for this loop. The environment sets the number of threads."""
    import torch

    (n_threads,) = args.threads
    torch.set_num_threads(n_threads)
    multiply_adds, n_peak = peak(n_threads)
    clock = time.process_time if n_threads == 1 else time.perf_counter
    found = {}
    for name in args.rows:
        calls, n_operations = contestants(name)
        if args.profile:
            print_profile(f"minidl, {name}", calls[OURS])
            continue
        turns = {k: timed(f, calls_in_a_turn(f), clock=clock, alone=n_threads > 1)
                 for k, f in calls.items()}
        times = take_turns(turns | {"peak": timed(multiply_adds, clock=clock)}, args.repeats)
        found[name] = {"operations": n_operations, "peak": n_peak, "times_s": times}
        print_row(name, found[name])
    return found


def calls_in_a_turn(work):
    start = time.perf_counter()
    work()
    return max(1, int(TURN_S / (time.perf_counter() - start)))


def memory_of(args):
    """Runs the step of a row twice. Returns how many bytes this adds to the process's peak
    memory."""
    lib, ((kind, what),) = importlib.import_module(args.memory_of), [ROWS[r] for r in args.rows]
    if lib is not minidl:
        lib.set_num_threads(*args.threads)
    step_of(lib, TINY.make(lib), *TINY.batch())()  # loads everything that is loaded on first use
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the memory held now
    before = of_process("VmRSS")
    _, _, run = kind(lib, what)
    run()
    run()  # the first call creates the optimizer's state
    return of_process("VmHWM") - before


# -- tables, bars


COLUMNS = (f"{'minidl ms':>11}{'PyTorch ms':>12}{'ratio':>7}{'GFLOP/s':>9}{'peak':>7}{'part':>6}"
           f"{'PyTorch part':>14}")


def print_row(name, found):
    times = found["times_s"]
    ours, theirs = (statistics.median(times[k]) for k in (OURS, TORCH))
    print(f"{name:32}{1e3 * ours:>11.2f}{1e3 * theirs:>12.2f}"
          f"{ratio(times[OURS], times[TORCH]):>7.2f}{found['operations'] / ours / 1e9:>9.0f}"
          f"{rate_of_peak(found) / 1e9:>7.0f}{part(found, OURS):>6.0%}"
          f"{part(found, TORCH):>14.0%}", flush=True)


def mean_ratio(rows):
    """Returns the geometric mean of the ratios of all rows. A ratio is minidl's time / PyTorch's
    time."""
    logs = [math.log(ratio(f["times_s"][OURS], f["times_s"][TORCH])) for f in rows.values()]
    return math.exp(statistics.mean(logs))


def memory(args):
    """Prints the table of memory. Returns {row: {library: bytes}}."""
    print(f"\n{'MiB above what was held before':32}{'minidl':>11}{'PyTorch':>12}{'ratio':>7}")
    found = {}
    for name in args.rows:
        if ROWS[name][0] not in (step, layer):
            continue
        ours, theirs = (child("--threads", args.threads[-1], "--rows", name, "--memory-of", lib,
                              **environment(1, args.threads[-1])) for lib in ("minidl", "torch"))
        found[name] = {OURS: ours, TORCH: theirs}
        print(f"{name:32}{ours / MIB:>11.1f}{theirs / MIB:>12.1f}{ours / theirs:>7.2f}",
              flush=True)
    return found


def child(*words, **environ):
    return measured(sys.executable, __file__, *words, **environ)


def main():
    args = options()
    if args.measure:
        return write_figures(memory_of(args) if args.memory_of else measure(args), args.measure)
    import_torch()  # ends the benchmark if PyTorch is missing
    print(heading(), flush=True)
    figures = {"times": {}, "memory": {}}
    for isa in args.isa:
        for n_threads in args.threads:
            title = f"{n_threads} thread{'s' * (n_threads > 1)}{', AVX2 alone' * (isa == 'avx2')}"
            print(f"\n{title:32}{'' if args.profile else COLUMNS}", flush=True)
            figures["times"][title] = found = child(
                "--threads", n_threads, "--repeats", args.repeats, "--rows", *args.rows,
                *["--profile"] * args.profile,
                **environment(1, n_threads), **(AVX2 if isa == "avx2" else {}))
            if found:
                print(f"{'geometric mean':32}{mean_ratio(found):>30.2f}")
    if not args.profile:
        figures["memory"] = {} if args.no_memory else memory(args)
        finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars, rows = [], []
    for title, found in figures["times"].items():
        for name, f in found.items():
            by, best = (g(f["times_s"][OURS], f["times_s"][TORCH]) for g in (ratio, best_ratio))
            bars.append(bar(f"{name}, {title}: minidl / PyTorch", by, MOST, at_most=True,
                            best=best))
            rows.append(row(f"convolution, {name}; {title}", TORCH,
                            f"{number(by)} times its time; {part(f, OURS):.0%} of the peak",
                            bars[-1:]))
        bars.append(bar(f"geometric mean, {title}", mean_ratio(found), MOST_MEAN, at_most=True))
        rows.append(row(f"convolution, the geometric mean of these; {title}", TORCH,
                        f"{number(mean_ratio(found))} times its time", bars[-1:]))
    for name, f in figures["memory"].items():
        by = f[OURS] / f[TORCH]
        bars.append(bar(f"{name}: peak resident memory, minidl / PyTorch", by, MOST_MEMORY,
                        at_most=True))
        rows.append(row(f"convolution, the peak resident memory of two calls, {name}",
                        f"PyTorch eager, {number(f[TORCH] / MIB)} MiB",
                        f"{number(by)} times its memory", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
