"""Tells which elements of each tensor are on this rank, in the same form for all ZeRO stages.

    DataParallel, 3 ranks    w [0 : 10]          every rank has the whole tensor
    Zero, rank 1 of 3        w [4 : 7]           its shard has elements 4, 5, 6, at some offset
    Zero, rank 1 of 2        w [5 : 10]

A region is a range of a tensor's elements in row-major order. To read a region, a rank looks in the
files for regions that overlap with it. So any stage on any number of ranks can read the snapshot of
any other stage. A rank need not know how the tensors were cut. An array of the optimizer has the
same regions as the leaf to which it belongs. Buffers and random generators are named after their
modules. If the model itself is divided (parallel/model/), a region counts the elements of this
rank's part of the tensor.
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
    """Elements [first, end) of the tensor `name`. They begin at `offset` in `leaf`, a tensor that
    an optimizer updates.

    shape    the shape of the whole tensor
    whole    True if the region is the whole tensor, and every rank holds it
    part     None, or (dim, bounds, repeats, i): the tensor is cut along dim (see Part in
             parallel/model/tensor.py). Then first and end count the elements of part i"""
    name: str
    leaf: object
    offset: int
    first: int
    end: int
    shape: tuple
    whole: bool
    part: tuple = None

    def of(self, array):
        """Takes the region's elements from an array of the leaf's shape. Returns them as a 1-d
        array, which is a view if the leaf's array is contiguous."""
        return array.reshape(-1)[self.offset:self.offset + self.end - self.first]

    def put(self, array, values):
        """Overwrites the region's elements in an array of the leaf's shape. values: 1-d."""
        if self.whole:  # a whole leaf may be strided; a shard is always contiguous
            array[...] = values.reshape(array.shape)
        else:
            self.of(array)[...] = values


def whole(name, leaf):
    """Returns the Region of a whole leaf."""
    return Region(name, leaf, 0, 0, math.prod(leaf.shape), *_cut(leaf, True))


def _cut(p, all_of_it):
    """Returns three fields of the Region of the parameter p: (shape of the whole tensor,
    Region.whole, Region.part). all_of_it: the value of Region.whole."""
    if getattr(p, "part", None) is None:
        return tuple(p.shape), all_of_it, None
    t, dim, bounds, repeats = p.part
    shape = (*p.shape[:dim], repeats * bounds[-1], *p.shape[dim + 1:])
    return shape, all_of_it, (dim, tuple(map(int, bounds)), repeats, t.rank)


def modules(model):
    """Returns [the model], or the stages of a pipeline that this rank has. Each of these modules
    may be wrapped in a DataParallel."""
    if isinstance(model, Pipeline):
        return [model.replicas.get(s, stage) for s, stage in model.stages.items()]
    return [model]


def unwrapped(module):
    """Returns the user's own module, without its DataParallel."""
    return module.module if isinstance(module, DataParallel) else module


def names(model):
    """Returns {parameter of this rank: its name in the whole model}."""
    if isinstance(model, Pipeline):
        return dict(model.names)
    return {p: name for name, p in unwrapped(model).named_parameters()}


def by_leaf(model):
    """Returns {leaf: [Region]} of all parameters on this rank. A leaf is a parameter or a shard. A
    shard also has an empty region for each parameter of its bucket that only other ranks hold."""
    name_of, found = names(model), {}
    for module in modules(model):
        for _, shard, p, *where in module.parts() if isinstance(module, Zero1) else ():
            region = Region(name_of.pop(p), shard, *where, *_cut(p, False))
            found.setdefault(shard, []).append(region)
    return found | {p: [whole(name, p)] for p, name in name_of.items()}


def share(sizes, rank, n):
    """Divides the work of writing the tensors that all n ranks hold. Returns a list with a range
    (first, end) for each tensor: the elements that `rank` writes. The numbers of elements that two
    ranks write differ by one at most. sizes: the number of elements of each tensor."""
    low, high = chunks.bounds(sum(sizes), n)[rank:rank + 2]
    return [part[1:] for part in flat.within([(size,) for size in sizes], low, high)]


