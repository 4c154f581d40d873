"""What does an all-reduce send over the slow link between hosts, and how long does it take?

    sudo make cluster            or: sudo .venv/bin/python benchmarks/bench_topologies.py
           [--hosts 2] [--per-host 2] [--mbit 200] [--kib 64 1024 4096] [--rounds 5] [--out F.json]

Builds the cluster of cluster.py and runs MPI ranks on its hosts. The columns, for each algorithm
and each size K of the float32 array:

    K between hosts   bytes that the ledger counted between ranks of different hosts, divided by K
    measured ms       median over the rounds; a round's time is the slowest rank's time
    / ring            the median over the rounds of (the algorithm's time / the ring's time)
    modelled ms       the same functions in the simulator, with the links' alpha and beta
    bridge / ledger   bytes by the hosts' interface counters, divided by the ledger's bytes
    ok                yes if the bridge carried at least the ledger's bytes, and at most these bytes
                      plus the headers of the packets, an acknowledgement for each packet, and SETUP
                      bytes in each round

alpha is the latency of a link, and beta is its time for each byte. On the slow link, alpha is half
of the shortest measured round trip of one byte. beta comes from the link's configured rate without
the share of the headers. Inside a host, alpha and beta are measured.

"ring, dealt" puts neighbouring ranks on different hosts, so all its messages cross the bridge.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial

import numpy as np
from cluster import ETHERNET, HEADERS, MTU, SEGMENT, ClusterError, cluster
from common import (
    bar, best_ratio, device_option, finish, heading, number, ratio, row, skip, span, take_turns,
    write_figures,
)

from minidl.comm import (
    Ledger, Links, double_tree, halving_doubling, hierarchical, ring, simulate, tree, world,
)
from minidl.course.tutorial import gather

# A round also sends bytes that belong to no array. They come from barriers, from MPI's
# announcements of large messages, and from the hosts' own packets (ARP, IPv6 neighbours). The
# largest measured number was 3 KiB. The limit SETUP is larger.
SETUP = 8 << 10
QUIET_S = 0.05  # seconds. TCP acknowledges within 40 ms. Then the counters do not change


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=2, metavar="RANKS")
    parser.add_argument("--mbit", type=float, default=200.0, help="rate of each host's link")
    parser.add_argument("--kib", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "it measures a network between hosts")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # rank 0 writes this file
    return parser.parse_args()


def algorithms(t, hosts):
    """Returns {name: f}. Each f(x) is an all-reduce of t's ranks. Each of the `hosts` hosts has a
    block of consecutive ranks."""
    per_host = t.size // hosts
    dealt = t.subgroup([h * per_host + i for i in range(per_host) for h in range(hosts)])
    on_hosts = hierarchical.groups(t, per_host)
    return {
        "ring": lambda x: ring.all_reduce(t, x),
        "ring, dealt": lambda x: ring.all_reduce(dealt, x),
        "tree": lambda x: tree.all_reduce(t, x),
        "double tree": lambda x: double_tree.all_reduce(t, x),
        "halving-doubling": lambda x: halving_doubling.all_reduce(t, x),
        "hierarchical": lambda x: hierarchical.all_reduce(t, x, groups=on_hosts),
        "by leaders": lambda x: hierarchical.leader_all_reduce(t, x, groups=on_hosts),
    }


def measure(args):
    """Runs on each rank under mpiexec. Rank 0 writes the results of all ranks."""
    t = world()
    links = measure_links(t, args)
    ledger = Ledger(t)
    contestants = algorithms(ledger, args.hosts)
    figures = {}
    for kib in args.kib:
        x = np.empty(kib << 8, np.float32)
        for name, reduce in contestants.items():
            reduce_and_check(t, name, reduce, x)
        counts = {name: [0, 0] for name in contestants}
        turns = {
            name: partial(one_round, t, ledger, args, reduce, x, counts[name])
            for name, reduce in contestants.items()
        }
        times = take_turns(turns, args.rounds)
        all_counts = gather(t, counts)
        if t.rank == 0:
            figures[kib] = {
                name: {
                    "times_s": times[name],
                    "ledger_bytes": sum(counts[name][0] for counts in all_counts),
                    "bridge_bytes": sum(counts[name][1] for counts in all_counts),
                }
                for name in contestants
            }
    if t.rank == 0:
        write_figures({"links": links, "sizes_kib": figures}, args.measure)


def reduce_and_check(t, name, reduce, x):
    """Checks before timing that `reduce` computes the sum. This also opens the connections."""
    places = np.arange(len(x)) % 5
    x[:] = t.rank + places  # the sums of small whole numbers are exact
    reduce(x)
    assert (x == sum(range(t.size)) + t.size * places).all(), f"rank {t.rank}: {name} is wrong"


def one_round(t, ledger, args, reduce, x, counts):
    """Runs one all-reduce. Returns the slowest rank's seconds. Adds the bytes sent between hosts to
    `counts`: counts[0] is for the ledger's bytes, counts[1] for the bridge's bytes."""
    my_host = t.rank // args.per_host
    others = [rank for rank in range(t.size) if rank // args.per_host != my_host]
    x[:] = 1
    tree.barrier(t)
    before = interface_bytes_sent()
    tree.barrier(t)  # no rank sends before this rank has read the counters
    ledger.reset()
    start = time.perf_counter()
    reduce(x)
    time_s = np.array([time.perf_counter() - start])
    counts[0] += sum(ledger.count(peer=rank).bytes_sent for rank in others)
    tree.all_reduce(t, time_s, np.maximum)
    time.sleep(QUIET_S)
    if t.rank % args.per_host == 0:  # only one rank of a host reads the host's counter
        counts[1] += interface_bytes_sent() - before
    return float(time_s[0])


def interface_bytes_sent():
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        return int(file.read())


def measure_links(t, args):
    """Returns {"intra": (alpha, beta), "inter": (alpha, beta)} in seconds. "intra" is for messages
    inside a host, and "inter" for messages between hosts. Only rank 0's result is right."""
    beta = 8e-6 / args.mbit * (MTU + ETHERNET) / SEGMENT
    intra = inter = (round_trip(t, args.per_host, 1) / 2, beta)
    if args.per_host > 1:
        alpha = round_trip(t, 1, 1) / 2
        intra = (alpha, max(0.0, round_trip(t, 1, 1 << 20) / 2 - alpha) / (1 << 20))
    return {"intra": intra, "inter": inter}


