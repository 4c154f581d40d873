"""Runs every benchmark, and writes the table of docs/figures.md.

    make bench                               all, on an idle machine: about 25 minutes
    make bench ARGS='--only rows zero'       only bench_rows.py and bench_zero.py
    make bench ARGS=--table                  the table again, from the newest file of results/
    make bench ARGS=--quick                  each benchmark with one round: fails if one of them
                                             fails, and writes nothing

Each benchmark runs in its own process, started by the command in its header. It writes its figures,
its bars and its rows of the table (common.py). The file results/DATE-MACHINE.json holds the results
of all benchmarks:

    {"date", "machine", "finished", "benchmarks": {name: {"date", "machine", "load_before",
     "versions", "command", "seconds", "figures", "bars", "rows", "note"}}}

If a benchmark did not run or failed, its entry is copied from the newest older file. "note" tells
why it failed, and the table shows the date of the copied results.
Test: tests/benchmarks/test_figures.py
"""

import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import gpu_day
from common import ROOT, SKIPPED, machine

FOLDER = Path(__file__).resolve().parent
BEGIN, END = "<!-- written by benchmarks/run_all.py -->", "<!-- until here -->"


def options(names):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(names),
                        type=lambda name: f"bench_{name.removeprefix('bench_')}", choices=names)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true",
                        help="only test that every benchmark runs: one round each, writes nothing")
    return parser.parse_args()


# -- running


def command_of(script):
    """Returns 'minidl run -n N benchmarks/X.py' if X's header has mpirun -n N, else 'python X'."""
    ranks = re.search(r"mpirun -n (\d+)", script.read_text().split('"""')[1])
    start = f"minidl run -n {ranks[1]}" if ranks else "python"
    return f"{start} {script.relative_to(ROOT).as_posix()}"


def run(command, **environ):
    """Runs a benchmark. Returns (results, None), or (None, the reason why there are no results).
    environ: variables that are added to its environment."""
    program, *rest = shlex.split(command)
    program = sys.executable if program == "python" else Path(sys.executable).with_name(program)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        done = subprocess.run([program, *rest, "--out", out], cwd=ROOT, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, **environ})
        print(done.stderr, file=sys.stderr, end="")
        if done.returncode == 0:
            return json.loads(out.read_text()), None
    why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return None, why if done.returncode == SKIPPED else f"failed ({done.returncode}): {why}"


def run_all(scripts, only, before):
    """Runs the benchmarks in `only`. Returns the results of all benchmarks. Benchmarks that fail or
    are not in `only` keep their results from `before`."""
    results = {"date": f"{datetime.date.today()}", "machine": machine(), "benchmarks": {}}
    for script in scripts:
        name, command = script.stem, command_of(script)
        entry = before["benchmarks"].get(name)
        if name in only:
            print(f"\n== {command}", flush=True)
            start = time.monotonic()
            found, why = run(command)
            if found:
                left_out = "; ".join(found.pop("left_out"))
                note = f"{results['date']} left out: {left_out}" if left_out else None
                entry = {"date": results["date"], "command": command,
                         "seconds": round(time.monotonic() - start, 1), **found, "note": note}
            else:
                nothing = dict(date=None, machine=None, command=command, bars=[], rows=[])
                entry = {**(entry or nothing), "note": f"{results['date']} {why}"}
        if entry:
            results["benchmarks"][name] = entry
    return results | {"finished": datetime.datetime.now().isoformat(timespec="seconds")}


def try_all(scripts, only):
    """Runs the benchmarks in `only` with one round each. Returns the names of those that failed.
    If a benchmark has the option --quick, it gets this option. If it has --repeats, it gets
    --repeats 1."""
    failed = []
    for script in scripts:
        if script.stem in only:
            text = script.read_text()
            command = command_of(script) + " --quick" * ('"--quick"' in text)
            command += " --repeats 1" * ('"--repeats"' in text)
            print(f"\n== {command}: one round without warm-up, so its figures mean nothing",
                  flush=True)
            start = time.monotonic()
            found, why = run(command, MINIDL_ONE_ROUND="1")
            print(f"{time.monotonic() - start:.0f} s; {why or 'it runs'}")
            if found is None and why.startswith("failed"):
                failed.append(script.stem)
    return failed


# -- results/


GPU_DAY = "*gpu_day*.json"  # files of gpu_day.py, which people with a GPU send


def newest(folder=FOLDER / "results"):
    """Returns the results that were finished last. If the folder has none, returns results without
    benchmarks."""
    return last(set(folder.glob("*.json")) - set(folder.glob(GPU_DAY))) or {"benchmarks": {}}


