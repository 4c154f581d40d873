"""08  Topologies: ring, halving and doubling, trees, nodes.       75 minutes, needs: 06

Total bytes never change; who sends them, and in how many steps, does.

    mpirun -n 8 python tutorials/08_topologies.py     or: minidl run -n 8 tutorials/08_topologies.py
    python tutorials/08_topologies.py --sim 8         picture: out/08_topologies.png

A sum of p arrays of K = 4n bytes needs p-1 additions of K bytes, and a copy of the sum for p-1
ranks: every all-reduce that adds each part once sends 2 (p-1) K in all. They differ in the rest:

                          sent by the busiest rank    steps, one after the other    H = ceil(log2 p)
    ring                  2 (p-1)/p K                 2 (p-1)
    halving, doubling     2 (p-1)/p K                 2 log2 p                      p a power of two
    tree                  H K                         2 H                           the root
    double tree           2 K                         2 H                           p >= 4
    nodes of g ranks      2 (p-1)/p K in all          2 (g-1) + 2 (m-1)             m = p/g nodes
      inside a node       2 (g-1)/g K
      between nodes       2 (m-1)/m K/g

A step costs alpha, a byte beta: the fewer steps, the better for short messages; the fewer bytes
through the busiest port, the better for long ones. Where one overtakes the other follows from
alpha/beta. On one switch halving and doubling beats the ring at every size if p is a power of two;
where links differ it sends most to the farthest rank, and what counts is the traffic between nodes.

A binary tree keeps half of its ranks idle: leaves send K and receive K, inner ranks three times
that. The double tree reduces half of x on each of two trees, and who is inner in one is a leaf in
the other.

Papers: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", 2005; Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", Parallel Computing 35, 2009.
Exercises: `minidl exercise 08` writes work/08_topologies.py with the marked regions empty;
`minidl check 08` grades it.
"""

import math
from functools import partial

import numpy as np

from minidl.comm import chunks, cost, double_tree, halving_doubling, ring, simulate, tree
from minidl.comm.ledger import Ledger
from minidl.comm.links import Links
from minidl.course.out import heat_map
from minidl.tutorial import Table, gather, host, launch, picture, put, say


def first_tree(p):
    """The parent of every rank; None for the root, rank 0. Odd ranks are leaves."""
    parents = [None]
    for r in range(1, p):
        bit = r & -r  # the lowest set bit: 1 at leaves, 2 one level up, 4, ...
        up = (r ^ bit) | (bit << 1)  # the neighbour at this distance with a larger lowest bit
        parents.append(up if up < p else r ^ bit)
    return parents


def second_tree(p):
    """The parent of every rank in a tree whose inner ranks are leaves of first_tree(p)."""
    first = first_tree(p)
    # >>> exercise 08a: the second tree
    # Rename the ranks of the first tree. A renaming takes rank r to another, new(r); the parent of
    # new(r) in the second tree is new(parent of r), and None for the new root. Every rank must be
    # inner (have children) in one tree at most; for odd p that cannot be: rank 0 alone may be inner
    # in both. Hint: the odd ranks are the leaves; the mirror image, new(r) = p-1-r, exchanges odd
    # and even for one kind of p. For the other find a renaming that does, but for one rank.
    def new(r):
        return p - 1 - r if p % 2 == 0 else (r + 1) % p

    second = [None] * p
    for r, parent in enumerate(first):
        second[new(r)] = None if parent is None else new(parent)
    return second
    # <<<


def sum_on_tree(t, x, parents, tag):
    """Add up from the leaves to the root, and hand the sum down again."""
    parent, children = parents[t.rank], [r for r, up in enumerate(parents) if up == t.rank]
    for child in children:
        x += t.recv(np.empty_like(x), child, tag)
    if parent is not None:
        t.send(x, parent, tag)
        t.recv(x, parent, tag)
    for child in children:
        t.send(x, child, tag)


