"""Formulas for the time, the messages and the bytes of each collective.

Test: tests/comm/test_cost.py (equal to the simulator's clock and the ledger's counts)
Tutorial: tutorials/09_topologies.py

    alpha   seconds per message (latency)         n   ranks
    beta    seconds per byte of the link          K   bytes of the array on one rank
    gamma   seconds per byte of the reduction     p   the largest power of two <= n

Each function returns a Cost. The function's docstring is the formula of the time. The argument
n_bytes is K.

The model is Hockney's (1994). A rank can send and receive at the same time (full duplex). The
formulas are from Thakur, Rabenseifner & Gropp (2005), unless a docstring names another source. A
Cost has the numbers of messages and bytes of the busiest rank, the rank that *sends* the most
bytes. The formulas are exact in these cases:

    ring                          n divides the number of elements L; else the bytes are the mean
                                  over all ranks
    binomial tree                 n is a power of two; else the formulas are upper bounds
    halving and doubling          L is a multiple of p
    doubling all-reduce           n is a power of two; else the time is an upper bound
    double tree                   any n, one segment; for more segments the time is an upper bound
    hierarchical                  nodes of equal size; the number of all ranks divides L

For the bytes of every rank and any length, see `bytes_sent` in each algorithm's file.
"""

import math
from typing import NamedTuple

from minidl.comm.halving_doubling import core


class Cost(NamedTuple):
    """The cost of a collective.

    messages, n_bytes: how many messages and bytes the busiest rank sends. time_s: the modelled
    seconds until all ranks are done."""

    messages: int
    n_bytes: float
    time_s: float


def ring_reduce_scatter(n, n_bytes, alpha, beta, gamma=0.0):
    """(n-1) (alpha + K/n beta + K/n gamma)"""
    part = n_bytes / n
    return Cost(n - 1, (n - 1) * part, (n - 1) * (alpha + part * (beta + gamma)))


def ring_all_gather(n, n_bytes, alpha, beta):
    """(n-1) (alpha + K/n beta)"""
    return ring_reduce_scatter(n, n_bytes, alpha, beta)


def ring_all_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """2(n-1) alpha + 2(n-1)/n K beta + (n-1)/n K gamma"""
    scatter = ring_reduce_scatter(n, n_bytes, alpha, beta, gamma)
    return _then(scatter, ring_all_gather(n, n_bytes, alpha, beta))


def tree_broadcast(n, n_bytes, alpha, beta):
    """ceil(log2 n) (alpha + K beta)"""
    steps = (n - 1).bit_length()
    return Cost(steps, steps * n_bytes, steps * (alpha + n_bytes * beta))


def tree_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """ceil(log2 n) (alpha + K beta + K gamma). Each rank sends at most one message"""
    steps = (n - 1).bit_length()
    once = min(n - 1, 1)
    return Cost(once, once * n_bytes, steps * (alpha + n_bytes * (beta + gamma)))


def tree_all_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """2 ceil(log2 n) (alpha + K beta) + ceil(log2 n) K gamma"""
    # The root does not send in the reduce. In the broadcast the root is the busiest rank.
    down = tree_broadcast(n, n_bytes, alpha, beta)
    return down._replace(time_s=down.time_s + tree_reduce(n, n_bytes, alpha, beta, gamma).time_s)


def halving_doubling_all_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """2 log2 p alpha + 2 (p-1)/p K beta + (p-1)/p K gamma. If n > p, the fold
    (halving_doubling.py) takes 2 alpha + 2 K beta + K gamma more"""
    p, fold = core(n), int(n > core(n))
    steps, moved = p.bit_length() - 1, (p - 1) * (n_bytes / p)
    once = moved + fold * n_bytes
    time_s = 2 * ((steps + fold) * alpha + once * beta) + once * gamma
    return Cost(2 * steps + fold, 2 * moved + fold * n_bytes, time_s)


def doubling_all_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """log2 p (alpha + K beta + K gamma). If n > p, the fold (halving_doubling.py) takes
    2 alpha + 2 K beta + K gamma more"""
    p, fold = core(n), int(n > core(n))
    steps = p.bit_length() - 1
    time_s = (steps + 2 * fold) * (alpha + n_bytes * beta) + (steps + fold) * n_bytes * gamma
    return Cost(steps + fold, (steps + fold) * n_bytes, time_s)


def double_tree_all_reduce(n, n_bytes, alpha, beta, gamma=0.0, segments=1):
    """2H alpha + (2H-1) K/S beta for the first segment, alpha + 2 K/S beta for each further
    segment, and (S+H-1) K/S gamma. H is the height ceil(log2 n) of the trees. S is the number of
    segments of each half.

    The formula is ours. A segment has K/2S bytes in each tree. Here these bytes are called a part.
    On the way up, a rank's link carries one part at the root's level, and two parts at each of the
    other H-1 levels. The way down takes the same time. So the first segment takes the time of
    2(2H-1) parts, which are (2H-1) K/S bytes. If n is not a power of two, the first segment takes
    one part less on the way up, and one part less on the way down. Each further segment takes the
    time of four parts. An inner rank of a tree sends one part up and two parts down. In the other
    tree this rank is a leaf, and sends one part up. At each level a rank adds two parts, in K/S
    gamma seconds."""
    if n == 1:
        return Cost(0, 0, 0.0)
    height = (n - 1).bit_length()
    part = n_bytes / segments
    first = 2 * height - 1 - int(n > core(n))
    time_s = (segments + 2 * height - 1) * alpha + (2 * (segments - 1) + first) * part * beta
    time_s += (segments + height - 1) * part * gamma
    return Cost(min(n, 4) * segments, min(n, 4) * n_bytes / 2, time_s)


