"""Finds, checks and removes the snapshots in a folder.

    step-00000012.1-of-2.60303ae2.safetensors    rank 1's file. Its checksum is in the name, so a
                                                 second try after a crash cannot overwrite a file
                                                 in use
    step-00000012.json                           the index: it makes the snapshot valid. Files
                                                 without an index are left over from a crash
    step-00000012.json.tmp                       left over from a crash (durable.py)
    lock                                         the process that is saving now (lock.py)

Test: tests/snapshot/test_snapshot_crashes.py   Used by: snapshot.py
"""

import math
import re
from pathlib import Path

from minidl.snapshot import durable, header

INDEX = re.compile(r"step-(\d{8,})\.json")
FILE = re.compile(r"step-\d{8,}\.\d+-of-\d+\.[0-9a-f]{8}\.safetensors")
KINDS = {"step": int, "tensors": dict, "state": dict, "order": (dict, type(None)), "files": list,
         "generators": list, "groups": (list, type(None)), "others": dict,
         "kept": (dict, type(None))}
MOST_DIMENSIONS = 64  # NumPy's limit


def file_name(step, rank, size, sha256):
    return f"step-{step:08d}.{rank}-of-{size}.{sha256[:8]}.safetensors"


def index_path(folder, step):
    return Path(folder) / f"step-{step:08d}.json"


def steps(folder):
    """Returns the steps of all snapshots in the folder, ascending."""
    names = (INDEX.fullmatch(path.name) for path in Path(folder).glob("step-*.json"))
    return sorted(int(name[1]) for name in names if name)


def latest(folder):
    """Returns the step of the latest snapshot in the folder, or None if there is none."""
    return max(steps(folder), default=None)


def read_index(folder, step=None):
    """Returns the index of a snapshot. If step is None, this is the latest snapshot. Raises
    ValueError if there is no such snapshot, or if its index is damaged."""
    there = steps(folder)
    if not there or step not in (None, *there):
        raise ValueError(f"{folder}: wanted {'a snapshot' if step is None else f'step {step}'}; "
                         f"the folder has {f'only the steps {there}' if there else 'no snapshot'}. "
                         "Is this the folder to which the run saved?")
    step = there[-1] if step is None else step
    try:
        return _index_of(folder, step)
    except ValueError as error:
        raise ValueError(f"{error}. {instead(folder, step)}") from None


def instead(folder, step):
    """Returns a sentence that names an undamaged snapshot, to be used in place of the damaged
    snapshot of `step`. This is the last undamaged snapshot before `step`. If there is none, it is
    the first undamaged snapshot after `step`."""
    others = sorted(steps(folder), key=lambda other: (other > step, abs(other - step)))
    for other in others:
        if other != step and not damage(folder, other):
            return (f"Step {other} is not damaged. Load it with load(..., step={other}), or on a "
                    f"command line with --resume {folder}@{other}")
    return "The folder has no other undamaged snapshot"


def at_step(text):
    """Returns (folder, step) for the text after --resume. "runs@12" gives ("runs", 12). "runs"
    gives ("runs", None), which stands for the latest step in the folder."""
    folder, at, step = str(text).rpartition("@")
    if at and step.isdigit() and not Path(text).is_dir():
        return folder, int(step)
    return str(text), None


def _index_of(folder, step):
    """Returns the checked index of a step. Raises ValueError if it is missing or damaged."""
    path = index_path(folder, step)
    try:
        body = _as_saved(durable.unsealed(path.read_bytes()))
        if body["step"] != step or isinstance(body["step"], bool):
            raise ValueError(f"wanted step {step}, as in the file's name; got {body['step']}")
        return body
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def damage(folder, step, rank=0, size=1):
    """Checks the index of a snapshot, and the files with the numbers rank, rank + size,
    rank + 2 size, and so on. If one of them is missing, or has changed since it was written,
    returns a sentence about it. Otherwise returns ""."""
    try:
        files = _index_of(folder, step)["files"]
    except (ValueError, OSError) as error:
        return str(error)
    found = (durable.damage(Path(folder) / file["name"], file["bytes"], file["sha256"])
             for file in files[rank::size])
    return next(filter(None, found), "")


def set_aside(folder, step):
    """Renames the index of a damaged snapshot, so that it is no longer a snapshot of the folder.
    Returns the new path of the index."""
    path = index_path(folder, step)
    aside = path.with_name(f"damaged-{path.name}")
    path.replace(aside)
    durable.sync(path.parent)
    return aside


