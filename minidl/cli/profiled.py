"""A rank's script inside of a profile, if `minidl profile` started it.

The command puts what is wanted into MINIDL_PROFILE, and rank.py calls `in_ranks`.

Test: tests/profile/test_cli.py   Used by: profiler.py, rank.py
"""

import json
import os
from pathlib import Path

import minidl
from minidl import comm
from minidl.text import tr

SETTINGS = "MINIDL_PROFILE"


def in_ranks(work):
    """rank.py's: work(), inside of a profile if `minidl profile` started this rank."""
    if (settings := os.environ.pop(SETTINGS, None)) is None:
        return work()
    # Its own world, unwatched and at full speed: the script makes the one that it asks for.
    kept = {name: os.environ.pop(name, None) for name in ("MINIDL_NET", "MINIDL_WATCH")}
    t = comm.world()
    os.environ.update({name: value for name, value in kept.items() if value is not None})
    around(work, settings, t)


def around(work, settings, t):
    """work() in a profile; rank 0 prints and writes; 0. An exit with another status ends the
    profile, as an exception does."""
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
