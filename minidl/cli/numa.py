"""NUMA: finds the nodes of this machine, and binds each rank to one node, near the rank's memory.

The plain form, with the picture and the formula of the time: minidl/plain/numa.py. This file is for
real machines. Its functions bind the ranks of a launcher, measure the speed of near and far memory,
and find the node of each page.

`minidl run --bind numa` binds each rank to the cores of one node. The ranks are given to the nodes
in turn. `--bind core` binds a rank to one core for each thread of the rank. mpiexec does the
binding, and `options` returns the options for mpiexec. `minidl doctor` shows the result.

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

# cpus: a frozenset, empty if the node has only memory
Node = namedtuple("Node", "number cpus n_bytes")
TOUCHED = 1 << 24  # bytes that a rank writes, to find the node of its memory
MEASURED = 1 << 28  # bytes that are read to measure a node's memory; no cache is so large


class BindError(Exception):
    """The error if mpiexec cannot bind the ranks. The message says what to do."""


def options(vendor, bind, n, threads, n_cores):
    """Returns the options by which a vendor's mpiexec binds n ranks. bind: "numa" or "core".
    threads: threads of each rank. n_cores: cores of this machine. Raises BindError if there are too
    few cores, or for an unknown vendor."""
    if bind == "core" and n * threads > n_cores:
        raise BindError(f"--bind core: {n} ranks of {threads} threads want {n * threads} cores, "
                        f"and this machine has {n_cores} cores. Use fewer ranks, fewer --threads, "
                        "or --bind numa")
    if vendor == "MPICH":
        return ["-bind-to", "numa" if bind == "numa" else f"core:{threads}"]
    if vendor == "Open MPI":  # by default Open MPI refuses several ranks on a node
        return (["--map-by", "numa:oversubscribe", "--bind-to", "numa:overload-allowed"]
                if bind == "numa" else
                ["--map-by", f"slot:PE={threads}:oversubscribe", "--bind-to", "core"])
    raise BindError("--bind works with the launchers of MPICH and Open MPI; got a launcher of "
                    f"{vendor}. Pass the launcher's own options: --mpiexec 'srun --mpi=pmix "
                    "--cpu-bind=ldoms'")


def nodes(root="/sys"):
    """Returns the list of Nodes, sorted by number. The numbers may have gaps. Returns [] if the
    system does not list its nodes."""
    found = []
    for folder in Path(root, "devices/system/node").glob("node[0-9]*"):
        memory = re.search(r"MemTotal:\s+(\d+) kB", (folder / "meminfo").read_text())
        found.append(Node(int(folder.name.removeprefix("node")),
                          cpus_in((folder / "cpulist").read_text()),
                          int(memory[1]) * 1024 if memory else 0))
    return sorted(found)


def cpus_in(text):
    """Returns the numbers in a text. "0-3,8" gives {0, 1, 2, 3, 8}."""
    parts = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(i for part in parts for i in range(int(part[0]), int(part[-1]) + 1))


def on(all_nodes, cpus):
    """Returns the numbers of the nodes that have at least one cpu of the set `cpus`."""
    return [node.number for node in all_nodes if node.cpus & cpus]


def nics(root="/sys"):
    """Returns {network interface: node of this interface}. An interface without a known node is
    left out."""
    found = {}
    for file in sorted(Path(root, "class/net").glob("*/device/numa_node")):
        if (number := int(file.read_text())) >= 0:  # -1: the node is unknown
            found[file.parent.parent.name] = number
    return found


def touched(array, maps="/proc/self/numa_maps"):
    """Counts the pages of the array's memory on each node. Returns {node: number of pages}, or {}
    if the system does not list pages. The numbers are sums over all mappings that contain a part of
    the array. There may be several mappings, because NumPy asks for huge pages in the middle of an
    array."""
    try:
        lines = Path(maps).read_text().splitlines()
    except OSError:
        return {}
    begin, found = array.ctypes.data, Counter()
    for line in lines:
        address, *words = line.split()
        if int(address, 16) >= begin + array.nbytes:
            break
        if int(address, 16) <= begin:  # all earlier mappings end before the array
            found.clear()
        found.update({int(k): int(v)
                      for k, v in re.findall(r"\bN(\d+)=(\d+)", " ".join(words))})
    return dict(found)


def here(root="/sys"):
    """Returns a dict with three keys for this rank. "cpus": the rank's cpus as text. "nodes": a
    list of the nodes of these cpus. "memory": the node of the rank's memory, or None if this node
    is unknown."""
    cpus = backend.cores()
    pages = touched(np.ones(TOUCHED, np.uint8))
    return {"cpus": ranges(cpus), "nodes": on(nodes(root), cpus),
            "memory": max(pages, key=pages.get, default=None)}


def ranges(cpus):
    """Returns the numbers as text. {0, 1, 2, 3, 8} gives "0-3,8"."""
    runs = []
    for i in sorted(cpus):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in runs)


def time_s(n_bytes, remote, local_bps, remote_bps):
    """Returns the seconds to read n_bytes, by the formula of minidl/plain/numa.py. remote: the
    fraction of the bytes that is on the other node. local_bps, remote_bps: bytes per second."""
    return n_bytes * ((1 - remote) / local_bps + remote / remote_bps)


def measure(all_nodes):
    """Measures how fast one core reads memory. Returns (bytes/s of near memory, bytes/s of far
    memory). Returns None if this process has cores on only one node."""
    before = backend.cores()
    sets = [node.cpus & before for node in all_nodes if node.cpus & before]
    if len(sets) < 2:
        return None
    try:
        os.sched_setaffinity(0, {min(sets[0])})
        x, speeds = np.ones(MEASURED // 8), []  # this core writes x, so x is on its node
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
    """Returns the lines that `minidl doctor` prints about NUMA. ranks: a list with the result of
    here() for each rank that `--bind numa` has bound, or []."""
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
        lines.append("near and far memory: not measured, because this machine has one node")
    else:
        half = time_s(2**30, 0.5, *speeds)
        lines.append(f"a core reads {speeds[0] / 1e9:.1f} GB/s from near memory and "
                     f"{speeds[1] / 1e9:.1f} GB/s from far memory; 1 GiB, half of it far, "
                     f"takes {1e3 * half:.0f} ms by the formula, and "
                     f"{1e3 * time_s(2**30, 0, *speeds):.0f} ms if the rank is bound")
    return lines


if __name__ == "__main__":  # the doctor starts this file as a rank
    sys.stdout.write(f"NUMA {json.dumps(here())}\n")  # one write: lines of two ranks do not mix
