"""The command line: each command and the file that does its work.      Test: tests/cli/test_main.py

minidl help run                          the options of a command                this file
minidl run -n 4 script.py ...            start a script on 4 MPI ranks           launcher.py
minidl doctor                            what is installed, how to repair it     doctor.py
minidl doctor --links 2 4                latency and speed between the ranks     doctor_links.py
minidl doctor --peaks                    this machine's limits, for rooflines    profile/peaks.py
minidl profile -n 4 script.py ...        where the time of a step goes           profiler.py
minidl trace profile.json                prints a profile's report again         profiler.py
minidl plan --ranks 64 --net ...         how to divide a GPT over a network      plan.py
minidl exercise | solution NN            the exercises of the tutorials          course/exercise.py
minidl check NN                          grades your exercise                    course/report.py
minidl progress | class DIR              your results; the points of a class     course/report.py
minidl handout DIR                       a course without solutions              course/handout.py
minidl notebook NN                       a tutorial as a notebook                course/notebook.py
minidl kernel check my.cu                compiles a kernel for CPU and GPU       cuda/tool.py
minidl kernel run my_test.py             runs kernels, checks every access       cuda/tool.py
minidl kernel bench softmax              tests and times each rung of a kernel   kernel_bench.py
"""

import argparse
import contextlib
import os
import re
import signal
import sys
from functools import partial
from importlib import import_module

from minidl import __version__
from minidl.checkout import REPOSITORY, origin
from minidl.cli import clone
from minidl.cli.launcher import LaunchError
from minidl.course.exercise import ROOT, ExerciseError
from minidl.course.language import Parser
from minidl.cuda import KernelError
from minidl.text import language, tr

WINDOWS = """minidl: this is Windows itself, where ranks and kernels do not run. Use WSL, a Linux
inside Windows: type `wsl --install` in a terminal, restart, open Ubuntu, and install minidl there
(docs/install.md)."""


def main(argv=None):
    """Runs one command. Returns the exit status. argv: the words of the command. The default is
    sys.argv[1:]."""
    if sys.platform == "win32":
        print(tr(WINDOWS), file=sys.stderr)
        return 2
    language()  # raises if MINIDL_LANG is not a language that minidl has
    if argv is None:
        argv = sys.argv[1:]
        clone.follow(argv)
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    args = parser().parse_args(argv)
    try:
        status = args.command(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # in `minidl progress | head`, head closes the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


class _Parser(Parser):
    def parse_known_args(self, args=None, namespace=None):
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}; see {self.prog} --help")
        return namespace, unknown

    def error(self, message):
        if message.endswith("-n/--ranks"):
            # -n after the script's name belongs to the script, so the message tells where -n goes
            message = f"{message}, before the script"
        super().error(message)


def _add(commands, name, work, help, **settings):
    """Returns the parser of a new command. work: a text with words. The first word is the function
    of minidl that the command calls, such as "cli.plan.plan". The other words are the names of the
    function's arguments."""
    new = commands.add_parser(name, help=help, **settings)
    new.set_defaults(command=partial(_call, new.prog, work))
    return new


def _call(prog, work, args):
    """Calls the function `work` with the values in `args`. Returns the exit status: 2 for an error
    that the user can correct."""
    path, *names = work.split()
    module, _, function = path.rpartition(".")
    module = import_module(f"minidl.{module}")  # only this module, so `minidl run` starts fast
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by minidl/__main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return getattr(module, function)(*(getattr(args, name) for name in names))
    except (ExerciseError, KernelError, LaunchError) as error:
        print(f"{prog}: {tr(str(error))}", file=sys.stderr)
        return 2


def _add_script(command):
    command.add_argument("script",
                         help="a Python file; all words after its name go to the script")
    rest = command.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False  # otherwise the error for a missing script also asks for arguments


