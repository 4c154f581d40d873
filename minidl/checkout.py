"""Where kernels/, tutorials/ and docs/ are: beside the package in a checkout, inside it in a wheel.

    checkout    ~/minidl/minidl/           installed    site-packages/minidl/
                ~/minidl/kernels/                       site-packages/minidl/shipped/kernels/
                ~/minidl/tutorials/                     site-packages/minidl/shipped/tutorials/

In a checkout students edit kernels/, so nothing is copied there. setup.py copies the folders into a
wheel. Whoever wants to change an installed kernel clones the repository: cli/clone.py finds it.

Test: tests/test_dist.py
Used by: cuda/host/includes.py, text.py, course/exercise.py, cli/doctor.py
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "shipped"
REPOSITORY = "git+https://example.org/minidl"  # a placeholder, as in setup.cfg: tests/release.py
ROOT = SHIPPED if SHIPPED.is_dir() else PACKAGE.parent  # has kernels/, tutorials/, docs/


def is_installed():
    """Whether this package was installed from a wheel, and is no checkout."""
    return ROOT == SHIPPED


def origin():
    """Where this package comes from: "installed in FOLDER", "checkout FOLDER, commit 0123abcd"."""
    if is_installed():
        return f"installed in {PACKAGE}"
    commit = _commit(ROOT / ".git")
    return f"checkout {ROOT}" + (f", commit {commit}" if commit else "")


def _commit(git):
    """The first digits of the commit that is checked out, read without git; "" where there is
    none to be read."""
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:8]
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text()[:8]
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line[:8] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""