def hierarchical_all_reduce(n_nodes, node_size, n_bytes, inside, between, gamma=0.0, share=1):
    """The sum of these three times, where m is n_nodes and g is node_size:

    2(g-1) (alpha + K/g beta)     on the links inside the nodes, for rings of g ranks
    2(m-1) (alpha + K/gm beta)    on the links between the nodes, for rings of m ranks
    (1 - 1/gm) K gamma            for the additions

    inside, between   (alpha, beta) of the links inside a node, and of the links between nodes
    share             the number of ranks of a node that share one port to other nodes: 1 or g. If
                      share is g, let b = K/gm beta, the time of one message's bytes. Then the
                      first step between nodes takes alpha + g b. Each further step takes
                      max(alpha + b, g b): while the message of one rank travels, the port sends
                      the messages of the other ranks"""
    alpha, beta = between
    steps, part = 2 * (n_nodes - 1), n_bytes / (node_size * n_nodes)
    port = share * part * beta
    time_s = alpha + port + (steps - 1) * max(alpha + part * beta, port) if steps else 0.0
    time_s += (n_nodes - 1) * part * gamma
    scatter = ring_reduce_scatter(node_size, n_bytes, *inside, gamma)
    gather = ring_all_gather(node_size, n_bytes, *inside)
    return _then(_then(scatter, Cost(steps, steps * part, time_s)), gather)


def shared_memory_all_reduce(n, n_bytes, alpha, beta, gamma=0.0, segments=0):
    """(S+1) alpha + 2(n-1)/n K beta + (n-1)/n K gamma, if the array is cut into S >= 1 segments.
    alpha + (n-1) K (beta + gamma), if the array is short and not cut (S = 0). Then every rank reads
    all arrays.

    alpha: seconds from a signal until a waiting rank sees it. beta: seconds per byte read from a
    peer's memory. There are no messages: Cost.n_bytes is the number of bytes that a rank reads.
    There are two signals per segment. One of these signals travels while the previous segment
    is copied. The formula is exact if n divides the number of elements of every segment."""
    if n == 1:
        return Cost(0, 0, 0.0)
    read = (n - 1) * n_bytes
    if not segments:
        return Cost(0, read, alpha + read * (beta + gamma))
    read /= n
    return Cost(0, 2 * read, (segments + 1) * alpha + read * (2 * beta + gamma))


def best_segments(n_bytes, beta, per_segment, extra):
    """Returns the number of segments S >= 1 for which per_segment * S + extra * K beta / S is
    smallest. K is n_bytes.

    A pipeline of S segments takes S steps, and `extra` more steps until the first segment has
    arrived everywhere. Each step takes `per_segment` seconds plus the time of K/S bytes. For a
    double tree, extra = 2 ceil(log2 n) - 3 and per_segment = alpha. Raises ValueError if
    per_segment <= 0."""
    if per_segment <= 0:
        raise ValueError(f"best_segments: wanted per_segment > 0; got {per_segment}. If "
                         "per_segment is 0, a larger number of segments is always faster.")
    divided = max(extra, 0) * n_bytes * beta
    # With s segments the time is per_segment * s + divided / s. The best s is
    # sqrt(divided / per_segment).
    below = max(1, math.floor(math.sqrt(divided / per_segment)))
    return min(below, below + 1, key=lambda s: per_segment * s + divided / s)


def crossover(first, second, low=1, high=1 << 40):
    """Returns the smallest size in bytes at which `second` is faster than `first`. Returns `low` if
    `second` is already faster at `low`. Returns None if `second` is not faster at `high`.

    first, second   functions f(bytes) that return seconds or a Cost, such as
                    `lambda k: tree_all_reduce(n, k, alpha, beta)`. Between low and high their
                    curves may cross only once."""

    def slower(n_bytes):
        a, b = (getattr(cost, "time_s", cost) for cost in (first(n_bytes), second(n_bytes)))
        return b >= a

    if slower(high):
        return None
    if not slower(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if slower(middle) else (low, middle)
    return high


def all_to_all(n, n_bytes, alpha, beta):
    """(n-1) (alpha + K/n beta)"""
    return ring_all_gather(n, n_bytes, alpha, beta)


def scatter(n, n_bytes, alpha, beta):
    """ceil(log2 n) alpha + (n-1)/n K beta, by a binomial tree. K: the bytes of the root's array"""
    steps, carried = (n - 1).bit_length(), (n - 1) * (n_bytes / n)
    return Cost(steps, carried, steps * alpha + carried * beta)


def gather(n, n_bytes, alpha, beta):
    """ceil(log2 n) alpha + (n-1)/n K beta. The busiest rank is the root's last child. It sends K/2
    bytes"""
    once = min(n - 1, 1)
    return Cost(once, once * n_bytes / 2, scatter(n, n_bytes, alpha, beta).time_s)


def _then(first, second):
    return Cost(*(a + b for a, b in zip(first, second, strict=True)))
