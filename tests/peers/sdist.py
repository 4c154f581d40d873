"""Source packages from PyPI: a wheel has no tests in it, its sdist may.

`pip download` of an sdist asks the package's build backend for its metadata, and the backend of
safetensors wants Rust for that. Here nothing is built: no_build/maturin.py answers in its place.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "peers"


def unpacked(name, version):
    """Returns the folder of the package's sources; downloads and unpacks them once."""
    folder = FOLDER / f"{name}-{version}"
    if not folder.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-build-isolation", "--no-binary", name, "--dest", FOLDER,
             f"{name}=={version}"],
            check=True, env={**os.environ, "PYTHONPATH": str(HERE / "no_build")})
        with tarfile.open(FOLDER / f"{name}-{version}.tar.gz") as file:
            file.extractall(FOLDER, filter="data")
    return folder
