"""Trains on the stand-in, so that what reaches CuPy is recorded: every kernel instance that a GPT
as wide as GPT-2 and the norms, activations and masks of other models ask for, in float32 and mixed
precision.

    STRICT_CUPY_KERNELS=folder PYTHONPATH=.:tests/strict_cupy \\
        python tests/strict_cupy/record_training.py [gpt2]

gpt2: only GPT-2 in mixed precision, O2, as a test wants it. One layer, short: an instance depends
on widths and dtypes. Nothing is computed, only asked for."""

import sys

import cupy
import numpy as np
from cupy import _raw

import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.parallel.data import codecs, flat, topk_mask
from minidl.precision import amp

VOCAB, CONTEXT = 50, 8


class GPT(nn.GPT):
    def forward(self, ids):
        x = self.drop(self.token(ids) + self.position(cupy.arange(ids.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def step(width, heads, dropout, level, make_optimizer):
    """Two steps, the second with an optimizer's state; gradients clipped."""
    model = GPT(VOCAB, CONTEXT, 1, heads, width, dropout=dropout).to("cuda")
    optimizer = make_optimizer(model.parameters())
    model, optimizer, scaler = amp.initialize(model, optimizer, level)
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, CONTEXT + 1))
    x, y = (minidl.Tensor(cupy.asarray(a)) for a in (ids[:, :-1].copy(), ids[:, 1:].copy()))
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1), label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer, max_norm=1.0)
        scaler.update()


def layers(dtype):
    """What a GPT has not: RMS norm, softmax, masks, rows of other lengths."""
    def tensor(*shape):
        return minidl.Tensor(cupy.asarray(np.ones(shape, dtype)), requires_grad=True)

    for cols in (32, 1024, 1100):  # the shortest rows of a warp, the longest, a block's
        x = tensor(3, cols)
        y = F.softmax(F.rms_norm(x, cols, tensor(cols)), -1) + F.log_softmax(x, -1)
        y = y + F.layer_norm(F.gelu(x, "tanh"), cols, tensor(cols), tensor(cols))
        F.cross_entropy(y, minidl.Tensor(cupy.zeros(3, np.int64))).backward()
    for width in (32, 64, 96, 128):
        q = tensor(1, 1, 5, width)
        for mask in (None, cupy.ones((5, 5), bool), cupy.zeros((5, 5), dtype)):
            for p in (0.0, 0.1):
                F.scaled_dot_product_attention(q, q, q, mask, p).sum().backward()


def between_ranks():
    """Buckets of gradients, and the payloads of methods that send less."""
    x = cupy.zeros(9000, np.float32)
    for dtype, wide in ((np.float32, np.float32), (np.float16, np.float32),
                        (np.float16, np.float16)):
        arrays, whole = [x.astype(dtype)], x.astype(wide)
        flat.pack(arrays, whole)
        flat.unpack(whole, arrays)
    codecs.decode_fp16(codecs.encode_fp16(x), x.size)
    codecs.decode_int8(codecs.encode_int8(x), x.size)
    topk_mask.compact(x, 0.5)
    topk_mask.drop(x, 0.5)


if __name__ == "__main__":
    _raw.RawKernel.__call__ = lambda *args, **options: None
    # nothing is written, and an index that was not checked must still be one
    cupy.empty = lambda shape, dtype=float, order="C": cupy.zeros(shape, dtype)
    some = sys.argv[1:] == ["gpt2"]
    for level in ("O2",) if some else ("O0", "O1", "O2"):
        step(768, 12, 0.1, level, lambda p: optim.AdamW(p, lr=1e-3))
        if not some:
            step(128, 1, 0.0, level, lambda p: optim.SGD(p, lr=1e-3, momentum=0.9))
    if not some:
        step(128, 1, 0.0, "O2", lambda p: optim.LAMB(p, lr=1e-3))
        between_ranks()
        for dtype in np.float32, np.float16:
            layers(dtype)