def fill(out, first, written, read):
    """Fills the 1-d array `out` with elements [first, first + len(out)) of a tensor. Returns the
    number of elements that were found. If no element is missing, this is len(out).

    written    [(first, end, where)], the regions of this tensor in all files. `where` tells read()
               which region to read
    read       read(where, begin, end) returns an array, elements [begin, end) of that region"""
    found = np.zeros(len(out), bool)
    for start, end, where in written:
        low, high = max(start, first), min(end, first + len(out))
        if low < high:
            out[low - first:high - first] = read(where, low - start, high - start)
            found[low - first:high - first] = True
    return int(found.sum())


def covered(first, end, written):
    """Returns True if the written regions, [(first, end, where)], hold all elements
    [first, end)."""
    for start, stop, _ in sorted(written, key=lambda region: region[:2]):
        if start <= first < stop:
            first = stop
    return first >= end


# -- all arrays of a rank


def arrays_of(model, optimizer):
    """Yields (key, array, Region) for all arrays of this rank. Raises ValueError if the optimizer
    updates a tensor that is not the model's."""
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
    """Elements [first, end) of a tensor that this rank writes. If first equals end, the rank writes
    nothing.

    shape: the shape of the whole tensor.
    values: values() returns the elements as a 1-d array. It is called only when the elements are
            written. So not all Pieces are in memory at the same time."""

    key: str
    shape: tuple
    dtype: np.dtype
    first: int
    end: int
    values: Callable


def mine(model, optimizer, rank, size):
    """Yields the Pieces of this rank: its shards, its share of the tensors that all ranks hold, and
    on rank 0 the buffers. If this rank writes no element of a tensor, the Piece of the tensor is
    empty."""
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
    """Yields pairs: (the tensor that the optimizer updates, the model's leaf). The two tensors are
    different only if the optimizer has master weights or its own copies on the host
    (offload.py)."""
    for leaf in optimizer.parameters() if optimizer else ():
        yield leaf, optimizer.leaf_of(leaf)


def unknown_leaf(owner):
    """Returns the error's text if the optimizer updates a leaf that is not the model's."""
    return (f"the optimizer updates a tensor of shape {tuple(owner.shape)} that is not the model's."
            " Give it model.shards() for a ZeRO stage, model.parameters() for other models")


def numbers(model, optimizer):
    """Returns the optimizer's state without the elements of its arrays: {tensor's name: {"arrays":
    [kinds of arrays], "numbers": {name: number}}}. Adam's step is one of the numbers."""
    regions, state = by_leaf(model), {}
    for leaf, owner in leaves(optimizer):
        arrays, rest = arrays_and_numbers(optimizer, leaf)
        for region in regions[owner]:
            state[region.name] = {"arrays": [*arrays, *["master"] * (leaf is not owner)],
                                  "numbers": rest}
    return state


def arrays_and_numbers(optimizer, leaf):
    """Returns the optimizer's state of a leaf in two dicts: {name: array of the leaf's shape} and
    {name: number}. The step count is one of the numbers, even if it is an array on a GPU."""
    state = optimizer.state.get(leaf, {})
    arrays = {k: v for k, v in state.items() if hasattr(v, "ndim") and k != "step"}
    # On a GPU Adam's step is an array without dimensions.
    return arrays, {k: v.item() if hasattr(v, "dtype") else v
                    for k, v in state.items() if k not in arrays}


def buffers(model):
    """Returns the persistent buffers, as whole Regions."""
    return [whole(name, owner._buffers[key]) for module in modules(model)
            for name, (owner, table, key) in unwrapped(module)._state_slots().items()
            if table == "_buffers"]


def generators(model):
    """Returns {name: Generator}. The rank's default generator has the name "". The other generators
    are attributes of modules."""
    return {"": default_generator()} | {
        f"{name}.{key}": value for outer in modules(model)
        for name, module in unwrapped(outer).named_modules()
        for key, value in vars(module).items() if isinstance(value, Generator)}


def bucket_orders(model):
    """Returns a list of (reducer, its parameters in the order of its buckets), one for each
    DataParallel module. The order must be saved, because the rounding of sums depends on it.
    Returns [] for other models."""
    return [(module.reducer, [p for bucket in module.reducer.buckets for p in bucket.params])
            for module in modules(model) if isinstance(module, DataParallel)
            and not isinstance(module, (Zero1, Compressed))]
