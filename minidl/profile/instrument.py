"""Wraps functions while a profile runs, to measure their times. Otherwise nothing is wrapped.

It wraps forward and backward of every Function, and the methods in TAPS, at the end of this file.
Collectives are not wrapped: comm/collective.py reads `timeline.recording` once in each call. A
wrapper reads `timeline.recording`, too. If the value is None, this task is not profiled, and the
wrapper only calls the function.

Test: tests/profile/test_record.py   Used by: record.py
"""

import functools
import importlib
import threading
from contextlib import contextmanager

import numpy as np

from minidl import backend
from minidl.comm.labels import current_code
from minidl.comm.transport.protocol import Request, Then
from minidl.forward import op_name
from minidl.function import Function
from minidl.timeline import recording

_lock = threading.Lock()
# _users: one object for each profile that runs. _undo: functions that remove the wrappers.
_users, _undo = [], []


@contextmanager
def applied():
    """A `with` block in which functions are wrapped. Several such blocks may run at the same time:
    each simulated rank has one. The wrappers are removed when the last block ends."""
    me = object()
    with _lock:
        if not _users:
            _apply()
        _users.append(me)
    try:
        yield
    finally:
        with _lock:
            _users.remove(me)
            while not _users and _undo:
                _undo.pop()()


def _apply():
    for cls in _all(Function):
        _wrap_function(cls)
    before = vars(Function)["__init_subclass__"]

    def wrap_later(cls, **options):  # wraps a class that is defined during a profile
        before.__func__(cls, **options)
        _wrap_function(cls)

    Function.__init_subclass__ = classmethod(wrap_later)
    _undo.append(lambda: setattr(Function, "__init_subclass__", before))
    for where, cls, method, tap in TAPS:
        module = importlib.import_module(f"minidl.{where}")
        for owner in _all(getattr(module, cls), itself=True) if cls else [module]:
            if method in vars(owner):
                _wrap(owner, method, tap)


def _all(cls, itself=False):
    found = [cls] if itself else []
    for sub in cls.__subclasses__():
        found += _all(sub, itself=True)
    return list(dict.fromkeys(found))


def _wrap(owner, name, tap):
    method = vars(owner)[name]
    setattr(owner, name, functools.wraps(method)(tap(method)))
    _undo.append(lambda: setattr(owner, name, method))


def _tap(body):
    """Returns a decorator for a method. In a profiled task, a call of the decorated method calls
    body(lane, method, *args) instead."""
    def tap(method):
        def run(*args, **options):
            lane = recording.get()
            if lane is None:
                return method(*args, **options)
            return body(lane, method, *args, **options)

        return run

    return tap


def _timed(kind, name):
    return _tap(lambda lane, method, *args, **options: lane.timed(
        kind, name, method, *args, **options))


# -- operators, modules, kernels


def _wrap_function(cls):
    for phase in ("forward", "backward"):
        method = getattr(cls, phase)
        if hasattr(method, "__wrapped__") or method is getattr(Function, phase):
            continue  # the method is inherited from a class that is wrapped
        if phase not in vars(cls):  # the method is inherited from a class that is not a Function
            setattr(cls, phase, method)
            _undo.append(functools.partial(delattr, cls, phase))
        _wrap(cls, phase, functools.partial(_operator, phase))


def _operator(phase, method):
    get, names, is_forward = recording.get, {}, phase == "forward"

    def run(self, *arrays, **options):
        lane, cls = get(), type(self)
        # if an operator calls its base class's forward, the inner call is not a span
        if lane is None or getattr(getattr(cls, phase), "__wrapped__", None) is not method:
            return method(self, *arrays, **options)
        clock, done = lane.clock, None if self.xp is np else lane.watch()
        start = clock()
        result = method(self, *arrays, **options)
        if lane.synchronize and self.xp.__name__ == "cupy":
            self.xp.cuda.get_current_stream().synchronize()
        end = clock()
        name = names.get(cls) or names.setdefault(cls, op_name(cls))
        if is_forward:
            y = result[0] if type(result) is tuple else result
            shapes = [(x.shape, x.dtype) if hasattr(x, "shape") else None for x in arrays]
            detail = shapes, getattr(y, "shape", ()), self.needs, getattr(self, "is_causal", False)
            self.tapped = lane.module, detail
        module, detail = getattr(self, "tapped", NOTHING_KNOWN)
        lane.add((phase, name, start, end, module, detail))
        if done is not None:
            done(phase, name, module, detail)
        return result

    return run


