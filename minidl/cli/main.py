"""The command line: each command and the file that does its work.      Test: tests/cli/test_main.py

minidl run -n 4 script.py ...            start a script on 4 MPI ranks           launcher.py
minidl doctor                            what is installed, how to repair it     doctor.py
minidl doctor --links 2 4                latency and speed between the ranks     doctor_links.py
minidl exercise | solution NN            the exercises of the tutorials          course/exercise.py
minidl check NN                          grades yours                            course/grade.py
minidl kernel check my.cu                does it compile, for CPU and GPU        cuda/tool.py
minidl kernel run my_test.py             runs it with every access checked       cuda/tool.py
minidl kernel bench softmax              each rung: right? how fast?             kernel_bench.py
"""

import argparse
import contextlib
import re
import sys
from functools import partial
from importlib import import_module

from minidl import __version__
from minidl.cli.launcher import LaunchError
from minidl.course.exercise import ExerciseError
from minidl.cuda import KernelError


def main(argv=None):
    """Run one command; returns the exit status."""
    args = parser().parse_args(argv)
    return args.command(args)


class _Parser(argparse.ArgumentParser):
    """Options are written in full: `--thread` is an error, shown with the usage of its command."""

    def __init__(self, **settings):
        super().__init__(**settings, allow_abbrev=False)

    def parse_known_args(self, args=None, namespace=None):
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}; see {self.prog} --help")
        return namespace, unknown


def _add(commands, name, work, help, **settings):
    """A new command. work: the function of minidl that it calls, and the names of its arguments."""
    new = commands.add_parser(name, help=help, **settings)
    new.set_defaults(command=partial(_call, new.prog, work))
    return new


