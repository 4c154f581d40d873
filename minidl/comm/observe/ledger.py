"""Counts every message, so that you can compare the counts with the formulas.

    t = Ledger(t)                       a transport around any transport t
    ring.all_reduce(t, x)
    t.bytes_sent                        equals ring.bytes_sent(...)
    t.count(label="ring.all_reduce", peer=1).messages_sent
    print(t.report())                   counts by collective, group, peer, and line of your code
    t.matrix()                          bytes from rank i to rank j, for all ranks

If there is a Watch inside the Ledger, the Watch sends bytes to compare the calls
(watch.control_bytes). These bytes are in a separate column, `control`. So the other columns equal
the formulas. call_code.py also checks every collective, but its check sends no bytes.

A message is one call of send, even if the transport cuts the message into parts. The bytes of a
message are the bytes of the array, without any header. A receive is counted when the message has
come.

The line in a report is the innermost line outside of minidl. For work in a background thread, the
report shows the line that submitted the work. Counting takes 1-2 us per message. `off()` stops the
counting, and `on()` starts it again.

Test: tests/comm/observe/test_ledger.py   Tutorial: tutorials/07_ring.py, 09_topologies.py
"""

import contextvars
import functools
import sys
import threading
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np

from minidl.comm import ring
from minidl.comm.labels import current_label, in_collective
from minidl.comm.observe.places import spot, user_line
from minidl.comm.transport.protocol import Then, Wrapper

_site = contextvars.ContextVar("the line that called the running collective")


@dataclass(slots=True)
class Count:
    """The number of bytes and messages that were sent and received. control: the bytes that a Watch
    sent to compare calls."""

    bytes_sent: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    messages_received: int = 0
    control: int = 0  # bytes that a Watch sent to compare the calls

    def add(self, bytes_sent, messages_sent, bytes_received=0, messages_received=0, control=0):
        self.bytes_sent += bytes_sent
        self.messages_sent += messages_sent
        self.bytes_received += bytes_received
        self.messages_received += messages_received
        self.control += control


class Row(NamedTuple):
    """The key of a Count. Messages with the same four values are counted together. `Ledger.rows`
    explains the values."""

    group: tuple
    label: str
    peer: int
    site: str


class _Book:
    """Holds the counts. A ledger and the ledgers of its subgroups have the same _Book."""

    def __init__(self):
        self.counting = True
        self.groups = {}  # world ranks -> {(peer in the group, label, site): Count}
        self.lock = threading.Lock()  # a background thread counts too


