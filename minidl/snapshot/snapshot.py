"""Saves and loads snapshots. A resumed run gets the same bits, on any number of ranks.

    runs/step-00000012.0-of-2.9f86d081.safetensors    rank 0's file: regions of named tensors
    runs/step-00000012.1-of-2.60303ae2.safetensors    rank 1's file
    runs/step-00000012.json                           the index: the contents of the files, their
                                                      checksums, options, generators, other states
    snapshot.save("runs", step, model=model, optimizer=optimizer, scaler=scaler, ...)
    step = snapshot.load("runs", model=model, optimizer=optimizer, scaler=scaler, ...)

A crash at any moment does not damage the previous snapshot. The reason is the order: each file is
on the disk before another file names it (durable.py). First every rank writes its file. Then rank 0
writes the index, and the rename of the index makes the snapshot valid. Last, rank 0 removes older
snapshots and files left over from crashes.

The model may be plain, DataParallel, Compressed or a ZeRO stage. Each of these models can load a
snapshot of any other of these models, also on another number of ranks. A rank finds its regions in
the files by overlap (regions.py). The sum of the compression's residuals does not change
(residuals.py). The model itself may be divided over a grid of ranks, and be loaded on another grid
or undivided (divided.py). Then `t` must be the transport of all ranks.

Buffers, the optimizer's options and the states of other objects are saved from rank 0. Each rank
saves its own random generators. Gradients are not saved, so save after the optimizer's step. All
ranks must see the same folder, and must call save() or load() together. safetensors and JSON hold
only data. Loading such files runs no code, unlike unpickling.
Test: tests/snapshot/test_snapshot.py, test_snapshot_crashes.py
"""

import contextlib
import copy
import json
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minidl import backend
from minidl.comm import objects
from minidl.parallel import DataParallel, Zero1
from minidl.snapshot import divided, durable, fit, header, regions, residuals, rows
from minidl.snapshot.folder import (
    at_step, file_name, index_path, instead, latest, prune, read_index, steps,
)
from minidl.snapshot.lock import only_writer

__all__ = ["SnapshotError", "at_step", "latest", "load", "save", "steps"]


class SnapshotError(RuntimeError):
    """A snapshot is missing or damaged, does not fit the model, or cannot be written."""


def save(folder, step, t=None, *, model, optimizer=None, keep=2, **others):
    """Writes a snapshot of step `step`. When save() returns, the snapshot is on the disk.

    t       the transport of all ranks that call save(). The default is the model's transport. If
            the model has no transport, a single rank saves
    keep    the number of snapshots that are kept in the folder, including the new one
    others  scaler=, scheduler=, sampler=, ...: lists, or objects with state_dict() and
            load_state_dict(). A state is made of numbers, text, lists and dicts. The states are
            saved from rank 0. Only rows() is saved from each rank (rows.py)

    Raises SnapshotError on all ranks if the state cannot be saved or a disk is full."""
    t, rank, size, others = check(t, model, keep, others)
    folder = Path(folder)
    with writer(folder, rank) as problem:
        agree(t, problem or refusal(folder, step, model, optimizer, others, rank))
        write(folder, step, t, take(t, rank, size, model, optimizer, others), keep)


def check(t, model, keep, others):
    """Returns (t, rank, size, others) for a save. Raises the errors that a rank can find without
    the other ranks."""
    if not hasattr(model, "state_dict"):
        raise TypeError(f"wanted a module as model=; got {type(model).__name__}")
    t, rank, size = _ranks(t, model)
    if keep < 1:
        raise ValueError(f"rank {rank}: wanted keep >= 1, because the new snapshot is kept; got "
                         f"keep={keep}")
    _safetensors()  # load() needs this library. If it is missing, save() must already raise
    return t, rank, size, _with_state(rank, others)


def writer(folder, rank):
    """`with writer(folder, rank) as problem:` locks the folder on rank 0. `problem` is "", or a
    sentence that names the process that holds the lock."""
    return only_writer(folder) if rank == 0 else contextlib.nullcontext("")


