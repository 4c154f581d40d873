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
shapes: without padding, so blocks differ by an element. A shard is block r as a leaf of its own: a
view, which the optimizer updates in place. float16 gradients travel as float16, bfloat16 ones as
bfloat16; the owner adds them up in float32 and rounds once.

The bits are those of `DataParallel(model, t, all_reduce=ring_blocks.all_reduce)` with the same
buckets, while all ranks have equally many samples, or float32 gradients: block r is summed in the
ring's order, from rank r+1 to rank r, in both dtypes. (A float16 gradient times its rank's share of
the samples is rounded before it travels: half a unit in its last place.) Several synchronised
backwards add means up, where data parallelism averages the sum again: a few roundings apart. And a
parameter that no rank used counts as one with a gradient of zeros, so that weight decay meets it.

Mixed precision: first `amp.prepare(model, "O2")`, then Zero1, then `optim.use_master_weights`; the
ranks must clip and skip together:

        scaler = amp.GradScaler(agree=model.on_any_rank, all_sum=model.sum_over_ranks)

Source: Rajbhandari et al. 2020 (arXiv 1910.02054).
Test: tests/parallel/zero/test_zero.py, test_zero_costs.py, test_zero_use.py
Next: zero2.py, zero3.py   Tutorial: tutorials/10_zero.py
"""

import math
from contextlib import contextmanager

import numpy as np

from minidl.backend import accumulate_dtype
from minidl.comm import all_to_all, chunks, ring, ring_blocks
from minidl.nn.module import Parameter
from minidl.parallel.data import flat
from minidl.parallel.data.bucket import Bucket, Reducer, cut, weight
from minidl.parallel.data.data_parallel import DataParallel


class ShardedBucket(Bucket):
    """Parameters whose weights, and whose gradients, lie in one flat array each; and the block of
    it that this rank owns.

    weights   1-d array of all elements; the parameters' arrays are views of it
    bounds    rank r owns weights[bounds[r] : bounds[r+1]]
    shard     that block of this rank as a leaf, its `grad` the mean gradient of the block
    group     the number of its parameter group"""

    n_gathers = 1  # in a step

    def __init__(self, t, params, group=0):
        self.t, self.params, self.group = t, params, group
        self.dtype = params[0].dtype
        self.shapes = [p.shape for p in params]
        self.weights = flat.flatten([p.data for p in params])
        self.bounds = chunks.bounds(len(self.weights), t.size)
        for p, view in zip(params, flat.views(self.weights, self.shapes), strict=True):
            p.data = view
        self.shard = Parameter(self.block(self.weights))
        self.gathered = self.shard.version
        self.n_missing = 0
        self.earlier = None  # the shard's gradient of the backwards before this one
        self.make_room()

    def make_room(self):
        """The array for the gradients, and a view of it for each parameter."""
        self.flat = np.zeros(self.bounds[-1], self.dtype)
        self.views = dict(zip(self.params, flat.views(self.flat, self.shapes), strict=True))

    def block(self, array):
        """This rank's block of a flat array, a view."""
        return array[self.bounds[self.t.rank]:self.bounds[self.t.rank + 1]]

    def slices(self):
        """For each parameter what this rank owns of it: (offset, first, end), its elements [first,
        end), which lie in the shard from offset on."""
        return flat.within(self.shapes, *self.bounds[self.t.rank:self.t.rank + 2])

    def take(self, p):
        """Copy p's gradient in, and free it; none counts as zeros."""
        if self.shard.grad is not None:  # a view of `flat`, which is to be filled anew
            self.earlier, self.shard.grad = self.shard.grad.copy(), None
        self.views[p][...] = 0 if p.grad is None else p.grad
        p.grad = None

    def fill(self):
        """Nothing is left to do: each gradient was taken when it came."""

    def reduce(self, t, n_samples, n_total):
        """The mean over ranks of this rank's block, which is added to the shard's gradient."""
        own = self.kept(scatter_mean(t, self.flat, self.bounds, n_samples, n_total))
        if self.earlier is not None:
            own += self.earlier
            self.earlier = None
        self.shard.grad = own

    def kept(self, own):
        """Where the shard's gradient stays: in its place among all."""
        return own

    def is_stale(self):
        return self.gathered != self.shard.version

    def gather(self, t):
        ring_blocks.all_gather(t, self.weights, self.bounds)
        self.gathered = self.shard.version
        for p in self.params:
            p.version += 1

    def bytes_sent(self, t, n_backwards):
        return ring_blocks.bytes_sent(self.bounds, self.dtype.itemsize, t.rank,
                                      n_scatters=n_backwards, n_gathers=self.n_gathers)


