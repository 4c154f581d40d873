"""ZeRO, stages 1 and 2: a rank keeps only its share of the optimizer's state, and of the gradients.

The plain form: minidl/plain/zero.py. Here buckets of several parameters are scattered while
backward runs. Some parameters may be unused on a rank. The shares of the batch may be uneven, and a
step may have several backwards. Optimizers, clipping and loss scaling work on shards. Rank r has
block r of each bucket: its shard.

    bytes held for a parameter (mixed      stage 1: 2 + 2 + 12/n     stage 2: 2 + 2/n + 12/n
    precision: weight, gradient, state)
    bytes sent by a rank in a step         (n-1)/n X twice           (the same as an all-reduce)
    n: the number of ranks. X: the bytes of the weights

        model = Zero1(model, t)                               # or Zero2
        optimizer = optim.AdamW(model.shards(), lr=1e-3)      # or any elementwise one, LARS, LAMB
        F.cross_entropy(model(x), y).backward()               # on return, shards have gradients
        optimizer.step()
        model.gather()

A block may begin or end in the middle of a parameter, so no padding is needed. Compare ZeRO with
DataParallel that has the same buckets and `all_reduce=ring_blocks.all_reduce`. The results have the
same bits if gradients are float32, or if all ranks have the same number of samples. (A float16
gradient is weighted and rounded before it is sent.) If a step has several backwards outside of
no_sync(), ZeRO adds the means of these backwards. Data parallelism averages the accumulated
gradients again in each of these backwards. A parameter that no rank used gets a gradient of zeros,
so weight decay still acts on this parameter.

For mixed precision call first `amp.prepare(model, "O2")`, then Zero1, then
`optim.use_master_weights`. GradScaler reads `sharded_by` of the shards, so all ranks clip together
and skip a step together.

Source: Rajbhandari et al. 2020 (arXiv 1910.02054).   Tutorial: tutorials/11_zero.py
Test: tests/parallel/zero/test_zero.py, test_zero_costs.py, test_zero_use.py
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from minidl import memory
from minidl.backend import buffer_of
from minidl.backward import clear_gradient
from minidl.comm import average, chunks, ring, ring_blocks
from minidl.comm.labels import about
from minidl.comm.transport import device
from minidl.nn.module import Parameter
from minidl.optim import clip
from minidl.parallel.data import flat
from minidl.parallel.data.bucket import cut, weight
from minidl.parallel.data.data_parallel import DataParallel
from minidl.parallel.shards import Shards
from minidl.parallel.zero.absent import Freed, Scattered
from minidl.tensor import LeafHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.nn.module import Module
    from minidl.tensor import Tensor


class ShardedBucket:
    """A Bucket for the Reducer (bucket.py), whose parameters are cut into shards together.

    weights   a 1-d array of all elements of the parameters. The parameters' arrays are views of
              this array. None in stage 3 while the weights are freed
    bounds    rank r owns weights[bounds[r] : bounds[r+1]]
    shard     this rank's block as a leaf, for the optimizer. shard.grad is the mean gradient of the
              block
    flat      a 1-d array of the gradients of all elements. It is made in the first backward. With
              free_gradients it is freed after the scatter of each backward"""

    # The number of times that the weights are gathered in a step. If stage 3 frees the weights,
    # this is the number for one forward with its backward.
    n_gathers = 1
    freed = False

    def __init__(self, t, params, group, free_gradients):
        self.t = t
        self.params = params
        self.group = group
        self.free_gradients = free_gradients
        self.xp = params[0]._xp
        self.dtype = params[0].dtype
        self.shapes = [p.shape for p in params]
        self.mean_block, self.all_gather = collectives_for(params[0].array)

        self.weights = flat.flatten([p.array for p in params])
        self.bounds = chunks.bounds(len(self.weights), t.size)
        for p, view in zip(params, flat.views(self.weights, self.shapes), strict=True):
            p.data = view

        self.shard = Parameter(self.block(self.weights), params[0].requires_grad)
        if self.shard.requires_grad:
            self.shard.add_leaf_hook(Clears(params))
        self.gathered = self.shard.version
        self.n_missing = 0
        self.earlier = None  # the shard's gradient from earlier backwards of this step
        self.flat = None

    def block(self, array):
        """Returns a view: this rank's block of a flat array."""
        return chunks.split(array, self.t.size)[self.t.rank]

    def take(self, p):
        """Copies p's gradient into `flat`, and sets p.grad to None. If p has no gradient, writes
        zeros."""
        if self.flat is None:
            self.flat = self.xp.empty(self.bounds[-1], self.dtype)
            views = flat.views(self.flat, self.shapes)
            self.views = dict(zip(self.params, views, strict=True))
            memory.note(self.flat, "communication")
        if self.shard.grad is not None:  # copied, because it may be a view of `flat`
            self.earlier = self.shard.grad.array.copy()
            self.shard.grad = None
        self.views[p][...] = 0 if p.grad is None else p.grad.array
        p.grad = None

    def fill(self, unused):
        """Fills the part of `flat` that belongs to unused parameters. If an unused parameter has a
        gradient of an earlier backward under no_sync(), this gradient is copied. Otherwise zeros
        are written. take() has already copied the gradients of the other parameters."""
        for p in unused:
            self.take(p)
        # allocated here, not in reduce(): a GPU's memory belongs to the stream that allocates it
        self.own = None
        if self.free_gradients:
            self.own = self.xp.empty_like(self.block(self.flat))

    def reduce(self, t, n_samples, n_total):
        """Averages the gradients, and adds this rank's block of the mean to the shard's gradient.
        Runs in the background thread. Returns the arrays that a GPU may still be reading."""
        weight(self.flat, n_samples, n_total, t.size)
        own = self.mean_block(t, self.flat, self.bounds)
        released = [self.earlier]
        if self.free_gradients:
            self.own[...] = own  # copied, because a view would keep the whole gradients alive
            own = self.own
            released.append(self.flat)
            self.own = self.flat = self.views = None
        if self.earlier is not None:
            own += self.earlier
            self.earlier = None
        self.shard.grad = own
        for hook in self.shard._hooks or ():  # tells Offload that this gradient is complete
            hook.gradient_ready(self.shard)
        return released

    def gives(self, p):
        """Returns False: only shards get gradients."""
        return False

    def give(self, p):
        """Does nothing: reduce() has already set the shard's gradient."""

    def gather(self, t):
        """Copies every rank's new block into `weights` on all ranks. Collective. If the weights are
        freed (stage 3), gather() only increases the version number of each parameter."""
        if self.weights is not None:
            self.block(self.weights)[...] = self.shard.array  # stage 3 needs this copy
            self.all_gather(t, self.weights, self.bounds)
        self.gathered = self.shard.version
        for p in self.params:
            p.version += 1

    def holds(self, p):
        """Returns True if p's array is still the array that this bucket has set. This array is a
        view of `weights`, or Freed in stage 3."""
        if self.weights is None:
            return isinstance(p.array, Freed)
        return buffer_of(p.array) is buffer_of(self.weights)

    def bytes_sent(self, t, n_backwards):
        n_gathers = self.n_gathers * (n_backwards if self.freed else 1)
        return ring_blocks.bytes_sent(self.bounds, self.dtype.itemsize, t.rank,
                                      n_scatters=n_backwards, n_gathers=n_gathers)


