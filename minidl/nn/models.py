"""Three models that the tutorials train: an MLP, a small CNN, a GPT.

Test: tests/nn/test_models.py   Trained in: tutorials/07_ring.py, tutorials/train_gpt.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend, random
from minidl.memory.recompute import recompute_sequential
from minidl.mode import no_grad
from minidl.nn import init
from minidl.nn.containers import ModuleList, Sequential
from minidl.nn.conv import AdaptiveAvgPool2d, Conv2d, MaxPool2d
from minidl.nn.layers import Dropout, Embedding, Flatten, Linear, ReLU
from minidl.nn.module import Module
from minidl.nn.norm import BatchNorm2d, LayerNorm
from minidl.nn.transformer import FeedForward, TransformerBlock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from minidl.hints import Array
    from minidl.random import Generator
    from minidl.tensor import Tensor


def MLP(*widths: int, activation: Callable[[], Module] = ReLU,
        generator: Generator | None = None) -> Sequential:
    """Returns a chain of Linear layers, widths[0] -> widths[1] -> ..., with `activation` between
    two layers."""
    layers = []
    for n_in, n_out in zip(widths[:-1], widths[1:]):
        layers += [Linear(n_in, n_out, generator=generator), activation()]
    return Sequential(*layers[:-1])


def CNN(in_channels: int = 1, n_classes: int = 10, width: int = 16,
        generator: Generator | None = None) -> Sequential:
    """Returns a small CNN. It has two stages of convolution, batch norm and ReLU, with max pooling
    between the stages. An average over the image and a Linear follow the stages.
    x (N, in_channels, H, W) -> (N, n_classes). H and W must be at least 2."""
    def stage(n_in, n_out):
        return [Conv2d(n_in, n_out, 3, padding=1, bias=False, generator=generator),
                BatchNorm2d(n_out), ReLU()]

    head = AdaptiveAvgPool2d(1), Flatten(), Linear(2 * width, n_classes, generator=generator)
    return Sequential(*stage(in_channels, width), MaxPool2d(2), *stage(width, 2 * width), *head)


class GPT(Module):
    """A decoder-only transformer. ids (N, T), integers -> logits (N, T, vocab_size). T is at most
    `context`.

    tied: if True, the output layer and the embedding share one weight.
    init_std: the initial weights are drawn from N(0, init_std), as in GPT-2. There are 2 * n_layers
        projections whose results are added to the residual stream. Their weights are divided by
        sqrt(2 * n_layers), so that the sum does not grow with the number of layers. An init_std of
        0.02 is right for widths near 768. A smaller width needs larger weights: a model of width 96
        learns in half as many steps with init_std 0.08.
    feed_forward: as in TransformerBlock. partial(nn.MoE, n_experts=8) makes mixtures of experts.
    recompute: 0 keeps all activations. A number n divides the blocks into n segments. Each segment
        keeps only its input, and backward runs the blocks of the segment again. A list of tuples
        (start, stop, recomputed) defines other segments (memory/recompute_plan.py).
    Source: Radford et al. 2019."""

    def __init__(self, vocab_size: int, context: int, n_layers: int = 4, n_heads: int = 8,
                 width: int = 256, dropout: float = 0.0, bias: bool = True, tied: bool = True,
                 generator: Generator | None = None, feed_forward: Callable = FeedForward,
                 init_std: float = 0.02, recompute: Any = 0):
        super().__init__()
        self.context, self.recompute = context, recompute
        self.token = Embedding(vocab_size, width, generator=generator)
        self.position = Embedding(context, width, generator=generator)
        self.drop = Dropout(dropout)
        self.blocks = ModuleList(TransformerBlock(width, n_heads, dropout, bias, generator,
                                                  feed_forward) for _ in range(n_layers))
        self.norm = LayerNorm(width, bias=bias)
        self.head = Linear(width, vocab_size, bias=False, generator=generator)
        for name, p in self.named_parameters():
            if name.endswith(("proj.weight", "down.weight")):
                init.normal_(p, std=init_std / math.sqrt(2 * n_layers), generator=generator)
            elif p.ndim == 2:
                init.normal_(p, std=init_std, generator=generator)
            elif name.endswith("bias"):
                init.zeros_(p)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, ids: Array, positions: Array | None = None) -> Tensor:
        """Returns the logits (N, T, vocab_size). positions: None, or (N, T) if a row has several
        texts. data.lengths.pack makes such rows. The positions of each text begin at 0. A token
        attends only to tokens of the same text. Raises ValueError if T is larger than `context`."""
        x, mask = self.embed(ids, positions), {}
        if positions is not None:
            mask["attn_mask"] = self.one_text(backend.array_of(positions))
        blocks = [partial(block, **mask) for block in self.blocks]
        if self.recompute:
            x = recompute_sequential(blocks, x, self.recompute)
        else:
            for block in blocks:
                x = block(x)
        return self.head(self.norm(x))

    def embed(self, ids, positions=None):
        """Returns the input of the first block, (N, T, width)."""
        T = ids.shape[-1]
        if T > self.context:
            raise ValueError(f"GPT: a text can have at most {self.context} tokens, because this "
                             f"is the context of the model; got {T}")
        if positions is None:
            positions = self.positions(backend.xp_of([backend.array_of(ids)]), T)
        return self.drop(self.token(ids) + self.position(positions))

    @staticmethod
    def positions(xp, n_tokens):
        """Returns the positions of n_tokens tokens: 0, 1, .... parallel/model/context.py replaces
        this method if a text is divided among ranks."""
        return xp.arange(n_tokens)

    @staticmethod
    def one_text(positions):
        """Returns a mask, (N, 1, T, T) bool. Element (n, 0, i, j) is True if the tokens i and j of
        row n belong to the same text. Padding tokens have position 0, so each counts as a separate
        text."""
        text = (positions == 0).cumsum(axis=1)
        return text[:, None, :, None] == text[:, None, None, :]

    def generate(self, ids: Array | Sequence[Sequence[int]], n_tokens: int,
                 temperature: float = 1.0, top_k: int | None = None,
                 generator: Generator | None = None) -> np.ndarray:
        """Returns `ids` (N, T) with n_tokens more tokens: an array (N, T + n_tokens), on the device
        of `ids`. The model may be on another device.

        Each token is drawn from softmax(logits / temperature), among the top_k most likely tokens.
        Temperature 0 always takes the most likely token. Only the last `context` tokens are
        read."""
        generator, weight = generator or random.default_generator(), self.token.weight
        ids = backend.array_of(ids)
        origin = backend.device_of(ids) if hasattr(ids, "ndim") else "cpu"
        ids = backend.to_device(ids if hasattr(ids, "ndim") else np.asarray(ids), weight.device)
        if ids.ndim != 2 or n_tokens < 0 or temperature < 0:
            raise ValueError("generate wants ids of shape (N, T), n_tokens >= 0 and temperature >= "
                             f"0; got shape {tuple(ids.shape)}, n_tokens={n_tokens}, "
                             f"temperature={temperature}")
        was_training = self.training
        self.eval()
        with no_grad():
            for _ in range(n_tokens):
                logits = self(ids[:, -self.context:])[:, -1].array  # (N, vocab_size)
                drawn = _sample(weight._xp, logits, temperature, top_k, generator)
                ids = weight._xp.concatenate([ids, drawn], 1)
        self.train(was_training)
        return backend.to_device(ids, origin)


def _sample(xp, logits, temperature, top_k, generator):
    """Returns one id for each row of logits, (N, 1). Uses the Gumbel trick: argmax(logits + Gumbel
    noise) is a draw from softmax(logits)."""
    logits = logits.astype(np.float64)
    if temperature > 0:
        if top_k is not None:
            kth = xp.sort(logits, axis=-1)[:, -min(top_k, logits.shape[-1]), None]
            logits = xp.where(logits < kth, -math.inf, logits)
        u = xp.asarray(generator.uniform(logits.shape, dtype=np.float64))
        logits = logits / temperature - xp.log(-xp.log(u + 2.0**-25))
    return logits.argmax(-1)[:, None]
