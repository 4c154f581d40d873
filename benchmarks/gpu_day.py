"""The day a GPU is there: everything that only a GPU can tell, in ten minutes and one command.

    make gpu-day                                         into out/gpu_day
    python benchmarks/gpu_day.py --out FOLDER            all steps
    python benchmarks/gpu_day.py --out FOLDER --step kernels --again

A step is a process of its own, with its own limit of seconds. It has parts, such as one kernel file
or one folder of tests. What is done is kept, and a command that was killed at any moment is simply
started again: it goes on with the part that was not done. --again forgets, all or one --step.

    parts/STEP/begun         the name of the part that runs
    parts/STEP/3-softmax.json    the rows of a part, written to another name first, then renamed
    steps/STEP.json          a step that has ended: its rows, its seconds, and how it ended
    gpu_day.json, gpu_day.md     all steps, after each step
    logs/, cache/, tmp/      what the steps print; what they compile and write: all of it is here

A part that fails or takes too long is a row that says so, with its last lines; the next one runs.
Send back gpu_day.json and gpu_day.md. What the parts do: gpu_steps.py.   docs/gpu.md
Test: tests/benchmarks/test_gpu_day.py
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOTAL_S = 600
# Seconds of each step, and of one of its parts at most. The tests come last, with what is left.
STEPS = {"machine": (40, 30), "kernels": (200, 45), "step": (90, 45), "memory": (40, 30),
         "parallel": (60, 30), "sanitizer": (60, 30), "tests": (TOTAL_S, 120)}
LEAST_S = 5  # less than that is left: a step does not begin
POLL_S = 0.05
N_LINES = 5  # of a part that failed


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--step", choices=STEPS, help="this one alone")
    parser.add_argument("--again", action="store_true", help="forget what was done before")
    parser.add_argument("--size", choices=["usual", "small"], default="usual",
                        help="small: whether all is right, and no times that mean anything")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="in all (%(default)s)")
    parser.add_argument("--parts", default="gpu_steps", help=argparse.SUPPRESS)  # a module
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)  # a step's process
    return parser.parse_args(arguments)


# -- files


def write(path, text):
    """The old text or the new one, whenever this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def read(path):
    return json.loads(path.read_text())


def part_files(folder, step):
    """The files of the parts that are done, in the order of the parts."""
    files = (folder / "parts" / step).glob("*.json")
    return sorted(files, key=lambda path: int(path.name.split("-")[0]))


def check_size(folder, size):
    """A folder has results of one size: others do not belong beside them."""
    path = folder / "size.json"
    if path.exists() and read(path) != size:
        raise SystemExit(f"gpu_day: {folder} has results of --size {read(path)}; take another "
                         "folder, or --again, which forgets them")
    write(path, json.dumps(size))


def forget(folder, step=None):
    if step is None:
        (folder / "size.json").unlink(missing_ok=True)
    for name in [step] if step else STEPS:
        (folder / "steps" / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(folder / "parts" / name, ignore_errors=True)


def environment(folder, left_s=TOTAL_S):
    """That of a step's process: whatever it keeps, it keeps in the folder. left_s: its time."""
    cache, tmp = folder / "cache", folder / "tmp"
    tmp.mkdir(parents=True, exist_ok=True)
    kept = {name: str(cache / name.lower()) for name in (
        "MINIDL_CACHE", "MINIDL_TESTS_CACHE", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME",
        "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")}
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **kept, "TMPDIR": str(tmp), "GPU_DAY_LEFT_S": str(left_s),
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


# -- the process of a step


def work(folder, step, parts):
    """Do the parts of a step that are not done. A part that raises ends the process: after an
    error of a kernel nothing works any more. The next process goes on behind it."""
    end_with_parent()
    done = {path.name for path in part_files(folder, step)}
    for i, (name, function) in enumerate(parts):
        file = part_file(folder, step, i, name)
        if file.name not in done:
            write(file.parent / "begun", json.dumps([i, name]))
            print(f"-- {name}", flush=True)
            write(file, json.dumps(function()))


def part_file(folder, step, i, name):
    return folder / "parts" / step / f"{i}-{name.replace('/', '_').replace(' ', '_')}.json"


def end_with_parent():
    """The parent holds the other end of stdin: when it ends, in any way, so does this process with
    all that it has started."""
    def watch():
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


# -- the parent


def start(args, step, left_s):
    """Runs the process of a step for a limited time; its output goes to logs/."""
    logs = args.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--out", args.out, "--step", step, "--size", args.size,
               "--parts", args.parts, "--work"]
    with open(logs / f"{step}.log", "a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment(args.out, left_s),
                                stdin=subprocess.PIPE, stdout=log, stderr=log,
                                start_new_session=True)


