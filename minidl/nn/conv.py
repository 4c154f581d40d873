"""Convolution and pooling layers.

Ops: minidl/ops/conv.py, pool.py; minidl/ops/extra/conv_transpose.py, interpolate.py
Test: tests/nn/test_layers.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.layers import empty_parameter
from minidl.nn.module import Module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minidl.hints import Array, Sizes
    from minidl.random import Generator
    from minidl.tensor import Tensor


class _Conv(Module):
    """The common part of all convolutions. weight: (out_channels, in_channels / groups, *kernel).
    Initial values: uniform in +-1/sqrt(fan_in), as in Linear. fan_in is the number of input
    elements that one output element sums: (in_channels / groups) * (the kernel's elements)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 *, generator: Generator | None = None):
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError("in_channels and out_channels must be divisible by groups; got "
                             f"groups={groups}, in_channels={in_channels}, "
                             f"out_channels={out_channels}")
        one = isinstance(kernel_size, int)
        kernel = (kernel_size,) * self.n_dims if one else tuple(kernel_size)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = empty_parameter(*self.channels(in_channels, out_channels, groups), *kernel)
        self.register_parameter("bias", empty_parameter(out_channels) if bias else None)
        init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if bias:
            bound = 1 / math.sqrt(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound, generator)

    @staticmethod
    def channels(n_in, n_out, groups):
        """Returns the sizes of the first two dimensions of the weight."""
        return n_out, n_in // groups

    def forward(self, x: Array) -> Tensor:
        return self.op(x, self.weight, self.bias, self.stride, self.padding, self.dilation,
                       self.groups)

    def extra_repr(self):
        text = (f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
                f"stride={self._each(self.stride)}")
        usual = dict(padding=0, dilation=1, output_padding=0, groups=1)
        for name, value in usual.items():
            own = getattr(self, name, value)
            shown = own if name == "groups" or isinstance(own, str) else self._each(own)
            if shown not in (value, self._each(value)):
                text += f", {name}={shown}"
        return text + ("" if self.bias is not None else ", bias=False")

    def _each(self, value):
        """Returns a tuple with one value for each dimension of the image. An int is repeated."""
        return (value,) * self.n_dims if isinstance(value, int) else tuple(value)


class Conv1d(_Conv):
    """Convolution of sequences. x (N, in_channels, L) -> (N, out_channels, L')."""
    n_dims, op = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Convolution of images. x (N, in_channels, H, W) -> (N, out_channels, H', W')."""
    n_dims, op = 2, staticmethod(F.conv2d)


class _ConvTranspose(_Conv):
    """The common part of transposed convolutions. weight: (in_channels, out_channels / groups,
    *kernel)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, bias: bool = True,
                 dilation: Sizes = 1, *, generator: Generator | None = None):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups,
                         bias, generator=generator)
        self.output_padding = output_padding

    @staticmethod
    def channels(n_in, n_out, groups):
        return n_in, n_out // groups

    def forward(self, x: Array) -> Tensor:
        return self.op(x, self.weight, self.bias, self.stride, self.padding, self.output_padding,
                       self.groups, self.dilation)


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of sequences. x (N, in_channels, L) -> (N, out_channels, L'). With
    stride 2, L' is about 2 L."""
    n_dims, op = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of images. x (N, in_channels, H, W) -> (N, out_channels, H', W'). With
    stride 2, H' is about 2 H and W' is about 2 W."""
    n_dims, op = 2, staticmethod(F.conv_transpose2d)


def _pool_text(layer):
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return f"kernel_size={layer.kernel_size}, stride={stride}, padding={layer.padding}"


class MaxPool2d(Module):
    """The largest element of each window. x (N, C, H, W) -> (N, C, H', W'). The default stride is
    kernel_size."""
    pool = staticmethod(F.max_pool2d)

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, *,
                 ceil_mode: bool = False):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode = ceil_mode

    def extra_repr(self):
        return f"{_pool_text(self)}, dilation=1, ceil_mode={self.ceil_mode}"

    def forward(self, x: Array) -> Tensor:
        return self.pool(x, self.kernel_size, self.stride, self.padding, ceil_mode=self.ceil_mode)


class AvgPool2d(MaxPool2d):
    """The mean of each window. x (N, C, H, W) -> (N, C, H', W')."""
    pool = staticmethod(F.avg_pool2d)

    def extra_repr(self):
        return _pool_text(self)


class MaxPool1d(MaxPool2d):
    """The largest element of each window. x (N, C, L) -> (N, C, L')."""
    pool = staticmethod(F.max_pool1d)


class AdaptiveAvgPool2d(Module):
    """The mean of each window. The windows are chosen so that the result has the size output_size.
    x (N, C, H, W) -> (N, C, *output_size)."""
    pool = staticmethod(F.adaptive_avg_pool2d)

    def __init__(self, output_size: int | Sequence[int | None]):
        super().__init__()
        self.output_size = output_size

    def extra_repr(self):
        return f"output_size={self.output_size}"

    def forward(self, x: Array) -> Tensor:
        return self.pool(x, self.output_size)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    pool = staticmethod(F.adaptive_max_pool2d)


class Upsample(Module):
    """Resizes images to the size `size`, or multiplies their size by `scale_factor`. The values of
    mode are the same as in F.interpolate."""

    def __init__(self, size: Sizes | None = None,
                 scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
                 align_corners: bool | None = None):
        super().__init__()
        self.options = dict(size=size, scale_factor=scale_factor, mode=mode,
                            align_corners=align_corners)

    def extra_repr(self):
        size, factor = self.options["size"], self.options["scale_factor"]
        if factor is None:
            return f"size={size}, mode={self.options['mode']!r}"
        factor = tuple(map(float, factor)) if isinstance(factor, tuple) else float(factor)
        return f"scale_factor={factor}, mode={self.options['mode']!r}"

    def forward(self, x: Array) -> Tensor:
        return F.interpolate(x, **self.options)
