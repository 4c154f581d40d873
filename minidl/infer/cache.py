"""Attention that keeps keys and values (KV cache): only the products of a new token are computed.

The plain form: minidl/plain/kv_cache.py. This file adds heads that share keys, a whole prompt in
one call, and a kernel that reads keys in blocks of 16 tokens.

There are B texts and K heads of keys and values. A key has E numbers. T is the number of new tokens
in a call.

    keys (B, K, context / 16, E, 16)     16 tokens lie next to each other
    values (B, K, context, E)            row t belongs to the token at position t
    T = 1    one new token: out = softmax(scale q keys[:position + 1]) values, in one pass over the
             cache
    T > 1    a text from position 0 on: stores its keys and values, and computes attention as in
             training

Without a cache, a model computes the products of all n tokens again to get the next token. The
cache is not in the plan's arena, because its content must remain between calls. Several heads of
queries may share a head of keys. n_bytes (below) returns the size of the cache.
Test: tests/infer/test_decoder.py   Tutorial: tutorials/28_transformer.py
"""

import math

import numpy as np

from minidl.function import Function
from minidl.infer import lower
from minidl.infer.graph import Node, Value
from minidl.nn.llama import turned
from minidl.ops.attention import SelfAttention


def n_bytes(n_layers, n_texts, context, n_kv_heads, head_width):
    """Returns the bytes of all keys and values, in float32. If context is a multiple of 16, the
    cache has 2 n_layers n_texts context n_kv_heads head_width numbers."""
    keys = -(-context // 16) * 16  # keys are stored in blocks of 16 tokens
    return 4 * n_layers * n_texts * n_kv_heads * head_width * (keys + context)


class CachedAttention(Function):
    """Stores the keys and values of T new tokens, and attends to all tokens so far.

    qkv (B, T, (H + 2 K) E):   queries, keys and values of the new tokens, for B texts. H = n_heads,
                               K = n_kv. A key has E numbers.
    position (T,):             the positions of the new tokens. They are consecutive.
    keys, values:              the cache. The op writes into these arrays, so it has no gradient.
    angles (context, E):       cos and sin that rotate queries and keys (nn.llama), or None.
    Returns (B, T, H E)."""

    differentiable = False

    def forward(self, qkv, position, keys, values, angles, n_heads, n_kv):
        n_batch, length, _ = qkv.shape
        heads = qkv.reshape(n_batch, length, n_heads + 2 * n_kv, -1).swapaxes(1, 2)
        q, k, v = np.split(heads, [n_heads, n_heads + n_kv], 1)
        if angles is not None:
            q, k = (turned(np, x, *np.split(angles[position], 2, -1)) for x in (q, k))
        keys[:, :, position // 16, :, position % 16] = k.transpose(2, 0, 1, 3)
        values[:, :, position] = v
        q = q.reshape(n_batch, n_kv, -1, *q.shape[2:])  # (B, K, H / K, T, E)
        s = q @ in_order(keys)[:, :, None, :, :values.shape[2]] / np.float32(math.sqrt(q.shape[-1]))
        s = np.where(np.arange(s.shape[-1]) <= position[:, None], s, np.float32(-np.inf))
        p = np.exp(s - s.max(-1, keepdims=True))
        o = np.where(p > 0, p, 0) / p.sum(-1, keepdims=True) @ values[:, :, None]
        o = o.reshape(n_batch, n_heads, length, -1)
        return np.ascontiguousarray(o.swapaxes(1, 2)).reshape(n_batch, length, -1)


def in_order(keys):
    """Returns the keys as an array (B, K, E, 16 times the number of blocks). Its last index is the
    position of the token."""
    n_batch, n_heads, n_blocks, width, _ = keys.shape
    return keys.swapaxes(2, 3).reshape(n_batch, n_heads, width, n_blocks * 16)


def cached_attention(low, node):
    """Adds the launches of a CachedAttention line. Returns False if the line must run as an eager
    op. The kernels call the functions of kernels/cpu/infer_cache.cuh. A launch has a block for each
    head of keys of each text."""
    qkv, position, keys, values, angles = node.inputs
    n_batch, length, width = qkv.shape
    h, kv = node.attributes["n_heads"], node.attributes["n_kv"]
    e, context = width // (h + 2 * kv), values.shape[2]
    first = position.array is None or position.array[0]
    if length > 1 and (position.array is None or first != 0):
        return False
    if angles is None and h > kv:
        return False
    qkv = low.contiguous(qkv)
    args = [("float* keys", keys.array), ("float* values", values.array)]
    text = (f"  keys += blockIdx.y * {math.prod(keys.shape[1:])}LL;\n"
            f"  values += blockIdx.y * {math.prod(values.shape[1:])}LL;\n")
    if length > 1:
        if angles is not None:
            qkv = whole_heads(low, qkv, angles, h, kv)
        text += (f"  qkv += blockIdx.y * {length * 3 * h * e}LL;\n"
                 f"  remember_text<{h}, {kv}, {e}, {context}>(qkv, keys, values, blockIdx.x, "
                 f"{length});")
        low.add("remember", [], text, [*args, ("const float* qkv", qkv)], (kv, n_batch))
        attend = Node("self_attention", SelfAttention, [qkv],
                      dict(n_heads=h, is_causal=True, dropout_p=0.0), node.outputs)
        return lower.self_attention(low, attend)
    turned_by = "nullptr"
    if angles is not None:
        turned_by = f"angles + *position * {e}"
        args.append(("const float* angles", angles.array))
    text += (f"  out += blockIdx.y * {h * e}LL;\n"
             f"  qkv += blockIdx.y * {width}LL;\n"
             f"  attend_token<{h}, {kv}, {e}, {context}>(out, qkv, keys, values, {turned_by},\n"
             f"      blockIdx.x, *position, {1 / math.sqrt(e)!r}f);")
    args += [("const float* qkv", qkv), ("const long long* position", position),
             ("float* out", low.own(node.output))]
    return low.add(node.op, [node.output], text, args, (kv, n_batch))


def whole_heads(low, qkv, angles, h, kv):
    """Adds a launch that copies qkv into the form that the training kernel reads. Returns the Value
    of the copy, (B, T, 3 h E). h: the number of heads of queries. kv: the number of heads of keys.
    Queries and keys are rotated. Each head of keys and values is copied for every head of queries
    that shares it."""
    n_batch, length, width = qkv.shape
    e = width // (h + 2 * kv)
    text = (f"  const long long token = blockIdx.y * {length}LL + blockIdx.x;\n"
            f"  whole_heads<{h}, {kv}, {e}>(out + token * {3 * h * e}, qkv + token * {width},\n"
            f"      angles + blockIdx.x * {e});")
    out = low.own(Value((n_batch, length, 3 * h * e), np.float32))
    low.add("whole_heads", [out], text, [
        ("float* out", out), ("const float* qkv", qkv), ("const float* angles", angles.array)],
        (length, n_batch))
    return out


LOWER = {"cached_attention": cached_attention}
