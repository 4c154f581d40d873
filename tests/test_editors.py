"""Tests what an editor shows for a line that a user types: the names that may follow, their
arguments, the file of a name, and a mark below a wrong name."""

import importlib.util
import json
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import typecheck
from tests.conftest import whole_form

ROOT = Path(__file__).resolve().parents[1]
BEFORE = """import minidl
from minidl import nn, optim
from minidl.nn import functional as F
x = minidl.tensor([1.0, 2.0])
"""


# -- jedi: Jupyter, and many editors


def jedi_at_the_end(line):
    """Returns jedi's Script of a program that ends with this line, and the place of the line's
    end."""
    jedi = pytest.importorskip("jedi", reason="pip install jedi")
    code = BEFORE + line
    script = jedi.Script(code, path=ROOT / "build" / "line.py", project=jedi.Project(ROOT))
    return script, (code.count("\n") + 1, len(line))


@pytest.mark.parametrize("line, name, arguments", [
    ("x.", "relu", "()"),
    ("(x * 2).su", "sum", "(dim: int | Sequence[int] | None=None, keepdim: bool=False, *, dtype: "),
    ("F.rel", "relu", "(input: Tensor | ndarray)"),
    ("F.rel", "relu6", "(input: Tensor | ndarray)"),
    ("F.soft", "softmax", "(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None=None)"),
    ("x.sum().ba", "backward", "(gradient: Tensor | ndarray | None=None, retain_graph: bool"),
    ("x.add", "add_", "(other: Tensor | ndarray | generic | float, *, alpha: float=1)"),
    ("minidl.eins", "einsum", "(equation: str, *operands: Any)"),
    ("minidl.ze", "zeros", "(*size: Sizes, dtype: DType | None=None, "),
    ("optim.Ad", "Adam", "(params: Parameters, lr: float=1e-3, betas: Sequence[float]=(0.9, "),
    ("optim.Ad", "AdamW", "(params: Parameters, lr: float=1e-3"),
    ("minidl.comm.ring.all_r", "all_reduce", "(t, x: SameArray, op: Op=np.add"),
    ("minidl.comm.tree.barr", "barrier", "(t"), ("nn.Linear(2, 3)(x).su", "sum", "(dim: "),
    ("nn.MLP(2, 3).to('cuda').par", "parameters", "() -> Iterator[Parameter]"),
    ("minidl.comm.", "simulate", ""),
    ("nn.Lin", "Linear", "(in_features: int, out_"), ("nn.Sync", "SyncBatchNorm", "("),
    ("minidl.kern", "kernel", "("), ("minidl.pro", "profile", ""), ("minidl.bf", "bfloat16", ""),
    ("x.max(0).ind", "indices", ""), ("x.topk(1).val", "values", ""), ("x.sha", "shape", ""),
    ("x[0].T.res", "reshape", "(*shape: int | Sequence[int])"),
    ("(-x @ x).ite", "item", "()"), ("F.cross_entropy(x, x).ite", "item", "()"),
    ("minidl.zeros_like(x).ex", "exp", "()"), ("x.split(1)[0].ex", "exp", "()"),
    ("x.grad.no", "norm", "(p: float | str='fro'")])
def test_a_line_is_completed(line, name, arguments):
    script, place = jedi_at_the_end(line)
    found = {one.name: one for one in script.complete(*place)}
    assert name in found, [*found]
    if arguments:
        shown = [re.sub(r"\b_(int|bool|float)\b", r"\1", one.to_string())
                 for one in found[name].get_signatures()]
        assert any(text.startswith(name + arguments) for text in shown), shown


@pytest.mark.parametrize("line", ["F.not", "x.not_th", "minidl.not_th", "nn.Linaer", "x.T.ite_"])
def test_what_is_no_name_is_not_offered(line):
    script, place = jedi_at_the_end(line)
    assert script.complete(*place) == []


@pytest.mark.parametrize("line, file, words", [
    ("F.relu", "minidl/nn/functional.pyi", "def relu("), ("x.sum", "minidl/tensor.pyi", "def sum("),
    ("minidl.einsum", "minidl/__init__.pyi", "def einsum("),
    ("minidl.zeros", "minidl/creation.py", "def zeros("),
    ("nn.Linear", "minidl/nn/layers.py", "class Linear("),
    ("minidl.no_grad", "minidl/mode.py", "def no_grad("),
    ("minidl.kernel", "minidl/cuda/run.py", "def kernel(")])
def test_a_name_leads_to_its_file(line, file, words):
    script, place = jedi_at_the_end(line)
    (found, *_) = script.goto(*place, follow_imports=True)
    path = found.module_path.relative_to(ROOT)
    assert path.as_posix().startswith(file)
    assert words in (ROOT / path).read_text().splitlines()[found.line - 1]


def test_an_editor_finds_minidl_from_a_folder_elsewhere(tmp_path):
    """setup.cfg makes `pip install -e` write a path, which editors can read. Only Python can use an
    import hook."""
    jedi = pytest.importorskip("jedi", reason="pip install jedi")
    if list(Path(sysconfig.get_path("purelib")).glob("__editable___minidl*_finder.py")):
        pytest.skip("minidl is installed by a hook, as before: make venv installs it by its path")
    environment = jedi.create_environment(sys.prefix, safe=False)
    script = jedi.Script("import minidl\nminidl.ones(2).su", path=tmp_path / "mine.py",
                         project=jedi.Project(tmp_path), environment=environment)
    assert "sum" in [one.name for one in script.complete()]


