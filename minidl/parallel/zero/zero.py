"""ZeRO, stages 1 and 2: every rank keeps the optimizer's state, and the gradients, of its own share
of the parameters only. (Stage 3, the weights too: zero3.py.)

    one bucket, 3 ranks      |  block 0  |  block 1  |  block 2  |
    gradients    whole       scatter: rank r gets the mean of block r; stage 2: free the others
    optimizer    block r     master weight, m and v of block r, its shard
    parameters   whole       rank r updates block r; gather: everybody gets all blocks

    bytes a parameter, mixed precision     stage 1: 2 + 2 + 12/n     stage 2: 2 + 2/n + 12/n
    sent per rank and step                 (n-1)/n X twice           (the same as an all-reduce)

        model = Zero1(model, t)                               # or Zero2
        optimizer = optim.AdamW(model.shards(), lr=1e-3)      # any elementwise optimizer
        loss = F.cross_entropy(model(x), y)
        loss.backward()                                       # on return, shards have gradients
        optimizer.step()
        model.gather()

Naive: `naive_step1`, `naive_step2`. Real: bucket by bucket, scattered while backward runs. A bucket
is cut into n blocks whatever its parameters' shapes: without padding, so blocks differ by an
element. float16 and bfloat16 gradients travel as they are; their owner sums in float32.

The bits are those of `DataParallel(model, t, all_reduce=ring_blocks.all_reduce)` with the same
buckets, if gradients are float32 or all ranks have equally many samples (a float16 gradient times
its rank's share of them is rounded before it travels). Several backwards that send add means up,
where data parallelism averages the sum again: a few roundings apart. A parameter that no rank used
counts as one with a gradient of zeros, so that weight decay meets it.

Mixed precision: first `amp.prepare(model, "O2")`, then Zero1, then `optim.use_master_weights`; the
ranks clip and skip together by `amp.GradScaler(agree=model.on_any_rank,
all_sum=model.sum_over_ranks)`.

Source: Rajbhandari et al. 2020 (arXiv 1910.02054).
Test: tests/parallel/zero/test_zero.py, test_naive.py, test_zero_costs.py, test_zero_use.py
Tutorial: tutorials/10_zero.py
"""

import math
from collections import Counter
from contextlib import contextmanager

import numpy as np

from minidl import memory
from minidl.backend import accumulate_dtype
from minidl.comm import all_to_all, chunks, ring, ring_blocks
from minidl.nn.module import Parameter
from minidl.optim.clip import scale_to
from minidl.parallel.data import flat
from minidl.parallel.data.bucket import cut, weight
from minidl.parallel.data.data_parallel import DataParallel


def naive_step1(t, params, shard, optimizer, backward):
    """Stage 1 in one piece, for float32 parameters, and batches of the same size on all ranks.

    shard      this rank's block of all parameters as one 1-d leaf, which is all that `optimizer`
               has; backward() gives every parameter its gradient on this rank"""
    backward()
    shard.grad = scatter(t, flat.flatten([p.grad for p in params]))
    optimizer.step()  # m and v of one block in n
    weights, _ = ring_blocks.all_gather_v(t, shard.data)
    flat.unflatten(weights, [p.data for p in params])
    for p in params:
        p.grad = None


def naive_step2(t, shards, optimizer, backward):
    """Stage 2, a bucket for each parameter. shards: {parameter: its block on this rank, a leaf}."""
    def scatter_and_free(p):
        shards[p].grad = scatter(t, flat.flatten([p.grad]))
        p.grad = None  # while backward runs on: one whole gradient at a time

    removes = [p.on_grad_ready(scatter_and_free) for p in shards]
    backward()
    optimizer.step()
    for p, shard in shards.items():
        weights, _ = ring_blocks.all_gather_v(t, shard.data)
        flat.unflatten(weights, [p.data])
    for remove in removes:
        remove()


def scatter(t, x):
    """This rank's block of the mean over ranks of the 1-d x, which is workspace."""
    return ring_blocks.reduce_scatter(t, x, chunks.bounds(len(x), t.size)) / t.size


def scatter_mean(t, x, bounds, n_samples, n_total):
    """As `scatter`, of sum over ranks of n_r * x_r / n_total and for any dtype; a view of x.

    Sends x.nbytes less a block: for float32 around the ring, for float16 and bfloat16 all-to-all,
    because the sum is to be in float32 and the message in 2 bytes."""
    weight(x, n_samples, n_total, t.size)
    if accumulate_dtype(x.dtype) == x.dtype:
        own = ring_blocks.reduce_scatter(t, x, bounds)
        own /= t.size
        return own
    own = x[bounds[t.rank]:bounds[t.rank + 1]]
    received, _ = all_to_all.all_to_all_v(t, x, np.diff(bounds).tolist(), [len(own)] * t.size)
    from_rank = received.reshape(t.size, len(own))
    total = from_rank[(t.rank + 1) % t.size].astype(np.float32)
    for i in range(2, t.size + 1):  # in the ring's order
        total += from_rank[(t.rank + i) % t.size]
    # divide in fp32, then cast: the fp16 sum of 8 ranks can pass 65504
    with np.errstate(over="ignore"):
        own[...] = total / t.size
    return own


