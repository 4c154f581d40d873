"""Which snapshots a folder holds: their names, their indices, and what may be removed.

    step-00000012.1-of-2.60303ae2.safetensors    rank 1's file, its checksum in the name: a second
                                                 try after a crash cannot overwrite what is in use
    step-00000012.json                           the index. With it a snapshot is there, without it
                                                 its files are what a crash left
    step-00000012.json.tmp                       what a crash left (durable.py)

Test: tests/snapshot/test_snapshot_crashes.py   Used by: snapshot.py
"""

from pathlib import Path

from minidl.snapshot import durable


def file_name(step, rank, size, sha256):
    return f"step-{step:08d}.{rank}-of-{size}.{sha256[:8]}.safetensors"


def index_path(folder, step):
    return Path(folder) / f"step-{step:08d}.json"


def steps(folder):
    """The steps of which there are snapshots in the folder, ascending."""
    return sorted(int(path.stem[5:]) for path in Path(folder).glob("step-*.json"))


def latest(folder):
    """The step of the latest snapshot in the folder; None if there is none."""
    return max(steps(folder), default=None)


def read_index(folder, step=None):
    """The index of a step, None for the latest; ValueError if there is none or it is damaged."""
    there = steps(folder)
    if not there or step not in (None, *there):
        raise ValueError(f"{folder} holds the snapshots {there}, wanted {step or 'one'}. Is "
                         "it the folder that was saved to?")
    path = index_path(folder, there[-1] if step is None else step)
    try:
        return durable.unsealed(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}. Others in the folder: load(..., step=)") from None


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
            kept |= {file["name"] for file in read_index(folder, step)["files"]}
        except ValueError:
            return  # a damaged index: which files are its own is unknown, so all stay
    for path in folder.iterdir():
        ours = path.name.startswith("step-") and path.suffix in (".safetensors", ".tmp")
        if ours and path.name not in kept:
            durable.remove(path)
