"""What every tutorial shares: ranks, options, the table at the end, picture, progress bar.

    def main(t, args):                         t: the transport of this rank; args: the options
        table = Table(t)
        table.row("bytes sent", ledger_bytes, formula, "exact")
        picture(t, draw, data)                 out/<script>.png
        return table                           printed last; a row that is not ok: exit status 1

    if __name__ == "__main__":
        launch(main, {"steps": (60, "training steps")}, ranks=4)

The same script then runs in three ways:

    mpirun -n 4 python tutorials/06_ring.py    four processes (`minidl run -n 4` finds mpirun)
    python tutorials/06_ring.py --sim 4        four ranks in one process, with a modelled clock
    python tutorials/06_ring.py                one rank, and a sentence that says how to get more

Test: tests/test_tutorial.py
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np

from minidl import comm
from minidl.comm import objects
from minidl.comm.throttled import links_of
from minidl.comm.watch import DEADLINE_S, Watch

# MPI buffers small messages and makes large ones wait for their receive; where the border lies
# depends on the MPI. Simulated tutorials put it here, so that a wrong order of blocking sends hangs
# in the simulator as it would on a cluster.
RENDEZVOUS_BYTES = 16384

# What the launchers tell each process about its world: (rank, size).
_LAUNCHERS = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Slurm with --mpi=pmi2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
]


def launch(main, options=None, ranks=1):
    """Parse the command line, run `main(t, args)` on every rank, print its Table, exit.

    options   {"name": (default, help)}: `--name VALUE` of the default's type; False makes a flag
    ranks     on how many ranks the script is meant to run; says what to type when it runs on one
    """
    script = _script_of(main)
    args = _parse(main, options or {})
    if args.sim:
        statuses = comm.simulate(
            args.sim,
            _run_rank,
            main,
            args,
            alpha=args.alpha,
            beta=args.beta,
            rendezvous_bytes=RENDEZVOUS_BYTES,
        )
        sys.exit(max(statuses))
    launched = launched_as()[1]
    if importlib.util.find_spec("mpi4py") is None:
        if launched > 1:
            sys.exit(
                f"{script}: started as one of {launched} processes, but mpi4py is not installed "
                f"for {sys.executable}. Install it: pip install 'minidl[mpi]'. "
                f"Without MPI: add --sim {launched}"
            )
        if ranks > 1:
            _one_rank(script, ranks, "mpi4py is not installed (pip install 'minidl[mpi]')")
        sys.exit(max(comm.simulate(1, _run_rank, main, args)))
    if ranks == 1 and launched == 1:  # nothing to send: no need to start MPI
        sys.exit(max(comm.simulate(1, _run_rank, main, args)))
    t = comm.world()
    if t.size == 1 and ranks > 1:
        _one_rank(script, ranks, "it was not started by mpirun")
    sys.exit(_run_rank(t, main, args))


def launched_as():
    """(rank, size) as the MPI launcher told this process; (0, 1) without a known launcher."""
    for rank, size in _LAUNCHERS:
        if os.environ.get(size, "").isdigit() and os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def _one_rank(script, ranks, why):
    print(
        f"One rank only: {why}. This script is about {ranks}:\n"
        f"    minidl run -n {ranks} {script}       {ranks} processes, MPI\n"
        f"    python {script} --sim {ranks}        {ranks} simulated ranks, no MPI\n",
        flush=True,
    )


def _run_rank(t, main, args):
    """Exit status of one rank: 1 if any rank's table has a row that is not ok."""
    # Ranks that disagree or wait in vain are told so; what that costs is in the README's figures.
    table = main(Watch(t, args.deadline or None), args)
    return 0 if table is None else table.finish()


def _script_of(main):
    file = sys.modules[main.__module__].__file__
    near = os.path.relpath(file)
    return file if near.startswith("..") else near


