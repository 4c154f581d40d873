"""Parallel training: one technique a file, naive first, then real.

    flat           many arrays as one buffer, and its partition over ranks
    data_parallel  the same model everywhere, gradients averaged
    bucket         its gradients, sent while backward still runs
    zero           ... and the optimizer's state, and the gradients, in shards, one a rank
    zero3          ... and the weights
    offload        ... and the optimizer, with its work, on the host
    lanes          who is busy when: device, link, host
    regions        which elements of which tensor a rank holds
    param_server   or: some ranks hold the weights (rules, shards), the others are param_worker
"""

from minidl.parallel.data.data_parallel import DataParallel, average_gradients, broadcast_state
from minidl.parallel.zero.offload import Offload
from minidl.parallel.zero.zero import Zero1, Zero2
from minidl.parallel.zero.zero3 import Zero3
