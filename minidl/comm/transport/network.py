"""The state that simulated ranks share: the ports, and the messages that are on their way.

    sender      isend ---- put ---.                    Each (source, destination, tag) has a
                                  Channel  = match ->  Channel. It matches messages and receives in
    receiver    irecv --- post ---'                    order. A message or receive waits in the
                                                       Channel until its match comes.

    small     the send completes at once. The first byte arrives alpha seconds after the port is
              free
    large     more than `rendezvous_bytes`: the send starts when the receiver calls irecv, as in MPI

For the modelled time see the picture in sim.py. For ports and links see links.py.

Test: tests/comm/transport/test_sim.py   Used by: sim.py
"""

import weakref
from collections import defaultdict, deque

import numpy as np

from minidl.comm.checks import size_mismatch
from minidl.comm.transport.links import Port
from minidl.comm.transport.lockstep import IN_STEP, Lockstep
from minidl.comm.transport.protocol import Request
from minidl.comm.transport.scheduler import Scheduler


class Network:
    """The state of a whole simulation: the scheduler of all ranks, the ports and the groups."""

    def __init__(self, n, links, rendezvous_bytes, in_step=IN_STEP):
        self.scheduler = Scheduler(n)
        self.links, self.shared_nic = links, links.shared_nic
        self.rendezvous_bytes = float("inf") if rendezvous_bytes is None else rendezvous_bytes
        self.ports = defaultdict(Port)  # port number (see links.ports) -> Port
        self._groups = weakref.WeakValueDictionary()  # name -> Group
        self._half_made = {}  # name -> (Group, how many ranks must still call group())
        self.unreceived = []  # error texts of deleted groups, one for each channel with messages
        self.lockstep = Lockstep(self, in_step)

    def group(self, name, ranks):
        """Returns the Group of this name and these world ranks. Each of these ranks must call this
        method once.

        The Network keeps the Group until all its ranks have called group(). After that the Group is
        deleted as soon as no rank has a reference to it. So a run may make a group in every
        step."""
        group, missing = self._half_made.pop(name, None) or (Group(self, ranks), len(ranks))
        self._groups[name] = group
        if missing > 1:
            self._half_made[name] = group, missing - 1
        return group

    def keep_order(self, clock=0.0):
        """If tasks share ports, lets the tasks with earlier clocks run first. Must be called before
        a port is used. clock: the time when the port will be used. If the clock of the current
        task is later, that clock is used instead."""
        if self.scheduler.n_spawned or self.shared_nic:
            self.scheduler.yield_in_order(clock)

    def check_all_received(self):
        """Raises RuntimeError if a message was never received."""
        for group in self._groups.values():
            self.unreceived += group.unreceived()
        if self.unreceived:
            raise RuntimeError(self.unreceived[0])


class Group:
    """The state that the simulated ranks of a group share: their messages and their shared memory.

    board   a dict in which the ranks compare values without messages"""

    def __init__(self, network, ranks):
        self.network, self.ranks = network, ranks
        self.inboxes = {}  # (world rank, tag) -> Inbox
        self.windows = {}  # n_bytes -> the memory of each rank's piece
        self.board = {}

    def inbox(self, world_rank, tag):
        return self.inboxes.setdefault((world_rank, tag), Inbox())

    def channel(self, src, dst, tag):
        """Returns the Channel from rank src to rank dst of this group."""
        inbox, ranks = self.inbox(self.ranks[dst], tag), self.ranks
        if src not in inbox.channels:
            inbox.channels[src] = Channel(self.network, inbox, ranks[src], ranks[dst], (src, dst),
                                          tag)
        return inbox.channels[src]

    def is_busy(self, src, dst, tag=0):
        """Returns True if messages or receives wait in the Channel between these ranks. src: a rank
        of the group. dst: a world rank."""
        inbox = self.inboxes.get((dst, tag))
        channel = inbox and inbox.channels.get(src)
        return bool(channel and (channel.queue or channel.posted))

    def unreceived(self):
        """Returns a list of error texts, one for each channel whose messages were not received."""
        found = []
        for inbox in self.inboxes.values():
            for channel in inbox.channels.values():
                if channel.queue:
                    found.append(
                        f"rank {channel.dst}: never received the {channel.queue[0][0].nbytes} "
                        f"bytes that rank {channel.src} sent (tag {channel.tag}). One recv too "
                        "few, or one send too many?")
        return found

    def __del__(self):
        self.network.unreceived += self.unreceived()  # keeps the errors of a deleted group


class Inbox:
    """All channels that have the same group, the same receiver and the same tag."""

    __slots__ = ("channels", "waiting_for_any")

    def __init__(self):
        self.channels = {}  # src in the group -> Channel
        self.waiting_for_any = None  # the task in recv_any


