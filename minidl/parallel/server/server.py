"""The parameter server: some ranks hold the parameters, and the others compute gradients.

The plain form: minidl/plain/parameter_server.py. Here there are several servers. Workers ask in any
order, and a Rule decides which worker waits. Servers and workers may fail.

    server 0   [w1 b1]  version 7 --8---9--        worker: pull, compute, push, pull, ...
    server 1   [w2   ]  version 7 --8---9--
                 pull | ^ push                     staleness of a push: how many updates the server
    worker 2   ===7===' |                          made since this worker pulled. Here the worker
    worker 3   ==7========' staleness 1            that pushes second has staleness 1.

Ranks 0, ..., S-1 are servers, the other N are workers (worker.py). Each server holds whole tensors
(shards.py), with its own version counter and optimizer. Servers do not communicate with each other.
A Rule decides when a push is applied and which worker may pull: SYNC, ASYNC, bounded(s) or GEO
(rules.py).

    if t.rank < 2:
        print(Server(t, params, 2, SYNC, lambda shard: optim.SGD(shard, lr=0.1)).serve())
    else:
        with Worker(t, params, 2) as worker: ...

Bytes: the weights have K bytes. In a step each of the N workers pulls K bytes and pushes K bytes,
so the link of a single server carries 2 N K bytes. A rank of a ring sends 2 (N-1)/N K bytes.
Headers (framing.py) are separate messages: two for a pull (request and reply), one for a push, and
one for leaving. The labels in a ledger are param_server.pull, .push, .header. If an embedding is
too large to be sent completely, use tables.py.

Failures: if a worker ends by an exception, it sends the exception to the servers. A worker that is
silent for `silence_s` seconds is dropped. All rules except SYNC then go on without this worker.
With `slower` these rules also go on without a straggler: with bounded(s), workers wait only for
workers that are not slow. If a server fails, it answers each pull with its rank and its error,
and this ends the job. (If a process is killed, mpiexec ends the other processes.) A server needs no
locks, because it handles one message at a time, in the order of arrival. In the simulator this is
the order of modelled time.

Source: Li et al. 2014 (OSDI), "Scaling distributed machine learning with the parameter server".
Test: tests/parallel/server/test_server.py, test_failures.py
Tutorial: tutorials/10_parameter_server.py
"""

import math
import time
from collections import Counter

from minidl.comm import framing, objects
from minidl.comm.observe import stragglers
from minidl.parallel.server.rules import lead
from minidl.parallel.server.shards import GRANTED, LEAVE, PUSH, REFUSED, TICK, check, recv_text


class WorkerLost(RuntimeError):
    """Raised on a server if a worker has failed and the rule needs all workers."""


