"""A network between ranks: how fast the link of each pair is, and which ranks share a NIC.

    Links.uniform(50e-6, 8e-9)                          every pair: 50 us, 1 Gbit/s
    Links.nodes(4, intra=(1e-6, 1e-10), inter=(50e-6, 8e-9), straggler={5: 3.0})
    links_text.parse("nodes=2, intra=10Gbit,5us, inter=1Gbit,50us", n=8)

A message of b bytes over a link (alpha, beta) uses a port at each end for b*beta seconds. The first
byte travels for alpha seconds (Hockney 1994; the picture is in sim.py). `nic` chooses the port:

    nic="node"    node 0          node 1        Between nodes, the port is the node's network card,
                  r0 r1 [NIC] -- [NIC] r2 r3    the NIC. The ranks of a node share it. If two ranks
                                                send to other nodes, both messages take twice the
                                                time. Inside a node, each rank has its own port.
    nic="rank"    r0 r1 r2 r3 -- one switch     Each rank has a NIC, so it has its own port.

A straggler is a slow rank: the time of its computing (`t.compute`) is multiplied by a given factor.
The simulator (sim.py) computes its clock from the Links. Throttled (throttled.py) slows real
messages down to the speed of this network.

Test: tests/comm/transport/test_links.py   Tutorial: tutorials/09_topologies.py
"""

import math
from dataclasses import dataclass
from typing import NamedTuple


class Link(NamedTuple):
    """A link between two ranks. alpha: seconds that the first byte travels. beta: seconds per byte.
    """

    alpha: float
    beta: float

    def __str__(self):
        rate = _with_unit(8 / self.beta, RATES) + "bit/s" if self.beta else "infinite bit/s"
        return f"{rate}, {_with_unit(self.alpha, TIMES)}s"


@dataclass(frozen=True)
class Links:
    """The network of n ranks. `uniform`, `nodes` and `links_text.parse` make a Links object. It is
    immutable.

    intra       the Link between ranks of one node, or between all ranks if there are no nodes
    inter       the Link between nodes
    node        the number of ranks per node, or a tuple with the node of each rank. None if there
                are no nodes
    nic         "node" or "rank": the owner of the port for messages between nodes
    pairs       a tuple of ((src, dst), Link): messages from src to dst use this Link
    straggler   a tuple with a pair (rank, how many times longer it computes) for each slow rank"""

    intra: Link
    inter: Link | None = None
    node: int | tuple | None = None
    nic: str = "node"
    pairs: tuple = ()
    straggler: tuple = ()

    def __post_init__(self):
        for link in (self.intra, self.inter, *(link for _, link in self.pairs)):
            if link and not all(0 <= value < math.inf for value in link):
                raise ValueError("a link wants alpha (seconds) and beta (seconds for each byte), "
                                 "finite and at least 0; got "
                                 f"alpha={link[0]}, beta={link[1]}")
        for rank, times in self.straggler:
            if not 0 < times < math.inf:
                raise ValueError("a straggler wants a finite number above 0, such as 3 if it "
                                 f"computes 3 times longer; got {times} for rank {rank}")
        if self.nic not in ("node", "rank"):
            raise ValueError("nic, the owner of the port between nodes, must be 'node' or 'rank'; "
                             f"got {self.nic!r}")

    @staticmethod
    def uniform(alpha, beta, pairs=None, straggler=None):
        """Returns Links with the same link between all ranks, except for the pairs in `pairs`.

        alpha: seconds. beta: seconds per byte. pairs: {(src, dst): (alpha, beta)}. straggler:
        {rank: how many times longer it computes}."""
        return Links(Link(alpha, beta), **_common(pairs, straggler))

    @staticmethod
    def nodes(groups, intra, inter, nic="node", pairs=None, straggler=None):
        """Returns the Links of ranks on nodes.

        groups: a list with the ranks of each node, or the number of consecutive ranks that share a
        node. intra, inter: (alpha, beta) inside a node, and between nodes. pairs, straggler: as for
        `uniform`."""
        if not isinstance(groups, int):
            where = {rank: node for node, ranks in enumerate(groups) for rank in ranks}
            if sorted(r for ranks in groups for r in ranks) != list(range(len(where))):
                raise ValueError("the list of nodes must have every rank from 0 on exactly once, "
                                 f"for example [[0, 1], [2]]; got {groups}")
            groups = tuple(where[rank] for rank in range(len(where)))
        elif groups < 1:
            raise ValueError(f"a node wants at least one rank; got {groups} ranks per node")
        return Links(Link(*intra), Link(*inter), groups, nic, **_common(pairs, straggler))

    def node_of(self, rank):
        """Returns the number of the rank's node, or 0 if there are no nodes."""
        if self.node is None:
            return 0
        return rank // self.node if isinstance(self.node, int) else self.node[rank]

    def link(self, src, dst):
        """Returns the Link of messages from src to dst."""
        for pair, link in self.pairs:
            if pair == (src, dst):
                return link
        return self.intra if self.node_of(src) == self.node_of(dst) else self.inter

    def ports(self, src, dst):
        """Returns the ports of a message from src to dst, (port of the sender, port of the
        receiver). A port is an int: the rank, or -1-k for the NIC of node k."""
        a, b = self.node_of(src), self.node_of(dst)
        return (-1 - a, -1 - b) if a != b and self.nic == "node" else (src, dst)

    @property
    def shared_nic(self):
        """True if there are nodes whose ranks share one port."""
        return self.node is not None and self.nic == "node"

    def slowdown(self, rank):
        """Returns how many times longer this rank computes. It is 1.0 for a rank that is not slow.
        """
        return dict(self.straggler).get(rank, 1.0)

    def check_ranks(self, n):
        """Raises ValueError unless these Links can describe a network of n ranks."""
        if isinstance(self.node, tuple) and len(self.node) != n:
            raise ValueError(f"the nodes of these links have {len(self.node)} ranks; got {n} ranks")
        named = [rank for pair, _ in self.pairs for rank in pair] + [r for r, _ in self.straggler]
        for rank in named:
            if rank not in range(n):
                raise ValueError(f"these links contain rank {rank}; got only ranks 0 to {n - 1}")

    def __str__(self):
        items = [str(self.intra)]
        if self.node is not None:
            items = [f"nodes={_sizes(self.node)}", f"intra={self.intra}", f"inter={self.inter}"]
            items += [f"nic={self.nic}"]
        items += [f"{src}-{dst}={link}" for (src, dst), link in self.pairs]
        if self.straggler:
            items += ["straggler=" + "+".join(f"{rank}:{k:g}" for rank, k in self.straggler)]
        return ", ".join(items)


