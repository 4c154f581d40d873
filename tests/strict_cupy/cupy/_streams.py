"""Streams, events, and the order in which they may touch memory.

All work runs at once, except copies into the host's memory. Each access of device memory is
compared with the earlier accesses. If another stream made one of these, an event, a wait of the
host or the null stream must put it before the new access (a clock for each stream, as in Lamport
1978 and in ThreadSanitizer). So a missing order, which a GPU may or may not show, is always an
error here:

    Race   two streams touch the same bytes, one of them writes, and nothing orders them.
           Memory that goes back to CuPy's pool and is allocated again keeps its history.

For copies between the device and pinned memory, a GPU may copy early or late. The stand-in shows
the worse case:

    down   the host's bytes are rubbish (0xEE) after the call, and right after a wait
    up     the bytes are read at the call; a wait checks that the host has not changed them since

Time is simulated, too (_clock.py). A stream begins a piece of work when the host has given it and
all earlier work has ended. A wait of the host lasts until the work has ended, by `_clock.host_s`.
"""

import itertools
import sys
import threading

from cupy import _clock, _count

try:  # a simulated rank is a greenlet, which counts as a thread here
    from greenlet import getcurrent as _task
except ImportError:
    _task = threading.current_thread

N_DEVICES = 4
LOCK = threading.RLock()
_numbers = itertools.count(1)
_host = {}  # {queue number: the last piece of work that the host has waited for}
_pending = []  # (queue number, sequence number, what to do), in the order of the calls


class Race(RuntimeError):
    """Two streams, or a stream and the host, touch the same memory and nothing orders them."""


class Queue:
    """The work of one stream of one device: `n` pieces, and a clock of the work before them."""

    def __init__(self, device, blocking, name):
        self.id, self.device, self.blocking, self.name = next(_numbers), device, blocking, name
        self.n, self.clock, self.over = 0, {}, False  # over: no order with it is needed now
        self.until_s = 0.0  # when all its work has ended

    def tick(self):
        """Returns the number of a new piece of work. It comes after all work that the host has
        waited for."""
        join(self.clock, _host)
        if self.blocking:  # the null stream and blocking streams wait for each other
            for other in _queues[self.device]:
                if other.blocking and other is not self and (self.null or other.null):
                    join(self.clock, other.clock)
                    self.until_s = max(self.until_s, other.until_s)
        self.until_s = max(self.until_s, _clock.host_s())
        self.n += 1
        self.clock[self.id] = self.n
        return self.n

    def works(self, n_bytes, name=None):
        """Sets the time of the last piece of work by its n_bytes. name: the name of a kernel of
        ours."""
        begin = self.until_s
        self.until_s += _clock.seconds_of(name, n_bytes)
        _clock.note(name, self.device, 0 if self.null else self.id, begin, self.until_s)

    @property
    def null(self):
        return self is _queues[self.device][0]


def join(clock, other):
    """Updates clock to the later of both clocks for each queue."""
    for queue, n in other.copy().items():  # copied, because a collected stream removes entries
        if clock.get(queue, 0) < n:
            clock[queue] = n


_left = [[] for _ in range(N_DEVICES)]  # queues of deleted streams whose work has not ended
_queues = [[Queue(i, True, f"the null stream of device {i}")] for i in range(N_DEVICES)]


def host_waits(clock):
    """The host has waited for this clock: its copies arrive."""
    with LOCK:
        join(_host, clock)
        over = [p for p in _pending if _host.get(p[0], 0) >= p[1]]
        _pending[:] = [p for p in _pending if _host.get(p[0], 0) < p[1]]
        for _, _, work in over:
            work()


def later(queue, n, work):
    """Calls work() when the host has waited for piece n of the queue."""
    _pending.append((queue.id, n, work))


# ---- the current device and stream of a thread ----


class _State:
    def __init__(self):
        self.devices, self.streams = [0], [[] for _ in range(N_DEVICES)]


def state():
    """Returns this thread's state. A new thread begins on device 0 and the null stream."""
    task = _task().__dict__
    found = task.get("_strict_cupy")
    if found is None:
        found = task["_strict_cupy"] = _State()
    return found


def current_device():
    return state().devices[-1]


def current_queue():
    s = state()
    device = s.devices[-1]
    stream = s.streams[device][-1] if s.streams[device] else None
    return _queues[device][0] if stream is None or stream._queue is None else stream._queue


def queue_of(stream):
    """Returns the queue of a stream or a stream's address. None is the current stream."""
    if stream is None:
        return current_queue()
    if isinstance(stream, int):
        found = [q for queues in _queues for q in queues if q.id == stream or (
            stream == 0 and q is _queues[current_device()][0])]
        return found[0]
    return stream._queue or _queues[current_device()][0]


