"""Runs the examination: each case in a process of its own, with a time limit; a table at the end.

    python tests/cuda/examination/examine.py                all, as `make examination` does
    python tests/cuda/examination/examine.py race fence     those whose name or kind holds a word
    ... --form fast                                         without the check: plain Python

A case is a script as a student would write it, run by `minidl kernel run` (under watch) or by
Python alone (fast). What may come out:

    a bug under watch              a bug in the fast form            a sound kernel, in both forms
    named with line                ended (a GPU says no more)        right
    named, no line                 named (a message about it)        warned: right, with a warning
    another name: the right line   Ctrl-C: ran until interrupted     false error
    refused: not supported         crash: Python is dead             silently wrong
    silent: not a word             hang: not even Ctrl-C helps       crash, hang, refused
    crash, hang

It is passed, exit status 0, if nothing is silent, crashes or hangs, nine of ten bugs are named with
their line, and no sound kernel is refused or called wrong.

Cases: cases.py   Test: test_examination.py
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.cuda.examination.cases import cases  # noqa: E402

GOOD = {"named with line", "right", "warned", "ended", "named"}
NEVER = {"silent", "crash", "hang", "silently wrong"}
SPOKE = r"warning|error:|Errors: [1-9]|Traceback"
SUPPORT = r"not supported|unsupported|not provided|cannot be compiled|does not compile"


def run(case, form, limit_s):
    """One case in a child: {"verdict", "said", "time_s"}."""
    with tempfile.TemporaryDirectory(prefix="examination-") as folder:
        script = Path(folder, "case.py")
        script.write_text(case.script)
        minidl = [sys.executable, "-m", "minidl.cli.main", "kernel"]
        start_s = time.perf_counter()
        if form == "check":
            status, said, asked = child([*minidl, "run", str(script)], folder, limit_s)
            if case.kind == "uninitialised local" and not case.says.search(said):
                # the compiler's word on the file, before any launch, is as good
                status, more, asked = child([*minidl, "check", str(case.path)], folder, limit_s)
                said += more
        else:
            status, said, asked = child([sys.executable, str(script)], folder, limit_s)
    judge = judge_sound if case.sound else judge_bug if form == "check" else judge_fast
    return {"verdict": judge(case, status, said, asked), "said": said,
            "time_s": round(time.perf_counter() - start_s, 2)}


def child(command, folder, limit_s):
    """Exit status, all it printed, and how it had to be ended: "", "Ctrl-C" or "kill"."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    # a session of its own, so that all its processes can be ended, and Ctrl-C reaches them alone
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    asked, said = "", None
    for wait_s, then in (limit_s, signal.SIGINT), (10, signal.SIGKILL), (None, None):
        try:
            said, _ = process.communicate(timeout=wait_s)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, then)
            asked = {signal.SIGINT: "Ctrl-C", signal.SIGKILL: "kill"}[then]
    try:  # what it started and left
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return process.returncode, said.decode(errors="replace"), asked


def ended_badly(status, asked):
    """`hang`, `crash` (killed by a signal, also as a shell reports it) or None."""
    if asked:
        return "hang"
    return "crash" if status < 0 or status > 128 else None


def lines_named(case, said):
    """Does the text hold a line of the bug?"""
    found = {int(n) for n in re.findall(re.escape(case.path.name) + r"\D{1,9}(\d+)", said)}
    found |= {int(n) for n in re.findall(r"\bline (\d+)\b", re.sub(r'File ".*', "", said))}
    launched = {int(n) for n in re.findall(r"case\.py\D{1,9}(\d+)", said)}
    return bool(case.lines & found or case.launch_lines & launched)


def judge_bug(case, status, said, asked):
    """What the check form made of a bug."""
    named, line = case.says.search(said), lines_named(case, said)
    if bad := ended_badly(status, asked):
        return bad
    if status == 0 and not re.search(SPOKE, said, re.IGNORECASE):
        return "silent"
    if re.search(SUPPORT, said) and not (named and line):
        return "refused"
    return ("named with line" if named and line else "named, no line" if named
            else "another name" if line else "silent" if status == 0 else "another error")


def judge_fast(case, status, said, asked):
    """What the fast form made of a bug: anything but a dead or deaf Python."""
    if asked == "Ctrl-C":
        return "Ctrl-C"
    if bad := ended_badly(status, asked):
        # a message before the end that names the kernel and the way on is no silent death
        return "named" if bad == "crash" and "minidl kernel run" in said else bad
    return "named" if status else "ended"


def judge_sound(case, status, said, asked):
    if bad := ended_badly(status, asked):
        return bad
    if re.search(r"EXAMINED: wrong", said):
        return "silently wrong" if status == 0 else "false error"
    if status:
        return "refused" if re.search(SUPPORT, said) else "false error"
    if "EXAMINED: right" not in said:
        return "false error"
    return "warned" if re.search(r"warning", said, re.IGNORECASE) else "right"


def table(results):
    """Verdicts by kind, as text. `results` is {case: {"verdict"}}."""
    columns = list(Counter(r["verdict"] for r in results.values()))
    columns.sort(key=lambda v: (v not in GOOD, v))
    kinds = sorted({case.kind for case in results}, key=lambda k: (k == "sound", k))
    rows = [["kind", "cases", *columns]]
    for kind in [*kinds, "all"]:
        verdicts = Counter(r["verdict"] for c, r in results.items() if kind in (c.kind, "all"))
        rows.append([kind, str(verdicts.total()), *(str(verdicts[v] or "") for v in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                               for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
                     for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only cases whose name or kind holds one of these")
    parser.add_argument("--form", choices=["check", "fast"], default="check")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="for a case")
    parser.add_argument("--json", type=Path, help="write all verdicts and reports there")
    parser.add_argument("--show", action="store_true", help="print what each case printed")
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.words
              or any(word in f"{case.name} {case.kind}" for word in options.words)]
    results = {}
    for case in chosen:
        results[case] = found = run(case, options.form, options.limit)
        print(f"{case.kind:27} {case.name:34} {found['verdict']:16} {found['time_s']:6.1f} s",
              flush=True)
        if options.show:
            print(found["said"])
    print("\n" + table(results))
    passed = True
    for what, is_sound, wanted in ("bugs", False, 0.9), ("sound kernels", True, 1.0):
        verdicts = [r["verdict"] for case, r in results.items() if case.sound == is_sound]
        if verdicts:
            share = sum(v in GOOD for v in verdicts) / len(verdicts)
            passed &= share >= wanted and not NEVER & set(verdicts)
            print(f"{what}: {share:.0%} of {len(verdicts)} as they should be, wanted {wanted:.0%} "
                  f"and none of {', '.join(sorted(NEVER))}")
    if options.json:
        options.json.write_text(json.dumps({c.name: {"kind": c.kind, **r} for c, r in
                                            results.items()}, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