class Channel:
    """The queue for all messages that have the same sender, the same receiver and the same tag. It
    holds either messages that have no receive yet, or receives that have no message yet.

    A small message is a tuple (data, time when its first byte arrives, None). A large message is a
    tuple (data, None, Rendezvous). The Rendezvous will compute the time.

    src, dst         world ranks; `in_group` has (src, dst) as ranks of the group
    leaves, enters   the port of the sender, the port of the receiver"""

    __slots__ = (*("network", "inbox", "src", "dst", "in_group", "tag", "queue", "posted"),
                 *("alpha", "beta", "leaves", "enters"))

    def __init__(self, network, inbox, src, dst, in_group, tag):
        self.network, self.inbox, self.tag = network, inbox, tag
        self.src, self.dst, self.in_group = src, dst, in_group
        self.queue, self.posted = deque(), deque()
        self.alpha, self.beta = network.links.link(src, dst)
        self.leaves, self.enters = (network.ports[k] for k in network.links.ports(src, dst))

    def send(self, data):
        """Sends an array. The caller must not change the array afterwards. Returns the Request."""
        if data.nbytes > self.network.rendezvous_bytes:
            request = Rendezvous(self, data.nbytes)
            self.put((data, None, request))
            return request
        scheduler = self.network.scheduler
        start = self.leaves.send(scheduler.current.clock, data.nbytes * self.beta)
        self.put((data, start + self.alpha, None))
        return Sent(scheduler, self.leaves.out_free)

    def put(self, message):
        """Gives a message to the first receive that waits here. If no receive waits, puts the
        message into the queue."""
        if self.posted:
            self.posted.popleft().match(message)
            return
        self.queue.append(message)
        if self.inbox.waiting_for_any is not None:
            self.network.scheduler.wake(self.inbox.waiting_for_any, message[1] or 0.0)

    def post(self, into):
        """Starts to receive into an array. Returns the Request."""
        receive = Receive(self, into)
        if self.queue:
            receive.match(self.queue.popleft())
        else:
            self.posted.append(receive)
        return receive

    def take(self, task, data, arrival, into):
        """Receives a message: sets the times of the port and of the task, and copies `data` to
        `into`. Raises SizeMismatch if the sizes differ."""
        n_bytes = data.nbytes
        if n_bytes != into.nbytes:
            src, dst = self.in_group
            raise size_mismatch(dst, src, into.nbytes, n_bytes)
        self.network.keep_order(arrival)
        done = self.enters.receive(arrival, n_bytes * self.beta)
        if done > task.clock:
            task.clock = done
        if data.dtype is into.dtype:
            try:
                into[...] = data  # raises ValueError if the shapes do not fit
                return
            except ValueError:
                pass
        into[...] = np.frombuffer(data.tobytes(), into.dtype).reshape(into.shape)


class Sent(Request):
    """A small send. Its buffer has been copied. wait() sets the clock to the time when the port has
    sent the whole message."""

    __slots__ = ("scheduler", "end")

    def __init__(self, scheduler, end):
        self.scheduler, self.end = scheduler, end

    def wait(self):
        task = self.scheduler.current
        task.clock = max(task.clock, self.end)


class Rendezvous(Request):
    """A large send. It starts when the receiver has called irecv."""

    def __init__(self, channel, n_bytes):
        self.channel, self.scheduler, self.n_bytes = channel, channel.network.scheduler, n_bytes
        self.sent_at = self.scheduler.current.clock
        self.end = self.waiter = None

    def matched(self, posted_at):
        """Starts the send. posted_at: the time when the receiver called irecv. Returns the time
        when the first byte arrives."""
        seconds = self.n_bytes * self.channel.beta
        start = self.channel.leaves.send(max(self.sent_at, posted_at), seconds)
        self.end = start + seconds
        if self.waiter is not None:
            self.scheduler.wake(self.waiter, self.end)
        return start + self.channel.alpha

    def wait(self):
        task = self.scheduler.current
        if self.end is None:
            self.waiter = task
            operation = f"the receive of its {self.n_bytes} bytes by"
            self.scheduler.block(operation, self.channel.dst, self.channel.tag)
        task.clock = max(task.clock, self.end)


class Receive(Request):
    """A receive that has begun by irecv."""

    def __init__(self, channel, into):
        self.channel, self.scheduler, self.into = channel, channel.network.scheduler, into
        self.posted_at = self.scheduler.current.clock
        self.data = self.arrival = self.waiter = None

    def match(self, message):
        """Gives the message to this Receive. The message may still be on its way."""
        self.data, self.arrival, rendezvous = message
        if rendezvous is not None:
            self.arrival = rendezvous.matched(self.posted_at)
        if self.waiter is not None:
            self.scheduler.wake(self.waiter, self.arrival)

    def wait(self):
        if self.into is None:
            return
        if self.data is None:
            self.waiter = self.scheduler.current
            self.scheduler.block("a message from", self.channel.src, self.channel.tag)
        self.channel.take(self.scheduler.current, self.data, self.arrival, self.into)
        self.into = None
