"""Parallel training. The plain form of each technique is a page of minidl/plain/: start there.

    data/     data parallelism: every rank has the same model, and gradients are averaged
    zero/     data parallelism in which each rank holds only a shard of the optimizer's state, of
              the gradients and of the weights
    model/    the model itself is divided over ranks
    shards.py joins the ranks that hold parts of one model: they compute one norm for clipping, and
              they decide together to skip a step
    server/   some ranks hold the weights, and the other ranks compute gradients
"""

from minidl.parallel.data.compress import Compressed, ErrorFeedback
from minidl.parallel.data.data_parallel import DataParallel, average_gradients, broadcast_state
from minidl.parallel.data.dgc import DGC
from minidl.parallel.data.diloco import DiLoCo
from minidl.parallel.data.join import evaluate, join
from minidl.parallel.data.local_sgd import LocalSGD
from minidl.parallel.data.noise_scale import NoiseScale
from minidl.parallel.data.onebit_adam import OneBitAdam
from minidl.parallel.data.powersgd import PowerSGD
from minidl.parallel.data.sync_batchnorm import SyncBatchNorm
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.server.table import Table, adagrad, ftrl
from minidl.parallel.server.tables import Tables
from minidl.parallel.zero.offload import Offload
from minidl.parallel.zero.zero import Zero1, Zero2
from minidl.parallel.zero.zero3 import Zero3
