"""09  Topologies: ring, halving and doubling, trees, nodes.       75 minutes, needs: 07

All all-reduces below send the same total of bytes. They differ in which ranks send most of the
bytes, and in the number of steps.

    mpirun -n 8 python tutorials/09_topologies.py     or: minidl run -n 8 tutorials/09_topologies.py
    python tutorials/09_topologies.py --sim 8         picture: out/09_topologies.png

A sum of p arrays of K = 4n bytes needs p-1 additions of K bytes. Then p-1 ranks need a copy of the
sum. So every all-reduce that adds each part once sends 2 (p-1) K in total. Two other things differ:

                          sent by the busiest rank    steps in sequence           H = ceil(log2 p)
    ring                  2 (p-1)/p K                 2 (p-1)
    halving, doubling     2 (p-1)/p K                 2 log2 p                      p a power of two
    tree                  H K                         2 H                           root sends most
    double tree           2 K                         2 H                           p >= 4
    nodes of g ranks      2 (p-1)/p K in all          2 (g-1) + 2 (m-1)             m = p/g nodes
      inside a node       2 (g-1)/g K
      between nodes       2 (m-1)/m K/g

A step costs alpha seconds, and a byte costs beta seconds. For short arrays the number of steps
matters most. For long arrays the bytes of the busiest rank matter most. On one switch, if p is a
power of two, halving and doubling is faster than the ring at every size. But there a rank sends
most of its bytes to the farthest rank. So if links between nodes are slower, the bytes between
nodes matter most.

In a binary tree leaves send K bytes, and inner ranks send 3 K. The double tree reduces one half of
x on each of two trees. A rank that is inner in one tree is a leaf in the other.

Papers: Thakur et al., "Optimization of collective communication operations in MPICH", 2005; Sanders
et al., "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
Exercises: `minidl exercise 09` writes work/09_topologies.py with the marked regions empty;
`minidl check 09` grades it.
"""

import math
from functools import partial

import numpy as np

from minidl.comm import (
    Ledger, Links, chunks, cost, double_tree, halving_doubling, ring, simulate, tree,
)
from minidl.course.out import heat_map
from minidl.course.tutorial import Table, host, launch, picture, progress, put, say

MODEL_BYTES = 1 << 14


def first_tree(p):
    """Returns the parent of every rank. The root, rank 0, has None. Odd ranks are leaves."""
    parents: list[int | None] = [None]
    for r in range(1, p):
        bit = r & -r  # the lowest set bit of r. It is 1 in leaves, 2 one level up, then 4
        up = (r ^ bit) | (bit << 1)  # this is r - bit or r + bit. Its lowest set bit is 2 * bit
        parents.append(up if up < p else r ^ bit)
    return parents


def second_tree(p):
    """Returns the parent of every rank in a tree whose inner ranks are leaves of first_tree(p)."""
    first = first_tree(p)
    # >>> exercise 09a: the second tree
    # Rename the ranks of the first tree. A renaming takes rank r to another rank, new(r). In the
    # second tree the parent of new(r) is new(parent of r), and None for the new root. Every rank
    # may be inner (have children) in at most one of the two trees. For odd p that is impossible:
    # then rank 0, and only rank 0, may be inner in both trees. Hint: the odd ranks are the leaves.
    # The mirror image new(r) = p-1-r exchanges odd and even ranks only for one kind of p (even or
    # odd: which?). For the other kind, find a renaming that exchanges odd and even for all ranks
    # except one.
    def new(r):
        return p - 1 - r if p % 2 == 0 else (r + 1) % p

    second = [None] * p
    for r, parent in enumerate(first):
        second[new(r)] = None if parent is None else new(parent)
    return second
    # <<<


def sum_on_tree(t, x, parents, tag):
    """Adds x from the leaves to the root, then sends the sum back to the leaves."""
    parent = parents[t.rank]
    children = [r for r, up in enumerate(parents) if up == t.rank]
    for child in children:
        x += t.recv(np.empty_like(x), child, tag)
    if parent is not None:
        t.send(x, parent, tag)
        t.recv(x, parent, tag)
    for child in children:
        t.send(x, child, tag)


