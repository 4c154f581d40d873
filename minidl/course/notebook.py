'''Writes a tutorial as a Jupyter notebook: `minidl notebook 07` writes work/07_ring.ipynb.

The script is the only source. Its docstring becomes text, its imports and constants become a cell,
and each function or class becomes a cell. The last cell runs the script on simulated ranks:

    notebook.run(main, OPTIONS, ranks=4)                shows the table, and the picture below it
    notebook.run(main, OPTIONS, ranks=4, steps=20)      runs with another value of an option

Cells may be changed and run again. `minidl notebook work/07_ring.py` makes a notebook of a
student's file.

`minidl notebook 07 --colab` writes a notebook that needs no clone, for Colab, Kaggle or any
Jupyter. Its first cell installs minidl if minidl is missing, and looks for a GPU. If there is a
GPU, the last cell uses it.

Test: tests/course/test_notebook.py   Formats: nbformat 4.5
'''

import argparse
import ast
import json
import os
from pathlib import Path

from minidl.comm import simulate
from minidl.comm.observe.watch import DEADLINE_S
from minidl.course import exercise, renamed, tutorial
from minidl.course.comments import in_language
from minidl.course.exercise import ROOT, WORK, ExerciseError
from minidl.course.language import unbroken
from minidl.course.out import script_of
from minidl.text import tr

# the packages that the tutorials need, from the extras `mpi` and `tutorials` of setup.cfg
WANTED = "mpi4py mpich matplotlib scikit-learn tqdm safetensors"
INSTALL = """\
# Colab, Kaggle, any Jupyter: installs minidl where it is missing, and looks for a GPU.
import importlib.util
import shutil
import subprocess
import sys

if importlib.util.find_spec("minidl") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", {source!r},
                    *"{wanted}".split()], check=True)
has_gpu = shutil.which("nvidia-smi") and importlib.util.find_spec("cupy")
DEVICE = "cuda" if has_gpu else "cpu"
print("device:", DEVICE, "" if has_gpu else "(in the menu: Runtime, Change runtime type, GPU)")
"""


def write(script, colab=None, root=ROOT, work=WORK):
    """`minidl notebook NN` or `minidl notebook script.py`: writes work/NAME.ipynb. Returns the exit
    status.

    colab: where `pip install` in the first cell finds minidl, such as an address. If None, the
    notebook has no such cell."""
    renamed.bring_up_to_date(work)
    source = Path(script)
    if script.isdigit():
        found = sorted((root / "tutorials").glob(f"{script.zfill(2)}_*.py"))
        if not found:
            raise ExerciseError(f"there is no tutorial {script.zfill(2)} in {root / 'tutorials'}")
        (source,) = found
    if not source.is_file() or source.suffix != ".py":
        raise ExerciseError(f"want the number of a tutorial or a Python file, got {script!r}")
    renamed.update_imports(source)
    path = work / f"{source.stem}{'_colab' if colab else ''}.ipynb"
    script = in_language(exercise.read(source))
    place = os.path.relpath(source, work)
    text = json.dumps(notebook(script, place, colab), indent=1)
    if path.exists() and exercise.read(path) != text + "\n":
        raise ExerciseError(f"{path} has been edited or run, so nothing was written. Rename this "
                            "file first")
    exercise._replace(path, text + "\n")
    print(tr(f"wrote {path}"))
    print(tr(f"Open it: jupyter lab {path}      (pip install 'minidl[notebook]')"))
    return 0


def notebook(text, place, colab=None):
    """Returns the notebook of a script, as a dict in nbformat's form. place: the path from the
    notebook to the script. colab: as in `write`. With colab, the notebook uses the script of the
    installed minidl."""
    tree, lines = ast.parse(text), text.splitlines()
    title, _, story = ast.get_docstring(tree).partition("\n")
    cells = [_cell("markdown", f"# {' '.join(title.split())}\n{unbroken(story)}")]
    comment = f"  # {tr('the script from which this notebook was made')}"
    if colab:
        cells.append(_cell("code", INSTALL.format(source=colab, wanted=WANTED)))
        cells.append(_cell("code", "from minidl import checkout\nfrom minidl.course import notebook"
                           "\n\n__file__ = str(checkout.ROOT / 'tutorials' / "
                           f"{Path(place).name!r}){comment}"))
    else:
        cells.append(_cell("code", "from minidl.course import notebook\n\n"
                           f"__file__ = {str(place)!r}{comment}"))
    regions = exercise.regions(text)
    start, parts = tree.body[0].end_lineno, []  # parts: (first line, last line, defines)
    for node in tree.body[1:]:
        defines = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if defines or not parts or parts[-1][2]:
            parts.append((start, node.end_lineno, defines))
        else:
            parts[-1] = (parts[-1][0], node.end_lineno, False)
        start = node.end_lineno
    for first, end, _ in parts:
        code = "\n".join(lines[first:end]).strip("\n")
        if code.startswith("if __name__ == "):
            continue
        if "\nif __name__ == " in code:
            code = code.split("\nif __name__ == ")[0].rstrip()
        for region in regions:
            if first < region.start <= end:
                cells.append(_cell("markdown", tr(f"**Exercise {region.id}**: {region.title}")))
        cells.append(_cell("code", code))
    cells += [_cell("markdown", tr("The table compares measured values with theory.")),
              _cell("code", _call(tree, ["device=DEVICE"] if colab else []))]
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind, source):
    extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source} | extra


def _call(tree, more=()):
    """Returns the code `notebook.run(...)`. The arguments of this call are the arguments of the
    script's launch(...), and then `more`, a list of texts. tree: the syntax tree of the script."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)
             and getattr(n.func, "id", "") == "launch"]
    if not calls:
        raise ExerciseError("want a script that calls minidl.course.tutorial.launch, as a tutorial "
                            "does; this script does not call it")
    arguments = [*calls[0].args, *(k.value for k in calls[0].keywords)]
    names = [""] * len(calls[0].args) + [f"{k.arg}=" for k in calls[0].keywords]
    given = (name + ast.unparse(a) for name, a in zip(names, arguments, strict=True))
    return f"notebook.run({', '.join([*given, *more])})"


def run(main, options=None, ranks=1, alpha=10e-6, beta=1e-9, device="cpu", **values):
    """Does the work of `tutorial.launch` inside a notebook, on `ranks` simulated ranks.

    values: the values of options; other options have their defaults. alpha, beta: the modelled
    seconds for each message and for each byte. device: "cpu" or "cuda".
    Raises RuntimeError if a row of the table is not ok, and TypeError for an unknown option."""
    known = {name: default for name, (default, _) in (options or {}).items()}
    if unknown := set(values) - set(known):
        raise TypeError(f"the script has no option {', '.join(sorted(unknown))}; its options are "
                        f"{', '.join(known)}")
    args = argparse.Namespace(
        **known | values, device=device, sim=ranks, alpha=alpha, beta=beta, deadline=DEADLINE_S,
        slides=False, every_language=False)
    tutorial.one_blas_thread(os.environ)
    statuses = simulate(ranks, tutorial._run_rank, main, args, alpha=alpha, beta=beta,
                        rendezvous_bytes=tutorial.RENDEZVOUS_BYTES)
    if max(statuses):
        raise RuntimeError(f"{Path(script_of(main)).name}: a row of the table is not ok, or the "
                           "script cannot run with an option. The text above names the row or "
                           "the option")
