"""NUMA: a rank stays on the cores that are near its memory.

NUMA means non-uniform memory access: some memory is farther away. A large machine has several
nodes. A node is a processor with some cores and a part of the memory:

    node 0:  cores 0 1 2 3, memory ─── link ─── node 1:  cores 4 5 6 7, memory

A core reads the memory of its own node fast. It reads the memory of the other node over the link,
often at half of the speed. If a share f of B bytes is on the other node, reading the B bytes takes

    time = B ((1 - f) / near + f / far)            near, far: speeds, bytes a second

A piece of memory is placed on the node whose core writes to it first. Later the system may move a
process to the other node, but the memory of the process stays behind. So before a rank writes to
its memory, it is bound to the cores of one node. The ranks of a node share its cores. The nodes get
ranks in turn: with four ranks node 0 gets 0 and 2, and node 1 gets 1 and 3.

Source: the Linux kernel's Documentation/ABI/stable/sysfs-devices-node.
This page is the plain version. The real one, minidl/cli/numa.py, adds: ranks that the launcher of
MPI binds, a search for the network interface of each node, and a measurement of near and far
memory.
"""

import glob
import os


def numbers(text):
    """Returns the list of numbers that a text stands for: [0, 1, 2, 3, 8] for "0-3,8". Linux writes
    a set of cores in this form."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        # A single number such as "8" means the same as "8-8".
        found += range(int(first), int(last or first) + 1)
    return found


def nodes():
    """Returns the cores of each node of this machine, a list of lists."""
    found = []
    for path in sorted(glob.glob("/sys/devices/system/node/node[0-9]*/cpulist")):
        with open(path) as file:
            text = file.read().strip()
        if text:  # a node may have memory and no cores
            found.append(numbers(text))
    return found


def cores_of(rank, nodes):
    """Returns the cores on which this rank may run: all cores of one node."""
    return nodes[rank % len(nodes)]


def bind(rank):
    """Binds this process: from now on it runs only on the cores of its node."""
    os.sched_setaffinity(0, cores_of(rank, nodes()))


def time_s(n_bytes, far_part, near_speed, far_speed):
    """Returns the seconds to read n_bytes. far_part: the share of these bytes that is in far
    memory. Speeds are in bytes a second."""
    return n_bytes * ((1 - far_part) / near_speed + far_part / far_speed)


if __name__ == "__main__":
    machine = [numbers("0-3"), numbers("4-7")]
    for rank in range(4):
        print("rank", rank, "cores", cores_of(rank, machine))
    for part in (0, 0.5, 1):  # reads 100 GB. Near memory has 100 GB/s, far memory has 50 GB/s
        print(part, "of the bytes are far; seconds:", round(time_s(100e9, part, 100e9, 50e9), 3))
