"""What every tutorial shares: ranks, options, the table at the end, progress bar.

    def main(t, args):                         t: the transport of this rank; args: the options
        table = Table(t)
        table.row("bytes sent", ledger_bytes, formula, "exact")      rules: table.py
        picture(t, args, draw, data)           out/<script>.png: out.py
        return table                           printed last; a row that is not ok: exit status 1

    if __name__ == "__main__":
        launch(main, {"steps": (60, "training steps")}, ranks=4)

The same script then runs in three ways:

    mpirun -n 4 python tutorials/07_ring.py    four processes (`minidl run -n 4` finds mpirun)
    python tutorials/07_ring.py --sim 4        four ranks in one process, with a modelled clock
    python tutorials/07_ring.py                one rank, and a sentence that says how to get more

and with `--device cuda` its arrays are on a GPU, one for each rank of a machine, as far as there
are so many: put(args, x) places them, host(x) brings them back.

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

# MPI buffers small messages and makes large ones wait for their receive; the limit differs by MPI.
# Simulated tutorials have this one, so that a wrong order of blocking sends hangs in the simulator
# as it would on a cluster.
RENDEZVOUS_BYTES = 16384

# Options of `minidl run` that a user may write behind the script, where they are the script's.
OF_RUN = ("--net", "--threads", "--hosts", "--restarts", "--heal", "--bind", "--no-watch",
          "--mpiexec", "--stdin", "--silence", "--start-limit", "--min-ranks")


class WrongOption(ValueError):
    """The script cannot run with this option; the message says what to change. All ranks have the
    same options: every rank raises it, before anything is sent."""


def launch(main, options=None, ranks=1):
    """Parse the command line, run `main(t, args)` on every rank, print its Table, exit.

    options   {"name": (default, help)}: `--name VALUE` of the default's type; False makes a flag
    ranks     on how many ranks the script is meant to run; says what to type when it runs on one
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
    if ranks == 1 and launched == 1:  # nothing to send: no need to start MPI
        sys.exit(_run_alone(main, args))
    t = comm.world()
    if t.size == 1 and ranks > 1:
        _one_rank(script, ranks, "it was not started by mpirun")
    sys.exit(_run_rank(t, main, args))


def one_blas_thread(environ):
    """One thread for NumPy's matrix products, unless the user (or `minidl run`) has set a number.

    A tutorial's matrices are small: two threads of OpenBLAS, which wait for each other by spinning,
    take twice the time of one (05_amp.py on 2 cores: 35 s of processor time, not 15), and eight
    times where other processes want the cores."""
    if not any(name in environ for name in THREAD_VARIABLES):
        if importlib.util.find_spec("threadpoolctl") is not None:  # it comes with scikit-learn
            import threadpoolctl

            threadpoolctl.threadpool_limits(1, "blas")


def _one_rank(script, ranks, why):
    print(tr(f"One rank only: {why}. This script is about {ranks}:\n"
          f"    minidl run -n {ranks} {script}       {ranks} processes, MPI\n"
          f"    python {script} --sim {ranks}        {ranks} simulated ranks, no MPI\n"),
          flush=True)


def _run_alone(main, args):
    """`_run_rank` on the only rank; its exception is raised as it is, not as RankFailed."""
    try:
        return comm.simulate(1, _run_rank, main, args)[0]
    except RankFailed as failed:
        raise failed.__cause__ from None


