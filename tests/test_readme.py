"""The map in the README is complete, and no file sends its reader to one that does not exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAP = README.split("## The map")[1].split("\n## ")[0]

# These name their files in their own __init__, one README row for the folder.
FOLDERS = {"cuda", "fused"}
PARTS = sorted(f.name for f in (ROOT / "minidl").iterdir() if f.name != "__pycache__")


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    made_later = {"docs/train_gpt.png"}  # the picture of `make demo`
    assert len(links) > 80
    assert [link for link in links if link not in made_later and not (ROOT / link).exists()] == []


def test_every_file_of_the_package_has_its_row():
    files = [f.relative_to(ROOT).as_posix() for f in (ROOT / "minidl").rglob("*.py")]
    files = [f for f in files if not f.endswith("__init__.py") and f.split("/")[1] not in FOLDERS]
    assert len(files) > 50
    assert [f for f in sorted(files) if f"]({f})" not in MAP] == []


def test_the_list_in_comm_names_every_file_once():
    folder = ROOT / "minidl" / "comm"
    listed = re.findall(r"^    (\w+\.py) ", (folder / "__init__.py").read_text(), re.M)
    assert sorted(["__init__.py", *listed]) == sorted(f.name for f in folder.glob("*.py"))


def test_a_row_has_a_cell_for_every_column():
    rows = [line for line in MAP.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}


def test_every_command_of_the_readme_names_a_script_that_exists():
    scripts = re.findall(r"(?:minidl run -n \d|python) ([\w/]+\.py)", README)
    assert "tutorials/06_ring.py" in scripts
    assert [s for s in scripts if s != "script.py" and not (ROOT / s).exists()] == []
    targets = re.findall(r"^make ([\w-]+)", README, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert targets and all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


@pytest.mark.parametrize("part", PARTS)
def test_tests_tutorials_and_files_that_a_docstring_names_exist(part):
    path = ROOT / "minidl" / part
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    missing = []
    for file in files:
        for name in re.findall(r"\b(?:tests|tutorials|minidl)/[\w/]+\.py\b", file.read_text()):
            if not (ROOT / name).exists():
                missing.append(f"{file.relative_to(ROOT)}: {name}")
    assert missing == []
