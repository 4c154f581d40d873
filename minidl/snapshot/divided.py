"""Saves a model that is divided over a grid of ranks. The files hold whole tensors.

    pp 2 x tp 2, dp 2 with ZeRO 1          what the files hold
    rank 0: half of columns 0..2 of a     ─┐
    rank 1: half of columns 3..5 of a     ─┼─► a, whole, in the file of one of the four ranks
    rank 2: other half of columns 0..2    ─┤   b, whole, in the file of another rank
    rank 3: other half of columns 3..5    ─┘   ...
    rank 4, 5, 6, 7: the next layers          c, ...

Saving. Every rank sends a list to all other ranks: its slices, and the names of the slices'
tensors. From these lists all ranks make the same plan. The plan chooses a writer for each tensor:
one of the ranks that have a slice of the tensor. All ranks write about the same number of bytes.
The other ranks send their slices to the writer. This happens tensor by tensor, so a rank never has
more than one whole tensor. The files have the same form as for a model that is not divided. So a
divided model can load the snapshot of an undivided model, and the other way round.

Loading. Each rank reads its tensors one after another, and keeps only its parts.

Random generators belong to ranks, not to slices. Ranks that divide a layer must draw the same
numbers. On the same grid each rank gets its own state back. On another grid, the ranks that draw
the same numbers form a group. Group i gets the state of group i on the old grid. If the old grid
had fewer groups, the remaining groups get new streams (snapshot.py).

Each slice is sent once, unless the writer of its tensor has the slice already.
Test: tests/snapshot/test_divided.py   Used by: snapshot.py, fit.py
"""

import math
from collections import Counter

import numpy as np

from minidl import backend
from minidl.comm import objects
from minidl.parallel.data.compress import Compressed
from minidl.parallel.model.pipeline import Pipeline
from minidl.snapshot import regions


def is_divided(model):
    """Returns True if each rank has only a part of the model. A shard of ZeRO does not count as a
    part."""
    return isinstance(model, Pipeline) or any(p.part or p.is_local for p in regions.names(model))


# -- a part of a tensor


def view(array, part):
    """Returns a view of the array that has the elements of one part. part: as in regions.Region. If
    part is None, returns the array."""
    if part is None:
        return array
    dim, bounds, repeats, i = part
    pieces = array.reshape(*array.shape[:dim], repeats, bounds[-1], *array.shape[dim + 1:])
    return pieces[(slice(None),) * (dim + 1) + (slice(*bounds[i:i + 2]),)]


def span(region):
    """Returns (first, end), the range of elements that must be read for a region. If the tensor is
    cut into parts, this is the range of the whole tensor."""
    return (region.first, region.end) if region.part is None else (0, math.prod(region.shape))


def own(values, region):
    """Returns the region's elements as a 1-d array. values: the elements in the range that span()
    returns."""
    if region.part is None:
        return values
    return view(values.reshape(region.shape), region.part).flat[region.first:region.end]


# -- saving


def pieces(t, model, optimizer):
    """Returns (a list of the Pieces that this rank writes or sends, a problem). The Pieces have the
    same order on all ranks. The problem is "", or a sentence that tells why the model cannot be
    saved. All ranks return the same problem."""
    stages = {r.name: _stage(model, r.leaf) for r in regions.buffers(model)}
    stages |= {name: _stage(model, p) for p, name in regions.names(model).items()}
    held, has = {}, []
    for key, array, r in regions.arrays_of(model, optimizer):
        twice = key in held
        held[key] = array, r
        stage = stages.get(r.name)
        about = r.shape, array.dtype.name, array.dtype.itemsize, stage
        has.append((key, r.part, r.first, r.end, about, twice))
    problem = ""
    if isinstance(model, Compressed):
        problem = ("the residuals of a divided model cannot be saved. Train the model without "
                   "compression")
    n_stages, mine = (len(model.ranks), list(model.stages)) if isinstance(model, Pipeline) else \
        (0, [])
    parts = objects.all_gather(t, (has, problem, mine))
    plan, problems = _plan([part[0] for part in parts])
    problems += [text for _, text, _ in parts if text]
    missing = set(range(n_stages)).difference(*(part[2] for part in parts))
    if missing:
        problems.append(f"no rank has the stages {sorted(missing)} of the pipeline")
    if problems:
        return [], (f"{'; '.join(problems[:4])}. The transport t has {t.size} ranks. Is it the "
                    "transport of all ranks of the grid?")
    return [piece for entry in plan if (piece := _piece(t, held, *entry)) is not None], ""


def _stage(model, leaf):
    """Returns the pipeline's rank that has this leaf, or None if several ranks may have the
    leaf."""
    tied = not isinstance(model, Pipeline) or any(leaf is p for p, _ in model.tied)
    return None if tied else model.t.rank


