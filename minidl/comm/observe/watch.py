r"""The ranks compare each collective call before its payload moves; and every wait is noted.

    t = Watch(t)                       around any transport, inside or outside of a Ledger
    ring.all_reduce(t, x)              if the ranks disagree: CallMismatch, on all of them, in words

    rank 0   all_reduce(x (10,)) --.   .-- no    ceil(log2 n) rounds of 16 bytes, after which all
    rank 1   all_reduce(x (10,)) ---\_/--- no    know the least and the largest digest of all ranks
    rank 2   all_reduce(x (12,)) ---/ \--- no    (the dissemination of Hensgen, Finkel and Manber
    rank 3   all_reduce(x (10,)) --'   '-- no    1988); signatures are sent only if these differ

    CallMismatch: rank 0: the ranks disagree on collective 3 of ranks 0-3; no payload has moved.
      ranks 0, 1, 3: ring.all_reduce(x float32 (10,), op add), at train.py:31
      rank 2: ring.all_reduce(x float32 (12,), op add), at train.py:31
      differs: x is float32 (10,) on rank 0, float32 (12,) on rank 2. Unequal last batch?

A signature (signature.py) includes the line of the user's code. The same call on different lines is
an error, too: else nobody would see two arrays of one shape that are summed in swapped order. Where
different lines mean the same collective, name it on all ranks, `with t.named("weights"): ...`; then
the name is compared and the line is not.

The digests are sent by the innermost transport with a tag of their own, so that no ledger takes
them for payload: it has a column for them, `control`. Simulated ranks compare through a common
dictionary, which takes no modelled time.

If a rank does not come at all, lookout.py reports it, from what `Watch` notes of every wait
(waits.py). The whole picture: docs/observe.md

Test: tests/comm/observe/test_watch.py, tests/mpi/test_watch_mpi.py   Tutorial: tutorials/07_ring.py
"""

import contextvars
import sys
import weakref

import numpy as np

from minidl.comm import objects
from minidl.comm.call_code import CallMismatch
from minidl.comm.checks import check_peer, check_ranks
from minidl.comm.labels import current_label, current_subject
from minidl.comm.observe import waits
from minidl.comm.observe.lookout import Lookout
from minidl.comm.observe.places import user_line
from minidl.comm.observe.signature import arguments_of, digest_of, explain, signature_of
from minidl.comm.transport.protocol import Request, Wrapper
from minidl.comm.transport.window import KINDS
from minidl.text import in_words

DEADLINE_S = 300.0  # longer than one rank of a tutorial works alone, shorter than patience
TAG = 32767  # the largest that every MPI has: users' tags are smaller


