"""ZeRO-Offload: what only the optimizer needs lies in host memory, and so does its work.

The plain form: minidl/plain/offload.py. Here: the lanes of its picture run at the same time, pieces
are buckets, memory is pinned, any elementwise optimizer is taken, and updates may be delayed.

        model.half()
        optimizer = Offload(optim.AdamW(model.parameters(), lr=1e-3))     # or model.shards()
        loss.backward()             # gradients stream down, and their device memory is freed
        optimizer.step()            # while bucket k comes up, bucket k+1 is updated

4X bytes cross the link, the fewest if the update is on the host and forward on the device; with a
ZeRO stage 1/n of them on each rank. The weights are bit for bit those of the same optimizer on the
device. The gradients are on the host: clip by `scaler.step(optimizer, max_norm=)` (zero.py).

Delayed update: after `delay_after` steps the host updates with the gradients of step i while the
device runs forward and backward of step i+1, which sees weights one update old:

    at step i      weights of update i-1 come up; the update with gradients i begins
    the first one  brings nothing up: its update is still to be made.  At the end: `finish()`.

Parameters in float32 work too, 8X bytes a step. Lanes: lanes.py; copies: cuda/host_memory.py.
Source: Ren et al. 2021, "ZeRO-Offload" (arXiv 2101.06840).
Test: tests/parallel/zero/test_offload.py, test_offload_snapshot.py
Tutorial: tutorials/12_offload.py
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.cuda.host_memory import computed, pinned, to_device, to_host
from minidl.cuda.launch import contiguous
from minidl.optim import over_ranks, use_master_weights
from minidl.optim.optimizer import called, wants_optimizer
from minidl.parallel.data import flat
from minidl.parallel.data.bucket import cut, is_local
from minidl.parallel.zero.lanes import Modelled, Threads
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from minidl.optim.optimizer import Optimizer


class HostBucket:
    """Parameters whose gradients go down together, and whose weights come up together.

    copies     {parameter: its weights on the host, a leaf: what the optimizer updates}
    grads      {parameter: host array} for gradients; where updates are delayed, a second one that
               the update under way reads"""

    def __init__(self, params, n_grads):
        self.params = params
        xp, dtype, shapes = params[0]._xp, params[0].dtype, [p.shape for p in params]

        def host_arrays():
            array = pinned(xp, sum(p.numel() for p in params), dtype)
            return dict(zip(params, flat.views(array, shapes), strict=True))

        self.grads = [host_arrays() for _ in range(n_grads)]
        self.copies = {p: Tensor(array, requires_grad=True) for p, array in host_arrays().items()}
        for p, copied in self.copies.items():
            copied.array[...] = backend.to_device(p.array, "cpu")
        self.jobs = []
        # parameters, in order, and nothing to them: a set would have another order on every run
        self.ready = {}  # whose gradients are complete and have not been sent
        self.sent = {}  # whose gradients are down, or on their way, since the last step
        self.updated = {}  # whose new weights have not come up


class Offload:
    """`optimizer`, any elementwise one before its first step, moved to the host.

    lanes          Modelled or Threads; None: threads for a GPU, else modelled
    bucket_bytes   a bucket is sent once it has this much; the fewer, the earlier, the more starts
    delay_after    None, or the number of steps after which updates are delayed by one"""

    def __init__(self, optimizer: Optimizer, lanes: Any = None, bucket_bytes: int = 1 << 20,
                 delay_after: int | None = None):
        if wants_optimizer("Offload", optimizer).state or optimizer.low:
            raise ValueError("Offload wants an optimizer before its first step, without master "
                             "weights: it makes them, on the host")
        if getattr(optimizer, "whole_tensors", False) and optimizer.sharded_by:
            raise ValueError(
                f"Offload updates bucket by bucket, and {type(optimizer).__name__} wants the norms "
                "of whole tensors, which lie in several ranks' buckets; got a ZeRO stage's shards. "
                "Take AdamW or SGD, or offload it without ZeRO")
        self.inner, self.delay_after = optimizer, delay_after
        params = optimizer.parameters()
        xp = backend.xp_of([p.array for p in params], "Offload")
        self.lanes = lanes or (Modelled() if xp is np else Threads())
        n_grads = 1 if delay_after is None else 2
        self.buckets = [HostBucket(group, n_grads)  # in the order in which gradients will arrive
                        for group in cut(params[::-1], bucket_bytes)]
        self.bucket_of = {p: b for b in self.buckets for p in b.params}
        self.on_device = {copied: p for b in self.buckets for p, copied in b.copies.items()}
        for group in optimizer.param_groups:
            group["params"] = [self.bucket_of[p].copies[p] for p in group["params"]]
            group["n_steps"] = 0  # among the options, to be kept with them
        use_master_weights(optimizer)
        self.seen = {p: p.version for p in params}  # when we wrote it
        self.updating = []  # jobs of a delayed update
        self.remove_hooks = [p.on_grad_ready(self.on_grad_ready) for p in params if p.requires_grad]

    # -- gradients come down

    def on_grad_ready(self, p):
        """p.grad is complete. Data parallelism's gradients are not, before it has averaged them:
        they go down when they are asked for."""
        if is_local(p):
            return
        bucket = self.bucket_of[p]
        bucket.ready[p] = None
        if len(bucket.ready) == len(bucket.params):
            self.send_down(bucket)

    def send_down(self, bucket):
        """Start what is ready on its way; the device's memory is free when it has gone."""
        params, bucket.ready = bucket.ready, {}
        # where to, now: when the copy runs, a step may have turned the arrays
        going = [(contiguous(p._xp, p.grad.array), bucket.grads[0][p], p in bucket.sent)
                 for p in params]
        bucket.sent |= params
        for p in params:
            p.grad = None
        event = computed(going[0][0])

        def down():
            for g, into, again in going:
                to_host(g, into, event, add=again)

        bucket.jobs.append(self.copy("down", bucket, params, down, ()))

    def copy(self, lane, bucket, params, fn, after):
        return self.lanes.copy(lane, sum(p.nbytes for p in params), fn, after,
                               f"bucket {self.buckets.index(bucket)}")

    def collect(self):
        """All gradients are down or on their way, and the copies on the host have them."""
        self.wait_for_update()
        for bucket in self.buckets:
            bucket.ready |= {p: None for p in bucket.params if p.grad is not None}
            if bucket.ready:
                self.send_down(bucket)
            for p in bucket.sent:
                bucket.copies[p].grad = bucket.grads[0][p]

    def wait_for_update(self):
        """... that was delayed."""
        jobs, self.updating = self.updating, []
        self.lanes.wait(jobs)

    # -- the step

    def step(self, closure: Callable[[], Any] | None = None, *, unscale: Any = 1.0) -> Any:
        """Updates with the gradients that have come down. On return the device has new weights.

        closure: as Optimizer.step takes it."""
        loss = None if closure is None else called(closure)
        self.collect()
        self.follow()
        delayed = self.delay_after is not None and \
            self.inner.param_groups[0]["n_steps"] >= self.delay_after
        coming = []
        for bucket in self.buckets:
            before, bucket.jobs = bucket.jobs, []
            if bucket.updated:
                coming.append(self.send_up(bucket, ()))
                before.append(coming[-1])  # it reads the weights that the update will overwrite
            if not bucket.sent:
                continue
            update = self.lanes.update(sum(p.numel() for p in bucket.sent),
                                       self.update_of(bucket, unscale), before,
                                       f"bucket {self.buckets.index(bucket)}")
            bucket.updated, bucket.sent = bucket.sent, {}
            bucket.grads.reverse()
            if delayed:
                self.updating.append(update)
            else:
                coming.append(self.send_up(bucket, [update]))
        self.lanes.wait(coming)
        for group in self.inner.param_groups:
            group["n_steps"] += 1
        return loss

    def update_of(self, bucket, unscale):
        """A function that takes the optimizer's step on this bucket's part of the groups, with the
        options of this moment."""
        here = {bucket.copies[p] for p in bucket.sent}
        part = copy.copy(self.inner)  # shares state and masters
        part.param_groups = [
            {**group, "params": [p for p in group["params"] if self.inner.leaf_of(p) in here]}
            for group in self.inner.param_groups]

        def update():
            part.step(unscale=unscale)
            for copied in here:
                copied.grad = None

        return update

    def send_up(self, bucket, after):
        """Start the new weights on their way to the device."""
        params, bucket.updated = bucket.updated, {}
        event = computed(next(iter(params)).array)  # the device may still be reading the old ones

        def up():
            for p in params:
                to_device(bucket.copies[p].array, p.array, event)

        for p in params:
            p.version += 1
            self.seen[p] = p.version
        return self.copy("up", bucket, params, up, after)

    def follow(self):
        """Weights on the device that the user has overwritten (loaded, or clamped) come down."""
        for bucket in self.buckets:
            for p in [p for p in bucket.params if p.version != self.seen[p]]:
                bucket.copies[p].array[...] = backend.to_device(p.array, "cpu")
                bucket.copies[p].version += 1
                bucket.updated.pop(p, None)  # an update that was delayed is of what is gone
                self.seen[p] = p.version

    def finish(self) -> None:
        """Bring up the weights of a delayed update: at the end of training."""
        self.wait_for_update()
        self.lanes.wait([self.send_up(bucket, ()) for bucket in self.buckets if bucket.updated])

    # -- as an optimizer is used

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that no step has used."""
        self.lanes.wait([job for bucket in self.buckets for job in bucket.jobs])
        for bucket in self.buckets:
            bucket.ready, bucket.sent, bucket.jobs = {}, {}, []
            for p in bucket.params:
                p.grad = None

    def gradients(self, counted=False):
        """All gradients there are, on the host."""
        return [g for p in self.parameters() if (g := self.gradient(p)) is not None]

    def parameters(self) -> list[Tensor]:
        """What is updated, on the host, with all gradients there."""
        self.collect()
        self.lanes.wait([job for bucket in self.buckets for job in bucket.jobs])
        return self.inner.parameters()

    def gradient(self, p):
        return self.inner.gradient(p)

    def leaf_of(self, p):
        return self.on_device[self.inner.leaf_of(p)]

    @property
    def sharded_by(self):
        return over_ranks.groups_of(self.bucket_of)

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def low(self):
        self.wait_for_update()
        return self.inner.low

    @property
    def state(self):
        self.wait_for_update()
        return self.inner.state

    def state_dict(self) -> dict[str, Any]:
        self.wait_for_update()
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As the optimizer's; the device gets the weights of the masters."""
        self.wait_for_update()
        self.inner.load_state_dict(state)
        self.refresh()
        self.finish()

    def refresh(self):
        """The masters or the device's weights have been overwritten: a copy that differs from the
        device's weights has had an update which has still to come up."""
        self.inner.write_low(self.inner.low)
        self.inner.refresh()
        for bucket in self.buckets:
            self.seen |= {p: p.version for p in bucket.params}
            bucket.updated = {p: None for p, copied in bucket.copies.items() if not np.array_equal(
                                  backend.to_device(p.array, "cpu"), copied.array, equal_nan=True)}

    def memory(self):
        """{"device": bytes, "host": bytes} of weights, gradients and states."""
        device = sum(p.nbytes + (0 if p.grad is None else p.grad.nbytes) for p in self.bucket_of)
        host = sum(p.nbytes for p in [*self.on_device, *self.low])
        host += sum(g.nbytes for b in self.buckets for grads in b.grads for g in grads.values())
        host += sum(getattr(v, "nbytes", 0) for s in self.state.values() for v in s.values())
        return {"device": device, "host": host}

    def close(self) -> None:
        """Take the hooks off the parameters, end the threads."""
        self.finish()
        for remove in self.remove_hooks:
            remove()
        self.lanes.close()