def scatter_mean(t, x, bounds, n_samples, n_total):
    """This rank's block of sum over ranks of n_r * x_r / n_total; a view of x, which is workspace.

    Sends x.nbytes less a block: for float32 around the ring, for float16 and bfloat16 all-to-all,
    because the sum is to be in float32 and the message in 2 bytes."""
    weight(x, n_samples, n_total, t.size)
    if accumulate_dtype(x.dtype) == x.dtype:
        own = ring_blocks.reduce_scatter(t, x, bounds)
        own /= t.size
        return own
    own = x[bounds[t.rank]:bounds[t.rank + 1]]
    counts = [end - begin for begin, end in zip(bounds, bounds[1:], strict=False)]
    received, _ = all_to_all.all_to_all_v(t, x, counts, [len(own)] * t.size)
    from_rank = received.reshape(t.size, len(own))
    total = from_rank[(t.rank + 1) % t.size].astype(np.float32)
    for i in range(2, t.size + 1):  # in the ring's order
        total += from_rank[(t.rank + i) % t.size]
    # divide in fp32, then cast: the fp16 sum of 8 ranks can pass 65504
    with np.errstate(over="ignore"):
        own[...] = total / t.size
    return own


class ShardReducer(Reducer):
    """As data parallelism's, but the buckets stay as they were cut, and a rank gets its block.

    groups    lists of parameters; a bucket's are all of one group and one dtype"""

    bucket = ShardedBucket

    def __init__(self, groups, *args):
        self.groups = groups
        super().__init__(*args)

    def build(self, order):
        place = {p: i for i, p in enumerate(order)}
        cap, first_cap = self.caps
        self.buckets = []
        for number, group in enumerate(self.groups):
            for params in cut(sorted(group, key=place.get), cap,
                              None if self.buckets else first_cap):
                self.buckets.append(self.bucket(self.t, params, number))
        # they leave in this order, each when its last gradient has come
        self.buckets.sort(key=lambda bucket: max(place[p] for p in bucket.params))
        self.bucket_of = {p: b for b in self.buckets for p in b.params}

    def reduce(self, t, bucket, _filled):
        bucket.reduce(t, self.n_samples, self.header[0])
        for hook in bucket.shard._hooks or ():  # the shard's gradient is complete (offload.py)
            hook(bucket.shard)

    def hand_out(self):
        """Nothing: the shards have their gradients since `reduce`."""


