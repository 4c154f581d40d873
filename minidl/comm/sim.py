"""The simulator: n ranks in one process, on a modelled clock. Test: tests/comm/test_sim.py

Each rank is a greenlet: a function that can be paused inside any call. A rank runs until it must wait for a
message; then the waiting rank with the smallest clock (then the smallest rank) goes on. Nothing depends on
threads or on real time, so a run is the same every time, a thousand ranks take seconds, and when nobody can go
on the run is certainly stuck: the report names every rank, what it waits for, and the line of the user's code.

Modelled time: a message of b bytes sent when the sender's clock shows s

      sender's port   |#### b*beta ####|                     s or later, one message at a time
      wire              alpha
      receiver's port           |#### b*beta ####|           one message at a time
                                                 ^ the receiver's clock when its wait() returns

Ports send and receive at once (full duplex), so a ring all-reduce of n equal chunks takes
2(n-1)(alpha + K/n * beta), as `cost.ring_all_reduce` says. Arithmetic is free; tell the clock with `t.compute`.

The receiving port serves messages in the order of their waits, but a message that came wholly before the
port's last busy period does not queue behind it.
"""

import contextvars
import os
import traceback
from collections import deque
from heapq import heappop, heappush

import numpy as np

from .transport import (
    Request,
    Transport,
    check_array,
    check_peer,
    check_ranks,
    current_label,
    size_mismatch,
)

# Round figures of a 10 Gbit/s network.
ALPHA = 10e-6  # seconds per message
BETA = 1e-9  # seconds per byte


class Deadlock(RuntimeError):
    """No rank can go on."""


class RankFailed(RuntimeError):
    """A rank raised; `rank` says which, `__cause__` is its exception with its traceback."""

    def __init__(self, rank, error):
        super().__init__(f"rank {rank}: {type(error).__name__}: {error}")
        self.rank = rank


def simulate(n, fn, *args, alpha=ALPHA, beta=BETA, rendezvous_bytes=None):
    """Run `fn(t, *args)` on n ranks in this process; the list of what each rank returned.

    alpha, beta        seconds per message and per byte of the modelled clock
    rendezvous_bytes   a send of more bytes than this completes only once its receive is posted, as MPI's large
                       messages do; None: every send completes by itself

    Raises RankFailed (from the rank's exception), or Deadlock. A message that nobody received is an error too.
    """
    world = _World(n, alpha, beta, rendezvous_bytes)
    transports = [SimTransport(world, (), tuple(range(n)), rank) for rank in range(n)]
    tasks = [world.start(rank, 0.0, fn, t, *args) for rank, t in enumerate(transports)]
    try:
        world.run()
    finally:
        world.stop()
    return [task.result for task in tasks]


