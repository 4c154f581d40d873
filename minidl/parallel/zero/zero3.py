"""ZeRO stage 3: a rank keeps the weights of its share only, too. (PyTorch calls it FSDP.)

The plain form, layer after layer: minidl/plain/zero.py. Here: the next unit's weights come while
this one runs, and any model is taken, not a list of layers.

    forward     gather 1 | run 1, gather 2 | free 1, run 2, gather 3 | free 2, run 3 | free 3
    backward    gather 3 | 3, gather 2     | scatter 3, free, 2 ...                            time
                                                                                               --->
    bytes a parameter, mixed precision     16/n, and one or two whole units
    sent per rank and step                 (n-1)/n X three times: twice to gather, once to scatter

A unit is a module, by default each
item of the outermost lists (ModuleList, Sequential), such as a transformer's blocks. Its weights
are whole while it runs, forward and backward; in between its parameters hold a `Freed`. The graph
holds parameters by name (saved.py), so nothing else holds on to the weights; our packer makes it
gather them before it looks. Meanwhile the background thread gathers the next unit, in the order of
the first forward, the same on all ranks. What belongs to no unit (embeddings, the head) is the
root's: whole from the beginning of forward to the end of backward, so gathered once a step, as are
units so small that they stay whole (`stay_below`). Frozen weights are cut and gathered in the same
way; nothing is scattered for them, and the optimizer has no shard of theirs. Experts that are
divided over the ranks (expert_parallel) stay: each rank has its own already.

What a unit computes from a weight before it uses it (a slice, a cast under autocast) is an
activation, which stays until backward. Under no_sync() the whole gradients wait, not the weights.

Source: units and gathering ahead: Zhao et al. 2023 (FSDP, arXiv 2304.11277); else as zero.py.
Test: tests/parallel/zero/test_zero.py   Tutorial: tutorials/11_zero.py
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from minidl import memory
from minidl.backend import by_dtype
from minidl.comm import ring_blocks
from minidl.comm.labels import about
from minidl.mode import current, running
from minidl.nn.containers import ModuleList, Sequential
from minidl.parallel.data import flat
from minidl.parallel.zero.absent import Freed
from minidl.parallel.zero.zero import ShardedBucket, Zero1
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.nn.module import Module


def use(params, whole):
    """The parameters' arrays are views of `whole`: the same values, so no new version."""
    for p, view in zip(params, flat.views(whole, [p.shape for p in params]), strict=True):
        p.array = view


def free(params):
    """Their elements are no more on this rank, but for its shard."""
    for p in params:
        p.array = Freed(p.shape, p.dtype)


