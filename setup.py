"""Copies kernels/, tutorials/ and the translations into a wheel: see minidl/checkout.py. All else
is in setup.cfg."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"kernels": ["**/*"], "tutorials": ["*.py", "graders/*.py"], "docs": ["zh/**/*"]}


class WithShipped(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # then the folders are where they are
            return
        to = Path(self.build_lib, "minidl", "shipped")
        shutil.rmtree(to, ignore_errors=True)
        for folder, patterns in SHIPPED.items():
            for file in sorted(f for pattern in patterns for f in Path(folder).glob(pattern)):
                if file.is_file() and "__pycache__" not in file.parts:
                    (to / file.parent).mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, to / file)


setup(cmdclass={"build_py": WithShipped})
