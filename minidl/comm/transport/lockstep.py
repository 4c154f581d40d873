"""Many simulated ranks in one array. A loop that is the same on all ranks runs only once.

    rank 0   sendrecv(chunk 0 to 1, chunk 3 from 3)
    rank 1   sendrecv(chunk 1 to 2, chunk 0 from 0)         one step of a ring: 4 messages
    rank 2   sendrecv(chunk 2 to 3, chunk 1 from 1)
    rank 3   sendrecv(chunk 3 to 0, chunk 2 from 2)

    all      r = [0 1 2 3], send = (r - s) % n, sendrecv(chunk[send], right, ..., left):
             the same line, run once. A number such as the rank becomes an array: one element
             per rank

A ring of 4,096 ranks sends 33.5 million messages. If they are sent one by one, each message takes
about 8 us, and all messages take 4.5 minutes. The loop alone, without a transport, takes one or two
minutes, because its slices and its sum take 2 to 4 us per message. But in one array there are only
8,190 steps, and each step moves 4,096 messages. The loop is the code of ring.py. Here `t.rank` is
an array, and `chunk[array]` is one chunk of each rank. `sendrecv` moves all messages and all clocks
of a step at once, by the formulas of network.py and links.py. Results, clocks and ledgers have the
same bits as if the ranks ran one by one.

Such a loop has the decorator `@in_step`. A rank that reaches the loop waits. When all ranks of the
group have reached the loop, the last rank runs the loop for all ranks. In five cases this common
run could change the result, so each rank runs the loop itself:
  - ranks share ports
  - a task was spawned
  - `rendezvous_bytes` is set
  - a rank does not reach the loop, and no other task can run
  - the ranks' arrays or messages differ in size or dtype

Test: tests/comm/transport/test_lockstep.py   Used by: sim.py, for groups of IN_STEP ranks or more
Measured: benchmarks/bench_scaling.py
"""

from typing import NamedTuple

import numpy as np

from minidl.comm.chunks import Views

IN_STEP = 32  # the smallest group that runs in lockstep; a smaller group is not faster


class Moved(NamedTuple):
    """The numbers of bytes that one rank sent to rank dst and received from rank src in a loop. A
    ledger counts them. n_messages: the number of messages in each direction."""

    dst: int
    bytes_sent: int
    src: int
    bytes_received: int
    n_messages: int


class Lockstep:
    """The ranks that wait at a loop. Each Network has one Lockstep.

    from_ranks: only groups of at least this many ranks run a loop together."""

    def __init__(self, network, from_ranks):
        self._network, self._from = network, from_ranks
        self._waiting = {}  # Group -> [_Arrival]
        network.scheduler.when_stuck = self.release

    def arrive(self, t, fn, chunk, args):
        """Runs the loop `fn(t, chunk, *args)` together with the other ranks. Returns Moved, or None
        if this rank must run the loop itself."""
        network, scheduler = self._network, self._network.scheduler
        if (t.size < self._from or network.shared_nic or scheduler.n_spawned
                or network.rendezvous_bytes != float("inf")):
            return None
        me = _Arrival(t, scheduler.current, fn, chunk, args)
        here = self._waiting.setdefault(t._group, [])
        here.append(me)
        if len(here) < t.size:
            scheduler.block("all ranks at a loop")
        else:
            del self._waiting[t._group]
            here.sort(key=lambda arrival: arrival.t.rank)
            _together(network, here)
            for other in here:
                if other is not me:
                    scheduler.wake(other.task, 0.0)
        return me.moved

    def release(self):
        """Wakes all ranks that wait at a loop. Then each of these ranks runs the loop itself.
        Returns True if at least one rank waited."""
        for here in self._waiting.values():
            for arrival in here:
                self._network.scheduler.wake(arrival.task, 0.0)
        n_groups = len(self._waiting)
        self._waiting.clear()
        return n_groups > 0


class _Arrival:
    """A rank that waits at a loop."""

    __slots__ = ("t", "task", "fn", "chunk", "args", "moved")

    def __init__(self, t, task, fn, chunk, args):
        self.t, self.task, self.fn, self.chunk, self.args = t, task, fn, chunk, args
        self.moved = None