def double_tree_all_reduce(t, x):
    """Sums x over the ranks. Each tree sums one half of x, and both trees work at the same time."""
    half_0, half_1 = chunks.split(x, 2)
    # The last argument is the tag of the messages: 0 for the first tree, 1 for the second tree.
    other = t.spawn(sum_on_tree, t, half_1, second_tree(t.size), 1)
    sum_on_tree(t, half_0, first_tree(t.size), 0)
    other.wait()


def node_groups(t, g):
    """Returns two transports. The first has the ranks of this rank's node. The second has one rank
    of each node: the rank with the same place in its node as this rank. g: the number of ranks in a
    node."""
    node, place = divmod(t.rank, g)
    inside = t.subgroup(range(node * g, node * g + g))
    across = t.subgroup(range(place, t.size, g))
    return inside, across


def hierarchical_all_reduce(t, x, groups):
    """Sums x over all ranks, in place. It sends as few bytes as possible between nodes."""
    inside, across = groups
    # >>> exercise 09b: inside the nodes, then between them
    # inside is the transport of this rank's node. across is the transport of the ranks with the
    # same place in their nodes. Use three calls of minidl.comm.ring: reduce_scatter(transport, x)
    # returns the chunk of x (a view) that is complete on this rank; all_reduce(transport, chunk)
    # sums chunk in place; all_gather(transport, x) copies the complete chunks of x to all ranks. A
    # rank may send 2 (m-1)/m K/g bytes between nodes.
    chunk = ring.reduce_scatter(inside, x)
    ring.all_reduce(across, chunk)
    ring.all_gather(inside, x)
    # <<<


