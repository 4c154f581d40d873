"""Layer-wise rates: each weight tensor moves by a share of its own length.

    ratio = |w| / |direction|        one number a tensor, from norms of the WHOLE tensor
    w     = w - lr * ratio * direction

With one rate for all layers the largest batch that still trains is set by the layer whose gradient
is longest beside its weights; with a ratio for each, that layer takes a shorter step and the others
need not. LARS (lars.py) takes SGD's direction, LAMB (lamb.py) Adam's. The ratio is 1 where either
norm is 0 (a layer that starts from zeros could not leave them), and in groups with adapt=False:
biases and the weights of norms, by custom (`groups_by_ndim`).

Under ZeRO a rank has a part of a tensor, and the norm of a part is not the norm:

    bucket   |w1 w1 w1 w1|w2 w2 w2|w3|      rank 0 sums the squares of its part of w1,
    ranks    |--- 0 ---|--- 1 ---|- 2 |     rank 1 of w1 and w2, ...; one all-reduce adds them:

2 numbers of 8 bytes for each parameter of the group, zeros for those that a rank has nothing of. A
list may have shards of several ZeRO stages and whole tensors: one all-reduce for each stage.

Sources: You et al. 2017 (arXiv 1708.03888), 2019 (arXiv 1904.00962).
Test: tests/optim/test_layerwise.py, tests/parallel/zero/test_whole_tensors.py
Tutorial: tutorials/18_large_batch.py
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import to_device, xp_of
from minidl.cuda.launch import on_device
from minidl.optim.optimizer import Optimizer, fusable, low_arrays
from minidl.precision import bf16

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from minidl.tensor import Tensor

# Elements [begin, end) of parameter `index` of a list. They are a whole tensor, or what this rank
# has of tensor number `tensor` of a ZeRO stage.
Piece = namedtuple("Piece", "index begin end stage tensor")


def groups_by_ndim(params: Iterable[Tensor], **vectors: Any) -> list[dict[str, Any]]:
    """Two groups for LARS or LAMB: the parameters of two and more dimensions; and the others, whose
    options are adapt=False and weight_decay=0 unless given."""
    params = list(params)
    return [{"params": [p for p in params if p.ndim > 1]},
            {"params": [p for p in params if p.ndim <= 1], "adapt": False, "weight_decay": 0.0,
             **vectors}]


def pieces(params, leaf_of):
    """Returns (Pieces, {ZeRO stage: its number of tensors in this list}). A parameter is a tensor,
    in one piece; a ZeRO stage's shard has a piece of each tensor that it is cut from."""
    found, n_tensors = [], {}
    index = {leaf_of(p): i for i, p in enumerate(params)}
    for leaf, i in index.items():
        stage = stage_of(leaf)
        if getattr(leaf, "part", None) is not None:
            raise TypeError(SLICES)
        if stage is None:
            if leaf.numel():
                found.append(Piece(i, 0, leaf.numel(), None, None))
        elif stage not in n_tensors:
            parts = [part for part in stage.parts() if part[1] in index]  # as many on every rank
            if any(p.part is not None for _, _, p, _, _, _ in parts):
                raise TypeError(SLICES)
            n_tensors[stage] = len(parts)
            found += [Piece(index[shard], offset, offset + end - first, stage, tensor)
                      for tensor, (_, shard, _, offset, first, end) in enumerate(parts)
                      if first < end]
    return found, n_tensors


SLICES = ("LARS and LAMB want the norms of whole tensors, and here a rank has slices of them. Use "
          "AdamW or SGD with tensor parallelism")


def stage_of(leaf):
    """Returns the ZeRO stage that this leaf is a shard of, or None."""
    return next((group for group in getattr(leaf, "sharded_by", ()) if hasattr(group, "parts")),
                None)