class ShardedBucket:
    """Parameters whose weights, and whose gradients, lie in one flat array each, and the block of
    it that this rank owns; for a Reducer (bucket.py), which calls take, fill, reduce and give.

    weights   1-d array of all elements, of which the parameters' arrays are views; stage 3: or None
    bounds    rank r owns weights[bounds[r] : bounds[r+1]]
    shard     that block of this rank as a leaf, its `grad` the mean gradient of the block
    group     the number of its parameter group
    flat      the whole gradients on this rank; free_gradients: only until they are scattered"""

    n_gathers = 1  # in a step

    def __init__(self, t, params, group, free_gradients):
        self.t, self.params, self.group, self.free_gradients = t, params, group, free_gradients
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
        self.flat = None
        if not free_gradients:
            self.allocate()

    def allocate(self):
        """The array for the gradients, and a view of it for each parameter."""
        self.flat = np.zeros(self.bounds[-1], self.dtype)
        self.views = dict(zip(self.params, flat.views(self.flat, self.shapes), strict=True))

    def block(self, array):
        """This rank's block of a flat array, a view."""
        return chunks.split(array, self.t.size)[self.t.rank]

    def slices(self):
        """For each parameter what this rank owns of it: (offset, first, end), its elements [first,
        end), which lie in the shard from offset on."""
        return flat.within(self.shapes, *self.bounds[self.t.rank:self.t.rank + 2])

    def take(self, p):
        """Copy p's gradient in, and free it; none counts as zeros."""
        if self.flat is None:
            self.allocate()
            memory.note(self.flat, "communication")
        if self.shard.grad is not None:  # a view of `flat`, which is to be filled anew
            self.earlier, self.shard.grad = self.shard.grad.copy(), None
        self.views[p][...] = 0 if p.grad is None else p.grad
        p.grad = None

    def fill(self, unused):
        for p in unused:  # the others were taken when they came
            self.take(p)

    def reduce(self, t, n_samples, n_total):
        """In the background: scatter, and add the mean of the own block to the shard's gradient."""
        own = scatter_mean(t, self.flat, self.bounds, n_samples, n_total)
        if self.free_gradients:
            own, self.flat, self.views = own.copy(), None, None  # a view would keep all of them
        if self.earlier is not None:
            own += self.earlier
            self.earlier = None
        self.shard.grad = own
        for hook in self.shard._hooks or ():  # the shard's gradient is complete (offload.py)
            hook(self.shard)

    def give(self, p):
        """Nothing: the shard has had its gradient since `reduce`."""

    def gather(self, t):
        """Every rank's new block becomes part of `weights` here."""
        if self.weights is not None:
            ring_blocks.all_gather(t, self.weights, self.bounds)
        self.gathered = self.shard.version
        for p in self.params:
            p.version += 1

    def bytes_sent(self, t, n_backwards):
        return ring_blocks.bytes_sent(self.bounds, self.dtype.itemsize, t.rank,
                                      n_scatters=n_backwards, n_gathers=self.n_gathers)


