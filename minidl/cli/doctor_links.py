"""`minidl doctor --links 2 4`: measures how fast messages are with 2 ranks, then with 4 ranks.

For each number of ranks it prints the time of a ping-pong between two ranks. Then it prints the
measured numbers from which select.py chooses an all-reduce algorithm. For each size of an array it
prints the chosen algorithm. This takes about 2 s. The measured numbers are stored in a file, and
`select.stored(t)` reads them.

Test: tests/comm/test_select.py
"""

import subprocess
import sys

import numpy as np

from minidl.cli import machine
from minidl.comm import select, tree, world

ROUNDS = 500
SECONDS = 120  # the limit for each number of ranks. A busy laptop needs a tenth of this time


def main(numbers):
    """Measures the speed of messages with each number of ranks in `numbers`. Returns the exit
    status: 0, or 2 if ranks cannot start."""
    mpiexec = machine.find_mpiexec()
    if mpiexec is None:
        print("minidl doctor --links: mpiexec was not found; `minidl doctor` tells how to install "
              "it", file=sys.stderr)
        return 2
    for n in numbers:
        command = [mpiexec, "-n", str(n), sys.executable, "-m", "minidl.cli.doctor_links"]
        try:
            status = subprocess.run(command, env=machine.environment(n, 1),
                                    stdin=subprocess.DEVNULL, timeout=SECONDS).returncode
        except subprocess.TimeoutExpired:
            print(f"minidl doctor --links: {n} ranks took over {SECONDS} s", file=sys.stderr)
            return 2
        if status:
            return 2
    return 0


def ping_pong(t, n_bytes, rounds=ROUNDS):
    """Returns the seconds of a message from rank 0 to rank 1: half the shortest round trip. All
    ranks must call this function. Ranks 2 and above wait."""
    x, times = np.zeros(n_bytes, np.uint8), []
    tree.barrier(t)
    for _ in range(rounds):
        start = t.time()
        if t.rank == 0:
            t.send(x, 1)
            t.recv(x, 1)
        elif t.rank == 1:
            t.recv(x, 0)
            t.send(x, 0)
        times.append((t.time() - start) / 2)
    tree.barrier(t)
    return min(times)


def report(t):
    """Measures the links between the ranks, and stores the measured numbers. Returns the text to
    print. All ranks must call report()."""
    lines = []
    if t.size > 1:
        short, long = ping_pong(t, 8), ping_pong(t, 1 << 22, 9)
        rate = 1e-9 * (1 << 22) / long if long else float("inf")
        lines = [f"ping-pong: {1e6 * short:.1f} us for 8 bytes, {rate:.2f} GB/s for 4 MiB"]
    figures = select.measure(t)
    where = select.store(t, figures)
    return "\n".join([*lines, select.explain(t.size, figures), where])


if __name__ == "__main__":
    transport = world()
    text = report(transport)
    if transport.rank == 0:
        print(f"{transport.library}\n{text}\n", flush=True)