def _parse(main, options):
    doc = sys.modules[main.__module__].__doc__ or ""
    parser = argparse.ArgumentParser(
        prog=_script_of(main),
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # `--step` is a typing error, not --steps
    )
    for name, (default, text) in options.items():
        flag = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            parser.add_argument(
                flag,
                type=type(default),
                default=default,
                metavar=type(default).__name__.upper(),
                help=f"{text} (default {default})",
            )
    parser.add_argument_group("ranks that wait").add_argument(
        "--deadline",
        type=float,
        default=DEADLINE_S,
        metavar="S",
        help="end the run, and say where every rank is, when one has waited for another so many "
        f"seconds (default {DEADLINE_S:g}; 0: never). When nobody can go on it ends at once.",
    )
    simulator = parser.add_argument_group("simulated ranks")
    simulator.add_argument(
        "--sim", type=_positive, metavar="N", help="run N ranks in this process, without MPI"
    )
    network = {"alpha": (10e-6, "message"), "beta": (1e-9, "byte")}  # 10 Gbit/s, roughly
    for name, (default, unit) in network.items():
        text = f"modelled seconds per {unit} (default {default:g})"
        simulator.add_argument(f"--{name}", type=float, metavar="S", help=text)
    if launched_as()[0] > 0:  # a wrong option is one rank's message, not everybody's
        parser._print_message = lambda *_: None
    args = parser.parse_args()
    for name, (default, _) in network.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif not args.sim:
            parser.error(f"--{name} describes simulated ranks: it needs --sim N")
    return args


def _positive(text):
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {n}")
    return n


# -- between the ranks


def say(t, *text):
    """print, on rank 0 only."""
    if t.rank == 0:
        print(*text, flush=True)


def gather(t, value):
    """The list of every rank's `value` (anything that pickles) on rank 0; None on the others.

    It travels on a duplicate of the group, beside whatever else is under way."""
    return objects.gather(t.subgroup(range(t.size)), value)


def progress(t, iterable, what):
    """`iterable` behind a progress bar on rank 0; as it is on the others."""
    if t.rank > 0:
        return iterable
    from tqdm import tqdm  # here: the library has no need of it

    # 80 columns: under mpirun stderr is a pipe, whose width nobody knows
    return tqdm(iterable, desc=what, ncols=80, leave=False)


# -- the table


class Table:
    """The end of every tutorial: quantity | measured | theory | rule | ok.

    Every rank adds its own rows; rank 0 prints its own, and in their place those of the first rank
    whose row of that name is not ok. Rules:

        exact         measured == theory: bytes, messages, elements, steps
        rel<1e-6      |measured - theory| < 1e-6 * |theory|
        abs<1e-6      |measured - theory| < 1e-6
        factor<3      within a factor of 3 of theory: orders of magnitude
        info          never asserted: wall time, names of things

    A line below it says so where `minidl run --net` slowed the messages down.
    """

    def __init__(self, t):
        self.t = t
        self.rows = []  # (quantity, measured, theory, rule, ok: True, False or None for info)

    def row(self, quantity, measured, theory=None, rule="info"):
        self.rows.append((quantity, measured, theory, rule, holds(measured, theory, rule)))

    def finish(self):
        """Print on rank 0 what all ranks found; the exit status, 0 or 1, the same on every rank."""
        private = self.t.subgroup(range(self.t.size))
        tables = objects.gather(private, self.rows)
        failed = None
        if private.rank == 0:
            rows = merge(tables)
            print("\n" + render(rows), flush=True)
            if links := links_of(self.t):
                print(f"times were throttled to {links}", flush=True)
            failed = any(ok is False for *_, ok in rows)
        return int(objects.broadcast(private, failed))


def holds(measured, theory, rule):
    """Whether a row is ok; None for info. A nan is never ok."""
    if rule == "info":
        return None
    if rule == "exact":
        return bool(measured == theory)
    kind, _, bound = rule.partition("<")
    if kind not in ("rel", "abs", "factor") or not bound:
        raise ValueError(f"rule must be exact, rel<x, abs<x, factor<x or info, got {rule!r}")
    bound = float(bound)
    if kind == "factor":
        return bool(theory / bound < measured < theory * bound)
    return bool(abs(measured - theory) < bound * (abs(theory) if kind == "rel" else 1))


