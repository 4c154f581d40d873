"""Makes a real transport as slow as a given network, to see overlap and topology in real time.

    minidl run -n 4 --net 1Gbit,50us script.py        world() returns a throttled transport
    t = Throttled(t, Links.uniform(50e-6, 8e-9))      around any transport with a real clock

A message is sent at once. The sender also sends a stamp: the time when the first byte of the
message arrives on the given network. The ports work as in the simulator (links.py), with real
clocks. For a message of b bytes:

    isend              start = the time when the sender's port is free; stamp = start + alpha
    a send's wait()    sleeps until start + b*beta, when the port has sent the message
    a receive's wait() sleeps until the receiver's port has received the message. The port begins
                       to receive at the time of the stamp. If it has already received the message,
                       wait() does not sleep. So if a message arrives while the receiver computes,
                       wait() takes no time

So a measured time is never shorter than the model's time. The measured time is longer, because this
machine also takes time, and because sleeps end late. Threads and groups of a rank share its ports.
If ranks share a NIC, the times of the NIC are three numbers in a file that all ranks map into their
memory. A straggler sleeps in `t.compute(s)`, where s is the seconds that the work took. MPI moves
large messages only while both sides are in a call, so overlap needs a background thread. The
receiver compares the stamp of the sender with its own clock. So all ranks must run on one machine.

Test: tests/mpi/test_throttled.py   Tutorial: any that runs on several ranks
"""

import mmap
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from minidl.comm import objects, tree
from minidl.comm.checks import check_peer
from minidl.comm.transport.links import Port
from minidl.comm.transport.protocol import Then, Transport, Wrapper
from minidl.comm.transport.window import NoSharedMemory

# A sleep ends about 60 us late on Linux. So the last part of a wait is a loop that reads the clock.
NOT_ASLEEP = 150e-6


class Throttled(Wrapper):
    """The transport `t`, slowed down to the speed of `links`. All ranks of t must make a Throttled
    together.

    ports: None, or the ports of the parent if t is a subgroup of a throttled transport. Raises
    ValueError for a simulated transport, and RuntimeError if the ranks run on several machines."""

    def __init__(self, t, links, ports=None):
        super().__init__(t)
        if t.simulated:
            raise ValueError(
                f"rank {t.rank}: Throttled sleeps, so it needs a transport with a real clock; got "
                f"{t}. Give the network to the simulator: simulate(n, fn, links=...)")
        self.links, self._routes = links, {}
        self._stamps = t.subgroup(range(t.size))
        self._ports = ports or _Ports(self._stamps, links)
        self._lock = self._ports.lock

    def around(self, inner):
        return Throttled(inner, self.links, self._ports)

    def isend(self, array, dst, tag=0):
        with self._lock:
            request = self.inner.isend(array, dst, tag)  # first, because isend checks the arguments
            alpha, beta, port = self._route(self.rank, dst)
            seconds = array.nbytes * beta
            start = port.send(time.perf_counter(), seconds)
            stamp = np.array([start + alpha, array.nbytes])
            requests = request, self._stamps.isend(stamp, dst, tag)
        return Then(requests, lambda: _sleep_until(start + seconds))

    def irecv(self, into, src, tag=0):
        stamp = np.empty(2)
        with self._lock:
            request = self.inner.irecv(into, src, tag)
            requests = self._stamps.irecv(stamp, src, tag), request
        return Then(requests, lambda: self._arrive(stamp, src))

    def shared(self, n_bytes):
        raise NoSharedMemory(
            f"rank {self.rank}: Throttled slows down only messages, so it has no shared window; "
            f"got {self.links}. Use an all-reduce that sends messages, such as ring.all_reduce.")

    def recv_any(self, tag=0):
        src, stamp = self._stamps.recv_any(tag)
        stamp = stamp.view(np.float64)
        data = self.inner.recv(np.empty(int(stamp[1]), np.uint8), src, tag)
        self._arrive(stamp, src)
        return src, data

    send = Transport.send  # Wrapper.send would send at full speed

    def sendrecv(self, array, dst, into, src, tag=0):
        check_peer(self, dst, "dst")  # checked first: an error must not leave a receive open
        return Transport.sendrecv(self, array, dst, into, src, tag)

    def compute(self, seconds):
        self.inner.compute(seconds)
        # The work itself has taken `seconds`. A straggler sleeps, so that its work takes longer.
        _sleep_until(time.perf_counter() + seconds * (self.links.slowdown(self.world_rank) - 1))

    def _route(self, src, dst):
        """Returns (alpha, beta, this rank's port) of the link between two ranks of this group."""
        route = self._routes.get((src, dst))
        if route is None:
            a, b = self.ranks[src], self.ranks[dst]
            leaves, enters = self.links.ports(a, b)
            port = self._ports.by_number[leaves if src == self.rank else enters]
            route = self._routes[src, dst] = (*self.links.link(a, b), port)
        return route

    def _arrive(self, stamp, src):
        """Sleeps until this rank's port has received a message from rank src. stamp: the message's
        stamp, (time when its first byte arrives, its number of bytes)."""
        _, beta, port = self._route(src, self.rank)
        with self._lock:
            done = port.receive(stamp[0], stamp[1] * beta)
        _sleep_until(done)


