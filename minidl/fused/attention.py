"""Attention that never holds the L x S scores, forward and backward in one kernel each.

    P = softmax(scale q k^T)      o = P v      lse = log(sum(exp(scale q k^T)))
    gS = P * (go v^T - D)         D = sum of go * o over a row; backward makes P again, from lse

On the CPU kernels/attention_tile.cu: a thread per tile of queries, products in vector registers. On
a GPU the last rung of the ladders in kernels/attention.cu and attention_backward.cu. Inputs are
read through their strides: the three thirds of a projection (B, L, 3, H, E) need no copy. o is
(B, L, H, E) in memory, so that merging the heads is free. Masks and dropout are NumPy's, in the op:
minidl/ops/attention.py.
Kernels: kernels/attention.cu, attention_backward.cu, attention_tile.cu
Test: tests/fused/test_attention.py
"""

import math

import numpy as np

from minidl import backend
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


def readable(a):
    """(B, H, L, E) with the last stride one element and none negative, by a copy where need be."""
    strides = [s for n, s in zip(a.shape, a.strides, strict=True) if n > 1]
    good = min(strides, default=0) >= 0 and a.strides[-1] == a.itemsize
    return a if good else a.copy()


def fits(q, k, v):
    """Whether the kernels know these shapes: values as wide as keys, heads at most 128 wide, at
    least one key, and a grid that CUDA takes."""
    n_batch, n_heads, _, width = q.shape
    return (k.shape == v.shape and 0 < width <= MAX_WIDTH and k.shape[2] > 0
            and n_batch <= MAX_BLOCKS and n_heads <= MAX_BLOCKS)
