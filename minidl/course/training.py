"""Options of tutorials/train_gpt.py that select techniques of training, and the options' rules.

    launch(main, {"steps": (400, "training steps"), ...} | TECHNIQUES, ranks=4)
    check(t, args)                  raises WrongOption on all ranks if options contradict each other
    start = first_step(args)        the step of the snapshot in --resume, or 0 without --resume

The rules tell which options can be used together. The script also has the options --batch,
--layers, --heads and --steps.
Test: tests/tutorials/test_train_gpt.py   Tutorial: tutorials/train_gpt.py
"""

from minidl import snapshot
from minidl.course.tutorial import WrongOption

TECHNIQUES = {
    "zero": (0, "stage of ZeRO, 0 to 3; 0 is plain data parallelism"),
    "amp": ("O0", "level of mixed precision, O0 to O3"),
    "recompute": (0, "number of segments of blocks that are run again in backward; 0: none"),
    "offload": (0, "1: the optimizer's state is in host memory, and its work is done there"),
    "dp": (0, "number of replicas of the model; 0: ranks / (pp * tp)"),
    "pp": (1, "number of stages of a pipeline; each stage has some of the layers"),
    "tp": (1, "number of ranks over which every matrix is divided"),
    "micro": (0, "number of micro-batches of each pipeline; 0: one for each stage"),
    "save": ("", "folder into which snapshots are written"),
    "every": (100, "steps between two snapshots"),
    "resume": ("", "continue from the newest snapshot in this folder; FOLDER@STEP: from this step"),
}


def check(t, args):
    """Raises WrongOption if options contradict each other. Every rank raises the same error, before
    anything is sent."""
    n_dp, n_micro = args.dp or t.size // (args.pp * args.tp), args.micro or args.pp
    if n_dp * args.pp * args.tp != t.size:
        raise WrongOption(f"want --dp x --pp x --tp equal to {t.size}, the number of ranks; got "
                          f"--dp {n_dp} --pp {args.pp} --tp {args.tp}")
    if args.batch % (n_dp * n_micro):
        raise WrongOption(f"--batch must be divisible by {n_dp * n_micro} ({n_dp} replicas x "
                          f"{n_micro} micro-batches); got {args.batch}")
    if args.zero not in range(4) or args.amp not in ("O0", "O1", "O2", "O3"):
        raise WrongOption(f"want --zero from 0 to 3 and --amp from O0 to O3; got --zero "
                          f"{args.zero} --amp {args.amp}")
    if max(args.pp, args.recompute) > args.layers or args.tp > args.heads:
        raise WrongOption(f"want --pp and --recompute of at most {args.layers} (--layers), and "
                          f"--tp of at most {args.heads} (--heads); got --pp {args.pp} "
                          f"--recompute {args.recompute} --tp {args.tp}")
    if args.micro and args.pp * args.tp == 1:
        raise WrongOption(f"--micro {args.micro} needs --pp or --tp: data parallelism alone has no "
                          "micro-batches. Leave --micro out")
    if args.pp * args.tp > 1 and (args.offload or args.zero > 2 or args.recompute > 1):
        raise WrongOption("--pp and --tp work only with --offload 0, --zero from 0 to 2, and "
                          "--recompute 0 or 1, because a stage of a pipeline is one segment; got "
                          f"--offload {args.offload} --zero {args.zero} --recompute "
                          f"{args.recompute}")


def first_step(args):
    """Returns the step of the snapshot from which the run continues, or 0 for a new run.

    Raises WrongOption if there is no snapshot for --resume, or if --steps leaves no step to do.
    Also raises WrongOption if the folder of --save already holds a later step."""
    folder, start = snapshot.at_step(args.resume)
    there = snapshot.steps(folder) if args.resume else []
    if args.resume and (not there or start not in (None, *there)):
        raise WrongOption(f"--resume {args.resume}: wanted the folder of --save, and a step that "
                          f"has a snapshot; {folder} holds {there or 'no snapshot'}")
    start = (start or there[-1]) if args.resume else 0
    if args.steps <= start:
        raise WrongOption(f"--steps must be more than {start}, the step of the snapshot in "
                          f"{folder}; got {args.steps}")
    if args.save and (snapshot.latest(args.save) or 0) > start:
        raise WrongOption(f"--save {args.save} holds the later step {snapshot.latest(args.save)}, "
                          f"but this run begins after step {start}. Save into another folder, or "
                          "remove the .json file of the later step")
    return start