def refusal(folder, step, model, optimizer, others, rank):
    """Returns a sentence that tells why this state cannot be saved in the folder as step `step`.
    Returns "" if it can be saved. save() calls refusal() before it writes anything. So load() can
    restore all that a file holds."""
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
        return f"wanted a step from 0 on, as an integer; got {step!r:.40}"
    for module in regions.modules(model):
        if isinstance(module, DataParallel) and module.n_samples:
            return (f"gradients of {module.n_samples} samples were computed inside of no_sync() and"
                    " are not sent yet. A snapshot holds no gradients, so save after"
                    " optimizer.step()")
    arrays = [(key, array) for key, array, _ in regions.arrays_of(model, optimizer)]
    arrays += rows.arrays_of(others)
    for key, array in arrays:
        if array.dtype.name not in header.CODES or not array.dtype.isnative:
            return (f"{key} has the dtype {array.dtype}; a snapshot holds arrays of "
                    f"{', '.join(header.CODES)}, in this machine's byte order. Convert the array "
                    "with astype")
    if rank:
        return ""
    states = {key: it.state_dict() for key, it in others.items()}
    if optimizer is not None:
        states["optimizer"] = [_options(optimizer), regions.numbers(model, optimizer)]
    for key, state in states.items():
        if problem := durable.refusal(state):
            return f"{key}: {problem}"
    if (last := latest(folder)) is not None and last > step:
        return (f"wanted to save step {step} into {folder}, which holds the later step {last}. "
                f"If step {last} is from another run, remove its .json file, or save into another "
                "folder")
    return ""


