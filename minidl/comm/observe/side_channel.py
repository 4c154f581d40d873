"""Lines of JSON between the processes of a job, over TCP. Used by: lookout.py

    channel = Channel(t)                          every process listens, and knows all addresses
    channel.connect(rank, say="state?")           sends one line; returns the Lines for the answer
    channel.door                                  hears what the others send (door.py)

Why not MPI: a thread that sleeps in `select` costs nothing, while one that polls MPI costs time and
takes its locks; TCP answers also while MPI is stuck; and when a process dies its sockets close,
which others see at once.

On one host it listens on the loopback address alone. Each process has a token of its own, which
the others get over MPI, so that no other program is heard.

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
    """One process's door and all addresses. Collective: all ranks of t make one."""

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
        """The Lines of a connection to a rank on which one line was sent. Raises OSError."""
        shown = door.proof(self._tokens[rank], self._caller, next(self._numbers))
        lines, address = door.call(self._addresses[rank], shown, door.ANSWER_S,
                                   **{"from": self.rank, **line})
        self._addresses[rank] = [address]  # the next time only the one that worked
        return lines


def _namespace():
    """The name of this process's network: on one host, containers may have different ones."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return ""


def own_addresses():
    """The IPv4 addresses at which other hosts may reach this one."""
    found = []
    with contextlib.suppress(OSError):
        found = socket.gethostbyname_ex(socket.gethostname())[2]
    with contextlib.suppress(OSError, ImportError):
        import fcntl  # Linux: the address of every interface

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # an interface without an address
                    # SIOCGIFADDR: struct ifreq, 16 bytes of name, then a sockaddr_in
                    reply = fcntl.ioctl(s.fileno(), 0x8915, name.encode()[:15].ljust(256, b"\0"))
                    found.append(socket.inet_ntoa(reply[20:24]))
    return [a for a in dict.fromkeys(found) if not a.startswith("127.")]
