"""A tutorial as a notebook: the script's code, no more and no less, and it runs."""

import ast
import json
import re
import sys
from types import SimpleNamespace

import pytest

from minidl.course import exercise, notebook, out
from minidl.course.tutorial import Table
from tests.conftest import EVERY
from tests.tutorials.test_scripts import QUICK

SCRIPTS = sorted((exercise.ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_cells_are_the_script(script):
    text = script.read_text()
    made = notebook.notebook(text, script)
    code = [c["source"] for c in made["cells"] if c["cell_type"] == "code"]
    assert code[0].startswith("from minidl.course import notebook")
    body = ast.parse("\n".join(code[1:-1])).body
    assert ast.dump(ast.Module(body, [])) == ast.dump(
        ast.Module(ast.parse(text).body[1:-1], [])), "all but the docstring and the launch"
    words = "".join(c["source"] for c in made["cells"] if c["cell_type"] == "markdown")
    for region in exercise.regions(text):
        assert f"**Exercise {region.id}**" in words
    assert len({c["id"] for c in made["cells"]}) == len(made["cells"]) and made["nbformat"] == 4


def test_one_for_colab_installs_minidl_and_looks_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert notebook.write("00", "minidl.whl") == 0
    made = json.loads((tmp_path / "work" / "00_hello_colab.ipynb").read_text())
    code = [c["source"] for c in made["cells"] if c["cell_type"] == "code"]
    ran, found = [], {"minidl": None, "cupy": object()}
    monkeypatch.setattr("subprocess.run", lambda command, check: ran.append((command, check)))
    monkeypatch.setattr("importlib.util.find_spec", found.get)
    for gpu, device in ((None, "cpu"), ("/usr/bin/nvidia-smi", "cuda")):
        monkeypatch.setattr("shutil.which", lambda name, gpu=gpu: gpu)
        names = {}
        exec(code[0], names)
        assert names["DEVICE"] == device
    assert ran[0] == ([sys.executable, "-m", "pip", "install", "--quiet", "minidl.whl", *(
        "mpi4py mpich matplotlib scikit-learn tqdm safetensors".split())], True)
    assert code[1].endswith("__file__ = str(checkout.ROOT / 'tutorials' / '00_hello.py')"
                            "  # the script from which this notebook was made")
    assert code[-1].startswith("notebook.run(main, ") and code[-1].endswith(", device=DEVICE)")


def test_the_last_cell_runs_what_the_script_launches():
    text = (exercise.ROOT / "tutorials" / "07_ring.py").read_text()
    made = notebook.notebook(text, "x.py")
    assert made["cells"][-1]["source"] == "notebook.run(main, OPTIONS, ranks=4)"
    assert made["cells"][0]["source"].startswith("# 07 Data parallel training on a ring.")
    with pytest.raises(exercise.ExerciseError, match="want a script that calls"):
        notebook.notebook('"""A script."""\nx = 1\n', "x.py")


def test_it_is_written_once_and_not_over_what_was_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert notebook.write("0") == 0 and notebook.write("00") == 0
    path = tmp_path / "work" / "00_hello.ipynb"
    made = json.loads(path.read_text())
    place = re.search(r"__file__ = '(.*)'", made["cells"][1]["source"])[1]
    assert (path.parent / place).resolve() == exercise.ROOT / "tutorials" / "00_hello.py"
    path.write_text("{}")
    with pytest.raises(exercise.ExerciseError, match="edited or run"):
        notebook.write("00")
    with pytest.raises(exercise.ExerciseError, match="no tutorial 99"):
        notebook.write("99")
    with pytest.raises(exercise.ExerciseError, match="a Python file, got 'ring'"):
        notebook.write("ring")


def _main(t, args):
    table = Table(t)
    table.row("ranks", t.size, args.wanted, "exact")
    return table


def test_run_is_launch_on_simulated_ranks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook.run(_main, {"wanted": (3, "ranks")}, ranks=3)
    assert re.search(r"ranks +\| +3 \| +3 \| exact \| yes", capsys.readouterr().out)
    with pytest.raises(RuntimeError, match="not ok"):
        notebook.run(_main, {"wanted": (3, "ranks")}, ranks=2)
    with pytest.raises(TypeError, match="no option steps; its options are wanted"):
        notebook.run(_main, {"wanted": (3, "ranks")}, ranks=2, steps=1)


def test_pictures_are_shown_where_there_is_a_kernel(monkeypatch):
    assert not out.in_notebook()
    for kernel in (None, object()):
        shell = SimpleNamespace(kernel=kernel)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda s=shell: s))
        assert out.in_notebook() == (kernel is not None)


def _given(script):
    """The options of a quick run, as arguments of notebook.run."""
    words = QUICK.get(script.stem, [])
    return "".join(f", {name[2:].replace('-', '_')}={value}"
                   for name, value in zip(words[::2], words[1::2], strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", [s for s in SCRIPTS if EVERY or s.stem == "07_ring"],
                         ids=lambda script: script.stem)
def test_a_notebook_executes_and_shows_its_picture(script, tmp_path, monkeypatch):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason="no notebooks: pip install 'minidl[notebook]'")
    import nbclient
    import nbformat

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(exercise.ROOT))
    notebook.write(script.name[:2])
    made = nbformat.read(tmp_path / "work" / f"{script.stem}.ipynb", as_version=4)
    nbformat.validate(made)
    made.cells[-1].source = made.cells[-1].source[:-1] + _given(script) + ")"
    nbclient.NotebookClient(made, timeout=200, resources={
        "metadata": {"path": str(tmp_path / "work")}}).execute()
    outputs = made.cells[-1].outputs
    assert any("image/png" in o.get("data", {}) for o in outputs) == (
        "draw" in script.read_text())
    assert any(re.search(r"\| +yes$", o.get("text", ""), re.M) for o in outputs)
