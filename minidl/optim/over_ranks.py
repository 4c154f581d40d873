"""Numbers of gradients that several ranks hold together: one norm, one decision to skip.

    rank 0   [ block 0 of w ]  [ expert 0 ]  [ whole b ]
    rank 1   [ block 1 of w ]  [ expert 1 ]  [ whole b ]

    |g|^2 = |block 0|^2 + |block 1|^2 + |expert 0|^2 + |expert 1|^2 + |b|^2        on both ranks

A list of parameters may mix kinds: shards of a ZeRO stage, parts of a weight (tensor parallelism),
other weights on each rank (experts, a pipeline's stages), whole weights. Each parameter names the
groups of ranks that hold its other parts (`sharded_by` of nn.Parameter). The list's groups are
asked one after the other, each once: an all-reduce of 8 bytes over its ranks. A parameter that a
group does not divide is the same on all n ranks of that group, so each of them adds a part 1/n.

All ranks of a group must call, with lists that name the same groups.

Test: tests/parallel/test_mixed_parameters.py
Used by: clip.py, precision/grad_scaler.py, optimizer.py
"""

import math

from minidl import backend
from minidl.cuda.grad_norm import two_norm


def groups_of(leaves):
    """Returns the groups that hold shards of these leaves, a tuple, each once. The latest division
    comes first on every rank, so that no two ranks wait for each other in different groups."""
    depth = {}
    for leaf in leaves:
        for i, group in enumerate(getattr(leaf, "sharded_by", ())):
            depth[group] = max(i, depth.get(group, 0))
    return tuple(sorted(depth, key=lambda group: -depth[group]))


def square_sum(parameters, gradient=lambda p: backend.array_of(p.grad), leaf_of=lambda p: p):
    """Returns the sum of squares of all gradients on all ranks: a float, the same everywhere.

    gradient(p) is p's gradient array or None; leaf_of(p) the model's leaf that p is a master of."""
    parameters = list(parameters)
    groups = groups_of(map(leaf_of, parameters))
    by_share = {}  # on how many ranks the same gradient is -> gradients
    for p in parameters:
        if (g := gradient(p)) is not None:
            by_share.setdefault(n_equal(leaf_of(p), groups), []).append(g)
    total = sum(two_norm(grads) ** 2 / n for n, grads in by_share.items())
    for group in groups:
        total = group.sum_over_ranks(total)
    return total


def n_equal(leaf, groups):
    """Returns how many ranks of these groups together have the same values as this leaf here."""
    mine = getattr(leaf, "sharded_by", ())
    others = math.prod(group.t.size for group in groups if group not in mine)
    return getattr(leaf, "copies", 1) * others


def on_any_rank(groups, flag):
    """Returns whether the flag is true on any rank of the groups."""
    for group in groups:
        flag = group.on_any_rank(flag)
    return bool(flag)
