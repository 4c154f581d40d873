"""Which elements of which named tensor this rank's arrays hold, the same words for every stage.

    DataParallel, 3 ranks    w [0 : 10]          every rank has all of it
    Zero, rank 1 of 3        w [4 : 7]           elements 4, 5, 6 lie in its shard at some place
    Zero, rank 1 of 2        w [5 : 10]

A region is a run of a tensor's elements in row-major order. A rank that wants a region finds it in
the regions that others wrote, by overlap; so a snapshot of one stage at one world size can be read
by any other stage at any other size, without knowing how the tensors were cut. The optimizer's
arrays have the regions of its leaves; buffers and random generators are named by their modules. Of
a model that is itself divided (parallel/model/) a region is one of this rank's part of the tensor.
Test: tests/snapshot/test_regions.py, test_snapshot.py   Used by: minidl/snapshot/snapshot.py
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minidl.comm import chunks
from minidl.parallel.data import flat
from minidl.parallel.data.compress import Compressed
from minidl.parallel.data.data_parallel import DataParallel
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.zero.zero import Zero1
from minidl.random import Generator, default_generator
from minidl.snapshot import residuals


@dataclass(frozen=True)
class Region:
    """Elements [first, end) of the tensor `name`. They lie in `leaf`, which an optimizer updates,
    from `offset` on.

    shape    of the whole tensor
    whole    whether it is all of the tensor, and every rank holds it
    part     None; or (dim, bounds, repeats, i): the tensor is cut along dim, as Part in
             parallel/model/tensor.py says, and first and end count in the part i"""
    name: str
    leaf: object
    offset: int
    first: int
    end: int
    shape: tuple
    whole: bool
    part: tuple = None

    def of(self, array):
        """The region's elements in an array of the leaf's shape, 1-d; a view if contiguous."""
        return array.reshape(-1)[self.offset:self.offset + self.end - self.first]

    def put(self, array, values):
        """Overwrite them."""
        if self.whole:  # which may be strided; a shard never is
            array[...] = values.reshape(array.shape)
        else:
            self.of(array)[...] = values


def whole(name, leaf):
    return Region(name, leaf, 0, 0, math.prod(leaf.shape), *_cut(leaf, True))


def _cut(p, all_of_it):
    """(shape of the whole tensor, Region.whole, Region.part) of a parameter."""
    if getattr(p, "part", None) is None:
        return tuple(p.shape), all_of_it, None
    t, dim, bounds, repeats = p.part
    shape = (*p.shape[:dim], repeats * bounds[-1], *p.shape[dim + 1:])
    return shape, all_of_it, (dim, tuple(map(int, bounds)), repeats, t.rank)


def modules(model):
    """What this rank has of the model, each perhaps in a DataParallel: of a pipeline its stages."""
    if isinstance(model, Pipeline):
        return [model.replicas.get(s, stage) for s, stage in model.stages.items()]
    return [model]


def unwrapped(module):
    """The user's own module."""
    return module.module if isinstance(module, DataParallel) else module


def names(model):
    """{parameter of this rank: its name in the whole model}."""
    if isinstance(model, Pipeline):
        return dict(model.names)
    return {p: name for name, p in unwrapped(model).named_parameters()}


def by_leaf(model):
    """{leaf: [Region]} of all parameters on this rank. A leaf is a parameter or a shard; a shard
    also has an empty region for each parameter of its bucket that is on other ranks alone."""
    name_of, found = names(model), {}
    for module in modules(model):
        for _, shard, p, *where in module.parts() if isinstance(module, Zero1) else ():
            region = Region(name_of.pop(p), shard, *where, *_cut(p, False))
            found.setdefault(shard, []).append(region)
    return found | {p: [whole(name, p)] for p, name in name_of.items()}


def share(sizes, rank, n):
    """[(first, end)] for tensors that all ranks hold: the part of each that `rank` of n writes. The
    ranks write equally many elements, but for one."""
    low, high = chunks.bounds(sum(sizes), n)[rank:rank + 2]
    return [part[1:] for part in flat.within([(size,) for size in sizes], low, high)]


def fill(out, first, written, read):
    """Fill the 1-d `out`, elements [first, first + len(out)) of a tensor, from what was written.
    written    [(first, end, where)], the regions of that tensor in all files
    read       read(where, begin, end): elements [begin, end) of that written region, an array
    Returns how many elements were found: len(out), unless something is missing."""
    found = np.zeros(len(out), bool)
    for start, end, where in written:
        low, high = max(start, first), min(end, first + len(out))
        if low < high:
            out[low - first:high - first] = read(where, low - start, high - start)
            found[low - first:high - first] = True
    return int(found.sum())


