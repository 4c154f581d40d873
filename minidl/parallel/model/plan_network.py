"""How long the messages of one axis of a grid take, all its groups at once: closed forms.

    all_reduce_s      ring: gradients, activations of tensor parallelism
    pass_around_s     ring attention: a block goes on while the one before is worked at, so a hop
                      costs what it is longer than that
    all_to_all_s      Ulysses, tokens to experts and back: pairs of ranks, one step after the other
    send_s            activations to the next stage

Ranks lie on nodes of equal size, in blocks; where a group leaves its node, its messages may queue
for the node's one NIC. Exact where a group's links are alike and nothing queues; else the longest
chain of things that wait for each other, within a quarter of a simulation with queues.

Test: tests/parallel/model/test_plan_network.py   Used by: plan_costs.py, planner.py
"""

from typing import NamedTuple

from minidl.comm import cost


class Way(NamedTuple):
    """How the messages of one axis go, when all its groups send at once.

    leave   how many leave a node at a time; queue: how many of them go by one port
    slow    of the messages from a group's ranks to the next ones, and the last back to the first,
            how many leave their node
    intra, inter   the Links; shared: whether a node's ranks have one NIC"""

    leave: int
    queue: int
    slow: int
    intra: tuple
    inter: tuple
    shared: bool = False


