"""Which snapshots a folder holds: their names, their indices, and what may be removed.

    step-00000012.1-of-2.60303ae2.safetensors    rank 1's file, its checksum in the name: a second
                                                 try after a crash cannot overwrite what is in use
    step-00000012.json                           the index. With it a snapshot is there, without it
                                                 its files are what a crash left
    step-00000012.json.tmp                       what a crash left (durable.py)
    lock                                         who is saving just now (lock.py)

Test: tests/snapshot/test_snapshot_crashes.py   Used by: snapshot.py
"""

import re
from pathlib import Path

import numpy as np

from minidl.snapshot import durable

INDEX = re.compile(r"step-(\d{8,})\.json")
FILE = re.compile(r"step-\d{8,}\.\d+-of-\d+\.[0-9a-f]{8}\.safetensors")
KINDS = {"step": int, "tensors": dict, "state": dict, "order": (dict, type(None)), "files": list,
         "generators": list, "groups": (list, type(None)), "others": dict}


def file_name(step, rank, size, sha256):
    return f"step-{step:08d}.{rank}-of-{size}.{sha256[:8]}.safetensors"


def index_path(folder, step):
    return Path(folder) / f"step-{step:08d}.json"


def steps(folder):
    """The steps of which there are snapshots in the folder, ascending."""
    names = (INDEX.fullmatch(path.name) for path in Path(folder).glob("step-*.json"))
    return sorted(int(name[1]) for name in names if name)


def latest(folder):
    """The step of the latest snapshot in the folder; None if there is none."""
    return max(steps(folder), default=None)


def read_index(folder, step=None):
    """The index of a step, None for the latest; ValueError if there is none or it is damaged."""
    there = steps(folder)
    if not there or step not in (None, *there):
        raise ValueError(f"{folder} holds the snapshots {there or '(none)'}, wanted "
                         f"{step or 'one'}. Is it the folder that was saved to?")
    step = there[-1] if step is None else step
    try:
        return _index_of(folder, step)
    except ValueError as error:
        raise ValueError(f"{error}. {instead(folder, step)}") from None


def instead(folder, step):
    """A sentence that names the snapshot to take where that of `step` is damaged: the last one
    before it that is whole, else the first after it."""
    others = sorted(steps(folder), key=lambda other: (other > step, abs(other - step)))
    for other in others:
        if other != step and not damage(folder, other):
            return (f"Step {other} is whole: load(..., step={other}), on a command line "
                    f"--resume {folder}@{other}")
    return "No other snapshot in the folder is whole"


def at_step(text):
    """(folder, step) of what follows --resume: runs@12 is step 12 of runs, runs its latest (None).
    """
    folder, at, step = str(text).rpartition("@")
    if at and step.isdigit() and not Path(text).is_dir():
        return folder, int(step)
    return str(text), None


def _index_of(folder, step):
    path = index_path(folder, step)
    try:
        return _as_saved(durable.unsealed(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def damage(folder, step, rank=0, size=1):
    """A sentence if the index of a snapshot or one of its files, of every size-th from `rank` on,
    is not as it was written, else ""."""
    try:
        files = _index_of(folder, step)["files"]
    except (ValueError, OSError) as error:
        return str(error)
    found = (durable.damage(Path(folder) / file["name"], file["bytes"], file["sha256"])
             for file in files[rank::size])
    return next(filter(None, found), "")


def set_aside(folder, step):
    """Take a damaged snapshot out of the folder; the new name of its index."""
    path = index_path(folder, step)
    aside = path.with_name(f"damaged-{path.name}")
    path.replace(aside)
    durable.sync(path.parent)
    return aside


def _as_saved(body):
    """The index; ValueError if it is not of the form that save() writes. What it names must lie in
    its own folder: whoever sends you a snapshot does not choose which of your files are read."""
    for key, kind in KINDS.items():
        if not isinstance(body, dict) or key not in body or not isinstance(body[key], kind):
            raise ValueError(f"wanted {key!r} as save() writes it, got {str(body)[:200]}")
    if not len(body["files"]) == len(body["generators"]) > 0:
        raise ValueError("wanted a file and the generators of every rank; got "
                         f"{len(body['files'])} and {len(body['generators'])}")
    body.setdefault("draws", list(range(len(body["files"]))))  # of models that are not divided
    if not isinstance(body["draws"], list) or len(body["draws"]) != len(body["files"]):
        raise ValueError(f"wanted a number of every rank as draws, got {str(body['draws'])[:200]}")
    for what, is_good in FORMS.items():
        for entry in (body[what].items() if isinstance(body[what], dict) else body[what] or ()):
            try:
                good = is_good(entry, body)
            except (TypeError, KeyError, ValueError, AttributeError):
                good = False
            if not good:
                raise ValueError(f"among its {what}: no entry as save() writes it: "
                                 f"{str(entry)[:200]}")
    return body


def _is_tensor(entry, body):
    _, about = entry
    return np.dtype(about["dtype"]).kind in "biufV" and all(n >= 0 for n in about["shape"])


def _is_state(entry, body):
    name, state = entry
    return (isinstance(state["numbers"], dict)
            and all(kind == "master" or f"{kind}/{name}" in body["tensors"]
                    for kind in state["arrays"]))


def _is_file(file, body):
    return (FILE.fullmatch(file["name"]) and file["bytes"] >= 0 and len(file["sha256"]) == 64
            and all(key in body["tensors"] and 0 <= first < end
                    for key, first, end in file["holds"]))


def _is_generators(generators, body):
    return generators.keys() == body["generators"][0].keys() and all(
        [type(n) for n in state] == [int] * 3 and min(state) >= 0 and max(state) < 1 << 64
        for state in generators.values())


FORMS = {"tensors": _is_tensor, "state": _is_state, "files": _is_file,
         "draws": lambda n, body: type(n) is int and 0 <= n < len(body["files"]),
         "generators": _is_generators, "groups": lambda group, body: isinstance(group, dict)}


def prune(folder, keep):
    """Remove all but the last `keep` snapshots, and what belongs to none. An index goes first: a
    crash in between must leave no index without its files."""
    old = steps(folder)[:-keep]
    for step in old:
        durable.remove(index_path(folder, step))
    if old:
        durable.sync(folder)
    kept = set()
    for step in steps(folder):
        try:
            kept |= {file["name"] for file in _index_of(folder, step)["files"]}
        except ValueError:
            return  # a damaged index: which files are its own is unknown, so all stay
    for path in folder.iterdir():
        ours = path.name.startswith("step-") and path.suffix in (".safetensors", ".tmp")
        if ours and path.name not in kept:
            durable.remove(path)
