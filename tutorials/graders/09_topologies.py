"""Grades work/09_topologies.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

from minidl.comm import Ledger, simulate
from minidl.course.grade import Wrong


def second_tree(module, p):
    return list(module.second_tree(p))


def _first_tree(p):
    """Returns the tutorial's first tree: the parent of every rank."""
    parents = [None]
    for r in range(1, p):
        bit = r & -r
        up = (r ^ bit) | (bit << 1)
        parents.append(up if up < p else r ^ bit)
    return parents


def grade_09a(student):
    """both trees are binary and of least height; only rank 0, for odd p, is inner in both."""
    for p in (4, 2, 8, 16, 3, 5, 7):
        second = student.run(second_tree, p)
        _is_tree(second, p)
        inner = [{up for up in tree if up is not None} for tree in (_first_tree(p), second)]
        both = sorted(inner[0] & inner[1])
        if p % 2 == 0 and both:
            raise Wrong(f"p = {p}: {_ranks(both)} inner in both trees, and will send most. For "
                        "even p every rank can be a leaf in one tree. Does the renaming "
                        "exchange odd and even ranks?")
        if p % 2 and both not in ([], [0]):
            raise Wrong(f"p = {p}: {_ranks(both)} inner in both trees. For odd p only rank 0 "
                        "may be inner in both. For odd p the mirror image p-1-r of an odd rank "
                        "is odd, so it is still a leaf. Did you try r+1?")
        yield f"{p} ranks: a binary tree of height {math.ceil(math.log2(p))}, inner in both: {both}"
    for p in (4, 5, 8):
        n = 240
        for rank, (x, n_bytes) in enumerate(student.run(reduced_on_trees, p, n)):
            if (x != sum(range(p)) + p * np.arange(n)).any():
                raise Wrong(f"rank {rank} of {p}: the sum on both trees is wrong")
            if n_bytes > 2 * 8 * n:
                k = n_bytes / (8 * n)
                raise Wrong(f"rank {rank} of {p} sends {n_bytes:,} bytes, {k:g} times the "
                            "size of x. 2 times the size is enough")
        yield f"{p} ranks: the right sum, no rank sends more than 2 K"


def _is_tree(parents, p):
    if len(parents) != p or parents.count(None) != 1:
        raise Wrong(
            f"p = {p}: wanted the parent of each of {p} ranks, and None for one root; got {parents}"
        )
    for rank, parent in enumerate(parents):
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < p):
            raise Wrong(f"p = {p}: the parent of rank {rank} is {parent!r}. That is no rank: ranks "
                        "are 0 to "
                        f"{p - 1}, and the mirror image of r is p-1-r")
    for rank in range(p):
        up, path = rank, [rank]
        while parents[up] is not None:
            up = parents[up]
            path.append(up)
            if len(path) > p:
                circle = " -> ".join(map(str, path[: path.index(up, 1) + 1][:6]))
                raise Wrong(
                    f"p = {p}: from rank {rank} the way up never ends at the root: {circle} ... "
                    "Did you rename the parents as well as the ranks?"
                )
        if len(path) - 1 > math.ceil(math.log2(p)):
            raise Wrong(
                f"p = {p}: rank {rank} is {len(path) - 1} steps below the root; "
                f"{math.ceil(math.log2(p))} are enough"
            )
    for rank in range(p):
        if parents.count(rank) > 2:
            raise Wrong(f"p = {p}: rank {rank} has {parents.count(rank)} children; want at most 2")


def _ranks(ranks):
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {ranks} are"


def reduced_on_trees(module, p, n):
    """Returns for each rank (the sum, bytes sent)."""
    def body(t):
        t = Ledger(t)
        x = np.arange(n) + float(t.rank)
        module.double_tree_all_reduce(t, x)
        return x, t.bytes_sent

    return simulate(p, body)


