"""Text from a GPT or a Llama, token by token, with a cache of keys and values.

The plain form: minidl/plain/kv_cache.py. Here: whole models as plans, several texts, and a prompt
in one go.

    step = infer.decoder(gpt.eval(), context=512)
    step.generate(ids, 100, temperature=0.8, top_k=50, top_p=0.95, generator=g)

    prefill(ids)   the prompt in one plan, of the next power of two of tokens: what it writes behind
                   the prompt is written again before anybody reads it
    step(ids)      one token of each text: a plan of matrices times vectors, as long as reading all
                   weights once takes

Both give the logits of what comes next, equal to those of the whole text computed anew.
Sampling: minidl/plain/sampling.py is the plain form. Here: several texts, and a draw by noise.
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
    """The model as its plans run it: (ids (B, T), the positions of the T tokens, which one of them
    is to be answered (1,)) -> logits (B, 1, vocabulary)."""

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
    """A GPT or Llama in eval mode, for n_texts texts of up to `context` tokens at a time. position:
    how many tokens it has. threads: as in infer.compile. weights: "int8" or "int4", those of its
    linear layers (quantize.py): a step is as long as reading them takes."""

    def __init__(self, model, context=None, n_texts=1, threads=1, weights=None):
        if weights not in BITS:
            raise ValueError(f"decoder: weights {weights!r}, want one of {list(BITS)}")
        if not isinstance(model, (GPT, Llama)):
            raise TypeError(f"decoder: wants an nn.GPT or nn.Llama, got {type(model).__name__}")
        refuse_gpu("decoder", model)
        self.context = model.context if context is None else context
        if not 1 <= self.context <= model.context:
            raise ValueError(f"decoder: context {context}; the model has positions for "
                             f"{model.context}")
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
        self.plans, self.guards = {}, Guards(model)  # {tokens: Plan}; the cache is of this model

    def plan(self, length):
        """The plan for so many tokens: 1, from any position on; more, from position 0 on."""
        if changed := self.guards.changed():
            raise RuntimeError(f"decoder: {changed}; make a new one")
        if length not in self.plans:
            kept = [a.copy() for pair in self.caches for a in pair]  # tracing writes to them
            positions = None if length == 1 else np.arange(length)
            ids = np.zeros((self.n_texts, length), np.int64)
            ids[:, 1:] = 1 % self.model.token.weight.shape[0]
            graph = trace(Cached(self.model, self.caches, positions, self.angles).eval(), ids,
                          np.array([length - 1]))
            graph.guards = None  # ours are asked, above
            for a, before in zip((a for pair in self.caches for a in pair), kept, strict=True):
                a[...] = before
            if self.bits:
                graph = quantize(graph, bits=self.bits)
            optimise(graph)
            self.plans[length] = Plan(graph, self.threads)
        return self.plans[length]

    def prefill(self, ids):
        """Begin anew with ids (n_texts, T); the logits (n_texts, vocabulary) after them."""
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
        """One more token of each text, (n_texts,) or (n_texts, 1); the logits after it."""
        ids = _numpy(ids)
        ids = self._ids(ids.reshape(-1, 1) if ids.ndim != 2 else ids, self.position)
        self._at[0] = self.position
        logits = self.plan(1)(ids, self._at).array[:, 0]
        self.position += 1
        return logits

    def _ids(self, ids, position):
        if ids.ndim != 2 or ids.shape[0] != self.n_texts or not ids.shape[1] or (
                ids.dtype.kind not in "iu"):
            raise ValueError(f"decoder: ids {ids.shape} of {ids.dtype}, want integers "
                             f"({self.n_texts}, at least 1)")
        if position + ids.shape[1] > self.context:
            raise ValueError(f"decoder: {position} tokens and {ids.shape[1]} more, in a context of "
                             f"{self.context}; begin anew with the last ones: prefill(ids)")
        return ids if ids.dtype == np.int64 else ids.astype(np.int64)

    def generate(self, ids, n_tokens, temperature=1.0, top_k=None, top_p=None, generator=None):
        """ids (n_texts, T) continued by n_tokens: an array (n_texts, T + n_tokens). temperature 0
        takes the likeliest; generator: minidl's, the default one unless given."""
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
    """Of float32, from the beginning of a cache line on, as vectors are loaded."""
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
    """The logits (n, vocabulary), -inf where a token is not among the fewest likeliest, of the
    top_k, whose probabilities make top_p of all. The likeliest always is."""
    if top_p is None or temperature == 0:
        return logits
    if not 0 < top_p <= 1:
        raise ValueError(f"decoder: top_p {top_p}, want above 0 and at most 1")
    order = np.argsort(-logits, axis=-1, kind="stable")
    x = np.take_along_axis(logits, order, -1).astype(np.float64) / temperature
    x[:, top_k or x.shape[1]:] = -np.inf
    p = np.exp(x - x[:, :1])
    p /= p.sum(-1, keepdims=True)
    out = np.full(logits.shape, -np.inf, logits.dtype)
    kept = np.cumsum(p, -1) - p < top_p  # what those before it have
    np.put_along_axis(out, order, np.where(kept, np.take_along_axis(logits, order, -1), -np.inf),
                      -1)
    return out
