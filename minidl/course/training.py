"""The options of a script that trains by any technique: which options can be used together.

    launch(main, {"steps": (400, "training steps"), ...} | TECHNIQUES, ranks=4)
    check(t, args)                  raises WrongOption on all ranks if options contradict each other
    start = first_step(args)        the step of the snapshot in --resume, or 0 without --resume

The script also has --batch, --layers, --heads and --steps.
Test: tests/tutorials/test_train_gpt.py   Tutorial: tutorials/train_gpt.py
"""

from minidl import snapshot
from minidl.course.tutorial import WrongOption

TECHNIQUES = {
    "zero": (0, "stage of ZeRO, 0 to 3; 0 is data parallel"),
    "amp": ("O0", "level of mixed precision, O0 to O3"),
    "recompute": (0, "segments of blocks that are run again in backward; 0: none"),
    "offload": (0, "1: the optimizer's state is in host memory, and its work is done there"),
    "dp": (0, "replicas of the model; 0: ranks / (pp tp)"),
    "pp": (1, "stages of a pipeline, each with some of the layers"),
    "tp": (1, "ranks that divide every matrix"),
    "micro": (0, "micro-batches of each pipeline; 0: one for each stage"),
    "save": ("", "folder for snapshots"),
    "every": (100, "steps between two snapshots"),
    "resume": ("", "folder of the snapshot to go on from, or folder@step"),
}


def check(t, args):
    """Raises WrongOption if options contradict each other. Every rank raises the same error, before
    anything is sent."""
    n_dp, n_micro = args.dp or t.size // (args.pp * args.tp), args.micro or args.pp
    if n_dp * args.pp * args.tp != t.size:
        raise WrongOption(f"--dp {n_dp} --pp {args.pp} --tp {args.tp} want {n_dp} x {args.pp} x "
                          f"{args.tp} ranks, there are {t.size}")
    if args.batch % (n_dp * n_micro):
        raise WrongOption(f"--batch {args.batch} must be divisible by {n_dp} replicas x {n_micro} "
                          "micro-batches")
    if args.zero not in range(4) or args.amp not in ("O0", "O1", "O2", "O3"):
        raise WrongOption(f"want --zero 0 to 3 and --amp O0 to O3; got {args.zero}, {args.amp}")
    if max(args.pp, args.recompute) > args.layers or args.tp > args.heads:
        raise WrongOption(f"want --pp and --recompute at most --layers {args.layers}, --tp at most "
                          f"--heads {args.heads}; got {args.pp}, {args.recompute}, {args.tp}")
    if args.micro and args.pp * args.tp == 1:
        raise WrongOption(f"--micro {args.micro} needs --pp or --tp: data parallelism alone has no "
                          "micro-batches. Leave --micro out")
    if args.pp * args.tp > 1 and (args.offload or args.zero > 2 or args.recompute > 1):
        raise WrongOption("with --pp or --tp there is no --offload, no stage of --zero after 2, "
                          "and --recompute is 0 or 1: a stage is one segment")


def first_step(args):
    """Returns the step of the snapshot from which the run continues, or 0 for a new run.

    Raises WrongOption if --resume, --steps and --save do not fit the snapshots."""
    folder, start = snapshot.at_step(args.resume)
    there = snapshot.steps(folder) if args.resume else []
    if args.resume and (not there or start not in (None, *there)):
        raise WrongOption(f"--resume {args.resume}: {folder} holds {there or 'no snapshot'}; is it "
                          "the folder of --save?")
    start = (start or there[-1]) if args.resume else 0
    if args.steps <= start:
        raise WrongOption(f"--steps {args.steps}: {folder} holds step {start}, so no step is "
                          "left to do")
    if args.save and (snapshot.latest(args.save) or 0) > start:
        raise WrongOption(f"--save {args.save} holds the later step {snapshot.latest(args.save)}; "
                          f"this run begins after step {start}: save elsewhere or remove its .json")
    return start