def grade_09b(student):
    """all ranks hold the sum, and each sends only 2 (m-1)/m K/g bytes between nodes."""
    for p, g in [(4, 2), (8, 2), (8, 4), (6, 3), (3, 1), (5, 5)]:
        n, m = 24 * p, p // g
        total = (3.0**p - 1) / 2  # rank r adds 3^r, so digit r in base 3 counts rank r
        for rank, (x, inside, between) in enumerate(student.run(reduced_on_nodes, p, n, g)):
            where = f"{p} ranks in nodes of {g}, rank {rank}"
            if (x != total).any():
                raise Wrong(f"{where}: {_who_is_in(x, total, p, g, rank)}")
            if between != 2 * (m - 1) * 8 * n // p:
                raise Wrong(f"{where} sends {between:,} bytes between nodes, but "
                            f"{2 * (m - 1) * 8 * n // p:,} are enough: a rank sends only the chunk "
                            "that it owns inside the node")
            if inside != 2 * (g - 1) * 8 * n // g:
                raise Wrong(f"{where} sends {inside:,} bytes inside its node, but reduce-scatter "
                            f"and all-gather need {2 * (g - 1) * 8 * n // g:,}")
        yield f"{p} ranks in {m} nodes of {g}: sums, bytes inside, bytes between"


def reduced_on_nodes(module, p, n, g):
    """Returns for each rank (the sum, bytes sent inside its node, bytes sent between nodes)."""
    def body(t):
        ledger = Ledger(t)
        x = np.full(n, 3.0**t.rank)
        module.hierarchical_all_reduce(ledger, x, module.node_groups(ledger, g))
        node = range(t.rank // g * g, t.rank // g * g + g)
        inside = sum(ledger.count(peer=peer).bytes_sent for peer in node)
        return x, inside, ledger.bytes_sent - inside

    return simulate(p, body)


def _who_is_in(x, total, p, g, rank):
    """Returns a hint: which ranks' arrays are in the first wrong element."""
    i = int(np.flatnonzero(x != total)[0])
    counts = [int(x[i] // 3.0**r) % 3 for r in range(p)]
    if sum(c * 3.0**r for r, c in enumerate(counts)) != x[i]:
        return f"element {i} is {x[i]:g}. That is no sum of the ranks' arrays: some are in it twice"
    present = [r for r, c in enumerate(counts) if c]
    text = f"element {i} holds the sum of the ranks {present}, wanted all ranks"
    first = rank // g * g
    if present == list(range(first, first + g)):
        return text + ": only of this node. Do you sum across the nodes before you gather?"
    if (x == total).any():
        return text + ". Other elements are complete. Do the complete chunks reach all ranks?"
    return text


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "09a": {
        "the same tree twice": ("return first", "inner in both trees, and will send most"),
        "the mirror image for every p": (
            "return [None if up is None else p - 1 - up for up in reversed(first)]",
            "For odd p only rank 0 may be",
        ),
        "reversed but not renamed": ("return first[::-1]", "Did you rename the parents"),
        "in-order tree, moved on by one": (
            '''
parents = [None] * p

def grow(low, high, parent):
    if low < high:
        middle = (low + high) // 2
        parents[(middle + 1) % p] = None if parent is None else (parent + 1) % p
        grow(low, middle, middle)
        grow(middle + 1, high, middle)

grow(0, p, None)
return parents
''',
            "inner in both trees",
        ),
        "a chain": ("return [None, *range(p - 1)]", "steps below the root"),
        "a star": ("return [p - 1] * (p - 1) + [None]", "want at most 2"),
        "no root": ("return [p - 1 - (up or 0) for up in first[::-1]]", "for one root"),
    },
    "09b": {
        "all of x between nodes": (
            """
ring.reduce_scatter(inside, x)
ring.all_reduce(across, x)
ring.all_gather(inside, x)
""",
            "bytes between nodes",
        ),
        "forgets to gather": (
            """
chunk = ring.reduce_scatter(inside, x)
ring.all_reduce(across, chunk)
""",
            "Do the complete chunks reach all ranks?",
        ),
        "gathers too early": (
            """
chunk = ring.reduce_scatter(inside, x)
ring.all_gather(inside, x)
ring.all_reduce(across, chunk)
""",
            "Do you sum across the nodes before you gather?",
        ),
        "forgets the other nodes": (
            """
chunk = ring.reduce_scatter(inside, x)
ring.all_gather(inside, x)
""",
            "only of this node",
        ),
        "two whole all-reduces": (
            """
ring.all_reduce(inside, x)
ring.all_reduce(across, x)
""",
            "bytes between nodes",
        ),
        "one flat ring": ("ring.all_reduce(t, x)", "bytes between nodes"),
    },
}
