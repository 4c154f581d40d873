"""PyTorch's decoder of Vaswani et al. 2017, and the whole transformer: encoder and decoder.

    x = norm1(x + self_attn(x))                  attends to positions of the target
    x = norm2(x + multihead_attn(x, memory))     attends to the encoder's output, `memory`
    x = norm3(x + linear2(relu(linear1(x))))

With norm_first=True each line is x = x + f(norm(x)). The names of parts and weights are PyTorch's.
For a decoder without an encoder use nn.GPT.
Test: tests/nn/test_transformer_encoder.py
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from minidl.nn import init
from minidl.nn.containers import ModuleList
from minidl.nn.layers import Dropout
from minidl.nn.module import Module
from minidl.nn.norm import LayerNorm
from minidl.nn.transformer import MultiheadAttention
from minidl.nn.transformer_encoder import TransformerEncoder, TransformerEncoderLayer
from minidl.tensor import Tensor, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from minidl.hints import Array
    from minidl.random import Generator


class TransformerDecoderLayer(TransformerEncoderLayer):
    """One layer of the decoder. tgt is (T, N, E) and memory is (S, N, E): N targets of T tokens,
    and N sources of S tokens. With batch_first, tgt is (N, T, E) and memory is (N, S, E)."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[..., Tensor] = "relu", layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
                 generator: Generator | None = None):
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
                         batch_first, norm_first, bias, generator=generator)
        parts = dict(self._modules)
        self._modules.clear()  # the loop below registers all parts again, in PyTorch's order
        for name, part in parts.items():
            setattr(self, name, part)
            if name == "self_attn":
                self.multihead_attn = MultiheadAttention(
                    d_model, nhead, dropout, bias, batch_first=batch_first, generator=generator)
            if name == "norm2":
                self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias)
            if name == "dropout2":
                self.dropout3 = Dropout(dropout)

    def forward(self, tgt: Array, memory: Array, tgt_mask: Array | None = None,
                memory_mask: Array | None = None, tgt_key_padding_mask: Array | None = None,
                memory_key_padding_mask: Array | None = None, tgt_is_causal: bool | None = False,
                memory_is_causal: bool = False) -> Tensor:
        """Returns a Tensor of the shape of tgt. The masks are as in MultiheadAttention."""
        x, memory = wrapped(tgt), wrapped(memory)
        own = dict(attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask,
                   is_causal=tgt_is_causal)
        other = dict(attn_mask=memory_mask, key_padding_mask=memory_key_padding_mask,
                     is_causal=memory_is_causal)
        if self.norm_first:
            x = x + self._attend(self.norm1(x), own)
            x = x + self._look(self.norm2(x), memory, other)
            return x + self._feed_forward(self.norm3(x))
        x = self.norm1(x + self._attend(x, own))
        x = self.norm2(x + self._look(x, memory, other))
        return self.norm3(x + self._feed_forward(x))

    def _look(self, x, memory, masks):
        return self.dropout2(self.multihead_attn(x, memory, memory, need_weights=False, **masks)[0])

    def _feed_forward(self, x):
        return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerDecoder(Module):
    """A chain of num_layers copies of `decoder_layer`. If `norm` is not None, it is the last module
    of the chain."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, tgt: Array, memory: Array, tgt_mask: Array | None = None,
                memory_mask: Array | None = None, tgt_key_padding_mask: Array | None = None,
                memory_key_padding_mask: Array | None = None, tgt_is_causal: bool | None = False,
                memory_is_causal: bool = False) -> Tensor:
        x = tgt
        for layer in self.layers:
            x = layer(x, memory, tgt_mask, memory_mask, tgt_key_padding_mask,
                      memory_key_padding_mask, tgt_is_causal or False, memory_is_causal)
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """Computes decoder(tgt, encoder(src)). src (S, N, E), tgt (T, N, E), or with batch_first (N, S,
    E) and (N, T, E). Returns a Tensor of the shape of tgt."""

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
                 num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[..., Tensor] = "relu",
                 custom_encoder: Module | None = None, custom_decoder: Module | None = None,
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
                 bias: bool = True, *, generator: Generator | None = None):
        super().__init__()
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
                   batch_first, norm_first, bias)

        def norm():
            return LayerNorm(d_model, layer_norm_eps, bias=bias)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options, generator=generator), num_encoder_layers, norm())
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options, generator=generator), num_decoder_layers, norm())
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p, generator=generator)

    def forward(self, src: Array, tgt: Array, src_mask: Array | None = None,
                tgt_mask: Array | None = None, memory_mask: Array | None = None,
                src_key_padding_mask: Array | None = None,
                tgt_key_padding_mask: Array | None = None,
                memory_key_padding_mask: Array | None = None, src_is_causal: bool | None = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask,
                            memory_key_padding_mask, tgt_is_causal, memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """Returns a mask (sz, sz) with which position i attends only to positions j <= i: element
        (i, j) is 0 if j <= i, else -inf."""
        return Tensor(np.triu(np.full((sz, sz), -np.inf, np.float32), 1))