class Ledger(Wrapper):
    """A transport that counts the messages that are sent and received through this transport and
    through its subgroups.

    book: for a subgroup, the _Book of its parent. Otherwise None."""

    def __init__(self, t, book=None):
        super().__init__(t)
        self._book = book = book or _Book()
        self._lock = book.lock
        self._counts = book.groups.setdefault(self.ranks, {})

    # -- reading the counts

    @property
    def rows(self):
        """Returns a dict {Row(group, label, peer, site): Count}.

        group: a tuple of world ranks. label: the label of the outermost collective. peer: a world
        rank. site: the line of your code, as 'file:line'."""
        return dict(self._select())

    def _select(self, peer=None, label=None, group=None, site=None):
        """Yields a pair (Row, Count) for each row that matches all arguments. An argument that is
        None matches every row."""
        group = None if group is None else tuple(group)
        for ranks, counts in self._book.groups.items():
            if group is not None and group != ranks:
                continue
            for (to, name, at), count in list(counts.items()):
                row = Row(ranks, name, ranks[to], _text(at))
                wanted = (peer, row.peer), (label, name), (site, row.site)
                if all(want is None or want == have for want, have in wanted):
                    yield row, count

    def count(self, peer=None, label=None, group=None, site=None):
        """Returns a Count: the sum of the counts of all rows that match all arguments.

        peer: a world rank. label: the label of a collective. group: a tuple of world ranks. site:
        'file:line'. An argument that is None matches every row."""
        total = Count()
        for _, count in self._select(peer, label, group, site):
            total.add(*astuple(count))
        return total

    bytes_sent = property(lambda self: self.count().bytes_sent)
    bytes_received = property(lambda self: self.count().bytes_received)
    messages_sent = property(lambda self: self.count().messages_sent)
    messages_received = property(lambda self: self.count().messages_received)

    def matrix(self, label=None, group=None, site=None):
        """Returns an int64 array of shape (n, n), the same on all n ranks. Element (i, j) is the
        number of bytes that rank i of this group sent to rank j.

        label, group, site: as for count(). All ranks must call matrix(). It does not count its own
        messages. `tutorial.heat_map` draws the array."""
        n_bytes = np.zeros((self.size, self.size), np.int64)
        column = {rank: j for j, rank in enumerate(self.ranks)}
        for row, count in self._select(None, label, group, site):
            if row.peer in column:  # a message of a larger group may go to a rank outside of t
                n_bytes[self.rank, column[row.peer]] += count.bytes_sent
        return ring.all_reduce(self.inner.subgroup(range(self.size)), n_bytes)

    def reset(self):
        """Deletes all counts of this ledger and of its subgroups."""
        for counts in self._book.groups.values():
            counts.clear()

    def off(self):
        """Stops the counting in this ledger and in its subgroups."""
        self._book.counting = False

    def on(self):
        """Starts the counting again in this ledger and in its subgroups."""
        self._book.counting = True

    def report(self):
        """Returns a text: a table of all rows and their sum."""
        lines = [f"rank {self.world_rank}",
                 f"{'collective':24} {'group':16} {'peer':>5} {'sent B':>14} {'messages':>9} "
                 f"{'received B':>14} {'messages':>9} {'control B':>9}  called at"]
        for (group, label, peer, site), row in sorted(self.rows.items()):
            lines.append(_line(label, _short(group), peer, row, site))
        lines.append(_line("total", "", "", self.count(), "").rstrip())
        return "\n".join(lines)

    # -- counting the messages

    def entering(self, fn, args, kwargs):
        compared = self.inner.entering(fn, args, kwargs)
        if self._book.counting:
            _site.set(user_line(sys._getframe(1)))
            for peer, n_bytes in compared:
                self._add(self._key(peer), 0, 0, 0, 0, n_bytes)
        return compared

    def isend(self, array, dst, tag=0):
        request = self.inner.isend(array, dst, tag)
        self._sent(dst, array.nbytes)
        return request

    def irecv(self, into, src, tag=0):
        request = self.inner.irecv(into, src, tag)
        if not self._book.counting:
            return request
        key, n_bytes = self._key(src), into.nbytes
        return Then([request], lambda: self._add(key, 0, 0, n_bytes, 1))

    def send(self, array, dst, tag=0):
        self.inner.send(array, dst, tag)
        self._sent(dst, array.nbytes)

    def sendrecv(self, array, dst, into, src, tag=0):
        self.inner.sendrecv(array, dst, into, src, tag)
        if self._book.counting:
            _, label, site = key = self._key(dst)
            self._add(key, array.nbytes, 1)
            self._add((src, label, site), 0, 0, into.nbytes, 1)
        return into

    def together(self, fn, chunk, args):
        moved = self.inner.together(fn, chunk, args)
        if moved is not None and self._book.counting:
            _, label, site = key = self._key(moved.dst)
            self._add(key, moved.bytes_sent, moved.n_messages)
            self._add((moved.src, label, site), 0, 0, moved.bytes_received, moved.n_messages)
        return moved

    def recv_any(self, tag=0):
        src, data = self.inner.recv_any(tag)
        if self._book.counting:
            self._add(self._key(src), 0, 0, data.nbytes, 1)
        return src, data

    def shared(self, n_bytes):
        return _CountedWindow(self, self.inner.shared(n_bytes))

    def _moved(self, peer, n_read, n_given):
        """Counts the bytes that ranks read in a shared window. There is no message for them.
        n_read: the bytes that this rank read from the peer's piece. n_given: the bytes that the
        peer read from this rank's piece."""
        if self._book.counting:
            self._add(self._key(peer), n_given, 0, n_read, 0)

    def _sent(self, dst, n_bytes):
        if self._book.counting:
            self._add(self._key(dst), n_bytes, 1)

    def _key(self, peer):
        site = _site.get(None) if in_collective() else user_line(sys._getframe(2))
        return peer, current_label(), site

    def _add(self, key, *amounts):
        with self._lock:
            count = self._counts.get(key) or self._counts.setdefault(key, Count())
            count.add(*amounts)

    def around(self, inner):
        return Ledger(inner, self._book)


class _CountedWindow:
    """A window.Window that counts the bytes that ranks read in the pieces of other ranks."""

    def __init__(self, ledger, window):
        self._ledger, self._window = ledger, window

    def __getattr__(self, name):
        return getattr(self._window, name)

    def moved(self, peers, n_read, n_given):
        self._window.moved(peers, n_read, n_given)
        for peer in peers:
            self._ledger._moved(peer, n_read, n_given)


@functools.cache
def _text(site):
    return spot(*site) if site else "a spawned task"


def _short(group):
    """Returns a short text for the ranks of a group. For consecutive ranks the text is like '0-3'.
    For other ranks it is a list like '0,2,5', cut to 16 characters."""
    if len(group) > 1 and group == tuple(range(group[0], group[0] + len(group))):
        return f"{group[0]}-{group[-1]}"
    text = ",".join(map(str, group))
    return text if len(text) <= 16 else text[:13] + "..."


def _line(label, group, peer, row, site):
    return (f"{label:24} {group:16} {peer:>5} {row.bytes_sent:>14,} {row.messages_sent:>9,} "
            f"{row.bytes_received:>14,} {row.messages_received:>9,} {row.control:>9,}  {site}")