def _as_saved(body):
    """Returns the index. Raises ValueError if the index does not have the form that save() writes.
    All files that the index names must be in the folder of the index. So a snapshot from another
    person cannot make load() read your other files."""
    if isinstance(body, dict):
        # Snapshots of older versions have no key "kept", because they have no residuals of
        # gradient compression.
        body.setdefault("kept", None)
    for key, kind in KINDS.items():
        if not isinstance(body, dict) or key not in body or not isinstance(body[key], kind):
            raise ValueError(f"wanted an index with an entry {key!r} in the form that save() "
                             f"writes; got {str(body)[:200]}")
    if not len(body["files"]) == len(body["generators"]) > 0:
        raise ValueError("wanted one file and one entry of generators for each rank; got "
                         f"{len(body['files'])} files and {len(body['generators'])} entries of "
                         "generators")
    for key, parts in WITHIN.items():
        if body[key] is not None and body[key].keys() != parts:
            raise ValueError(f"wanted a dict with the keys {sorted(parts)} as {key!r}; got "
                             f"{str(body[key])[:200]}")
    # If the index has no key "draws", each rank draws its own random numbers.
    body.setdefault("draws", list(range(len(body["files"]))))
    if not isinstance(body["draws"], list) or len(body["draws"]) != len(body["files"]):
        raise ValueError("wanted a list with one number for each rank as 'draws'; got "
                         f"{str(body['draws'])[:200]}")
    for what, is_good in FORMS.items():
        for entry in (body[what].items() if isinstance(body[what], dict) else body[what] or ()):
            try:
                good = is_good(entry, body)
            except (TypeError, LookupError, ValueError, AttributeError):
                good = False
            if not good:
                raise ValueError(f"wanted every entry of {what!r} in the form that save() "
                                 f"writes; got {str(entry)[:200]}")
    _check_states(body)
    return body


def _check_states(body):
    """Raises ValueError if the index has an array of the optimizer, but the parameter's state does
    not list this array. Also raises ValueError if two states list the same arrays, but have numbers
    with other names."""
    numbers = {}
    for name, state in body["state"].items():
        wanted = numbers.setdefault(tuple(state["arrays"]), state["numbers"].keys())
        if state["numbers"].keys() != wanted:
            raise ValueError(f"wanted the numbers {sorted(wanted)} in the state of {name}, as in "
                             f"other states with the same arrays; got {sorted(state['numbers'])}")
    for key in body["tensors"]:
        kind, _, name = key.partition("/")
        if kind not in ("param", "buffer", "rows") and not kind.startswith("kept ") and (
                kind not in body["state"].get(name, {"arrays": ()})["arrays"]):
            raise ValueError(f"the index has a tensor {key!r}, so the state of {name!r} must list "
                             f"the array {kind!r}; got the arrays "
                             f"{body['state'].get(name, {'arrays': []})['arrays']}")


def _is_whole(*numbers):
    return all(type(n) is int and n >= 0 for n in numbers)  # True is an int, too


def _is_tensor(entry, body):
    _, about = entry
    return (about["dtype"] in header.CODES and isinstance(about["shape"], list)
            and len(about["shape"]) <= MOST_DIMENSIONS and _is_whole(*about["shape"]))


def _is_state(entry, body):
    name, state = entry
    arrays = state["arrays"]
    return (all(isinstance(n, (int, float)) for n in state["numbers"].values())
            and isinstance(arrays, list) and len(set(arrays)) == len(arrays)
            and all(kind == "master" or kind not in ("param", "buffer")
                    and body["tensors"][f"{kind}/{name}"]["shape"]
                    == body["tensors"][f"param/{name}"]["shape"] for kind in arrays))


def _is_file(file, body):
    size_of = {key: math.prod(about["shape"]) for key, about in body["tensors"].items()}
    return (FILE.fullmatch(file["name"]) and _is_whole(file["bytes"])
            and isinstance(file["sha256"], str) and isinstance(file["holds"], list)
            and all(_is_whole(first, end) and first < end <= size_of[key]
                    for key, first, end in file["holds"]))


def _is_generators(generators, body):
    return generators.keys() == body["generators"][0].keys() and all(
        [type(n) for n in state] == [int] * 3 and min(state) >= 0 and max(state) < 1 << 64
        for state in generators.values())


def _is_order(entry, body):
    key, value = entry
    return isinstance(value, bool) if key == "rebuilt" else key == "names" and all(
        isinstance(name, str) for name in value)


def _is_kept(entry, body):
    key, value = entry
    return {"method": isinstance(value, str), "steps": _is_whole(value),
            "n_ranks": _is_whole(value) and value <= len(body["files"]),
            "kinds": isinstance(value, list) and all(isinstance(kind, str) for kind in value)}[key]


FORMS = {"tensors": _is_tensor, "state": _is_state, "files": _is_file,
         "draws": lambda n, body: type(n) is int and 0 <= n < len(body["files"]),
         "generators": _is_generators, "groups": lambda group, body: isinstance(group, dict),
         "others": lambda entry, body: isinstance(entry[1], dict),
         "order": _is_order, "kept": _is_kept}
WITHIN = {"order": {"rebuilt", "names"}, "kept": {"method", "kinds", "n_ranks", "steps"}}


def prune(folder, keep):
    """Removes all but the last `keep` snapshots, and all files that belong to no snapshot. An index
    is removed before its files, because a crash must not leave an index without its files."""
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
            return  # the index is damaged, so its files are unknown: keep all files
    for path in folder.iterdir():
        ours = path.name.startswith("step-") and path.suffix in (".safetensors", ".tmp")
        if ours and path.name not in kept:
            durable.remove(path)
