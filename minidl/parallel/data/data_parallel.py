"""Data parallelism: every rank has the whole model and a share of the batch.

The plain form: minidl/plain/data_parallel.py. Here `DataParallel` fills buckets and sends them
while backward still runs (bucket.py). `DataParallel` allows parameters that a rank did not use,
ranks without samples (join.py), and backwards that do not send (`no_sync`). Before gradients are
sent, a header tells every rank how many samples all ranks have, and which parameters they used
(header.py).

`average_gradients` works without buckets, between backward and the optimizer's step. Use it for
parameters that only some ranks share, such as experts. Use it also if the order in which gradients
arrive differs between ranks.

In a step the n ranks run two ring all-reduces: one of the gradients, and one of the header. In the
all-reduce of K bytes of gradients, each rank sends 2(n-1)/n K bytes.

Sources: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704); Goyal et al. 2017, section 3.
Test: tests/parallel/data/test_data_parallel.py, test_data_parallel_backward.py (which
backward sends), test_data_parallel_gpu.py
Tutorial: tutorials/07_ring.py   Measured in: benchmarks/bench_data_parallel.py
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import accumulate_dtype, by_dtype
from minidl.backward import gradient_or_zeros, leaf_uses
from minidl.comm import ring, tree
from minidl.comm.transport import device
from minidl.mode import is_grad_enabled
from minidl.nn.module import Module
from minidl.parallel.data import flat, header, samples
from minidl.parallel.data.bucket import Bucket, Reducer, cut, default_all_reduce, weighted_mean
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from minidl.comm.transport.protocol import Transport


def broadcast_state(t: Transport, tensors: Iterable[Tensor], root: int = 0) -> None:
    """Overwrites `tensors` (parameters or buffers) with rank root's values. Sends one broadcast for
    each dtype. Collective."""
    for group in by_dtype(tensors).values():
        buffer = flat.flatten([x.array for x in group])
        (device.broadcast if device.on_device(buffer) else tree.broadcast)(t, buffer, root)
        flat.unflatten(buffer, [x.array for x in group])
        for x in group:
            x.version += 1


def average_gradients(t: Transport, params: Iterable[Tensor], n_samples: float = 1,
                      all_reduce: Callable[..., Any] | None = None) -> None:
    """Replaces every gradient by the mean over ranks, weighted by each rank's `n_samples`.
    Collective.

    Call this between backward and step. A parameter without a gradient counts as zeros and gets the
    mean, so all ranks send the same number of bytes. fp16 gradients are summed in fp32. all_reduce:
    a function f(t, array) that sums in place. With None the default for the device is used."""
    params = list(params)
    total = ring.all_reduce(t, np.array([n_samples]))
    all_reduce = all_reduce or default_all_reduce(params)
    for group in by_dtype(params).values():
        grads = [gradient_or_zeros(p) for p in group]
        buffer = flat.flatten(grads, accumulate_dtype(group[0].dtype))
        weighted_mean(t, buffer, n_samples, total[0], all_reduce)
        for p, mean in zip(group, flat.views(buffer, [p.shape for p in group])):
            p.grad = mean.astype(p.dtype, copy=False)


def check_arguments(who, model, t):
    """Raises TypeError unless model is a Module and t is a transport."""
    if not (isinstance(model, Module) and hasattr(t, "rank")):
        raise TypeError(f"{who} wants a model (an nn.Module) and the transport of its ranks, such "
                        f"as minidl.comm.world(); got a {type(model).__name__} as the model and a "
                        f"{type(t).__name__} as the transport")


class DataParallel(Module):
    """A model that every rank of `t` holds. Its gradients are averaged during backward.

        model = DataParallel(model, t)          # all ranks start from rank 0's parameters
        loss = F.cross_entropy(model(x), y)     # x: this rank's share of the batch
        loss.backward()                         # on return, p.grad is the same on all ranks
        optimizer.step()

    all_reduce:    any f(t, array) that sums in place. It must be the same function on all ranks.
                   The default is the ring. For a model on a GPU the default is in
                   comm/transport/device.py: NCCL, a CUDA-aware MPI, or copies through pinned
                   memory. The attribute `way` names the choice and its reason; print(model) shows
                   `way`.
    bucket_bytes, first_bucket_bytes:  a bucket is complete as soon as its parameters have this many
                   bytes. The first bucket is smaller, so that communication starts early.
    overlap:       if True, a background thread sends while backward goes on. If False, backward
                   waits until each full bucket is sent.
    broadcast_buffers: if True, every rank gets rank 0's buffers (batch norm's statistics) before
                   each training forward.
    make_buckets:  a function that makes the buckets (see Reducer). These buckets are never rebuilt.
                   Used by Compressed and the ZeRO stages.
    without:       parameters of the model that another wrapper averages.

    If no rank used a parameter, its gradient does not change. If only some ranks used a parameter,
    its gradient counts as zeros on the other ranks. A parameter with `is_local` (an expert that
    only some ranks hold) is not averaged. You need not declare unused parameters in advance.

    Each rank's gradients are weighted by its number of samples. This number is the length of the
    first dimension of the first input (samples.py). You can pass another number in the call, as
    n_samples=, for instance the number of tokens."""

    def __init__(self, model: Module, t: Transport, all_reduce: Callable[..., Any] | None = None,
                 bucket_bytes: float = 25 << 20, first_bucket_bytes: float = 1 << 20,
                 overlap: bool = True, broadcast_buffers: bool = True,
                 make_buckets: Callable[..., Any] | None = None, without: Iterable[Tensor] = ()):
        super().__init__()
        self.wants_plain(model, t)
        if all_reduce is not None and not callable(all_reduce):
            raise TypeError(f"rank {t.rank}: {type(self).__name__} wants a function as "
                            f"all_reduce=, such as ring.all_reduce; got {all_reduce!r}")
        self.module = model
        self.t, self.way = t, "host memory"
        self.broadcast_buffers = broadcast_buffers
        self.syncing = True
        common = [p for p in model.parameters() if not p.is_local and p not in without]
        params = [p for p in common if p.requires_grad]
        self.frozen = [p for p in common if not p.requires_grad]
        if not params:
            raise ValueError(f"rank {t.rank}: no parameter requires a gradient; wanted at least "
                             "one parameter to train. Set requires_grad=True before you wrap the "
                             "model")
        if all_reduce is None:
            self.t, self.way = t, _ = device.connect(t, params[0].array)
        broadcast_state(t, [*common, *model.buffers()])
        all_reduce = all_reduce or default_all_reduce(params)

        def averaged(order):
            return [Bucket(group, all_reduce)
                    for group in cut(order, bucket_bytes, first_bucket_bytes)]

        self.reducer = Reducer(t, params, all_reduce, make_buckets or averaged,
                               adapt=make_buckets is None, overlap=overlap)

    @classmethod
    def wants_plain(cls, model, t):
        """Raises TypeError unless model is a Module that is not wrapped yet, and t is a
        transport."""
        check_arguments(cls.__name__, model, t)
        if isinstance(model, DataParallel):
            raise TypeError(
                f"rank {t.rank}: wanted a model to wrap in {cls.__name__}; got a model that is "
                f"already wrapped in {type(model).__name__}, so its gradients would be sent twice. "
                "Use only one wrapper. ZeRO and Compressed cannot be combined: ZeRO divides "
                "gradients over ranks, and Compressed needs whole gradients")

    def forward(self, *inputs: Any, n_samples: float | None = None, **options: Any) -> Any:
        if is_grad_enabled():
            self._share_buffers()
        for p in self.frozen:
            if p.requires_grad:
                raise RuntimeError(
                    f"rank {self.t.rank}: {self.name_of(p)} was frozen when the model was wrapped, "
                    "and now has requires_grad=True. Its gradient would not be averaged. Set "
                    "requires_grad before you wrap the model")
        outputs = self.module(*inputs, **options)
        if is_grad_enabled():
            if n_samples is None:
                n_samples = self._count(inputs)
            self.reducer.expect(leaf_uses(tensors_of(outputs)), n_samples, sends=self.syncing)
        return outputs

    def _count(self, inputs):
        """Returns the number of samples of a forward with these inputs. Raises TypeError if the
        inputs do not show this number."""
        who = f"rank {self.t.rank}"
        if not inputs:
            raise TypeError(f"{who}: wanted a positional input, whose first dimension is the "
                            "number of samples (gradients are weighted by this number); got no "
                            "positional input. Pass n_samples=")
        if self.t.size > 1 and (layer := samples.tokens_first(self.module)):
            raise TypeError(f"{who}: {layer} has batch_first=False, so the first dimension of its "
                            "input is not the number of samples. Gradients are weighted by this "
                            "number. Pass n_samples=, or make the layer with batch_first=True")
        return samples.count(who, inputs[0])

    @property
    def n_samples(self):
        """The number of samples of the backwards under no_sync whose gradients are not sent yet."""
        return self.reducer.unsent.n_samples

    def name_of(self, parameter):
        return next(name for name, p in self.module.named_parameters() if p is parameter)

    @contextmanager
    def no_sync(self):
        """A context in which backward adds to the local gradients and sends nothing. The next
        backward outside of the context averages the sum of all these gradients. Run the forward
        inside the context, too."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def absent(self, loss: Any = None) -> None:
        """Takes part in one backward of the other ranks, if this rank has no batch (join.py).

        Afterwards p.grad is the same as on the other ranks: the mean over their samples. loss: only
        ZeRO 3 uses it (zero3.py). Raises TypeError if the model has a layer that waits for all
        ranks in forward, such as SyncBatchNorm."""
        waits = [name for name, m in self.module.named_modules() if hasattr(m, "joins_ranks")]
        if waits and self.training:
            raise TypeError(f"rank {self.t.rank}: absent() runs no forward, but the layer "
                            f"{waits[0]} waits for all ranks in its forward (as SyncBatchNorm "
                            "does). Instead of absent(), run an empty batch: "
                            "(model(x[:0]).sum() * 0).backward()")
        self._share_buffers()
        self.reducer.absent()

    def _share_buffers(self):
        if self.training and self.broadcast_buffers:
            broadcast_state(self.t, list(self.module.buffers()))

    def bytes_sent(self, n_backwards: int = 1) -> int:
        """Returns the number of bytes that this rank sends around a ring in one step. Counts
        gradients, headers, and the weights of a ZeRO stage. Does not count buffers, gradient norms,
        or the check for skipped steps. n_backwards: the number of backward passes in the step that
        send gradients."""
        ahead = header.bytes_sent(len(self.reducer.params), self.t.size, self.t.rank)
        return n_backwards * ahead + sum(b.bytes_sent(self.t, n_backwards)
                                         for b in self.reducer.buckets)

    def communication_buffers(self):
        """Returns a list of the arrays that are kept for sending. They are the buckets and the
        transport's scratch memory. (fp32 gradients are views of the buckets.)"""
        buckets = [b.flat for b in self.reducer.buckets if b.flat is not None]
        return [*buckets, self.reducer.t.scratch(0, np.uint8)]

    def extra_repr(self):
        return f"rank {self.t.rank} of {self.t.size}, {self.way}"

    def close(self) -> None:
        """Ends the communication thread and removes the hooks from the parameters."""
        self.reducer.close()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the wrapped model's state dict. It does not depend on the number of ranks."""
        return self.module.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        return self.module.load_state_dict(state_dict, strict)


def tensors_of(outputs):
    """Returns a list of all Tensors in `outputs`. outputs: a Tensor, or nested tuples, lists and
    dicts."""
    if isinstance(outputs, Tensor):
        return [outputs]
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return [x for y in outputs for x in tensors_of(y)]
    return []
