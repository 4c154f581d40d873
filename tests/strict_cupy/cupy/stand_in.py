"""What only the stand-in has: counters, the error of a missing wait, how many devices there are.

    from cupy import stand_in
    with stand_in.counting() as count: ...          _count.py
    with pytest.raises(stand_in.Race): ...          _streams.py
    with stand_in.nccl_over(t): ...                 cuda/nccl.py
    with stand_in.device_time(...) as ran: ...      _clock.py; stand_in.host_s: the clock beside it
"""

from cupy._clock import device_time, host_s  # noqa: F401
from cupy._count import Counts, counting  # noqa: F401
from cupy._streams import N_DEVICES, Race  # noqa: F401


def nccl_over(t):
    """`with stand_in.nccl_over(t):` the ranks of NCCL are the simulated ranks of t."""
    from cupy.cuda import nccl

    return nccl.nccl_over(t)