class _World:
    """The scheduler and the network."""

    def __init__(self, n, alpha, beta, rendezvous_bytes):
        import greenlet  # here, so that `import minidl.comm` works without it

        self.greenlet = greenlet
        self.alpha, self.beta = alpha, beta
        self.rendezvous_bytes = float("inf") if rendezvous_bytes is None else rendezvous_bytes
        self.nodes = [_Node() for _ in range(n)]
        self.inboxes = {}  # (group, world rank, tag) -> _Inbox
        self.ready = []  # heap of (clock, world rank, ticket, task)
        self.tickets = 0
        self.tasks = []  # started and not finished
        self.failed = []  # spawned tasks whose error no one has waited for
        self.current = None
        self.hub = greenlet.getcurrent()

    # -- tasks

    def start(self, rank, clock, fn, *args, spawned=False):
        task = _Task(rank, clock, spawned)
        task.greenlet = self.greenlet.greenlet(lambda: self._body(task, fn, args), parent=self.hub)
        # A rank starts with an empty context of its own; a spawned task continues its parent's.
        task.greenlet.gr_context = contextvars.copy_context() if spawned else contextvars.Context()
        self.nodes[rank].tasks += 1
        self.tasks.append(task)
        self.wake(task, clock)
        return task

    def _body(self, task, fn, args):
        try:
            task.result = fn(*args)
        except Exception as error:
            task.error = error
            if task.spawned:
                self.failed.append(task)
        task.done = True
        self.nodes[task.rank].tasks -= 1
        self.tasks.remove(task)
        for joiner in task.joiners:
            self.wake(joiner, max(joiner.clock, task.clock))

    def wake(self, task, clock):
        """Let `task` run when no other ready task has an earlier clock. A second call may make it earlier."""
        self.tickets += 1
        task.ticket = self.tickets
        heappush(self.ready, (clock, task.rank, self.tickets, task))

    def run(self):
        while self.ready:
            _, _, ticket, task = heappop(self.ready)
            if ticket != task.ticket:  # woken again for an earlier time
                continue
            task.ticket = 0
            self.current = task
            task.greenlet.switch()
            if task.error is not None and not task.spawned:
                raise RankFailed(task.rank, task.error) from task.error
        if self.failed:
            task = self.failed[0]
            raise RankFailed(task.rank, task.error) from task.error
        if self.tasks:
            raise Deadlock(self._deadlock_report())
        self._check_all_received()

    def stop(self):
        """End what still runs, so that `finally` blocks execute and no greenlet outlives the call."""
        self.current = None
        for task in list(self.tasks):
            try:
                task.greenlet.throw()  # GreenletExit
            except BaseException:  # an error while being torn down would hide the first one
                pass

    def block(self, task, operation, peer=None, tag=0):
        """Pause the current task until somebody wakes it."""
        task.waits_for = (operation, peer, tag, current_label())
        self.hub.switch()
        if self.current is not task:
            raise RuntimeError(f"rank {task.rank}: the simulation has ended")
        task.waits_for = None

    def in_order(self, task):
        """Let every ready task with an earlier clock go first.

        A rank with one task may run ahead: who waits for it by name cannot tell. Two tasks of one rank share its
        port, and a receive from anybody takes the earliest message, so these keep to the order of the clock.
        """
        if self.ready and self.ready[0][0] < task.clock:
            self.wake(task, task.clock)
            self.block(task, "its turn")

    # -- reports

    def _deadlock_report(self):
        n = len(self.nodes)
        lines = []
        for task in sorted(self.tasks, key=lambda task: (task.rank, task.spawned)):
            operation, peer, tag, label = task.waits_for
            who = f"rank {task.rank}" + (" (spawned task)" if task.spawned else "")
            what = operation if peer is None else f"{operation} rank {peer}, tag {tag}"
            if peer is not None and self.nodes[peer].tasks == 0:
                what += " (which has ended)"
            lines.append(f"  {who}: {what}, in {label}, at {_user_line(task.greenlet)}")
        ended = [str(rank) for rank, node in enumerate(self.nodes) if node.tasks == 0]
        if ended:
            lines.append(f"  ended: rank {', '.join(ended)}")
        return f"deadlock: none of the {n} ranks can go on.\n" + "\n".join(lines)

    def _check_all_received(self):
        for (_, dst, tag), inbox in self.inboxes.items():
            for channel in inbox.channels.values():
                if channel.queue:
                    raise RuntimeError(
                        f"rank {channel.world_src} sent {channel.queue[0][0].nbytes} bytes to rank {dst} (tag {tag}) "
                        f"that rank {dst} never received. One recv too few, or one send too many?"
                    )


class _Task:
    """A running function of one rank, with its clock."""

    __slots__ = "rank clock greenlet spawned waits_for ticket done result error joiners".split()

    def __init__(self, rank, clock, spawned):
        self.rank, self.clock, self.spawned = rank, clock, spawned
        self.waits_for = self.result = self.error = self.greenlet = None
        self.ticket = 0
        self.done = False
        self.joiners = []


class _Node:
    """A rank's network ports: when the sending port is free, and the receiving port's last busy period."""

    __slots__ = "tasks out_free in_start in_free".split()

    def __init__(self):
        self.tasks = 0
        self.out_free = self.in_start = self.in_free = 0.0


class _Inbox:
    """All that comes to one rank of one group with one tag."""

    __slots__ = "channels waiting_for_any".split()

    def __init__(self):
        self.channels = {}  # src -> _Channel
        self.waiting_for_any = None


class _Channel:
    """From one rank to another with one tag: messages not yet received, receives not yet served.

    A message is a tuple (data, when its first byte arrives, None), or (data, None, a _Rendezvous that waits).
    """

    __slots__ = "inbox queue posted world_src world_dst".split()

    def __init__(self, inbox, world_src, world_dst):
        self.inbox, self.world_src, self.world_dst = inbox, world_src, world_dst
        self.queue, self.posted = deque(), deque()


class _Sent(Request):
    __slots__ = "world end".split()

    def __init__(self, world, end):
        self.world, self.end = world, end

    def wait(self):
        task = self.world.current
        if self.end > task.clock:
            task.clock = self.end  # the port has taken the last byte


class _Rendezvous(Request):
    """A large send: starts once its receive is posted."""

    def __init__(self, transport, channel, clock, n_bytes, tag):
        self.transport, self.channel = transport, channel
        self.clock, self.n_bytes, self.tag = clock, n_bytes, tag
        self.end = self.waiter = None

    def matched(self, clock):
        """The receive was posted at `clock`; returns when the first byte arrives."""
        world, node = self.transport._world, self.transport._node
        start = max(self.clock, clock, node.out_free)
        node.out_free = self.end = start + self.n_bytes * world.beta
        if self.waiter is not None:
            world.wake(self.waiter, max(self.waiter.clock, self.end))
        return start + world.alpha

    def wait(self):
        world = self.transport._world
        task = world.current
        if self.end is None:
            self.waiter = task
            world.block(task, f"send of {self.n_bytes} bytes to", self.channel.world_dst, self.tag)
        task.clock = max(task.clock, self.end)