class Network:
    """Links as closed forms: nodes of `node` ranks each, in blocks of ranks.

    slowest: how many times longer than the others the slowest rank computes"""

    def __init__(self, links, n):
        links.check_ranks(n)
        self.links, self.node = links, n if links.node is None else links.node
        self.slowest = max([1.0, *(times for _, times in links.straggler)])
        if isinstance(self.node, tuple):  # equal blocks, as `nodes=8` of a text gives them
            size = self.node.count(self.node[0])
            alike = n % size == 0 and self.node == tuple(r // size for r in range(n))
            self.node = size if alike else None
        if self.node is None or n % self.node and self.node < n or links.pairs:
            raise ValueError(f"a plan wants nodes of equal size for {n} ranks, in blocks of ranks, "
                             "and no pairs of their own; got another network. comm.grid.traffic "
                             "has figures of any one")
        self.node = min(self.node, n)

    def way(self, stride, size):
        """The Way of groups of `size` ranks that are `stride` apart. Where groups do not fill whole
        nodes, leave, queue and slow are upper bounds."""
        span, node, links = stride * size, self.node, self.links
        if size == 1 or node % span == 0:
            return Way(0, 1, 0, links.intra, links.intra)
        leave = min(stride, node)
        if stride < node and span % node:
            leave = min(node, 2 * stride)  # some go on, others back to their group's first rank
        slow = size if stride >= node else min(size, span // node + 2 * (span % node > 0))
        return Way(leave, leave if links.shared_nic else 1, slow, links.intra, links.inter,
                   links.shared_nic)

    def both(self, near, far):
        """The Way of groups along two axes that are no neighbours, each (stride, size): along the
        near one, then one step along the far one, where the near one alone would go back."""
        inner, outer = self.way(*near), self.way(*far)
        if near[1] == 1 or far[1] == 1:
            return outer if near[1] == 1 else inner
        if inner.slow:
            return inner._replace(slow=inner.slow * far[1])
        leave = -(-outer.leave // near[1])  # the others' last ones send inside of the node
        return outer._replace(leave=leave, queue=leave if outer.shared else 1)


def hop_s(link, n_bytes, queue=1):
    """Seconds until all of a message is there; behind queue - 1 others of its size."""
    return link[0] + queue * n_bytes * link[1]


def all_reduce_s(way, n, n_bytes):
    """Seconds of a ring all-reduce. S = 2(n-1) steps; a chunk takes b seconds in a port.

    Links alike: S (alpha + b). Else the longer of two chains in which each thing waits for the one
    before: a chunk that goes round twice, over each slow link, and S chunks one after the other
    through one slow port, where those of `queue` groups take turns."""
    if not way.slow:
        return cost.ring_all_reduce(n, n_bytes, *way.intra).time_s
    steps, chunk, apart = 2 * (n - 1), n_bytes / n, n // way.slow
    port, fast = way.queue * chunk * way.inter.beta, hop_s(way.intra, chunk)
    slow = 2 * way.slow - max(0, 3 - apart)  # two rounds but for two hops: fast ones if there are
    between = (slow - 1) * (apart - 1)
    rounds = slow * hop_s(way.inter, chunk) + between * fast
    rounds += max(0, steps - slow - between) * max(fast, port)  # or waits in the port instead
    return max(rounds + port * (1 - 1 / way.queue), way.inter.alpha + steps * port)


def pass_around_s(way, n, hops, alone):
    """Seconds of visits and of hops to the right that are under way beside them, all around a ring.
    hops: [(how many, bytes, seconds of the visit beside each)]; alone: seconds of other visits.

    Links alike: the sum of max(visit, alpha + b). Else the longer of two chains: hops over slow
    links, one or as many as there are on the way, and all bytes through one slow port."""
    usual = way.inter if way.slow == n else way.intra
    total = alone + sum(k * max(visit, hop_s(usual, b)) for k, b, visit in hops)
    if not way.slow:
        return total
    apart, (largest, visit) = n // way.slow, max((b, visit) for _, b, visit in hops)
    fast, slow = hop_s(usual, largest), hop_s(way.inter, largest)
    if apart > 1:  # from one slow link to the next: hops in place of visits
        times = 1 + (sum(k for k, _, _ in hops) - 1) // apart
        more, less = slow - max(visit, fast), (apart - 1) * max(0.0, visit - fast)
        total += max(0.0, more, times * more - (times - 1) * less)
    total += max(0.0, hop_s(way.inter, largest, way.queue) - max(visit, slow))
    port = sum(k * b for k, b, _ in hops) * way.queue * way.inter.beta
    return max(total, alone + way.inter.alpha + port)


def ring_attention_s(way, n, block, sums, forward, backward):
    """(seconds that ring attention takes longer than its computing: in a forward, in a backward)
    of ring_attention.py. block, sums: bytes of a rank's keys and values, of their gradients;
    forward, backward: seconds of its computing.

    In backward a sum leaves before the next block does, from the second step on; the last one comes
    home when all is computed."""
    visit, again = forward / n, backward / n
    there = pass_around_s(way, n, [(n - 1, block, visit)], visit)
    hops = [(1, block, again), (1, sums, 0.0)]
    if n > 2:
        hops = [(2, block, again), (n - 3, block + sums, again), (1, sums, again), (1, sums, 0.0)]
    back = pass_around_s(way, n, hops, again * (n == 2))
    return there - forward, back - backward


def all_to_all_s(way, n, n_bytes):
    """Seconds of a pairwise exchange of n_bytes on each rank, a block for every rank.

    Links alike: (n-1)(alpha + b). Else the longer of two: steps that wait for each other, by the
    slow link but for g - 2 of them (g ranks on a node); all bytes that leave a node by its port."""
    part = n_bytes / n
    if not way.slow:
        return cost.all_to_all(n, n_bytes, *way.intra).time_s
    here = n // way.slow  # ranks of a group on one node
    port = part * way.inter.beta * (n - here) * (way.leave * here if way.shared else 1)
    fast = max(0, here - 2)
    steps = (n - 1 - fast) * hop_s(way.inter, part) + fast * hop_s(way.intra, part)
    return max(steps, way.inter.alpha + port)


def leaving(way, n):
    """How many times what a rank sends in a pairwise exchange leaves a node, of all its ranks."""
    here = n // way.slow if way.slow else n
    return way.leave * here * (n - here) / max(1, n - 1)


def send_s(way, p, n_bytes):
    """Seconds of a message to the next of p stages: (the mean of all, in the busiest port)."""
    slow = 1.0 if way.slow == p else max(0, way.slow - 1) / max(1, p - 1)  # the last sends none
    port = n_bytes * (way.queue * way.inter.beta if slow else way.intra.beta)
    fast = hop_s(way.intra, n_bytes)
    return slow * (way.inter.alpha + port) + (1 - slow) * fast, port
