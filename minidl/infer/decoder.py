"""Generates text with a GPT or a Llama, token by token, with a cache of keys and values.

The plain form: minidl/plain/kv_cache.py. This file adds whole models as plans, several texts, and a
whole prompt in one call.

    step = infer.decoder(gpt.eval(), context=512)
    step.generate(ids, 100, temperature=0.8, top_k=50, top_p=0.95, generator=g)

    prefill(ids)   runs the prompt in one plan. The plan has room for n tokens: n is the smallest
                   power of two that is large enough, but at most the context. So the plan also
                   writes cache entries for positions after the prompt. A later step overwrites each
                   of these entries before any token attends to the entry
    step(ids)      runs one token of each text. The plan multiplies matrices by vectors, so a step
                   takes about as long as reading all weights once

prefill and step return the logits of the next token. The model returns the same logits if it gets
the whole text. The plain form of sampling: minidl/plain/sampling.py. This file samples for several
texts. It draws by the Gumbel trick (nn/models.py).
Source: Pope et al. 2022 (arXiv 2211.05102); Holtzman et al. 2020 (top-p).
Test: tests/infer/test_decoder.py   Tutorial: tutorials/28_transformer.py
"""

import math

import numpy as np

from minidl import backend, random
from minidl.infer.cache import CachedAttention
from minidl.infer.passes import optimise
from minidl.infer.program import Plan
from minidl.infer.quantize import quantize
from minidl.infer.trace import Guards, refuse_gpu, trace
from minidl.nn.llama import Llama
from minidl.nn.models import GPT, _sample
from minidl.nn.module import Module
from minidl.ops.index import index_select
from minidl.ops.linear import aligned

BITS = {None: None, "int8": 8, "int4": 4}


class Cached(Module):
    """Wraps a GPT or Llama for a plan. A call takes ids (B, T) and `at` (1,), and returns the
    logits of one token of each text, (B, 1, vocabulary).

    positions: the positions of the T tokens, as constants of the plan, or None. If positions are
    given, `at` is the index of the token whose logits are returned. If positions is None, T is 1,
    and `at` is the token's position.
    caches: for each block a pair (keys, values).
    angles: as in CachedAttention."""

    def __init__(self, model, caches, positions=None, angles=None):
        super().__init__()
        self.model, self.caches, self.positions, self.angles = model, caches, positions, angles

    def forward(self, ids, at):
        m = self.model
        positions = at if self.positions is None else self.positions
        x = m.token(ids)
        if self.angles is None:
            x = x + m.position(positions)
        for block, (keys, values) in zip(m.blocks, self.caches, strict=True):
            a = block.attention
            y = CachedAttention.apply(a.qkv(block.norm1(x)), positions, keys, values, self.angles,
                                      n_heads=a.n_heads, n_kv=keys.shape[1])
            x = x + a.proj(y)
            x = x + block.feed_forward(block.norm2(x))
        if self.positions is not None:
            x = index_select(x, 1, at)
        return m.head(m.norm(x))


