"""ZeRO stage 3: the weights, too, are divided over the ranks. (PyTorch calls this stage FSDP.)

The plain form, layer after layer: minidl/plain/zero.py. Here the next unit's weights are gathered
while this unit runs. The model may be any module, not only a list of layers.

    forward     gather 1 | run 1, gather 2 | free 1, run 2, gather 3 | free 2, run 3 | free 3
    backward    gather 3 | 3, gather 2     | scatter 3, free, 2 ...                            time
                                                                                               --->
    bytes held for a parameter             16/n in mixed precision; one or two units are whole
    bytes sent by a rank in a step         (n-1)/n X three times: twice to gather, once to scatter
    n: the number of ranks. X: the bytes of the weights

A unit is one item of the outermost lists (ModuleList, Sequential), such as a transformer's block.
The unit's weights are complete while the unit runs, in forward and in backward. Between forward and
backward the unit's parameters hold a `Freed`, a placeholder without elements. The graph saves
parameters by reference (saved.py), not their arrays, so the arrays can be freed. The packer
(`Zero3.pack`) gathers the weights again before backward reads them. Meanwhile the background thread
gathers the next unit. The units keep the order of the first forward, which is the same on all
ranks.

Parameters outside of all units (embeddings, the output layer) belong to the root. They are whole
from the start of forward to the end of backward, so they are gathered once a step. Small units
(`stay_below`) are never freed, and are gathered once a step, too. Frozen weights are cut and
gathered like the other weights. But they have no gradients to scatter, and the optimizer does not
get their shards. Experts that are divided over the ranks (expert_parallel) are not cut, because
each rank has its own experts.

A unit may compute a new array from a weight (a slice, a cast under autocast). This array is an
activation, and is kept until backward. Under no_sync() the gradients stay in the parameters, and
weights are still freed.

Source: Zhao et al. 2023 (FSDP, arXiv 2304.11277) for units, and for weights that are gathered in
advance. For the rest see zero.py.
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
    """Makes the parameters' arrays views of the 1-d `whole`. The versions of the parameters do not
    change, because the values are the same as before."""
    for p, view in zip(params, flat.views(whole, [p.shape for p in params]), strict=True):
        p.array = view


def free(params):
    """Replaces the parameters' arrays by Freed. Then this rank holds only its shard of these
    arrays."""
    for p in params:
        p.array = Freed(p.shape, p.dtype)


class Zero3(Zero1):
    """ZeRO stage 3: weights are gathered unit by unit.

    stay_below: a unit with at most this many elements is never freed. The other arguments are as in
    Zero1. All ranks must call `state_dict()`, `load_state_dict()`, `gathered()` and `close()`
    together, because these methods gather all weights. Raises ValueError if two units share a
    parameter."""

    def __init__(self, model: Module, t: Transport,
                 groups: Iterable[Iterable[Tensor]] | None = None, stay_below: int = 0,
                 overlap: bool = True, broadcast_buffers: bool = True):
        modules = items(model)
        plan = plan_units(t, model, modules)
        super().__init__(model, t, groups, math.inf, math.inf, overlap, broadcast_buffers,
                         free_gradients=True, runs=plan[::-1])  # backward begins at the last unit
        small = [set(params) for params in plan if sum(p.numel() for p in params) <= stay_below]
        # Frozen weights, such as a base model under adapters, are also cut. They have no gradients.
        self.frozen_buckets = []
        self.frozen_beside = {}  # bucket -> the frozen buckets of its unit
        for params, fixed in zip(plan, plan_units(t, model, modules, requires_grad=False)):
            here = [b for b in self.reducer.buckets if b.params[0] in set(params)]
            cut = [] if set(params) in small and params else [
                ShardedBucket(self.t, group, None, True) for group in by_dtype(fixed).values()]
            self.frozen_buckets += cut
            self.frozen_beside |= dict.fromkeys([*here, *cut], cut)
        self.frozen_of = {p: b for b in self.frozen_buckets for p in b.params}
        # `buckets` has one bucket for each unit, group and dtype
        self.buckets = [*self.reducer.buckets, *self.frozen_buckets]
        in_units = {p for module in modules for p in module.parameters()}
        self.root = [b for b in self.buckets if b.params[0] not in in_units]
        # `stays` has the buckets that are never freed. The buckets in `root` are freed at the end
        # of backward.
        self.stays = {b for b in self.buckets if any(b.params[0] in unit for unit in small)}
        self.weighs_nothing = False  # True in absent(): the batch counts as 0 samples
        self.coming = {}  # {bucket: (array, job)} of buckets that are being gathered
        self.order = []  # a list of buckets for each module, in the order of the first forward
        # place: {bucket: its index in `order`}; direction: 1 in forward, -1 in backward
        self.place, self.direction = {}, 1
        for b in self.buckets:
            b.n_gathers = 1 if b in self.stays or b in self.root else 2
            b.freed = b not in self.stays
            b.shard.data = b.shard.array.copy()  # a view would keep the whole weights alive
            b.shard.version = b.gathered = 0
        self.free(self.buckets)
        self.reducer.on_full = lambda bucket: self.free([bucket, *self.frozen_beside[bucket]])
        self.remove_hooks = []
        for module in modules:
            mine = [b for b in self.buckets if b.params[0] in set(module.parameters())]
            self.remove_hooks += [module.register_forward_pre_hook(partial(self.enter, mine)),
                                  module.register_forward_hook(partial(self.leave, mine))]

    def ended(self):
        self.free(self.buckets)  # all buckets: also the buckets that this backward did not use
        super().ended()

    def pack(self, node, held, inputs, outputs):
        """A packer (saved.py): changes what the graph saves for backward. `held` is the object that
        the node wants to save. If `held` is one of our parameters, or the array of a frozen
        parameter, returns (parameter, a function that gathers and returns its array). Else returns
        None."""
        if isinstance(held, Tensor):
            bucket = self.reducer.bucket_of.get(held)
            return bucket and (held, partial(self.gathered_array, bucket, held))
        for x in inputs:  # the graph saves a frozen parameter as an array
            if isinstance(x, Tensor) and x.array is held and x in self.frozen_of:
                return x, partial(self.gathered_array, self.frozen_of[x], x)

    def gathered_array(self, bucket, parameter, _):
        """Gathers the bucket, and returns the parameter's array."""
        # Gathers the unit's frozen weights, too: a recomputed part of the forward needs them.
        self.need(bucket, *self.frozen_beside[bucket])
        return parameter.array

    def enter(self, buckets, *_):
        """A hook that runs before a unit's forward, also before a recomputed forward. Gathers the
        unit's weights."""
        if not current().replaying:
            self.direction = 1
            if buckets and buckets[0] not in self.place:
                self.place |= dict.fromkeys(buckets, len(self.order))
                self.order.append(buckets)
        self.start(buckets)
        self.need(*buckets)

    def leave(self, buckets, *_):
        """A hook that runs after a unit's forward. Frees the unit's weights."""
        if not current().replaying:  # after a recomputed forward, backward needs the weights now
            self.free(buckets)

    def start(self, buckets):
        """Starts to gather the freed weights of these buckets in the background."""
        for b in buckets:
            if b.weights is None and b not in self.coming:
                whole = b.xp.empty(b.bounds[-1], b.dtype)
                memory.note(whole, "parameters")
                b.block(whole)[...] = b.shard.array
                self.coming[b] = whole, self.reducer.beside(whole, _gather, b, whole,
                                                          self.buckets.index(b))

    def need(self, *buckets):
        """Waits until the weights of these buckets are gathered. Also starts to gather the next
        unit: in forward the unit after this unit, in backward the unit before it."""
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
            # A gather of b may have begun, although nothing used b. Its weights are old after the
            # next step, so they are dropped.
            if b in self.coming:
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
        """Takes part in a backward, on a rank that has no batch (join.py).

        All ranks gather weights together, unit by unit. So this rank must run the model, too. loss:
        a function that runs the model on any batch (the rank's last batch, or zeros) and returns a
        loss. The batch counts as 0 samples. Raises TypeError if loss is None."""
        if loss is None:
            raise TypeError(
                f"rank {self.t.rank}: Zero3.absent() wants a function that runs the model and "
                "returns a loss, because all ranks gather weights together in forward and "
                "backward; got no function. Call model.absent(lambda: "
                "F.cross_entropy(model(x), y)) with any batch x, y. This batch counts as 0 samples")
        buffers = [(b, b.array.copy()) for b in self.module.buffers()]
        self.weighs_nothing = True
        try:
            loss().backward()
        finally:
            self.weighs_nothing = False
            for b, before in buffers:  # this batch must not change batch norm's statistics
                b.array[...] = before

    def gather(self) -> None:
        """Call this after the optimizer's step. Frees the old weights. The next use of a unit
        gathers its new weights. Units that are never freed are gathered now."""
        self.free(self.buckets)
        super().gather()

    @contextmanager
    def gathered(self):
        """A context: `with model.gathered() as module:`. Inside the context each parameter has all
        its elements. Do not change the elements, because the shards do not get the changes.
        Collective."""
        self.need(*self.buckets)
        stays, self.stays = self.stays, set(self.buckets)
        try:
            yield self.module
        finally:
            self.stays = stays
            self.free(self.buckets)

    def bytes_sent(self, n_backwards: int = 1) -> int:
        """Like Zero1.bytes_sent(). Frozen weights that are freed are gathered twice for each
        backward."""
        return super().bytes_sent(n_backwards) + sum(
            ring_blocks.bytes_sent(b.bounds, b.dtype.itemsize, self.t.rank, n_scatters=0,
                                   n_gathers=b.n_gathers * n_backwards)
            for b in self.frozen_buckets)

    def close(self) -> None:
        """Gathers all weights, and removes the hooks: `module` is an ordinary module again.
        Collective."""
        self.need(*self.buckets)
        for remove in self.remove_hooks:
            remove()
        super().close()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the whole model's state dict, as copies, on every rank. Collective."""
        with self.gathered():
            return {name: Tensor(x.array.copy()) for name, x in super().state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:
        with self.gathered():
            result = super().load_state_dict(state, strict)
            for b in self.buckets:
                b.shard.array[...] = b.block(b.weights)
        return result


def _gather(t, bucket, whole, number):
    # with this label, ranks that run their units in different orders get an error
    with about(f"weights {number}"):
        bucket.all_gather(t, whole, bucket.bounds)  # returns None, as a job keeps its result


def items(model):
    """Returns the items of the outermost lists (ModuleList, Sequential), but only items that have
    parameters."""
    if isinstance(model, (ModuleList, Sequential)):
        return [m for m in model.children() if any(True for _ in m.parameters())]
    return [m for child in model.children() for m in items(child)]


def plan_units(t, model, units, requires_grad=True):
    """Returns a list of lists of parameters. The first list is for the root: parameters that are in
    no unit. Then comes a list for each unit.

    Parameters with another value of requires_grad are left out. Raises ValueError if two units
    share a parameter."""
    times = Counter(p for module in units for p in module.parameters())
    if shared := [p for p, n in times.items() if n > 1]:
        raise ValueError(f"rank {t.rank}: Zero3 wants each parameter in at most one unit (an item "
                         f"of a ModuleList or Sequential); got {len(shared)} parameters that are "
                         "in several units. Keep a shared weight outside of the lists, or use "
                         "Zero2")
    root = [p for p in model.parameters() if p not in times]
    return [[p for p in params if p.requires_grad == requires_grad and not p.is_local]
            for params in (root, *(module.parameters() for module in units))]
