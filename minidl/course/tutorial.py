"""What every tutorial shares: ranks, options, the table at the end, a progress bar.

    def main(t, args):                         t: the transport of this rank; args: the options
        table = Table(t)
        table.row("bytes sent", ledger_bytes, formula, "exact")      rules: table.py
        picture(t, args, draw, data)           out/<script>.png: out.py
        return table                           the table is printed last. If a row is not ok, the
                                               exit status is 1

    if __name__ == "__main__":
        launch(main, {"steps": (60, "training steps")}, ranks=4)

The same script then runs in three ways:

    mpirun -n 4 python tutorials/07_ring.py    four processes (`minidl run -n 4` finds mpirun)
    python tutorials/07_ring.py --sim 4        four ranks in one process, with a modelled clock
    python tutorials/07_ring.py                one rank, and a message: how to get more ranks

With `--device cuda` the arrays of the script are on a GPU. Each rank of a machine has its own GPU,
if there are enough GPUs. put(args, x) copies an array to the GPU, and host(x) copies it back.

Test: tests/course/test_tutorial.py
"""

import argparse
import importlib.util
import itertools
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minidl import backend, comm, cuda
from minidl.cli import gpus
from minidl.cli.machine import THREAD_VARIABLES
from minidl.comm import objects, tree
from minidl.comm.observe.watch import DEADLINE_S, Watch
from minidl.comm.transport.scheduler import RankFailed
from minidl.comm.transport.supervised import launched_as
from minidl.comm.transport.throttled import links_of
from minidl.course import table
from minidl.course.language import Parser, RawHelp, translated
from minidl.course.out import heat_map, picture, script_of, write  # noqa: F401: for tutorials
from minidl.cuda.host.compiler import NO_COMPILER
from minidl.data import datasets
from minidl.text import errors_translated, tr

# MPI buffers small messages, but a send of a large message waits for the receive. The limit
# depends on the MPI library. Simulated tutorials have the limit below. So a wrong order of blocking
# sends hangs in the simulator, as on a cluster.
RENDEZVOUS_BYTES = 16384

# Options of `minidl run`. A user may write these options after the script by mistake.
OF_RUN = ("--net", "--threads", "--hosts", "--restarts", "--heal", "--bind", "--no-watch",
          "--mpiexec", "--stdin", "--silence", "--start-limit", "--min-ranks")


class WrongOption(ValueError):
    """Raised if the script cannot run with an option. The message says what to change.

    All ranks have the same options, so every rank raises this error, before anything is sent."""


def launch(main, options=None, ranks=1):
    """Parses the command line, runs `main(t, args)` on every rank, prints its Table, and exits.

    options   {"name": (default, help)} for the option `--name VALUE`. The value has the type of the
              default. If the default is False, the option has no value
    ranks     the number of ranks that the script is meant for. If it is more than 1 but there is
              only one rank, the script prints how to start it with more ranks
    """
    with errors_translated():
        _launch(main, options, ranks)


def _launch(main, options, ranks):
    script = script_of(main)
    args = _parse(main, options or {})
    one_blas_thread(os.environ)
    if args.device == "cuda":
        cuda.set_device((gpus.local_rank(os.environ) or 0) % cuda.device_count())
    if args.sim:
        statuses = comm.simulate(args.sim, _run_rank, main, args, alpha=args.alpha, beta=args.beta,
                                 rendezvous_bytes=RENDEZVOUS_BYTES)
        sys.exit(max(statuses))
    launched = launched_as()[1]
    if importlib.util.find_spec("mpi4py") is None:
        if launched > 1:
            sys.exit(tr(
                f"{script}: started as one of {launched} processes, but mpi4py is not installed "
                f"for {sys.executable}. Install it: pip install 'minidl[mpi]'. Without MPI: add "
                f"--sim {launched}"))
        if ranks > 1:
            _one_rank(script, ranks, "mpi4py is not installed (pip install 'minidl[mpi]')")
        sys.exit(_run_alone(main, args))
    if ranks == 1 and launched == 1:  # no messages: MPI is not needed
        sys.exit(_run_alone(main, args))
    t = comm.world()
    if t.size == 1 and ranks > 1:
        _one_rank(script, ranks, "it was not started by mpirun")
    sys.exit(_run_rank(t, main, args))