class Stream:
    """cupy.cuda.Stream."""

    null = None  # set below

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self._queue, self.device_id, self.priority = None, -1, priority
        self.is_non_blocking, self.ptds, self.ptr = non_blocking, ptds, 0
        if ptds:
            raise NotImplementedError("stand-in: no per-thread default stream")
        if not null:
            self.device_id = current_device()
            self._queue = Queue(self.device_id, not non_blocking, f"stream {next(_numbers)}")
            _queues[self.device_id].append(self._queue)
            self.ptr = self._queue.id

    def __del__(self):
        queue = self._queue
        if queue is None or sys is None or sys.is_finalizing():
            return
        with LOCK:
            _queues[queue.device].remove(queue)
            if _host.get(queue.id, 0) < queue.n:
                _left[queue.device].append(queue)  # its work continues
            else:
                queue.over = True
                for clock in (_host, *(q.clock for queues in _queues for q in queues)):
                    clock.pop(queue.id, None)

    def __eq__(self, other):
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self):
        return self.ptr

    def _check_device(self):
        if self.device_id not in (-1, current_device()):
            raise RuntimeError(f"This stream was created on device {self.device_id}; the current "
                               f"device is {current_device()}")

    @property
    def done(self):
        q = queue_of(self)
        return _host.get(q.id, 0) >= q.n

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def is_capturing(self):
        return False

    def wait_event(self, event):
        if not isinstance(event, Event):
            raise TypeError(f"wait_event wants an Event, got {type(event).__name__}")
        with LOCK:
            q = queue_of(self)
            join(q.clock, event._clock)
            q.tick()
            q.until_s = max(q.until_s, event._at or 0.0)

    def synchronize(self):
        _count.waits("Stream.synchronize")
        synchronize(queue_of(self))

    def use(self):
        self._check_device()
        streams = state().streams[current_device()]
        if streams:
            streams.pop()
        streams.append(self)
        return self

    def __enter__(self):
        self._check_device()
        state().streams[current_device()].append(self)
        return self

    def __exit__(self, *_):
        state().streams[self.device_id if self.device_id >= 0 else current_device()].pop()


Stream.null = Stream(null=True)


def synchronize(queue):
    """Makes the host wait for all work of a queue."""
    with LOCK:
        queue.tick()
        host_waits(queue.clock)
        _clock.host_waits(queue.until_s)


def get_current_stream(device_id=-1):
    streams = state().streams[current_device() if device_id < 0 else device_id]
    return streams[-1] if streams else Stream.null


class Event:
    """cupy.cuda.Event."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self._clock, self._asked, self._at, self._queue, self._n = {}, 0, None, None, 0
        self._timed, self._device = not disable_timing, current_device()

    def record(self, stream=None):
        with LOCK:
            q = queue_of(stream)
            if q.device != self._device:
                raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
            q.tick()
            self._clock, self._at, self._queue, self._n = dict(q.clock), q.until_s, q, q.n

    def synchronize(self):
        _count.waits("Event.synchronize")
        self._wait()

    def _wait(self):
        host_waits(self._clock)
        if self._at is not None:
            _clock.host_waits(self._at)

    @property
    def done(self):
        """Returns True after a wait for the event, or at the hundredth call of done()."""
        self._asked += 1
        if self._asked >= 100:
            self._wait()
        return self._over()

    def _over(self):
        q = self._queue
        return q is None or q.over or _host.get(q.id, 0) >= self._n


def get_elapsed_time(start_event, end_event):
    """Returns the milliseconds between two ended events, to half a microsecond, as a 32-bit float,
    as cudaEventElapsedTime does."""
    events = start_event, end_event
    if not all(isinstance(e, Event) for e in events):
        raise TypeError("get_elapsed_time wants two Events")
    if not all(e._timed and e._at is not None for e in events) or len(
            {e._device for e in events}) > 1:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
    if not all(e._over() for e in events):
        raise CUDARuntimeError("cudaErrorNotReady: device not ready")
    return _clock.elapsed_ms(start_event._at, end_event._at)


class Device:
    """cupy.cuda.Device."""

    def __init__(self, device=None):
        self.id = current_device() if device is None else int(device)
        if not 0 <= self.id < N_DEVICES:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def __int__(self):
        return self.id

    def __index__(self):
        return self.id

    def __enter__(self):
        state().devices.append(self.id)
        return self

    def __exit__(self, *_):
        state().devices.pop()

    def use(self):
        state().devices[-1] = self.id

    @property
    def pci_bus_id(self):
        return f"0000:{self.id:02x}:00.0"

    def synchronize(self):
        _count.waits("Device.synchronize")
        for q in (*_queues[self.id], *_left[self.id]):
            synchronize(q)
        _left[self.id].clear()

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    __hash__ = None  # as in CuPy, it cannot be a key of a dict

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    compute_capability = "90"
    mem_info = (1 << 40, 1 << 40)


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime.CUDARuntimeError."""


# ---- accesses ----


class Access:
    __slots__ = ("lo", "hi", "queue", "n", "write", "where")

    def __init__(self, lo, hi, queue, n, write, where):
        self.lo, self.hi, self.queue, self.n, self.write, self.where = (
            lo, hi, queue, n, write, where)


def touch(log, lo, hi, write, queue, n, what="device memory"):
    """Records that piece n of the queue reads or writes bytes lo..hi of the memory with this log.
    Raises Race if nothing orders it with an earlier access."""
    frame = _count.asker()
    where = (frame.f_code, frame.f_lineno) if frame else None
    if not log:
        log.append(Access(lo, hi, queue, n, write, where))
        return
    keep, found = [], False
    for a in log:
        if _host.get(a.queue.id, 0) >= a.n:
            continue  # the host has waited for it
        if a.lo < hi and lo < a.hi:
            if ((write or a.write) and a.queue is not queue and not a.queue.over
                    and queue.clock.get(a.queue.id, 0) < a.n):
                raise Race(
                    f"{what}: {_count.where(where)} {'writes' if write else 'reads'} it on "
                    f"{queue.name}; {_count.where(a.where)} {'writes' if a.write else 'reads'} it "
                    f"on {a.queue.name}; no event and no wait puts one before the other")
            if write and lo <= a.lo and a.hi <= hi:
                continue  # later accesses are compared with the new one
            if a.lo == lo and a.hi == hi and a.queue is queue and a.write == write:
                a.n, a.where, found = n, where, True
        keep.append(a)
    if not found:
        keep.append(Access(lo, hi, queue, n, write, where))
    log[:] = keep