def end(process):
    """End a process with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()


def last_lines(folder, step):
    log = folder / "logs" / f"{step}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if line.strip()][-N_LINES:]


def begun(folder, step):
    """(number, name) of the part that has begun last and is not done; None if there is none."""
    path = folder / "parts" / step / "begun"
    if not path.exists():
        return None
    i, name = read(path)
    return None if part_file(folder, step, i, name).exists() else (i, name)


def run_step(args, step, limit_s, part_s, clock=time.monotonic, start=start, end=end,
             sleep=time.sleep):
    """Run a step to its end; returns what is written of it."""
    began, how = clock(), "done"
    while how == "done":
        process = start(args, step, began + limit_s - clock())
        try:
            why, ended = wait(args.out, step, process, began + limit_s, part_s, clock, sleep)
        finally:
            end(process)
        if why is None:
            break
        if part := begun(args.out, step):
            row = {"what": part[1], "result": why, "last lines": last_lines(args.out, step)}
            write(part_file(args.out, step, *part), json.dumps([row]))
        else:  # it cannot even begin
            how = f"{why}: {' '.join(last_lines(args.out, step)[-1:])}"
        if ended:
            how = f"ended after its {limit_s:.0f} s; what is missing in the table did not begin"
    rows = [row for path in part_files(args.out, step) for row in read(path)]
    return {"how": how, "seconds": round(clock() - began, 1), "rows": rows}


def wait(folder, step, process, deadline, part_s, clock, sleep):
    """(None, or why it has not done its parts; whether its time is over)."""
    part, since = None, clock()
    while process.poll() is None:
        if clock() >= deadline:
            return "ended: the time of the step was over", True
        if (now := begun(folder, step)) != part:
            part, since = now, clock()
        if clock() >= since + part_s:
            return f"ended after {part_s} s", False
        sleep(POLL_S)
    if process.returncode == 0:
        return None, False
    return f"failed ({process.returncode})", False


def run(args, steps=None, say=print, clock=time.monotonic, **how):
    """All steps that are not done, in the time that there is. Returns the results."""
    began, results = clock(), {}
    for step, (limit_s, part_s) in (steps or STEPS).items():
        file = args.out / "steps" / f"{step}.json"
        left_s = args.seconds - (clock() - began)
        if file.exists():
            results[step] = read(file)
            say(f"{step}: done before, {results[step]['seconds']} s")
        elif args.step not in (None, step):
            continue
        elif left_s < LEAST_S:
            results[step] = {"how": f"not begun: the {args.seconds:.0f} s in all are over. The "
                             "same command goes on here", "seconds": 0, "rows": []}
            say(f"{step}: {results[step]['how']}")
        else:
            say(f"{step} ...")
            results[step] = run_step(args, step, min(limit_s, left_s), part_s, clock, **how)
            write(file, json.dumps(results[step], indent=1))
            say(f"{step}: {sentence(results[step])}")
        save(args.out, results)
    return results


# -- the report


def save(folder, results):
    whole = {"date": f"{datetime.date.today()}", "device": device_of(results),
             "finished": datetime.datetime.now().isoformat(timespec="seconds"), "steps": results}
    write(folder / "gpu_day.json", json.dumps(whole, indent=1) + "\n")
    write(folder / "gpu_day.md", page(whole))


def device_of(results):
    """The name of the GPU, a row of the step `machine`."""
    rows = results.get("machine", {}).get("rows", [])
    return next((row["value"] for row in rows if row["what"] == "device"), "an unknown device")


def sentence(result):
    """How a step has ended, and how many of its rows are bad news."""
    bad = faults(result["rows"])
    return f"{result['how']}, {result['seconds']} s" + (
        f"; wrong or failed: {', '.join(row['what'] for row in bad)}" if bad else "")


def faults(rows):
    """The rows of a wrong result, and of what failed or was ended."""
    return [row for row in rows if row.get("right") == "WRONG"
            or str(row.get("result", "")).startswith(("failed", "ended"))]


def page(whole):
    """The results in Markdown: a table for each step."""
    return f"# A GPU's day: {whole['device']}, {whole['date']}\n{tables(whole, '##')}"


def section(whole):
    """The same as a part of docs/figures.md."""
    return (f"\n## On a GPU\n\nBy `make gpu-day`, measured on {whole['device']}, {whole['date']}.\n"
            f"{tables(whole, '###')}\n")


def tables(whole, heading):
    lines = []
    for step, result in whole["steps"].items():
        lines += ["", f"{heading} {step}", "", sentence(result)]
        if result["rows"]:
            lines += ["", *table(result["rows"])]
    return "\n".join(lines) + "\n"


def table(rows):
    """The lines of one table, whose columns are all that a row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(cell(row.get(name, '')) for name in columns)} |")
    return lines


def cell(value):
    if isinstance(value, list):
        value = " / ".join(value)
    if isinstance(value, float):
        value = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def main():
    args = options()
    args.out = args.out.resolve()
    if args.work:
        module = __import__(args.parts)
        return work(args.out, args.step, module.PARTS[args.step](args.size))
    if args.again:
        forget(args.out, args.step)
    check_size(args.out, args.size)
    results = run(args)
    shutil.rmtree(args.out / "tmp", ignore_errors=True)
    print(f"{args.out / 'gpu_day.md'}\n{args.out / 'gpu_day.json'}")
    return int(any(result["how"] != "done" or faults(result["rows"])
                   for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
