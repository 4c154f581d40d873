"""Runs a rank's script inside a profile, if `minidl profile` started the rank.

The command writes its settings into MINIDL_PROFILE, and rank.py calls `in_ranks`.

Test: tests/profile/test_cli.py   Used by: profiler.py, rank.py
"""

import json
import os
import sys
from pathlib import Path

import minidl
from minidl import comm
from minidl.text import tr

SETTINGS = "MINIDL_PROFILE"


def in_ranks(work):
    """Calls work(). If `minidl profile` started this rank, the call is inside a profile. rank.py
    calls in_ranks()."""
    if (settings := os.environ.pop(SETTINGS, None)) is None:
        return work()
    # The profile makes its own world, without the user's slow links (MINIDL_NET) and Watch
    # (MINIDL_WATCH). The script makes another world, which uses these settings.
    kept = {name: os.environ.pop(name, None) for name in ("MINIDL_NET", "MINIDL_WATCH")}
    t = comm.world()
    os.environ.update({name: value for name, value in kept.items() if value is not None})
    if status := around(work, settings, t):
        sys.exit(status)


def around(work, settings, t):
    """Runs work() in a profile. Then rank 0 prints the report and writes the files. Returns 0, or 2
    if a file cannot be written. If work() exits with a status that is not 0, or raises an
    exception, the profile ends without a report."""
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
            path = out.with_suffix(kind)
            try:
                writers[kind](path)
            except OSError as error:
                print(tr(f"minidl profile: cannot write {path}: {error.strerror or error}. Make "
                         "room, or name another file with --out"), file=sys.stderr, flush=True)
                return 2
            print(tr(f"written: {path}"), flush=True)
    return 0
