"""Parallel training: one technique a file, naive first, then real.

    flat           many arrays as one buffer, and its partition over ranks
    data_parallel  the same model everywhere, gradients averaged
    bucket         its gradients, sent while backward still runs
    zero1          ... and the optimizer's state in shares, one a rank
    zero2          ... and the gradients
    zero3          ... and the weights
"""

from minidl.parallel.data_parallel import DataParallel, average_gradients, broadcast_state
from minidl.parallel.zero1 import Zero1
from minidl.parallel.zero2 import Zero2
from minidl.parallel.zero3 import Zero3