def parser():
    """Returns the parser of all commands, with their help texts."""
    top = _Parser(prog="minidl", description="Fast and distributed training, written out.",
                  epilog="`minidl help COMMAND` explains a command.")
    top.set_defaults(command=lambda args: top.print_help(sys.stderr) or 2)  # if there is no command
    top.add_argument("--version", action="version", version=f"minidl {__version__}, {origin()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    run = _add(commands, "run", "cli.launcher.run script arguments ranks threads mpiexec net watch "
               "deadline start_limit bind stdin restarts min_ranks silence heal replacements "
               "hosts",
               "start a script on several MPI ranks",
               usage="minidl run -n N [options] script.py [arguments of the script]",
               description="Start a Python script on N MPI ranks of this machine. The exit status "
               "is the script's. An exception, sys.exit(1) or a signal on one rank ends all ranks.")
    run.add_argument("-n", "--ranks", type=_count, required=True, metavar="N",
                     help="number of ranks")
    run.add_argument("--threads", type=_count, metavar="T", help="BLAS threads per rank (default: "
                     "cores / N, at least 1; variables such as OMP_NUM_THREADS that you have "
                     "set are not changed)")
    run.add_argument("--mpiexec", metavar="COMMAND", help="the command that starts the ranks, with "
                     "its own options, such as 'srun --mpi=pmix' (default: mpiexec next to this "
                     "Python, then on the PATH)")
    run.add_argument("--net", metavar="NETWORK", help="delay messages as this network would: --net "
                     "1Gbit,50us, or with nodes that share a NIC: --net nodes=2,intra=10Gbit,5us,"
                     "inter=1Gbit,50us (all forms: minidl/comm/transport/links_text.py)")
    run.add_argument("--no-watch", dest="watch", action="store_false", help="do not compare the "
                     "collectives of the ranks, to measure without this cost (docs/figures.md)")
    run.add_argument("--deadline", type=_seconds, default=300.0, metavar="S", help="end the run "
                     "when ranks have waited S seconds for a rank that computes (default: 300; 0: "
                     "never); if no rank can continue, the run ends at once")
    run.add_argument("--start-limit", type=_seconds, default=60.0, metavar="S", help="end the run "
                     "if a rank has not started S seconds after the first rank (default: 60)")
    run.add_argument("--bind", choices=["numa", "core"], help="numa: bind each rank to the cores "
                     "of one NUMA node, so that it uses the memory of this node; core: bind each "
                     "rank to one core for each of its threads; `minidl doctor` shows the nodes")
    run.add_argument("--stdin", metavar="FILE", help="open FILE, which may be a FIFO, as rank 0's "
                     "standard input")
    run.add_argument("--hosts", metavar="FILE", help="start the ranks on the hosts in FILE, which "
                     "has a host in each line, such as `node1 slots=4`; if FILE is `slurm`: on the "
                     "hosts of the Slurm job; if --min-ranks allows fewer ranks, a host that does "
                     "not answer is left out")
    run.add_argument("--restarts", type=_whole, default=0, metavar="N", help="when ranks fail, "
                     "start all of them again, at most N times; a script that calls "
                     "minidl.elastic.run continues from its newest snapshot (default: 0)")
    run.add_argument("--min-ranks", type=_count, metavar="N", help="continue with fewer ranks, but "
                     "at least N, if a rank does not start or fails twice in a row (default: all)")
    run.add_argument("--silence", type=_seconds, default=0.0, metavar="S", help="for scripts that "
                     "train by minidl.elastic.run: end the run when no rank has done a step for S "
                     "seconds; S must be more than the time to load data, and more than the "
                     "time of the longest step (default: 0: never)")
    run.add_argument("--heal", action="store_true", help="if a rank dies, the other ranks "
                     "continue, in a script that calls minidl.elastic.run (needs Open MPI 5; the "
                     "ranks' collectives are not compared)")
    run.add_argument("--replacements", type=_count, default=0, metavar="N", help="with --heal: "
                     "start a new process for each of the first N ranks that die (default: 0)")
    _add_script(run)

    doctor = _add(commands, "doctor", "cli.doctor.main links peaks",
                  "check the installation and say how to repair it")
    doctor.add_argument("--links", type=_count, nargs="*", metavar="N", help="do not check, but "
                        "measure with N ranks on this machine (default: 2 and 4): latency and "
                        "speed of messages, copies and sums, and the fastest all-reduce for each "
                        "size; the figures are stored for select.py")

    doctor.add_argument("--peaks", type=_count, nargs="*", metavar="T", help="do not check, but "
                        "measure with T threads (default: 1 and all cores): the most operations "
                        "and the most bytes in a second, for the roofline of `minidl profile`; the "
                        "figures are stored")

    profile = _add(commands, "profile", "cli.profiler.run script arguments ranks out memory "
                   "picture deadline", "where the time of a script's training step goes",
                   usage="minidl profile [-n N] [options] script.py [arguments of the script]")
    profile.add_argument("-n", "--ranks", type=_count, metavar="N", help="number of MPI ranks "
                         "(default: this process alone, without MPI)")
    profile.add_argument("--out", default="profile", metavar="NAME", help="writes NAME.json, for "
                         "ui.perfetto.dev, and NAME.html (default: profile)")
    profile.add_argument("--memory", action="store_true", help="also measure the "
                         "memory of weights, gradients and other kinds; this is slower")
    profile.add_argument("--picture", action="store_true", help="also write NAME.png")
    profile.add_argument("--deadline", type=_seconds, default=300.0, metavar="S",
                         help="as in minidl run")
    _add_script(profile)
    trace = _add(commands, "trace", "cli.profiler.show file", "print a profile's report again")
    trace.add_argument("file", help="a file NAME.json that `minidl profile` has written")

    plan = _add(commands, "plan", "cli.plan.plan ranks net memory model batch flops zero "
                "precision recompute cp rows",
                "how to divide a GPT over ranks: data, pipeline, tensor, context, experts",
                description="List every way to divide a GPT over N ranks. For each, print the "
                "memory of the fullest rank, the bytes that a rank sends, the bubble, and the "
                "seconds of a step. The figures come from formulas. No ranks are started.")
    plan.add_argument("--ranks", type=_count, required=True, metavar="N")
    plan.add_argument("--net", required=True, metavar="NETWORK", help="as in minidl run: "
                      "nodes=8,intra=2Tbit,2us,inter=200Gbit,10us")
    plan.add_argument("--memory", required=True, metavar="BYTES", help="the memory of a rank, "
                      "such as 16GB or 16GiB")
    plan.add_argument("--model", default="gpt2", help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, "
                      "gpt3, or layers,width,heads,context,vocabulary, and with "
                      "experts two more numbers, experts,top_k (default: gpt2)")
    plan.add_argument("--batch", type=_count, metavar="ROWS", help="sequences in a step, of all "
                      "ranks together (default: one for each rank)")
    plan.add_argument("--flops", default="100T", metavar="F", help="floating-point operations of a "
                      "rank in a second, such as 1e14 or 100T (default: 100T)")
    plan.add_argument("--zero", type=int, choices=[0, 1, 2, 3], default=0, help="ZeRO's stage over "
                      "the data-parallel ranks (default: 0)")
    plan.add_argument("--precision", choices=["O0", "O2"], default="O0", help="float32, or float16 "
                      "with master weights (default: O0)")
    plan.add_argument("--recompute", action="store_true", help="run each block again in backward")
    plan.add_argument("--cp", type=_count, metavar="N", help="at most N ranks share a sequence "
                      "(default: any number)")
    plan.add_argument("--rows", type=_count, default=20, metavar="N", help="print N plans "
                      "(default: 20)")

    exercise = _add(commands, "exercise", "course.exercise.write number force",
                    "write work/NN_name.py, a tutorial with the solution taken out")
    exercise.add_argument("number", nargs="?", type=_number, metavar="NN",
                          help="a tutorial (07) or one of its exercises (07a); without a number: "
                          "list all")
    exercise.add_argument("--force", action="store_true", help="overwrite edited work, which is "
                          "then lost; with 07a, overwrite only this exercise")
    check = _add(commands, "check", "course.report.check number work student answers as_json junit "
                 "gradescope", "grade your file in work/")
    check.add_argument("number", nargs="?", type=_number, metavar="NN", help="a tutorial (07) or "
                       "one of its exercises (07a); without a number: all of the course, or all in "
                       "work/")
    check.add_argument("--json", dest="as_json", metavar="FILE", nargs="?", const="-",
                       help="write the results as JSON; without FILE: print only the JSON")
    check.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML")
    check.add_argument("--gradescope", metavar="FILE", help="write the results for Gradescope")
    check.add_argument("--work", metavar="DIR", help="the files to grade (default: work)")
    check.add_argument("--student", metavar="NAME", help="draw random sizes and data, with this "
                       "name as the seed")
    check.add_argument("--answers", metavar="DIR", help="also use the course's reference answers")
    _add(commands, "progress", "course.report.progress", "your exercises: blank, edited, passed")
    group = _add(commands, "class", "course.report.grade_class folder csv number answers personal",
                 "grade a folder for each student, write a table of points")
    group.add_argument("folder", metavar="DIR", help="has a folder for each student: a repository "
                       "with work/, or the files of work/")
    group.add_argument("number", nargs="?", type=_number, metavar="NN", help="as in check")
    group.add_argument("--csv", default="points.csv", metavar="FILE", help="default: points.csv")
    group.add_argument("--answers", metavar="DIR", help="as in check")
    group.add_argument("--personal", action="store_true", help="draw each student's sizes and "
                       "data, with the folder's name as the seed")
    handout = _add(commands, "handout", "course.handout.handout folder tutorials answers personal",
                   "write a course for students, without solutions")
    handout.add_argument("folder", metavar="DIR", help="a new folder, for the students")
    handout.add_argument("--tutorials", nargs="+", type=_number, default=[], metavar="NN",
                         help="the tutorials that are graded (default: all)")
    handout.add_argument("--answers", metavar="DIR", help="a new folder for the teachers only "
                         "(default: DIR-answers)")
    handout.add_argument("--personal", action="store_true", help="each student has different sizes "
                         "and data")
    solution = _add(commands, "solution", "course.exercise.solution number",
                    "show the difference between your file and the solution")
    solution.add_argument("number", type=_number, metavar="NN",
                          help="a tutorial (07) or one of its exercises (07a)")

    notebook = _add(commands, "notebook", "course.notebook.write script colab",
                    "write a tutorial as a Jupyter notebook")
    notebook.add_argument("script", type=_notebook, metavar="NN", help="the number of a tutorial, "
                          "or a Python file such as work/07_ring.py; writes work/NAME.ipynb")
    notebook.add_argument("--colab", nargs="?", const=REPOSITORY, metavar="SOURCE",
                          help="for Colab and Kaggle: the first cell installs minidl from SOURCE "
                          "and looks for a GPU; SOURCE is an address or a wheel for pip (default: "
                          "the repository)")

    kernel = commands.add_parser("kernel", help="look at a .cu file, or check every access of "
                                 "kernels while they run")
    kernels = kernel.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = _add(kernels, "check", "cuda.tool.check file defines tr",
                 "compile a .cu file for the CPU and for GPUs, and list its kernels",
                 description="Compile a .cu file for the CPU and, if NVRTC is installed, for GPUs. "
                 "This needs no GPU. It prints the kernels, how the CPU runs each kernel, "
                 "registers and spills.")
    check.add_argument("file", help="a .cu file, or the name of one in kernels/")
    check.add_argument("-D", dest="defines", action="append", default=[], type=_macro,
                       metavar="NAME=VALUE", help="a macro, such as -D T=double")
    check.set_defaults(tr=tr)
    run = _add(kernels, "run", "cuda.tool.run script arguments profile gpu tr",
               "run a Python file, and check every access of its kernels",
               description="Run a Python file. Every kernel that it launches on NumPy arrays runs "
               "in the check form. Races, accesses outside an array and other errors are printed "
               "with file and line. At the end come the bytes that each kernel moved. Exit status "
               "1 if there was an error.")
    run.add_argument("--profile", action="store_true", help="also print what each line costs on a "
                     "GPU: memory requests, bank conflicts, branches that diverge; and how many "
                     "blocks fit on an SM")
    run.add_argument("--gpu", default="A100", help="with --profile: the GPU on which the blocks "
                     "must fit, such as T4 or H100 (default: A100)")
    run.set_defaults(tr=tr)
    _add_script(run)
    bench = _add(kernels, "bench", "cli.kernel_bench.bench name size device repeats",
                 "run every rung of one of our kernels: right or wrong, and how fast",
                 description="Run every rung of a file in kernels/ on random numbers. Compare its "
                 "result with a NumPy reference, and its speed with the speed of a copy. Exit "
                 "status 1 if a rung is wrong.")
    bench.add_argument("name", help="a file of kernels/, such as softmax")
    bench.add_argument("--size", type=_count, nargs="+", metavar="N",
                       help="another size, such as --size 256 1024 (rows, columns)")
    bench.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    bench.add_argument("--repeats", type=_count, default=5, metavar="N",
                       help="repeat N times and print the median time (default: 5)")
    return top