def _together(network, here):
    """Runs the loop for all ranks if their calls are alike. Otherwise changes nothing. here: a list
    with the _Arrival of every rank."""
    first = here[0]
    if any(each.fn is not first.fn or list(map(id, each.args)) != list(map(id, first.args))
           for each in here) or not all(isinstance(arg, np.ufunc) for arg in first.args):
        return
    try:
        chunks = _Chunks([each.chunk for each in here])
        everyone = _AllRanks(network, here, chunks)
        first.fn(everyone, chunks, *first.args)
    except (_Unlike, TypeError, ArithmeticError, Warning):  # each rank will raise its own error
        return
    chunks.write_back([each.chunk for each in here])
    everyone.finish(here)


class _Unlike(Exception):
    """The ranks cannot run together, for example because their arrays have different sizes. Then
    each rank runs the loop itself, and may raise an error that explains the difference."""


class _AllRanks:
    """The transport that the loop gets. Here `rank`, `right` and `left` are not numbers but arrays
    with one element per rank."""

    simulated = True

    def __init__(self, network, here, chunks):
        self.rank, self.size = np.arange(len(here)), len(here)
        self._network, self._world, self._chunks = network, here[0].t.ranks, chunks
        self._group = here[0].t._group
        self._clock = np.array([each.task.clock for each in here])
        self._way = self._sent = self._received = None
        self._n_messages = 0

    def scratch(self, n_elems, dtype, like=None):
        return _Part()

    def sendrecv(self, mine, right, theirs, left):
        if self._way is None:
            self._way = _Way(self._network, self._group, self._world, right, left)
            self._sent = np.zeros(self.size, np.int64)
            self._received = np.zeros(self.size, np.int64)
        way = self._way
        if way.right is not right or way.left is not left:
            raise _Unlike
        sent = self._chunks.n_bytes[mine.index]
        received = sent[left]
        if theirs.index is not None and (received != self._chunks.n_bytes[theirs.index]).any():
            raise _Unlike
        self._clock = way.move(self._clock, sent, received)
        theirs.put(mine.get()[left])
        self._sent += sent
        self._received += received
        self._n_messages += 1

    def finish(self, here):
        if self._way is None:  # the loop has sent no message
            return
        self._way.finish()
        right, left = self._way.right.tolist(), self._way.left.tolist()
        amounts = zip(right, self._sent.tolist(), left, self._received.tolist(), strict=True)
        for each, clock, moved in zip(here, self._clock.tolist(), amounts, strict=True):
            each.task.clock = clock
            each.moved = Moved(*moved, self._n_messages)


class _Way:
    """The links and ports by which every rank sends to `right` and receives from `left`.

    A _Way computes `Port.send` and `Port.receive` (links.py) for all ranks at once. The variables
    have the same names as in links.py."""

    def __init__(self, network, group, world, right, left):
        self.right, self.left = right, left
        n = len(world)
        if (left[right] != np.arange(n)).any():
            raise _Unlike
        out = [(world[r], world[dst]) for r, dst in enumerate(right.tolist())]
        if any(group.is_busy(src, dst) for src, (_, dst) in enumerate(out)):
            raise _Unlike  # a message or a receive of another call still waits
        links = [network.links.link(*pair) for pair in out]
        self._alpha = np.array([link.alpha for link in links])
        self._beta = np.array([link.beta for link in links])
        ports = [network.links.ports(*pair) for pair in out]
        self._leaves = [network.ports[port] for port, _ in ports]
        self._enters = [network.ports[ports[src][1]] for src in left.tolist()]
        self._out_free = np.array([port.out_free for port in self._leaves])
        self._in_start = np.array([port.in_start for port in self._enters])
        self._in_free = np.array([port.in_free for port in self._enters])

    def move(self, clock, sent, received):
        """Returns an array with the ranks' clocks after one step. All arguments are arrays with one
        number for each rank. clock: the rank's clock before the step. sent, received: the number of
        bytes that the rank sends, and receives, in the step."""
        start = np.maximum(clock, self._out_free)
        self._out_free = start + sent * self._beta
        seconds = received * self._beta[self.left]
        arrival = (start + self._alpha)[self.left]
        done = arrival + seconds
        is_idle = arrival >= self._in_free
        queues = ~is_idle & (done > self._in_start)
        done = np.where(queues, self._in_free + (done - arrival), done)
        self._in_start = np.where(is_idle, arrival, self._in_start)
        self._in_free = np.where(is_idle | queues, done, self._in_free)
        return np.maximum(self._out_free, done)

    def finish(self):
        for port, out_free in zip(self._leaves, self._out_free.tolist(), strict=True):
            port.out_free = out_free
        busy = zip(self._enters, self._in_start.tolist(), self._in_free.tolist(), strict=True)
        for port, in_start, in_free in busy:
            port.in_start, port.in_free = in_start, in_free


