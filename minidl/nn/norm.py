"""Normalisation layers.

    y = (x - mean) / sqrt(var + eps) * weight + bias

These elements share one mean and one var:

    LayerNorm      the last dimensions of each sample
    RMSNorm        the last dimensions of each sample. It divides by their root mean square, and
                   subtracts no mean
    GroupNorm      the channels of a group, in one sample
    InstanceNorm   a channel of one sample
    BatchNorm      a channel, in the whole batch
    SyncBatchNorm  a channel, in the batches of all ranks: parallel/data/sync_batchnorm.py

Ops: minidl/ops/norm.py   Test: tests/nn/test_layers.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.mode import current
from minidl.nn import functional as F
from minidl.nn.module import Module, Parameter
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.hints import Array, Sizes


class LayerNorm(Module):
    """Normalises over the last dimensions. normalized_shape: the sizes of these dimensions. It is
    also the shape of weight and bias."""

    def __init__(self, normalized_shape: Sizes, eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True):
        super().__init__()
        self.normalized_shape, self.eps = _as_tuple(normalized_shape), eps
        _affine(self, self.normalized_shape, elementwise_affine, elementwise_affine and bias)

    def forward(self, x: Array) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine="
                f"{self.weight is not None}, bias={self.bias is not None}")


class RMSNorm(Module):
    """Divides by the root mean square over the last dimensions. normalized_shape: the sizes of
    these dimensions. eps=None uses the machine epsilon of x's dtype, as PyTorch does."""

    def __init__(self, normalized_shape: Sizes, eps: float | None = None,
                 elementwise_affine: bool = True):
        super().__init__()
        self.normalized_shape, self.eps = _as_tuple(normalized_shape), eps
        weight = Parameter(np.ones(self.normalized_shape, np.float32))
        self.register_parameter("weight", weight if elementwise_affine else None)

    def forward(self, x: Array) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self):
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine="
                f"{self.weight is not None}")


class GroupNorm(Module):
    """Divides the channels into num_groups groups, and normalises over each group. x (N, C, ...);
    weight and bias (C,)."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True):
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels {num_channels} must be divisible by "
                             f"num_groups {num_groups}")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        _affine(self, (num_channels,), affine, affine)

    def forward(self, x: Array) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return (f"{self.num_groups}, {self.num_channels}, eps={self.eps}, "
                f"affine={self.weight is not None}, bias={self.bias is not None}")


class _RunningNorm(Module):
    """The common part of batch norm and instance norm: running averages. `ndims`: the numbers of
    dimensions that an input may have."""
    ndims = ()

    def __init__(self, num_features, eps, momentum, affine, track_running_stats):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.track_running_stats = track_running_stats
        _affine(self, (num_features,), affine, affine)
        for name, array in (("running_mean", np.zeros(num_features, np.float32)),
                            ("running_var", np.ones(num_features, np.float32)),
                            ("num_batches_tracked", np.zeros((), np.int64))):
            self.register_buffer(name, Tensor(array) if track_running_stats else None)

    def check(self, x):
        if x.ndim not in self.ndims:
            raise ValueError(f"{type(self).__name__} wants {' or '.join(map(str, self.ndims))} "
                             f"dimensions, got shape {tuple(x.shape)}")

    def extra_repr(self):
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
                f"affine={self.weight is not None}, bias={self.bias is not None}, "
                f"track_running_stats={self.track_running_stats}")


class BatchNorm(_RunningNorm):
    """In training, normalises with the mean and variance of the batch. In evaluation, normalises
    with running averages. Each batch in training changes the running averages: running = (1 -
    momentum) * running + momentum * batch. running_var averages unbiased variances. With
    momentum=None, the running averages are the plain averages of all batches so far."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, x: Array) -> Tensor:
        self.check(x)
        use_batch = self.training or not self.track_running_stats
        momentum = self.momentum
        if self.training and self.track_running_stats and not current().replaying:
            self.num_batches_tracked.fill_(self.num_batches_tracked.item() + 1)
            if momentum is None:
                momentum = 1 / self.num_batches_tracked.item()
        return self.batch_norm(x, use_batch, 0.0 if momentum is None else momentum)

    def batch_norm(self, x, use_batch, momentum):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias,
                            use_batch, momentum, self.eps)


class BatchNorm1d(BatchNorm):
    """Batch norm of vectors (N, C) or sequences (N, C, L). C is num_features."""
    ndims = (2, 3)


class BatchNorm2d(BatchNorm):
    """Batch norm of images (N, C, H, W). C is num_features."""
    ndims = (4,)


class InstanceNorm(_RunningNorm):
    """Normalises each channel of each sample separately. With track_running_stats it has running
    averages, as BatchNorm does."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = False, track_running_stats: bool = False):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, x: Array) -> Tensor:
        self.check(x)
        batch = x if x.ndim == self.ndims[-1] else x.unsqueeze(0)
        use_input = self.training or not self.track_running_stats
        y = F.instance_norm(batch, self.running_mean, self.running_var, self.weight, self.bias,
                            use_input, self.momentum, self.eps)
        return y if batch is x else y.squeeze(0)


class InstanceNorm1d(InstanceNorm):
    """Instance norm of sequences (N, C, L) or (C, L). C is num_features."""
    ndims = (2, 3)


class InstanceNorm2d(InstanceNorm):
    """Instance norm of images (N, C, H, W) or (C, H, W). C is num_features."""
    ndims = (3, 4)


def _affine(module, shape, weight, bias):
    """Registers the parameters weight (ones) and bias (zeros). If the argument `weight` or `bias`
    is False, registers None under this name."""
    module.register_parameter("weight", Parameter(np.ones(shape, np.float32)) if weight else None)
    module.register_parameter("bias", Parameter(np.zeros(shape, np.float32)) if bias else None)


def _as_tuple(shape):
    return (shape,) if isinstance(shape, int) else tuple(shape)
