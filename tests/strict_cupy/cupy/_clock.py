"""The simulated time of the devices and of the host, both in seconds.

    host     time.perf_counter() plus the time that the host would have waited for real devices
    device   a piece of work takes `seconds_of` seconds: 2 us plus its bytes at 1 TB/s. Events use
             the device's own clock, which is `pace` times as fast as the host's

    with stand_in.device_time(lambda kernel, n_bytes: 1e-4, pace=1 + 1e-5) as ran:
        ...
    ran     [(kernel, device, stream, begin, end)] of the project's kernels, in the time of host_s
"""

import time
from contextlib import contextmanager

import numpy as np


class _Settings:
    waited_s, pace, ran, seconds_of = 0.0, 1.0, None, None


def host_s():
    """Returns the host's time."""
    return time.perf_counter() + _Settings.waited_s


def host_waits(until_s):
    """Makes the host's clock wait until that time."""
    _Settings.waited_s += max(0.0, until_s - host_s())


def seconds_of(name, n_bytes):
    """Returns the seconds of a kernel. name None: one of CuPy's own kernels, or a copy."""
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
    """Inside the block, seconds_of(kernel, bytes of its arrays) is the time of a kernel, and pace
    the speed of the devices' clocks. Yields the list of the kernels that ran."""
    before = _Settings.seconds_of, _Settings.pace, _Settings.ran
    _Settings.seconds_of, _Settings.pace, _Settings.ran = seconds_of, pace, []
    try:
        yield _Settings.ran
    finally:
        _Settings.seconds_of, _Settings.pace, _Settings.ran = before
