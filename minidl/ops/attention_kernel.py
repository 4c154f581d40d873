"""Attention by kernels that never hold all scores at the same time.

The plain form: minidl/plain/flash.py. This file adds kernels, a mask, and dropout. With dropout,
o = (P * kept) v and gP = kept * (go v^T). P has the probabilities after the softmax, and go is the
gradient of o. For each pair of a query and a key, kept is 0 or 1 / (1 - p), where p is the
probability of dropout. Backward draws the same random numbers again.

A CPU runs kernels/cpu/attention_tile.cu. Each thread works on one tile of queries, and computes the
products in vector registers. A GPU runs the last rung of the ladders in kernels/attention.cu and
attention_backward.cu. For float16 it runs the rung on tensor cores, kernels/attention_mma.cu.

Kernels read inputs through their strides. So q, k and v may be views of one array (B, L, 3, H, E),
for B samples of length L and H heads of width E. A broadcast mask needs no copy. o is (B, L, H, E)
in memory, so no copy is needed to merge the heads.
Kernels: kernels/attention.cu, attention_backward.cu, attention_mma.cu,
cpu/attention_tile.cu
Op: minidl/ops/attention.py   Test: tests/ops/test_attention_kernel.py, test_attention_mask.py
Measured: benchmarks/bench_attention.py, bench_scaling.py (up to 16,384 tokens)
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import scratch
from minidl.ops import dropout as drop

# The tiles of wider heads do not fit into 48 KiB of shared memory, or into a CPU thread's stack.
MAX_WIDTH = 128
MAX_BLOCKS = 65535  # the most blocks of a GPU's grid along y (heads) and z (batches)
# In backward on a CPU, gq is the sum of at most PARTS partial results. So at most PARTS threads can
# work on one head. Without this limit, each group of keys would have its own partial result. For
# heads of width 32, these partial results need an eighth of the memory of the scores.
PARTS = 16


FILES = {"tile": "cpu/attention_tile.cu", "mma": "attention_mma.cu"}


def best_rung(q):
    """Returns the fastest rung for the device and dtype of q."""
    if backend.xp_of([q]) is np:
        return "tile"
    return "mma" if q.dtype == np.float16 else "warp"


def block_of(rung, width):
    """Returns (rows, threads): how many rows and how many threads a block has in this rung. A row
    is a query. In the kernel for gk and gv a row is a key. width: the width of a head."""
    n_rows = 32 if width > 64 else 64
    return {
        "naive": (128, 128),
        "shared": (n_rows, n_rows),  # n_rows is ROWS in attention_rows.cuh
        "warp": (16, 128),  # 16 is OWN, 128 is 32 * WARPS in attention_rows.cuh
        "mma": (64, 128),  # 64 is SIDE in attention_mma.cu
        "tile": (64 * (2 if width > 64 else 4), 1),  # 64 * GROUP rows, as in attention_tile.cu
    }[rung]


def by_kernel(q, k, v, is_causal, scale, rung=None, mask=None, dropout=None):
    """Runs forward. q (B, H, L, E), k and v (B, H, S, E). Returns (o, lse): o (B, H, L, E), a view
    of a (B, L, H, E) array, and lse (B, H, L) float32.

    rung: 'naive', 'shared', 'warp', 'mma' (float16) or 'tile' (CPU only). The default is the best.
    mask: a view (B, H, L, S), bool or floating, or None.
    dropout: (p, state of a generator), or None."""
    xp, (n_batch, n_heads, n_queries, width) = backend.xp_of([q]), q.shape
    o = xp.empty((n_batch, n_queries, n_heads, width), q.dtype)
    lse = xp.empty((n_batch, n_heads, n_queries), np.float32)
    rung = rung or best_rung(q)
    rows, threads = block_of(rung, width)
    file = FILES.get(rung, "attention.cu")
    if o.size:
        grid = -(-n_queries // rows), n_heads, n_batch
        pairs, macros = between(mask, dropout)
        kernel = dispatch.kernel(file, f"attention_{rung}", q.dtype, E=width, **macros)
        kernel(grid, threads, (o, lse, *inputs(q, k, v), scale, is_causal, *pairs))
    return o.swapaxes(1, 2), lse


def by_kernel_backward(go, q, k, v, o, lse, is_causal, scale, rung=None, out=None, mask=None,
                       dropout=None):
    """Runs backward. Returns (gq, gk, gv), each a view of a (B, L, H, E) array.

    rung, mask, dropout: as in `by_kernel`.
    out: for self-attention, an array (B, L, 3, H, E). The three gradients are written into `out`,
    and `out` is returned."""
    xp, (n_batch, n_heads, n_queries, width), n_keys = backend.xp_of([q]), q.shape, k.shape[2]
    go, o = (scratch(xp.ascontiguousarray(a.swapaxes(1, 2)), of=a) for a in (go, o))
    rung = rung or best_rung(q)
    packed = out is not None and rung == "tile"  # the kernel writes gk and gv into `out`
    kind = "temporary" if out is None else "workspace"
    if packed:
        gk, gv = (out.reshape(-1)[i * n_heads * width:] for i in (1, 2))
    else:
        gk, gv = (scratch(xp.zeros((n_batch, n_keys, n_heads, width), q.dtype), kind)
                  for _ in range(2))
    rows, threads = block_of(rung, width)
    file = FILES.get(rung, "attention_backward.cu")
    query_blocks, key_blocks = -(-n_queries // rows), -(-n_keys // rows)
    if rung == "tile":  # key blocks i, i + parts, i + 2 parts, ... add to part i of gq
        parts = min(key_blocks, PARTS)
        gq = scratch(xp.empty((parts, *go.shape), np.float32),
                     kind if key_blocks == 1 else "workspace")
    else:
        gq = scratch(xp.empty_like(go), kind)
    if go.size:
        dots = xp.empty(go.shape[:3], np.float32)
        row_dot = (FILES["tile"], "attention_tile_row_dot") if rung == "tile" else (
            "attention_backward.cu", "attention_row_dot")
        row_dot = dispatch.kernel(*row_dot, q.dtype, E=width)
        row_dot(-(-dots.size // 128), 128, (dots, go, o, dots.size))
        pairs, macros = between(mask, dropout)
        common = go, lse, dots, *inputs(q, k, v), scale, is_causal, *pairs

        def launch(kernel, n_blocks, outputs, **more):
            kernel = dispatch.kernel(file, f"attention_{kernel}", q.dtype, E=width, **macros,
                                     **more)
            kernel((n_blocks, n_heads, n_batch), threads, (*outputs, *common))

        if rung == "tile":
            launch("tile_backward", parts, (gq, gk, gv), GRAD_ROWS=3 if packed else 1)
        else:
            launch(f"grad_q_{rung}", query_blocks, (gq,))
            launch(f"grad_kv_{rung}", key_blocks, (gk, gv))
    if rung == "tile":
        gq = gq[0] if key_blocks == 1 else scratch(gq.sum(axis=0), kind)
    if out is None:
        return tuple(a.swapaxes(1, 2) for a in (gq, gk, gv))
    for i, a in enumerate((gq,) if packed else (gq, gk, gv)):
        out[:, :, i] = a
    return out


def inputs(q, k, v):
    """Returns the arguments that describe q, k and v: their memory, L, S, and nine strides in
    elements."""
    strides = [s // a.itemsize for a in (q, k, v) for s in a.strides[:3]]
    return memory(q), memory(k), memory(v), q.shape[2], k.shape[2], *strides


def memory(a):
    """Returns the memory of an array, from its first element to its last, as a 1-d array."""
    if a.flags.c_contiguous:  # reshape is twenty times as fast as as_strided
        return a.reshape(-1)
    n = 1 + sum((n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)) // a.itemsize
    return backend.xp_of([a]).lib.stride_tricks.as_strided(a, (n,), (a.itemsize,))


MASKS = {np.dtype(bool): "bool", np.dtype(np.float32): "float", np.dtype(np.float16): "__half"}
NEITHER = (None, *[0] * 9), {}  # the result of `between` if there is no mask and no dropout


def between(mask, dropout):
    """Returns (arguments, macros). They tell an attention kernel which mask and which dropout it
    must use."""
    if mask is None and dropout is None:
        return NEITHER
    arguments, macros = [None, *[0] * 4], {}
    if mask is not None:
        macros["MASK"] = MASKS[mask.dtype]
        arguments = [memory(mask), *(s // mask.itemsize for s in mask.strides)]
    if dropout is None:
        return (*arguments, *[0] * 5), macros
    p, state = dropout
    return (*arguments, *state, *drop.limits(p)), {**macros, "DROPOUT": 1}


def mask_view(mask, shape):
    """Returns a mask as a view (B, H, L, S) that the kernels can read. A broadcast mask is not
    copied. shape: (*leading dimensions, L, S), the shape of the scores."""
    xp = backend.xp_of([mask])
    if mask.dtype not in MASKS:
        mask = mask.astype(np.float32)
    if min(mask.strides, default=0) < 0:
        mask = mask.copy()
    n_heads = shape[-3] if len(shape) > 2 else 1
    return xp.broadcast_to(mask, shape).reshape(math.prod(shape[:-3]), n_heads, *shape[-2:])


def readable(a):
    """Returns `a`, or a copy of `a` if the kernels cannot read it. For the kernels the last stride
    must be one element, and no stride may be negative."""
    strides = [s for n, s in zip(a.shape, a.strides, strict=True) if n > 1]
    good = min(strides, default=0) >= 0 and a.strides[-1] == a.itemsize
    return a if good else a.copy()


def fits(q, k, v):
    """Returns True if the kernels can handle these shapes. Keys and values must have the same
    shape, and there must be at least one key. A head may be at most 128 wide, and the grid must not
    be too large for CUDA."""
    n_batch, n_heads, _, width = q.shape
    return (k.shape == v.shape and 0 < width <= MAX_WIDTH and k.shape[2] > 0
            and n_batch <= MAX_BLOCKS and n_heads <= MAX_BLOCKS)