class _Ports:
    """The ports that this rank's messages use, in all its groups. All ranks of t must make the
    _Ports together.

    by_number   {number: port}, with the numbers of links.py: the rank's own port and, if ranks
                share NICs, the NICs of all nodes
    lock        if two threads send, the lock keeps the stamps in the order of the messages"""

    def __init__(self, t, links):
        links.check_ranks(1 + max(t.ranks))
        _check_one_machine(t)
        self.lock = threading.Lock()
        self.by_number = {t.world_rank: Port()}
        if links.shared_nic:
            clocks, file = _mapped(t, 1 + max(links.node_of(rank) for rank in t.ranks))
            for node, of_node in enumerate(clocks):
                self.by_number[-1 - node] = SharedPort(file, of_node)


class SharedPort:
    """A Port that several processes share. Its three times are numbers in a file that all these
    processes map into their memory."""

    def __init__(self, file, clocks):
        self._file, self._clocks = file, clocks

    def send(self, at, seconds):
        return self._locked(Port.send, at, seconds)

    def receive(self, arrival, seconds):
        return self._locked(Port.receive, arrival, seconds)

    def _locked(self, method, at, seconds):
        import fcntl  # imported here: Windows has no fcntl, and only shared NICs need it

        port = Port()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            port.out_free, port.in_start, port.in_free = map(float, self._clocks)
            moment = method(port, at, seconds)
            self._clocks[:] = port.out_free, port.in_start, port.in_free
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return moment


def links_of(t):
    """If t is a Throttled transport, or wraps one, returns the Links of that transport. Otherwise
    returns None."""
    while isinstance(t, Wrapper) and not isinstance(t, Throttled):
        t = t.inner
    return t.links if isinstance(t, Throttled) else None


def _sleep_until(moment):
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(max(0.0, left - NOT_ASLEEP))


def _check_one_machine(t):
    here, boot = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():  # the clock counts from the machine's start, which boot_id identifies
        here += f" (boot {boot.read_text().strip()})"
    there = objects.broadcast(t, here)
    if here != there:
        raise RuntimeError(
            f"rank {t.rank}: a throttled network compares the clocks of its ranks, so all "
            f"ranks must run on one machine; rank 0 runs on {there}, this rank on {here}. Run "
            "without --net.")


def _mapped(t, n_nodes):
    """Returns (times, file). times: a float64 array (n_nodes, 3), with the three times of each
    node's NIC. It is in a file that all ranks map into their memory. file: the descriptor of this
    file, for locks."""
    path = ""
    if t.rank == 0:
        handle, path = tempfile.mkstemp(prefix="minidl-nics-")
        os.truncate(handle, n_nodes * 3 * 8)  # float64 zeros
        os.close(handle)
    file = os.open(objects.broadcast(t, path), os.O_RDWR)  # stays open until the process ends
    clocks = np.frombuffer(mmap.mmap(file, 0), np.float64).reshape(n_nodes, 3)
    tree.barrier(t)  # now all ranks have opened the file, and its name is not needed any more
    if t.rank == 0:
        os.unlink(path)
    return clocks, file