class Watch(Wrapper):
    """A transport that checks every collective and notes what its rank waits for.

    All ranks make one at the same moment. deadline_s: how long a rank may wait for a rank that
    computes, under MPI; None: for ever. A deadlock ends the run at once in any case.
    lookout, name: for a subgroup, the lookout of its parent and a name of its own."""

    def __init__(self, t, deadline_s=DEADLINE_S, *, lookout=None, name=None):
        if isinstance(t, Watch):  # `world()` under `minidl run` is one: this takes its place
            lookout, t = t._lookout, t.inner
            if lookout is not None:
                lookout.deadline_s = float("inf") if deadline_s is None else deadline_s
        super().__init__(t)
        self._raw = t.innermost
        if lookout is None and t.size > 1 and not t.simulated:
            lookout = Lookout(self._raw.subgroup(range(t.size)), deadline_s)
            lookout.watches = weakref.WeakSet([self])
        self._lookout = lookout
        if lookout is not None:
            lookout.watches.add(self)
        self._name = f"{digest_of(name or repr(t.ranks)):016x}"  # the same on the group's ranks
        self._begun = waits.begun(self._name)
        self._number = 0  # collectives begun
        self._digests = {}  # call -> its signature's digest
        self._mine, self._theirs = np.empty(2, np.uint64), np.empty(2, np.uint64)
        peers = (1 << k for k in range((t.size - 1).bit_length()))
        self._compared = [((t.rank + far) % t.size, self._mine.nbytes) for far in peers]
        self._keys = {}  # (which, peer, tag) -> the names of both sides' counters
        self._windows = {}  # n_bytes -> _WatchedWindow
        self._made = {}  # ranks -> subgroups made of them
        if lookout is None:  # simulated or alone: nobody reads what it waits for
            for name in ("event", "together"):
                setattr(self, name, getattr(t, name))
            for name in "isend irecv send recv sendrecv recv_any spawn".split():
                setattr(self, name, getattr(super(), name))  # not t's own: a profile wraps those

    # -- agreement

    def entering(self, fn, args, kwargs):
        if self.size == 1:
            return self.inner.entering(fn, args, kwargs)
        self._check(fn, args, kwargs)
        sent = self.inner.entering(fn, args, kwargs)  # after: a transport may say less
        return sent if self.simulated else (*sent, *self._compared)

    def _check(self, fn, args, kwargs):
        self._number += 1
        label, line = current_label() + current_subject(), user_line(sys._getframe(1))
        values = arguments_of(fn, args, kwargs)
        call = (fn, label, line, *values)
        digest = self._digests.get(call)
        if digest is None:
            if len(self._digests) > 1000:  # shapes that do not come again
                self._digests.clear()
            digest = self._digests[call] = digest_of(repr(signature_of(*call)["compared"]))
        if self.simulated:
            self._compare(digest, call)
            return
        book = self._lookout.book
        book.counters[self._begun] = self._number
        book.last = (label, line)
        what = ("for all ranks to begin {}", label)
        if not book.wait(self._members, what, self._agree, digest):
            self._raise(book.wait(self._members, what, self._tell, (digest, signature_of(*call))))

    def _agree(self, digest):
        """Whether all ranks' digests are equal: the same answer on all ranks."""
        least = largest = digest
        far = 1
        while far < self.size:
            self._mine[:] = least, largest
            right, left = (self.rank + far) % self.size, (self.rank - far) % self.size
            self._raw.sendrecv(self._mine, right, self._theirs, left, TAG)
            least, largest = min(least, int(self._theirs[0])), max(largest, int(self._theirs[1]))
            far *= 2
        return least == largest

    def _tell(self, call):
        """(rank, call) of every rank. In a group of its own, so that no other message matches, and
        in a context of its own: the ranks are in different collectives, but here in the same."""
        group = self._raw.subgroup(range(self.size))
        return enumerate(contextvars.Context().run(objects.all_gather, group, call))

    def _compare(self, digest, call):
        """Simulated: with the ranks that came before; the last one removes the entry."""
        seen = self._raw.board.setdefault(self._number, {})
        seen[self.rank] = (digest, call)
        first, _ = next(iter(seen.values()))
        if digest != first:
            self._raise((rank, (d, signature_of(*call))) for rank, (d, call) in seen.items())
        if len(seen) == self.size:
            del self._raw.board[self._number]

    def _raise(self, calls):
        """calls: (rank, (digest, signature)) of two ranks or more, which are not all equal."""
        calls = {self.ranks[rank]: call for rank, call in sorted(calls)}
        raise CallMismatch(
            f"rank {self.world_rank}: the ranks disagree on collective {self._number} of "
            f"{in_words(self.ranks)}; no payload has moved.\n{explain(calls)}")

    def _members(self):
        return [(rank, self._begun, self._number) for rank in self.ranks]

    # -- what this rank waits for: counters of other ranks, and words for the report

    def _sending(self, n_bytes, dst, tag):
        """One more send begun: (needs, words)."""
        peer, mine, theirs = self._keys_of(waits.sent, waits.received, dst, tag)
        what = ("to send {:,} bytes to rank {}, tag {}, in {}", n_bytes, peer, tag, current_label())
        return [(peer, theirs, self._lookout.book.count(mine))], what

    def _receiving(self, src, tag):
        """One more receive posted: (needs, words)."""
        peer, mine, theirs = self._keys_of(waits.received, waits.sent, src, tag)
        what = ("for a message from rank {}, tag {}, in {}", peer, tag, current_label())
        return [(peer, theirs, self._lookout.book.count(mine))], what

    def _keys_of(self, mine, theirs, peer, tag):
        """(the peer's world rank, the name of our counter, of the peer's); remembered."""
        key = (mine, peer, tag)
        if key not in self._keys:
            check_peer(self, peer, "dst" if mine is waits.sent else "src")
            to = self.ranks[peer]
            names = mine(self._name, to, tag), theirs(self._name, self.world_rank, tag)
            self._keys[key] = (to, *names)
        return self._keys[key]

    def isend(self, array, dst, tag=0):
        request = self.inner.isend(array, dst, tag)
        return _Watched(self._lookout.book, request, *self._sending(array.nbytes, dst, tag))

    def irecv(self, into, src, tag=0):
        request = self.inner.irecv(into, src, tag)
        return _Watched(self._lookout.book, request, *self._receiving(src, tag))

    def send(self, array, dst, tag=0):
        needs, what = self._sending(array.nbytes, dst, tag)
        self._lookout.book.wait(needs, what, self.inner.send, array, dst, tag)

    def recv(self, into, src, tag=0):
        needs, what = self._receiving(src, tag)
        return self._lookout.book.wait(needs, what, self.inner.recv, into, src, tag)

    def sendrecv(self, array, dst, into, src, tag=0):
        to, (text, *values) = self._sending(array.nbytes, dst, tag)
        by, _ = self._receiving(src, tag)
        what = ("for a message from rank {} and " + text, by[0][0], *values)
        call = self.inner.sendrecv
        return self._lookout.book.wait(by + to, what, call, array, dst, into, src, tag)

    def recv_any(self, tag=0):
        book = self._lookout.book
        needs = []  # one of them is enough
        for src in range(self.size):
            peer, mine, theirs = self._keys_of(waits.received, waits.sent, src, tag)
            needs.append((peer, theirs, book.counters.get(mine, 0) + 1))
        what = ("for a message from any rank, tag {}, in {}", tag, current_label())
        src, data = book.wait(needs, what, self.inner.recv_any, tag, any_of=True)
        self._receiving(src, tag)
        return src, data

    def subgroup(self, ranks):
        ranks = check_ranks(self, ranks)
        if self.rank not in ranks:
            return self.inner.subgroup(ranks)
        # As the transports do: all members make the same name of a new group without a message.
        self._made[ranks] = self._made.get(ranks, 0) + 1
        name = f"{self._name} {ranks} {self._made[ranks]}"
        if self._lookout is None:
            inner = self.inner.subgroup(ranks)
        else:
            book, short = self._lookout.book, f"{digest_of(name):016x}"
            book.count(key := waits.begun(f"{short}-made"))
            members = [self.ranks[r] for r in ranks]
            what = ("for the members to make the group of {}", in_words(members))
            needs = [(member, key, 1) for member in members]
            inner = book.wait(needs, what, self.inner.subgroup, ranks)
            book.takes_over(inner.innermost._held, short)
        return Watch(inner, lookout=self._lookout, name=name)

    def shared(self, n_bytes):
        window = self.inner.shared(n_bytes)
        if self._lookout is None:
            return window
        if n_bytes not in self._windows:
            self._windows[n_bytes] = _WatchedWindow(self, window, f"{self._name} {n_bytes}")
        return self._windows[n_bytes]

    def spawn(self, fn, *args):
        handle = self.inner.spawn(fn, *args)
        return _Watched(self._lookout.book, handle, [], ("for the end of a background task",))

    def event(self):
        return _WatchedEvent(self._lookout.book, self.inner.event())

    def stepped(self):
        if self._lookout is not None:
            self._lookout.book.stepped()


