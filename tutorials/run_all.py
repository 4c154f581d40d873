"""Runs the numbered tutorials, one after the other, and joins their tables into one.

    make tutorials                         all of them: about two minutes on two cores
    python tutorials/run_all.py 07 08      some of them

If the header of a tutorial has `mpirun -n N`, the tutorial runs on N ranks, else in one process.
Each tutorial writes its table to out/NN_name.json. For the site, it writes its picture in English
to out/en and in Chinese to out/zh. The exit status is 1 if a row of a table is not ok, or if a
tutorial did not finish. Then the last printed line names these rows and tutorials.

Test: tests/tutorials/test_run_all.py
"""

import re
import subprocess
import sys
import time
from pathlib import Path

from minidl.course import table as tutorial_table

FOLDER = Path(__file__).parent


def run(script):
    """Runs one tutorial. Returns the Rows of its table, a Row for its exit status, and a Row for
    its time."""
    report = Path("out", script.stem + ".json")
    report.unlink(missing_ok=True)  # an old table must not count for this run
    ranks = re.search(r"mpirun -n (\d+)", script.read_text())
    launcher = ["-m", "minidl.cli.main", "run", "-n", ranks[1]] if ranks else []
    print(f"\n== {script.name}" + (f" on {ranks[1]} ranks" if ranks else ""), flush=True)
    start = time.perf_counter()
    status = subprocess.run([sys.executable, *launcher, str(script),
                             "--every-language"]).returncode
    seconds = time.perf_counter() - start
    missing = tutorial_table.row("table", "none", f"in {report}", "exact")
    rows = tutorial_table.load(report) if report.exists() else [missing]
    rows.append(tutorial_table.row("exit status", status, 0, "exact"))
    rows.append(tutorial_table.row("wall time, s", round(seconds, 1)))
    return [row._replace(tutorial=script.stem) for row in rows]


def main(numbers):
    scripts = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
    known = {script.name[:2] for script in scripts}
    if unknown := [number for number in numbers if number not in known]:
        sys.exit(f"no tutorial {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    rows = []
    for script in scripts:
        if not numbers or script.name[:2] in numbers:
            rows += run(script)
    print("\n" + tutorial_table.render(rows))
    return 1 if tutorial_table.failed(rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
