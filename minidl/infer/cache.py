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
    op."""
    qkv, position, keys, values, angles = node.inputs
    (n_batch, length, width), h, kv = qkv.shape, *map(node.attributes.get, ("n_heads", "n_kv"))
    e, context, group = width // (h + 2 * kv), values.shape[2], h // kv
    first = position.array is None or position.array[0]
    if length > 1 and (position.array is None or first != 0):
        return False
    if angles is None and group > 1:
        return False
    qkv = low.contiguous(qkv)
    args = [("float* keys", keys.array), ("float* values", values.array)]
    text = [f"  const long long row = blockIdx.y, head = row * {kv} + blockIdx.x;",
            f"  keys += head * {keys.shape[2] * e * 16};", f"  values += head * {e * context};"]
    if length > 1:
        qkv = qkv if angles is None else whole_heads(low, qkv, angles, h, kv)
        text += [f"  const float* k = qkv + row * {length * 3 * h * e} + {h * e}"
                 f" + blockIdx.x * {group * e};",
                 f"  for (int t = 0; t < {length}; ++t, k += {3 * h * e})",
                 f"    remember<{e}>(keys, values, k, k + {h * e}, t);"]
        low.add("remember", [], "\n".join(text), [*args, ("const float* qkv", qkv)], (kv, n_batch))
        attend = Node("self_attention", SelfAttention, [qkv],
                      dict(n_heads=h, is_causal=True, dropout_p=0.0), node.outputs)
        return lower.self_attention(low, attend)
    q = "q"
    text += [f"  const float* q = qkv + row * {width} + blockIdx.x * {group * e};",
             f"  const float* k = qkv + row * {width} + {h * e} + blockIdx.x * {e};",
             f"  const float* v = k + {kv * e};", "  const int at = *position;",
             f"  out += head * {group * e};"]
    if angles is not None:
        q = "turned"
        text += [turn(e), f"  float turned[{e}];", f"  turn(turned, k, angles + at * {e});",
                 "  k = turned;"]
        args.append(("const float* angles", angles.array))
    text += [f"  remember<{e}>(keys, values, k, v, at);",
             f"  for (int j = 0; j < {group}; ++j, q += {e}, out += {e}) {{",
             *([f"    turn(turned, q, angles + at * {e});"] if angles is not None else []),
             f"    attend<{e}, {context}>(out, {q}, keys, values, at + 1,",
             f"        {1 / math.sqrt(e)!r}f);", "  }"]
    args += [("const float* qkv", qkv), ("const long long* position", position),
             ("float* out", low.own(node.output))]
    return low.add(node.op, [node.output], "\n".join(text), args, (kv, n_batch))


def turn(e):
    """Returns the C text of a function turn(y, x, c). The function rotates the vector x of e
    numbers, and writes the result to y. c holds e / 2 cosines, then e / 2 sines."""
    n = e // 2
    return f"""  const auto turn = [](float* y, const float* x, const float* c) {{
    SIMD for (int i = 0; i < {n}; ++i) {{
      const float a = x[i], b = x[i + {n}];
      y[i] = a * c[i] - b * c[i + {n}];
      y[i + {n}] = b * c[i] + a * c[i + {n}];
    }}
  }};"""


def whole_heads(low, qkv, angles, h, kv):
    """Adds a launch that copies qkv into the form that the training kernel reads. Returns the Value
    of the copy, (B, T, 3 h E). h: the number of heads of queries. kv: the number of heads of keys.
    Queries and keys are rotated. Each head of keys and values is copied for every head of queries
    that shares it."""
    n_batch, length, width = qkv.shape
    e = width // (h + 2 * kv)
    text = [turn(e), f"  const float* x = qkv + (blockIdx.y * {length}LL + blockIdx.x) * {width};",
            f"  const float* c = angles + blockIdx.x * {e};",
            f"  out += (blockIdx.y * {length}LL + blockIdx.x) * {3 * h * e};",
            f"  for (int j = 0; j < {h}; ++j, out += {e}) {{",
            f"    const float *k = x + ({h} + j / {h // kv}) * {e}, *v = k + {kv * e};",
            f"    turn(out, x + j * {e}, c);", f"    turn(out + {h * e}, k, c);",
            f"    SIMD for (int i = 0; i < {e}; ++i) out[{2 * h * e} + i] = v[i];", "  }"]
    out = low.own(Value((n_batch, length, 3 * h * e), np.float32))
    low.add("whole_heads", [out], "\n".join(text), [
        ("float* out", out), ("const float* qkv", qkv), ("const float* angles", angles.array)],
        (length, n_batch))
    return out


LOWER = {"cached_attention": cached_attention}