class Zero3(Zero1):
    """`model` whose weights are gathered unit by unit.

    stay_below: a unit with at most this many elements is never freed. The rest as in Zero1.
    All ranks must call `state_dict()`, `load_state_dict()`, `gathered()` and `close()` together:
    they gather everything."""

    def __init__(self, model: Module, t: Transport,
                 groups: Iterable[Iterable[Tensor]] | None = None, stay_below: int = 0,
                 overlap: bool = True, broadcast_buffers: bool = True):
        modules = items(model)
        plan = plan_units(t, model, modules)
        super().__init__(model, t, groups, math.inf, math.inf, overlap, broadcast_buffers,
                         free_gradients=True, runs=plan[::-1])  # as gradients will come
        small = [set(params) for params in plan if sum(p.numel() for p in params) <= stay_below]
        # frozen weights (a base under adapters, say) are cut too; they have no gradients
        self.frozen_buckets = []
        self.frozen_beside = {}  # bucket -> the frozen ones of its unit
        for params, fixed in zip(plan, plan_units(t, model, modules, requires_grad=False)):
            here = [b for b in self.reducer.buckets if b.params[0] in set(params)]
            cut = [] if set(params) in small and params else [
                ShardedBucket(self.t, group, None, True) for group in by_dtype(fixed).values()]
            self.frozen_buckets += cut
            self.frozen_beside |= dict.fromkeys([*here, *cut], cut)
        self.frozen_of = {p: b for b in self.frozen_buckets for p in b.params}
        # one for each unit, group and dtype
        self.buckets = [*self.reducer.buckets, *self.frozen_buckets]
        in_units = {p for module in modules for p in module.parameters()}
        self.root = [b for b in self.buckets if b.params[0] not in in_units]
        # those that are not freed; the root's stay until the end of backward
        self.stays = {b for b in self.buckets if any(b.params[0] in unit for unit in small)}
        self.weighs_nothing = False  # in absent()
        self.coming = {}  # bucket: (array, job), while it is being gathered
        self.order = []  # of the first forward: a list of buckets for each module
        self.place, self.direction = {}, 1  # of a bucket in it; 1 in forward, -1 in backward
        for b in self.buckets:
            b.n_gathers = 1 if b in self.stays or b in self.root else 2
            b.freed = b not in self.stays
            b.shard.data = b.shard.array.copy()  # not a view: the whole is to be freed
            b.shard.version = b.gathered = 0
        self.free(self.buckets)
        self.reducer.on_full = lambda bucket: self.free([bucket, *self.frozen_beside[bucket]])
        self.remove_hooks = []
        for module in modules:
            mine = [b for b in self.buckets if b.params[0] in set(module.parameters())]
            self.remove_hooks += [module.register_forward_pre_hook(partial(self.enter, mine)),
                                  module.register_forward_hook(partial(self.leave, mine))]

    def ended(self):
        self.free(self.buckets)  # the unused ones, too
        super().ended()

    def pack(self, node, held, inputs, outputs):
        """A packer: what holds one of our parameters gathers it before backward uses it."""
        if isinstance(held, Tensor):
            bucket = self.reducer.bucket_of.get(held)
            return bucket and (held, partial(self.gathered_array, bucket, held))
        for x in inputs:  # a frozen one is an array so far: from here on it is held by name, too
            if isinstance(x, Tensor) and x.array is held and x in self.frozen_of:
                return x, partial(self.gathered_array, self.frozen_of[x], x)

    def gathered_array(self, bucket, parameter, _):
        self.need(bucket, *self.frozen_beside[bucket])  # as a unit: a recomputed part needs all
        return parameter.array

    def enter(self, buckets, *_):
        """Forward has come to a module, for the first time or to run it again."""
        if not current().replaying:
            self.direction = 1
            if buckets and buckets[0] not in self.place:
                self.place |= dict.fromkeys(buckets, len(self.order))
                self.order.append(buckets)
        self.start(buckets)
        self.need(*buckets)

    def leave(self, buckets, *_):
        if not current().replaying:  # its backward follows at once
            self.free(buckets)

    def start(self, buckets):
        """Begin to gather the weights of those that are freed, behind what the caller does next."""
        for b in buckets:
            if b.weights is None and b not in self.coming:
                whole = b.xp.empty(b.bounds[-1], b.dtype)
                memory.note(whole, "parameters")
                b.block(whole)[...] = b.shard.array
                self.coming[b] = whole, self.reducer.beside(whole, _gather, b, whole,
                                                          self.buckets.index(b))

    def need(self, *buckets):
        """Return once their weights are gathered; start on the module that follows on the way."""
        for b in buckets:
            self.start([b])
            if b in self.coming:
                b.weights, job = self.coming.pop(b)
                job.wait()
                use(b.params, b.weights)
            if self.reducer.overlap and b in self.place:
                at = self.place[b] + self.direction
                if 0 <= at < len(self.order):
                    self.start(self.order[at])

    def free(self, buckets):
        for b in buckets:
            if b in self.coming:  # gathered for nothing; after a step it would be out of date
                self.coming.pop(b)[1].wait()
            if b.weights is not None and b not in self.stays:
                b.weights = None
                free(b.params)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        self.check()
        if self.weighs_nothing:
            options["n_samples"] = 0
        self.start([*self.root, *sum(self.order[:1], [])])
        self.need(*self.root)
        with running(packers=(self.pack, *current().packers)):
            outputs = super().forward(*inputs, **options)
        if current().grad:
            self.direction = -1
        else:
            self.free(self.root)
        return outputs

    def absent(self, loss: Any = None) -> None:
        """A step of a rank that has no batch while others have (join.py). The ranks gather weights
        together, unit by unit, so this one has to come along: loss() runs the model on any batch,
        the rank's last or one of zeros, and returns a loss. It counts with no samples."""
        if loss is None:
            raise TypeError(
                f"rank {self.t.rank}: absent() of stage 3 wants a function that runs the model and "
                "returns a loss, because the others gather weights in forward and backward: "
                "model.absent(lambda: F.cross_entropy(model(x), y)), of any batch. It counts with "
                "no samples")
        buffers = [(b, b.array.copy()) for b in self.module.buffers()]
        self.weighs_nothing = True
        try:
            loss().backward()
        finally:
            self.weighs_nothing = False
            for b, before in buffers:  # nor do the statistics of batch norm see that batch
                b.array[...] = before

    def gather(self) -> None:
        """After the optimizer's step. What is freed will be gathered with the new values."""
        self.free(self.buckets)
        super().gather()

    @contextmanager
    def gathered(self):
        """`with model.gathered() as module:` every parameter has its array, for reading."""
        self.need(*self.buckets)
        stays, self.stays = self.stays, set(self.buckets)
        try:
            yield self.module
        finally:
            self.stays = stays
            self.free(self.buckets)

    def bytes_sent(self, n_backwards: int = 1) -> int:
        """As the other stages'; a unit's frozen weights come with the others, twice."""
        return super().bytes_sent(n_backwards) + sum(
            ring_blocks.bytes_sent(b.bounds, b.dtype.itemsize, self.t.rank, n_scatters=0,
                                   n_gathers=b.n_gathers * n_backwards)
            for b in self.frozen_buckets)

    def close(self) -> None:
        """Gather everything for good: `module` is an ordinary one again."""
        self.need(*self.buckets)
        for remove in self.remove_hooks:
            remove()
        super().close()

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's, as copies, on every rank."""
        with self.gathered():
            return {name: Tensor(x.array.copy()) for name, x in super().state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:
        with self.gathered():
            result = super().load_state_dict(state, strict)
            for b in self.buckets:
                b.shard.array[...] = b.block(b.weights)
        return result


def _gather(t, bucket, whole, number):
    with about(f"weights {number}"):  # ranks that come to their units in other orders hear so
        bucket.all_gather(t, whole, bucket.bounds)  # returns nothing: a job keeps its result alive


def items(model):
    """The modules with parameters in the outermost lists: ModuleList, Sequential."""
    if isinstance(model, (ModuleList, Sequential)):
        return [m for m in model.children() if any(True for _ in m.parameters())]
    return [m for child in model.children() for m in items(child)]


def plan_units(t, model, units, requires_grad=True):
    """Lists of parameters that require a gradient, or of those that do not: the root's, in no unit;
    then each unit's."""
    times = Counter(p for module in units for p in module.parameters())
    if shared := [p for p, n in times.items() if n > 1]:
        raise ValueError(f"rank {t.rank}: {len(shared)} parameters are in more than one unit; give "
                         "`units` so that a shared weight is in one of them or in none")
    root = [p for p in model.parameters() if p not in times]
    return [[p for p in params if p.requires_grad == requires_grad and not p.is_local]
            for params in (root, *(module.parameters() for module in units))]