def double_tree_all_reduce(t, x):
    """Half of x on each tree, both at the same time."""
    trees, halves = (first_tree(t.size), second_tree(t.size)), chunks.split(x, 2)
    other = t.spawn(sum_on_tree, t, halves[1], trees[1], 1)  # tags keep the two apart
    sum_on_tree(t, halves[0], trees[0], 0)
    other.wait()


def node_groups(t, g):
    """(ranks of this node, ranks with the same place in all nodes), as transports."""
    node, place = divmod(t.rank, g)
    return t.subgroup(range(node * g, node * g + g)), t.subgroup(range(place, t.size, g))


def hierarchical_all_reduce(t, x, groups):
    """Sum x over all ranks, sending as little as can be between nodes."""
    inside, across = groups
    # >>> exercise 08b: inside the nodes, then between them
    # inside: the transport of this rank's node; across: of the ranks that have this rank's place in
    # their nodes. Three calls of minidl.comm.ring: reduce_scatter(transport, x) returns the chunk
    # of x (a view) that is complete on this rank; all_reduce(transport, chunk) sums in place;
    # all_gather(transport, x) copies the complete chunks of x to all. 2 (m-1)/m K/g bytes may be
    # sent between nodes.
    chunk = ring.reduce_scatter(inside, x)
    ring.all_reduce(across, chunk)
    ring.all_gather(inside, x)
    # <<<


def algorithms(t, g):
    """{name: all_reduce(t, x)} of those that the table compares."""
    return {
        "ring": ring.all_reduce,
        "halving, doubling": halving_doubling.all_reduce,
        "double tree": double_tree_all_reduce,
        f"nodes of {g}": partial(hierarchical_all_reduce, groups=node_groups(t, g)),
    }


def steps(p, g):
    """{name: messages one after the other}: the modelled time if each takes 1 s, its bytes 0."""

    def body(t):
        seconds = {}
        for name, all_reduce in algorithms(t, g).items():
            tree.barrier(t)
            start = t.time()
            all_reduce(t, np.ones(2 * p))
            seconds[name] = start, t.time()
        return seconds

    ranks = simulate(p, body, alpha=1.0, beta=0.0)
    return {
        name: max(r[name][1] for r in ranks) - max(r[name][0] for r in ranks) for name in ranks[0]
    }


MODEL_BYTES = 1 << 14