class _Receive(Request):
    __slots__ = "transport channel into src tag clock data arrival waiter".split()

    def __init__(self, transport, channel, into, src, tag, clock):
        self.transport, self.channel, self.into, self.src, self.tag = transport, channel, into, src, tag
        self.clock = clock  # when it was posted
        self.data = self.arrival = self.waiter = None

    def wait(self):
        t = self.transport
        task = t._world.current
        if self.data is None:
            self.waiter = task
            t._world.block(task, "recv from", self.channel.world_src, self.tag)
        t._take(task, self.data, self.arrival, self.into, self.src)


class SimTransport(Transport):
    """One rank of a simulated group. Made by `simulate`."""

    def __init__(self, world, group, ranks, rank):
        self._world, self._group = world, group
        self.ranks, self.rank, self.size = ranks, rank, len(ranks)
        self.world_rank = ranks[rank]
        self._node = world.nodes[self.world_rank]
        self._outgoing, self._incoming = {}, {}  # (peer, tag) -> _Channel, filled as used
        self._pairs = {}  # (dst, src, tag) -> what sendrecv needs
        self._subgroups = {}  # ranks -> how often asked for

    # -- messages

    def isend(self, array, dst, tag=0):
        world, node = self._world, self._node
        task = world.current
        if node.tasks > 1:
            world.in_order(task)
        channel = self._outgoing.get((dst, tag)) or self._open(dst, tag, sending=True)
        check_array(self.rank, array)
        data = array.copy()  # the sender may overwrite its own after wait()
        if data.nbytes > world.rendezvous_bytes:
            request = _Rendezvous(self, channel, task.clock, data.nbytes, tag)
            self._put(channel, (data, None, request))
            return request
        start = max(task.clock, node.out_free)
        node.out_free = end = start + data.nbytes * world.beta
        self._put(channel, (data, start + world.alpha, None))
        return _Sent(world, end)

    def irecv(self, out, src, tag=0):
        world = self._world
        task = world.current
        if self._node.tasks > 1:
            world.in_order(task)
        channel = self._incoming.get((src, tag)) or self._open(src, tag, sending=False)
        check_array(self.rank, out)
        receive = _Receive(self, channel, out, src, tag, task.clock)
        if channel.queue and not channel.posted:
            self._match(receive, channel.queue.popleft())
        else:
            channel.posted.append(receive)
        return receive

    def sendrecv(self, out, dst, into, src, tag=0):
        """The base class's three calls in one, for speed: two million of these make a ring of 1,024 ranks."""
        try:
            world, node, outgoing, queue, posted = self._pairs[dst, src, tag]
        except KeyError:
            self._pairs[dst, src, tag] = self._open_pair(dst, src, tag)
            return self.sendrecv(out, dst, into, src, tag)
        n_bytes = out.nbytes
        if not queue or posted or node.tasks > 1 or n_bytes > world.rendezvous_bytes or queue[0][1] is None:
            return super().sendrecv(out, dst, into, src, tag)
        task = world.current
        start = task.clock
        if node.out_free > start:
            start = node.out_free
        node.out_free = end = start + n_bytes * world.beta
        if end > start:
            task.clock = end
        message = (out.copy(), start + world.alpha, None)
        if outgoing.posted:
            self._match(outgoing.posted.popleft(), message)
        else:
            self._put(outgoing, message)
        data, arrival, _ = queue.popleft()
        self._take(task, data, arrival, into, src)
        return into

    def recv_any(self, tag=0):
        world = self._world
        task = world.current
        inbox = self._inbox(self.world_rank, tag)
        while True:
            # The earliest message, by arrival and then by rank.
            first = min(
                ((c.queue[0][1] or task.clock, src) for src, c in inbox.channels.items() if c.queue),
                default=None,
            )
            # Its turn comes when no ready rank has an earlier clock: then nothing earlier can still arrive.
            if first and not (world.ready and world.ready[0][0] < max(first[0], task.clock)):
                break
            inbox.waiting_for_any = task
            if first:
                world.wake(task, max(first[0], task.clock))
            world.block(task, "recv from any rank", tag=tag)
            inbox.waiting_for_any = None
        src = first[1]
        channel = inbox.channels[src]
        n_bytes = channel.queue[0][0].nbytes
        out = np.empty(n_bytes, np.uint8)
        self.irecv(out, src, tag).wait()
        return src, out

    def _open(self, peer, tag, sending):
        check_peer(self.rank, self.size, peer, "dst" if sending else "src")
        src, dst = (self.rank, peer) if sending else (peer, self.rank)
        inbox = self._inbox(self.ranks[dst], tag)
        if src not in inbox.channels:
            inbox.channels[src] = _Channel(inbox, self.ranks[src], self.ranks[dst])
        opened = self._outgoing if sending else self._incoming
        opened[peer, tag] = inbox.channels[src]
        return inbox.channels[src]

    def _inbox(self, world_rank, tag):
        return self._world.inboxes.setdefault((self._group, world_rank, tag), _Inbox())

    def _open_pair(self, dst, src, tag):
        outgoing, incoming = self._open(dst, tag, sending=True), self._open(src, tag, sending=False)
        return self._world, self._node, outgoing, incoming.queue, incoming.posted

    def _put(self, channel, message):
        """Hand a message to the first receive that waits for it, or leave it in the queue."""
        if channel.posted:
            self._match(channel.posted.popleft(), message)
            return
        channel.queue.append(message)
        task = channel.inbox.waiting_for_any
        if task is not None:
            self._world.wake(task, max(task.clock, message[1] or 0.0))

    def _match(self, receive, message):
        data, arrival, rendezvous = message
        if rendezvous is not None:
            arrival = rendezvous.matched(receive.clock)
        receive.data, receive.arrival = data, arrival
        if receive.waiter is not None:
            self._world.wake(receive.waiter, max(receive.waiter.clock, arrival))

    def _take(self, task, data, arrival, into, src):
        """Receive through the port, and copy the bytes to their place."""
        n_bytes = data.nbytes
        if n_bytes != into.nbytes:
            raise size_mismatch(self.rank, src, into.nbytes, n_bytes)
        node = self._node
        duration = n_bytes * self._world.beta
        if arrival >= node.in_free:
            node.in_start, node.in_free = arrival, arrival + duration
            done = node.in_free
        elif arrival + duration <= node.in_start:
            done = arrival + duration  # came before the port's last busy period
        else:
            node.in_free = done = node.in_free + duration
        if done > task.clock:
            task.clock = done
        if data.dtype is into.dtype and data.shape == into.shape:
            into[...] = data
        else:
            into[...] = np.frombuffer(data.tobytes(), into.dtype).reshape(into.shape)

    # -- groups, tasks, time

    def subgroup(self, ranks):
        ranks = check_ranks(self.rank, self.size, ranks)
        if self.rank not in ranks:
            return None
        # Members agree on the name of a new group without talking: the parent, the ranks, and how many before.
        count = self._subgroups[ranks] = self._subgroups.get(ranks, 0) + 1
        group = (self._group, ranks, count)
        world_ranks = tuple(self.ranks[r] for r in ranks)
        return SimTransport(self._world, group, world_ranks, ranks.index(self.rank))

    def spawn(self, fn, *args):
        clock = self._world.current.clock
        return _Handle(self._world, self._world.start(self.world_rank, clock, fn, *args, spawned=True))

    def event(self):
        return _Event(self._world)

    def time(self):
        return self._world.current.clock

    def compute(self, seconds):
        self._world.current.clock += seconds