class Port:
    """Messages leave and enter a rank through its port. The ranks of a node may share a port.

    out_free: the time when the port has sent all its messages. A busy period is a time in which the
    port receives without a pause. in_start, in_free: the start and the end of the last busy
    period."""

    __slots__ = ("out_free", "in_start", "in_free")

    def __init__(self):
        self.out_free = self.in_start = self.in_free = 0.0

    def send(self, at, seconds):
        """Sends for `seconds`, starting at the time `at`, or later if the port is not yet free.
        Returns the time of the start."""
        start = max(at, self.out_free)
        self.out_free = start + seconds
        return start

    def receive(self, arrival, seconds):
        """Receives for `seconds` a message whose first byte arrives at `arrival`. Returns the time
        when all of it is received.

        If the port still receives the message of an earlier call, the new message waits. There is
        one exception: a message that is complete before the start of the last busy period does not
        wait. A busy period is a time in which the port receives without a pause."""
        done = arrival + seconds
        if arrival >= self.in_free:
            self.in_start, self.in_free = arrival, done
        elif done > self.in_start:
            self.in_free = done = self.in_free + (done - arrival)
        return done


def _common(pairs, straggler):
    """Returns {"pairs": ..., "straggler": ...}, the two fields of Links that do not depend on
    nodes."""
    return {"pairs": tuple((tuple(pair), Link(*link)) for pair, link in (pairs or {}).items()),
            "straggler": tuple((straggler or {}).items())}


# -- links as text

# Exponents of ten, not factors: float("50e-6") is the float nearest to 50e-6, but 50 * 1e-6 is not.
RATES = {"T": 12, "G": 9, "M": 6, "k": 3, "": 0}
TIMES = {"": 0, "m": -3, "u": -6, "n": -9}


def _sizes(node):
    """Returns a text that describes the nodes. If node is a number, the text is '2 ranks each'. If
    each node has consecutive ranks, the text has the sizes of the nodes, '2+3'. Otherwise it has
    the ranks of each node, '[0, 2]+[1, 3]'. `parse` can read only a text with sizes."""
    if isinstance(node, int):
        return f"{node} ranks each"
    nodes = range(max(node) + 1)
    if list(node) != sorted(node):
        return "+".join(str([r for r, k in enumerate(node) if k == node_]) for node_ in nodes)
    return "+".join(str(node.count(k)) for k in nodes) if len(nodes) > 1 else "1"


def _with_unit(value, units):
    """Returns a text such as '1 G' for 1e9. The unit is the largest unit for which the number is at
    least 1."""
    name, power = next(((u, p) for u, p in units.items() if value >= 0.999999 * 10**p), ("", 0))
    return f"{value / 10**power:.6g} {name}"