def merge(tables):
    """One list of rows from all ranks': rank 0's, replaced by the first one that is not ok."""
    rows = {}
    for rank, table in enumerate(tables):
        for quantity, measured, theory, rule, ok in table:
            if quantity not in rows:
                rows[quantity] = (quantity, measured, theory, rule, ok)
            elif ok is False and rows[quantity][4] is not False:
                rows[quantity] = (f"{quantity} (on rank {rank})", measured, theory, rule, ok)
    return list(rows.values())


def render(rows):
    """The table as text."""
    word = {True: "yes", False: "NO", None: "-"}
    cells = [("quantity", "measured", "theory", "rule", "ok")]
    cells += [(q, _text(m), _text(th), rule, word[ok]) for q, m, th, rule, ok in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    lines = []
    for n, line in enumerate(cells):
        left, right = "<", ">" if n else "<"
        sides = (left, right, right, left, left)
        lines.append(
            " | ".join(f"{c:{s}{w}}" for c, s, w in zip(line, sides, widths, strict=True)).rstrip()
        )
    lines.insert(1, "-+-".join("-" * w for w in widths))
    failed = [q for q, *_, ok in rows if ok is False]
    if failed:
        lines.append(f"NOT OK: {'; '.join(failed)}")
    return "\n".join(lines)


def _text(value):
    if value is None:
        return ""
    if isinstance(value, (bool, np.bool_, str)):
        return {True: "yes", False: "no"}.get(value, str(value))
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return str(value)


# -- the picture


def picture(t, draw, *data):
    """Rank 0 calls `draw(plt, *data)`, which returns a figure, and saves it as out/<script>.png."""
    if t.rank > 0:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print("No picture: matplotlib is not installed (pip install 'minidl[tutorials]').")
        return
    import matplotlib

    matplotlib.use("Agg")  # a file, no window: tutorials also run where there is no display
    from matplotlib import pyplot as plt

    # for a lecture slide: text that is readable from the last row, no box around the data
    style = {
        "font.size": 12,
        "axes.titlesize": 13,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 2,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }
    with plt.rc_context(style):
        figure = draw(plt, *data)
        path = Path("out", Path(_script_of(draw)).stem + ".png")
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)
    print(f"picture: {path}", flush=True)


def heat_map(axes, sent, top=None, node_size=None):
    """Draw what rank i (row) sent to rank j (column), such as `ledger.matrix()`; returns the cells,
    for a colour bar.

    axes: of matplotlib, one of the figure that `draw(plt, ...)` makes for `picture`. top: the value
    of the darkest colour; None: the largest. node_size: a grey square around so many ranks each."""
    n, top = len(sent), sent.max() if top is None else top
    cells = axes.pcolormesh(
        np.ma.masked_equal(sent, 0), cmap="YlGnBu", vmin=0, vmax=top, edgecolors="white"
    )
    for (src, dst), value in np.ndenumerate(sent if n <= 8 else sent[:0]):
        if value:
            color = "white" if value > 0.55 * top else "black"
            place = {"ha": "center", "va": "center", "fontsize": 9}
            axes.text(dst + 0.5, src + 0.5, _short(value), color=color, **place)
    for first in range(0, n, node_size or n):
        end = first + (node_size or n)
        square = [first, end, end, first, first], [first, first, end, end, first]
        axes.plot(*square, color="#969696", linewidth=1)
    every = range(0, n, max(1, n // 8))
    axes.set_xticks([i + 0.5 for i in every], every)
    axes.set_yticks([i + 0.5 for i in every], every)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(aspect="equal", xlim=(0, n), ylim=(n, 0), xlabel="to rank", ylabel="from rank")
    return cells


def _short(value):
    """1536000 as 1.54M, 0.75 as 0.75."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
