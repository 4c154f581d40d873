"""Remote calls: run a function on another rank, and get the function's result or error later.

The plain form, one server that asks its clients in turn: minidl/plain/rpc.py. In this file every
rank serves and calls, in any order, and calls may be nested. If a rank stops, it sends a message
about this to the other ranks.

    def pull():                       rank 1   --- call(0, "pull") ---- future.wait() -> weights ---
        return weights                                  |                 ^
                                                        v                 |
    with rpc.Service(t, pull=pull) as service:        pull() -> weights --'
        weights = service.call(0, "pull").wait()      in rank 0's serving task

Every rank offers functions by name. A rank may call the functions of any rank, also its own. A call
sends the name and the arguments. If all ranks do the same at the same time, a collective is faster.

1. One task of each rank, the serving task, runs the calls of other ranks. It runs one call at a
   time, in the order of arrival. So served functions need no locks against each other. While a
   function computes, the serving task receives nothing: no calls, and no replies.
2. A served function may call another rank and wait. During this wait the function's rank serves
   other calls, so ranks may call each other in circles. Each nested call takes stack space, so at
   most 50 nested calls are allowed.
3. If a served function makes calls itself, its result is sent after all these calls have ended.
4. If the function fails on the other rank, `wait` raises RemoteError, with the traceback of the
   other rank. If the program does not call `wait`, the error is raised at the end of the `with`
   block. If a served function made the call, the error is raised at the end of this function.
5. The `with` block ends when all ranks have reached its end. Until then every rank serves. If a
   rank leaves the block by an exception, it tells the other ranks. Then all calls to this rank fail
   at once.

The parameter server (parallel/server/) uses framing.py, but not this file, for two reasons. First,
the server may answer a pull later, after pushes of other workers. In this file the answer is sent
when the served function ends. Second, the server sends arrays without a function's name and without
a copy, also to a GPU. So the server sends exactly as many bytes as the formula in server.py gives.

A message is a header and an object. The header has the kind of the message and the number of the
call (framing.py). objects.py packs the object. call() copies the arrays in its arguments before it
returns. The receiver may change the arrays that it gets.

Source: Birrell & Nelson 1984.   Test: tests/comm/test_rpc.py
Time: 2 alpha + (bytes of the call + bytes of the reply) beta, if neither rank is busy
"""

import contextvars
import itertools
import threading
import traceback

import numpy as np

from minidl.comm import framing, objects
from minidl.comm.checks import check_peer
from minidl.comm.transport.background import Background

CALL, RESULT, ERROR, LEFT = range(4)
POLL_S = 1e-3  # seconds between two checks for the answer, if wait() has a time limit
DEEPEST = 50  # the limit for nested calls: each call takes 10 of Python's 1,000 stack frames

_frame = contextvars.ContextVar("the served call that is running")


class RemoteError(RuntimeError):
    """A call failed on the other rank, or the other rank does not serve any more.

    rank: the other rank, in the service's group. remote_traceback: the traceback of the other rank,
    as text."""

    def __init__(self, message, rank, remote_traceback):
        super().__init__(message, rank, remote_traceback)
        self.rank, self.remote_traceback = rank, remote_traceback

    def __str__(self):
        return f"{self.args[0]}\n\non rank {self.rank}: {self.remote_traceback.rstrip()}"


