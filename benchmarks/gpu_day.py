"""Measures and tests everything that needs a GPU, by one command in ten minutes.

    make gpu-day                                         all steps, results in out/gpu_day
    python benchmarks/gpu_day.py --out FOLDER            all steps, results in FOLDER
    python benchmarks/gpu_day.py --out FOLDER --step kernels --again     only this step, again

A step is a process with its own limit of seconds. A step has parts, such as one kernel file or one
folder of tests. The results of finished parts are kept. If the command was killed, start it again.
It continues with the first part that is not done. --again forgets the results of all steps, or of
one --step.

    parts/STEP/begun         the name of the running part
    parts/STEP/3-softmax.json    the rows of a finished part. The file is first written under
                             another name, then renamed, so it is always complete
    steps/STEP.json          an ended step: its rows, its seconds, and how it ended
    gpu_day.json, gpu_day.md     all steps; written again after each step
    logs/, cache/, tmp/      the output of the steps, compiled kernels, temporary files

If a part fails or takes too long, its row gives the reason and the last lines of its output. Then
the next part runs. Send back gpu_day.json and gpu_day.md. gpu_steps.py has the parts. See also
docs/gpu.md.
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
# {step: (limit of the step, limit of one part)}, in seconds. The tests come last and use the time
# that is left.
STEPS = {"machine": (40, 30), "kernels": (200, 45), "step": (90, 45), "memory": (40, 30),
         "parallel": (60, 30), "sanitizer": (60, 30), "tests": (TOTAL_S, 120)}
LEAST_S = 5  # a step does not begin if fewer seconds are left
POLL_S = 0.05
N_LINES = 5  # how many last lines are shown for a part that failed


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--step", choices=STEPS, help="run only this step")
    parser.add_argument("--again", action="store_true", help="forget what was done before")
    parser.add_argument("--size", choices=["usual", "small"], default="usual",
                        help="small: checks the results; its times mean nothing")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="in all (%(default)s)")
    parser.add_argument("--parts", default="gpu_steps", help=argparse.SUPPRESS)  # a module's name
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)  # a step's process
    return parser.parse_args(arguments)


# -- files


def write(path, text):
    """Writes a file. If this process is killed, the file has either the old text or the new text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def read(path):
    return json.loads(path.read_text())


def part_files(folder, step):
    """Returns the files of the finished parts, in the order of the parts."""
    files = (folder / "parts" / step).glob("*.json")
    return sorted(files, key=lambda path: int(path.name.split("-")[0]))


def check_size(folder, size):
    """Raises SystemExit if the folder has results of another size."""
    path = folder / "size.json"
    if path.exists() and read(path) != size:
        raise SystemExit(f"gpu_day: {folder} has results of --size {read(path)}; use another "
                         "folder, or delete these results by --again")
    write(path, json.dumps(size))


def forget(folder, step=None):
    if step is None:
        (folder / "size.json").unlink(missing_ok=True)
    for name in [step] if step else STEPS:
        (folder / "steps" / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(folder / "parts" / name, ignore_errors=True)


def environment(folder, left_s=TOTAL_S):
    """Returns the environment variables for the process of a step. With these variables the process
    writes all its files into the folder. left_s: the seconds that are left for the process."""
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
    """Runs the parts of a step that are not done. An exception in a part ends the process, because
    CUDA does not work after a kernel's error. The next process continues with the next part."""
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
    """Ends this process, and all processes that it started, when the parent ends for any reason.
    The parent holds the other end of stdin. So a closed stdin shows that the parent has ended."""
    def watch():
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


# -- the parent


def start(args, step, left_s):
    """Starts the process of a step. Its output goes to logs/. left_s: the seconds that are left for
    the process."""
    logs = args.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--out", args.out, "--step", step, "--size", args.size,
               "--parts", args.parts, "--work"]
    with open(logs / f"{step}.log", "a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment(args.out, left_s),
                                stdin=subprocess.PIPE, stdout=log, stderr=log,
                                start_new_session=True)


def end(process):
    """Ends a process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()


def last_lines(folder, step):
    log = folder / "logs" / f"{step}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if line.strip()][-N_LINES:]


def begun(folder, step):
    """Returns (number, name) of the last part that has begun and is not done, or None."""
    path = folder / "parts" / step / "begun"
    if not path.exists():
        return None
    i, name = read(path)
    return None if part_file(folder, step, i, name).exists() else (i, name)


def run_step(args, step, limit_s, part_s, clock=time.monotonic, start=start, end=end,
             sleep=time.sleep):
    """Runs a step to its end. Returns the result, which is later written into steps/STEP.json."""
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
        else:  # the process failed before its first part
            how = f"{why}: {' '.join(last_lines(args.out, step)[-1:])}"
        if ended:
            how = f"ended after its {limit_s:.0f} s; parts missing in the table did not begin"
    rows = [row for path in part_files(args.out, step) for row in read(path)]
    return {"how": how, "seconds": round(clock() - began, 1), "rows": rows}


def wait(folder, step, process, deadline, part_s, clock, sleep):
    """Waits for a step's process. Returns (reason, is_over). reason: why parts are not done, or
    None. is_over: True if the step's time is over."""
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
    """Runs all steps that are not done, within args.seconds. Returns the results."""
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
    """Returns the name of the GPU, from a row of the step `machine`."""
    rows = results.get("machine", {}).get("rows", [])
    return next((row["value"] for row in rows if row["what"] == "device"), "an unknown device")


def sentence(result):
    """Returns a text: how a step ended, its seconds, and the names of its wrong or failed rows."""
    bad = faults(result["rows"])
    return f"{result['how']}, {result['seconds']} s" + (
        f"; wrong or failed: {', '.join(row['what'] for row in bad)}" if bad else "")


def faults(rows):
    """Returns the rows with a wrong result, and the rows of parts that failed or were ended."""
    return [row for row in rows if row.get("right") == "WRONG"
            or str(row.get("result", "")).startswith(("failed", "ended"))]


def page(whole):
    """Returns the results in Markdown: a table for each step."""
    return f"# A GPU's day: {whole['device']}, {whole['date']}\n{tables(whole, '##')}"


def section(whole):
    """Returns the results as a section of docs/figures.md."""
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
    """Returns the lines of one table. Its columns are all keys of the rows."""
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
