"""Parallel training: one technique a file, naive first, then real.

    flat           many arrays as one buffer, and its partition over ranks
    data_parallel  the same model everywhere, gradients averaged
    bucket         its gradients, sent while backward still runs
"""

from minidl.parallel.data_parallel import DataParallel, average_gradients, broadcast_state