def round_trip(t, other, n_bytes, repeats=30):
    """Makes `repeats` round trips between rank 0 and rank `other`. Returns the shortest time in
    seconds. Longer round trips measure the scheduler of a busy machine. The other ranks sleep,
    because a rank that waits for MPI keeps a core busy."""
    x = np.zeros(n_bytes, np.uint8)
    tree.barrier(t)
    times = []
    if t.rank in (0, other):
        peer = other - t.rank
        for _ in range(repeats):
            start = time.perf_counter()
            if t.rank == 0:
                t.send(x, peer)
                t.recv(x, peer)
            else:
                t.recv(x, peer)
                t.send(x, peer)
            times.append(time.perf_counter() - start)
    else:
        time.sleep(0.2)
    tree.barrier(t)
    return min(times, default=0.0)


def modelled(name, kib, args, links):
    """Simulates the all-reduce `name` of an array of `kib` KiB. Returns the modelled seconds. All
    ranks of a host share its cable."""
    network = Links.nodes(args.per_host, links["intra"], links["inter"])

    def body(t):
        reduce = algorithms(t, args.hosts)[name]
        reduce(np.ones(kib << 8, np.float32))
        return t.time()

    return max(simulate(args.hosts * args.per_host, body, links=network))


def most(ledger_bytes, rounds):
    """The ledger counted ledger_bytes. Returns the largest number of bytes that the bridge may
    carry for the same messages. This number is larger, because every packet and every
    acknowledgement has headers."""
    return ledger_bytes * (1 + 2 * HEADERS / SEGMENT) + rounds * SETUP


