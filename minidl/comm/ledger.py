"""Counts every message: what the formulas are compared with. Test: tests/comm/test_ledger.py

    t = Ledger(t)                       wraps any transport; use it in its place
    ring.all_reduce(t, x)
    t.bytes_sent                        chunks.ring_bytes_sent(...), exactly
    t.count(label="ring.all_reduce", peer=1).messages_sent
    print(t.report())

A message is what a caller sent in one call, however many parts the transport cut it into; its bytes
are the array's, without any header. A receive counts when it is complete.
"""

import threading
from dataclasses import dataclass

from .transport import Request, Wrapper, current_label


@dataclass
class Count:
    """Bytes and messages in both directions."""

    bytes_sent: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    messages_received: int = 0

    def add(self, other):
        self.bytes_sent += other.bytes_sent
        self.messages_sent += other.messages_sent
        self.bytes_received += other.bytes_received
        self.messages_received += other.messages_received


class Ledger(Wrapper):
    """A transport that counts what passes through it, its subgroups included.

    rows   {(group, label, peer): Count}; group is a tuple of world ranks, label names the
           collective (the outermost one), peer is a world rank
    """

    def __init__(self, t):
        super().__init__(t)
        self.rows = {}
        self._lock = threading.Lock()  # a background thread counts too

    # -- reading

    def count(self, peer=None, label=None, group=None):
        """The sum of all rows, or of those with this world rank, label, or tuple of world ranks."""
        wanted = (None if group is None else tuple(group), label, peer)
        total = Count()
        for key, row in list(self.rows.items()):
            if all(want is None or want == have for want, have in zip(wanted, key, strict=True)):
                total.add(row)
        return total

    bytes_sent = property(lambda self: self.count().bytes_sent)
    bytes_received = property(lambda self: self.count().bytes_received)
    messages_sent = property(lambda self: self.count().messages_sent)
    messages_received = property(lambda self: self.count().messages_received)

    def reset(self):
        """Forget all counts, the subgroups' too."""
        self.rows.clear()

    def report(self):
        """A table of all rows and their sum."""
        lines = [
            f"rank {self.world_rank}",
            f"{'collective':24} {'group':16} {'peer':>5} {'sent B':>14} {'messages':>9} "
            f"{'received B':>14} {'messages':>9}",
        ]
        for (group, label, peer), row in sorted(self.rows.items()):
            lines.append(_line(label, _short(group), peer, row))
        lines.append(_line("total", "", "", self.count()))
        return "\n".join(lines)

    # -- counting

    def isend(self, array, dst, tag=0):
        request = self.inner.isend(array, dst, tag)
        self._sent(dst, array.nbytes)
        return request

    def irecv(self, out, src, tag=0):
        return _CountedReceive(self, self.inner.irecv(out, src, tag), src, out.nbytes)

    def send(self, array, dst, tag=0):
        self.inner.send(array, dst, tag)
        self._sent(dst, array.nbytes)

    def sendrecv(self, out, dst, into, src, tag=0):
        self.inner.sendrecv(out, dst, into, src, tag)
        self._sent(dst, out.nbytes)
        self._received(src, into.nbytes)
        return into

    def recv_any(self, tag=0):
        src, data = self.inner.recv_any(tag)
        self._received(src, data.nbytes)
        return src, data

    def _sent(self, dst, n_bytes):
        self._add(dst, Count(bytes_sent=n_bytes, messages_sent=1))

    def _received(self, src, n_bytes):
        self._add(src, Count(bytes_received=n_bytes, messages_received=1))

    def _add(self, peer, count):
        key = (self.ranks, current_label(), self.ranks[peer])
        with self._lock:
            self.rows.setdefault(key, Count()).add(count)

    def around(self, inner):
        group = Ledger(inner)
        group.rows, group._lock = self.rows, self._lock
        return group


class _CountedReceive(Request):
    """A receive that enters the ledger once, when it is complete."""

    def __init__(self, ledger, inner, src, n_bytes):
        self._ledger, self._inner, self._src, self._n_bytes = ledger, inner, src, n_bytes

    def wait(self):
        self._inner.wait()
        if self._ledger is not None:
            self._ledger._received(self._src, self._n_bytes)
            self._ledger = None


def _short(group):
    """0-3 for consecutive ranks, else 0,2,5; cut where it is long."""
    if len(group) > 1 and group == tuple(range(group[0], group[0] + len(group))):
        return f"{group[0]}-{group[-1]}"
    text = ",".join(map(str, group))
    return text if len(text) <= 16 else text[:13] + "..."


def _line(label, group, peer, row):
    return (
        f"{label:24} {group:16} {peer:>5} {row.bytes_sent:>14,} {row.messages_sent:>9,} "
        f"{row.bytes_received:>14,} {row.messages_received:>9,}"
    )
