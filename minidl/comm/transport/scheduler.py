"""Which simulated task runs next, the clock of each task, and the deadlock report.

A task is a greenlet (a function that can be paused inside any call) with a clock of its own. It
runs until it must wait for another; then the task with the earliest clock runs of those that can,
at equal clocks that of the lowest rank. When none can, the run is in deadlock: the report names
what each task waits for and the line of the user's code.

Test: tests/comm/transport/test_sim.py   Tutorial: exercise 07b of tutorials/07_ring.py
"""

import contextvars
import sys
import traceback
from heapq import heappop, heappush

from minidl.comm.labels import current_label
from minidl.comm.observe.places import seen_at, spot, submitted_at, user_frame
from minidl.comm.observe.waits import arrows, path
from minidl.comm.transport.protocol import Request


class Deadlock(RuntimeError):
    """No rank can go on."""


class RankFailed(RuntimeError):
    """A rank raised; `rank` says which, `__cause__` is its exception with its traceback."""

    rank = None


class Task:
    """A running function of one rank."""

    __slots__ = (*("rank", "clock", "spawned", "greenlet", "waits_for", "ready_at", "ticket"),
                 *("done", "result", "error", "joiners", "stream"))

    def __init__(self, rank, clock, spawned):
        self.rank, self.clock, self.spawned = rank, clock, spawned
        self.greenlet = self.waits_for = self.result = self.error = None
        self.stream = None  # CuPy's current stream, where it is not the null stream
        self.ready_at = self.ticket = None  # its place in the heap, if it is there
        self.done = False
        self.joiners = []


class Scheduler:
    """Runs the tasks of n ranks. `current` is the running task."""

    def __init__(self, n):
        import greenlet  # here: `import minidl` is to be quick

        self._greenlet = greenlet.greenlet
        self._hub = greenlet.getcurrent()
        self._ready = []  # heap of (clock, rank, ticket, task); an old ticket makes an entry void
        self._tickets = 0
        self._tasks = []  # started and not finished
        self.failed = []  # spawned tasks whose error no one has waited for
        self.current = None
        self.n_tasks = [0] * n  # unfinished tasks of each rank
        self.n_spawned = 0  # of them, those that run beside their rank's first
        self.when_stuck = lambda: False  # called where no task can go on: whether now one can

    def start(self, rank, clock, fn, *args, spawned=False):
        """Make a task of `fn(*args)`; it runs when its turn comes."""
        task = Task(rank, clock, spawned)
        task.greenlet = self._greenlet(lambda: self._body(task, fn, args), parent=self._hub)
        # A rank starts with context variables of its own; a spawned task continues its parent's.
        context = contextvars.copy_context() if spawned else contextvars.Context()
        task.greenlet.gr_context = context
        self.n_tasks[rank] += 1
        self.n_spawned += spawned
        self._tasks.append(task)
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
        self.n_tasks[task.rank] -= 1
        self.n_spawned -= task.spawned
        self._tasks.remove(task)
        for joiner in task.joiners:
            self.wake(joiner, task.clock)

    def run(self):
        """Run until every task has ended. Raises RankFailed or Deadlock."""
        while self._ready or self.when_stuck():
            _, _, ticket, task = heappop(self._ready)
            if ticket != task.ticket:
                continue
            task.ready_at = task.ticket = None
            self.current = task
            self._go_on(task)
            if task.error is not None and not task.spawned:
                raise _failure(task) from task.error
        if self.failed:
            raise _failure(self.failed[0]) from self.failed[0].error
        if self._tasks:
            raise Deadlock(self._deadlock_report())

    def _go_on(self, task):
        """Run the task until it must wait. CuPy's current stream is a thread's: so, a task's."""
        if task.stream is not None:
            task.stream.use()
        task.greenlet.switch()
        if (cupy := sys.modules.get("cupy")) is not None and cupy.cuda.is_available():
            stream = cupy.cuda.get_current_stream()
            task.stream = stream if stream.ptr else None
            if task.stream is not None:
                cupy.cuda.Stream.null.use()

    def stop(self):
        """End the tasks that still run, so that their `finally` blocks execute now."""
        self.current = None
        for task in self._tasks:
            try:
                task.greenlet.throw()  # raises GreenletExit where the task waits
            except BaseException:  # errors while cleaning up must not hide the first one
                pass

    def wake(self, task, clock):
        """Let a paused task go on at `clock` or, if that has passed, at its own clock."""
        clock = max(clock, task.clock)
        if task.ready_at is not None and task.ready_at <= clock:
            return
        self._tickets += 1
        task.ready_at, task.ticket = clock, self._tickets
        heappush(self._ready, (clock, task.rank, self._tickets, task))

    def block(self, operation, peer=None, tag=0):
        """Pause the current task until somebody wakes it."""
        task = self.current
        task.waits_for = (operation, peer, tag, current_label())
        self._hub.switch()
        task.waits_for = None

    def earlier_than(self, clock):
        """Whether a task with an earlier clock is ready to run."""
        return bool(self._ready) and self._ready[0][0] < clock

    def yield_in_order(self, clock=0.0):
        """Let ready tasks run first that are earlier than `clock` and the current task's clock.

        Needed while two tasks share a port: tasks of one rank, or ranks of one NIC. Else a task may
        run ahead of the others without any effect on them."""
        task = self.current
        clock = max(clock, task.clock)
        if self.earlier_than(clock):
            self.wake(task, clock)
            self.block("its turn")

    def _deadlock_report(self):
        lines = [f"deadlock: none of the {len(self.n_tasks)} ranks can go on."]
        for task in sorted(self._tasks, key=lambda task: (task.rank, task.spawned)):
            operation, peer, tag, label = task.waits_for
            who = f"rank {task.rank}" + (" (spawned task)" if task.spawned else "")
            what = operation
            if peer is not None:
                ended = "" if self.n_tasks[peer] else " (which has ended)"
                what += f" rank {peer}{ended}, tag {tag}"
            lines.append(f"  {who} waits for {what}, in {label}, at {_line_of(task.greenlet)}")
        ended = [str(rank) for rank, n in enumerate(self.n_tasks) if n == 0]
        if ended:
            lines.append(f"  ended: rank {', '.join(ended)}")
        waits_for = {t.rank: t.waits_for[1] for t in self._tasks if t.waits_for[1] is not None}
        way = path(min(waits_for), waits_for) if waits_for else []
        if len(way) > 1 and way[0] == way[-1]:
            lines.append(f"  wait-for cycle: {arrows(way)}")
        return "\n".join(lines)