NOTHING_KNOWN = "", ([], (), (), False)  # for an operator whose forward ran before the profile


# The next two wrappers do not use `_tap`, to be faster: a step calls them a hundred times.


def _module(method):
    get = recording.get

    def run(module, *inputs, **options):
        lane = get()
        if lane is None:
            return method(module, *inputs, **options)
        before, name = lane.module, lane.names.get(module)
        if name is None:  # the outermost module knows the names of all its modules
            name = type(module).__name__
            lane.names |= {m: path or name for path, m in module.named_modules()}
            if lane.profile.model is None:
                lane.profile.model = module
                lane.profile.mark_memory()
        lane.module = name
        start = lane.clock()
        try:
            return method(module, *inputs, **options)
        finally:
            lane.add(("module", name, start, lane.clock(), name, None))
            lane.module = before

    return run


def _kernel(method):
    get = recording.get

    def run(kernel, grid, block, args, **options):
        lane = get()
        if lane is None:
            return method(kernel, grid, block, args, **options)
        done = None if backend.xp_of(args) is np else lane.watch()
        start = lane.clock()
        try:
            return method(kernel, grid, block, args, **options)
        finally:
            span = kernel.name or kernel.path.stem, lane.module, _bytes_of(args)
            kind = "kernel" if done is None else "launch"
            lane.add((kind, span[0], start, lane.clock(), *span[1:]))
            if done is not None:
                done("kernel", *span)

    return run


def _bytes_of(args):
    """Returns the number of bytes of all arrays in args together. If one of these arrays is a table
    of addresses, returns None, because the sizes of the arrays at these addresses are not known."""
    n_bytes = 0
    for a in args:
        if type(a) not in NUMBERS and a.ndim:
            if a.dtype == UINT64:
                return None
            n_bytes += a.nbytes
    return n_bytes


NUMBERS, UINT64 = {int, float, bool, type(None)}, np.dtype(np.uint64)


# -- input, optimizer


@_tap
def _batches(lane, method, *args, **options):
    return timed_input(iter(method(*args, **options)))


def timed_input(batches):
    """Yields the batches unchanged. Each wait for a batch is recorded as a span."""
    end = object()
    while True:
        lane = recording.get()
        batch = next(batches, end) if lane is None else lane.timed("input", "input", next, batches,
                                                                   end)
        if batch is end:
            return
        yield batch


@_tap
def _step(lane, method, optimizer, *args, **options):
    result = lane.timed("optimizer", "optimizer", method, optimizer, *args, **options)
    profile = lane.profile
    profile.optimizer = optimizer if profile.optimizer is None else profile.optimizer
    if profile.optimizer is optimizer and type(optimizer).step.__wrapped__ is method:
        if not profile.by_hand:
            profile.ended()
    return result


# -- messages


def _message_tap(body):
    """Does the same as `_tap`, for methods of transports. If a method of a transport calls another
    such method to send its message, only the outer call counts."""
    def counted(lane, method, *args, **options):
        if lane.muted:
            return method(*args, **options)
        lane.muted += 1
        try:
            return body(lane, method, *args, **options)
        finally:
            lane.muted -= 1

    return _tap(counted)


def _begin(lane, t, way, peer, n_bytes, tag):
    """Counts a message that begins. Returns a function to call when the message leaves or arrives.

    A key says that this is message number n from src to dst, with this lane, group and tag. So the
    sender and the receiver of a message make the same key. way: "send" or "receive"."""
    if lane.moved is not None:
        lane.moved[way == "receive"] += n_bytes
        lane.moved[2] += way == "send"
        lane.moved[3].add(t.ranks[peer])
    ends = (t.rank, peer) if way == "send" else (peer, t.rank)
    key = lane.name, t.ranks, *ends, tag, bool(current_code()) and not tag
    key = *key, lane.profile.number((way, key))
    note = lane.profile.record.messages.append
    return lambda: note((way, key, lane.clock(), n_bytes))


