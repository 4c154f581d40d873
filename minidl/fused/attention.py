"""Attention that never holds the L x S scores, forward and backward in one kernel each.

    P = softmax(scale q k^T)      o = P v      lse = log(sum(exp(scale q k^T)))
    gS = P * (go v^T - D)         D = sum of go * o over a row; backward makes P again, from lse

On the CPU kernels/attention_tile.cu: a thread per tile of queries, products in vector registers. On
a GPU the last rung of the ladders in kernels/attention.cu and attention_backward.cu. Inputs are
read through their strides: the three thirds of a projection (B, L, 3, H, E) need no copy. o is
(B, L, H, E) in memory, so that merging the heads is free. Saved: q, k, v, o and lse, as the plain
op does.

Masks and dropout stay with the plain op, minidl/ops/attention.py.
Kernels: kernels/attention.cu, attention_backward.cu, attention_tile.cu
Test: tests/fused/test_attention.py
"""

import math

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.fused import dispatch

MAX_WIDTH = 128  # the widest head whose tiles fit 48 KiB of shared memory, and a CPU thread's stack
MAX_BLOCKS = 65535  # of a GPU's grid along y and z: heads, and batches


# ---- 1 reference ----


def reference(q, k, v, is_causal=False, scale=None):
    """(o, lse) in float64, with all of P."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p / total @ v, (top + np.log(total))[..., 0]


def reference_backward(go, q, k, v, is_causal=False, scale=None):
    """(gq, gk, gv) in float64."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    go, q, k, v = (np.asarray(a, np.float64) for a in (go, q, k, v))
    o, lse = reference(q, k, v, is_causal, scale)
    p = np.exp(q @ k.swapaxes(-1, -2) * scale - lse[..., None])
    if is_causal:
        p = np.where(np.tri(*p.shape[-2:], dtype=bool), p, 0)
    gs = p * (go @ v.swapaxes(-1, -2) - (go * o).sum(-1, keepdims=True)) * scale
    return gs @ k, gs.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ go


# ---- 2 launch ----


def block_of(rung, width):
    """(rows, threads) of a block of a rung."""
    n_rows = 32 if width > 64 else 64
    return {
        "naive": (128, 128),
        "shared": (n_rows, n_rows),  # ROWS in attention.cuh
        "warp": (16, 128),  # OWN, 32 WARPS there
        "tile": (64 * (2 if width > 64 else 4), 1),  # 64 GROUP in attention_tile.cu
    }[rung]