def control_bytes(n):
    """Bytes that each of n ranks sends before a collective, in messages of 16."""
    return 16 * (n - 1).bit_length()


class _Watched(Request):
    """A request whose wait() is in the book."""

    def __init__(self, book, inner, needs, what):
        self._book, self._inner, self._needs, self._what = book, inner, needs, what

    def wait(self):
        return self._book.wait(self._needs, self._what, self._inner.wait)


class _WatchedWindow:
    """A window.Window whose signals are counted, and whose waits are in the book."""

    def __init__(self, watch, window, name):
        self._window, self._book = window, watch._lookout.book
        self._keys = [waits.signalled(name, kind) for kind in range(KINDS)]
        self._peers = [watch.ranks[peer] for peer in window.others]
        self._counts = [0] * KINDS

    def __getattr__(self, name):
        return getattr(self._window, name)

    def signal(self, kind, note):
        self._book.count(self._keys[kind])
        self._window.signal(kind, note)

    def wait(self, kind, note):
        self._counts[kind] = count = self._counts[kind] + 1
        key = self._keys[kind]
        what = ("for all ranks' pieces of shared memory, in {}", current_label())
        self._book.wait([(peer, key, count) for peer in self._peers], what, self._window.wait,
                        kind, note)


class _WatchedEvent(_Watched):
    """An event whose wait() is in the book."""

    def __init__(self, book, inner):
        super().__init__(book, inner, [], ("for an event of its own rank",))
        self.set, self.is_set = inner.set, inner.is_set