class Service:
    """Offers functions of this rank, and calls functions of other ranks. All ranks of t must make a
    Service.

    functions: {name: function}, as keyword arguments. The service runs calls of other ranks from
    the beginning of the `with` block. In `with Service(...) as service:`, a function may be called
    before Python sets the variable `service`. If a function uses this variable, write
    `service = Service(...)` first, then `with service:`."""

    def __init__(self, t, **functions):
        # Messages are sent in the background. If the serving task waited until the other rank has
        # received a large reply, two ranks that reply to each other would wait for ever.
        self._background = Background(t)
        self._t = self._background.transport
        self.rank, self.size = t.rank, t.size
        self._functions = functions
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # for values that the caller and the serving task change
        self._pending = {}  # number of a call -> its Future, until it is answered
        self._left = {}  # rank whose block has ended -> None, or the traceback of the exception
        # _open: True inside the block. _reason: the traceback of the exception that ended the block
        self._open, self._reason = False, None
        self._main = _Frame(self)
        self._serving = None  # the serving task, once the block has begun

    def call(self, rank, name, /, *args, **kwargs):
        """Runs the function that `rank` offers as `name`. Returns a Future at once.

        args, kwargs: any objects that Python can pickle. Raises RuntimeError outside of the
        service's `with` block."""
        check_peer(self, rank, "the rank to call")
        frame = _frame.get(None)
        if frame is None or frame.service is not self:
            frame = self._main
        future = Future(next(self._numbers), frame, rank, name, self._t.event())
        body = objects.pack((name, args, kwargs))
        with self._lock:
            if self._reason or (frame is self._main and not self._open):
                raise RuntimeError(f"rank {self.rank}: wanted calls inside the `with` block of the "
                                   f"Service; got a call of {name}() on rank {rank} outside of it.")
            frame.open[future.number] = future
            reason = self._left.get(rank)
            if reason is None:
                self._pending[future.number] = future
                self._send("rpc.call", rank, CALL, future.number, body)
        if reason is not None:
            future._fail(_stopped(future, reason))
        return future

    def __enter__(self):
        if self._serving is not None:
            raise RuntimeError(f"rank {self.rank}: a Service serves only one `with` block; got a "
                               "second block. Make a new Service for each block.")
        self._open = True
        self._serving = self._t.spawn(self._serve)
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            # The other ranks may never answer. This rank sends them the error, and does not wait.
            self._leave("".join(traceback.format_exception(kind, error, trace)))
            return
        try:
            self._main.wait_for_all()
        except BaseException:
            self._leave(traceback.format_exc())
            raise
        self._leave(None)
        self._serving.wait()
        self._background.close()

    def _leave(self, reason):
        body = objects.pack(reason)
        with self._lock:
            self._open, self._reason = False, reason
            for dst in range(self.size):
                self._send("rpc.left", dst, LEFT, 0, body)

    def _send(self, label, dst, kind, number, body):
        with self._t.named(label):
            self._background.submit(framing.send, dst, kind, number, 0, body)

    # -- the serving task

    def _serve(self):
        try:
            # If this rank's block has ended by an exception, this task still receives the answers
            # that are on their way.
            while len(self._left) < self.size or self._pending:
                self._serve_one()
        except Exception as error:
            for future in list(self._pending.values()):
                future._fail(error)
            raise

    def _serve_one(self):
        """Receives a message. If it is a call of another rank, runs the call and sends the reply.
        If it is a reply, completes the Future of this rank's call. The message may also tell that a
        rank has left its `with` block by an exception. Then the open calls to that rank fail."""
        src, kind, number, _, n_bytes = framing.recv(self._t, "rpc.serve")
        body = framing.recv_body(self._t, src, n_bytes, np.uint8, "rpc.serve")
        if kind == CALL:
            if self._reason is None:
                kind, reply = self._run(body)
                with self._lock:
                    if self._reason is None:  # otherwise src gets the message LEFT
                        self._send("rpc.reply", src, kind, number, reply)
        elif kind == LEFT:
            reason = objects.unpack(body)
            with self._lock:
                self._left[src] = reason
                lost = [f for f in self._pending.values() if reason and f.rank == src]
                for future in lost:
                    del self._pending[future.number]
            for future in lost:
                future._fail(_stopped(future, reason))
        else:
            with self._lock:
                future = self._pending.pop(number)
            try:
                value = objects.unpack(body)
            except Exception as error:  # the result cannot be unpickled: wait() raises this error
                future._fail(error)
                return
            if kind == ERROR:
                what, trace = value
                text = f"rank {self.rank}: {future.name}() on rank {src} raised {what}"
                future._fail(RemoteError(text, src, trace))
            else:
                future._result = value
                future.frame.open.pop(future.number)
                future._event.set()

    def _run(self, body):
        """Runs the call in `body`, a packed object. Returns (RESULT or ERROR, the body of the
        reply)."""
        outer = _frame.get(None)
        frame = _Frame(self, 1 if outer is None else outer.depth + 1)
        token = _frame.set(frame)
        try:
            if frame.depth > DEEPEST:
                raise RecursionError(f"rank {self.rank}: wanted at most {DEEPEST} nested calls; "
                                     f"got {frame.depth}. Does a function call "
                                     "itself, through other ranks, without end?")
            name, args, kwargs = objects.unpack(body)
            if name not in self._functions:
                raise LookupError(
                    f"rank {self.rank} offers {', '.join(self._functions) or 'no function'}; got a "
                    f"call of {name}()")
            try:
                result = self._functions[name](*args, **kwargs)
            finally:
                frame.wait_for_all()
            return RESULT, objects.pack(result)
        except (Exception, SystemExit) as error:
            what = traceback.format_exception_only(error)[-1].strip()
            # Removes the line of this function from the traceback.
            error.__traceback__ = error.__traceback__.tb_next
            trace = "".join(traceback.format_exception(error))
            # The error's text contains the text of the nested call's error twice. With n nested
            # calls the text would grow as 2**n, so the text is cut.
            return ERROR, objects.pack((what[-1000:], trace[-20_000:]))
        finally:
            _frame.reset(token)


class Future:
    """The result of a call, which may come later. wait() returns it."""

    def __init__(self, number, frame, rank, name, event):
        self.number, self.frame, self.rank, self.name = number, frame, rank, name
        self._event = event
        self._result = self._error = None

    def wait(self, timeout_s=None):
        """Returns the function's result. Raises RemoteError if the function failed.

        timeout_s: TimeoutError is raised after this many seconds. The call continues, and you may
        call wait() again. Inside a served function timeout_s is ignored, because there wait()
        serves other calls."""
        running = _frame.get(None)
        if running is not None and running.service is self.frame.service:
            while not self.done():  # this is the serving task, which receives the answer
                running.service._serve_one()
        self._wait_for(timeout_s)
        if self._error is None:
            return self._result
        self.frame.open.pop(self.number, None)
        raise self._error

    def _wait_for(self, timeout_s):
        if timeout_s is None:
            self._event.wait()
            return
        t = self.frame.service._t
        until = t.time() + timeout_s
        while not self.done():
            if t.time() >= until:
                raise TimeoutError(
                    f"rank {t.rank}: wanted the result of {self.name}() on rank {self.rank} within "
                    f"{timeout_s:g} s; got no result yet. Is that rank busy or stopped? Wait "
                    "again, or call with a longer timeout_s.")
            t.pause(POLL_S)

    def done(self):
        """Returns True if wait() would return at once."""
        return self._event.is_set()

    def _fail(self, error):
        self._error = error
        self._event.set()


class _Frame:
    """The open calls that were made in the block of a Service, or in one run of a served function.
    """

    def __init__(self, service, depth=0):
        self.service, self.depth = service, depth
        self.open = {}  # number -> Future without an answer, or with an error not yet raised

    def wait_for_all(self):
        """Waits for all open calls. If calls have failed, raises the first error."""
        errors = []
        for future in list(self.open.values()):
            try:
                future.wait()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _stopped(future, reason):
    return RemoteError(
        f"rank {future.frame.service.rank}: wanted the result of {future.name}() on rank "
        f"{future.rank}; got none, because that rank left its Service by an exception. Repair that "
        "exception first.",
        future.rank, reason)