def _count(text):
    """Returns the number in the text of an option. The number must be whole and at least 1. If the
    text is wrong, the parser prints the error. The functions below do the same for other options.
    """
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a whole number, at least 1, got {text!r}")
    return int(text)


def _whole(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"want a whole number, at least 0, got {text!r}")
    return int(text)


def _seconds(text):
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"want seconds, 0 or more, got {text!r}")


def _macro(text):
    """Returns (name, value) of the text NAME=VALUE. If the text has no value, the value is 1, as
    for a compiler's option -DNAME."""
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"want NAME or NAME=VALUE, such as T=double, got {text!r}")
    return name, value if equals else "1"


def _number(text):
    """Returns the number of a tutorial or of an exercise. If the number is less than 10, a 0 comes
    first: '6', '06' and '06_memory' give '06', and '6a' gives '06a'."""
    named = sorted((ROOT / "tutorials").glob(f"[0-9][0-9]_{text.removesuffix('.py')[3:]}.py"))
    if named and named[0].stem == text.removesuffix(".py"):
        return text[:2]
    if not re.fullmatch(r"\d{1,2}[a-z]?", text):
        raise argparse.ArgumentTypeError("want a tutorial or an exercise, such as 07 or 07a, got "
                                         f"{text!r}"
                                         + (f"; did you mean {named[0].stem}?" if named else ""))
    return text.zfill(3 if text[-1].isalpha() else 2)


def _notebook(text):
    """Returns a path unchanged. For the number or the name of a tutorial, returns the number."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        return text if os.path.isfile(text) else _number(text)
    return text


if __name__ == "__main__":
    sys.exit(main())