class _Chunks:
    """The chunks of all ranks in one array, `stack`. Its shape is (ranks, chunks, elements of the
    longest chunk)."""

    def __init__(self, chunks):
        lengths, dtype = _alike(chunks)
        self.stack = np.zeros((len(chunks), len(lengths), max(lengths)), dtype)
        self.n_bytes = np.array(lengths) * dtype.itemsize
        self.ranks, self._lengths = np.arange(len(chunks)), lengths
        for row, chunk in zip(self.stack, chunks, strict=True):
            for block, piece in _blocks(row, chunk, lengths):
                block[...] = piece

    def write_back(self, chunks):
        for row, chunk in zip(self.stack, chunks, strict=True):
            for block, piece in _blocks(row, chunk, self._lengths):
                piece[...] = block

    def __len__(self):
        return len(self._lengths)

    def __getitem__(self, i):
        """If i is an array, returns a _Part with chunk i[r] of each rank r. If i is a number,
        returns chunk i of rank 0, because the loop reads only the length and dtype of this chunk.
        """
        return _Part(self, i) if isinstance(i, np.ndarray) else self.stack[0, i, :self._lengths[i]]


class _Part:
    """One chunk of every rank. It is chunk index[r] of rank r. If index is None, the _Part is the
    scratch array of every rank."""

    def __init__(self, chunks=None, index=None):
        self.index, self._chunks, self._values = index, chunks, None

    def get(self):
        """Returns the chunks as an array (ranks, elements of the longest chunk)."""
        return self._values if self.index is None else self._chunks.stack[
            self._chunks.ranks, self.index]

    def put(self, values):
        if self.index is None:
            self._values = values
        else:
            self._chunks.stack[self._chunks.ranks, self.index] = values

    def __len__(self):
        return self._chunks.stack.shape[2]

    def __getitem__(self, to_length):
        return self  # scratch[: len(chunk)] needs no cut: a shorter chunk is padded with zeros

    def __array_ufunc__(self, op, method, *inputs, out):
        """Is called when the loop calls op(theirs, mine, out=mine). Runs op for all ranks at
        once."""
        place, = out
        values = [part.get() for part in inputs]
        place.put(op(*values, out=np.empty_like(values[0])))


def _alike(chunks):
    """chunks: a list with the chunks of each rank. Returns (list of the lengths, dtype) of one
    rank's chunks. Raises _Unlike if lengths or dtypes differ between ranks, or if the arrays of two
    ranks share memory."""
    kinds = {_kind(chunk) for chunk in chunks}
    starts = {chunk[0].__array_interface__["data"][0] for chunk in chunks
              if type(chunk[0]) is np.ndarray}
    lengths = [len(chunks[0][i]) for i in range(len(chunks[0]))]
    if len(kinds) > 1 or None in kinds or (any(lengths) and len(starts) < len(chunks)):
        raise _Unlike
    return lengths, chunks[0][0].dtype


def _kind(chunk):
    """chunk: the chunks of one rank. Returns a value that is equal for two ranks if their chunks
    have the same lengths and the same dtype. Returns None if the chunks are not NumPy arrays of one
    dtype."""
    if isinstance(chunk, Views):
        x = chunk.whole
        return (len(x), x.dtype) if type(x) is np.ndarray else None
    if any(type(c) is not np.ndarray or c.dtype != chunk[0].dtype for c in chunk):
        return None
    return tuple(map(len, chunk)), chunk[0].dtype


def _blocks(row, chunk, lengths):
    """Returns a list of pairs (view of row, view of chunk). Both views of a pair are for the same
    elements of the rank's array. Together the pairs contain all chunks of the rank.

    row: the rank's row of the array `stack`. chunk: the chunks of this rank."""
    if not isinstance(chunk, Views):
        return [(row[i, :length], chunk[i]) for i, length in enumerate(lengths)]
    x, (size, n_long) = chunk.whole, divmod(len(chunk.whole), len(chunk))
    cut = n_long * (size + 1)
    short = row[n_long:, :size], x[cut:].reshape(len(chunk) - n_long, size)
    return [short, (row[:n_long], x[:cut].reshape(n_long, size + 1))] if n_long else [short]
