"""PyTorch's encoder of Vaswani et al. 2017: attention to all positions, then a feed-forward part.

    norm_first=False   x = norm1(x + attention(x))     x = norm2(x + linear2(relu(linear1(x))))
    norm_first=True    x = x + attention(norm1(x))     x = x + linear2(relu(linear1(norm2(x))))

The names of parts and weights are PyTorch's. For the block of a GPT see TransformerBlock
(transformer.py).      Test: tests/nn/test_transformer_encoder.py
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from minidl.nn import functional as F
from minidl.nn.containers import ModuleList
from minidl.nn.layers import Dropout, Linear
from minidl.nn.module import Module
from minidl.nn.norm import LayerNorm
from minidl.nn.transformer import MultiheadAttention
from minidl.tensor import wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from minidl.hints import Array
    from minidl.random import Generator
    from minidl.tensor import Tensor


class TransformerEncoderLayer(Module):
    """One layer of the encoder. x (L, N, E), or (N, L, E) with batch_first. activation: "relu",
    "gelu" or a function."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[..., Tensor] = "relu", layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
                 generator: Generator | None = None):
        super().__init__()
        if isinstance(activation, str) and activation not in ("relu", "gelu"):
            raise ValueError("activation must be 'relu', 'gelu' or a function; got "
                             f"{activation!r}")
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first,
                                            generator=generator)
        self.linear1 = Linear(d_model, dim_feedforward, bias, generator=generator)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, generator=generator)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = getattr(F, activation) if isinstance(activation, str) else activation

    def forward(self, src: Array, src_mask: Array | None = None,
                src_key_padding_mask: Array | None = None, is_causal: bool = False) -> Tensor:
        """Returns a Tensor of the shape of src. The masks are as in MultiheadAttention."""
        x = wrapped(src)
        masks = dict(attn_mask=src_mask, key_padding_mask=src_key_padding_mask,
                     is_causal=is_causal)
        if self.norm_first:
            x = x + self._attend(self.norm1(x), masks)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(x + self._attend(x, masks))
        return self.norm2(x + self._feed_forward(x))

    def _attend(self, x, masks):
        return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

    def _feed_forward(self, x):
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A chain of num_layers copies of `encoder_layer`. If `norm` is not None, it is the last module
    of the chain. All copies start with equal weights, as in PyTorch."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
                 enable_nested_tensor: bool = True):
        # enable_nested_tensor is ignored: in PyTorch it changes only the speed.
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, src: Array, mask: Array | None = None,
                src_key_padding_mask: Array | None = None, is_causal: bool = False) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal or False)
        return x if self.norm is None else self.norm(x)
