"""The norm of gradients that are divided among several ranks, and the decision to skip a step.

    rank 0   [ block 0 of w ]  [ expert 0 ]  [ whole b ]
    rank 1   [ block 1 of w ]  [ expert 1 ]  [ whole b ]

    |g|^2 = |block 0|^2 + |block 1|^2 + |expert 0|^2 + |expert 1|^2 + |b|^2        on both ranks

A list may have four kinds of parameters: shards of a ZeRO stage, parts of a weight (tensor
parallelism), weights that only one rank has (experts, stages of a pipeline), and whole weights.
Each parameter has a tuple of the groups of ranks that hold its other parts (`sharded_by` of
nn.Parameter). For each such group there is one all-reduce of 8 bytes over the ranks of the group.
If a group does not divide a parameter, all n ranks of the group have the same gradient of this
parameter. So each rank adds only 1/n of the square of this gradient.

All ranks of a group must call these functions. The parameters in their lists must have the same
groups.

Test: tests/parallel/test_mixed_parameters.py
Used by: clip.py, precision/grad_scaler.py, optimizer.py
"""

import math

from minidl import backend
from minidl.cuda.grad_norm import two_norm


def groups_of(leaves):
    """Returns a tuple of the groups that divide these leaves, each group once. The order is the
    same on every rank: the group that divided a parameter last comes first. With different orders,
    two ranks could wait for each other in different groups for ever."""
    depth = {}
    for leaf in leaves:
        for i, group in enumerate(getattr(leaf, "sharded_by", ())):
            depth[group] = max(i, depth.get(group, 0))
    return tuple(sorted(depth, key=lambda group: -depth[group]))


def square_sum(parameters, gradient=lambda p: backend.array_of(p.grad), leaf_of=lambda p: p):
    """Returns the sum of squares of all gradients on all ranks: a float, the same on each rank.

    gradient(p) returns the gradient array of p, or None. leaf_of(p) returns the model's parameter
    for p: if p is a master weight, its 2-byte parameter."""
    parameters = list(parameters)
    groups = groups_of(map(leaf_of, parameters))
    by_share = {}  # {number of ranks that hold the same gradient: gradients}
    for p in parameters:
        if (g := gradient(p)) is not None:
            by_share.setdefault(n_equal(leaf_of(p), groups), []).append(g)
    total = sum(two_norm(grads) ** 2 / n for n, grads in by_share.items())
    for group in groups:
        total = group.sum_over_ranks(total)
    return total


def n_equal(leaf, groups):
    """Returns how many ranks of these groups hold the same values of this leaf, this rank
    included."""
    mine = getattr(leaf, "sharded_by", ())
    others = math.prod(group.t.size for group in groups if group not in mine)
    return getattr(leaf, "copies", 1) * others


def on_any_rank(groups, flag):
    """Returns True if `flag` is true on at least one rank of the groups. All these ranks must call
    this function."""
    for group in groups:
        flag = group.on_any_rank(flag)
    return bool(flag)