@pytest.mark.parametrize("stub, op, file", [
    ("nn/functional.pyi", "relu", "activations.py"), ("tensor.pyi", "sum", "reduce.py"),
    ("tensor.pyi", "argmax", "extreme.py"), ("tensor.pyi", "half", "cast.py"),
    ("tensor.pyi", "__add__", "__init__.py"), ("__init__.pyi", "einsum", "extra/einsum.py")])
def test_the_stub_of_an_op_says_its_file(stub, op, file):
    """An editor opens the stub of an op. A comment above the op in the stub names the op's file."""
    lines = (ROOT / "minidl" / stub).read_text().splitlines()
    if stub == "tensor.pyi":  # another class of the file may have this operator, too
        lines = lines[lines.index("class Tensor:"):]
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"def {op}("))
    above = [line.strip() for line in lines[:at] if line.strip().startswith("# minidl/")]
    assert above[-1] == f"# minidl/ops/{file}"


# -- pyright: VS Code, and others

needs_pyright = pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None,
    reason="make typecheck installs basedpyright, 75 MB")

WRONG = """F.not_there(x)
x.not_there()
minidl.not_there
nn.NotThere
F.softmax(x, dimension=1)
x.sum(dims=0)
F.softmax(x)
F.softmax(x, "rows")
x.topk(1).numbers
x + "one"
F.dropout(x, p="half")
"""
RIGHT = """a = x * 2 + 1 - x @ x
a[0, 1:, None, ..., a > 0].sum().backward()
b: minidl.Tensor = -x.T.sum(dim=(0, 1), keepdim=True)
values, indices = x.topk(1)
values.relu_().mul_(2).add_(x, alpha=0.1)
x += 1; x[1:] = 0; x[x > 0] = x
c: float = x.max().item() + x.max(0).values.item() + float(x[0])
d: list[minidl.Tensor] = [row for row in x] + list(x.split([1, 1])) + list(x.nonzero(as_tuple=True))
e: tuple[minidl.Tensor, minidl.Tensor] = F.max_pool2d(x, 2, return_indices=True)
f: minidl.Tensor = F.max_pool2d(x, (2, 2), stride=1)
print(x.shape[0] + len(x) + x.numel(), x.dtype.kind, x.device.upper(), x.size(), x.size(0) + 1)
with minidl.no_grad(): k = minidl.kernel("add3.cu", "add3")
y = minidl.zeros(2, 3, dtype=minidl.float32).to("cuda").to(minidl.bfloat16).view(-1).half()
loss = F.cross_entropy(nn.Sequential(nn.Linear(2, 2), nn.ReLU())(x), x, label_smoothing=0.1)
optimizer = optim.AdamW(nn.MLP(2, 2, activation=nn.Tanh).parameters(), lr=1e-3)
loss.backward(); optimizer.step(); optimizer.zero_grad()
class Twice(minidl.Function):
    def forward(self, x):
        return 2 * x
    def backward(self, gy):
        return 2 * gy
Twice.apply(x).sum().backward()
with minidl.profile() as p: minidl.maximum(x, 0).clamp(min=0).masked_fill(x > 0, 1.5)
"""


@needs_pyright
def test_a_type_checker_marks_what_is_wrong_and_nothing_else(tmp_path):
    for name, lines in (("wrong", WRONG), ("right", RIGHT)):
        (tmp_path / f"{name}.py").write_text(BEFORE + lines)
    found = typecheck.errors([tmp_path / "wrong.py", tmp_path / "right.py"])
    assert [line for line in found if not line.startswith("wrong.py")] == []
    marked = {int(line.split(":")[1]) for line in found}
    first = BEFORE.count("\n") + 1
    expected = {first + i: line for i, line in enumerate(WRONG.splitlines())}
    assert marked == set(expected), [expected[n] for n in set(expected) - marked]


@needs_pyright
@whole_form
def test_readme_docs_and_tutorials_have_no_error_of_a_type_checker(tmp_path):
    pages = typecheck.programs(tmp_path)
    assert len(pages) > 15 and len(typecheck.SCRIPTS) > 25
    assert typecheck.errors([*pages, *typecheck.SCRIPTS]) == []


@needs_pyright
@whole_form
def test_an_installed_minidl_is_typed_as_well(tmp_path):
    """For a package in site-packages with py.typed, a type checker reports names that are not for
    users."""
    site = tmp_path / "env" / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    shutil.copytree(ROOT / "minidl", site / "minidl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "basic", "venvPath": ".", "venv": "env",
        "extraPaths": [sysconfig.get_path("purelib")]}))
    (tmp_path / "right.py").write_text(BEFORE + RIGHT)
    (tmp_path / "wrong.py").write_text(BEFORE + "nn.layers.wrapped(x)\nF.not_there\n")
    found = typecheck.errors([tmp_path / "right.py", tmp_path / "wrong.py"], tmp_path)
    assert [line.split(":")[0] for line in found] == ["wrong.py", "wrong.py"], found
    assert "reportPrivateImportUsage" in found[0], found  # the checker sees an installed package


def test_a_line_of_a_page_keeps_its_number():
    page = ROOT / "docs" / "ranks.md"
    text = page.read_text()
    lines = text.splitlines()
    for _, code in typecheck.sections(text):
        for i, line in enumerate(code.splitlines()):
            assert line in ("", lines[i].strip(), lines[i]) or line in typecheck.HEAD
    assert "import minidl" in "".join(code for _, code in typecheck.sections(text))