def one_blas_thread(environ):
    """Sets one thread for NumPy's matrix products, unless the user (or `minidl run`) set a number.

    A tutorial's matrices are small. Two threads of OpenBLAS wait for each other in a busy loop, and
    take twice the time of one thread. For example, 05_amp.py on 2 cores takes 35 s of processor
    time with two threads, and 15 s with one thread. If other processes use the cores, the two
    threads take eight times as long."""
    if not any(name in environ for name in THREAD_VARIABLES):
        if importlib.util.find_spec("threadpoolctl") is not None:  # scikit-learn installs it
            import threadpoolctl

            threadpoolctl.threadpool_limits(1, "blas")


def _one_rank(script, ranks, why):
    print(tr(f"One rank only: {why}. This script is meant for {ranks} ranks:\n"
          f"    minidl run -n {ranks} {script}       {ranks} processes, MPI\n"
          f"    python {script} --sim {ranks}        {ranks} simulated ranks, no MPI\n"),
          flush=True)


def _run_alone(main, args):
    """Runs `_run_rank` on the only rank. An exception of the rank is raised unchanged, not as
    RankFailed."""
    try:
        return comm.simulate(1, _run_rank, main, args)[0]
    except RankFailed as failed:
        raise failed.__cause__ from None


def _run_rank(t, main, args):
    """Runs one rank. Returns its exit status: 2 for a wrong option, 1 if any rank's table has a row
    that is not ok, otherwise 0."""
    # Watch reports ranks that disagree or wait for ever; its cost: docs/figures.md
    t = Watch(t, args.deadline or None)
    script = script_of(main)
    try:
        table = main(t, args)
    except (WrongOption, cuda.KernelError) as error:
        if isinstance(error, cuda.KernelError) and str(error) != NO_COMPILER:
            raise
        if t.rank == 0:
            print(tr(f"{script}: error: {error}"), file=sys.stderr, flush=True)
        tree.barrier(t)  # all ranks wait here, because the first exit with an error ends all ranks
        return 2
    return 0 if table is None else table.finish(Path(script).stem + ".json")


def _parse(main, options):
    doc = sys.modules[main.__module__].__doc__ or ""
    doc = translated(Path(script_of(main)).stem[:2], "head", doc)
    parser = Parser(script_of(main), description=doc, formatter_class=RawHelp)
    for name, (default, text) in options.items():
        flag = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(flag, action="store_true", help=tr(text))
        else:
            kind = type(default)
            parser.add_argument(flag, type=kind, default=default, metavar=kind.__name__.upper(),
                                help=tr(f"{text} (default {default})"))
    parser.add_argument_group(tr("ranks that wait")).add_argument(
        "--deadline", type=float, default=DEADLINE_S, metavar="S",
        help=tr("end the run, and print where every rank is, if a rank has waited S seconds for "
                f"another rank (default {DEADLINE_S:g}; 0: never). If no rank can go on, the run "
                "ends at once."))
    parser.add_argument_group(tr("where the arrays are")).add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help=tr("where the arrays are: in the host's memory, or on a GPU"))
    pictures = parser.add_argument_group(tr("pictures"))
    pictures.add_argument(
        "--slides", action="store_true",
        help=tr("also write slides to out/slides, as PNG and SVG: at most two panels on a slide, "
                "and text of 16 points"))
    pictures.add_argument(
        "--every-language", action="store_true",
        help=tr("also write the picture in English to out/en and in Chinese to out/zh, for the "
                "site"))
    simulator = parser.add_argument_group(tr("simulated ranks"))
    simulator.add_argument("--sim", type=_positive, metavar="N",
                           help=tr("run N ranks in this process, without MPI"))
    network = {"alpha": (10e-6, "message"), "beta": (1e-9, "byte")}  # 10 Gbit/s, roughly
    for name, (default, unit) in network.items():
        text = f"modelled seconds per {unit} (default {default:g})"
        simulator.add_argument(f"--{name}", type=float, metavar="S", help=tr(text))
    if launched_as()[0] > 0:  # only rank 0 prints the message about a wrong option
        parser._print_message = lambda *_: None
    args, unknown = parser.parse_known_args()
    if unknown:
        text = f"unrecognized arguments: {' '.join(unknown)}"
        misplaced = [word for word in unknown if word in OF_RUN]
        if misplaced:
            text += (f". {misplaced[0]} is an option of `minidl run` and must stand before the "
                     f"script: minidl run -n 2 {' '.join(unknown)} {parser.prog}")
        parser.error(tr(text))
    if args.device == "cuda" and not cuda.is_available():
        cupy = "CuPy finds none" if importlib.util.find_spec("cupy") else \
            "CuPy is not installed: pip install 'minidl[cuda12]' or 'minidl[cuda13]'"
        parser.error(tr(f"--device cuda wants a GPU; {cupy}. `minidl doctor` tells what is "
                        "missing"))
    for name, (default, _) in options.items():
        if type(default) is int and getattr(args, name) < (least := min(default, 1)):
            parser.error(tr(f"--{name.replace('_', '-')} must be at least {least}, got "
                            f"{getattr(args, name)}"))
    for name, (default, _) in network.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif not args.sim:
            parser.error(tr(f"--{name} describes simulated ranks: it needs --sim N"))
    return args


