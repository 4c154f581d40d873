"""What each collective costs, by formula.

Test: tests/comm/test_cost.py (equal to the simulator's clock and the ledger's counts)

    alpha   seconds per message (latency)         n   ranks
    beta    seconds per byte of the link          K   bytes of the array on one rank
    gamma   seconds per byte of the reduction

Hockney's model (1994) with full-duplex ports; the formulas are Thakur, Rabenseifner & Gropp's
(2005), but for the naive one, which is plain. Messages and bytes are what the busiest rank *sends*.
The ring's hold exactly where n divides the elements, the trees' where n is a power of two; else the
ring's bytes are the average over ranks (`chunks.ring_bytes_sent` is exact), and the trees' are
upper bounds.
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """messages, n_bytes: sent by the busiest rank; time_s: modelled, until all ranks are done."""

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
    return _then(
        ring_reduce_scatter(n, n_bytes, alpha, beta, gamma),
        ring_all_gather(n, n_bytes, alpha, beta),
    )


def naive_all_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """2 alpha + 2(n-1) K beta + (n-1) K gamma: rank 0's link carries everything, twice"""
    if n == 1:
        return Cost(0, 0, 0.0)
    carried = (n - 1) * n_bytes
    return Cost(n - 1, carried, 2 * alpha + 2 * carried * beta + carried * gamma)


def tree_broadcast(n, n_bytes, alpha, beta):
    """ceil(log2 n) (alpha + K beta)"""
    steps = (n - 1).bit_length()
    return Cost(steps, steps * n_bytes, steps * (alpha + n_bytes * beta))


def tree_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """ceil(log2 n) (alpha + K beta + K gamma); no rank sends more than once"""
    steps = (n - 1).bit_length()
    once = min(n - 1, 1)
    return Cost(once, once * n_bytes, steps * (alpha + n_bytes * (beta + gamma)))


def tree_all_reduce(n, n_bytes, alpha, beta, gamma=0.0):
    """2 ceil(log2 n) (alpha + K beta) + ceil(log2 n) K gamma"""
    # The root reduces without sending, then broadcasts; it stays the busiest.
    down = tree_broadcast(n, n_bytes, alpha, beta)
    return down._replace(time_s=down.time_s + tree_reduce(n, n_bytes, alpha, beta, gamma).time_s)


def _then(first, second):
    return Cost(*(a + b for a, b in zip(first, second, strict=True)))


def all_to_all(n, n_bytes, alpha, beta):
    """(n-1) (alpha + K/n beta)"""
    return ring_all_gather(n, n_bytes, alpha, beta)


def all_gather_v(n, n_bytes, alpha, beta):
    """(n-1) (2 alpha + 8 beta + K/n beta), K the bytes of all ranks' equal blocks; first go the
    lengths, of 8 bytes each"""
    return _then(ring_all_gather(n, 8 * n, alpha, beta), ring_all_gather(n, n_bytes, alpha, beta))


def scatter(n, n_bytes, alpha, beta):
    """ceil(log2 n) alpha + (n-1)/n K beta, by a binomial tree; K the root's bytes"""
    steps, carried = (n - 1).bit_length(), (n - 1) * (n_bytes / n)
    return Cost(steps, carried, steps * alpha + carried * beta)


def gather(n, n_bytes, alpha, beta):
    """ceil(log2 n) alpha + (n-1)/n K beta; half of it leaves the root's last child"""
    once = min(n - 1, 1)
    return Cost(once, once * n_bytes / 2, scatter(n, n_bytes, alpha, beta).time_s)


def scatter_direct(n, n_bytes, alpha, beta):
    """alpha + (n-1)/n K beta: the latencies of the n-1 messages overlap"""
    carried = (n - 1) * (n_bytes / n)
    return Cost(n - 1, carried, min(n - 1, 1) * alpha + carried * beta)


def gather_direct(n, n_bytes, alpha, beta):
    """alpha + (n-1)/n K beta"""
    once = min(n - 1, 1)
    return Cost(once, once * n_bytes / n, scatter_direct(n, n_bytes, alpha, beta).time_s)