def _line_of(task):
    """file:line of the user's code where a paused task is, or by which its job was submitted."""
    submitted = task.gr_context.get(submitted_at)
    if submitted and user_frame(task.gr_frame) is None:
        return spot(*submitted)
    return seen_at(task.gr_frame)


def _failure(task):
    said = traceback.TracebackException.from_exception(task.error)  # complete, as it is shown
    error = RankFailed(f"rank {task.rank}: {type(task.error).__name__}: {said}")
    error.rank = task.rank
    return error


class Handle(Request):
    """A spawned task; wait() gives its result or re-raises, and joins its clock."""

    def __init__(self, scheduler, task):
        self._scheduler, self._task = scheduler, task

    def wait(self):
        scheduler, task, me = self._scheduler, self._task, self._scheduler.current
        if not task.done:
            task.joiners.append(me)
            scheduler.block("the end of a spawned task")
        me.clock = max(me.clock, task.clock)
        if task in scheduler.failed:
            scheduler.failed.remove(task)
        if task.error is not None:
            raise task.error
        return task.result


class Event:
    """Set once, waited for by tasks of the same rank; carries the clock at which it was set."""

    def __init__(self, scheduler):
        self._scheduler, self._waiters, self._clock = scheduler, [], None

    def set(self):
        self._clock = self._scheduler.current.clock
        for task in self._waiters:
            self._scheduler.wake(task, self._clock)
        self._waiters.clear()

    def is_set(self):
        return self._clock is not None

    def wait(self):
        me = self._scheduler.current
        if self._clock is None:
            self._waiters.append(me)
            self._scheduler.block("an event of its own rank")
        me.clock = max(me.clock, self._clock)
