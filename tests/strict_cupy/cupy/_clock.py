"""The simulated time of devices, and the host's beside it, both in seconds.

    host     time.perf_counter(), and all that it would have waited for devices, had they been real
    device   a piece of work takes what `seconds_of` says: 2 us and its bytes at 1 TB/s; events
             have the device's own clock, `pace` times as fast as the host's

    with stand_in.device_time(lambda kernel, n_bytes: 1e-4, pace=1 + 1e-5) as ran:
        ...
    ran     [(kernel, device, stream, begin, end)] of the project's kernels, by stand_in.host_s
"""

import time
from contextlib import contextmanager

import numpy as np


class _Settings:
    waited_s, pace, ran, seconds_of = 0.0, 1.0, None, None


def host_s():
    """The host's clock."""
    return time.perf_counter() + _Settings.waited_s


def host_waits(until_s):
    """The host waits until then."""
    _Settings.waited_s += max(0.0, until_s - host_s())


def seconds_of(name, n_bytes):
    """How long a kernel takes; name None: one of CuPy's own, or a copy."""
    if _Settings.seconds_of is not None and name is not None:
        return _Settings.seconds_of(name, n_bytes)
    return 2e-6 + n_bytes / 1e12


def note(name, *where_and_when):
    if _Settings.ran is not None and name is not None:
        _Settings.ran.append((name, *where_and_when))


def elapsed_ms(begin_s, end_s):
    ms = 1e3 * _Settings.pace * (end_s - begin_s)
    return float(np.float32(round(2000 * ms) / 2000))


@contextmanager
def device_time(seconds_of=None, pace=1.0):
    """seconds_of(kernel, bytes of its arrays), and how fast the devices' clocks go."""
    before = _Settings.seconds_of, _Settings.pace, _Settings.ran
    _Settings.seconds_of, _Settings.pace, _Settings.ran = seconds_of, pace, []
    try:
        yield _Settings.ran
    finally:
        _Settings.seconds_of, _Settings.pace, _Settings.ran = before
