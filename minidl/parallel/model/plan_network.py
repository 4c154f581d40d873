"""Computes by formulas how long messages along one axis of a grid take. All groups of the axis send
together.

    all_reduce_s      a ring all-reduce: of gradients, or of activations of tensor parallelism
    pass_around_s     ring attention: a block travels while the rank computes with the previous
                      block. So a hop costs time only if it takes longer than this computation
    all_to_all_s      Ulysses, and tokens to experts and back: in each step pairs of ranks exchange
                      a block
    send_s            activations to the next stage

Nodes have equal size, and consecutive ranks are on the same node. If a group's messages leave its
node, the messages may queue for the node's single NIC. The formulas are exact if a group's links
are equal and no message queues. Otherwise a formula gives the time of the longest chain of events
in which each event waits for the event before it. This time is within 25 % of the time of a
simulation with queues.

Test: tests/parallel/model/test_plan_network.py   Used by: plan_costs.py, planner.py
"""

from typing import NamedTuple

from minidl.comm import cost


class Way(NamedTuple):
    """Tells how the messages of one axis travel if all groups of the axis send together.

    leave   how many messages leave a node at the same time
    queue   how many of these messages go through one port
    slow    how many messages of one group leave their node, if each rank of the group sends to the
            next rank, and the last rank to the first
    intra   the Link between ranks of one node
    inter   the Link between nodes
    shared  True if a node's ranks share one NIC"""

    leave: int
    queue: int
    slow: int
    intra: tuple
    inter: tuple
    shared: bool = False