def modelled(p, all_reduce, n_bytes, alpha, beta, network=Links.uniform):
    """Returns the seconds of an all-reduce of n_bytes on p simulated ranks.

    alpha, beta: the seconds of a message, and of a byte. network(alpha, beta) returns the links. In
    the modelled time, the number of bytes is always multiplied by beta. So a short array with a
    larger beta takes the time of a long array."""

    def body(t):
        all_reduce(t, np.ones(MODEL_BYTES // 4, np.float32))
        return t.time()

    return max(simulate(p, body, links=network(alpha, beta * n_bytes / MODEL_BYTES)))


def compare(p, ways, n_bytes, alpha, beta, network):
    """Returns {name: modelled seconds} for each all-reduce in `ways` and for the tree. The double
    tree sends in segments."""
    segments = MODEL_BYTES // 8
    if alpha:
        extra = 2 * double_tree.height_of(p) - 3
        segments = cost.best_segments(n_bytes, beta, alpha, extra)
    segment_bytes = max(4, MODEL_BYTES // 2 // segments)

    all_reduces = {name: all_reduce for name, (all_reduce, *_) in ways.items()}
    all_reduces["double tree"] = partial(double_tree.all_reduce, segment_bytes=segment_bytes)
    all_reduces["tree"] = tree.all_reduce
    return {name: modelled(p, all_reduce, n_bytes, alpha, beta, network)
            for name, all_reduce in all_reduces.items()}


def ways_and_costs(p, g, K):
    """Returns {name: (all_reduce, bytes that the busiest rank sends, steps)}.

    K: bytes; p: ranks; g: ranks of a node."""
    power = halving_doubling.core(p)  # the largest power of two up to p
    # `fold` is 1 if there are ranks from `power` on. These ranks first send K bytes to another
    # rank, and get the sum at the end.
    fold = int(p > power)
    halving_bytes = 2 * (power - 1) * K // power + fold * K
    halving_steps = 2 * (power.bit_length() - 1 + fold)

    tree_bytes = min(p, 4) * K // 2 if p > 1 else 0
    tree_steps = 2 * math.ceil(math.log2(p))

    ring_bytes = 2 * (p - 1) * K // p
    n_nodes = p // g

    def in_nodes(t, x):
        hierarchical_all_reduce(t, x, node_groups(t, g))

    return {
        "ring": (ring.all_reduce, ring_bytes, 2 * (p - 1)),
        "halving, doubling": (halving_doubling.all_reduce, halving_bytes, halving_steps),
        "double tree": (double_tree_all_reduce, tree_bytes, tree_steps),
        f"nodes of {g}": (in_nodes, ring_bytes, 2 * (g - 1) + 2 * (n_nodes - 1)),
    }


def who_sends(t, args, table, ways, n, g):
    """Runs each all-reduce of `ways` on these ranks. Adds rows with the sums, the bytes and the
    steps.

    Returns {name: matrix}. Row i, column j: the bytes that rank i sends to rank j."""
    p, r = t.size, t.rank
    K = 4 * n
    m = p // g
    x0 = np.arange(n, dtype=np.float32) % 1000  # the sums of small integers are exact
    total = x0 * p + p * (p - 1) // 2
    matrices = {}
    for name, (all_reduce, n_bytes, steps) in ways.items():
        ledger = Ledger(t)
        x = put(args, x0 + r)
        all_reduce(ledger, x)
        wrong = int((host(x) != total).sum())
        table.row(f"{name}: wrong sums", wrong, 0, "exact")

        sent = ledger.matrix()  # sent[i, j] is the bytes from rank i to rank j
        matrices[name] = sent
        table.row(f"{name}: bytes sent by all ranks", int(sent.sum()), 2 * (p - 1) * K, "exact")
        table.row(f"{name}: bytes sent by the busiest rank", int(sent.sum(1).max()), n_bytes,
                  "exact")

        found = modelled(p, all_reduce, K, 1.0, 0.0)  # a message of any size takes 1 second
        table.modelled(f"{name}: steps", found, steps, "exact")

    inside = int(sent[r].reshape(m, g)[r // g].sum())  # `sent` belongs to the last way, "nodes"
    table.row(f"{name}: bytes inside a node", inside, 2 * (g - 1) * K // g, "exact")
    between = int(sent[r].sum()) - inside
    table.row(f"{name}: bytes between nodes", between, 2 * (m - 1) * K // p, "exact")

    both = len(set(first_tree(p)) & set(second_tree(p)) - {None})
    table.row("double tree: ranks inner in both trees", both, int(p % 2 and p > 1), "exact")
    return matrices


def main(t, args):
    table = Table(t)
    p = t.size
    g = math.gcd(p, args.node_size)
    power = halving_doubling.core(p)
    unit = 2 * p * power
    n = math.ceil(args.n / unit) * unit  # so that all chunks and halves have equal sizes
    K = 4 * n
    ways = ways_and_costs(p, g, K)

    say(t, f"1. All-reduces of {n:,} float32 on {p} ranks, {p // g} nodes of {g}: bytes sent.")
    matrices = who_sends(t, args, table, ways, n, g)
    if t.rank > 0:
        return table

    say(t, "2. Modelled time for many sizes: on one switch, then on nodes with one port each.")
    link = args.alpha, args.beta
    if p >= 4 and p == power and args.beta:  # the formula holds only for these p
        H = math.ceil(math.log2(p))
        # `equal` is the K with 2 H (alpha + K beta) = 2 (p-1) (alpha + K/p beta).
        equal = (p - 1 - H) / (H - (p - 1) / p) * args.alpha / args.beta
        found = cost.crossover(lambda n_bytes: modelled(p, tree.all_reduce, n_bytes, *link),
                               lambda n_bytes: modelled(p, ring.all_reduce, n_bytes, *link))
        table.modelled("bytes from which the ring is faster than the tree", found, equal, "abs<2")

    def nodes_with_one_port(alpha, beta):
        return Links.nodes(g, intra=(alpha / 10, beta / 10), inter=(alpha, beta), nic="node")

    networks = Links.uniform, nodes_with_one_port
    sizes = 2.0 ** np.arange(6, 27)
    times = [[compare(p, ways, size, *link, network) for size in sizes]
             for network in progress(t, networks, "simulating")]
    picture(t, args, draw, matrices, g, K, sizes, times, link)
    return table


def overtaking(sizes, ratio):
    """Returns (crossed, words). crossed: the sizes at which `ratio` crosses 1. words: a text that
    tells at which sizes `ratio` is below 1."""
    log = np.where(np.abs(ratio - 1) < 1e-9, 0.0, np.log2(ratio))  # ignore rounding errors
    crossed, words = [], []
    for i in np.flatnonzero(log[:-1] * log[1:] < 0):
        ends = sorted((log[j], np.log2(sizes[j])) for j in (i, i + 1))
        (low, high), (at_low, at_high) = zip(*ends, strict=True)
        crossed.append(2 ** np.interp(0, (low, high), (at_low, at_high)))
        words.append(f"{'below' if log[i] < 0 else 'above'} {in_units(crossed[-1])}")
    never = "at all sizes" if (log <= 0).all() and log.any() else "never"
    return crossed, ", ".join(words) or never


def in_units(n_bytes):
    if n_bytes < 1000:
        return f"{n_bytes:.3g} B"
    kib = n_bytes / 1024
    return f"{kib:.3g} KiB" if kib < 1000 else f"{kib / 1024:.3g} MiB"


def draw(plt, matrices, g, n_bytes, sizes, times, link):
    """Draws the bytes that rank i sends to rank j (above). Below: the time of each all-reduce,
    divided by the ring's time."""
    p = len(next(iter(matrices.values())))
    figure = plt.figure(figsize=(14, 9.2))
    above, below = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    above.suptitle(f"An all-reduce of K bytes on {p} ranks: four ways to send {2 * (p - 1)} K")
    panels = above.subplots(1, 4, sharey=True)
    shares = {name: matrix / n_bytes for name, matrix in matrices.items()}
    top = max(1e-9, max(share.max() for share in shares.values()))
    node = np.arange(p) // g
    for axes, (name, share) in zip(panels, shares.items(), strict=True):
        cells = heat_map(axes, share, top, g)
        axes.set_title(f"{name}\nbusiest rank {share.sum(1).max():.3g} K\n"
                       f"between nodes {share[node[:, None] != node].sum():.3g} K")
        axes.label_outer()
    above.colorbar(cells, ax=panels, label="bytes sent / K", shrink=0.8)
    above.supxlabel(f"Grey squares: nodes of {g}.", fontsize=11)

    alpha, beta = link
    rate = f"{alpha * 1e6:g} us" + (f", {1e-9 / beta:.3g} GB/s" if beta else "")
    titles = (f"One switch: {rate} between any two ranks",
              f"Nodes of {g} share a port of {rate}; links inside: 10 x faster")
    panels = below.subplots(1, 2, sharey=True)
    for axes, at_sizes, title in zip(panels, times, titles, strict=True):
        axes.axhline(1, color="black", linewidth=1.5)
        axes.text(sizes[0], 1, "ring", fontsize=11, va="center", zorder=3.5,
                  bbox={"color": "white", "pad": 2})
        for width, name in zip((7, 5, 3, 1.2), list(at_sizes[0])[1:], strict=True):
            ratio = np.array([at[name] / at["ring"] if p > 1 else 1.0 for at in at_sizes])
            crossed, words = overtaking(sizes, ratio)
            # Each line is narrower than the line before. So two equal curves can both be seen.
            (line,) = axes.plot(sizes, ratio, linewidth=width, label=f"{name}: {words}", zorder=3)
            axes.plot(crossed, [1] * len(crossed), "o", color=line.get_color(), zorder=4,
                      markersize=9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks([2.0**i for i in range(6, 27, 4)], map(in_units, 2 ** np.arange(6, 27, 4)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title, loc="left")
        axes.set(xlabel="K: bytes of the array", ylim=(0.2, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=10, loc="lower right", title="Faster than the ring:",
                    alignment="left")
    panels[0].set_ylabel("modelled time / the ring's time")
    return figure


OPTIONS = {
    "n": (9_600, "floats in the all-reduce; rounded up so that all chunks are equal"),
    "node_size": (2, "ranks of a node; the script uses the gcd of this and the number of ranks"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=8)
