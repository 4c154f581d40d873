r"""The ranks compare each collective call before its data is sent. A Watch also notes every wait.

    t = Watch(t)                       around any transport, inside or outside of a Ledger
    ring.all_reduce(t, x)              if the ranks disagree, all of them raise CallMismatch

    rank 0   all_reduce(x (10,)) --.   .-- no    ceil(log2 n) rounds of 16 bytes. Then all ranks
    rank 1   all_reduce(x (10,)) ---\_/--- no    know the smallest and largest digest, by the
    rank 2   all_reduce(x (12,)) ---/ \--- no    dissemination of Hensgen, Finkel and Manber 1988.
    rank 3   all_reduce(x (10,)) --'   '-- no    If they differ, all ranks send signatures

    CallMismatch: rank 0: the ranks disagree on collective 3 of ranks 0-3; no data has been sent.
      ranks 0, 1, 3: ring.all_reduce(x float32 (10,), op add), at train.py:31
      rank 2: ring.all_reduce(x float32 (12,), op add), at train.py:31
      differs: x is float32 (10,) on rank 0, float32 (12,) on rank 2. Is the last batch shorter ...

A signature (signature.py) describes a call. A digest is a hash of a signature, in 64 bits. The
signature includes the line of the user's code. So the same call on different lines is an error,
too. This rule finds a common mistake: the ranks sum two arrays of the same shape in a different
order. If different lines mean the same collective, give the call a name on all ranks:
`with t.named("weights"): ...`. Then the ranks compare the name, and not the line.

The innermost transport sends the digests with a separate tag. So a ledger does not count them as
data. It counts them in its column `control`. Simulated ranks compare their calls in a shared
dictionary, which takes no modelled time.

If a rank never begins the collective, lookout.py reports this rank. The lookout uses the waits that
`Watch` notes (waits.py). docs/observe.md explains how these files work together.

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

DEADLINE_S = 300.0  # in the tutorials no rank computes this long while other ranks wait
TAG = 32767  # the largest tag that every MPI allows; users' tags are smaller


class Watch(Wrapper):
    """A transport that checks every collective and notes each wait of its rank.

    All ranks must make a Watch at the same time.

    deadline_s: only for MPI. If a rank has waited deadline_s seconds for another rank, and the
    other rank still computes, the run ends. If deadline_s is None, there is no limit. A deadlock
    always ends the run at once. lookout, name: only for a subgroup. lookout is the lookout of the
    parent group. name is a text that is equal on all members of the subgroup."""

    def __init__(self, t, deadline_s=DEADLINE_S, *, lookout=None, name=None):
        if isinstance(t, Watch):  # `world()` may return a Watch: the new Watch replaces it
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
        self._name = f"{digest_of(name or repr(t.ranks)):016x}"  # the same on all ranks of t
        self._begun = waits.begun(self._name)
        self._number = 0  # the number of collectives that have begun
        self._digests = {}  # call -> digest of its signature
        self._mine, self._theirs = np.empty(2, np.uint64), np.empty(2, np.uint64)
        peers = (1 << k for k in range((t.size - 1).bit_length()))
        self._compared = [((t.rank + far) % t.size, self._mine.nbytes) for far in peers]
        self._keys = {}  # (sent or received, peer, tag) -> the keys of both ranks' counters
        self._windows = {}  # n_bytes -> _WatchedWindow
        self._made = {}  # ranks -> the number of subgroups made of them
        if lookout is None:  # a simulated or only rank: no other rank asks about its waits
            for name in ("event", "together"):
                setattr(self, name, getattr(t, name))
            for name in "isend irecv send recv sendrecv recv_any spawn".split():
                # super() is used, not t, because a profile replaces t.isend by its own method.
                setattr(self, name, getattr(super(), name))

    # -- comparing the ranks' calls

    def entering(self, fn, args, kwargs):
        if self.size == 1:
            return self.inner.entering(fn, args, kwargs)
        # _check comes first: its error message explains more than the message of inner.entering().
        self._check(fn, args, kwargs)
        sent = self.inner.entering(fn, args, kwargs)
        return sent if self.simulated else (*sent, *self._compared)

    def _check(self, fn, args, kwargs):
        self._number += 1
        label, line = current_label() + current_subject(), user_line(sys._getframe(1))
        values = arguments_of(fn, args, kwargs)
        call = (fn, label, line, *values)
        digest = self._digests.get(call)
        if digest is None:
            if len(self._digests) > 1000:  # most of the stored calls will probably not come again
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
        """Returns True if all ranks' digests are equal. All ranks get the same answer."""
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
        """Sends the call of each rank to all ranks. Returns the pairs (rank, call) of all ranks.

        call: (digest, signature) of this rank. The calls are sent by an all-gather in a new group,
        so the all-gather receives no other message by mistake. It runs in a new context
        (contextvars), in which no collective runs. In the old context the ranks are in different
        collectives. There the call codes of the ranks differ (call_code.py), and the all-gather
        raises an error."""
        group = self._raw.subgroup(range(self.size))
        return enumerate(contextvars.Context().run(objects.all_gather, group, call))

    def _compare(self, digest, call):
        """For simulated ranks: compares this rank's call with the call of the first rank that began
        this collective. The calls are in a dict that all ranks share. The last rank deletes them.
        """
        seen = self._raw.board.setdefault(self._number, {})
        seen[self.rank] = (digest, call)
        first, _ = next(iter(seen.values()))
        if digest != first:
            self._raise((rank, (d, signature_of(*call))) for rank, (d, call) in seen.items())
        if len(seen) == self.size:
            del self._raw.board[self._number]

    def _raise(self, calls):
        """Raises CallMismatch. calls: (rank, (digest, signature)) of two or more ranks. The digests
        are not all equal."""
        calls = {self.ranks[rank]: call for rank, call in sorted(calls)}
        raise CallMismatch(
            f"rank {self.world_rank}: the ranks disagree on collective {self._number} of "
            f"{in_words(self.ranks)}; no data has been sent.\n{explain(calls)}")

    def _members(self):
        return [(rank, self._begun, self._number) for rank in self.ranks]

    # -- the waits of this rank: the counters of other ranks, and a text for the report

    def _sending(self, n_bytes, dst, tag):
        """Counts a send of n_bytes to rank dst. Returns the arguments (needs, what) of Book.wait
        for the wait until this send is done."""
        peer, mine, theirs = self._keys_of(waits.sent, waits.received, dst, tag)
        what = ("to send {:,} bytes to rank {}, tag {}, in {}", n_bytes, peer, tag, current_label())
        return [(peer, theirs, self._lookout.book.count(mine))], what

    def _receiving(self, src, tag):
        """Counts a receive from rank src. Returns the arguments (needs, what) of Book.wait for the
        wait until the message has come."""
        peer, mine, theirs = self._keys_of(waits.received, waits.sent, src, tag)
        what = ("for a message from rank {}, tag {}, in {}", peer, tag, current_label())
        return [(peer, theirs, self._lookout.book.count(mine))], what

    def _keys_of(self, mine, theirs, peer, tag):
        """Returns (the peer's world rank, the key of this rank's counter, the key of the peer's
        counter). mine, theirs: the functions that compute these keys. One is waits.sent, and the
        other is waits.received."""
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
        needs = []  # one need for each rank. The first need that is fulfilled ends the wait
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
        # All members compute the same name for the new group, without a message. The transports
        # compute names in the same way.
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
    """Returns the number of bytes that each of n ranks sends before a collective, to compare the
    calls. A rank sends these bytes in messages of 16 bytes."""
    return 16 * (n - 1).bit_length()


class _Watched(Request):
    """A request. While its wait() runs, the wait is in the rank's lookout.Book."""

    def __init__(self, book, inner, needs, what):
        self._book, self._inner, self._needs, self._what = book, inner, needs, what

    def wait(self):
        return self._book.wait(self._needs, self._what, self._inner.wait)


class _WatchedWindow:
    """A window.Window. The rank's lookout.Book counts its signals and contains its waits."""

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

    def all_reduce_in_c(self, x, op):
        return False  # signal and wait must be called, because the Book contains them

    def wait(self, kind):
        self._counts[kind] = count = self._counts[kind] + 1
        key = self._keys[kind]
        what = ("for all ranks' pieces of shared memory, in {}", current_label())
        needs = [(peer, key, count) for peer in self._peers]
        self._book.wait(needs, what, self._window.wait, kind)


class _WatchedEvent(_Watched):
    """An event. While its wait() runs, the wait is in the rank's lookout.Book."""

    def __init__(self, book, inner):
        super().__init__(book, inner, [], ("for an event of its own rank",))
        self.set, self.is_set = inner.set, inner.is_set
