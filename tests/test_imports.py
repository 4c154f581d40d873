"""Tests the import rule: which part of minidl may import which other part. Reads the sources.

    Data flows tensor -> ops -> nn -> optim -> parallel -> comm. `comm` is a leaf: collectives use
    arrays, never a Tensor. So they can be taught and tested alone. Only `parallel` uses both
    collectives and Tensors.
"""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ANYTHING = None
ENGINE = "forward function tensor backward saved mode random nest backend"
# What each folder and each file at the top of minidl/ may import. The lowest parts come first. A
# file of a folder has its own line if it may import less or more than its folder.
MAY_IMPORT = {
    "backend": "",
    "random": "",
    "timeline": "",
    "checkout": "",
    "text": "checkout",  # translates messages, prints columns
    "mode": "",
    "printing": "backend",
    "nest": "",
    "saved": "backend",  # it uses the attributes of tensors and nodes, not their classes
    "backward": "saved mode backend",  # like `saved`
    "tensor": "backward mode backend saved",  # not function: ops make tensors
    "precision/bf16": "saved backend",  # bfloat16 nodes; function needs it
    "forward": "tensor mode backend precision/bf16",
    "static_forms": "tensor mode backend",
    "fast_apply": "forward tensor saved mode backend",
    "function": "static_forms fast_apply forward tensor saved mode",
    "gradcheck": ENGINE,
    "hints": "comm tensor",  # types of arguments; no program imports it
    "own_files": "",  # files of an earlier run
    "cuda": "own_files checkout text mode random backend",
    "cuda/host": "cuda own_files checkout text mode random backend",
    "cuda/fuse": f"cuda {ENGINE}",  # makes a kernel and a Function from Python code
    "cuda/host_memory": "backend",
    "ops": f"cuda printing {ENGINE}",
    "creation": f"ops cuda {ENGINE}",
    "memory": f"cuda/host_memory {ENGINE}",
    "plain": "",  # the tests' reference: it must not import minidl
    "nn": f"memory ops {ENGINE}",
    "optim": f"precision/bf16 cuda {ENGINE}",
    "precision": f"optim nn cuda ops {ENGINE}",  # amp knows batch norm and master weights
    "memory/predict": f"memory/workspace precision nn {ENGINE}",  # models with amp
    "memory/workspace": f"ops cuda {ENGINE}",  # has formulas for ops
    # staged messages wait in pinned memory; window.py compiles its code in C++
    "comm": "cuda/host_memory cuda/host own_files text timeline backend nest",
    "parallel": f"optim nn ops memory comm cuda text timeline {ENGINE}",
    "infer": f"nn creation ops precision/bf16 cuda {ENGINE}",
    "data": "tensor cuda/host_memory random backend",
    "data/pipe": "comm random backend",  # all ranks must end at the same element
    "data/stream": "comm random backend",  # like `data/pipe`
    "snapshot": "parallel optim comm random backend",
    "snapshot/hugging_face": "nn",  # it makes models
    "snapshot/one_file": "precision/bf16 tensor backend",  # it makes tensors
    "elastic": "snapshot parallel comm text timeline random backend",
    "profile": f"memory cuda comm text timeline {ENGINE}",  # instrument.py wraps methods by name
    "accelerator": "cuda backend",
    "backends": "cuda",
    "course": ANYTHING,
    "cli": ANYTHING,
    "": ANYTHING,  # minidl/__init__.py: the public names
}
# Heavy or optional packages, and the only places that may import them.
ONLY_IN = {
    "mpi4py": ["comm/transport/mpi.py", "comm/transport/world.py"],
    "greenlet": ["comm/transport/scheduler.py"],
    "cupy": ["backend.py", "cuda/gpu.py"],
    "cupyx": ["ops/normal.py"],  # ndtr, which NumPy lacks
    "safetensors": ["snapshot/snapshot.py"],
    "ml_dtypes": ["precision/bf16.py"],
    "sklearn": ["data/datasets.py"],
    "torch": [],
}


parse = functools.cache(ast.parse)  # several tests read all of minidl/


def imports(source, package):
    """Yields (line, dotted name) for every imported name in a module of `package`."""
    yield from imported(parse(source), package)


