"""The double tree: an all-reduce with few steps in which every rank has work.

In a binary tree half of the ranks are leaves. A leaf only sends to its parent, while an inner rank
receives from two children and sends to its parent. So the leaves have less work. That is why there
are two trees: the leaves of one tree are the inner ranks of the other tree. Each tree sums one half
of the array.

    8 ranks   tree 1       0                tree 2       7        rank r of tree 1
                           4                             3        is rank 7-r of tree 2
                      2         6                   5         1
                    1   3     5   7               6   4     2   0

In tree 1 rank 0 is the root. The height of any other rank is the number of zeros at the end of its
binary form. So ranks 1, 3, 5 and 7 have height 0, ranks 2 and 6 have height 1, and rank 4 has
height 2. A rank r of height h has two candidates for its parent: r - 2^h and r + 2^h. Exactly one
of them has the height h+1. This one is the parent. But r + 2^h may be n or more, and then it does
not exist. Then the parent is r - 2^h. (In binary, this is r with its last 1 changed to 0.) With 8
ranks, the parent of 4 would be 4 + 4 = 8, which does not exist. So its parent is 4 - 4 = 0.

If n is even, tree 2 is the mirror image of tree 1. If n is odd, rank r+1 has the position in
tree 2 that rank r has in tree 1. Then rank 0 is an inner rank in both trees.

The depth is log2 n, rounded up. For an array of K bytes all ranks together send 2 (n-1) K, as in
the ring. An inner rank sends K/2 to its parent and K/2 to each of its two children. In the other
tree it is a leaf, and sends K/2 to its parent. Together this is 2K.

Papers: Sanders, Speck & Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", 2009; Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019. This page
is the plain version. The real one, minidl/comm/double_tree.py, adds: halves that are sent in
segments, one after the other; steps that both trees do together; other operations than the sum; and
a formula for the bytes that are sent.
"""

import numpy as np

from minidl.plain.hierarchical import Group


def parent(rank, n):
    """Returns the parent of a rank in tree 1 of n ranks, or None for rank 0, the root."""
    if rank == 0:
        return None
    lowest = 1  # 2^h, the value of the last 1 in the binary form of `rank`
    while rank % (2 * lowest) == 0:
        lowest = 2 * lowest
    without = rank - lowest
    # `without` and rank + lowest are multiples of 2 * lowest. One of them is not a multiple of
    # 4 * lowest. This one has the height h+1, so it is the parent.
    up = without if without % (4 * lowest) == 2 * lowest else rank + lowest
    return up if up < n else without


def children(rank, n):
    """Returns the children of a rank in tree 1 of n ranks."""
    return [child for child in range(n) if parent(child, n) == rank]


def both_trees(t):
    """Returns two transports of all ranks. In the first transport the ranks keep their numbers. In
    the second transport they have new numbers. So a function for tree 1 that runs on the second
    transport sends along tree 2."""
    n = t.size
    mirrored = [n - 1 - i for i in range(n)]
    moved_on = [(i + 1) % n for i in range(n)]
    return Group(t, range(n)), Group(t, mirrored if n % 2 == 0 else moved_on)


def reduce(t, x):
    """Sums x over all ranks along tree 1. The ranks have the numbers of the transport t. Rank 0
    gets the sum in its x."""
    for child in children(t.rank, t.size):
        x += t.recv(np.empty_like(x), child)
    if t.rank != 0:
        t.send(x, parent(t.rank, t.size))


def broadcast(t, x):
    """Copies the x of rank 0 to all ranks, along tree 1."""
    if t.rank != 0:
        t.recv(x, parent(t.rank, t.size))
    for child in children(t.rank, t.size):
        t.send(x, child)


def all_reduce(t, x):
    """Sums x, a vector, over all ranks, in place. Returns x."""
    halves = np.array_split(x, 2)  # views of x
    for tree, half in zip(both_trees(t), halves):
        reduce(tree, half)
    for tree, half in zip(both_trees(t), halves):
        broadcast(tree, half)
    return x


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        below = []
        for tree in both_trees(t):
            below.append([tree.ranks[child] for child in children(tree.rank, t.size)])
        return below, all_reduce(t, np.array([1, 10]) * (t.rank + 1))

    for rank, (below, x) in enumerate(simulate(4, example)):
        print("rank", rank, " children in tree 1", below[0], " in tree 2", below[1], " sum", x)