class Network:
    """A network for the formulas of this file. Each of its nodes has `node` consecutive ranks.

    The slowest rank takes `slowest` times as long to compute as the other ranks. Raises ValueError
    if the nodes have unequal sizes, or if some pairs of ranks have links of their own."""

    def __init__(self, links, n):
        links.check_ranks(n)
        self.links, self.node = links, n if links.node is None else links.node
        self.slowest = max([1.0, *(times for _, times in links.straggler)])
        if isinstance(self.node, tuple):  # the node of each rank; all nodes must have the same size
            size = self.node.count(self.node[0])
            alike = n % size == 0 and self.node == tuple(r // size for r in range(n))
            self.node = size if alike else None
        if self.node is None or n % self.node and self.node < n or links.pairs:
            raise ValueError(f"a plan for {n} ranks wants nodes of equal size with consecutive "
                             "ranks, and no pair of ranks with its own link; got another network. "
                             "For any network use comm.grid.traffic")
        self.node = min(self.node, n)

    def way(self, stride, size):
        """Returns the Way of groups of `size` ranks. The numbers of two neighbours in a group
        differ by `stride`. If groups do not fill whole nodes, leave, queue and slow are upper
        bounds."""
        span, node, links = stride * size, self.node, self.links
        if size == 1 or node % span == 0:
            return Way(0, 1, 0, links.intra, links.intra)
        leave = min(stride, node)
        if stride < node and span % node:
            # `stride` messages go to a next rank, and `stride` messages to a group's first rank.
            leave = min(node, 2 * stride)
        slow = size if stride >= node else min(size, span // node + 2 * (span % node > 0))
        return Way(leave, leave if links.shared_nic else 1, slow, links.intra, links.inter,
                   links.shared_nic)

    def both(self, near, far):
        """Returns the Way of groups along two axes that are not neighbours. near, far: (stride,
        size) of these axes. At the end of the near axis, the ring goes one step along the far axis.
        It does not go back to the start of the near axis."""
        inner, outer = self.way(*near), self.way(*far)
        if near[1] == 1 or far[1] == 1:
            return outer if near[1] == 1 else inner
        if inner.slow:
            return inner._replace(slow=inner.slow * far[1])
        # only the last ranks of the near axis send to another node
        leave = -(-outer.leave // near[1])
        return outer._replace(leave=leave, queue=leave if outer.shared else 1)


def hop_s(link, n_bytes, queue=1):
    """Returns the seconds until a message has arrived completely, if queue - 1 messages of the same
    size are sent before it. link: (alpha in seconds, beta in seconds per byte)."""
    return link[0] + queue * n_bytes * link[1]


def all_reduce_s(way, n, n_bytes):
    """Returns the seconds of a ring all-reduce. It has S = 2(n-1) steps. A chunk keeps a port busy
    for b seconds.

    If all links are equal, the time is S (alpha + b), with a link's latency alpha. Otherwise it is
    the time of the longer of two chains. In the first chain one chunk goes around the ring twice,
    over each slow link. In the second chain S chunks go, one after another, through one slow port
    that `queue` groups share."""
    if not way.slow:
        return cost.ring_all_reduce(n, n_bytes, *way.intra).time_s
    steps, chunk, apart = 2 * (n - 1), n_bytes / n, n // way.slow
    port, fast = way.queue * chunk * way.inter.beta, hop_s(way.intra, chunk)
    # `slow` is the number of hops over slow links. In two full rounds of 2 n hops, a chunk goes
    # over each slow link twice. An all-reduce has only 2 n - 2 hops. This formula leaves out two
    # fast hops, if the ring has two neighbouring fast links.
    slow = 2 * way.slow - max(0, 3 - apart)
    between = (slow - 1) * (apart - 1)
    rounds = slow * hop_s(way.inter, chunk) + between * fast
    rounds += max(0, steps - slow - between) * max(fast, port)  # a hop waits while the port is busy
    return max(rounds + port * (1 - 1 / way.queue), way.inter.alpha + steps * port)


def pass_around_s(way, n, hops, alone):
    """Returns how many seconds the blocks take to go once around a ring. A rank computes with a
    block (it visits the block), and at the same time the next block is sent to the right.

    hops: a list of tuples (number of hops, bytes of each hop, seconds of the visit during each
    hop). alone: the seconds of visits without a hop. b is the time of a hop's bytes. If all links
    are equal, the result is alone + the sum of max(visit, alpha + b). Otherwise it is the time of
    the longer of two chains: the hops over the slow links, or all bytes through one slow port."""
    usual = way.inter if way.slow == n else way.intra
    total = alone + sum(k * max(visit, hop_s(usual, b)) for k, b, visit in hops)
    if not way.slow:
        return total
    apart, (largest, visit) = n // way.slow, max((b, visit) for _, b, visit in hops)
    fast, slow = hop_s(usual, largest), hop_s(way.inter, largest)
    if apart > 1:  # a slow hop delays the ranks that follow, until the next slow link
        times = 1 + (sum(k for k, _, _ in hops) - 1) // apart
        more, less = slow - max(visit, fast), (apart - 1) * max(0.0, visit - fast)
        total += max(0.0, more, times * more - (times - 1) * less)
    total += max(0.0, hop_s(way.inter, largest, way.queue) - max(visit, slow))
    port = sum(k * b for k, b, _ in hops) * way.queue * way.inter.beta
    return max(total, alone + way.inter.alpha + port)


def ring_attention_s(way, n, block, sums, forward, backward):
    """Returns (forward, backward): the seconds of ring attention (ring_attention.py), minus the
    seconds of its computation.

    block: the bytes of a rank's keys and values. sums: the bytes of the gradients of these keys and
    values. forward, backward: the seconds of computation. In backward, from the second step on, a
    sum is sent before the next block. The last sum arrives after all computation."""
    visit, again = forward / n, backward / n
    there = pass_around_s(way, n, [(n - 1, block, visit)], visit)
    hops = [(1, block, again), (1, sums, 0.0)]
    if n > 2:
        hops = [(2, block, again), (n - 3, block + sums, again), (1, sums, again), (1, sums, 0.0)]
    back = pass_around_s(way, n, hops, again * (n == 2))
    return there - forward, back - backward


def all_to_all_s(way, n, n_bytes):
    """Returns the seconds of a pairwise exchange. Each rank has n_bytes in n blocks, one for every
    rank.

    b is the time of one block's bytes. If all links are equal, the time is (n-1)(alpha + b).
    Otherwise it is the longer of two times: the time of n-1 steps, one after another, or the time
    in which all bytes that leave a node pass through the node's port. If g ranks of the group are
    on a node, g - 2 steps use the fast link, and the other steps use the slow link."""
    part = n_bytes / n
    if not way.slow:
        return cost.all_to_all(n, n_bytes, *way.intra).time_s
    here = n // way.slow  # ranks of a group on one node
    port = part * way.inter.beta * (n - here) * (way.leave * here if way.shared else 1)
    fast = max(0, here - 2)
    steps = (n - 1 - fast) * hop_s(way.inter, part) + fast * hop_s(way.intra, part)
    return max(steps, way.inter.alpha + port)


def leaving(way, n):
    """Returns a ratio for a pairwise exchange: the bytes that leave a node, divided by the bytes
    that one rank sends."""
    here = n // way.slow if way.slow else n
    return way.leave * here * (n - here) / max(1, n - 1)


def send_s(way, p, n_bytes):
    """Returns two times in seconds. The first is the time of a message from a stage to the next
    stage, as a mean over the p stages. The second is how long a message keeps the busiest port
    busy."""
    # `slow` is the fraction of messages that go to another node. The last stage sends no message.
    slow = 1.0 if way.slow == p else max(0, way.slow - 1) / max(1, p - 1)
    port = n_bytes * (way.queue * way.inter.beta if slow else way.intra.beta)
    fast = hop_s(way.intra, n_bytes)
    return slow * (way.inter.alpha + port) + (1 - slow) * fast, port
