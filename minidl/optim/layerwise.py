"""Layer-wise rates: the step of each weight tensor is proportional to the tensor's length.

    ratio = |w| / |direction|        one number for each tensor, from norms of the WHOLE tensor
    w     = w - lr * ratio * direction

With one rate for all layers, a single layer limits the size of the batch. The gradient of this
layer is the longest, compared with its weights, so this layer diverges first. With a ratio for each
layer, only this layer takes shorter steps. LARS (lars.py) uses SGD's direction. LAMB (lamb.py) uses
Adam's direction.

The ratio is 1 if one of the norms is 0. Otherwise a layer of zeros could never change. The ratio is
also 1 in groups with adapt=False. Biases and the weights of norms usually are in such a group
(`groups_by_ndim`).

Under ZeRO a rank has a part of a tensor, and the norm of the part is not the norm of the tensor:

    bucket   |w1 w1 w1 w1|w2 w2 w2|w3|      rank 0 sums the squares of its part of w1,
    ranks    |--- 0 ---|--- 1 ---|- 2 |     rank 1 of its parts of w1 and w2, ...

One all-reduce adds these sums. Its message has 2 numbers of 8 bytes for each parameter of the
group. A rank sends zeros for a tensor if it has no part of the tensor. A list of parameters may
have whole tensors and shards of several ZeRO stages. Then there is one all-reduce for each stage.

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
from minidl.optim.optimizer import Optimizer, fusable, low_arrays, unscaled
from minidl.precision import bf16

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from minidl.tensor import Tensor

# A Piece is the elements [begin, end) of parameter number `index` of a list. If `stage` is None,
# these elements are a whole tensor. Otherwise `stage` is a ZeRO stage, and the elements are this
# rank's part of its tensor number `tensor`.
Piece = namedtuple("Piece", "index begin end stage tensor")


def groups_by_ndim(params: Iterable[Tensor], **vectors: Any) -> list[dict[str, Any]]:
    """Returns two parameter groups for LARS or LAMB. The first group has the parameters of two and
    more dimensions, the second group has the others. The second group has the options adapt=False
    and weight_decay=0. The keyword arguments `vectors` are more options for the second group. They
    may also override these two options."""
    params = list(params)
    return [{"params": [p for p in params if p.ndim > 1]},
            {"params": [p for p in params if p.ndim <= 1], "adapt": False, "weight_decay": 0.0,
             **vectors}]


def pieces(params, leaf_of):
    """Returns (found, n_tensors). found: a list of Pieces. A whole parameter is one Piece. The
    shard of a ZeRO stage has elements of several tensors, and one Piece for each of these tensors.
    n_tensors: {ZeRO stage: the number of its tensors}. leaf_of(p) returns the model's parameter for
    p: the 2-byte parameter if p is a master weight, else p. Raises TypeError if tensor parallelism
    has divided a tensor."""
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
            # parts() lists the tensors of the whole stage, so n_tensors is the same on all ranks
            parts = [part for part in stage.parts() if part[1] in index]
            if any(p.part is not None for _, _, p, _, _, _ in parts):
                raise TypeError(SLICES)
            n_tensors[stage] = len(parts)
            found += [Piece(index[shard], offset, offset + end - first, stage, tensor)
                      for tensor, (_, shard, _, offset, first, end) in enumerate(parts)
                      if first < end]
    return found, n_tensors


SLICES = ("LARS and LAMB want the norm of each whole tensor, but this rank has slices of tensors. "
          "With tensor parallelism use AdamW or SGD")


def stage_of(leaf):
    """Returns the ZeRO stage that has this leaf as a shard, or None."""
    return next((group for group in getattr(leaf, "sharded_by", ()) if hasattr(group, "parts")),
                None)


class Layerwise(Optimizer):
    """The common part of LARS and LAMB. A subclass sets `state_arrays`, the names of the arrays of
    its state, and writes the step twice, for lists of pieces:

        kernel(ws, gs, arrays, steps, group, join, unscale, low, skip)     launches `kernels`
        plain(ws, gs, arrays, steps, group, join)                          uses NumPy's operations

    `join(w2, d2)` is a function. For each piece, w2 has the sum of the squares of its weights, and
    d2 has the sum of the squares of its direction. join() returns two arrays of the same shape,
    with the sums for the whole tensors."""

    whole_tensors = True  # an update needs whole tensors, so Offload refuses shards
    state_arrays = ()
    kernels = ()  # the kernels that the method `kernel` launches

    def advance(self, p, state):
        """Returns the state of a parameter for its next step. The first call fills the state."""
        for name in self.state_arrays:
            if name not in state:
                state[name] = p._xp.zeros_like(p.array)
        return state

    def count(self, params, states, skip):
        """A subclass may return an array with the step count of each parameter, this step included.
        This method returns None, because LARS needs no counts."""

    def update_group(self, params, grads, group, unscale, skip=None):
        fused = fusable(params, grads, *self.kernels)
        if not fused and skip is not None and bool(skip):  # bool() makes the host wait for the GPU
            return
        found, n_tensors = pieces(params, self.leaf_of)
        if not found:  # a rank without pieces must take part in the sums, too
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
        # A bfloat16 weight without a master copy is updated in float32. Then the weight and its
        # state are rounded.
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


def sums_over_ranks(found, n_tensors, w2, d2):
    """Returns (w2, d2), where the sum of squares of each piece is replaced by the sum for the whole
    tensor. Runs one all-reduce for each ZeRO stage. It sends 2 float64 numbers for each tensor. If
    w2 and d2 are on a GPU, the host waits for the sums."""
    if not n_tensors:
        return w2, d2
    xp = xp_of([w2])
    mine = to_device(xp.stack([w2, d2], 1), "cpu")
    for stage, n in n_tensors.items():
        here = [i for i, p in enumerate(found) if p.stage is stage]
        tensors = [found[i].tensor for i in here]
        sums = np.zeros((n, 2))
        sums[tensors] = mine[here]  # a rank has at most one piece of a tensor, so no sum is needed
        stage.sum_in_place(sums)
        mine[here] = sums[tensors]
    return on_device(xp, np.ascontiguousarray(mine.T))


def square_sums(arrays):
    """Returns the sum of squares of each array, float64. Uses no kernel."""
    xp = xp_of(arrays)
    sums = xp.empty(len(arrays))
    for i, a in enumerate(arrays):
        sums[i] = xp.square(a, dtype=np.float64).sum()
    return sums


def ratio_of(length, direction, clamp=None):
    """Returns length / direction, element by element. A result is 1 if one of these two numbers is
    0. clamp: (least, most), limits of the quotient, or None."""
    xp = xp_of([length])
    adapts = (length > 0) & (direction > 0)
    ratio = xp.where(adapts, length / xp.where(adapts, direction, 1.0), 1.0)
    return ratio if clamp is None else xp.where(adapts, xp.clip(ratio, *clamp), 1.0)