class _Handle(Request):
    """A spawned task; wait() joins it and its clock."""

    def __init__(self, world, task):
        self._world, self._task = world, task

    def wait(self):
        me, task = self._world.current, self._task
        if not task.done:
            task.joiners.append(me)
            self._world.block(me, "the end of a spawned task")
        me.clock = max(me.clock, task.clock)
        if task.error is not None:
            if task in self._world.failed:
                self._world.failed.remove(task)
            raise task.error
        return task.result


class _Event:
    """Set once, waited for by tasks of the same rank; carries the clock at which it was set."""

    def __init__(self, world):
        self._world, self._waiters, self._clock = world, [], None

    def set(self):
        self._clock = self._world.current.clock
        for task in self._waiters:
            self._world.wake(task, max(task.clock, self._clock))
        self._waiters.clear()

    def is_set(self):
        return self._clock is not None

    def wait(self):
        me = self._world.current
        if self._clock is None:
            self._waiters.append(me)
            self._world.block(me, "an event of its own rank")
        me.clock = max(me.clock, self._clock)


_HERE = os.path.dirname(os.path.abspath(__file__))


def _user_line(greenlet):
    """file:line of the innermost frame outside this package: where the user's code waits."""
    frame = greenlet.gr_frame
    for frame, line in traceback.walk_stack(frame):
        path = os.path.abspath(frame.f_code.co_filename)
        if os.path.dirname(path) != _HERE and not path.endswith("contextlib.py"):
            return f"{frame.f_code.co_filename}:{line}"
    return "an unknown line"