class Server:
    """One server rank. serve() returns when all workers have left.

    params      all parameters of the model, in the same order on all ranks. This server holds and
                updates its own part, `shard`. Training starts from the servers' values
    rule        SYNC, ASYNC, bounded(s) or GEO
    optimizer   a function of a list of tensors that returns an optimizer. For GEO it must be None
    silence_s   the server drops a worker that sends no request for this many seconds. A worker
                that is waiting for this server is not dropped. With None no worker is dropped
    slower      a number k. A worker is slow if its last step, from pull to push, took k times the
                median or more. No other worker waits for a slow worker. A slow worker gets the
                newest weights, and counts as a worker that is not behind. Its push is used, unless
                it is staler than the rule allows. `slower` does not work with SYNC. With None all
                workers wait for slow workers, too

    All ranks must pass the same arguments. Raises ValueError for arguments that do not fit."""

    def __init__(self, t, params, n_servers, rule, optimizer=None, silence_s=None, slower=None):
        self.shard = check(t, params, n_servers)[t.rank]
        self.t = t.subgroup(range(t.size))  # a copy of t: messages to the copy never arrive on t
        self.rule, self.silence_s = rule, silence_s
        if (optimizer is None) != rule.differences:
            raise ValueError(f"rank {t.rank}: the rule {rule.name} wants "
                             + ("optimizer=None" if rule.differences else "an optimizer")
                             + f"; got {'no' if optimizer is None else 'an'} optimizer")
        if slower is not None and (slower <= 1 or not rule.goes_on):
            raise ValueError(f"rank {t.rank}: slower= wants a number above 1, and a rule that does "
                             "not wait for all workers (SYNC waits for all workers); got "
                             f"slower={slower}, rule {rule.name}")
        self.slower, self.slow = slower, frozenset()  # workers that no other worker waits for
        # granted: {worker: time of its last pull}. step_s: {worker: seconds of its last step}
        self.granted, self.step_s = {}, {}
        self.dropped = dict.fromkeys(range(n_servers, t.size), 0)  # pushes that were too stale
        self.optimizer = optimizer(self.shard.params) if optimizer and self.shard.params else None
        workers = range(n_servers, t.size)
        self.version = 0
        self.clocks = dict.fromkeys(workers, 0)  # pushes of each worker that is still here
        self.inbox = {}  # {worker: (values, samples)} of pushes that are not applied yet
        self.waiting = set()  # workers that asked to pull, but may not pull yet
        self.replies = {}  # worker -> send requests of its last reply, which keep the array alive
        # for each push: (worker, version that the worker had pulled, version when the push came,
        # time)
        self.log = []
        # {worker: the largest number of steps that it was ahead when it pulled}
        self.leads = {worker: 0 for worker in workers}
        self.heard = dict.fromkeys(workers, self.t.time())  # time of the last message of a worker
        # {worker: "here", later "left" or the reason why it was removed}
        self.state = dict.fromkeys(workers, "here")

    def serve(self):
        """Answers the workers until the last one has left. Returns report(). Raises WorkerLost if a
        worker failed and the rule needs all workers. If an update fails, raises its error."""
        ticking = self.t.spawn(self._tick) if self.silence_s else None
        try:
            while self.clocks:
                self._serve_one()
            self._wait_for_replies()
        except Exception as error:
            for worker in self.clocks:
                self._refuse(worker, f"it failed: {type(error).__name__}: {error}")
            for forgotten in (self.clocks, self.inbox, self.waiting):
                forgotten.clear()
            raise
        finally:
            while ticking and self._serve_one() != "last tick":
                pass
        return self.report()

    def update(self, values):
        """Makes one step of the optimizer. values: the gradient of the whole shard, 1-d."""
        for p, part in zip(self.shard.params, self.shard.parts(values)):
            p.grad = part
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.version += 1

    def _serve_one(self):
        """Receives one message and handles it. Returns "last tick" if it is the last message of
        _tick(), else None."""
        src, kind, version, n_samples, n_bytes = framing.recv(self.t, "param_server.header")
        if kind == TICK:
            self._drop_the_silent()
            return "last tick" if n_samples else None
        self.heard[src] = self.t.time()
        if kind == LEAVE:
            self._left(src, n_bytes)
        elif kind == PUSH:
            self._pushed(src, version, n_samples)
        elif src in self.clocks:
            self._wait_for_replies([src])  # does not block, as the worker has its last reply
            self.waiting.add(src)
        self._go_on()

    def _go_on(self):
        """Applies the pushes if the rule allows it now, and answers the workers that may pull."""
        self.rule.apply(self)
        for worker in sorted(self.waiting):
            clocks = self._clocks_for(worker)
            if self.rule.may_pull(clocks, worker):
                self.clocks[worker], self.granted[worker] = clocks[worker], self.t.time()
                self.leads[worker] = max(self.leads[worker], lead(clocks, worker))
                self.waiting.remove(worker)
                values = self.shard.pack([p.array for p in self.shard.params])
                self._reply(worker, GRANTED, values, "param_server.pull")
        if self.clocks and len(self.waiting) == len(self.clocks):
            raise RuntimeError(
                f"rank {self.t.rank}: all workers wait, because the rule {self.rule.name} lets no "
                "worker pull. A rule must let the slowest worker pull. The number of pushes of "
                f"each worker: {self.clocks}")

    def _clocks_for(self, worker):
        """Returns {worker: number of its pushes} for this worker and for the workers that this
        worker may have to wait for."""
        awaited = {w: clock for w, clock in self.clocks.items() if w not in self.slow}
        if worker in awaited:
            return awaited
        return {worker: max(self.clocks[worker], min(awaited.values(), default=0))}

    def _measure(self, src):
        """Measures the time of this worker's last step. Then decides again which workers are slow.
        src: the worker's rank."""
        if self.slower is not None and src in self.granted:
            self.step_s[src] = self.t.time() - self.granted[src]
            here = {worker: s for worker, s in self.step_s.items() if worker in self.clocks}
            self.slow = frozenset(stragglers.slower(here, self.slower))

    def _pushed(self, src, version, n_samples):
        """Receives a push, and puts it into the inbox. If the push is too stale, drops it."""
        shard = self.shard
        values = framing.recv_body(self.t, src, shard.n_elems, shard.dtype, "param_server.push",
                                   shard.xp)
        if src not in self.clocks:
            return  # this worker was dropped earlier
        if src in self.inbox:
            raise RuntimeError(f"rank {self.t.rank}: the rule {self.rule.name} wants one push of "
                               f"each worker in a step; got two pushes of worker {src}. Call "
                               "pull() between two pushes")
        self._measure(src)
        most = self.rule.stalest(len(self.state)) if self.slower and self.rule.stalest else math.inf
        if self.version - version > most:
            self.dropped[src] += 1
            return
        self.inbox[src] = values, n_samples
        self.log.append((src, version, self.version, self.t.time()))
        self.clocks[src] += 1

    # -- replies

    def _reply(self, worker, kind, body, label):
        """Starts to send a reply, and does not wait until it has arrived. So a slow worker does not
        delay the other workers."""
        requests = framing.isend(self.t, worker, kind, self.version, 0, body, label)
        self.replies.setdefault(worker, []).extend(requests)

    def _refuse(self, worker, why):
        text = f"the server on rank {self.t.rank} does not answer this worker any more: {why}"
        self._reply(worker, REFUSED, objects.pack(text), "param_server.refused")

    def _wait_for_replies(self, workers=None):
        """Waits until these workers have received their replies. By default waits for all workers
        that left without an error."""
        if workers is None:
            workers = [worker for worker, state in self.state.items() if state == "left"]
        for worker in workers:
            for request in self.replies.pop(worker, ()):
                request.wait()

    # -- workers that leave, fail, or are silent

    def _left(self, src, n_bytes):
        reason = recv_text(self.t, src, n_bytes, "param_server.left")
        if src in self.clocks:
            self._remove(src, reason)

    def _remove(self, worker, reason):
        """Removes a worker. The server goes on without this worker. reason: why the worker failed,
        or None if the worker has finished. Raises WorkerLost if the worker failed and the rule
        needs all workers."""
        self.state[worker] = reason or "left"
        del self.clocks[worker]
        self.waiting.discard(worker)
        if reason and not self.rule.goes_on:
            raise WorkerLost(
                f"rank {self.t.rank}: worker {worker} is lost ({reason}), but the rule "
                f"{self.rule.name} needs every worker. ASYNC and bounded(s) go on without a lost "
                "worker")

    def _drop_the_silent(self):
        for worker in list(self.clocks):
            silent_s = self.t.time() - self.heard[worker]
            if worker not in self.waiting and silent_s > self.silence_s:
                self._remove(worker, f"silent for {silent_s:.3g} s")
                self._refuse(worker, f"worker {worker} was {self.state[worker]} and is dropped")
        self._go_on()

    def _tick(self):
        """Runs in the background. Sends a message to this server every silence_s / 4 seconds. At
        each message the server drops the workers that are silent."""
        period_s = self.silence_s / 4
        over = False
        while not over:
            due = self.t.time() + period_s
            self.t.compute(period_s)
            while not self.t.simulated and self.clocks and self.t.time() < due:
                time.sleep(min(period_s, 0.02))  # short, as a job that ends waits for it
            over = not self.clocks
            framing.send(self.t, self.t.rank, TICK, 0, over, label="param_server.tick")

    # -- reports about the workers

    def staleness(self, worker=None):
        """Returns {staleness: number of pushes}, for one worker, or for all workers if worker is
        None."""
        return Counter(met - read for who, read, met, _ in self.log if worker in (None, who))

    def report(self):
        """Returns a table of the workers, as text. A slow worker has few pushes, and its pushes are
        very stale."""
        lines = [
            f"server {self.t.rank}: {len(self.shard.params)} tensors, rule {self.rule.name}, "
            f"version {self.version}",
            f"{'worker':>6} {'pushes':>7} {'staleness: mean':>15} {'max':>4} {'most ahead':>10} "
            f"{'s since last push':>17}  state",
        ]
        for worker, state in self.state.items():
            pushes = [(met - read, when) for who, read, met, when in self.log if who == worker]
            stale, times = zip(*pushes) if pushes else ((), ())
            mean = f"{sum(stale) / len(stale):.2f}" if stale else "-"
            most = max(stale, default="-")
            since = f"{self.t.time() - times[-1]:.3g}" if times else "never"
            lines.append(
                f"{worker:>6} {len(stale):>7} {mean:>15} {most:>4} {self.leads[worker]:>10} "
                f"{since:>17}  {state}")
        return "\n".join(lines)
