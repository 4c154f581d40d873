"""ZeRO stage 1: every rank keeps the optimizer's state for its own share of the parameters only.

    one bucket, 3 ranks      |  block 0  |  block 1  |  block 2  |
    gradients    whole       reduce-scatter: rank r gets the mean of block r
    optimizer    block r     master weight, m and v of block r: 12 / n bytes a parameter
    parameters   whole       rank r updates block r; all-gather: everybody has all blocks

    bytes a parameter, mixed precision       2 + 2 + 12/n          (data parallel: 16)
    sent per rank and step                   (n-1)/n X twice       (the same as an all-reduce)

        model = Zero1(model, t)
        optimizer = optim.AdamW(model.shards(), lr=1e-3)      # any elementwise optimizer
        loss = F.cross_entropy(model(x), y)
        loss.backward()                                       # on return, shards have gradients
        optimizer.step()
        model.gather()

A bucket's parameters lie one after another in one flat array, cut into n blocks whatever their
shapes. A shard is block r as a leaf of its own: a view, which the optimizer updates in place.
float32 gradients are summed around the ring; float16 ones travel as float16, are summed in float32
by the owner and rounded once.

The bits are those of `DataParallel(model, t, all_reduce=ring_blocks.all_reduce)` with the same
buckets, in float32. A parameter that no rank used counts as one with a gradient of zeros.

Source: Rajbhandari et al. 2020 (arXiv 1910.02054).
Test: tests/parallel/test_zero.py   Next: zero2.py, zero3.py   Tutorial: tutorials/10_zero.py
"""

import math

import numpy as np

from minidl.comm import all_to_all, ring, ring_blocks
from minidl.nn.module import Parameter
from minidl.parallel import flat
from minidl.parallel.bucket import Bucket, Reducer, assign, weight
from minidl.parallel.data_parallel import DataParallel


class ShardedBucket(Bucket):
    """Parameters whose weights, and whose gradients, lie in one flat array each; and the block of
    it that this rank owns.

    weights   1-d array of all elements; the parameters' arrays are views of it
    bounds    rank r owns weights[bounds[r] : bounds[r+1]]
    shard     that block of this rank as a leaf, its `grad` the mean gradient of the block"""

    def __init__(self, t, params):
        self.t, self.params = t, params
        self.dtype = params[0].dtype
        self.shapes = [p.shape for p in params]
        self.weights = flat.flatten([p.data for p in params])
        self.bounds = flat.partition_bounds(len(self.weights), t.size)
        for p, view in zip(params, flat.views(self.weights, self.shapes), strict=True):
            p.data = view
        self.shard = Parameter(self.block(self.weights))
        self.gathered = self.shard.version
        self.n_missing = 0
        self.make_room()

    def make_room(self):
        """The array for the gradients, and a view of it for each parameter."""
        self.flat = np.zeros(self.bounds[-1], self.dtype)
        self.views = dict(zip(self.params, flat.views(self.flat, self.shapes), strict=True))

    def block(self, array):
        """This rank's block of a flat array, a view."""
        return array[self.bounds[self.t.rank]:self.bounds[self.t.rank + 1]]

    def slices(self):
        """For each parameter: which part of the shard is its, [begin, end)."""
        first, last = self.bounds[self.t.rank], self.bounds[self.t.rank + 1]
        clamp = lambda at: min(max(at, first), last) - first  # noqa: E731
        return [(clamp(begin), clamp(end)) for begin, end in flat.slots(self.shapes)]

    def take(self, p):
        super().take(p)
        p.grad = None

    def reduce(self, t, n_samples, n_total):
        """The mean over ranks of this rank's block, which becomes the shard's gradient."""
        self.shard.grad = scatter_mean(t, self.flat, self.bounds, n_samples, n_total)

    def is_stale(self):
        return self.gathered != self.shard.version

    def gather(self, t):
        ring_blocks.all_gather(t, self.weights, self.bounds)
        self.gathered = self.shard.version
        for p in self.params:
            p.version += 1


def scatter_mean(t, x, bounds, n_samples, n_total):
    """This rank's block of sum over ranks of n_r * x_r / n_total; a view of x, which is workspace.

    Sends x.nbytes less a block: for float32 around the ring, for float16 all-to-all, because the
    sum is to be in float32 and the message in float16."""
    weight(t, x, n_samples, n_total)
    if x.dtype != np.float16:
        own = ring_blocks.reduce_scatter(t, x, bounds)
        own /= t.size
        return own
    own = x[bounds[t.rank]:bounds[t.rank + 1]]
    counts = [end - begin for begin, end in zip(bounds, bounds[1:], strict=False)]
    received, _ = all_to_all.all_to_all_v(t, x, counts, [len(own)] * t.size)
    # divide in fp32, then cast: the fp16 sum of 8 ranks can pass 65504
    total = received.reshape(t.size, len(own)).sum(axis=0, dtype=np.float32)
    with np.errstate(over="ignore"):
        own[...] = total / t.size
    return own