def _plan(has):
    """Returns a list of (key, shape, writer, sources) for all tensors, and a list of problems.

    has: for each rank, the list of its slices (key, part, first, end, about, twice). about: (shape,
         dtype's name, bytes of an element, stage). twice: True if the rank has another tensor with
         the same key.
    sources: a list of slices (rank, part, first, end). Together these slices form the whole
         tensor."""
    about, slices, listed, problems = {}, {}, {}, []
    for rank, entries in enumerate(has):
        for key, part, first, end, what, twice in entries:
            if about.setdefault(key, what) != what or twice:
                problems.append(f"{key} is the name of two tensors, of shape {about[key][0]} and "
                                f"dtype {about[key][1]}, and of shape {what[0]} and dtype "
                                f"{what[1]}")
            listed.setdefault(key, rank)
            of_part = slices.setdefault(key, {}).setdefault(part, {})
            if first < end:
                of_part.setdefault((first, end), []).append(rank)
    written, plan = Counter(), []
    size_of = {key: math.prod(shape) * size for key, (shape, _, size, _) in about.items()}
    holders = {key: sorted({rank for of_part in slices[key].values() for ranks in of_part.values()
                            for rank in ranks}) for key in about}
    # The tensors that only one rank can write come first. The other tensors follow, from large to
    # small. The small tensors at the end give each rank nearly the same number of bytes.
    order = sorted(about, key=lambda key: (len(holders[key]) > 1, -size_of[key], key))
    for i, key in enumerate(order):
        (shape, *_), first_has_it = about[key], key.startswith("buffer/")
        sources = _sources(shape, slices[key], 0 if first_has_it else i)
        if sources is None:  # t has too few ranks, or the ranks cut the tensor in different ways
            problems.append(f"the ranks' slices of {key} do not cover its shape {shape}")
            continue
        able = holders[key][:1] if first_has_it else holders[key]
        writer = min(able, key=lambda rank: written[rank], default=listed[key])
        written[writer] += size_of[key]
        plan.append((key, shape, writer,
                     [(writer if writer in all_of else rank, *where)
                      for (rank, *where), all_of in zip(*sources, strict=True)]))
    return plan, problems


def _sources(shape, of_key, turn):
    """Returns two lists, or None if slices are missing. The first list has the slices
    (rank, part, first, end) that form the whole tensor. The second list has, for each slice, the
    list of all ranks that have this slice. `rank` is one of these ranks. turn: the number of the
    tensor. It selects `rank`, so that the ranks of a list take turns from tensor to tensor."""
    found, holders = [], []
    part = next(iter(of_key))
    parts = [None] if part is None else [(*part[:3], i) for i in range(len(part[1]) - 1)]
    for part in parts:
        at, length = 0, view(np.broadcast_to(np.empty((), "b"), shape), part).size
        for (first, end), ranks in sorted(of_key.get(part, {}).items()):
            if first != at:
                return None
            found.append((ranks[turn % len(ranks)], part, first, end))
            holders.append(ranks)
            at = end
        if at < length:
            return None
    return found, holders


def _piece(t, held, key, shape, writer, sources):
    """Returns the Piece of this rank for a tensor, or None if the rank has no slice to write or
    send. On the writer, values() receives the slices and returns the whole tensor. On the other
    ranks, values() sends the rank's slice."""
    if t.rank not in (writer, *(rank for rank, *_ in sources)):
        return None

    def values():
        array, region = held[key]
        own = np.ascontiguousarray(backend.to_device(region.of(array), "cpu"))
        with t.named("snapshot"):
            if t.rank != writer:
                t.send(own.view(np.uint8), writer)
                return None
            whole = np.empty(shape, array.dtype)
            for rank, part, first, end in sources:
                elems = own if rank == t.rank else np.empty(end - first, array.dtype)
                if rank != t.rank:
                    t.recv(elems.view(np.uint8), rank)
                view(whole, part).flat[first:end] = elems
        return whole.reshape(-1)

    end = math.prod(shape) if t.rank == writer else 0
    return regions.Piece(key, shape, held[key][0].dtype, 0, end, values)


# -- random generators


def all_keys(states):
    """Returns a list of the generators' states, one dict for each rank. If a rank does not have a
    generator, its dict gets the state of the first rank that has the generator."""
    first = {key: state for of_rank in reversed(states) for key, state in of_rank.items()}
    return [first | of_rank for of_rank in states]


def draws(t, model):
    """Returns the first rank of the group over which this rank's layers are divided. All ranks of
    the group draw the same random numbers."""
    group = next((p.part.t for p in regions.names(model) if p.part), None)
    mine = 0 if t is None else t.rank
    return mine if group is None else objects.all_gather(group, mine)[0]


def drawn(t, model, index):
    """Returns (the saved states of the generators, the index of this rank's state among them). An
    index past the end means that the rank needs a new stream."""
    now = [0] if t is None else list(range(t.size))
    if is_divided(model):
        now = objects.all_gather(t, draws(t, model))
    rank = 0 if t is None else t.rank
    if now == index["draws"]:
        return index["generators"], rank
    return ([index["generators"][lead] for lead in sorted(set(index["draws"]))],
            sorted(set(now)).index(now[rank]))
