"""ZeRO stage 3: and only its own share of the parameters. (PyTorch calls it FSDP.)

    forward     gather 1 | run 1, gather 2 | free 1, run 2, gather 3 | free 2, run 3 | free 3
    backward    gather 3 | 3, gather 2     | scatter 3, free, 2 ...                            time
                                                                                               --->
    bytes a parameter, mixed precision     16/n, and one or two units that are at home
    sent per rank and step                 (n-1)/n X three times: twice to gather, once to scatter

A unit is a module, by default each item of the outermost lists (ModuleList, Sequential), such as a
transformer's blocks. Its weights are at home while it runs, forward and backward; in between its
parameters hold an `Away`, which has a shape and no elements. The graph keeps parameters by name
(function.Leaf), so nothing else holds on to the weights, and asks for them when backward comes to
them. Meanwhile the background thread brings the unit that will be next, in the order of the first
forward. What belongs to no unit (embeddings, the last norm, the head) is the root's: brought once,
at home from the beginning of forward to the end of backward, and so sent twice a step, not thrice.
The same holds for units so small that they stay (`stay_below`), and for no others.

All ranks must come to the same units in the same order. What a unit computes from a weight before
it uses it (a slice, a cast under autocast) is an activation, which stays until backward.

Everything else is stage 2's, under no_sync(), too: there the whole gradients wait, not the weights.

Sources: Rajbhandari et al. 2020 (arXiv 1910.02054); units and prefetch: Zhao et al. 2023 (FSDP,
arXiv 2304.11277).
Test: tests/parallel/zero/test_zero.py   Before: zero2.py   Tutorial: tutorials/10_zero.py
"""

import math
from contextlib import contextmanager

import numpy as np

from minidl import backend, memory
from minidl.backward import leaf_uses
from minidl.comm import ring_blocks
from minidl.mode import current, is_grad_enabled
from minidl.nn.layers import ModuleList, Sequential
from minidl.parallel.data import flat
from minidl.parallel.data.data_parallel import tensors_of
from minidl.parallel.zero.zero1 import Zero1
from minidl.parallel.zero.zero2 import FleetingBucket, FleetingReducer


class Away:
    """What a parameter holds while its elements are on other ranks."""

    base = None
    nbytes = 0

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtype
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def _used(self, *_, **__):
        raise RuntimeError(self._where())

    __array__ = __array_ufunc__ = __getitem__ = __setitem__ = _used
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __neg__ = __pow__ = _used
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _used

    def __getattr__(self, name):
        raise AttributeError(self._where())

    def _where(self):
        return (f"a weight of shape {self.shape} is away, on its owners' ranks: it was used "
                "outside of its unit's forward. Let the module that uses it be the unit, or use "
                "it inside `with model.at_home():`")


class Unit(FleetingBucket):
    """The parameters of one module: at home, or away but for this rank's shard.

    stays     whether it is at home from one step to the next, because it is small
    is_root   whether it stays from the beginning of forward to the end of backward"""

    def __init__(self, t, params, group, reducer, stays, is_root):
        super().__init__(t, params, group)
        self.reducer, self.stays, self.is_root = reducer, stays, is_root
        self.n_gathers = 1 if stays or is_root else 2
        self.shard.data = self.shard.data.copy()  # not a view: the whole is to be freed
        self.shard.version = self.gathered = 0
        self.coming = None  # (array, job) while it is on its way
        for p in params:
            p.bring = self.bring
        self.leave()

    def fetch(self):
        """Begin to bring the weights home, behind what the caller does next."""
        if self.weights is None and self.coming is None:
            whole = np.empty(self.bounds[-1], self.dtype)
            memory.note(whole, "parameters")
            self.block(whole)[...] = self.shard.data
            self.coming = whole, self.reducer.submit(_gather, whole, self.bounds)

    def bring(self):
        """Return once the weights are at home; then fetch those that will be needed next."""
        if self.weights is None:
            self.fetch()
            (self.weights, job), self.coming = self.coming, None
            job.wait()
            for p, view in zip(self.params, flat.views(self.weights, self.shapes), strict=True):
                p._data = view  # the same values: no new version
        self.reducer.fetch_after(self)

    def leave(self):
        if self.coming is not None:  # fetched for nothing; after a step it would be out of date
            self.coming[1].wait()
            self.coming = None
        if self.weights is not None and not self.stays and not self.reducer.at_home:
            self.weights = None
            for p, shape in zip(self.params, self.shapes, strict=True):
                p._data = Away(shape, self.dtype)

    def gather(self, t):
        """After the optimizer's step. Who is away will come with the new values."""
        self.leave()
        if self.weights is not None:
            self.block(self.weights)[...] = self.shard.data
            ring_blocks.all_gather(t, self.weights, self.bounds)
        self.gathered = self.shard.version
        for p in self.params:
            p.version += 1


def _gather(t, whole, bounds):
    ring_blocks.all_gather(t, whole, bounds)  # returns nothing: a job keeps its result alive