class ShardReducer(Reducer):
    """As data parallelism's, but the buckets stay as they were cut, and a rank gets its block."""

    bucket = ShardedBucket

    def build(self, order):
        cap, first_cap = self.caps
        self.buckets = []
        for group in flat.by_dtype(order).values():
            for run in assign([p.nbytes for p in group], cap,
                                   None if self.buckets else first_cap):
                self.buckets.append(self.bucket(self.t, [group[i] for i in run]))
        self.bucket_of = {p: b for b in self.buckets for p in b.params}

    def reduce(self, t, bucket):
        bucket.reduce(t, self.n_samples, self.header[0])

    def finish(self):
        for job in self.jobs:
            job.wait()
        self.jobs.clear()
        self.arrived.clear()


class Zero1(DataParallel):
    """`model` on the ranks of `t`, with shards in place of parameters for the optimizer.

    bucket_bytes, first_bucket_bytes, overlap, no_sync(): as in DataParallel."""

    make_reducer = ShardReducer

    def __init__(self, model, t, bucket_bytes=25 << 20, first_bucket_bytes=1 << 20, overlap=True,
                 broadcast_buffers=True):
        super().__init__(model, t, ring.all_reduce, bucket_bytes, first_bucket_bytes, overlap,
                         broadcast_buffers)

    def shards(self):
        """This rank's block of every bucket, as 1-d leaves for an optimizer."""
        return [bucket.shard for bucket in self.reducer.buckets]

    def gather(self):
        """After the optimizer's step: everybody's blocks become everybody's parameters."""
        for bucket in self.reducer.buckets:
            bucket.gather(self.t)

    def forward(self, *inputs, **options):
        if any(bucket.is_stale() for bucket in self.reducer.buckets):
            raise RuntimeError(f"rank {self.t.rank}: the shards have been updated and the "
                               "parameters not; call model.gather() after optimizer.step()")
        return super().forward(*inputs, **options)

    def grad_norm(self):
        """The 2-norm of the whole averaged gradient, from all ranks' shards; a float."""
        squares = [float(np.square(s.grad, dtype=np.float64).sum())
                   for s in self.shards() if s.grad is not None]
        return math.sqrt(ring.all_reduce(self.t, np.array([sum(squares)]))[0])

    def clip_grad_norm_(self, max_norm):
        """Scale the shards' gradients so that the whole norm is at most max_norm; returns the norm
        they had. The rule is `optim.clip_grad_norm_`'s."""
        norm = self.grad_norm()
        scale = min(1.0, max_norm / (norm + 1e-6)) if not math.isnan(norm) else math.nan
        if scale != 1.0:
            for s in self.shards():
                if s.grad is not None:
                    s.grad *= s.grad.dtype.type(scale)
        return norm

    def tensor_norms(self, arrays):
        """{parameter: 2-norm of its part of `arrays`}, over all ranks. arrays: one for each shard,
        such as the updates of LAMB or LARS, whose trust ratios need whole tensors."""
        params = [p for bucket in self.reducer.buckets for p in bucket.params]
        squares = np.zeros(len(params))
        at = 0
        for bucket, array in zip(self.reducer.buckets, arrays, strict=True):
            for begin, end in bucket.slices():
                squares[at] = np.square(array[begin:end], dtype=np.float64).sum()
                at += 1
        return dict(zip(params, np.sqrt(ring.all_reduce(self.t, squares)), strict=True))

    def owned(self):
        """A table: which elements of which parameter this rank owns."""
        names = {p: name for name, p in self.module.named_parameters()}
        lines = [f"rank {self.t.rank} owns"]
        for i, bucket in enumerate(self.reducer.buckets):
            slots = flat.slots(bucket.shapes)
            for p, (begin, end), (slot, _) in zip(bucket.params, bucket.slices(), slots,
                                                  strict=True):
                if begin < end:
                    first = begin + bucket.bounds[self.t.rank] - slot
                    lines.append(f"  bucket {i}  {names[p]:40} [{first} : {first + end - begin}] "
                                 f"of {p.numel()}")
        return "\n".join(lines)
