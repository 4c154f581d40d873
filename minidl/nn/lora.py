"""LoRA: fine-tune a layer with a product of two thin matrices. The weight itself is frozen.

    y = x W^T + b + scale (x A^T) B^T        A (r, in), B (out, r), scale = alpha / r
        └ frozen ┘         └ trained ┘

W (out, in) gets no gradient, so it needs no optimizer state. The layer trains r (in + out) numbers
in place of in * out. With in = out = 1024 and r = 8 this is 1/64 of the numbers. B is zero at
first, so the layer first computes the same as without A and B.
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
    """A Linear whose weight and bias are frozen. lora_A (rank, in) and lora_B (out, rank) are
    trained. alpha: the product of B and A is multiplied by alpha / rank. If alpha is
    None, this factor is 1. dropout: the probability of dropout on the input of A."""

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
        """Returns a LoRALinear that computes the same as `linear`. The parameters of `linear` are
        not copied: the new layer uses the same Parameters. They are frozen in both layers."""
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
        """Returns a Linear with the weight W + scale B A. This Linear computes the same function as
        the LoRALinear (without its dropout). This Linear needs no extra products with A and B."""
        merged = Linear(self.in_features, self.out_features, self.bias is not None)
        xp = self.weight._xp
        merged.weight.data = self.weight.array + self.scale * xp.matmul(self.lora_B.array,
                                                                       self.lora_A.array)
        if self.bias is not None:
            merged.bias.data = self.bias.array.copy()
        return merged

    def extra_repr(self):
        return f"{super().extra_repr()}, rank={self.rank}, scale={self.scale:g}"
