"""Chooses the simulated task that runs next, keeps the tasks' clocks, and reports a deadlock.

A task is a greenlet (a function that can be paused inside any call) with its own clock. It runs
until it must wait for another task. Then the scheduler looks at the tasks that can run, and runs
the one with the earliest clock. If clocks are equal, the lowest rank runs first. If no task can
run, there is a deadlock. The report shows what each task waits for, and the line of the user's
code.

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
    """No rank can continue. The message shows what each task waits for."""


class RankFailed(RuntimeError):
    """A rank raised an exception. rank: the number of this rank. __cause__: the exception, with its
    traceback."""

    rank = None


class Task:
    """A function of one rank, with its own clock. The function runs, or is paused."""

    __slots__ = (*("rank", "clock", "spawned", "greenlet", "waits_for", "ready_at", "ticket"),
                 *("done", "result", "error", "joiners", "stream"))

    def __init__(self, rank, clock, spawned):
        self.rank, self.clock, self.spawned = rank, clock, spawned
        self.greenlet = self.waits_for = self.result = self.error = None
        self.stream = None  # CuPy's current stream, unless that is the null stream
        self.ready_at = self.ticket = None  # the clock and ticket of the task's entry in the heap
        self.done = False
        self.joiners = []


class Scheduler:
    """Runs the tasks of n ranks. `current` is the running task."""

    def __init__(self, n):
        import greenlet  # imported here, so that `import minidl` is fast

        self._greenlet = greenlet.greenlet
        self._hub = greenlet.getcurrent()
        # A heap of (clock, rank, ticket, task). An entry with an old ticket is ignored.
        self._ready = []
        self._tickets = 0
        self._tasks = []  # started and not finished
        self.failed = []  # spawned tasks with an error that no wait() has raised yet
        self.current = None
        self.n_tasks = [0] * n  # unfinished tasks of each rank
        self.n_spawned = 0  # unfinished tasks that another task spawned
        self.when_stuck = lambda: False  # called if no task can run; returns True if it woke a task

    def start(self, rank, clock, fn, *args, spawned=False):
        """Makes a task that will run `fn(*args)` on this rank, beginning at `clock`. Returns the
        task at once."""
        task = Task(rank, clock, spawned)
        task.greenlet = self._greenlet(lambda: self._body(task, fn, args), parent=self._hub)
        # A rank starts with empty context variables. A spawned task gets a copy of its
        # parent's context variables.
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
        """Runs until every task has ended. Raises RankFailed or Deadlock."""
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
        """Runs the task until it must wait. CuPy has one current stream per thread, and all tasks
        share a thread. So this method gives each task its own stream back."""
        if task.stream is not None:
            task.stream.use()
        task.greenlet.switch()
        if (cupy := sys.modules.get("cupy")) is not None and cupy.cuda.is_available():
            stream = cupy.cuda.get_current_stream()
            task.stream = stream if stream.ptr else None
            if task.stream is not None:
                cupy.cuda.Stream.null.use()

    def stop(self):
        """Ends the unfinished tasks, so that their `finally` blocks run now."""
        self.current = None
        for task in self._tasks:
            try:
                task.greenlet.throw()  # raises GreenletExit where the task waits
            except BaseException:  # an error in a `finally` block must not hide the first error
                pass

    def wake(self, task, clock):
        """Makes a paused task ready to run. It runs after all ready tasks with a clock below a
        limit. The limit is `clock`, or the task's own clock if that is later."""
        clock = max(clock, task.clock)
        if task.ready_at is not None and task.ready_at <= clock:
            return
        self._tickets += 1
        task.ready_at, task.ticket = clock, self._tickets
        heappush(self._ready, (clock, task.rank, self._tickets, task))

    def block(self, operation, peer=None, tag=0):
        """Pauses the current task until wake() is called for it. operation, peer, tag: for the
        deadlock report."""
        task = self.current
        task.waits_for = (operation, peer, tag, current_label())
        self._hub.switch()
        task.waits_for = None

    def earlier_than(self, clock):
        """Returns True if a task with an earlier clock is ready to run."""
        return bool(self._ready) and self._ready[0][0] < clock

    def yield_in_order(self, clock=0.0):
        """Pauses the current task, so that all ready tasks with earlier clocks run first. These
        tasks have a clock below a limit. The limit is the clock of the current task, or `clock` if
        this is later.

        This method is needed only if tasks share a port: tasks of one rank, or ranks with one NIC.
        In other cases the order of the tasks has no effect."""
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
    """Returns file:line of the user's code where a paused task is. If the task runs no code of the
    user, returns the line that submitted its job."""
    submitted = task.gr_context.get(submitted_at)
    if submitted and user_frame(task.gr_frame) is None:
        return spot(*submitted)
    return seen_at(task.gr_frame)


def _failure(task):
    # Unlike str(error), TracebackException adds the suggestions and notes that Python would print.
    said = traceback.TracebackException.from_exception(task.error)
    error = RankFailed(f"rank {task.rank}: {type(task.error).__name__}: {said}")
    error.rank = task.rank
    return error


class Handle(Request):
    """A spawned task. wait() returns the task's result or raises its error. After wait(), the clock
    of the caller is at least the clock of the task."""

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
    """An event. One task sets it once, and other tasks of the same rank wait for it.
    After wait(), the clock of the waiting task is at least the clock of the task that called set().
    """

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