def _call(prog, work, args):
    """Call the function `work` with its arguments; the exit status."""
    path, *names = work.split()
    module, _, function = path.rpartition(".")
    module = import_module(f"minidl.{module}")  # now: `minidl run` does not need the doctor's
    try:
        return getattr(module, function)(*(getattr(args, name) for name in names))
    except (ExerciseError, KernelError, LaunchError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2


def _add_script(command):
    command.add_argument("script", help="a Python file; everything after it goes to the script")
    rest = command.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False  # else the error for a missing script asks for them, too


def parser():
    top = _Parser(prog="minidl", description="Fast and distributed training, written out.")
    top.set_defaults(command=lambda args: top.print_help(sys.stderr) or 2)  # none given
    top.add_argument("--version", action="version", version=f"minidl {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    run = _add(commands, "run", "cli.launcher.run script arguments ranks threads mpiexec net watch "
               "deadline start_limit",
               "start a script on several MPI ranks",
               usage="minidl run -n N [options] script.py [arguments of the script]",
               description="Start a Python script on N MPI ranks of this machine. Its exit status "
               "is the script's; an exception, sys.exit(1) or a signal on one rank ends all ranks.")
    run.add_argument("-n", "--ranks", type=_count, required=True, metavar="N",
                     help="number of ranks")
    run.add_argument("--threads", type=_count, metavar="T", help="BLAS threads per rank (default: "
                     "cores / N, at least 1; variables such as OMP_NUM_THREADS that you set "
                     "yourself stay)")
    run.add_argument("--mpiexec", metavar="COMMAND", help="the launcher, with its own options if "
                     "need be: --mpiexec 'srun --mpi=pmix' (default: mpiexec beside this Python, "
                     "then on the PATH)")
    run.add_argument("--net", metavar="NETWORK", help="slow messages down to such a network: --net "
                     "1Gbit,50us, or with nodes that share a NIC: --net nodes=2,intra=10Gbit,5us,"
                     "inter=1Gbit,50us (all of it: minidl/comm/transport/links.py)")
    run.add_argument("--no-watch", dest="watch", action="store_false", help="do not compare the "
                     "ranks' collectives: to measure without what that costs (docs/figures.md)")
    run.add_argument("--deadline", type=_seconds, default=300.0, metavar="S", help="end the run "
                     "when ranks have waited so many seconds for one that computes (default: 300; "
                     "0: never); when nobody can go on it ends at once")
    run.add_argument("--start-limit", type=_seconds, default=60.0, metavar="S", help="end the run "
                     "if a rank has not started so many seconds after the first (default: 60)")
    _add_script(run)

    doctor = _add(commands, "doctor", "cli.doctor.main links",
                  "check the installation and say how to repair it")
    doctor.add_argument("--links", type=_count, nargs="*", metavar="N", help="measure instead, "
                        "with N ranks on this machine (default: 2 and 4): latency and speed of "
                        "messages, copies and sums, and which all-reduce is the fastest for each "
                        "size; they are stored for select.py")

    exercise = _add(commands, "exercise", "course.exercise.write number force",
                    "write work/NN_name.py, a tutorial with the solution taken out")
    exercise.add_argument("number", nargs="?", type=_number, metavar="NN",
                          help="tutorial (06) or one exercise of it (06a); none: list all")
    exercise.add_argument("--force", action="store_true", help="write even over edited work, which "
                          "is lost; with 06a that exercise alone")
    check = _add(commands, "check", "course.grade.check number", "grade your file in work/")
    check.add_argument("number", type=_number, metavar="NN",
                       help="tutorial (06) or one exercise of it (06a)")
    solution = _add(commands, "solution", "course.exercise.solution number",
                    "show the difference between your file and the solution")
    solution.add_argument("number", type=_number, metavar="NN",
                          help="tutorial (06) or one exercise of it (06a)")

    kernel = commands.add_parser("kernel", help="look at a .cu file, or run kernels under watch")
    kernels = kernel.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = _add(kernels, "check", "cuda.tool.check file defines",
                 "compile a .cu file for the CPU and for GPUs, and list its kernels",
                 description="Compile a .cu file for the CPU and, where NVRTC is installed, for "
                 "GPUs, without a GPU: its kernels, how the CPU runs each, registers and spills.")
    check.add_argument("file", help="a .cu file, or the name of one in kernels/")
    check.add_argument("-D", dest="defines", action="append", default=[], type=_macro,
                       metavar="NAME=VALUE", help="a macro, such as -D T=double")
    run = _add(kernels, "run", "cuda.tool.run script arguments profile gpu",
               "run a Python file with every kernel launch under watch",
               description="Run a Python file. Every kernel that it launches on NumPy arrays runs "
               "in the check form: races, stray accesses and the rest are printed with file and "
               "line, at the end the bytes that each kernel moved. Exit status 1 if there was an "
               "error.")
    run.add_argument("--profile", action="store_true", help="also what a GPU would make of each "
                     "line: memory requests, bank conflicts, branches that diverge; and how many "
                     "blocks fit")
    run.add_argument("--gpu", default="A100", help="for which GPU, such as T4 or H100 "
                     "(default: A100)")
    _add_script(run)
    bench = _add(kernels, "bench", "cli.kernel_bench.bench name size device repeats",
                 "run every rung of one of our kernels: right or wrong, and how fast",
                 description="Every rung of a file of kernels/ on random numbers: right or wrong "
                 "beside its NumPy reference, its time, and its speed beside that of a copy. Exit "
                 "status 1 if one is wrong.")
    bench.add_argument("name", help="a file of kernels/, such as softmax")
    bench.add_argument("--size", type=_count, nargs="+", metavar="N",
                       help="another size, such as --size 256 1024 (rows, columns)")
    bench.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    bench.add_argument("--repeats", type=_count, default=5, metavar="N",
                       help="the time is the median of so many (default: 5)")
    return top


def _count(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a whole number, at least 1, got {text!r}")
    return int(text)


def _seconds(text):
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"want seconds, 0 or more, got {text!r}")


def _macro(text):
    """(name, value); a name alone stands for 1, as for a compiler."""
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"want NAME or NAME=VALUE, such as T=double, got {text!r}")
    return name, value if equals else "1"


def _number(text):
    """'6' and '06' both mean tutorial 06; '6a' is its exercise 06a."""
    if not re.fullmatch(r"\d{1,2}[a-z]?", text):
        raise argparse.ArgumentTypeError("want a tutorial or an exercise, such as 06 or 06a, got "
                                         f"{text!r}")
    return text.zfill(3 if text[-1].isalpha() else 2)


if __name__ == "__main__":
    sys.exit(main())