def forward(q, k, v, is_causal, scale, rung=None):
    """(o, lse) of (B, H, L, E), (B, H, S, E), (B, H, S, E); o is a view of (B, L, H, E) memory.
    rung: 'naive', 'shared', 'warp' or 'tile' (CPU only); the best for the device unless given."""
    xp, (n_batch, n_heads, n_queries, width) = backend.xp_of([q]), q.shape
    o = xp.empty((n_batch, n_queries, n_heads, width), q.dtype)
    lse = xp.empty((n_batch, n_heads, n_queries), np.float32)
    rung = rung or ("tile" if xp is np else "warp")
    rows, threads = block_of(rung, width)
    file = "attention_tile.cu" if rung == "tile" else "attention.cu"
    if o.size:
        grid = -(-n_queries // rows), n_heads, n_batch
        kernel = dispatch.kernel(file, f"attention_{rung}", q.dtype, E=width)
        kernel(grid, threads, (o, lse, *inputs(q, k, v), scale, is_causal))
    return o.swapaxes(1, 2), lse


def backward(go, q, k, v, o, lse, is_causal, scale, rung=None, out=None):
    """(gq, gk, gv), each a view of (B, L, H, E) memory. rung: as in `forward`.
    out: an array (B, L, 3, H, E) for all three, of self-attention; it is then the result."""
    xp, (n_batch, n_heads, n_queries, width), n_keys = backend.xp_of([q]), q.shape, k.shape[2]
    go, o = (xp.ascontiguousarray(a.swapaxes(1, 2)) for a in (go, o))
    rung = rung or ("tile" if xp is np else "warp")
    packed = out is not None and rung == "tile"  # gk and gv go at once where they belong
    if packed:
        gk, gv = (out.reshape(-1)[i * n_heads * width:] for i in (1, 2))
    else:
        gk, gv = (xp.zeros((n_batch, n_keys, n_heads, width), q.dtype) for _ in range(2))
    rows, threads = block_of(rung, width)
    file = "attention_tile.cu" if rung == "tile" else "attention_backward.cu"
    query_blocks, key_blocks = -(-n_queries // rows), -(-n_keys // rows)
    if rung == "tile":  # gq in parts, one for each group of keys
        gq = xp.empty((key_blocks, *go.shape), np.float32)
    else:
        gq = xp.empty_like(go)
    if go.size:
        dots = xp.empty(go.shape[:3], np.float32)
        row_dot = dispatch.kernel(
            "attention_backward.cu", "attention_row_dot", q.dtype, E=width
        )
        row_dot(-(-dots.size // 128), 128, (dots, go, o, dots.size))
        common = go, lse, dots, *inputs(q, k, v), scale, is_causal

        def launch(kernel, n_blocks, outputs, **macros):
            kernel = dispatch.kernel(file, f"attention_{kernel}", q.dtype, E=width, **macros)
            kernel((n_blocks, n_heads, n_batch), threads, (*outputs, *common))

        if rung == "tile":
            launch("tile_backward", key_blocks, (gq, gk, gv), GRAD_ROWS=3 if packed else 1)
        else:
            launch(f"grad_q_{rung}", query_blocks, (gq,))
            launch(f"grad_kv_{rung}", key_blocks, (gk, gv))
    if rung == "tile":
        gq = gq[0] if key_blocks == 1 else gq.sum(axis=0)
    if out is None:
        return tuple(a.swapaxes(1, 2) for a in (gq, gk, gv))
    for i, a in enumerate((gq,) if packed else (gq, gk, gv)):
        out[:, :, i] = a
    return out


def inputs(q, k, v):
    """The arguments that say where q, k and v lie: memory, L, S and nine strides in elements."""
    xp = backend.xp_of([q])
    memory = []
    for a in (q, k, v):  # from the first element to the last, one-dimensional
        n = 1 + sum((n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)) // a.itemsize
        memory.append(xp.lib.stride_tricks.as_strided(a, (n,), (a.itemsize,)))
    strides = [s // a.itemsize for a in (q, k, v) for s in a.strides[:3]]
    return *memory, q.shape[2], k.shape[2], *strides


def four(a):
    """(..., L, E) -> (B, H, L, E), the heads the last of the leading dimensions; the last stride
    one element and none negative, by a copy where need be."""
    a = a.reshape(math.prod(a.shape[:-3]), *(1,) * (a.ndim == 2), *a.shape[-3:])
    strides = [s for n, s in zip(a.shape, a.strides, strict=True) if n > 1]
    good = min(strides, default=0) >= 0 and a.strides[-1] == a.itemsize
    return a if good else a.copy()


# ---- 3 Function ----


class FusedAttention(Function):
    """softmax(scale q k^T) v over (..., L, E), (..., S, E), (..., S, E). Saves q, k, v, o and lse,
    4 L E + L numbers a head."""

    precision = "white"
    op = "scaled_dot_product_attention"

    def forward(self, q, k, v, is_causal, scale):
        self.is_causal, self.lead = bool(is_causal), q.shape[:-2]
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        q, k, v = four(q), four(k), four(v)
        o, lse = forward(q, k, v, self.is_causal, self.scale)
        self.save(q, k, v, o, lse)
        return o.reshape(*self.lead, *o.shape[2:])

    def backward(self, go):
        q, k, v, o, lse = self.saved
        grads = backward(go.reshape(o.shape), q, k, v, o, lse, self.is_causal, self.scale)
        return tuple(g.reshape(*self.lead, *g.shape[2:]) for g in grads)


class SelfAttention(Function):
    """Attention of the heads in a projection (B, L, 3 C) -> (B, L, C). Saves the projection, o and
    lse; the gradient is one array too, so that nothing is cut into thirds or put together."""

    precision = "white"
    op = "self_attention"

    def forward(self, qkv, n_heads, is_causal):
        n_batch, length, width = qkv.shape
        self.is_causal, self.scale = bool(is_causal), 1 / math.sqrt(width // 3 // n_heads)
        qkv = self.xp.ascontiguousarray(qkv).reshape(n_batch, length, 3, n_heads, -1)
        o, lse = forward(*thirds(qkv), self.is_causal, self.scale)
        self.save(qkv, o, lse)
        return o.swapaxes(1, 2).reshape(n_batch, length, width // 3)

    def backward(self, gy):
        qkv, o, lse = self.saved
        n_batch, length, _, n_heads, width = qkv.shape
        go = gy.reshape(n_batch, length, n_heads, width).swapaxes(1, 2)
        out = self.xp.empty_like(qkv)
        backward(go, *thirds(qkv), o, lse, self.is_causal, self.scale, out=out)
        return out.reshape(n_batch, length, -1)


def thirds(qkv):
    """(B, L, 3, H, E) -> q, k and v, views (B, H, L, E)."""
    return qkv.transpose(2, 0, 3, 1, 4)


def self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0):
    """softmax(q k^T / sqrt(E)) v, with q, k, v the thirds of qkv (B, L, 3 C), n_heads heads of
    E = C / n_heads columns each; (B, L, C)."""
    return SelfAttention.apply(qkv, n_heads=n_heads, is_causal=is_causal)


def accepts_self(qkv, n_heads, is_causal=False, dropout_p=0.0):
    """Whether the kernels can: no dropout, heads at most 128 wide, something to attend to."""
    n_batch, length, width = qkv.shape
    return (not dropout_p and 0 < width // 3 // n_heads <= MAX_WIDTH and length > 0
            and n_batch <= MAX_BLOCKS and n_heads <= MAX_BLOCKS)


def accepts(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, *,
            generator=None):
    """Whether the kernels can do this call: no mask, no dropout, no broadcast between the inputs,
    values as wide as keys, at most 128, at least one key."""
    shapes = [tuple(getattr(a, "shape", ())) for a in (query, key, value)]
    if attn_mask is not None or dropout_p or min(map(len, shapes)) < 2:
        return False
    (*lead, _, width), (*key_lead, n_keys, key_width), value_shape = shapes
    return (lead == key_lead and width == key_width and shapes[1] == value_shape
            and 0 < width <= MAX_WIDTH and n_keys > 0
            and math.prod(lead[:-1]) <= MAX_BLOCKS and math.prod(lead[-1:]) <= MAX_BLOCKS)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
                                 scale=None, *, generator=None):
    """softmax(scale * query @ key.T) @ value: (..., L, E), (..., S, E), (..., S, E) -> (..., L, E).
    scale: 1 / sqrt(E) unless given. is_causal: query i sees keys 0 to i. ValueError for what only
    the plain op can do: see `accepts`."""
    if not accepts(query, key, value, attn_mask, dropout_p):
        shapes = [tuple(getattr(a, "shape", ())) for a in (query, key, value)]
        raise ValueError(
            "scaled_dot_product_attention: the kernels take (..., L, E), (..., S, E), (..., S, E) "
            f"with E up to {MAX_WIDTH}, no mask and no dropout; got {shapes}, "
            f"dropout_p={dropout_p}, attn_mask {'None' if attn_mask is None else 'given'}. "
            "Use ops.attention")
    return FusedAttention.apply(query, key, value, is_causal=is_causal, scale=scale)
