"""Snapshots: a run that dies goes on from its last one, to the same bits, on any number of ranks.

    runs/step-00000012.0-of-2.9f86d081.safetensors    what rank 0 held: regions of named tensors
    runs/step-00000012.1-of-2.60303ae2.safetensors    what rank 1 held
    runs/step-00000012.json                           the index: which file holds what, checksums,
                                                      options, generators, and what else was given
    snapshot.save("runs", step, model=model, optimizer=optimizer, scaler=scaler, ...)
    step = snapshot.load("runs", model=model, optimizer=optimizer, scaler=scaler, ...)

A crash at any moment leaves the previous snapshot whole, because each file is on the disk before
the next one names it (durable.py): first every rank's file; then rank 0's index, whose rename makes
the snapshot valid; only then rank 0 removes older snapshots and what crashes left.

The model may be plain, DataParallel, Compressed or a ZeRO stage, and it may be loaded as another of
these, on another number of ranks: every region is found in the files by overlap (regions.py), and
what compression owes keeps its sum (kept.py).
Numbers and buffers are rank 0's; random generators are each rank's own. Save after the optimizer's
step: gradients are not kept. All ranks see one folder, and call together.
safetensors and JSON are plain data: loading runs no code, as unpickling would.
Test: tests/snapshot/test_snapshot.py, test_snapshot_crashes.py
"""

import contextlib
import hashlib
from pathlib import Path

import numpy as np

from minidl import backend
from minidl.comm import objects, tree
from minidl.parallel import DataParallel, Zero1
from minidl.snapshot import durable, fit, kept, regions
from minidl.snapshot.folder import (
    at_step, file_name, index_path, instead, latest, prune, read_index, steps,
)
from minidl.snapshot.lock import only_writer

__all__ = ["SnapshotError", "at_step", "latest", "load", "save", "steps"]


class SnapshotError(RuntimeError):
    """A snapshot is not there, damaged, or of another model."""


def save(folder, step, t=None, *, model, optimizer=None, keep=2, **others):
    """Write the state between two steps as that of step `step`; on return it is on the disk.
    t       the transport of all ranks that call; None: the model's, or one rank alone
    keep    how many snapshots stay in the folder, this one included
    others  scaler=, scheduler=, sampler=, ...: objects with load_state_dict() and with a
            state_dict() of numbers and text"""
    t, rank, size = _ranks(t, model)
    if keep < 1:
        raise ValueError(f"rank {rank}: wanted keep of at least 1, the new one; got {keep}")
    others = _with_state(rank, others)
    folder = Path(folder)
    with only_writer(folder) if rank == 0 else contextlib.nullcontext("") as problem:
        _agree(t, problem or _refusal(folder, step, model, rank))
        _save(folder, step, t, rank, size, model, optimizer, keep, others)


def _refusal(folder, step, model, rank):
    """Why this model cannot be saved as this step of the folder, or nothing."""
    if isinstance(model, DataParallel) and model.n_samples:
        return (f"gradients of {model.n_samples} samples wait since no_sync() for the backward "
                "that sends them, and gradients are not kept: save after optimizer.step()")
    if rank == 0 and (last := latest(folder)) is not None and last > step:
        return (f"wanted to save step {step} into {folder}, which holds the later step {last}, "
                "from another run? Remove its .json, or save elsewhere")
    return ""


def _save(folder, step, t, rank, size, model, optimizer, keep, others):
    tensors, holds, about = {}, [], {}
    for key, array, first, end, shape in regions.mine(model, optimizer, rank, size):
        about[key] = {"shape": shape, "dtype": array.dtype.name}
        if first < end:
            tensors[f"{key}/{first}"] = np.ascontiguousarray(backend.to_device(array, "cpu"))
            holds.append([key, first, end])
    data = _safetensors().numpy.save(tensors)
    digest = hashlib.sha256(data).hexdigest()
    name = file_name(step, rank, size, digest)
    durable.write(folder / name, data)
    file = {"name": name, "bytes": len(data), "sha256": digest, "holds": holds}
    states = {key: g.get_state() for key, g in regions.generators(model).items()}
    parts = _all_gather(t, {  # which is also a barrier: every rank's file is on the disk
        "file": file, "tensors": about, "generators": states,
        "state": regions.numbers(model, optimizer)})
    if rank == 0:
        body = {"step": step, "tensors": {}, "state": {}, "order": regions.bucket_order(model),
                "files": [part["file"] for part in parts],
                "generators": [part["generators"] for part in parts],
                "groups": None if optimizer is None else [
                    {k: v for k, v in group.items() if k != "params"}
                    for group in optimizer.param_groups],
                "others": {key: it.state_dict() for key, it in others.items()},
                "kept": kept.about(model)}
        for part in parts:
            body["tensors"] |= part["tensors"]
            body["state"] |= part["state"]
        durable.write(index_path(folder, step), durable.sealed(body))
        prune(folder, keep)
    if t is not None:
        tree.barrier(t)