class Decoder:
    """Generates n_texts texts together. Each text has up to `context` tokens.

    model: a GPT or Llama in eval mode, on the CPU.
    context: the most tokens in a text. The default is the model's own context.
    threads: CPU threads for a large launch, as in infer.compile.
    weights: "int8" or "int4" rounds the weights of the linear layers (quantize.py). A step then
    reads fewer bytes, and takes less time. None keeps float32 weights.

    The attribute `position` is the number of tokens of each text that are in the cache."""

    def __init__(self, model, context=None, n_texts=1, threads=1, weights=None):
        if weights not in BITS:
            raise ValueError(f"decoder: got weights {weights!r}; want one of {list(BITS)}")
        if not isinstance(model, (GPT, Llama)):
            raise TypeError(f"decoder: wants an nn.GPT or nn.Llama, got {type(model).__name__}")
        refuse_gpu("decoder", model)
        self.context = model.context if context is None else context
        if not 1 <= self.context <= model.context:
            raise ValueError(f"decoder: wanted a context from 1 to {model.context} tokens, because "
                             f"the model has positions for {model.context}; got {context}")
        self.model, self.n_texts, self.threads, self.position = model, n_texts, threads, 0
        self._at = np.zeros(1, np.int64)
        self.bits = BITS[weights]
        self.angles, blocks = None, -(-self.context // 16)
        if isinstance(model, Llama):
            self.angles = np.concatenate(model.angles(np, np.arange(self.context)), -1)
        self.caches = []
        for a in (block.attention for block in model.blocks):
            n_kv = getattr(a, "n_kv_heads", a.n_heads)
            e = a.qkv.weight.shape[0] // (a.n_heads + 2 * n_kv)
            self.caches.append((_zeros(n_texts, n_kv, blocks, e, 16),
                                _zeros(n_texts, n_kv, self.context, e)))
        self.plans, self.guards = {}, Guards(model)  # plans: {number of tokens: Plan}

    def plan(self, length):
        """Returns the Plan for `length` tokens of each text. If length is 1, the token may have any
        position. If length is larger, the tokens begin at position 0. Raises RuntimeError if the
        model has changed."""
        if changed := self.guards.changed():
            raise RuntimeError(f"decoder: {changed}; make a new Decoder")
        if length not in self.plans:
            # The trace writes into the caches. So the caches are restored below.
            kept = [a.copy() for pair in self.caches for a in pair]
            positions = None if length == 1 else np.arange(length)
            ids = np.zeros((self.n_texts, length), np.int64)
            ids[:, 1:] = 1 % self.model.token.weight.shape[0]
            graph = trace(Cached(self.model, self.caches, positions, self.angles).eval(), ids,
                          np.array([length - 1]))
            graph.guards = None  # not needed, because the Decoder checks its own guards
            for a, before in zip((a for pair in self.caches for a in pair), kept, strict=True):
                a[...] = before
            if self.bits:
                graph = quantize(graph, bits=self.bits)
            optimise(graph)
            self.plans[length] = Plan(graph, self.threads)
        return self.plans[length]

    def prefill(self, ids):
        """Starts new texts with ids (n_texts, T). Returns the logits (n_texts, vocabulary) of the
        next token. Raises ValueError if T is larger than the context."""
        ids = self._ids(_numpy(ids), 0)
        if (n := ids.shape[1]) == 1:
            self.position = 0
            return self.step(ids)
        length = min(1 << (n - 1).bit_length(), self.context)
        padded = np.zeros((self.n_texts, length), np.int64)
        padded[:, :n] = ids
        logits = self.plan(length)(padded, np.array([n - 1])).array[:, 0]
        self.position = n
        return logits

    def step(self, ids):
        """Adds one token to each text. ids: (n_texts,) or (n_texts, 1). Returns the logits
        (n_texts, vocabulary) of the next token. Raises ValueError if the context is full."""
        ids = _numpy(ids)
        ids = self._ids(ids.reshape(-1, 1) if ids.ndim != 2 else ids, self.position)
        self._at[0] = self.position
        logits = self.plan(1)(ids, self._at).array[:, 0]
        self.position += 1
        return logits

    def _ids(self, ids, position):
        if ids.ndim != 2 or ids.shape[0] != self.n_texts or not ids.shape[1] or (
                ids.dtype.kind not in "iu"):
            raise ValueError(f"decoder: got ids of shape {ids.shape} and dtype {ids.dtype}; want "
                             f"integers of shape ({self.n_texts}, T), where T is at least 1")
        if position + ids.shape[1] > self.context:
            raise ValueError(f"decoder: each text has {position} tokens, and {ids.shape[1]} more "
                             f"tokens do not fit in a context of {self.context}. Start again with "
                             "the last tokens of the text: prefill(ids)")
        return ids if ids.dtype == np.int64 else ids.astype(np.int64)

    def generate(self, ids, n_tokens, temperature=1.0, top_k=None, top_p=None, generator=None):
        """Adds n_tokens new tokens to each text in ids (n_texts, T). Returns an array
        (n_texts, T + n_tokens).

        temperature: the logits are divided by this number. With 0 the likeliest token is always
        taken.
        top_k: draws only from the top_k likeliest tokens. None means all tokens.
        top_p: draws only from the likeliest of the top_k tokens. Tokens are added, the likeliest
        first, until the added tokens together have a probability of top_p or more. None means all
        tokens.
        generator: a minidl generator. The default is random.default_generator()."""
        generator = generator or random.default_generator()
        out = _numpy(ids)
        logits = self.prefill(out)
        for i in range(n_tokens):
            drawn = _sample(np, nucleus(logits, temperature, top_k, top_p), temperature, top_k,
                            generator)
            out = np.concatenate([out, drawn], 1)
            if i + 1 < n_tokens:
                logits = self.step(drawn)
        return out


def _zeros(*shape):
    """Returns an array of float32 zeros. The array begins at a cache line, so vector loads are
    aligned."""
    a = aligned(math.prod(shape)).reshape(shape)
    a[...] = 0
    return a


def _numpy(ids):
    if type(ids) is np.ndarray:
        return ids
    ids = backend.array_of(ids)
    refuse_gpu("decoder", None, ids)
    return np.asarray(ids)


def nucleus(logits, temperature, top_k, top_p):
    """Returns the logits (n, vocabulary), with -inf for the tokens that must not be drawn.

    First, the top_k likeliest tokens are selected, and their probabilities are scaled to the sum 1.
    Then the likeliest of the selected tokens are kept, one after another, until the kept tokens
    together have a probability of top_p or more. If top_p is None, or temperature is 0, returns the
    logits unchanged."""
    if top_p is None or temperature == 0:
        return logits
    if not 0 < top_p <= 1:
        raise ValueError(f"decoder: got top_p={top_p}; want a number above 0 and at most 1")
    order = np.argsort(-logits, axis=-1, kind="stable")
    x = np.take_along_axis(logits, order, -1).astype(np.float64) / temperature
    x[:, top_k or x.shape[1]:] = -np.inf
    p = np.exp(x - x[:, :1])
    p /= p.sum(-1, keepdims=True)
    out = np.full(logits.shape, -np.inf, logits.dtype)
    # The tokens are sorted by probability. A token is kept if the tokens before it have a total
    # probability below top_p.
    kept = np.cumsum(p, -1) - p < top_p
    np.put_along_axis(out, order, np.where(kept, np.take_along_axis(logits, order, -1), -np.inf),
                      -1)
    return out
