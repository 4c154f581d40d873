"""`minidl profile [-n 4] script.py`: a script of which no line knows that it is measured.

    minidl profile -n 4 train.py --steps 20      report; profile.json for Perfetto, profile.html
    minidl profile --picture train.py            one rank; profile.png, too
    minidl trace profile.json                    the report again

Each rank runs the script inside of `minidl.profile(t)`, where MINIDL_PROFILE tells rank.py so.
Test: tests/profile/test_cli.py
"""

import json
import os
import runpy
import sys
from pathlib import Path

from minidl.cli import launcher
from minidl.course.language import tr

SETTINGS = "MINIDL_PROFILE"


def run(script, arguments, n, out, memory, picture, deadline_s):
    """Profile a Python script on n ranks, or, n None, in this process; its exit status."""
    launcher.check_script(script, arguments, n or 1)
    if not (folder := Path(out).absolute().parent).is_dir():
        raise launcher.LaunchError(f"--out {out}: there is no folder {folder}")
    settings = json.dumps({"out": os.path.abspath(out), "memory": memory, "picture": picture})
    if n is not None:
        os.environ[SETTINGS] = settings
        return launcher.run(script, arguments, n, deadline_s=deadline_s)
    sys.argv = [script, *arguments]
    sys.path[:0] = [os.path.dirname(os.path.realpath(script))]
    return around(lambda: runpy.run_path(script, run_name="__main__"), settings, None)


def in_ranks(work):
    """rank.py's: work(), inside of a profile if `minidl profile` started this rank."""
    if (settings := os.environ.pop(SETTINGS, None)) is None:
        return work()
    from minidl import comm

    # Its own world, unwatched and at full speed: the script makes the one that it asks for.
    kept = {name: os.environ.pop(name, None) for name in ("MINIDL_NET", "MINIDL_WATCH")}
    t = comm.world()
    os.environ.update({name: value for name, value in kept.items() if value is not None})
    around(work, settings, t)


def around(work, settings, t):
    """work() in a profile; rank 0 prints and writes; 0. An exit with another status ends the
    profile, as an exception does."""
    import minidl

    settings = json.loads(settings)
    with minidl.profile(t, memory=settings["memory"]) as p:
        try:
            work()
        except SystemExit as end:
            if end.code:
                raise
    if p.record.rank == 0:
        out = Path(settings["out"])
        print(f"\n{p.report(tr)}\n", flush=True)
        writers = {".json": p.trace, ".html": p.html, ".png": p.picture}
        for kind in [".json", ".html", ".png"][:2 + settings["picture"]]:
            writers[kind](out.with_suffix(kind))
            print(tr(f"written: {out.with_suffix(kind)}"), flush=True)
    return 0


def show(path):
    """`minidl trace FILE`: the report of a trace."""
    from minidl.profile import report, trace

    try:
        print(report.text(trace.read(path)[1], tr))
    except (OSError, ValueError) as error:
        why = f"cannot read {path}: {error.strerror}" if isinstance(error, OSError) else error
        print(tr(f"minidl trace: {why}"), file=sys.stderr)
        return 2
    return 0
