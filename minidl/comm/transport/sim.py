"""The simulator: n ranks in one process, on a modelled clock.

    simulate(4, lambda t: ring.all_reduce(t, np.ones(10)))      four ranks, four results

Each rank is a greenlet that runs until it must wait for a message. There are no threads and no real
time, so every run is the same. If no rank can continue, the run ends with a report (scheduler.py).

Modelled time of a message of b bytes, sent when the sender's clock shows s:

    sender's port      |#### b*beta ####|           starts at s or later, one message at a time
    wire               alpha
    receiver's port            |#### b*beta ####|   one message at a time
                                                ^   the receiver's clock when its wait() returns

A port can send and receive at the same time (full duplex). So a ring all-reduce of K bytes in n
equal chunks takes 2(n-1)(alpha + K/n * beta), as in `cost.ring_all_reduce`. Arithmetic takes no
time, unless you call `t.compute(seconds)`. The receiving port takes messages in the order of their
wait() calls. A busy period is a time in which the port receives without a pause. A message waits
for the end of the port's last busy period. There is one exception: a message that is complete
before the start of this period does not wait. For different links, nodes that share a NIC, and
stragglers, use `simulate(n, fn, links=...)` and links.py.

Test: tests/comm/transport/test_sim.py, test_links.py   Tutorial: tutorials/07_ring.py, with --sim 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minidl.comm.call_code import check_code
from minidl.comm.checks import check_array, check_peer, check_ranks
from minidl.comm.labels import current_code, current_label
from minidl.comm.transport import staging
from minidl.comm.transport.links import Links
from minidl.comm.transport.lockstep import IN_STEP
from minidl.comm.transport.network import Network
from minidl.comm.transport.protocol import Transport
from minidl.comm.transport.scheduler import Event, Handle
from minidl.comm.transport.window import HEADER, Messages, NoSharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable


# Round figures of a 10 Gbit/s network.
ALPHA = 10e-6  # seconds per message
BETA = 1e-9  # seconds per byte


def simulate(n: int, fn: Callable[..., Any], *args: Any, alpha: float | None = None,
             beta: float | None = None, links: Links | None = None,
             rendezvous_bytes: int | None = None, in_step: int = IN_STEP) -> list[Any]:
    """Runs `fn(t, *args)` on n ranks in this process. Returns the list of the ranks' results.

    alpha, beta        seconds per message and per byte of the modelled clock. The defaults are 10
                       us and 1 ns
    links              the whole network, a links.Links, instead of alpha and beta
    rendezvous_bytes   a send of more bytes completes only after its receive is posted, like large
                       messages of MPI. If None, every send completes at once
    in_step            groups of at least this many ranks do a ring's steps in one array
                       (lockstep.py). The results and times are the same, but the run is faster

    A rank begins like a new process: a `no_grad`, `use_fused` or random seed that the caller has
    set has no effect in the ranks. Set these in `fn`.

    Raises scheduler.RankFailed if a rank raised an exception, scheduler.Deadlock if no rank can
    continue, and RuntimeError if a message was never received."""
    if links is None:
        links = Links.uniform(ALPHA if alpha is None else alpha, BETA if beta is None else beta)
    elif alpha is not None or beta is not None:
        raise ValueError("simulate wants links, or alpha and beta; got links together with "
                         "alpha or beta")
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"simulate wants a number of ranks, 1 or more; got {n!r}")
    links.check_ranks(n)
    network = Network(n, links, rendezvous_bytes, in_step)
    scheduler = network.scheduler
    ranks = tuple(range(n))  # the ranks share one tuple: n tuples would hold n^2 numbers
    transports = [SimTransport(network, (), ranks, rank) for rank in ranks]
    tasks = [scheduler.start(rank, 0.0, fn, t, *args) for rank, t in enumerate(transports)]
    try:
        scheduler.run()
    finally:
        scheduler.stop()
    network.check_all_received()
    return [task.result for task in tasks]


class SimTransport(Transport):
    """The transport of one rank in a simulated group. `simulate` makes it.

    board   a dict that the group's ranks share. In it they compare values without messages"""

    simulated, library = True, "simulator"

    def __init__(self, network, name, ranks, rank):
        self.ranks, self.rank, self.size = ranks, rank, len(ranks)
        self.world_rank = ranks[rank]
        self._network, self._scheduler = network, network.scheduler
        self._name, self._group = name, network.group(name, ranks)
        self._slowdown = network.links.slowdown(self.world_rank)
        self._outgoing, self._incoming = {}, {}  # (peer, tag) -> Channel
        self._pairs = {}  # (dst, src, tag) -> the Scheduler, link and Channels of a sendrecv
        self._subgroups = {}  # ranks -> the number of subgroups made of them
        self.board = self._group.board
        self._windows = {}  # n_bytes -> Messages
        self._n_collectives = 0

    def isend(self, array, dst, tag=0):
        if not isinstance(array, np.ndarray):
            return staging.isend(self, array, dst, tag)
        check_array(self, array)
        self._network.keep_order()
        channel = self._outgoing.get((dst, tag)) or self._open(self._outgoing, dst, tag)
        return channel.send(array.copy())  # a copy: the sender may overwrite its array after wait()

    def irecv(self, into, src, tag=0):
        if not isinstance(into, np.ndarray):
            return staging.irecv(self, into, src, tag)
        check_array(self, into)
        self._network.keep_order()
        channel = self._incoming.get((src, tag)) or self._open(self._incoming, src, tag)
        return channel.post(into)

    def sendrecv(self, array, dst, into, src, tag=0):
        # This method does the same as in the base class, but is faster if the message has
        # already come. A ring of 1,024 ranks calls this method two million times.
        pair = self._pairs.get((dst, src, tag)) or self._open_pair(dst, src, tag)
        scheduler, port, limit, alpha, beta, beta_in, outgoing, incoming, queue = pair
        n_bytes = array.nbytes
        on_host = type(array) is type(into) is np.ndarray
        if not on_host or not queue or n_bytes > limit or scheduler.n_spawned \
                or queue[0][1] is None:
            return super().sendrecv(array, dst, into, src, tag)
        task = scheduler.current
        start = task.clock
        if port.out_free > start:
            start = port.out_free
        task.clock = port.out_free = start + n_bytes * beta
        message = (array.copy(), start + alpha, None)
        if outgoing.posted or outgoing.inbox.waiting_for_any:
            outgoing.put(message)
        else:
            outgoing.queue.append(message)
        data, arrival, _ = queue.popleft()
        if arrival < port.in_free or data.shape != into.shape or data.dtype is not into.dtype:
            incoming.take(task, data, arrival, into)
            return into
        # This is the common case of incoming.take(), written here again, to be faster. The port
        # is free, and `data` has the shape of `into`.
        port.in_start, port.in_free = arrival, arrival + into.nbytes * beta_in
        if port.in_free > task.clock:
            task.clock = port.in_free
        into[...] = data
        return into

    def recv_any(self, tag=0):
        scheduler, task = self._scheduler, self._scheduler.current
        inbox = self._group.inbox(self.world_rank, tag)
        while True:
            queues = [(c.queue, src) for src, c in inbox.channels.items() if c.queue]
            waiting = [(queue[0][1] or task.clock, src) for queue, src in queues]
            arrival, src = min(waiting, default=(None, None))
            # If no other task has an earlier clock, no message can arrive earlier than this one.
            if waiting and not scheduler.earlier_than(max(arrival, task.clock)):
                break
            inbox.waiting_for_any = task
            if waiting:
                scheduler.wake(task, arrival)
            scheduler.block("a message from any rank, tag " + str(tag))
            inbox.waiting_for_any = None
        out = np.empty(inbox.channels[src].queue[0][0].nbytes, np.uint8)
        self.irecv(out, src, tag).wait()
        return src, out

    def subgroup(self, ranks):
        ranks = check_ranks(self, ranks)
        if self.rank not in ranks:
            return None
        # A name is (the parent's name, ranks, number of groups). So all members compute the same
        # name without a message.
        count = self._subgroups[ranks] = self._subgroups.get(ranks, 0) + 1
        world_ranks = tuple(self.ranks[r] for r in ranks)
        name = (self._name, ranks, count)
        return SimTransport(self._network, name, world_ranks, ranks.index(self.rank))

    def entering(self, fn, args, kwargs):
        """Compares the 29-bit code of this call (call_code.py) with the code of the first rank that
        began this collective. Under MPI the ranks compare tags instead. This method sends nothing,
        so it returns ()."""
        self._n_collectives += 1
        code = current_code()
        seen = self.board.setdefault(("code", self._n_collectives), [code, self.rank, 0])
        check_code(self, seen[1], code, seen[0], current_label())
        seen[2] += 1
        if seen[2] == self.size:
            del self.board["code", self._n_collectives]
        return ()

    def together(self, fn, chunk, args):
        return self._network.lockstep.arrive(self, fn, chunk, args)

    def spawn(self, fn, *args):
        s = self._scheduler
        self._network.lockstep.release()  # from now on tasks share ports, so their order matters
        return Handle(s, s.start(self.world_rank, s.current.clock, fn, *args, spawned=True))

    def event(self):
        return Event(self._scheduler)

    def time(self):
        return self._scheduler.current.clock

    def shared(self, n_bytes):
        if n_bytes not in self._windows:
            links, me = self._network.links, self.world_rank
            if len({links.node_of(rank) for rank in self.ranks}) > 1:
                raise NoSharedMemory(
                    f"rank {self.rank}: a shared window needs all ranks of its group on one node; "
                    f"got ranks {self.ranks} of {links}. Use t.subgroup(ranks of a node).")
            windows = self._group.windows
            if n_bytes not in windows:
                windows[n_bytes] = [np.zeros(HEADER + n_bytes, np.uint8) for _ in self.ranks]
            betas = [links.link(peer, me).beta for peer in self.ranks]
            self._windows[n_bytes] = Messages(self, windows[n_bytes], betas, self._advance)
        return self._windows[n_bytes]

    def _advance(self, seconds):
        self._scheduler.current.clock += seconds

    def compute(self, seconds):
        self._scheduler.current.clock += seconds * self._slowdown

    def pause(self, seconds):
        task = self._scheduler.current
        self._scheduler.wake(task, task.clock + seconds)
        self._scheduler.block("its turn")
        task.clock += seconds

    def _open(self, channels, peer, tag):
        """Returns the network.Channel to a peer or from a peer. Stores it in `channels`, so that
        the next call is faster."""
        sending = channels is self._outgoing
        check_peer(self, peer, "dst" if sending else "src")
        src, dst = (self.rank, peer) if sending else (peer, self.rank)
        channel = self._group.channel(src, dst, tag)
        channels[peer, tag] = channel
        return channel

    def _open_pair(self, dst, src, tag):
        """Returns a tuple of all objects that sendrecv needs for these ranks and this tag. Stores
        the tuple, so that the next sendrecv is faster."""
        outgoing = self._open(self._outgoing, dst, tag)
        incoming = self._open(self._incoming, src, tag)
        limit = -1 if self._network.shared_nic else self._network.rendezvous_bytes
        link = (outgoing.leaves, limit, outgoing.alpha, outgoing.beta, incoming.beta)
        pair = (self._scheduler, *link, outgoing, incoming, incoming.queue)
        self._pairs[dst, src, tag] = pair
        return pair