class Layerwise(Optimizer):
    """What LARS and LAMB share. A subclass names the arrays of its state and has the step twice,

        kernel(ws, gs, arrays, steps, group, join, unscale, low, skip)     by its `kernels`
        plain(ws, gs, arrays, steps, group, join)                          in NumPy's operations

    for lists of pieces. `join(w2, d2)` makes of the pieces' sums of squares, an array of one number
    for each, those of the whole tensors."""

    whole_tensors = True  # a part of a tensor will not do (parallel/zero/offload.py)
    state_arrays = ()
    kernels = ()  # what the method `kernel` launches: the arguments of `fusable`

    def advance(self, p, state):
        """The parameter's state for its next step; the first step makes it."""
        for name in self.state_arrays:
            if name not in state:
                state[name] = p._xp.zeros_like(p.array)
        return state

    def count(self, params, states, skip):
        """The number of steps of each parameter, this one included, where it matters: an array."""

    def update_group(self, params, grads, group, unscale, skip=None):
        fused = fusable(params, grads, *self.kernels)
        if not fused and skip is not None and bool(skip):  # the host waits; a kernel need not
            return
        found, n_tensors = pieces(params, self.leaf_of)
        if not found:  # this rank has nothing of these tensors; the others wait for its zeros
            sums_over_ranks(found, n_tensors, np.zeros(0), np.zeros(0))
            return
        states = [self.advance(p, self.state.setdefault(p, {})) for p in params]
        steps = self.count(params, states, skip)
        if steps is not None:
            steps = steps[on_device(xp_of([steps]), np.array([p.index for p in found], np.int64))]

        def cut(arrays):
            return [arrays[p.index] if p.stage is None else arrays[p.index][p.begin:p.end]
                    for p in found]

        def join(w2, d2):
            return sums_over_ranks(found, n_tensors, w2, d2)

        if fused:
            low = low_arrays(self.low, params, grads)
            self.kernel(cut([p.array for p in params]), cut(grads),
                        [cut([s[name] for s in states]) for name in self.state_arrays],
                        steps, group, join, unscale, low and cut(low), skip)
            if low is None:
                self.write_low(params)
            return
        # bfloat16 without a master copy is computed in float32, then rounded with its state
        wide = [bf16.widen(p.array) for p in params]
        arrays = [[bf16.widen(s[name]) for s in states] for name in self.state_arrays]
        grads = [unscaled(g.astype(np.float32) if p in self.low else bf16.widen(g), unscale)
                 for p, g in zip(params, grads, strict=True)]
        self.plain(cut(wide), cut(grads), [cut(a) for a in arrays], steps, group, join)
        for i, (p, state) in enumerate(zip(params, states, strict=True)):
            if wide[i] is not p.array:
                p.array[...] = wide[i]
                for name, array in zip(self.state_arrays, arrays, strict=True):
                    state[name] = array[i].astype(p.dtype)
        self.write_low(params)


def unscaled(g, unscale):
    if hasattr(unscale, "dtype"):
        return g * unscale.astype(g.dtype)
    return g if unscale == 1.0 else g * g.dtype.type(unscale)


def sums_over_ranks(found, n_tensors, w2, d2):
    """Returns the pieces' sums of squares as sums over all ranks' pieces of the same tensor: for
    each ZeRO stage one all-reduce of 2 * n_tensors float64. On a GPU the host waits for them."""
    if not n_tensors:
        return w2, d2
    xp = xp_of([w2])
    mine = to_device(xp.stack([w2, d2], 1), "cpu")
    for stage, n in n_tensors.items():
        here = [i for i, p in enumerate(found) if p.stage is stage]
        tensors = [found[i].tensor for i in here]
        sums = np.zeros((n, 2))
        sums[tensors] = mine[here]  # a rank has at most one piece of a tensor
        stage.sum_in_place(sums)
        mine[here] = sums[tensors]
    return on_device(xp, np.ascontiguousarray(mine.T))


def square_sums(arrays):
    """The sum of squares of each array, float64, without a kernel."""
    xp = xp_of(arrays)
    sums = xp.empty(len(arrays))
    for i, a in enumerate(arrays):
        sums[i] = xp.square(a, dtype=np.float64).sum()
    return sums


def ratio_of(length, direction, clamp=None):
    """length / direction, 1 where either is 0, element by element; clamp: (least, most)."""
    xp = xp_of([length])
    adapts = (length > 0) & (direction > 0)
    ratio = xp.where(adapts, length / xp.where(adapts, direction, 1.0), 1.0)
    return ratio if clamp is None else xp.where(adapts, xp.clip(ratio, *clamp), 1.0)