class UnitReducer(FleetingReducer):
    """Gathers and scatters in one queue, so that their order is the same on all ranks.

    plan     [(parameters, stays, is_root)], one for each module
    order    lists of units, a module's each (it has one for each dtype and parameter group), in
             the order in which the first forward came to them; place: their index in it
    step     the direction of travel through it: 1 in forward, -1 in backward
    at_home  whether nobody is to leave"""

    def __init__(self, plan, *args):
        self.plan, self.order, self.place = plan, [], {}
        self.step, self.at_home = 1, False
        super().__init__(*args)

    def build(self, order):
        self.buckets = []
        for params, stays, is_root in reversed(self.plan):  # as gradients will arrive
            for number, group in enumerate(self.groups):
                for same in backend.by_dtype([p for p in params if p in set(group)]).values():
                    self.buckets.append(Unit(self.t, same, number, self, stays, is_root))
        self.bucket_of = {p: b for b in self.buckets for p in b.params}

    def enter(self, units):
        """Forward has come to these units, for the first time or to run them again."""
        if not current().replaying:
            self.step = 1
            if units and units[0] not in self.place:
                self.place |= dict.fromkeys(units, len(self.order))
                self.order.append(units)
        for unit in units:
            unit.fetch()
        for unit in units:
            unit.bring()

    def fetch_after(self, unit):
        """Fetch the module that follows this unit's in the direction of travel."""
        if self.overlap and unit in self.place:
            at = self.place[unit] + self.step
            if 0 <= at < len(self.order):
                for following in self.order[at]:
                    following.fetch()

    def expect(self, used, n_samples):
        super().expect(used, n_samples)
        self.step = -1

    def expect_local(self, used):
        """As `expect`, for a backward that sends no gradients."""
        self.armed, self.step = False, -1
        for unit in self.buckets:
            unit.n_missing = sum(p in used for p in unit.params)

    def on_grad_ready(self, p):
        super().on_grad_ready(p)
        if not self.armed:
            unit = self.bucket_of[p]
            unit.n_missing -= 1
            if unit.n_missing <= 0:  # less: of several backwards, only the first was counted
                unit.leave()

    def launch(self, bucket):
        bucket.leave()
        super().launch(bucket)

    def finish(self):
        super().finish()
        for unit in self.buckets:  # and those of which nothing was used
            unit.leave()


class Zero3(Zero1):
    """`model` whose weights come home unit by unit.

    units:         modules; None: the items of the outermost ModuleLists and Sequentials.
    stay_below:    units of at most so many elements are never freed.
    The rest as in Zero1. `state_dict()`, `load_state_dict()` and `with model.at_home():` bring
    everything home, as does `close()`: all ranks must call them together."""

    reducer_type = UnitReducer

    def __init__(self, model, t, groups=None, units=None, stay_below=0, overlap=True,
                 broadcast_buffers=True):
        units = items(model) if units is None else list(units)
        vars(self)["plan"] = plan_units(t, model, units, stay_below)
        super().__init__(model, t, groups, overlap=overlap, broadcast_buffers=broadcast_buffers)
        self.remove_hooks = []
        for module in units:
            mine = set(module.parameters())
            self._hook(module, [u for u in self.reducer.buckets if mine & set(u.params)])
        self.root = [u for u in self.reducer.buckets if u.is_root]

    def make_reducer(self, *args):
        return self.reducer_type(self.plan, self.groups, *args)

    def _hook(self, module, units):
        def enter(module, inputs):
            self.reducer.enter(units)

        def leave(module, inputs, output):
            if not current().replaying:  # its backward follows at once
                for unit in units:
                    unit.leave()

        self.remove_hooks += [module.register_forward_pre_hook(enter),
                              module.register_forward_hook(leave)]

    def forward(self, *inputs, **options):
        for unit in [*self.root, *(u for units in self.reducer.order[:1] for u in units)]:
            unit.fetch()
        for unit in self.root:
            unit.bring()
        outputs = super().forward(*inputs, **options)
        if is_grad_enabled():
            if not self.syncing:
                self.reducer.expect_local(leaf_uses(tensors_of(outputs)))
        else:
            for unit in self.root:
                unit.leave()
        return outputs

    @contextmanager
    def at_home(self):
        """`with model.at_home() as module:` every parameter has its array, for reading."""
        for unit in self.reducer.buckets:
            unit.bring()
        self.reducer.at_home = True
        try:
            yield self.module
        finally:
            self.reducer.at_home = False
            for unit in self.reducer.buckets:
                unit.leave()

    def close(self):
        """Bring everything home for good: `module` is an ordinary one again. All ranks together."""
        for unit in self.reducer.buckets:
            unit.bring()
            for p in unit.params:
                p.bring = None
        for remove in self.remove_hooks:
            remove()
        super().close()

    def state_dict(self):
        """The whole model's, as copies, on every rank."""
        with self.at_home():
            return {name: array.copy() for name, array in super().state_dict().items()}

    def load_state_dict(self, state, strict=True):
        with self.at_home():
            result = super().load_state_dict(state, strict)
            for unit in self.reducer.buckets:
                unit.shard.data[...] = unit.block(unit.weights)
        return result


def items(model):
    """The modules with parameters in the outermost lists: ModuleList, Sequential."""
    found, stack = [], [model]
    while stack:
        module = stack.pop()
        children = [m for m in module.children() if any(True for _ in m.parameters())]
        if isinstance(module, (ModuleList, Sequential)):
            found += children
        else:
            stack += reversed(children)
    return found


def plan_units(t, model, units, stay_below):
    """[(parameters, stays, is_root)] of the units, the root's first."""
    owners = {}
    for module in units:
        for p in module.parameters():
            owners.setdefault(p, []).append(module)
    shared = {p for p, modules in owners.items() if len(modules) > 1}
    if shared:
        raise ValueError(f"rank {t.rank}: {len(shared)} parameters are in more than one unit; give "
                         "`units` so that a shared weight is in one of them or in none")
    groups = [[p for p in model.parameters() if p not in owners],
              *([p for p in module.parameters()] for module in units)]
    groups = [[p for p in group if p.requires_grad] for group in groups]
    return [(group, sum(p.numel() for p in group) <= stay_below, i == 0)
            for i, group in enumerate(groups) if group]