def main():
    args = options()
    if args.measure:
        return measure(args)
    if args.hosts < 2:
        sys.exit("--hosts: at least 2, so that something crosses the bridge")
    try:
        with tempfile.TemporaryDirectory() as folder, cluster(args.hosts, args.mbit) as made:
            out = os.path.join(folder, "figures.json")
            command = [__file__, *sys.argv[1:], "--measure", out]
            made.run(*command, per_host=args.per_host, check=True)
            with open(out) as file:
                run = json.load(file)
    except ClusterError as error:
        skip(f"make cluster: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print_table(run, args)
    settings = {k: v for k, v in vars(args).items() if k not in ("measure", "out")}
    finish({**settings, **run}, *report({**settings, **run}), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    sizes, hosts = figures["sizes_kib"], f"{figures['hosts']} hosts x {figures['per_host']} ranks"
    kib, found = max(sizes.items(), key=lambda item: int(item[0]))
    times = [found[name]["times_s"] for name in ("ring", "hierarchical")]
    rows = [r for size in sizes.values() for r in size.values()]
    headers = [r["bridge_bytes"] / r["ledger_bytes"] for r in rows]
    fast = bar(f"{kib} KiB over {hosts}: flat ring / hierarchical", ratio(*times), 1,
               best=best_ratio(*times))
    exact = bar("algorithms and sizes that send others than the ledger's bytes and headers",
                sum(not r["ok"] for r in rows), 0, at_most=True)
    return [fast, exact], [
        row(f"{int(kib) >> 10} MiB over {hosts}, TCP at {figures['mbit']:g} Mbit/s: hierarchical "
            "all-reduce", "the flat ring", f"{number(fast['figure'])} times its speed", [fast]),
        row("bytes over the bridge between those hosts, by the interface counters", "the ledger's",
            f"{span(headers)} times, headers included"),
        row("runs that sent others than the ledger's bytes and a packet's headers", "",
            f"{exact['figure']} of {len(rows)}", [exact])]


def print_table(run, args):
    """Prints the table. Also stores the modelled times, the ratios to the ring and `ok` in run."""
    print(heading())
    print(
        f"{args.hosts} hosts x {args.per_host} ranks, {args.mbit:g} Mbit/s per host and direction; "
        f"{args.rounds} rounds"
    )
    for name, (alpha, beta) in run["links"].items():
        print(f"{name}: alpha {alpha * 1e6:.0f} us, beta {beta * 1e9:.3g} ns per byte")
    print(
        f"\n{'KiB':>5} {'all-reduce':17} {'K between hosts':>15} {'measured ms':>12} {'/ ring':>7} "
        f"{'modelled ms':>12} {'bridge / ledger':>16} {'at most':>8}  ok"
    )
    for kib, rows in run["sizes_kib"].items():
        for name, found in rows.items():
            rounds = args.rounds + 1  # the warm-up round counts too
            found["modelled_s"] = modelled(name, int(kib), args, run["links"])
            ledger, bridge = found["ledger_bytes"], found["bridge_bytes"]
            limit = most(ledger, rounds)
            found["ratio_to_ring"] = ratio(found["times_s"], rows["ring"]["times_s"])
            found["ok"] = ledger <= bridge <= limit
            print(
                f"{kib:>5} {name:17} {ledger / rounds / (int(kib) << 10):15.2f} "
                f"{statistics.median(found['times_s']) * 1e3:12.1f} "
                f"{found['ratio_to_ring']:7.2f} {found['modelled_s'] * 1e3:12.1f} "
                f"{bridge / ledger:16.3f} {limit / ledger:8.3f}  {'yes' if found['ok'] else 'NO'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
