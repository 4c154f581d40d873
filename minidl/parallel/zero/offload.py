"""ZeRO-Offload: the optimizer's state is in host memory, and the host updates the weights.

The plain form: minidl/plain/offload.py. Here the lanes in the picture of that file run at the same
time. The weights are cut into buckets. Host memory is pinned. Any elementwise optimizer works.
Updates may be delayed.

        model.half()
        optimizer = Offload(optim.AdamW(model.parameters(), lr=1e-3))     # or model.shards()
        loss.backward()             # gradients go down, and their device memory is freed
        optimizer.step()            # while bucket k's weights go up, bucket k+1 is updated

"Down" is from the device to the host, "up" from the host to the device. For X parameters in
float16, 4X bytes cross the link in a step: 2X bytes of gradients and 2X bytes of weights. This is
the minimum if the host updates the weights and the device runs forward. With a ZeRO stage each of n
ranks moves 1/n of these bytes. The weights have the same bits as with the same optimizer on the
device. The gradients are on the host, so clip them by `scaler.step(optimizer, max_norm=)`.

Updates can be delayed after the first `delay_after` steps. Then the host updates with the gradients
of step i, and at the same time the device runs forward and backward of step i+1. So the weights on
the device miss the last update:

    step(), call i           copies the weights of update i-1 to the device, and starts the update
                             with the gradients of step i
    the first delayed call   copies no weights: the device has the last update's weights already
    at the end               call finish()

Parameters in float32 work too, with 8X bytes in a step. lanes.py has the lanes, and
cuda/host_memory.py has the copies.
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
    """Parameters whose gradients are copied to the host together, and whose weights are copied to
    the device together.

    copies     {parameter: a leaf with its weights on the host}; the optimizer updates these leaves
    grads      a list of dicts {parameter: host array for its gradient}. With delayed updates the
               list has two dicts, and the running update reads the second dict. Otherwise the list
               has one dict"""

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
        # These dicts are sets of parameters in a fixed order. A Python set of parameters has
        # another order on every run.
        self.ready = {}  # parameters whose gradients are complete and have not been sent
        self.sent = {}  # parameters whose gradients were sent to the host since the last step
        self.updated = {}  # parameters whose new weights have not been sent to the device


class Offload:
    """Moves an elementwise optimizer to the host. The optimizer must not have made a step yet.

    lanes          a Modelled or a Threads. None means Threads for a GPU, else Modelled
    bucket_bytes   a bucket is complete as soon as its parameters have this many bytes. Small
                   buckets are sent earlier, but each copy costs the link's latency
    delay_after    the number of steps after which updates are delayed by one step. With None no
                   update is delayed

    Raises ValueError if the optimizer already has state or master weights, and for LARS or LAMB on
    the shards of a ZeRO stage."""

    def __init__(self, optimizer: Optimizer, lanes: Any = None, bucket_bytes: int = 1 << 20,
                 delay_after: int | None = None):
        if wants_optimizer("Offload", optimizer).state or optimizer.low:
            raise ValueError("Offload wants an optimizer that has made no step and has no master "
                             "weights, because Offload makes its own master weights on the host; "
                             "got an optimizer with state or master weights. Make a new optimizer")
        if getattr(optimizer, "whole_tensors", False) and optimizer.sharded_by:
            raise ValueError(
                f"Offload wants an elementwise optimizer for the shards of a ZeRO stage; got "
                f"{type(optimizer).__name__}, which needs the norms of whole tensors. With a ZeRO "
                "stage the parts of a tensor are on several ranks. Use AdamW or SGD, or Offload "
                "without ZeRO")
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
            group["n_steps"] = 0  # an option of the group, so that state_dict() has it
        use_master_weights(optimizer)
        self.seen = {p: p.version for p in params}  # p's version when we last wrote p
        self.updating = []  # jobs of a delayed update
        self.remove_hooks = [p.on_grad_ready(self.on_grad_ready) for p in params if p.requires_grad]

    # -- gradients: from the device to the host

    def on_grad_ready(self, p):
        """Starts to copy a bucket to the host when its last gradient is complete. Backward calls
        this when p.grad is complete. Does nothing with data parallelism: the gradient is not
        averaged yet, and collect() copies it later."""
        if is_local(p):
            return
        bucket = self.bucket_of[p]
        bucket.ready[p] = None
        if len(bucket.ready) == len(bucket.params):
            self.send_down(bucket)

    def send_down(self, bucket):
        """Starts to copy the bucket's ready gradients to the host. After the copy their device
        memory is free."""
        params, bucket.ready = bucket.ready, {}
        # The host arrays are chosen now, because step() may swap them before the copy runs.
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
        """Starts to copy all gradients that are still on the device to the host. Sets the host
        arrays as the gradients of the parameters' host copies. Does not wait until the gradients
        have arrived."""
        self.wait_for_update()
        for bucket in self.buckets:
            bucket.ready |= {p: None for p in bucket.params if p.grad is not None}
            if bucket.ready:
                self.send_down(bucket)
            for p in bucket.sent:
                bucket.copies[p].grad = bucket.grads[0][p]

    def wait_for_update(self):
        """Waits until a delayed update is done."""
        jobs, self.updating = self.updating, []
        self.lanes.wait(jobs)

    # -- the step

    def step(self, closure: Callable[[], Any] | None = None, *, unscale: Any = 1.0) -> Any:
        """Updates the weights with all gradients so far. When step() returns, the device has the
        new weights. With a delay the device has the weights of the previous update.

        closure: as in Optimizer.step. Returns the result of closure, or None without a closure."""
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
                before.append(coming[-1])  # this copy reads weights that the update will overwrite
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
        """Returns a function that makes the optimizer's step for this bucket's parameters. The
        function uses the present options (such as lr), even if the options change before it
        runs."""
        here = {bucket.copies[p] for p in bucket.sent}
        part = copy.copy(self.inner)  # shares state and master weights with self.inner
        part.param_groups = [
            {**group, "params": [p for p in group["params"] if self.inner.leaf_of(p) in here]}
            for group in self.inner.param_groups]

        def update():
            part.step(unscale=unscale)
            for copied in here:
                copied.grad = None

        return update

    def send_up(self, bucket, after):
        """Starts to copy the bucket's new weights to the device, when the jobs in `after` have
        ended. Returns the job of the copy."""
        params, bucket.updated = bucket.updated, {}
        event = computed(next(iter(params)).array)  # the device may still read the old weights

        def up():
            for p in params:
                to_device(bucket.copies[p].array, p.array, event)

        for p in params:
            p.version += 1
            self.seen[p] = p.version
        return self.copy("up", bucket, params, up, after)

    def follow(self):
        """If the user has changed weights on the device, copies these weights to the host. For
        instance, the user has loaded or clamped them."""
        for bucket in self.buckets:
            for p in [p for p in bucket.params if p.version != self.seen[p]]:
                bucket.copies[p].array[...] = backend.to_device(p.array, "cpu")
                bucket.copies[p].version += 1
                bucket.updated.pop(p, None)  # a delayed update of the old weights is dropped
                self.seen[p] = p.version

    def finish(self) -> None:
        """Copies the weights of the last delayed update to the device. Call this at the end of
        training."""
        self.wait_for_update()
        self.lanes.wait([self.send_up(bucket, ()) for bucket in self.buckets if bucket.updated])

    # -- the methods of an optimizer

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that no step has used."""
        self.lanes.wait([job for bucket in self.buckets for job in bucket.jobs])
        for bucket in self.buckets:
            bucket.ready, bucket.sent, bucket.jobs = {}, {}, []
            for p in bucket.params:
                p.grad = None

    def gradients(self, counted=False):
        """Returns a list of all gradients. The arrays are on the host."""
        return [g for p in self.parameters() if (g := self.gradient(p)) is not None]

    def parameters(self) -> list[Tensor]:
        """Waits until all gradients are on the host. Returns a list of the parameters that the
        optimizer updates. These parameters are on the host, too."""
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
        """Like the optimizer's load_state_dict(). Then the device gets the values of the master
        weights."""
        self.wait_for_update()
        self.inner.load_state_dict(state)
        self.refresh()
        self.finish()

    def refresh(self):
        """Call this after the master weights or the device's weights were overwritten. Then a host
        copy may differ from the device's weights. In this case the host copy counts as an update
        that has not been sent to the device yet."""
        self.inner.write_low(self.inner.low)
        self.inner.refresh()
        for bucket in self.buckets:
            self.seen |= {p: p.version for p in bucket.params}
            bucket.updated = {p: None for p, copied in bucket.copies.items() if not np.array_equal(
                                  backend.to_device(p.array, "cpu"), copied.array, equal_nan=True)}

    def memory(self):
        """Returns {"device": bytes, "host": bytes}, the memory of weights, gradients and state."""
        device = sum(p.nbytes + (0 if p.grad is None else p.grad.nbytes) for p in self.bucket_of)
        host = sum(p.nbytes for p in [*self.on_device, *self.low])
        host += sum(g.nbytes for b in self.buckets for grads in b.grads for g in grads.values())
        host += sum(getattr(v, "nbytes", 0) for s in self.state.values() for v in s.values())
        return {"device": device, "host": host}

    def close(self) -> None:
        """Copies the weights of the last delayed update to the device, removes the hooks from the
        parameters, and ends the threads."""
        self.finish()
        for remove in self.remove_hooks:
            remove()
        self.lanes.close()