class Clears(LeafHook):
    """A hook of a shard. With this hook the optimizer's zero_grad() also clears the gradients that
    backwards under no_sync() have left in the parameters."""

    def __init__(self, params):
        self.params = params

    def cleared(self, shard):
        for p in self.params:
            clear_gradient(p)


def collectives_for(x):
    """Returns the functions (mean_block, all_gather) for the device of x, a GPU or the CPU."""
    if device.on_device(x):
        return device.mean_block, device.all_gather
    return average.mean_block, ring_blocks.all_gather


class Zero1(DataParallel):
    """ZeRO stage 1: the optimizer updates this rank's shards, not the whole parameters.

    groups:  lists of parameters that get different options of the optimizer. Each parameter that
             requires a gradient must be in exactly one list. `shards(0)` returns the shards of the
             first list, `shards(1)` the shards of the second list, ...
    free_gradients: used by Zero2 and Zero3.
    runs:    lists of parameters, used by Zero3. A bucket never mixes parameters of two lists.

    The other arguments are as in DataParallel. Frozen parameters are not cut. Gradients add up in
    the shards until zero_grad(). Each backward sends its gradients. But under no_sync() nothing is
    sent, and the gradients stay in the parameters.

    Raises TypeError for parameters on several devices, and ValueError for wrong groups."""

    def __init__(self, model: Module, t: Transport,
                 groups: Iterable[Iterable[Tensor]] | None = None, bucket_bytes: float = 25 << 20,
                 first_bucket_bytes: float = 1 << 20, overlap: bool = True,
                 broadcast_buffers: bool = True, free_gradients: bool = False, runs: Any = None):
        self.wants_plain(model, t)  # this check comes first: a wrapped model's weights may be freed
        number = number_of_group(t, model, groups)
        devices = sorted({p.device for p in model.parameters()})
        if len(devices) > 1:
            raise TypeError(f"rank {t.rank}: ZeRO wants all parameters on one device; got "
                            f"parameters on {' and '.join(devices)}. Call "
                            f"model.to({devices[-1]!r}) before you wrap the model")
        t, way = device.connect(t, next(model.parameters()).array)

        alike = {p: (number[p], p.copies, p.sharded_by) for p in number}

        def make_buckets(order):
            place = {p: i for i, p in enumerate(order)}
            buckets = []
            for run in runs or [order]:
                parts = cut(run, bucket_bytes, first_bucket_bytes, alike)
                # A bucket is full when the gradient of its last parameter is complete. So the
                # buckets are sorted by this parameter.
                parts.sort(key=lambda params: place[params[-1]])
                for params in parts:
                    group = number[params[0]]
                    buckets.append(ShardedBucket(t, params, group, free_gradients))
            return buckets

        super().__init__(model, t, ring.all_reduce, overlap=overlap,
                         broadcast_buffers=broadcast_buffers, make_buckets=make_buckets)
        self.way = way
        self.buckets = self.reducer.buckets
        self.reducer.on_end = self.ended

        for bucket in self.buckets:  # parameters can also be divided over other ranks
            first = bucket.params[0]
            bucket.shard.declare(sharded_by=(*first.sharded_by, self), copies=first.copies)

    def shards(self, group: int | None = None) -> list[Tensor]:
        """Returns this rank's block of every bucket, as 1-d leaves for an optimizer. group: the
        index of a list in `groups`. With it, returns only the shards of this list."""
        return [b.shard for b in self.reducer.buckets if group is None or b.group == group]

    def gather(self) -> None:
        """Call this after the optimizer's step: all ranks get the new weights of all shards.
        Collective."""
        for bucket in self.reducer.buckets:
            bucket.gather(self.t)

    def check(self):
        """Checks before forward that the parameters match the shards, and removes Scattered
        gradients. Raises RuntimeError if gather() was not called after the optimizer's step. Also
        raises it if the array of a parameter was replaced by another array."""
        if any(b.gathered != b.shard.version for b in self.reducer.buckets):
            raise RuntimeError(f"rank {self.t.rank}: the optimizer has updated the shards, but the "
                               "parameters still have the old values. Call model.gather() after "
                               "optimizer.step()")
        for bucket in self.reducer.buckets:
            for p in bucket.params:
                if not bucket.holds(p):
                    raise RuntimeError(
                        f"rank {self.t.rank}: {self.name_of(p)} has a new array, because p.data = "
                        "... or .to(...) replaced the array that was cut into shards. ZeRO would "
                        "not update the new array. Change the model before you wrap it, or write "
                        "into the old array: p.data[...] = ..., or load_state_dict")
                if type(p.grad) is Scattered:
                    p.grad = None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        self.check()
        return super().forward(*inputs, **options)

    def absent(self, loss: Any = None) -> None:
        """Like DataParallel.absent(). The gradients of the shards become the mean gradients over
        the other ranks' samples."""
        self.check()
        super().absent()

    def ended(self):
        """Sets each p.grad to a Scattered, because the gradients are now in the shards. The Reducer
        calls this at the end of a backward."""
        for p in self.reducer.params:
            p.grad = Scattered(p.shape, p.dtype)

    @contextmanager
    def gathered(self):
        """A context: `with model.gathered() as module:`. Inside the context each parameter has all
        its elements, in every stage of ZeRO."""
        yield self.module

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like Module.zero_grad(). Also clears the shards' gradients."""
        for p in [*self.parameters(), *self.shards()]:
            clear_gradient(p, set_to_none or type(p.grad) is Scattered)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:
        """Like Module.load_state_dict(). Master weights of the shards get the new values, too."""
        result = super().load_state_dict(state, strict)
        for bucket in self.reducer.buckets:
            bucket.shard.version += 1
            bucket.gathered = bucket.shard.version
        return result

    # With these two functions, GradScaler and clipping use the shards of all ranks.
    on_any_rank, sum_over_ranks = Shards.on_any_rank, Shards.sum_over_ranks

    def sum_in_place(self, x):
        """Replaces x, a host array, by the sum of all ranks' x. Used for squared norms of tensors
        (layerwise.py). Collective."""
        with about("squared norms of the tensors"):
            ring.all_reduce(self.t, x)

    def grad_norm(self) -> float:
        """Returns a float: the 2-norm of the gradient of the whole model. The norm includes the
        experts that are divided over the ranks. A tied weight counts once. Collective. Raises
        RuntimeError if no shard has a gradient."""
        if all(s.grad is None for s in self.shards()):
            raise RuntimeError(f"rank {self.t.rank}: no shard has a gradient. Call backward first. "
                               "If an Offload optimizer has moved the gradients to the host, clip "
                               "with scaler.step(optimizer, max_norm=...)")
        # On a GPU, the host waits until the norm is computed.
        return clip.grad_norm([*self.shards(), *self.local_parameters()])

    def clip_grad_norm_(self, max_norm: float) -> Any:
        """Scales the gradients so that their common norm is at most max_norm. Returns the norm
        before scaling, as optim.clip_grad_norm_ does. Collective."""
        norm, parameters = self.grad_norm(), [*self.shards(), *self.local_parameters()]
        clip.scale_to(parameters, norm, max_norm)
        return clip.norm_tensor(norm, parameters)

    def local_parameters(self):
        """Returns the parameters that are not cut: the experts, because each rank has its own."""
        return [p for p in self.module.parameters() if p.is_local]

    def parts(self):
        """Returns [(bucket's number, shard, parameter, offset, first, end)]. This rank owns
        elements [first, end) of the parameter. In the shard they begin at `offset`."""
        found = []
        for number, bucket in enumerate(self.buckets):
            low = bucket.bounds[self.t.rank]
            high = bucket.bounds[self.t.rank + 1]
            within = flat.within(bucket.shapes, low, high)
            for p, (offset, first, end) in zip(bucket.params, within, strict=True):
                found.append((number, bucket.shard, p, offset, first, end))
        return found

    def owned(self):
        """Returns a table, as text: the elements of each parameter that this rank owns."""
        names = {p: name for name, p in self.module.named_parameters()}
        lines = [f"rank {self.t.rank} owns"]
        for i, _, p, _, first, end in self.parts():
            if first < end:
                lines.append(f"  bucket {i}  {names[p]:40} [{first} : {end}] of {p.numel()}")
        return "\n".join(lines)


class Zero2(Zero1):
    """ZeRO stage 2: like Zero1, but a bucket's whole gradients are freed as soon as they are
    averaged."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options, free_gradients=True)


def number_of_group(t, model, groups):
    """Returns {parameter: index of its group}. Raises ValueError unless each parameter that
    requires a gradient is in exactly one group."""
    names = {p: name for name, p in model.named_parameters()}
    if groups is None:
        groups = [names]
    groups = [list(group) for group in groups]
    times = Counter(p for group in groups for p in group)
    for p in [*names, *times]:
        is_missing = p.requires_grad and times[p] == 0
        if p not in names or times[p] > 1 or is_missing:
            raise ValueError(f"rank {t.rank}: want each parameter of the model in exactly one of "
                             f"the {len(groups)} groups; got "
                             f"{names.get(p, 'a parameter that is not in the model')} in "
                             f"{times[p]} groups")
    return {p: number for number, group in enumerate(groups) for p in group}