class Zero1(DataParallel):
    """`model` on the ranks of `t`, with shards in place of parameters for the optimizer.

    groups:  lists of parameters for which the optimizer has different options, each parameter that
             requires a gradient in one of them; their shards are `shards(0)`, `shards(1)`, ...
    bucket_bytes, first_bucket_bytes, overlap, broadcast_buffers, no_sync(): as in DataParallel.

    Frozen parameters stay whole on every rank. Gradients add up in the shards until the optimizer's
    `zero_grad()`: each backward sends, unless it is under no_sync(), where the whole gradients wait
    on their rank for the next one that is not."""

    reducer_type = ShardReducer

    def __init__(self, model, t, groups=None, bucket_bytes=25 << 20, first_bucket_bytes=1 << 20,
                 overlap=True, broadcast_buffers=True):
        vars(self)["groups"] = check_groups(t, model, groups)  # before the reducer is made
        devices = {p.device for p in model.parameters()} - {"cpu"}
        if devices:
            raise TypeError(f"rank {t.rank}: ZeRO cuts and sends NumPy's arrays; got parameters on "
                            f"{', '.join(sorted(devices))}. Use DataParallel(model, t) there, or "
                            "model.to('cpu') first")
        super().__init__(model, t, ring.all_reduce, bucket_bytes, first_bucket_bytes, overlap,
                         broadcast_buffers)

    def make_reducer(self, t, params, *options):
        return self.reducer_type(self.groups, t, params, *options)

    def shards(self, group=None):
        """This rank's block of every bucket (of one group), as 1-d leaves for an optimizer."""
        return [b.shard for b in self.reducer.buckets if group is None or b.group == group]

    def gather(self):
        """After the optimizer's step: everybody's blocks become everybody's parameters."""
        for bucket in self.reducer.buckets:
            bucket.gather(self.t)

    def forward(self, *inputs, **options):
        if any(bucket.is_stale() for bucket in self.reducer.buckets):
            raise RuntimeError(f"rank {self.t.rank}: the shards have been updated and the "
                               "parameters not; call model.gather() after optimizer.step()")
        return super().forward(*inputs, **options)

    @contextmanager
    def at_home(self):
        """`with model.at_home() as module:` every parameter has its array, at every stage."""
        yield self.module

    def zero_grad(self):
        super().zero_grad()
        for shard in self.shards():
            shard.grad = None

    def on_any_rank(self, flag):
        """Whether it is true on any rank; for `GradScaler(agree=)`."""
        return bool(ring.all_reduce(self.t, np.array([bool(flag)]), np.logical_or)[0])

    def sum_over_ranks(self, x):
        """The sum of all ranks' x, a float; for `GradScaler(all_sum=)`."""
        return float(ring.all_reduce(self.t, np.array([float(x)]))[0])

    def grad_norm(self):
        """The 2-norm of the whole averaged gradient, from all ranks' shards; a float. A tied
        weight counts once."""
        if all(s.grad is None for s in self.shards()):
            raise RuntimeError(f"rank {self.t.rank}: no shard has a gradient. Before backward? Of "
                               "an offloaded optimizer they are on the host: see offload.py")
        squares = (float(np.square(s.grad, dtype=np.float64).sum())
                   for s in self.shards() if s.grad is not None)
        return math.sqrt(self.sum_over_ranks(sum(squares)))

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
            for offset, first, end in bucket.slices():
                part = array[offset:offset + end - first]
                squares[at] = np.square(part, dtype=np.float64).sum()
                at += 1
        return dict(zip(params, np.sqrt(ring.all_reduce(self.t, squares)).tolist(), strict=True))

    def owned(self):
        """A table: which elements of which parameter this rank owns."""
        names = {p: name for name, p in self.module.named_parameters()}
        lines = [f"rank {self.t.rank} owns"]
        for i, bucket in enumerate(self.reducer.buckets):
            for p, (_, first, end) in zip(bucket.params, bucket.slices(), strict=True):
                if first < end:
                    lines.append(f"  bucket {i}  {names[p]:40} [{first} : {end}] of {p.numel()}")
        return "\n".join(lines)


def check_groups(t, model, groups):
    """The groups' parameters that require a gradient; every one of the model's is in one group."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    groups = [wanted] if groups is None else [list(group) for group in groups]
    times = {p: 0 for p in model.parameters()}
    for p in (p for group in groups for p in group):
        if p not in times:
            raise ValueError(f"rank {t.rank}: a parameter of shape {p.shape} is in `groups`, but "
                             "not in the model")
        times[p] += 1
    wrong = {name: times[p] for name, p in model.named_parameters()
             if times[p] > 1 or p.requires_grad and not times[p]}
    if wrong:
        raise ValueError(f"rank {t.rank}: want each parameter in one of the {len(groups)} groups; "
                         + ", ".join(f"{name} is in {n}" for name, n in wrong.items()))
    return [[p for p in group if p.requires_grad] for group in groups]