def covered(first, end, written):
    """Whether the regions written, [(first, end, where)], hold all elements [first, end)."""
    for start, stop, _ in sorted(written, key=lambda region: region[:2]):
        if start <= first < stop:
            first = stop
    return first >= end


# -- all that a rank has


def arrays_of(model, optimizer):
    """(key, array, Region) of everything that this rank has in arrays."""
    regions = by_leaf(model)
    for leaf, here in regions.items():
        for region in here:
            yield f"param/{region.name}", leaf.array, region
    for leaf, owner in leaves(optimizer):
        if owner not in regions:
            raise ValueError(unknown_leaf(owner))
        arrays, _ = arrays_and_numbers(optimizer, leaf)
        if leaf is not owner:
            arrays["master"] = leaf.array
        for region in regions[owner]:
            for kind, array in arrays.items():
                yield f"{kind}/{region.name}", array, region
    for region in buffers(model):
        yield f"buffer/{region.name}", region.leaf.array, region
    for kind, name, array, own in residuals.arrays(model):
        key = residuals.key_of(kind, model.t.rank, name) if own else f"kept {kind}/{name}"
        yield key, array, Region(name, None, 0, 0, array.size, array.shape, not own)


class Piece(NamedTuple):
    """Elements [first, end) of a tensor, none if these are equal, which this rank is to write;
    values() makes them, 1-d: so not all need be there at a time. shape: of the whole."""

    key: str
    shape: tuple
    dtype: np.dtype
    first: int
    end: int
    values: Callable


def mine(model, optimizer, rank, size):
    """The Pieces of this rank: its shards, its share of what all ranks have, and on rank 0 the
    buffers."""
    everything = list(arrays_of(model, optimizer))
    shared = [i for i, (key, _, region) in enumerate(everything)
              if region.whole and not key.startswith("buffer/")]
    parts = share([everything[i][2].end for i in shared], rank, size)
    part_of = dict(zip(shared, parts, strict=True))
    for i, (key, array, region) in enumerate(everything):
        values, first, end = region.of(array), region.first, region.end
        if region.whole:
            first, end = part_of.get(i, (0, end if rank == 0 else 0))
            values = values[first:end]
        yield Piece(key, region.shape, array.dtype, first, end, lambda values=values: values)


def leaves(optimizer):
    """(what the optimizer updates, the model's leaf with its values): the same one, unless there
    are master weights, or the optimizer has its own copies on the host (offload.py)."""
    for leaf in optimizer.parameters() if optimizer else ():
        yield leaf, optimizer.leaf_of(leaf)


def unknown_leaf(owner):
    """What is wrong if the optimizer updates a leaf that is none of the model's."""
    return (f"the optimizer updates a tensor of shape {tuple(owner.shape)} that is not the model's;"
            " of a ZeRO stage it wants model.shards(), of other models model.parameters()")


def numbers(model, optimizer):
    """{tensor's name: {"arrays": kinds of arrays, "numbers": such as Adam's step}}."""
    regions, state = by_leaf(model), {}
    for leaf, owner in leaves(optimizer):
        arrays, rest = arrays_and_numbers(optimizer, leaf)
        for region in regions[owner]:
            state[region.name] = {"arrays": [*arrays, *["master"] * (leaf is not owner)],
                                  "numbers": rest}
    return state


def arrays_and_numbers(optimizer, leaf):
    """The optimizer's state of a leaf in two dicts: arrays of its shape, which may be (), and
    numbers, such as a step that a GPU counts."""
    state = optimizer.state.get(leaf, {})
    arrays = {k: v for k, v in state.items() if hasattr(v, "ndim") and k != "step"}
    # on a GPU Adam counts its steps there: an array without dimensions
    return arrays, {k: v.item() if hasattr(v, "dtype") else v
                    for k, v in state.items() if k not in arrays}


def buffers(model):
    """The persistent buffers, as whole Regions."""
    return [whole(name, owner._buffers[key]) for module in modules(model)
            for name, (owner, table, key) in unwrapped(module)._state_slots().items()
            if table == "_buffers"]


def generators(model):
    """{name: Generator}: the rank's own, "", and those that modules have as attributes."""
    return {"": default_generator()} | {
        f"{name}.{key}": value for outer in modules(model)
        for name, module in unwrapped(outer).named_modules()
        for key, value in vars(module).items() if isinstance(value, Generator)}


def bucket_orders(model):
    """[(reducer, its parameters in the order of its buckets)], which decides how sums round, of
    data parallelism; none for other models."""
    return [(module.reducer, [p for bucket in module.reducer.buckets for p in bucket.params])
            for module in modules(model) if isinstance(module, DataParallel)
            and not isinstance(module, (Zero1, Compressed))]
