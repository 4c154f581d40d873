"""A model that is divided over a grid of ranks, in a snapshot: as tensors and slices, not as ranks.

    pp 2 x tp 2, dp 2 with ZeRO 1          what the files hold
    rank 0: columns 0..2 of a, half of it ─┐
    rank 1: columns 3..5 of a, half of it ─┼─► a, whole, in the file of one of the four
    rank 2: the other half of rank 0's    ─┤   b, whole, in the file of another one
    rank 3: the other half of rank 1's    ─┘   ...
    rank 4, 5, 6, 7: the next layers          c, ...

Saving. Every rank says which slices it has of which named tensor. From that all ranks make the same
plan: who writes a tensor, one of those who have a part of it, each in turn so that all write equal
numbers of bytes; and who sends which slice to the writer. It is carried out tensor by tensor, so no
rank ever has more than one of them whole. So a file's tensors are whole, as those of a model that
is not divided, and neither knows of the other.

Loading. Each rank reads the tensors that it has a part of, one after another, and keeps its part.

Random generators belong to ranks, not to slices, and ranks that divide a layer must draw alike. On
the grid that saved them each rank gets its own back; on another, the i-th group of ranks that draw
alike gets the state of the i-th such group before, or a stream that none has had (snapshot.py).
Sent: each slice that its tensor's writer does not have, once.
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
    """Whether a rank has a part of the model only, of another kind than a shard of ZeRO's."""
    return isinstance(model, Pipeline) or any(p.part or p.is_local for p in regions.names(model))


# -- a part in its tensor


def view(array, part):
    """The elements of a part, as a view of the whole array, in the order that the part has."""
    if part is None:
        return array
    dim, bounds, repeats, i = part
    pieces = array.reshape(*array.shape[:dim], repeats, bounds[-1], *array.shape[dim + 1:])
    return pieces[(slice(None),) * (dim + 1) + (slice(*bounds[i:i + 2]),)]


def span(region):
    """[first, end) of what is to be read for a region: all of a tensor, where a part is wanted."""
    return (region.first, region.end) if region.part is None else (0, math.prod(region.shape))


def own(values, region):
    """The region's elements of what was read for it, 1-d."""
    if region.part is None:
        return values
    return view(values.reshape(region.shape), region.part).flat[region.first:region.end]


# -- saving


def pieces(t, model, optimizer):
    """([regions.Piece] that this rank takes part in, in an order that all ranks have), and what
    forbids to save it, the same words on all ranks, or nothing."""
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
        problem = "what compression owes of a divided model is not kept: save an uncompressed one"
    n_stages, mine = (len(model.ranks), list(model.stages)) if isinstance(model, Pipeline) else \
        (0, [])
    parts = objects.all_gather(t, (has, problem, mine))
    plan, problems = _plan([part[0] for part in parts])
    problems += [text for _, text, _ in parts if text]
    missing = set(range(n_stages)).difference(*(part[2] for part in parts))
    if missing:
        problems.append(f"nobody has the stages {sorted(missing)} of the pipeline")
    if problems:
        return [], (f"{'; '.join(problems[:4])}. Is t, of {t.size} ranks, the transport of all "
                    "ranks of the grid?")
    return [piece for entry in plan if (piece := _piece(t, held, *entry)) is not None], ""


def _stage(model, leaf):
    """The pipeline's rank that alone has it; None if several may."""
    tied = not isinstance(model, Pipeline) or any(leaf is p for p, _ in model.tied)
    return None if tied else model.t.rank


def _plan(has):
    """[(key, shape, writer, sources)] of all tensors, and what is wrong. has: of each rank
    the list of its slices; sources: [(rank, part, first, end)], which are the tensor together."""
    about, slices, listed, problems = {}, {}, {}, []
    for rank, entries in enumerate(has):
        for key, part, first, end, what, twice in entries:
            if about.setdefault(key, what) != what or twice:
                problems.append(f"{key} is the name of two tensors, {about[key]} and {what}")
            listed.setdefault(key, rank)
            of_part = slices.setdefault(key, {}).setdefault(part, {})
            if first < end:
                of_part.setdefault((first, end), []).append(rank)
    written, plan = Counter(), []
    size_of = {key: math.prod(shape) * size for key, (shape, _, size, _) in about.items()}
    holders = {key: sorted({rank for of_part in slices[key].values() for ranks in of_part.values()
                            for rank in ranks}) for key in about}
    # first what only one rank can write; then the large ones, for the small ones to fill the gaps
    order = sorted(about, key=lambda key: (len(holders[key]) > 1, -size_of[key], key))
    for i, key in enumerate(order):
        (shape, *_), first_has_it = about[key], key.startswith("buffer/")
        sources = _sources(shape, slices[key], 0 if first_has_it else i)
        if sources is None:  # t lacks ranks, or they hold different cuts
            problems.append(f"the ranks' slices of {key} are not all of {shape}")
            continue
        able = holders[key][:1] if first_has_it else holders[key]
        writer = min(able, key=lambda rank: written[rank], default=listed[key])
        written[writer] += size_of[key]
        plan.append((key, shape, writer,
                     [(writer if writer in all_of else rank, *where)
                      for (rank, *where), all_of in zip(*sources, strict=True)]))
    return plan, problems


def _sources(shape, of_key, turn):
    """([(rank, part, first, end)] that are the whole tensor, [who has this slice]), or None. Of
    those that have an equal slice each sends in its turn."""
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
    """What this rank does for a tensor, or None: it writes it all, or sends what it has of it."""
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
    """Every rank's states of generators; in place of one that a rank does not have, the state that
    the first rank has which does."""
    first = {key: state for of_rank in reversed(states) for key, state in of_rank.items()}
    return [first | of_rank for of_rank in states]


def draws(t, model):
    """The first of the ranks that divide this one's layers, and so draw the same numbers."""
    group = next((p.part.t for p in regions.names(model) if p.part), None)
    mine = 0 if t is None else t.rank
    return mine if group is None else objects.all_gather(group, mine)[0]


def drawn(t, model, index):
    """(the states of the generators that the snapshot holds, which of them is this rank's)."""
    now = [0] if t is None else list(range(t.size))
    if is_divided(model):
        now = objects.all_gather(t, draws(t, model))
    rank = 0 if t is None else t.rank
    if now == index["draws"]:
        return index["generators"], rank
    return ([index["generators"][lead] for lead in sorted(set(index["draws"]))],
            sorted(set(now)).index(now[rank]))