def _positive(text):
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(tr(f"must be at least 1, got {n}"))
    return n


def put(args, x) -> Any:
    """Returns x on the device of `--device`, if x is a NumPy array, a Tensor or a Module. Returns
    any other value unchanged."""
    if isinstance(x, np.ndarray):
        return backend.to_device(x, args.device)
    return x.to(args.device) if hasattr(x, "to") else x


def host(x) -> np.ndarray:
    """Returns x as a NumPy array. x: an array of NumPy or CuPy, or a Tensor."""
    return backend.to_device(backend.array_of(x), "cpu")


def say(t, *text):
    """Prints `text`, on rank 0 only."""
    if t.rank == 0:
        print(*map(tr, text), flush=True)


def gather(t, value) -> Any:
    """Returns the list of every rank's `value` on rank 0, and None on the other ranks.

    `value` is any object that can be pickled. It is sent in a duplicate of the group, so that it
    cannot mix with other messages."""
    return objects.gather(t.subgroup(range(t.size)), value)


def per_rank(t, batch):
    """Returns the number of samples on each rank: batch / ranks. Raises WrongOption if the ranks
    cannot have equal numbers of samples. With unequal numbers the mean of the ranks' means is not
    the mean of the batch. Also raises WrongOption if the data set, the digits, has fewer samples
    than `batch`."""
    if batch > (most := len(datasets.digits()[0])):
        raise WrongOption(f"--batch must be at most {most}, the number of samples; got {batch}")
    if batch % t.size:
        raise WrongOption(
            f"--batch {batch} is not divisible by {t.size} ranks. Every rank must have the same "
            f"number of samples. Try --batch {max(t.size, batch // t.size * t.size)}")
    return batch // t.size


def progress(t, iterable, what, n=None) -> Any:
    """Returns `iterable`, or its first n elements, with a progress bar on rank 0. what: the text
    next to the bar. If n is None, returns all elements."""
    if n is not None:
        iterable = itertools.islice(iterable, n)
    if t.rank > 0:
        return iterable
    from tqdm import tqdm  # imported here: only tutorials need it

    # 80 columns: under mpirun, stderr is a pipe without a width
    return tqdm(iterable, desc=tr(what), total=n, ncols=80, leave=False)


class Table:
    """The table at the end of every tutorial. Its columns: quantity | measured | theory | rule | ok
    (table.py).

    Every rank adds rows. Rank 0 prints its own rows. But if a row is not ok on some rank, rank 0
    prints this row with the values of the first such rank. If `minidl run --net` slowed the
    messages, a line below the table tells this."""

    def __init__(self, t):
        self.t, self.rows = t, []

    def row(self, quantity, measured, theory=None, rule="info"):
        self.rows.append(table.row(quantity, measured, theory, rule))

    def modelled(self, quantity, modelled, theory=None, rule="info"):
        """Adds a row with the time of a modelled clock, in the column "modelled"."""
        self.rows.append(table.row(quantity, None, theory, rule, modelled))

    def finish(self, report=None):
        """Prints the rows of all ranks on rank 0, and saves the rows in the JSON file out/<report>.

        Returns the exit status, 0 or 1, the same on every rank."""
        private = self.t.subgroup(range(self.t.size))
        tables = objects.gather(private, self.rows)
        failed = None
        if private.rank == 0:
            rows = table.merge(tables)
            print("\n" + table.render(rows), flush=True)
            if links := links_of(self.t):
                print(tr(f"messages were slowed down to {links}"), flush=True)
            if report:
                write(report, partial(table.save, rows))
            failed = bool(table.failed(rows))
        return int(objects.broadcast(private, failed))