def _wait(lane, name, method, *args):
    """Calls a method that waits for a message. Outside of a collective, the wait is recorded as a
    span."""
    return method(*args) if lane.moved is not None else lane.timed("message", name, method, *args)


class _Timed(Request):
    """A Request that records how long its wait takes."""

    def __init__(self, lane, request):
        self.lane, self.request = lane, request

    def wait(self):
        return _wait(self.lane, "wait for a message", self.request.wait)


@_message_tap
def _isend(lane, method, t, array, dst, tag=0):
    _begin(lane, t, "send", dst, array.nbytes, tag)()
    return _Timed(lane, method(t, array, dst, tag))


@_message_tap
def _irecv(lane, method, t, into, src, tag=0):
    arrived = _begin(lane, t, "receive", src, into.nbytes, tag)
    return Then([_Timed(lane, method(t, into, src, tag))], arrived)


@_message_tap
def _sendrecv(lane, method, t, array, dst, into, src, tag=0):
    _begin(lane, t, "send", dst, array.nbytes, tag)()
    arrived = _begin(lane, t, "receive", src, into.nbytes, tag)
    _wait(lane, "sendrecv", method, t, array, dst, into, src, tag)
    arrived()
    return into


@_message_tap
def _recv_any(lane, method, t, tag=0):
    src, data = _wait(lane, "recv_any", method, t, tag)
    _begin(lane, t, "receive", src, data.nbytes, tag)()
    return src, data


@_tap
def _window(lane, method, window, peer, n_read, n_given):
    if lane.moved is not None:
        lane.moved[0] += n_given
        lane.moved[1] += n_read
    return method(window, peer, n_read, n_given)


# -- other tasks of this rank


@_tap
def _spawn(lane, method, t, fn, *args):
    name = f"task {lane.profile.number('task')}"

    def run(*args):
        recording.set(lane.beside(name))  # set here, because a task has its own context variables
        return fn(*args)

    return method(t, run, *args)


@_tap
def _submit(lane, method, background, fn, *args):
    if getattr(getattr(background, "lane", None), "profile", None) is not lane.profile:
        n = lane.profile.number("background")
        background.lane = lane.beside("communication" + f" {n}" * (n > 0))
    token = recording.set(background.lane)  # the job copies this context variable
    try:
        job = method(background, fn, *args)
    finally:
        recording.reset(token)
    lane.queued(1)
    return job


def _job_run(method):
    def run(job, failure):
        lane = job._context.get(recording)
        method(job, failure)
        if lane is not None:
            lane.queued(-1)

    return run


TAPS = [  # (file, class with its subclasses or None for a function, method or function, decorator)
    ("nn.module", "Module", "__call__", _module),
    ("cuda.run", "Kernel", "__call__", _kernel),
    ("data.loader", "DataLoader", "__iter__", _batches),
    ("data.text", None, "random_batches", _batches),
    ("optim", "Optimizer", "step", _step),
    ("comm.transport.window", "Window", "moved", _window),
    ("comm.transport.background", "Background", "submit", _submit),
    ("comm.transport.background", "Job", "wait", _timed("wait", "background communication")),
    ("comm.transport.background", "Job", "_run", _job_run),
    ("memory.offload", "Host", "_store", _timed("offload", "offload")),
    ("memory.offload", "Host", "wait", _timed("offload", "offload")),
    ("snapshot.snapshot", None, "take", _timed("snapshot", "take")),
    ("snapshot.snapshot", None, "write", _timed("snapshot", "write")),
    ("snapshot.snapshot", None, "put", _timed("snapshot", "load")),
    *((f"comm.transport.{file}", cls, method, tap)
      for file, cls in (("mpi", "MPITransport"), ("sim", "SimTransport"))
      for method, tap in (("isend", _isend), ("irecv", _irecv), ("sendrecv", _sendrecv),
                          ("recv_any", _recv_any), ("spawn", _spawn))),
]
