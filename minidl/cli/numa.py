"""Memory that is near: the nodes of this machine, which of them a rank is on, binding it there.

The plain form, with the picture and the formula of the time: minidl/plain/numa.py. Here: launchers
bind the ranks, and the doctor measures near and far memory and finds where pages lie.

`minidl run --bind numa` ties each rank to the cores of one node, in turn; `--bind core` to as many
cores as it has threads. The launchers do it: `options`. `minidl doctor` shows what came of it.

Sources: the kernel's Documentation/ABI/stable/sysfs-devices-node; MPICH's Hydra and Open MPI's
PRRTE manuals (-bind-to, --map-by).   Test: tests/cli/test_numa.py
"""

import json
import os
import re
import sys
import time
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np

from minidl import backend

Node = namedtuple("Node", "number cpus n_bytes")  # cpus: a frozenset, empty for memory alone
TOUCHED = 1 << 24  # bytes that a rank touches to see where they lie
MEASURED = 1 << 28  # bytes that are read to measure a node's memory: more than any cache


class BindError(Exception):
    """This launcher cannot bind so; the message says what to do."""


def options(vendor, bind, n, threads, n_cores):
    """The options of a vendor's mpiexec that bind each of n ranks of so many threads."""
    if bind == "core" and n * threads > n_cores:
        raise BindError(f"--bind core: {n} ranks of {threads} threads want {n * threads} cores, "
                        f"and this machine has {n_cores}. Fewer ranks, --threads, or --bind numa")
    if vendor == "MPICH":
        return ["-bind-to", "numa" if bind == "numa" else f"core:{threads}"]
    if vendor == "Open MPI":  # several ranks on a node are no overload
        return (["--map-by", "numa:oversubscribe", "--bind-to", "numa:overload-allowed"]
                if bind == "numa" else
                ["--map-by", f"slot:PE={threads}:oversubscribe", "--bind-to", "core"])
    raise BindError(f"--bind knows the options of MPICH and of Open MPI; this launcher is of "
                    f"{vendor}. Pass its own: --mpiexec 'srun --mpi=pmix --cpu-bind=ldoms'")


def nodes(root="/sys"):
    """The nodes that there are, by number, which need not be 0, 1, 2; [] where none is told."""
    found = []
    for folder in Path(root, "devices/system/node").glob("node[0-9]*"):
        memory = re.search(r"MemTotal:\s+(\d+) kB", (folder / "meminfo").read_text())
        found.append(Node(int(folder.name.removeprefix("node")),
                          cpus_in((folder / "cpulist").read_text()),
                          int(memory[1]) * 1024 if memory else 0))
    return sorted(found)


def cpus_in(text):
    """{0, 1, 2, 3, 8} of "0-3,8"."""
    parts = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(i for part in parts for i in range(int(part[0]), int(part[-1]) + 1))


def on(all_nodes, cpus):
    """The nodes to which some of these cpus belong: a cpuset may have a part of a node."""
    return [node.number for node in all_nodes if node.cpus & cpus]


def nics(root="/sys"):
    """{network interface: its node}, of those that a node is known of."""
    found = {}
    for file in sorted(Path(root, "class/net").glob("*/device/numa_node")):
        if (number := int(file.read_text())) >= 0:  # -1: not told
            found[file.parent.parent.name] = number
    return found


def touched(array, maps="/proc/self/numa_maps"):
    """{node: pages} of the mappings in which the array's memory lies, several where NumPy has asked
    for huge pages in the middle of it; {} where none is told."""
    try:
        lines = Path(maps).read_text().splitlines()
    except OSError:
        return {}
    begin, found = array.ctypes.data, Counter()
    for line in lines:
        address, *words = line.split()
        if int(address, 16) >= begin + array.nbytes:
            break
        if int(address, 16) <= begin:  # one before it, or the one in which it begins
            found.clear()
        found.update({int(k): int(v)
                      for k, v in re.findall(r"\bN(\d+)=(\d+)", " ".join(words))})
    return dict(found)


def here(root="/sys"):
    """What a rank knows of itself: its cpus, their nodes, where its memory lies."""
    cpus = backend.cores()
    pages = touched(np.ones(TOUCHED, np.uint8))
    return {"cpus": ranges(cpus), "nodes": on(nodes(root), cpus),
            "memory": max(pages, key=pages.get, default=None)}


def ranges(cpus):
    """"0-3,8" of {0, 1, 2, 3, 8}."""
    runs = []
    for i in sorted(cpus):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in runs)


def time_s(n_bytes, remote, local_bps, remote_bps):
    """The formula above; remote: the part of the bytes that lies on the other node."""
    return n_bytes * ((1 - remote) / local_bps + remote / remote_bps)


def measure(all_nodes):
    """(bytes/s of a node's own memory, of another's), read by one core; None with fewer than two
    nodes that have cores for this process."""
    before = backend.cores()
    sets = [node.cpus & before for node in all_nodes if node.cpus & before]
    if len(sets) < 2:
        return None
    try:
        os.sched_setaffinity(0, {min(sets[0])})
        x, speeds = np.ones(MEASURED // 8), []  # touched here: it lies on the first node
        for cpus in sets[:2]:
            os.sched_setaffinity(0, {min(cpus)})
            times = []
            for _ in range(5):
                start = time.perf_counter()
                x.max()
                times.append(time.perf_counter() - start)
            speeds.append(MEASURED / min(times))
    finally:
        os.sched_setaffinity(0, before)
    return tuple(speeds)


def report(ranks, root="/sys", measured=measure):
    """The lines of `minidl doctor`. ranks: here() of each rank of `--bind numa`, or []."""
    found, lines = nodes(root), []
    for node in found:
        cpus = f"cpus {ranges(node.cpus)}" if node.cpus else "no cpus"
        lines.append(f"node {node.number}: {cpus}, {node.n_bytes / 2**30:.1f} GiB")
    for r, it in enumerate(ranks):
        where = " and ".join(map(str, it["nodes"])) or "unknown"
        memory = "unknown" if it["memory"] is None else it["memory"]
        lines.append(f"--bind numa: rank {r} on node {where}, cpus {it['cpus']}; its memory on "
                     f"node {memory}")
    lines += [f"{nic}: on node {number}" for nic, number in nics(root).items()]
    speeds = measured(found)
    if speeds is None:
        lines.append("near and far memory: not measured on this machine, it has one node")
    else:
        half = time_s(2**30, 0.5, *speeds)
        lines.append(f"a core reads {speeds[0] / 1e9:.1f} GB/s near, {speeds[1] / 1e9:.1f} far; "
                     f"1 GiB, half of it far, takes {1e3 * half:.0f} ms by the formula, "
                     f"{1e3 * time_s(2**30, 0, *speeds):.0f} when bound")
    return lines


if __name__ == "__main__":  # one rank of the doctor's
    sys.stdout.write(f"NUMA {json.dumps(here())}\n")  # one write: ranks' lines do not mix
