"""Lines of JSON between the processes of a job, over TCP. Used by: lookout.py

    channel = Channel(t)                          every process listens, and knows all addresses
    channel.connect(rank, say="state?")           sends one line; returns the socket for the answer

Why not MPI: a thread that sleeps in `select` costs nothing, while one that polls MPI costs time and
takes its locks; TCP answers also while MPI is stuck; and when a process dies its sockets close,
which others see at once.

On one host it listens on the loopback address alone. Every line carries a random token, which the
ranks got over MPI, so that other programs are not answered.

Test: tests/comm/observe/test_side_channel.py, tests/mpi/test_watch_mpi.py
"""

import contextlib
import json
import os
import platform
import secrets
import socket

from minidl.comm import objects

ANSWER_S = 1.0  # an idle interpreter answers in a millisecond, one that computes in six


class Channel:
    """One process's listening socket and all addresses. Collective: all ranks of t make one."""

    def __init__(self, t):
        self.rank = t.world_rank
        here = [platform.node(), _namespace()]
        one_host = all(place == here for place in objects.all_gather(t, here))
        self.listener = socket.create_server(("127.0.0.1" if one_host else "", 0), backlog=128)
        addresses = ["127.0.0.1"] if one_host else own_addresses()
        mine = [addresses, self.listener.getsockname()[1], secrets.token_hex(8)]
        everybody = objects.all_gather(t, mine)
        self._token = everybody[0][2]
        self._addresses = {rank: [(address, port) for address in addresses]
                           for rank, (addresses, port, _) in zip(t.ranks, everybody, strict=True)}

    def connect(self, rank, **line):
        """A connection to a rank on which one line was sent. Raises OSError."""
        error = ConnectionError(f"rank {rank} has no address that others can reach")
        for address in self._addresses[rank]:
            try:
                connection = socket.create_connection(address, timeout=ANSWER_S)
            except OSError as refused:
                error = refused
                continue
            self._addresses[rank] = [address]  # the next time only the one that worked
            try:
                send_line(connection, {"token": self._token, "from": self.rank, **line})
            except OSError:
                connection.close()
                raise
            return connection
        raise error

    def accept(self):
        """(connection, line) of the next caller. Raises OSError; ValueError for another program."""
        connection = self.listener.accept()[0]
        connection.settimeout(ANSWER_S)
        line = read_line(connection)
        if not isinstance(line, dict) or line.get("token") != self._token:
            connection.close()
            raise ValueError("not of this job")
        return connection, line

    def refuse(self):
        """Accept nobody from now on; wakes a thread that sleeps in `select` on the listener."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)


def send_line(connection, value):
    connection.sendall(json.dumps(value).encode() + b"\n")


def read_line(connection):
    """Raises ValueError if the line is not JSON or does not end."""
    return json.loads(connection.makefile("rb").readline(1 << 24))


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
