"""Finds the folders kernels/, tutorials/ and docs/. A checkout has them next to the package, a
wheel has them inside the package.

    checkout    ~/minidl/minidl/           installed    site-packages/minidl/
                ~/minidl/kernels/                       site-packages/minidl/shipped/kernels/
                ~/minidl/tutorials/                     site-packages/minidl/shipped/tutorials/

Students edit kernels/ in a checkout, so a checkout has no second copy. setup.py copies the folders
into a wheel. To change a kernel, clone the repository. If a command gets a file of the clone as its
argument, the command runs the code of this clone (cli/clone.py).

Test: tests/test_dist.py
Used by: cuda/host/includes.py, text.py, course/exercise.py, cli/doctor.py
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "shipped"
REPOSITORY = "git+https://example.org/minidl"  # a placeholder: a release needs a real address
ROOT = SHIPPED if SHIPPED.is_dir() else PACKAGE.parent  # has kernels/, tutorials/, docs/


def is_installed():
    """Returns True if this package was installed from a wheel, False in a checkout."""
    return ROOT == SHIPPED


def origin():
    """Returns where this package comes from, such as "installed in FOLDER" or "checkout FOLDER,
    commit 0123abcd"."""
    if is_installed():
        return f"installed in {PACKAGE}"
    commit = _commit(ROOT / ".git")
    return f"checkout {ROOT}" + (f", commit {commit}" if commit else "")


def _commit(git):
    """Returns the first 8 digits of the commit that is checked out, or "" if they cannot be read.
    Reads the files of the folder `git`, and does not run git."""
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