def _run_rank(t, main, args):
    """Exit status of one rank: 1 if any rank's table has a row that is not ok."""
    # reports ranks that disagree or wait for ever; its cost is in docs/figures.md
    t = Watch(t, args.deadline or None)
    script = script_of(main)
    try:
        table = main(t, args)
    except (WrongOption, cuda.KernelError) as error:
        if isinstance(error, cuda.KernelError) and str(error) != NO_COMPILER:
            raise
        if t.rank == 0:
            print(tr(f"{script}: error: {error}"), file=sys.stderr, flush=True)
        tree.barrier(t)  # the first rank that leaves with an error ends the others
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
        help=tr("end the run, and say where every rank is, when one has waited for another so many "
                f"seconds (default {DEADLINE_S:g}; 0: never). When nobody can go on it ends at "
                "once."))
    parser.add_argument_group(tr("where the arrays are")).add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help=tr("the host's memory, or a GPU's"))
    pictures = parser.add_argument_group(tr("pictures"))
    pictures.add_argument(
        "--slides", action="store_true",
        help=tr("also out/slides: at most two panels a figure, 16 points, PNG and SVG"))
    pictures.add_argument(
        "--every-language", action="store_true",
        help=tr("also out/en and out/zh: the picture in both languages, for the site"))
    simulator = parser.add_argument_group(tr("simulated ranks"))
    simulator.add_argument("--sim", type=_positive, metavar="N",
                           help=tr("run N ranks in this process, without MPI"))
    network = {"alpha": (10e-6, "message"), "beta": (1e-9, "byte")}  # 10 Gbit/s, roughly
    for name, (default, unit) in network.items():
        text = f"modelled seconds per {unit} (default {default:g})"
        simulator.add_argument(f"--{name}", type=float, metavar="S", help=tr(text))
    if launched_as()[0] > 0:  # the message about a wrong option is printed by rank 0 alone
        parser._print_message = lambda *_: None
    args, unknown = parser.parse_known_args()
    if unknown:
        text = f"unrecognized arguments: {' '.join(unknown)}"
        misplaced = [word for word in unknown if word in OF_RUN]
        if misplaced:
            text += (f". {misplaced[0]} is an option of `minidl run` and stands before the script: "
                     f"minidl run -n 2 {' '.join(unknown)} {parser.prog}")
        parser.error(tr(text))
    if args.device == "cuda" and not cuda.is_available():
        cupy = "CuPy finds none" if importlib.util.find_spec("cupy") else \
            "CuPy is not installed: pip install 'minidl[cuda12]' or 'minidl[cuda13]'"
        parser.error(tr(f"--device cuda wants a GPU; {cupy}. `minidl doctor` says more"))
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
    """x on the device of `--device`: a NumPy array, a Tensor or a Module; all else as it is."""
    if isinstance(x, np.ndarray):
        return backend.to_device(x, args.device)
    return x.to(args.device) if hasattr(x, "to") else x


def host(x) -> np.ndarray:
    """An array of either kind, or a Tensor, as a NumPy array."""
    return backend.to_device(backend.array_of(x), "cpu")


def say(t, *text):
    """print, on rank 0 only."""
    if t.rank == 0:
        print(*map(tr, text), flush=True)


def gather(t, value) -> Any:
    """The list of every rank's `value` (anything that pickles) on rank 0; None on the others. It is
    sent in a duplicate of the group, apart from all other messages."""
    return objects.gather(t.subgroup(range(t.size)), value)


def per_rank(t, batch):
    """How many of --batch digits each rank has; WrongOption where that is no whole number, or where
    there are not so many digits."""
    if batch > (most := len(datasets.digits()[0])):
        raise WrongOption(f"--batch {batch}: there are {most} samples")
    if batch % t.size:
        raise WrongOption(
            f"--batch {batch} is not divisible by {t.size} ranks, so the mean of their means is "
            f"not the mean of the batch; try --batch {max(t.size, batch // t.size * t.size)}")
    return batch // t.size


def progress(t, iterable, what, n=None) -> Any:
    """`iterable`, or its first n elements, behind a progress bar on rank 0."""
    if n is not None:
        iterable = itertools.islice(iterable, n)
    if t.rank > 0:
        return iterable
    from tqdm import tqdm  # here: the library does not need it

    # 80 columns: under mpirun stderr is a pipe, which has no width
    return tqdm(iterable, desc=tr(what), total=n, ncols=80, leave=False)


class Table:
    """The end of every tutorial: quantity | measured | theory | rule | ok (table.py).

    Every rank adds rows; rank 0 prints its own, and for a row that is not ok on some rank, that of
    the first such rank. A line below tells whether `minidl run --net` slowed the messages down."""

    def __init__(self, t):
        self.t, self.rows = t, []

    def row(self, quantity, measured, theory=None, rule="info"):
        self.rows.append(table.row(quantity, measured, theory, rule))

    def modelled(self, quantity, modelled, theory=None, rule="info"):
        """A row with the time of a modelled clock, in a column of its own."""
        self.rows.append(table.row(quantity, None, theory, rule, modelled))

    def finish(self, report=None):
        """Print on rank 0 what all ranks found, and save it as out/<report>, JSON; the exit status,
        0 or 1, the same on every rank."""
        private = self.t.subgroup(range(self.t.size))
        tables = objects.gather(private, self.rows)
        failed = None
        if private.rank == 0:
            rows = table.merge(tables)
            print("\n" + table.render(rows), flush=True)
            if links := links_of(self.t):
                print(tr(f"times were throttled to {links}"), flush=True)
            if report:
                write(report, partial(table.save, rows))
            failed = bool(table.failed(rows))
        return int(objects.broadcast(private, failed))