class Zero1(DataParallel):
    """`model` on the ranks of `t`, with shards in place of parameters for the optimizer.

    groups:  lists of parameters for which the optimizer has different options, each parameter that
             requires a gradient in one of them; their shards are `shards(0)`, `shards(1)`, ...
    bucket_bytes, first_bucket_bytes, overlap, broadcast_buffers, no_sync(): as in DataParallel.
    free_gradients, pieces: of the stages 2 and 3; pieces(groups, order) as `cut_groups`.

    Frozen parameters stay whole on every rank. Gradients add up in the shards until the optimizer's
    `zero_grad()`: each backward sends, unless it is under no_sync(), where the whole gradients wait
    on their rank for the next one that is not."""

    def __init__(self, model, t, groups=None, bucket_bytes=25 << 20, first_bucket_bytes=1 << 20,
                 overlap=True, broadcast_buffers=True, free_gradients=False, pieces=None):
        groups = check_groups(t, model, groups)
        devices = {p.device for p in model.parameters()} - {"cpu"}
        if devices:
            raise TypeError(f"rank {t.rank}: ZeRO cuts and sends NumPy's arrays; got parameters on "
                            f"{', '.join(sorted(devices))}. Use DataParallel(model, t) there, or "
                            "model.to('cpu') first")

        def make_buckets(order):
            found = pieces(groups, order) if pieces else \
                cut_groups(groups, order, bucket_bytes, first_bucket_bytes)
            return [ShardedBucket(t, params, number, free_gradients) for params, number in found]

        super().__init__(model, t, ring.all_reduce, overlap=overlap,
                         broadcast_buffers=broadcast_buffers, make_buckets=make_buckets)

    def shards(self, group=None):
        """This rank's block of every bucket (of one group), as 1-d leaves for an optimizer."""
        return [b.shard for b in self.reducer.buckets if group is None or b.group == group]

    def gather(self):
        """After the optimizer's step: everybody's blocks become everybody's parameters."""
        for bucket in self.reducer.buckets:
            bucket.gather(self.t)

    def forward(self, *inputs, **options):
        if any(b.gathered != b.shard.version for b in self.reducer.buckets):
            raise RuntimeError(f"rank {self.t.rank}: the shards have been updated and the "
                               "parameters not; call model.gather() after optimizer.step()")
        return super().forward(*inputs, **options)

    @contextmanager
    def gathered(self):
        """`with model.gathered() as module:` every parameter has its array, at every stage."""
        yield self.module

    at_home = gathered  # its former name

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
        grads = [s.grad for s in self.shards() if s.grad is not None]
        if not grads:
            raise RuntimeError(f"rank {self.t.rank}: no shard has a gradient. Before backward? Of "
                               "an offloaded optimizer they are on the host: see offload.py")
        squares = sum(float(np.square(g, dtype=np.float64).sum()) for g in grads)
        return math.sqrt(self.sum_over_ranks(squares))

    def clip_grad_norm_(self, max_norm):
        """Scale the shards' gradients so that the whole norm is at most max_norm; returns the norm
        they had. The rule is `optim.clip_grad_norm_`'s."""
        norm = self.grad_norm()
        scale_to(self.shards(), norm, max_norm)
        return norm

    def tensor_norms(self, arrays):
        """{parameter: 2-norm of its part of `arrays`}, over all ranks. arrays: one for each shard,
        such as the updates of LAMB or LARS, whose trust ratios need whole tensors."""
        parts = [(p, array[offset:offset + end - first])
                 for bucket, array in zip(self.reducer.buckets, arrays, strict=True)
                 for p, (offset, first, end) in zip(bucket.params, bucket.slices(), strict=True)]
        squares = np.array([np.square(part, dtype=np.float64).sum() for _, part in parts])
        norms = np.sqrt(ring.all_reduce(self.t, squares)).tolist()
        return {p: norm for (p, _), norm in zip(parts, norms, strict=True)}

    def owned(self):
        """A table: which elements of which parameter this rank owns."""
        names = {p: name for name, p in self.module.named_parameters()}
        return "\n".join([f"rank {self.t.rank} owns"] + [
            f"  bucket {i}  {names[p]:40} [{first} : {end}] of {p.numel()}"
            for i, bucket in enumerate(self.reducer.buckets)
            for p, (_, first, end) in zip(bucket.params, bucket.slices(), strict=True)
            if first < end])


class Zero2(Zero1):
    """As Zero1; a bucket's whole gradients exist from the first one's arrival until they have been
    averaged. So each backward sends, as what is freed cannot add up, and the shards add up. Under
    no_sync() the whole gradients are held: bytes sent or bytes held."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options, free_gradients=True)


def cut_groups(groups, order, cap, first_cap):
    """[(a bucket's parameters, the number of their group)], in the order in which they are full;
    `order`: in which gradients are expected."""
    place = {p: i for i, p in enumerate(order)}
    pieces = []
    for number, group in enumerate(groups):
        for params in cut(sorted(group, key=place.get), cap, None if pieces else first_cap):
            pieces.append((params, number))
    return sorted(pieces, key=lambda piece: max(place[p] for p in piece[0]))


def check_groups(t, model, groups):
    """The groups' parameters that require a gradient; every one of the model's is in one group."""
    names = {p: name for name, p in model.named_parameters()}
    groups = [list(names)] if groups is None else [list(group) for group in groups]
    times = Counter(p for group in groups for p in group)
    for p in [*names, *times]:
        if p not in names or times[p] > 1 or p.requires_grad and not times[p]:
            raise ValueError(f"rank {t.rank}: want each parameter in one of the {len(groups)} "
                             f"groups; {names.get(p, 'one that is not in the model')} is in "
                             f"{times[p]}")
    return [[p for p in group if p.requires_grad] for group in groups]
