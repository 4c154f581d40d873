"""Runs test bodies under MPI: mpiexec -n 4 python tests/mpi/run_bodies.py FILE...

A body is a function that `@ranks(...)` decorates. All that fit the number of ranks run one after
the other in this one launch. The first that fails is printed and ends all ranks.

Each body runs on one of the numbers of ranks that it is for: those of tests/comm with each value of
each argument at least once; of the others, which add no calls of MPI, one of four, with one choice
of arguments. The simulator runs all. So does this, on all numbers of ranks and with all
products of arguments, with MINIDL_EVERY_SIZE=1 in the environment (`make test-mpi`).
"""

import faulthandler
import importlib.util
import itertools
import os
import pathlib
import sys
import traceback
import warnings
import zlib

ROOT = pathlib.Path(__file__).parents[2]
SIZES = 2, 3, 4  # the numbers of ranks that test_under_mpi.py launches


def bodies_of(path, size):
    """(name, body, arguments) of every test in a file that runs on `size` ranks."""
    inside = path.resolve().is_relative_to(ROOT)
    parts = path.resolve().relative_to(ROOT).with_suffix("").parts if inside else [path.stem]
    name = ".".join(parts)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    one_each = inside and parts[:2] != ("tests", "comm")
    for test_name, test in vars(module).items():
        if test_name.startswith("test_") and size in getattr(test, "sizes", ()):
            for arguments in _arguments(test, size, one_each):
                name = f"{path.name}::{test_name}{list(arguments.values()) or ''}"
                yield name, test.body, arguments


def _arguments(test, size, one_each):
    """The keyword arguments with which a body runs on `size` ranks."""
    axes = _axes(getattr(test, "pytestmark", []))
    if os.environ.get("MINIDL_EVERY_SIZE") == "1":
        chosen = itertools.product(*axes)
    else:
        sizes = [n for n in SIZES if n in test.sizes]
        first = zlib.crc32(test.__name__.encode())  # the same in every process
        # the i-th choice has the i-th value of every argument, round and round
        numbers = range(max(map(len, axes), default=1))
        if one_each:
            numbers = [first] if first // 16 % 4 == 1 else []
        chosen = [[axis[i % len(axis)] for axis in axes] for i in numbers
                  if sizes[(first + (0 if one_each else i)) % len(sizes)] == size]
    for rows in chosen:
        yield {name: value for row in rows for name, value in row.items()}


def _axes(marks):
    """For each parametrize mark the keyword arguments of each of its values."""
    axes = []
    for mark in marks:
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            rows = [value.values if hasattr(value, "marks") else  # pytest.param(...)
                    value if len(names) > 1 else (value,) for value in values]
            axes.append([dict(zip(names, row, strict=True)) for row in rows])
    return axes


def main(paths):
    from minidl.comm import tree, world

    warnings.simplefilter("error")  # as pytest is set to
    faulthandler.enable()
    t = world()
    count = 0
    for path in paths:
        for name, body, arguments in bodies_of(pathlib.Path(path), t.size):
            if t.rank == 0:
                print(f"running {name}", flush=True)  # the last line of a run that hangs
            try:
                body(t, **arguments)
                tree.barrier(t)
            except BaseException:
                text = traceback.format_exc()
                sys.stderr.write(f"FAILED on rank {t.rank} of {t.size}: {name}\n{text}")
                sys.stderr.flush()
                raise
            count += 1
    if t.rank == 0:
        print(f"{count} bodies passed on {t.size} ranks", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
