"""`make release`: checks what must be true before a version is published. Prints what is missing.

Test: tests/test_habits.py
"""

import configparser
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version(root=ROOT):
    text = (root / "minidl" / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


def missing(root=ROOT):
    """Returns sentences: what is left to do before a release."""
    found, number = [], version(root)
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg")
    places = [line for line in config["metadata"].get("project_urls", "").splitlines() if line]
    if not places or any("example.org" in line for line in places):
        found.append("setup.cfg: project_urls has placeholders: write the real addresses")
    if "example.org" in (root / "minidl" / "checkout.py").read_text():
        found.append("minidl/checkout.py: REPOSITORY is a placeholder: write the real address")
    if not re.search(rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$",
                     (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f"CHANGELOG.md: no section '## [{number}] - YYYY-MM-DD'")
    if f"version: {number}\n" not in (root / "CITATION.cff").read_text():
        found.append(f"CITATION.cff: its version is not {number}")
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True,
                             text=True)
    if changed.returncode or changed.stdout:
        found.append("git status: the checkout has changes, or is none")
    return found


if __name__ == "__main__":
    sentences = missing()
    print("\n".join(sentences) or f"ready: git tag v{version()}")
    sys.exit(bool(sentences))
