"""Scaled dot-product attention in blocks: never holds all scores at the same time.

The plain forms: minidl/plain/attention.py, and minidl/plain/flash.py. The second file works in
blocks, and has the formulas of backward. This file adds masks, dropout, and blocks of queries:

          keys ->            A block is 64 queries of a few heads. The scores of a block, 512 KiB,
    q   1 . . .              stay in the core's cache. They are computed, masked, changed to
    u   1 1 . .              exp(scores), and multiplied by v. The block keeps only its part of the
    e   1 1 1 .              output o, and for each query lse = log(sum(exp(scores))). Backward
    r   1 1 1 1              computes P = exp(scores - lse) again.
    y                        With a causal mask, a block stops at its last visible key: 37 % less
                             work with 4 blocks. Only the square on the diagonal needs a mask.

L is the number of queries, S the number of keys, E the width of a head. Saved: q, k, v, o and lse.
These are 4 L E + L numbers for each head, if S = L. P has L S numbers. If S = 256 and E = 32, P has
8 times as many numbers as q. So P is not saved. Computing P again is as fast as reading P from
memory.

A kernel does the same in registers, with mask and dropout (attention_kernel.py). The NumPy form in
this file runs if the kernel cannot run. The kernel cannot run for float64, for heads wider than
128, for broadcast keys or values, and for a floating mask that needs a gradient.

Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022); Milakov & Gimelshein (2018) for lse.
Test: tests/ops/test_attention.py   Tutorial: tutorials/29_flash_attention.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda.dispatch import usable
from minidl.cuda.launch import scratch
from minidl.function import Function
from minidl.ops import attention_kernel
from minidl.ops.dropout import check_probability, inverse_keep, keep_mask, reserve
from minidl.ops.extra.rearrange import repeat_interleave
from minidl.ops.matmul import same_dtype

BLOCK_ROWS = 64
BLOCK_SCORES = 2**17  # 512 KiB of float32, half of the 1 MiB L2 cache of a server core


class Attention(Function):
    """softmax(scale q k^T + mask) v. q (B, H, L, E), k (B, H, S, E), v (B, H, S, Ev)."""

    precision = "white"
    op = "scaled_dot_product_attention"
    state = None  # the state of the generator, if there is dropout

    def forward(self, q, k, v, mask, is_causal, dropout_p, scale, generator):
        self.lead = check_shapes(q, k, v, mask)
        broadcast = not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        q, k, v = (attention_kernel.readable(self._four(a, a.shape[-2:])) for a in (q, k, v))
        self._options(q, k, is_causal, dropout_p, scale, generator)
        self.ours = not broadcast and not self.needs[3] and attention_kernel.fits(q, k, v)
        o, lse = self._attend(q, k, v, mask)
        self.save(q, k, v, o, lse, mask)
        return o.reshape(*self.lead, *o.shape[2:])

    def backward(self, go):
        q, k, v, o, lse, mask = self.saved
        *grads, g_bias = self._attend_backward(go.reshape(o.shape), q, k, v, o, lse, mask)
        if g_bias is not None:
            grads.append(g_bias)
        grads = [g.reshape(*self.lead, *g.shape[2:]) for g in grads]
        return (*grads, None) if g_bias is None else tuple(grads)

    def _options(self, q, k, is_causal, dropout_p, scale, generator):
        self.dtype = backend.accumulate_dtype(q.dtype)
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        self.is_causal, self.dropout_p = bool(is_causal), dropout_p
        self.q_shape, self.n_keys = q.shape, k.shape[2]
        if dropout_p and self.state is None:  # a second forward (after NoRoom) uses the same draws
            self.state = reserve(generator, math.prod(q.shape[:3]) * self.n_keys)

    def _between(self, mask):
        """Returns the keyword arguments `mask` and `dropout` for the attention kernels."""
        if mask is not None:
            mask = attention_kernel.mask_view(mask, (*self.lead, self.q_shape[2], self.n_keys))
        return dict(mask=mask, dropout=(self.dropout_p, self.state) if self.dropout_p else None)

    def _attend(self, q, k, v, mask):
        """Returns (o, lse). o is (B, H, L, Ev). It is a view of a (B, L, H, Ev) array, because the
        next layer needs this order. lse is (B, H, L), in the dtype of the sums."""
        if self.ours and usable(q, k, v):
            return attention_kernel.by_kernel(q, k, v, self.is_causal, self.scale,
                                              **self._between(mask))
        xp, bias = self.xp, self._bias(mask, q.shape[2])
        o = xp.empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]), q.dtype).swapaxes(1, 2)
        lse = xp.empty(q.shape[:3], self.dtype)
        ones, triangle = xp.ones(self.n_keys, self.dtype), self._triangle()
        for rows, keys in self.blocks():
            p = self._scores(q, k, bias, triangle, rows, keys)[0]
            top = p.max(axis=-1) if p.shape[-1] else xp.zeros_like(lse[rows])
            top[top == -math.inf] = 0  # for a query that sees no key, exp(-inf - 0) is 0
            p -= top[..., None]
            xp.exp(p, out=p)
            total = p @ ones[:p.shape[-1]]  # BLAS sums rows 3 times as fast as NumPy's sum
            total[total == 0] = 1  # the output of a query that sees no key is 0, not 0 / 0
            lse[rows] = top + xp.log(total)
            if self.dropout_p:
                p *= self._drop(rows, keys)
            o_block = self._product(p, v[keys])
            o_block /= total[..., None]
            o[rows] = o_block
            del p, o_block  # freed before the next block is computed
        return o, lse

    def _attend_backward(self, go, q, k, v, o, lse, mask, out=None):
        """Returns (gq, gk, gv, gradient of the mask or None). For self-attention, `out` is an array
        (B, L, 3, H, E), and the three gradients are written into `out`."""
        xp = self.xp
        if self.ours and usable(go, q, k, v):
            grads = attention_kernel.by_kernel_backward(
                go, q, k, v, o, lse, self.is_causal, self.scale, out=out, **self._between(mask))
            return (*grads, None) if out is None else None
        triangle, bias = self._triangle(), self._bias(mask, q.shape[2])
        kind = "temporary" if out is None else "workspace"
        gq, gk, gv = (scratch(xp.zeros_like(a, dtype=self.dtype), kind) for a in (q, k, v))
        g_bias = None
        if bias is not None and self.needs[-1]:
            g_bias = scratch(xp.zeros((*q.shape[:3], self.n_keys), self.dtype), "temporary")
        for rows, keys in self.blocks():
            p, q_block = self._scores(q, k, bias, triangle, rows, keys)
            p -= lse[rows][..., None]
            xp.exp(p, out=p)
            go_block = self._work(go[rows])
            g = self._product(go_block, v[keys].swapaxes(-1, -2))  # gP, the gradient of P
            kept = p
            if self.dropout_p:
                kept = self._drop(rows, keys)
                g *= kept
                kept *= p
            gv[keys] += scratch(kept.swapaxes(-1, -2) @ go_block)
            g -= scratch(go_block * o[rows]).sum(axis=-1, keepdims=True)  # D of plain/flash.py
            g *= p  # gS, the gradient of the scores S
            gq_block = self._product(g, k[keys])
            gq_block *= self.dtype.type(self.scale)
            gq[rows] = gq_block
            gk[keys] += scratch(g.swapaxes(-1, -2) @ q_block)  # q_block contains the scale already
            if g_bias is not None:
                g_bias[rows][..., :g.shape[-1]] = g
            del p, q_block, go_block, g, kept, gq_block
        if out is not None:
            for i, g in enumerate((gq, gk, gv)):
                out[:, :, i] = g.swapaxes(1, 2)
        return gq, gk, gv, g_bias

    def _four(self, a, tail):
        """Returns `a` in the shape (B, H, *tail). self.lead: the leading dimensions of q, k and v,
        broadcast to one shape. The leading dimensions of `a` are broadcast to self.lead, and then
        joined into two dimensions. tail: the last two sizes. Makes no copy if `a` has this shape
        already."""
        if a.shape != (wanted := (*self.lead, *tail)):
            a = self.xp.broadcast_to(a, wanted)
        n_heads = self.lead[-1] if self.lead else 1
        return a.reshape(math.prod(self.lead[:-1]), n_heads, *tail)

    def _bias(self, mask, n_queries):
        """Returns the array that is added to the scores, (B, H, L, S), or None. A bool mask becomes
        0 where it is True, and -inf elsewhere."""
        if mask is None:
            return None
        if mask.dtype == bool:
            mask = self.xp.where(mask, self.dtype.type(0), self.dtype.type(-math.inf))
        return self._four(mask.astype(self.dtype, copy=False), (n_queries, self.n_keys))

    def _work(self, a):
        return scratch(a.astype(self.dtype, copy=False), of=a)

    def _product(self, a, b):
        b = self._work(b)
        return scratch(a @ b)

    def blocks(self):
        """Yields (rows, keys) for each block: `rows` is the index into q, o and lse, and `keys` is
        the index into k and v."""
        n_batch, n_heads, n_rows, _ = self.q_shape
        h, r = self.block_size()
        for b in range(n_batch):
            for h0 in range(0, n_heads, h):
                for r0 in range(0, n_rows, r):
                    heads, r1 = slice(h0, min(h0 + h, n_heads)), min(r0 + r, n_rows)
                    seen = min(r1, self.n_keys) if self.is_causal else self.n_keys
                    yield (b, heads, slice(r0, r1)), (b, heads, slice(0, seen))

    def block_size(self):
        """Returns (heads, queries): the size of a block."""
        _, n_heads, n_rows, _ = self.q_shape
        if self.xp is not np:  # a GPU is faster with few large launches
            return max(n_heads, 1), max(n_rows, 1)
        return max(1, BLOCK_SCORES // (BLOCK_ROWS * max(self.n_keys, 1))), BLOCK_ROWS

    def _scores(self, q, k, bias, triangle, rows, keys):
        """Returns two arrays for a block: the masked scores, and the queries times the scale."""
        q_block = scratch(q[rows].astype(self.dtype))
        q_block *= self.dtype.type(self.scale)
        s = self._product(q_block, k[keys].swapaxes(-1, -2))
        if bias is not None:
            s += bias[rows][..., :s.shape[-1]]
        if triangle is not None and s.shape[-1] > rows[2].start:
            square = s[..., rows[2].start:]  # every row sees the keys to the left of the square
            square += triangle[:square.shape[-2], :square.shape[-1]]
        return s, q_block

    def _triangle(self):
        """Returns the square that a causal block adds to its scores. The square is -inf above the
        diagonal and 0 elsewhere. Returns None if attention is not causal."""
        if not self.is_causal:
            return None
        n = self.block_size()[1]
        return scratch(self.xp.triu(self.xp.full((n, n), -math.inf, self.dtype), 1))

    def _drop(self, rows, keys):
        """Returns the dropout factors of a block: 0 or 1 / (1 - p) for each score."""
        b, heads, queries = rows
        keep = [self._keep(b, h, queries)[:, keys[2]] for h in range(heads.start, heads.stop)]
        return scratch(self.xp.stack(keep) * self.dtype.type(inverse_keep(self.dropout_p)))

    def _keep(self, b, h, queries):
        """Returns a bool array (queries, S) for head h of sample b. It is True where dropout keeps
        a probability. queries: a slice of the queries of this head. The probabilities (B, H, L, S)
        are numbered in C order, and probability n uses random number n of the generator."""
        _, n_heads, n_rows, _ = self.q_shape
        start = ((b * n_heads + h) * n_rows + queries.start) * self.n_keys
        n = (queries.stop - queries.start) * self.n_keys
        return keep_mask(self.xp, self.state, start, n, self.dropout_p).reshape(-1, self.n_keys)


def check_shapes(q, k, v, mask):
    """Returns the leading dimensions of q, k and v, broadcast to one shape. Raises TypeError if
    dtypes differ, and ValueError if shapes do not fit."""
    shapes = f"query {q.shape}, key {k.shape}, value {v.shape}"
    same_dtype("scaled_dot_product_attention", q, k, "query", "key")
    same_dtype("scaled_dot_product_attention", q, v, "query", "value")
    if (not backend.is_floating(q.dtype) or min(q.ndim, k.ndim, v.ndim) < 2
            or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]):
        raise ValueError("scaled_dot_product_attention: wants a floating-point dtype, and the "
                         "shapes query (..., L, E), key (..., S, E), value (..., S, Ev); got "
                         f"{q.dtype}, {shapes}")
    parts = [a.shape[:-2] for a in (q, k, v)]
    try:
        lead = parts[0] if parts[0] == parts[1] == parts[2] else np.broadcast_shapes(*parts)
        if mask is not None:
            want = (*lead, q.shape[-2], k.shape[-2])
            if np.broadcast_shapes(want, mask.shape) != want:
                raise ValueError
    except ValueError:
        mask = "" if mask is None else f", attn_mask {mask.shape}"
        raise ValueError(f"scaled_dot_product_attention: {shapes}{mask}; the dimensions before "
                         "the last two must broadcast, and the mask must broadcast to (..., number "
                         "of queries, number of keys)") from None
    return lead


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
                                 scale=None, enable_gqa=False, *, generator=None):
    """Returns softmax(scale * query @ key.T + mask) @ value. query (..., L, E), key (..., S, E),
    value (..., S, Ev) -> (..., L, Ev).

    scale: the default is 1 / sqrt(E).
    attn_mask: broadcasts to (..., L, S). A bool mask is True where a query may see a key. A
        floating mask is added to the scores.
    is_causal: query i sees keys 0 to i. The result of a query that sees no key is 0.
    dropout_p: the probability to drop an attention weight after the softmax. The function does not
        know whether a model trains: pass 0 in evaluation.
    enable_gqa: if True, key and value may have fewer heads (dimension -3) than the query. Then
        several heads of the query share one head of key and value."""
    if enable_gqa:
        times, left = divmod(query.shape[-3], key.shape[-3])
        if left or key.shape[-3] != value.shape[-3]:
            raise ValueError("scaled_dot_product_attention: key and value must have the same "
                             "number of heads. This number must divide the number of query "
                             f"heads; got {query.shape[-3]} query heads, "
                             f"{key.shape[-3]} key heads, {value.shape[-3]} value heads")
        key, value = (repeat_interleave(x, times, -3) for x in (key, value))
    check_probability(dropout_p, "scaled_dot_product_attention")
    return Attention.apply(query, key, value, attn_mask, is_causal=is_causal, dropout_p=dropout_p,
                           scale=scale, generator=generator)


class SelfAttention(Attention):
    """Attention among the positions of each sequence: qkv (B, L, 3 C) -> (B, L, C). Saves qkv, the
    output o, and lse. The gradient of qkv is also one array (B, L, 3 C). So no copy is needed to
    split qkv into q, k and v, or to join the gradients of q, k and v."""

    op = "self_attention"

    def forward(self, qkv, mask, n_heads, is_causal, dropout_p, generator):
        n_batch, length, width = qkv.shape
        shape = n_batch, length, 3, n_heads, width // 3 // n_heads
        qkv = self.xp.ascontiguousarray(qkv).reshape(shape)
        q, k, v = thirds(qkv)
        self._options(q, k, is_causal, dropout_p, None, generator)
        self.lead, self.ours = (n_batch, n_heads), attention_kernel.fits(q, k, v)
        o, lse = self._attend(q, k, v, mask)
        self.save(qkv, o, lse, mask)
        return o.swapaxes(1, 2).reshape(n_batch, length, width // 3)

    def backward(self, gy):
        qkv, o, lse, mask = self.saved
        n_batch, length, _, n_heads, width = qkv.shape
        go = gy.reshape(n_batch, length, n_heads, width).swapaxes(1, 2)
        out = scratch(self.xp.empty_like(qkv), "temporary")
        self._attend_backward(go, *thirds(qkv), o, lse, mask, out)
        return out.reshape(n_batch, length, 3 * n_heads * width), None


def thirds(qkv):
    """Returns q, k and v, three views (B, H, L, E) of an array (B, L, 3, H, E)."""
    return qkv.transpose(2, 0, 3, 1, 4)


def self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0, *, attn_mask=None, generator=None):
    """Attention among the positions of each sequence. qkv (B, L, 3 C) -> (B, L, C). The first C
    columns of qkv are q, the next C are k, and the last C are v. q, k and v have n_heads heads
    each. A head has C / n_heads columns.

    attn_mask: bool, True where a query may see a key. It broadcasts to (B, n_heads, L, L), and has
    no gradient. is_causal, dropout_p: as in scaled_dot_product_attention."""
    check_probability(dropout_p, "self_attention")
    if qkv.ndim != 3 or qkv.shape[2] % (3 * n_heads):
        raise ValueError("self_attention: qkv must have the shape (B, L, 3 C), and C must be "
                         f"divisible by the number of heads, {n_heads}; got {tuple(qkv.shape)}")
    return SelfAttention.apply(qkv, attn_mask, n_heads=n_heads, is_causal=is_causal,
                               dropout_p=dropout_p, generator=generator)
