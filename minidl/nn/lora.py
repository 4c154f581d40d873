"""LoRA: fine-tune a layer by a product of two thin matrices, its weight being frozen.

    y = x W^T + b + scale (x A^T) B^T        A (r, in), B (out, r), scale = alpha / r
        └ frozen ┘         └ trained ┘

W (out, in) gets no gradient, hence no optimizer state; beside its in * out weights, r (in + out)
are trained: with in = out = 1024 and r = 8 one for 64. B starts at zero, so that the layer starts
as it was.
Source: Hu et al. 2021 (arXiv 2106.09685).      Test: tests/nn/test_lora.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.layers import Dropout, Linear, empty_parameter
from minidl.nn.module import Parameter

if TYPE_CHECKING:
    from minidl.hints import Array
    from minidl.random import Generator
    from minidl.tensor import Tensor


class LoRALinear(Linear):
    """A Linear whose weight and bias are frozen, beside lora_A (rank, in) and lora_B (out, rank),
    which are trained. dropout: on what goes into A."""

    def __init__(self, in_features: int, out_features: int, rank: int = 8,
                 alpha: float | None = None, dropout: float = 0.0, bias: bool = True,
                 generator: Generator | None = None):
        if rank < 1:
            raise ValueError(f"LoRALinear: rank is {rank}, want 1 or more")
        super().__init__(in_features, out_features, bias, generator=generator)
        self.rank, self.scale = rank, (rank if alpha is None else alpha) / rank
        self.lora_A = empty_parameter(rank, in_features)
        self.lora_B = Parameter(np.zeros((out_features, rank), np.float32))
        self.drop = Dropout(dropout)
        init.kaiming_uniform_(self.lora_A, a=math.sqrt(5), generator=generator)
        self.weight.requires_grad_(False)
        if self.bias is not None:
            self.bias.requires_grad_(False)

    @classmethod
    def from_linear(cls, linear: Linear, rank: int = 8, alpha: float | None = None,
                    dropout: float = 0.0, generator: Generator | None = None) -> LoRALinear:
        """A LoRALinear that starts as `linear` and holds its parameters, frozen now, not copies."""
        layer = cls(linear.in_features, linear.out_features, rank, alpha, dropout,
                    linear.bias is not None, generator)
        layer.weight, layer.bias = linear.weight, linear.bias
        for p in linear.parameters():
            p.requires_grad_(False)
        return layer

    def forward(self, x: Array) -> Tensor:
        low = F.linear(self.drop(x), self.lora_A)  # (..., in) -> (..., rank)
        return super().forward(x) + F.linear(low, self.lora_B) * self.scale

    def merge(self) -> Linear:
        """A Linear with W + scale B A as its weight: the same function, at no cost for the rank."""
        merged = Linear(self.in_features, self.out_features, self.bias is not None)
        xp = self.weight._xp
        merged.weight.data = self.weight.array + self.scale * xp.matmul(self.lora_B.array,
                                                                       self.lora_A.array)
        if self.bias is not None:
            merged.bias.data = self.bias.array.copy()
        return merged

    def extra_repr(self):
        return f"{super().extra_repr()}, rank={self.rank}, scale={self.scale:g}"