def modelled(p, all_reduce, n_bytes, network):
    """Seconds that n_bytes take; network(times) gives the links with beta so many times as large.

    The clock knows bytes only as bytes times beta, so a short array on slow links stands for a long
    one."""

    def body(t):
        all_reduce(t, np.ones(MODEL_BYTES // 4, np.float32))
        return t.time()

    return max(simulate(p, body, links=network(n_bytes / MODEL_BYTES)))


def one_switch(alpha, beta):
    return lambda times: Links.uniform(alpha, beta * times)


def shared_ports(g, alpha, beta):
    """Nodes of g ranks behind one port each; inside a node everything is ten times faster."""
    return lambda times: Links.nodes(
        g, intra=(alpha / 10, beta / 10 * times), inter=(alpha, beta * times), nic="node"
    )


def curves(p, g, sizes, network, alpha, beta):
    """{name: modelled seconds at every size}; the double tree in the best number of segments."""

    def on_nodes(t, x):
        hierarchical_all_reduce(t, x, node_groups(t, g))

    all_reduces = {
        "ring": ring.all_reduce,
        "tree": tree.all_reduce,
        "doubling": halving_doubling.doubling_all_reduce,
        "halving, doubling": halving_doubling.all_reduce,
        "double tree": None,
        f"nodes of {g}": on_nodes,
    }
    seconds = {name: [] for name in all_reduces}
    extra = 2 * double_tree.height_of(p) - 3
    for size in sizes:
        segments = cost.best_segments(size, beta, alpha, extra) if alpha else MODEL_BYTES // 8
        all_reduces["double tree"] = partial(
            double_tree.all_reduce, segment_bytes=max(4, MODEL_BYTES // 2 // segments)
        )
        for name, all_reduce in all_reduces.items():
            seconds[name].append(modelled(p, all_reduce, size, network))
    return {name: np.array(s) for name, s in seconds.items()}


def main(t, args):
    p, r = t.size, t.rank
    g = math.gcd(p, args.node_size)
    m, n = p // g, math.ceil(args.n / (2 * p)) * 2 * p  # every chunk and every half of equal size
    K = 4 * n
    table = Table(t)

    say(t, f"1. n = {n:,} float32 on {p} ranks, {m} nodes of {g}: who sends how much to whom?")
    x0 = np.arange(n, dtype=np.float32) % 1000  # small whole numbers: their sums are exact
    matrices = {}
    for name, all_reduce in algorithms(t, g).items():
        ledger = Ledger(t)
        if name.startswith("nodes"):  # its groups are the ledger's
            all_reduce = algorithms(ledger, g)[name]
        x = put(args, x0 + r)
        tree.barrier(t)
        start = t.time()
        all_reduce(ledger, x)
        time_s = t.time() - start
        wrong = int((host(x) != x0 * p + p * (p - 1) // 2).sum())
        table.row(f"{name}: wrong sums", wrong, 0, "exact")
        matrices[name] = ledger.matrix()  # bytes from rank i to rank j, on every rank
        if name.startswith("nodes"):
            sent = matrices[name][r]
            inside = int(sent[r // g * g : r // g * g + g].sum())
            between = int(sent.sum()) - inside
            table.row(f"{name}: bytes inside a node", inside, 2 * (g - 1) * K // g, "exact")
            table.row(f"{name}: bytes between nodes", between, 2 * (m - 1) * K // p, "exact")
        if not args.sim:
            table.row(f"{name}: ms of wall time", 1000 * time_s)

    if r == 0:
        power = halving_doubling.core(p)  # the largest power of two up to p
        fold = K if p > power else 0
        busiest = {
            "ring": 2 * (p - 1) * K // p,
            "halving, doubling": 2 * (power - 1) * K // power + fold,
            "double tree": min(p, 4) * K // 2 if p > 1 else 0,
            f"nodes of {g}": 2 * (p - 1) * K // p,
        }
        height = math.ceil(math.log2(p))
        in_steps = {
            "ring": 2 * (p - 1),
            "halving, doubling": 2 * (power.bit_length() - 1) + (2 if fold else 0),
            "double tree": 2 * height,
            f"nodes of {g}": 2 * (g - 1) + 2 * (m - 1),
        }
        in_model = steps(p, g)
        for name, matrix in matrices.items():
            table.row(f"{name}: bytes, all ranks", int(matrix.sum()), 2 * (p - 1) * K, "exact")
            if K % (4 * power) == 0:
                most = int(matrix.sum(1).max())
                table.row(f"{name}: bytes, busiest rank", most, busiest[name], "exact")
            table.modelled(f"{name}: steps", in_model[name], in_steps[name], "exact")
        inner = [set(parents) - {None} for parents in (first_tree(p), second_tree(p))]
        both = len(inner[0] & inner[1])
        table.row("double tree: ranks inner in both", both, int(p % 2 and p > 1), "exact")
        model(table, p, args)

    say(t, "2. Modelled time against message size: one switch; nodes that share a port.")
    sizes, link = 2.0 ** np.arange(6, 27), (args.alpha, args.beta)
    networks = one_switch(*link), shared_ports(g, *link)
    # Every rank takes some of the sizes: idle ones would keep the cores busy with waiting.
    parts = gather(t, [curves(p, g, sizes[r::p], network, *link) for network in networks])
    if r == 0:
        times = [{name: np.empty(len(sizes)) for name in seconds} for seconds in parts[0]]
        for rank, part in enumerate(parts):
            for whole, seconds in zip(times, part, strict=True):
                for name in whole:
                    whole[name][rank::p] = seconds[name]
        picture(t, draw, matrices, g, K, sizes, times, link)
    return table


def model(table, p, args):
    """Rows of the modelled clock against the formulas; they hold exactly for these p."""
    if p < 4 or p & (p - 1) or not args.beta:
        return
    link = args.alpha, args.beta

    def clock(all_reduce):
        return lambda n_bytes: modelled(p, all_reduce, n_bytes, one_switch(*link))

    for name, all_reduce, formula in [
        ("ring", ring.all_reduce, cost.ring_all_reduce),
        ("halving, doubling", halving_doubling.all_reduce, cost.halving_doubling_all_reduce),
        ("double tree", double_tree_all_reduce, cost.double_tree_all_reduce),
    ]:
        theory = formula(p, 1 << 20, *link).time_s
        # float64: the clock adds up what the formula multiplies
        table.modelled(f"{name}: seconds of 1 MiB", clock(all_reduce)(1 << 20), theory, "rel<1e-9")
    # 2 H (alpha + K beta) = 2 (p-1) (alpha + K/p beta)
    height = math.log2(p)
    theory = (p - 1 - height) / (height - (p - 1) / p) * args.alpha / args.beta
    found = cost.crossover(clock(tree.all_reduce), clock(ring.all_reduce))
    table.modelled("bytes from which the ring overtakes the tree", found, theory, "abs<2")


def overtaking(sizes, ratio):
    """([sizes at which the curve crosses 1], in words where it is below)."""
    log = np.where(np.abs(ratio - 1) < 1e-9, 0.0, np.log2(ratio))  # equal but for rounding
    crossed, words = [], []
    for i in np.flatnonzero(log[:-1] * log[1:] < 0):
        ends = sorted((log[j], np.log2(sizes[j])) for j in (i, i + 1))
        crossed.append(2 ** np.interp(0, *zip(*ends, strict=True)))
        words.append(f"{'below' if log[i] < 0 else 'above'} {in_units(crossed[-1])}")
    never = "at all sizes" if (log <= 0).all() and log.any() else "never"
    return crossed, ", ".join(words) or never


def in_units(n_bytes):
    if n_bytes < 1000:
        return f"{n_bytes:.3g} B"
    kib = n_bytes / 1024
    return f"{kib:.3g} KiB" if kib < 1000 else f"{kib / 1024:.3g} MiB"


def draw(plt, matrices, g, n_bytes, sizes, times, link):
    """Above: bytes from rank to rank. Below: modelled time beside the ring's."""
    p = len(next(iter(matrices.values())))
    figure = plt.figure(figsize=(14, 9.2))
    figure.suptitle(f"An all-reduce of K bytes on {p} ranks: four ways to send {2 * (p - 1)} K")
    above, below = figure.subfigures(2, 1, height_ratios=(1.1, 1))
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
              f"Nodes of {g} share a port of {rate}; inside 10 x faster")
    panels = below.subplots(1, 2, sharey=True)
    for axes, seconds, title in zip(panels, times, titles, strict=True):
        axes.axhline(1, color="black", linewidth=1.5)
        axes.text(sizes[0], 1.08, "ring", fontsize=11)
        for name in list(seconds)[1:]:
            ratio = seconds[name] / seconds["ring"] if p > 1 else sizes**0  # one sends nothing
            crossed, words = overtaking(sizes, ratio)
            style = "--" if name.startswith("nodes") else "-"  # it may lie on another's line
            (line,) = axes.plot(sizes, ratio, style, label=f"{name}: {words}", zorder=3)
            axes.plot(crossed, [1] * len(crossed), "o", color=line.get_color(), zorder=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks([2.0**i for i in range(6, 27, 4)], map(in_units, 2 ** np.arange(6, 27, 4)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title, loc="left")
        axes.set(xlabel="K: bytes of the array", ylim=(0.1, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=10, loc="lower right", title="Faster than the ring:",
                    alignment="left")
    panels[0].set_ylabel("modelled time / the ring's")
    return figure


OPTIONS = {
    "n": (9_600, "floats in the all-reduce, rounded up to a multiple of twice the ranks"),
    "node_size": (2, "ranks of a node; their greatest common divisor with all ranks is taken"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=8)
