"""Names that only the stand-in has: counters, the error of a missing order, the number of devices.

    from cupy import stand_in
    with stand_in.counting() as count: ...          _count.py
    with pytest.raises(stand_in.Race): ...          _streams.py
    with stand_in.nccl_over(t): ...                 cuda/nccl.py
    with stand_in.device_time(...) as ran: ...      _clock.py; stand_in.host_s: the host's time
"""

from cupy._clock import device_time, host_s  # noqa: F401
from cupy._count import Counts, counting  # noqa: F401
from cupy._streams import N_DEVICES, Race  # noqa: F401


def nccl_over(t):
    """Inside `with stand_in.nccl_over(t):` NCCL's ranks are the simulated ranks of t."""
    from cupy.cuda import nccl

    return nccl.nccl_over(t)