def imported(tree, package):
    """Yields the same for a syntax tree. Leaves out imports under `if TYPE_CHECKING:`, which are
    only for editors, and under `if __name__ == "__main__":`, which no import runs."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and re.search(
                r"TYPE_CHECKING$|^__name__ == '__main__'$", ast.unparse(node.test)):
            continue
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):  # blocks of statements
            nodes += getattr(node, block, ())
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def part_of(dotted):
    """Returns the part of minidl to which a dotted name belongs: a key of MAY_IMPORT if there is
    one, otherwise a folder or file. Returns "" for the package itself."""
    _, name, file = (dotted.split(".") + ["", ""])[:3]
    if f"{name}/{file}" in MAY_IMPORT:
        return f"{name}/{file}"
    return name if name in MAY_IMPORT or (ROOT / "minidl" / name).exists() else ""


def violations(path, source):
    """Returns a list of sentences about forbidden imports of a file. path: relative to minidl/."""
    module = ["minidl", *Path(path).with_suffix("").parts]
    package = ".".join(module[:-1])
    part = "" if path in ("__init__.py", "__main__.py") else part_of(".".join(module)) or module[1]
    if part not in MAY_IMPORT:
        return [f"minidl/{path}: {part!r} has no line in MAY_IMPORT of tests/test_imports.py: what "
                "may it import?"]
    allowed, found = MAY_IMPORT[part], []
    for line, dotted in imports(source, package):
        top = dotted.split(".")[0]
        if path not in ONLY_IN.get(top, [path]):
            found.append(f"minidl/{path}:{line}: {top} may be imported in {ONLY_IN[top]} only "
                         "(ONLY_IN of tests/test_imports.py): ask one of these")
        if top == "minidl" and allowed is not ANYTHING:
            target = part_of(dotted)
            folder = target.split("/")[0]
            ours = folder == part.split("/")[0] and part in (folder, target)
            ours = ours or part.startswith(f"{target}/")  # a file may import its own folder
            if not ours and not {target, folder} & set(allowed.split()):
                found.append(f"minidl/{path}:{line}: {part} may not import {target or 'minidl'} "
                             f"(MAY_IMPORT of tests/test_imports.py), but: {allowed or 'nothing'}")
    return found


def test_every_import_follows_the_rule():
    found = []
    for file in sorted((ROOT / "minidl").rglob("*.py")):
        found += violations(file.relative_to(ROOT / "minidl").as_posix(), file.read_text())
    assert not found, "\n".join(found)
    parts = {file.relative_to(ROOT / "minidl").with_suffix("").as_posix()
             for file in (ROOT / "minidl").rglob("*")} | {""}
    assert MAY_IMPORT.keys() <= parts, ("MAY_IMPORT of tests/test_imports.py has lines for parts "
                                        f"that do not exist: {MAY_IMPORT.keys() - parts}")


def test_the_rule_itself_has_no_circle():
    below = {part: allowed.split() for part, allowed in MAY_IMPORT.items()
             if allowed is not ANYTHING}
    order = list(graphlib.TopologicalSorter(below).static_order())
    assert order.index("comm") < order.index("parallel") < order.index("elastic")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(below | {"comm": ["parallel"]}).prepare()


@pytest.mark.parametrize(
    "path, source, message",
    [
        ("comm/ring.py", "from minidl.tensor import Tensor", "comm may not import tensor"),
        ("comm/ring.py", "from ..tensor import Tensor", "comm may not import tensor"),
        ("comm/ring.py", "from .. import tensor", "comm may not import tensor"),
        ("tensor.py", "from minidl.function import Function", "tensor may not import function"),
        ("ops/__init__.py", "from ..nn import functional", "ops may not import nn"),
        ("ops/softmax.py", "def f():\n    import minidl.comm.ring", "ops may not import comm"),
        ("nn/layers.py", "import minidl", "nn may not import minidl"),
        ("nn/layers.py", "from minidl import Tensor", "nn may not import minidl"),
        ("nn/layers.py", "if True:\n    from minidl import optim", "nn may not import optim"),
        ("comm/ring.py", "from mpi4py import MPI", "mpi4py may be imported in"),
        ("nn/layers.py", "import torch.nn", "torch may be imported in"),
        ("function.py", "from minidl.precision import amp", "function may not import precision"),
        ("memory/ledger.py", "from minidl import nn", "memory may not import nn"),
        ("novelty.py", "", "has no line in MAY_IMPORT"),
    ],
)
def test_a_forbidden_import_is_found(path, source, message):
    (sentence,) = violations(path, source)
    assert message in sentence


@pytest.mark.parametrize(
    "path, source",
    [
        ("comm/transport/mpi.py", "from mpi4py import MPI\nfrom .protocol import Transport"),
        ("parallel/data/bucket.py", "from minidl.comm import ring\nfrom .flat import Flat"),
        ("ops/softmax.py", "from ..function import Function\nfrom . import reduce"),
        ("cli/main.py", "from minidl.comm import mpi"),
        ("forward.py", "from minidl.precision import bf16"),
        ("memory/predict.py", "from minidl import nn\nfrom minidl.memory import ledger"),
    ],
)
def test_an_allowed_import_passes(path, source):
    assert violations(path, source) == []


def test_parts_load_on_first_use():
    code = (
        "import sys, minidl\n"
        "assert 'minidl.comm' not in sys.modules\n"
        "print(minidl.nn.MLP, minidl.optim.SGD, minidl.comm.world, minidl.data.DataLoader,\n"
        "      minidl.parallel.DataParallel)\n"
        "minidl.nothing\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "DataParallel" in out.stdout, out.stderr
    assert "module 'minidl' has no attribute 'nothing'" in out.stderr


@pytest.mark.parametrize("module", ["minidl", "minidl.data", "minidl.cli.main"])
def test_import_stays_light(module):
    # The time is only printed (pytest -s), because a busy machine is no error. The goal is 0.25 s.
    code = (
        "import sys, time; start = time.perf_counter()\n"
        f"import {module}\n"
        "print(f'{time.perf_counter() - start:.3f}', *{name.split('.')[0] for name in sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert out.returncode == 0, out.stderr
    time_s, *loaded = out.stdout.split()
    print(f"\nimport {module}: {time_s} s")
    heavy = {"mpi4py", "cupy", "matplotlib", "sklearn", "scipy", "torch", "greenlet", "tqdm"}
    assert "numpy" in loaded
    assert not heavy & set(loaded), (f"`import {module}` imports {heavy & set(loaded)}: move that "
                                     "import into the function that needs it")


def file_of(dotted):
    """Returns the file of `dotted`, a module or a name in a module. Returns None if the file is not
    in minidl."""
    parts = dotted.split(".")
    while parts and parts[0] == "minidl":
        path = ROOT.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.relative_to(ROOT).as_posix()
        parts.pop()


# Files that import each other inside functions, with the reason.
MAY_BE_CIRCLES = [
    # run.py decides where a kernel runs. gpu.py and checker.py need its class Kernel.
    {"minidl/cuda/run.py", "minidl/cuda/gpu.py", "minidl/cuda/checks/checker.py"},
]


def circles(needs):
    """Returns the groups of files that import each other, as a list of sets. needs: {file: the
    files that it imports}."""
    reached = {}
    for file in needs:
        seen, new = set(), {file}
        while new:
            new = set().union(*(needs.get(f, ()) for f in new)) - seen
            seen |= new
        reached[file] = seen
    groups = [frozenset(g for g in reached[f] if f in reached.get(g, ())) for f in needs
              if f in reached[f]]
    return [set(group) for group in dict.fromkeys(groups)]


def test_no_files_import_each_other_in_a_circle_not_even_later():
    needs = {}
    for file in sorted((ROOT / "minidl").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        dotted = imports(file.read_text(), ".".join(Path(path).parts[:-1]))
        needs[path] = {file_of(name) for _, name in dotted} - {None, path}
    assert [c for c in circles(needs) if c not in MAY_BE_CIRCLES] == [], (
        "cut the circle: move what both need into a file of its own")
    needs["minidl/comm/chunks.py"] = {"minidl/comm/ring.py"}
    assert {"minidl/comm/chunks.py", "minidl/comm/ring.py"} in circles(needs)


def needed_first(sources):
    """Returns {file: the files that it imports when it is loaded}. Imports inside functions do not
    count."""
    needs = {}
    for path, source in sources.items():
        top = [node for node in parse(source).body
               if isinstance(node, (ast.Import, ast.ImportFrom))]
        package = ".".join(Path(path).parts[:-1])
        needs[path] = {file_of(dotted) for _, dotted in imported(ast.Module(top, []), package)}
        needs[path] -= {None, path}
    return needs


def test_no_files_import_each_other_in_a_circle():
    files = sorted((ROOT / "minidl").rglob("*.py"))
    sources = {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}
    order = list(graphlib.TopologicalSorter(needed_first(sources)).static_order())
    assert order.index("minidl/backend.py") < order.index("minidl/tensor.py")
    sources["minidl/comm/chunks.py"] = "from minidl.comm import ring"
    with pytest.raises(graphlib.CycleError, match="chunks.py"):
        graphlib.TopologicalSorter(needed_first(sources)).prepare()