def load(folder, t=None, *, model, optimizer=None, step=None, **others):
    """Put a snapshot's state into the given objects, in place; returns its step.
    step    which one; None: the latest. What is not given is not loaded. SnapshotError, on all
            ranks and before anything has changed, if a file or the model does not fit."""
    t, rank, size = _ranks(t, model)
    others = _with_state(rank, others)
    folder = Path(folder)
    index = _index(folder, t, step)
    problem = "\n".join(fit.misfits(index, model, optimizer, others, folder))
    for file in index["files"][rank::size]:  # each is read once, by one of the ranks
        damage = durable.damage(folder / file["name"], file["bytes"], file["sha256"])
        if damage and not problem:
            problem = f"{damage}. {instead(folder, index['step'])}"
    _agree(t, problem)

    by_leaf = regions.by_leaf(model)
    targets = [(f"param/{r.name}", leaf.data, r) for leaf, rs in by_leaf.items() for r in rs]
    targets += [(f"buffer/{r.name}", r.leaf.data, r) for r in regions.buffers(model)]
    for leaf, owner in regions.leaves(optimizer):
        name = by_leaf[owner][0].name
        saved = index["state"][name]
        arrays = {kind: leaf._xp.zeros(leaf.shape, index["tensors"][f"{kind}/{name}"]["dtype"])
                  for kind in saved["arrays"] if kind != "master"}
        optimizer.state.pop(leaf, None)
        if arrays or saved["numbers"]:
            optimizer.state[leaf] = {**saved["numbers"], **arrays}
        if leaf is not owner:  # a copy on the host may begin as the weight itself
            arrays["master" if "master" in saved["arrays"] else "param"] = leaf.data
        targets += [(f"{kind}/{r.name}", array, r)
                    for r in by_leaf[owner] for kind, array in arrays.items()]
    owed = [(array, np.zeros_like(array), key)  # of some old ranks: added up below
            for array, key in kept.wanted(index, model, rank, size)]
    targets += [(key, piece, regions.whole(key, piece)) for _, piece, key in owed]
    _read(folder, index, targets)
    for array, piece, _ in owed:
        array += piece
    kept.resume(index, model)
    for leaf in [*by_leaf, *(leaf for leaf, _ in regions.leaves(optimizer))]:
        leaf.version += 1
    if isinstance(model, Zero1):
        model.gather()
    if optimizer is not None:
        for group, options in zip(optimizer.param_groups, index["groups"], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
        optimizer.refresh()
    for key, it in others.items():
        it.load_state_dict(index["others"][key])
    _set_generators(model, index["generators"], rank)
    if index["order"] and regions.bucket_order(model):
        named = dict(regions.unwrapped(model).named_parameters())
        model.reducer.build([named[name] for name in index["order"]["names"]])
        model.reducer.rebuilt = index["order"]["rebuilt"]
    return index["step"]


# -- where it is


def _read(folder, index, targets):
    """Fill the arrays of `targets`, each with its region of what the files hold."""
    written, files = fit.written(index), {}

    def read(where, begin, end):
        name, key = where
        if name not in files:
            files[name] = _safetensors().safe_open(folder / name, framework="numpy")
        return files[name].get_slice(key)[begin:end]

    for key, array, region in targets:
        values = np.empty(region.end - region.first, array.dtype)
        regions.fill(values, region.first, written.get(key, ()), read)
        region.put(array, backend.to_device(values, backend.device_of(array)))


def _set_generators(model, saved, rank):
    """Each rank's own state again. Ranks that are new get unused streams, or the common state where
    all had the same."""
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
    """The library; imported here, since only snapshots need it."""
    with backend.optional("snapshots are safetensors files", "snapshot"):
        import safetensors.numpy
    return safetensors


def _with_state(rank, others):
    """Those that were given."""
    given = {key: it for key, it in others.items() if it is not None}
    for key, it in given.items():
        if not hasattr(it, "load_state_dict"):
            raise TypeError(f"rank {rank}: wanted for {key}= an object with state_dict() and "
                            f"load_state_dict(); got {type(it).__name__}")
    return given


def _ranks(t, model):
    t = getattr(model, "t", None) if t is None else t
    return (t, 0, 1) if t is None else (t, t.rank, t.size)


def _all_gather(t, value):
    """Every rank's value, in a list."""
    return [value] if t is None else objects.all_gather(t, value)


def _agree(t, problem):
    """All ranks raise the first rank's problem, if any has one."""
    for rank, text in enumerate(_all_gather(t, problem)):
        if text:
            raise SnapshotError(f"rank {rank}: {text}")


def _index(folder, t, step):
    """The index on all ranks, as rank 0 reads it."""
    index, problem = None, ""
    if t is None or t.rank == 0:
        try:
            index = read_index(folder, step)
        except ValueError as error:
            problem = str(error)
    _agree(t, problem)
    return index if t is None else objects.broadcast(t, index)
