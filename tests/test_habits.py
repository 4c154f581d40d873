"""Tests that other people can continue the project: what the files say is true, and what they call
exists."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import release

ROOT = Path(__file__).resolve().parents[1]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_and_hooks_run_targets_of_the_makefile():
    called = [target for path in [*WORKFLOWS, ROOT / ".pre-commit-config.yaml"]
              for target in re.findall(r"(?:run|entry): make ([a-z-]+)", path.read_text())]
    assert {"lint", "test", "check-dist", "docs"} <= set(called) <= TARGETS


def test_workflows_run_nothing_but_targets():
    for path in WORKFLOWS:
        steps = re.findall(r"run: (.+)", path.read_text())
        assert steps and all(re.fullmatch(r"make [a-z-]+", step) for step in steps)


def test_the_workflow_tests_each_python_that_is_promised():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    least = config["options"]["python_requires"].removeprefix(">=")
    (text,) = [path.read_text() for path in WORKFLOWS if path.name == "test.yml"]
    (versions,) = re.findall(r"python: \[(.+)\]", text)
    tested = re.findall(r'"3\.(\d+)"', versions)
    assert tested[0] == least.split(".")[1] and "ubuntu" in text and "macos" in text
    assert [int(v) for v in tested] == list(range(int(tested[0]), int(tested[-1]) + 1))


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md",
                                  "CHANGELOG.md"])
def test_links_lead_to_files_and_commands_to_targets(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).is_file(), link
    for words in re.findall(r"`make ([a-z -]+)`", text):
        assert set(words.split()) <= TARGETS


def test_the_version_stands_in_one_place():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["version"] == "attr: minidl.__version__"
    assert f"version: {release.version()}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_release_wants_real_addresses_a_changelog_and_a_clean_checkout(tmp_path):
    for name in ("setup.cfg", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    (tmp_path / "minidl").mkdir()
    for name in ("__init__.py", "checkout.py"):
        shutil.copy(ROOT / "minidl" / name, tmp_path / "minidl")
    for words in (["init", "-q"], ["add", "."],
                  ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert [s.split(":")[0] for s in release.missing(tmp_path)] == [
        "setup.cfg", "minidl/checkout.py", "CHANGELOG.md"]
    for name, old, new in (
            ("setup.cfg", "example.org", "minidl.dev"),
            ("minidl/checkout.py", "example.org", "minidl.dev"),
            ("CHANGELOG.md", "[Unreleased]", f"[{release.version()}] - 2026-12-01")):
        path = tmp_path / name
        path.write_text(path.read_text().replace(old, new))
    (left,) = release.missing(tmp_path)
    assert left.startswith("git status")
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "it"],
                   cwd=tmp_path, check=True)
    assert release.missing(tmp_path) == []
