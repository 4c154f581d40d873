"""Runs test bodies under MPI: mpiexec -n 4 python tests/mpi/run_bodies.py FILE...

A body is a function that `@ranks(...)` decorates. All that fit the number of ranks run one after
the other in this one launch. The first that fails is printed and ends all ranks.
"""

import faulthandler
import importlib.util
import itertools
import pathlib
import sys
import traceback
import warnings

ROOT = pathlib.Path(__file__).parents[2]


def bodies_of(path, size):
    """(name, body, arguments) of every test in a file that runs on `size` ranks."""
    inside = path.resolve().is_relative_to(ROOT)
    parts = path.resolve().relative_to(ROOT).with_suffix("").parts if inside else [path.stem]
    name = ".".join(parts)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for test_name, test in vars(module).items():
        if test_name.startswith("test_") and size in getattr(test, "sizes", ()):
            for arguments in _products(getattr(test, "pytestmark", [])):
                yield (
                    f"{path.name}::{test_name}{list(arguments.values()) or ''}",
                    test.body,
                    arguments,
                )


def _products(marks):
    """All combinations of the parametrize marks' values, as keyword arguments."""
    axes = []
    for mark in marks:
        names, values = mark.args[:2] if mark.name == "parametrize" else ("n_ranks", ())
        if names == "n_ranks":  # set by mpiexec
            continue
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        rows = [value if len(names) > 1 else (value,) for value in values]
        axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for combination in itertools.product(*axes):
        yield {name: value for part in combination for name, value in part.items()}


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
