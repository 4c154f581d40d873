"""RMS norm: layer norm that subtracts nothing, by layer_norm.cu compiled with -DCENTERED=0.

    y = x / sqrt(mean(x^2) + eps) * w          Saved: x, w and one number a row.

Plain op: minidl/ops/norm.py   Test: tests/fused/test_layer_norm.py
"""

import numpy as np

from minidl import backend
from minidl.fused import layer_norm


class RmsNorm(layer_norm.LayerNorm):
    centered = False


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """input / sqrt(mean(input^2) + eps) * weight over the last dimensions. eps: the machine epsilon
    of the dtype that sums (float32 for float16) unless given."""
    eps = float(np.finfo(backend.accumulate_dtype(input.dtype)).eps) if eps is None else eps
    return RmsNorm.apply(input, weight, None, shape=layer_norm.sizes(normalized_shape), eps=eps)


def accepts(input, normalized_shape, weight=None, eps=None):
    return layer_norm.accepts(input, normalized_shape, weight)
