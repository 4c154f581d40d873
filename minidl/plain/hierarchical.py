"""The all-reduce by nodes: most bytes stay inside a node, where the links are fast.

    node 0   rank 0  1         1  inside each node: reduce-scatter. Each of its g ranks has one
                  │  │            of the g parts of the node's sum
    node 1   rank 2  3         2  between nodes: all-reduce of each part, by the ranks that have it.
                  │  │            Here 0, 2, 4 are one group, and 1, 3, 5 are another
    node 2   rank 4  5         3  inside each node: all-gather. Each rank has all parts

For an array of K bytes, m nodes and g ranks in each node, a rank sends

    inside its node     2 K (g-1) / g        between nodes     2 K (m-1) / (m g)

In one ring of all ranks, a rank sends the same number of bytes. But this ring has 2 (gm-1) steps.
In each step some neighbours are on two different nodes, and all ranks wait for the slow link
between them. With the three stages above, they wait for this link in 2 (m-1) steps only.

A `Group` is a transport between some ranks. In the group they have new numbers, 0, 1, 2, ... So
a function that takes a transport, such as the ring, works in a group as it works with all ranks.

Paper: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018.
This page is the plain version. The real one, minidl/comm/hierarchical.py, adds: nodes of different
sizes, any other all-reduce between the nodes, a second form in which only one rank of each node
sends to other nodes, and a formula for the bytes that are sent.
"""

import numpy as np

from minidl.plain import ring


class Group:
    """A transport between some of the ranks of t: rank i of the group is rank ranks[i] of t."""

    def __init__(self, t, ranks):
        self.t = t
        self.ranks = list(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(t.rank)

    def send(self, array, to):
        return self.t.send(array, self.ranks[to])

    def recv(self, array, source):
        return self.t.recv(array, self.ranks[source])

    def sendrecv(self, array, to, array2, source):
        return self.t.sendrecv(array, self.ranks[to], array2, self.ranks[source])

    def isend(self, array, to):
        return self.t.isend(array, self.ranks[to])

    def irecv(self, array, source):
        return self.t.irecv(array, self.ranks[source])


def groups(t, node_size):
    """Returns two groups. The first group has the ranks of this node. The second group has one rank
    of each node: the rank that has the same position in its node as this rank."""
    place = t.rank % node_size
    first = t.rank - place
    return Group(t, range(first, first + node_size)), Group(t, range(place, t.size, node_size))


def all_reduce(t, x, node_size):
    """Sums x, a vector, over all ranks, in place. Returns x."""
    node, across = groups(t, node_size)
    ring.reduce_scatter(node, x)
    # After reduce_scatter, the rank with the number r in the node has the sum of part r + 1 of x
    # (page ring). `own` is a view of this part.
    own = np.array_split(x, node.size)[(node.rank + 1) % node.size]
    ring.all_reduce(across, own)
    ring.all_gather(node, x)
    return x


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        node, across = groups(t, node_size=2)
        x = all_reduce(t, np.array([1.0, 10.0]) * (t.rank + 1), node_size=2)
        return node.ranks, across.ranks, x

    for rank, (node, across, x) in enumerate(simulate(4, example)):
        print("rank", rank, " node", node, " across", across, " sum", x)
