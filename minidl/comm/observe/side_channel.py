"""Lines of JSON between the processes of a job, over TCP. Used by: lookout.py

    channel = Channel(t)                          every process gets the addresses of all processes
    channel.connect(rank, say="state?")           sends one line; returns the Lines for the answer
    channel.door                                  receives the lines of other ranks (door.py)

There are three reasons to use TCP and not MPI. A thread that sleeps in `select` costs nothing, but
a thread that polls MPI costs time and takes MPI's locks. TCP works while MPI is stuck. If a process
dies, its sockets close, and the other processes see that at once.

If all ranks are on one host, a process listens only on the loopback address. Each process has its
own token. The other ranks get this token over MPI, so no other program can send a line.

Test: tests/comm/observe/test_side_channel.py, tests/mpi/test_watch_mpi.py
"""

import contextlib
import itertools
import os
import platform
import socket

from minidl.comm import objects
from minidl.comm.observe import door


class Channel:
    """The `Door` of one process, and the addresses of all processes. All ranks of t must make a
    Channel."""

    def __init__(self, t):
        self.rank = t.world_rank
        here = [platform.node(), _namespace()]
        one_host = all(place == here for place in objects.all_gather(t, here))
        token = door.new_token()
        self.door = door.Door(token, one_host)
        addresses = ["127.0.0.1"] if one_host else own_addresses()
        mine = [addresses, self.door.listener.getsockname()[1], token]
        everybody = objects.all_gather(t, mine)
        self._caller, self._numbers = door.new_caller(), itertools.count()
        self._tokens = {rank: each[2] for rank, each in zip(t.ranks, everybody, strict=True)}
        self._addresses = {rank: [(address, port) for address in addresses]
                           for rank, (addresses, port, _) in zip(t.ranks, everybody, strict=True)}

    def connect(self, rank, **line):
        """Connects to a rank and sends one line. Returns the Lines of the connection. Raises
        OSError if the rank cannot be reached."""
        shown = door.proof(self._tokens[rank], self._caller, next(self._numbers))
        lines, address = door.call(self._addresses[rank], shown, door.ANSWER_S,
                                   **{"from": self.rank, **line})
        self._addresses[rank] = [address]  # next time, try only the address that worked
        return lines


def _namespace():
    """Returns the name of this process's network namespace, or "" if it is not known. Two
    containers on one host may have different network namespaces."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return ""


def own_addresses():
    """Returns the IPv4 addresses by which other hosts may reach this host."""
    found = []
    with contextlib.suppress(OSError):
        found = socket.gethostbyname_ex(socket.gethostname())[2]
    with contextlib.suppress(OSError, ImportError):
        import fcntl  # Linux only: ioctl() reads the address of each network interface

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # an interface may have no address
                    # 0x8915 is SIOCGIFADDR. The reply is a struct ifreq: the name in 16 bytes, then
                    # a sockaddr_in with the address.
                    reply = fcntl.ioctl(s.fileno(), 0x8915, name.encode()[:15].ljust(256, b"\0"))
                    found.append(socket.inet_ntoa(reply[20:24]))
    return [a for a in dict.fromkeys(found) if not a.startswith("127.")]
