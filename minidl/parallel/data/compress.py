"""Data parallelism that sends less: the common class of all methods that compress gradients.

    g            this rank's share of the mean gradient. The shares are weighted so that the sum of
                 all ranks' shares is the mean over all samples
    residual     the part of this rank's earlier shares that was not sent
    sent         the array that the method sends in place of g + residual: rounded numbers, or the
                 largest elements, or the product of two thin matrices
    new residual = g + residual - sent

The equation below holds in every step, up to the rounding of additions. So the equation also holds
for the sums over all steps:

    gradient that the parameters get + sum over ranks of the new residuals
        = mean gradient              + sum over ranks of the residuals before the step

So no part of a gradient is lost, but some parts reach the parameters in a later step. If a snapshot
is loaded on another number of ranks, each new rank gets a sum of old residuals
(snapshot/residuals.py).

        model = Compressed(net, t, ErrorFeedback(codec.INT8))     # any optimizer
        model = Compressed(net, t, PowerSGD(rank=4))              # any optimizer
        model = Compressed(net, t, DGC(momentum=0.9))             # optim.SGD without momentum
        model = Compressed(net, t, OneBitAdam())                  # optim.SGD without momentum

docs/compression.md tells which methods work with which optimizers and wrappers.

Sources: Seide et al. 2014 (1-bit SGD: error feedback); Karimireddy et al. 2019 (arXiv 1901.09847).
Test: tests/parallel/data/test_compress.py   Tutorial: tutorials/16_dgc.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.comm import codec, compressed, ring
from minidl.comm.checks import all_finite
from minidl.comm.transport import device
from minidl.cuda import dispatch
from minidl.mode import or_numpy
from minidl.optim.sgd import SGD
from minidl.parallel.data import codecs, flat
from minidl.parallel.data.bucket import Bucket, cut, default_all_reduce, weight
from minidl.parallel.data.data_parallel import DataParallel, check_arguments

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.nn.module import Module


def chosen(kernel, reference):
    """Returns a function that calls `kernel` if kernels may run, else `reference`. Both functions
    must give the same bytes."""
    @or_numpy
    def run(array, *options):
        # pick() ignores integers, and `array` may hold bytes. So pick() gets an empty float array
        # of the same library.
        floats = backend.xp_of([array]).empty(0, np.float32)
        return dispatch.pick(kernel, reference, floats)(array, *options)

    return run


BY_KERNELS = {
    code: code._replace(encode=chosen(encode, code.encode), decode=chosen(decode, code.decode))
    for code, encode, decode in [(codec.FP16, codecs.encode_fp16, codecs.decode_fp16),
                                 (codec.INT8, codecs.encode_int8, codecs.decode_int8)]
}


class Method:
    """The base class of methods that sum a bucket's shares over ranks, and send fewer bytes.

    A subclass overrides:

    kinds               the names of the arrays that each rank keeps for itself; such an array has
                        the shape and dtype of bucket.flat
    prepare(bucket)     makes arrays that are kept from step to step and are the same on all ranks.
                        Puts these arrays into bucket.common: {name: {parameter: array}}
    reduce(t, bucket)   replaces the shares in bucket.flat by their sum over ranks, in place. All
                        ranks get the same bits
    bytes_sent(t, bucket, step)     returns the number of bytes that this rank sends in the reduce()
                                    of this step
    check(rank, optimizer, group)   raises ValueError if the optimizer cannot use the result of
                                    reduce() as a gradient. group: one of its param_groups"""

    kinds = ("residual",)

    def prepare(self, bucket):
        pass

    def check(self, rank, optimizer, group):
        pass

    def __repr__(self):
        options = ", ".join(f"{k}={v!r}" for k, v in vars(self).items())
        return f"{type(self).__name__}({options})"


class ErrorFeedback(Method):
    """Rounds gradients by a codec (comm/codec.py), and keeps the rounding errors as residuals."""

    def __init__(self, codec=codec.INT8):
        self.codec = codec

    def reduce(self, t, bucket):
        code = self.codec
        if bucket.flat.dtype == np.float32:
            code = BY_KERNELS.get(code, code)
        compressed.all_reduce(t, bucket.flat, code, residual=bucket.own["residual"])

    def bytes_sent(self, t, bucket, step):
        return compressed.bytes_sent(bucket.flat.size, self.codec, t.size, t.rank)

    def __repr__(self):
        return "ErrorFeedback"


class CompressedBucket(Bucket):
    """A bucket, and the arrays that its method keeps from step to step.

    own      {kind: array like `flat`}, different on each rank
    given    {parameter: the array that the parameter got as its gradient in the last step}
    common   {name: {parameter: array}}, the same on all ranks
    step     how many times the bucket has been sent"""

    def __init__(self, params, method, all_reduce):
        super().__init__(params, all_reduce)
        self.method, self.step, self.given = method, 0, {}
        xp = params[0]._xp
        self.own = {kind: xp.zeros_like(self.flat) for kind in method.kinds}
        self.common = {}
        method.prepare(self)

    def views_of(self, kind):
        """Returns the views of the array own[kind], one for each parameter."""
        return flat.views(self.own[kind], [p.shape for p in self.params])

    def reduce(self, t, n_samples, n_total):
        weight(self.flat, n_samples, n_total, 1)
        if not all_finite(self.flat):
            raise FloatingPointError(
                f"rank {t.rank}: wanted finite gradients; got inf or nan, which would stay in the "
                "residual for ever. Lower the learning rate, clip gradients, or find out why the "
                "loss is not finite")
        self.method.reduce(t, self)
        self.step += 1

    def gives(self, p):
        """Returns True if p gets a gradient although no rank used p in this step. This gradient
        contains residuals of earlier steps, which are sent in this step."""
        return bool(self.views[p].any())

    def give(self, p):
        super().give(p)
        self.given[p] = p.grad.array

    def bytes_sent(self, t, n_backwards):
        return sum(self.method.bytes_sent(t, self, self.step + i) for i in range(n_backwards))


class Compressed(DataParallel):
    """DataParallel whose gradients are compressed by `method`.

    The other arguments are as in DataParallel. Buckets are never rebuilt, because they hold the
    residuals. A rank without samples (absent()) still sends a part of its residual. bytes_sent()
    returns the number of bytes that this rank will send in the coming steps. This number is exact
    for every method.

    A forward raises RuntimeError if a parameter still has the averaged gradient of the previous
    step. Call zero_grad() after each step."""

    def __init__(self, model: Module, t: Transport, method: Method, bucket_bytes: float = 25 << 20,
                 first_bucket_bytes: float = 1 << 20, overlap: bool = True,
                 broadcast_buffers: bool = True):
        check_arguments("Compressed", model, t)
        if not isinstance(method, Method):
            raise TypeError(f"Compressed wants a method of compression, such as DGC(); got "
                            f"{method!r}")
        self.__dict__["method"] = method
        params = [p for p in model.parameters() if p.requires_grad]
        way = "host memory"
        if params:
            t, way = device.connect(t, params[0].array)
            all_reduce = default_all_reduce(params)

        def make_buckets(order):
            return [CompressedBucket(group, method, all_reduce)
                    for group in cut(order, bucket_bytes, first_bucket_bytes)]

        super().__init__(model, t, ring.all_reduce, overlap=overlap,
                         broadcast_buffers=broadcast_buffers, make_buckets=make_buckets)
        self.way = way
        self.reducer.averages = True
        for p in params:
            p.declare(compressed_by=self)

    def forward(self, *inputs, **options):
        for bucket in self.reducer.buckets:
            for p in bucket.params:
                grad = backend.array_of(p.grad)
                if grad is not None and grad is bucket.given.get(p) and grad.any():
                    raise RuntimeError(
                        f"rank {self.t.rank}: {self.name_of(p)} still has the gradient that was "
                        "averaged before, so backward would compress the sum of this gradient and "
                        "the new one. Call zero_grad() after the step. To add up several batches, "
                        "run all batches except the last under no_sync()")
        return super().forward(*inputs, **options)

    def check_optimizer(self, optimizer, group):
        """The optimizer calls this before a step. Raises ValueError if the method's gradients do
        not fit this optimizer. Experts that are divided over ranks are not compressed, so a group
        that has only experts may use any optimizer."""
        if not all(optimizer.leaf_of(p).is_local for p in group["params"]):
            self.method.check(self.t.rank, optimizer, group)

    def owed(self):
        """Returns a float: the 2-norm of this rank's residuals in all buckets together."""
        squares = (b.own[self.method.kinds[-1]] for b in self.reducer.buckets)
        return float(sum(float(x @ x) for x in squares)) ** 0.5

    def extra_repr(self):
        return f"{super().extra_repr()}, {self.method}"

    def close(self) -> None:
        super().close()
        for p in self.module.parameters():
            p.declare(compressed_by=None)


def wants_plain_sgd(what, rank, optimizer, group):
    """Raises ValueError unless the optimizer is optim.SGD without momentum.

    what: the name of the method, for the message. rank: this rank's number. group: one of the
    optimizer's param_groups. The result of the method already contains momentum."""
    if type(optimizer) is not SGD or group["momentum"]:
        options = f"(momentum={group['momentum']})" if "momentum" in group else ""
        raise ValueError(
            f"rank {rank}: {what} already applies momentum, so the optimizer must not apply it "
            f"again; wanted optim.SGD(momentum=0), got {type(optimizer).__name__}{options}. Set "
            f"the momentum in {what}")
    if any(optimizer.leaf_of(p).is_local for p in group["params"]):
        raise ValueError(
            f"rank {rank}: {what} applies momentum to the model's parameters, but not to divided "
            "experts; wanted two param_groups, got one group with model parameters and experts. "
            "Give the experts an optimizer of their own (experts.expert_parameters)")