def newest_gpu_day(folder=FOLDER / "results"):
    """Returns the results of gpu_day.py that were finished last, or None."""
    return last(folder.glob(GPU_DAY))


def last(paths):
    found = [json.loads(path.read_text()) for path in paths]
    return max(found, key=lambda results: results["finished"], default=None)


def write(results, folder=FOLDER / "results"):
    processor = ", ".join(results["machine"].split(", ")[:2])  # name and number of cores
    words = re.findall(r"[a-z0-9.]+", processor.lower())
    path = folder / f"{results['date']}-{'-'.join(words)}.json"
    text = json.dumps(results, indent=1)
    # writes each list of numbers on one line
    path.write_text(re.sub(r"\[[^\[\]{}\"]+\]", lambda m: " ".join(m[0].split()), text) + "\n")
    print(f"\nwrote {path}")


# -- the table


def goal(bars):
    """Returns the goals of a row's bars, each goal once, such as '>= 0.8 / 1 / 1.3'."""
    goals = [f"{'<=' if b['at_most'] else '>='} {b['wanted']:g}" for b in bars]
    first, *others = dict.fromkeys("exact" if g == "<= 0" else g for g in goals)
    return " / ".join([first, *(g.split()[-1] for g in others)])


def reached(bars):
    n_met = sum(b["met"] for b in bars)
    return "yes" if n_met == len(bars) else f"{n_met} of {len(bars)}" if n_met else "no"


def summary(results):
    """Returns a paragraph that tells where and how the results were measured, and how many goals
    are reached."""
    entries = results["benchmarks"].values()
    now = [e for e in entries if is_of(e, results)]
    versions = {f"{name} {version}" for e in now for name, version in e["versions"].items()}
    loads = [e["load_before"] for e in now]
    load = f"; load before each benchmark {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    met = [b["met"] for e in entries for b in e["bars"]]
    return textwrap.fill(
        f"Measured {results['date']} on {', '.join([results['machine'], *sorted(versions)])}{load}."
        " The two sides of a ratio ran in turns, and the table has the median ratio. "
        f"{sum(met)} of {len(met)} goals are reached.", 100)


def table(results):
    """Returns the text that docs/figures.md has between BEGIN and END: a summary, the table and the
    notes."""
    lines = [summary(results), "", "| question | peer | figure | goal | reached | command |",
             "|---|---|---|---|---|---|"]
    entries = results["benchmarks"].values()
    for e in entries:
        by_name, command = {b["what"]: b for b in e["bars"]}, None
        for row in e["rows"]:
            command = "the same" if command else f"`{e['command']}`{when(e, results)}"
            bars = [by_name[what] for what in row["bars"]]
            cells = [row["question"], row["peer"], row["figure"],
                     *((goal(bars), reached(bars)) if bars else ("", "")), command]
            lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- `{e['command']}`: {e['note']}. Its figures are of {e['date'] or 'no date yet'}."
             for e in entries if e["note"]]
    return "\n".join(lines + [""] * bool(notes) + notes) + "\n"


def is_of(entry, results):
    """Returns True if this entry has the same date and machine as `results`."""
    return (entry["date"], entry["machine"]) == (results["date"], results["machine"])


def when(entry, results):
    """Returns the text ' (date, processor)' for results from an older file. The processor is named
    only if it differs."""
    if is_of(entry, results):
        return ""
    processor = entry["machine"].split(", ")[0]
    return f" ({entry['date']}{f', {processor}' if processor not in results['machine'] else ''})"


def with_table(page, results, gpu=None):
    """Returns the page with the table of `results`. If `gpu` is given, adds the tables of these
    results of gpu_day.py."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"docs/figures.md has no line {BEGIN} with a line {END} below it")
    on_gpu = gpu_day.section(gpu) if gpu else ""
    return f"{before}{BEGIN}\n{table(results)}{on_gpu}{END}{after}"


def main():
    scripts = sorted(FOLDER.glob("bench_*.py"))
    args = options([script.stem for script in scripts])
    if args.quick:
        failed = try_all(scripts, args.only)
        sys.exit(f"these benchmarks failed: {', '.join(failed)}" if failed else 0)
    results = newest()
    if not args.table:
        results = run_all(scripts, args.only, results)
        write(results)
    path = ROOT / "docs" / "figures.md"
    path.write_text(with_table(path.read_text(), results, newest_gpu_day()))
    for e in results["benchmarks"].values():
        missed = [b["what"] for b in e["bars"] if not b["met"]]
        print(e["command"], f"{len(e['bars']) - len(missed)} of {len(e['bars'])} goals reached",
              *missed, e["note"] or "", sep="\n    ")


if __name__ == "__main__":
    main()