def _options(optimizer):
    """Returns the options of the optimizer's groups, without their parameters."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


class Taken(NamedTuple):
    """This rank's part of a snapshot.

    pieces: a list of regions.Pieces, the contents of the rank's file.
    part: the rank's entry for the index.
    body: on rank 0 the rest of the index, else {}."""

    pieces: list
    part: dict
    body: dict


def take(t, rank, size, model, optimizer, others, gather=True):
    """Returns the Taken of this rank. Nothing is written or copied yet: the Pieces in the Taken
    refer to the arrays of the model.

    gather: if True, the tensors of a divided model are gathered, so that the files hold whole
    tensors. If False, this rank takes only its own parts."""
    if gather and divided.is_divided(model):
        pieces, problem = divided.pieces(t, model, optimizer)
        agree(t, problem)
    else:
        pieces = list(regions.mine(model, optimizer, rank, size))
    pieces += rows.pieces(t, others)
    names = regions.names(model)
    part = {"tensors": {p.key: {"shape": p.shape, "dtype": p.dtype.name} for p in pieces},
            "generators": {key: g.get_state() for key, g in regions.generators(model).items()},
            "draws": divided.draws(t, model) if gather else 0,
            "order": [(reducer.rebuilt, [names[p] for p in order])
                      for reducer, order in regions.bucket_orders(model)],
            "state": regions.numbers(model, optimizer)}
    body = {} if rank else {
        "groups": None if optimizer is None else _options(optimizer),
        "others": durable.plain({key: it.state_dict() for key, it in others.items()}),
        "kept": residuals.about(model)}
    return Taken(pieces, part, body)


def index_of(step, parts, body):
    """Returns the index. parts: the `part` of each rank's Taken. body: the `body` of rank 0's
    Taken."""
    orders = [order for part in parts for order in part["order"]]
    index = {**body, "step": step, "tensors": {}, "state": {},
             "order": {"rebuilt": all(rebuilt for rebuilt, _ in orders),
                       "names": list(dict.fromkeys(n for _, order in orders for n in order))
                       } if orders else None,
             "files": [part["file"] for part in parts],
             "generators": divided.all_keys([part["generators"] for part in parts]),
             "draws": [part["draws"] for part in parts]}
    for part in parts:
        index["tensors"] |= part["tensors"]
        index["state"] |= part["state"]
    return index


def write(folder, step, t, taken, keep):
    """Writes the snapshot that take() collected. When write() returns, the snapshot is on the disk,
    and the folder has at most `keep` snapshots. If a rank cannot write, for example because its
    disk is full, raises SnapshotError on all ranks."""
    t, rank, size = _ranks(t, None)
    pieces, part, problem = taken.pieces, taken.part, ""
    try:
        name, n_bytes, digest = durable.write(
            folder / f"step-{step:08d}.{rank}-of-{size}", _file_of(pieces),
            named=lambda digest: file_name(step, rank, size, digest))
        holds = [[p.key, p.first, p.end] for p in pieces if p.first < p.end]
        part = {**part, "file": {"name": name, "bytes": n_bytes, "sha256": digest, "holds": holds}}
    except OSError as error:
        problem = _unwritten(step, folder, error)
    # This is also a barrier: afterwards every rank's file is on the disk.
    gathered = _all_gather(t, (problem, part))
    _raise_first(problem for problem, _ in gathered)
    parts = [part for _, part in gathered]
    if rank == 0:
        try:
            durable.write(index_path(folder, step),
                          [durable.sealed(index_of(step, parts, taken.body))])
            prune(folder, keep)
        except OSError as error:
            problem = _unwritten(step, folder, error)
    agree(t, problem)


def _unwritten(step, folder, error):
    return (f"cannot write step {step} into {folder}: {error.strerror or error}. The earlier "
            "snapshots are not damaged. Free some space on the disk, or save into another folder")


def load(folder, t=None, *, model, optimizer=None, step=None, **others):
    """Loads a snapshot into the given objects, in place. Returns the step of the snapshot.

    t       as in save
    step    the step of the snapshot. The default is the latest step in the folder
    others  as in save. An object that is not given is not loaded

    Raises SnapshotError on all ranks if the snapshot is missing or damaged, or if it does not fit
    the model or another object. This error is raised before anything has changed."""
    t, rank, size = _ranks(t, model)
    others = _with_state(rank, others)
    folder = Path(folder)
    index = _index(folder, t, step)
    split = divided.is_divided(model)
    everywhere = list(fit.tensors(model))
    if split:
        everywhere = set().union(*_all_gather(t, everywhere))
    found = fit.misfits(index, model, optimizer, others, folder, everywhere)
    problem = fit.listed(chain(*_all_gather(t, found)) if split else found)
    for file in index["files"][rank::size]:  # each file is checked by one of the ranks
        path = folder / file["name"]
        damage = durable.damage(path, file["bytes"], file["sha256"]) or fit.file_misfit(
            path, file, index)
        if damage and not problem:
            problem = f"{damage}. {instead(folder, index['step'])}"
    _try_others(t, index, others, problem)
    files = {}

    def source(name, key):
        if name not in files:
            files[name] = _safetensors().safe_open(folder / name, framework="numpy")
        return files[name].get_slice(key)

    put(index, lambda targets: fill(index, targets, source), t, rank, size, model, optimizer,
        others)
    return index["step"]


def _try_others(t, index, others, problem):
    """Loads the states of the other objects. An object may refuse its state, for example a sampler
    for other data. If any rank has a problem, all ranks restore the old states and raise the
    error."""
    before = {}
    try:
        for key, it in others.items() if not problem else ():
            before[key] = copy.deepcopy(it.state_dict())
            it.load_state_dict(copy.deepcopy(index["others"][key]))
    except Exception as error:  # after any error the old states are restored below
        problem = f"{key}: {type(error).__name__}: {error}"
    try:
        agree(t, problem)
    except SnapshotError:
        for key, state in before.items():
            others[key].load_state_dict(state)
        raise


def put(index, fill, t, rank, size, model, optimizer, others):
    """Sets the given objects to the state in the index.

    fill: a function. fill(targets) must fill the arrays of targets, where targets is a list of
    (key, array, Region). The function takes the elements from files, or from the memory of other
    ranks (elastic/heal.py)."""
    by_leaf = regions.by_leaf(model)
    targets = [(f"param/{r.name}", leaf.array, r) for leaf, rs in by_leaf.items() for r in rs]
    targets += [(f"buffer/{r.name}", r.leaf.array, r) for r in regions.buffers(model)]
    for leaf, owner in regions.leaves(optimizer):
        name = by_leaf[owner][0].name
        saved = index["state"][name]
        arrays = {kind: leaf._xp.zeros(leaf.shape, index["tensors"][f"{kind}/{name}"]["dtype"])
                  for kind in saved["arrays"] if kind != "master"}
        optimizer.state.pop(leaf, None)
        if arrays or saved["numbers"]:
            optimizer.state[leaf] = {**saved["numbers"], **arrays}
        if leaf is not owner:  # leaf is a master copy. If none was saved, leaf gets the weight
            arrays["master" if "master" in saved["arrays"] else "param"] = leaf.array
        targets += [(f"{kind}/{r.name}", array, r)
                    for r in by_leaf[owner] for kind, array in arrays.items()]
    owed = [(array, np.zeros_like(array), key)  # residuals of old ranks, which are added below
            for array, key in residuals.wanted(index, model, rank, size)]
    targets += [(key, piece, regions.whole(key, piece)) for _, piece, key in owed]
    of_all_ranks, of_rows = rows.targets(index, others)
    fill(targets + of_rows)
    for array, piece, _ in owed:
        array += piece
    residuals.resume(index, model)
    for leaf in [*by_leaf, *(leaf for leaf, _ in regions.leaves(optimizer))]:
        leaf.version += 1
    for module in regions.modules(model):
        if isinstance(module, Zero1):
            module.gather()
    if optimizer is not None:
        for group, options in zip(optimizer.param_groups, index["groups"], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
        optimizer.refresh()
    for key, it in others.items():
        it.load_state_dict(index["others"][key])
        if key in of_all_ranks:
            it.load_rows(of_all_ranks[key])
    _set_generators(model, *divided.drawn(t, model, index))
    named = {name: p for p, name in regions.names(model).items()}
    for reducer, order in regions.bucket_orders(model) if index["order"] else ():
        saved = [named[name] for name in index["order"]["names"] if name in named]
        reducer.build([p for p in saved if p in set(order)])
        reducer.rebuilt = index["order"]["rebuilt"]


# -- files


def fill(index, targets, source):
    """Fills the arrays of `targets` from the files of the index.

    targets: a list of (key, array, Region).
    source: a function. source(name, key) returns an object whose slices [begin:end] are elements of
    the tensor `key` in the file `name`."""
    written = fit.written(index)

    def read(where, begin, end):
        return source(*where)[begin:end]

    for key, array, region in targets:
        first, end = divided.span(region)
        values = np.empty(end - first, array.dtype)
        regions.fill(values, first, written.get(key, ()), read)
        values = divided.own(values, region)
        region.put(array, backend.to_device(values, backend.device_of(array)))


def _file_of(pieces):
    """Yields the bytes of a safetensors file: the length of the header, the header, then the
    elements of one Piece after another."""
    told, at = {}, 0
    for p in pieces:
        if p.first < p.end:
            n_bytes = (p.end - p.first) * p.dtype.itemsize
            told[f"{p.key}/{p.first}"] = {"dtype": header.CODES[p.dtype.name],
                                           "shape": [p.end - p.first],
                                           "data_offsets": [at, at + n_bytes]}
            at += n_bytes
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for p in pieces:
        values = p.values()
        if p.first < p.end:
            yield np.ascontiguousarray(backend.to_device(values, "cpu")).view(np.uint8)
        values = None  # frees these values before the next ones are made


def _set_generators(model, saved, rank):
    """Restores the states of this rank's generators. saved: for each rank that saved the snapshot,
    a dict {generator's name: (seed, stream, counter)}. If the snapshot has no state for this rank,
    the rank gets a new stream. There is one exception. If several ranks saved the snapshot, and all
    had the same seed and stream, this rank gets the state of the first of them."""
    for key, generator in regions.generators(model).items():
        states = [tuple(mine[key]) for mine in saved]
        if rank < len(saved):
            generator.set_state(states[rank])
        elif len({state[:2] for state in states}) == 1 and len(saved) > 1:
            generator.set_state(states[0])
        else:
            seed, _, counter = states[0]
            stream = max(stream for _, stream, _ in states) + 1 + rank - len(saved)
            generator.set_state((seed, stream, counter))


def _safetensors():
    """Returns the safetensors library. It is imported on first use, because only snapshots need
    it."""
    with backend.optional("snapshots are safetensors files", "snapshot"):
        import safetensors.numpy
    return safetensors


def _with_state(rank, others):
    """Returns the objects that are not None. A list is wrapped into an object with a state. Raises
    TypeError for an object without a state."""
    given = {key: _List(it) if isinstance(it, list) else it
             for key, it in others.items() if it is not None}
    for key, it in given.items():
        if not hasattr(it, "load_state_dict"):
            raise TypeError(f"rank {rank}: the argument {key} must be a list, or an object with "
                            f"state_dict() and load_state_dict(); got {type(it).__name__}")
    return given


class _List:
    """Wraps a user's list into an object with a state."""
    holds_anything = True  # so fit.py does not compare the kinds of the values with the snapshot

    def __init__(self, values):
        self.values = values

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values[:] = state["values"]


def _ranks(t, model):
    """Returns (t, rank, size). If t is None, uses the model's transport. If the model has no
    transport, returns (None, 0, 1)."""
    if t is None and model is not None and divided.is_divided(model):
        raise ValueError("this model is divided over ranks, so all these ranks must call save() or "
                         "load(). Pass their transport: save(folder, step, t, ...), "
                         "load(folder, t, ...)")
    t = getattr(model, "t", None) if t is None else t
    return (t, 0, 1) if t is None else (t, t.rank, t.size)


def _all_gather(t, value):
    """Returns the values of all ranks, in a list."""
    return [value] if t is None else objects.all_gather(t, value)


def agree(t, problem):
    """Raises SnapshotError on all ranks if any rank has a problem. The message names the first such
    rank. problem: a sentence, or ""."""
    _raise_first(_all_gather(t, problem))


def _raise_first(problems):
    for rank, text in enumerate(problems):
        if text:
            raise SnapshotError(f"rank {rank}: {text}")


def _index(folder, t, step):
    """Returns the index on all ranks. Rank 0 reads the index and sends it to the other ranks."""
    index, problem = None, ""
    if t is None or t.rank == 0:
        try:
            index = read_index(folder, step)
        except ValueError as error:
            problem = str(error)
    agree(t, problem)
    return index if t is None else objects.broadcast(t, index)
