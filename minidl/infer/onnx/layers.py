"""ONNX's layers: products, windows, norms, attention.

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import math

import numpy as np

from minidl.infer.onnx.arrange import gather
from minidl.infer.onnx.elements import cast
from minidl.infer.onnx.operator import Known, Raw, Refused, dtype_of, from_arrays, m, operators
from minidl.nn import functional as F
from minidl.ops.conv import Conv2d
from minidl.ops.extra.conv_transpose import ConvTranspose2d
from minidl.ops.pool import AvgPool2d, MaxPool2d
from minidl.tensor import Tensor

# ---- products ----


def MatMul(a, b):
    return m.matmul(a, b) if a.dtype.kind not in "iu" else _whole(a, b)


@from_arrays
def _whole(a, b):
    return a @ b


def Gemm(a, b: Raw, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    """If the weight b is constant, and alpha and beta are 1, uses F.linear. The reason is that a
    plan packs the weight of F.linear only once."""
    a = a.T if transA else a
    constant = isinstance(b, np.ndarray)
    if alpha == beta == 1 and constant and a.dtype.kind == "f" and (
            c is None or c.shape == (b.shape[1 - transB],)):
        return F.linear(a, Tensor(b if transB else np.ascontiguousarray(b.T)), c)
    b = Tensor(b) if constant else b
    y = MatMul(a, b.T if transB else b)
    y = y if alpha == 1 else y * alpha
    return y if c is None else y + (c if beta == 1 else c * beta)


# ---- windows ----


def _window(x, kernel, auto_pad, pads, strides, dilations):
    """Returns (kernel, stride, padding, dilation) of a window in two dimensions. padding:
    ((before, after), (before, after)). If x is a sequence (N, C, L), the window's height is 1."""
    n = x.ndim - 2
    if n not in (1, 2):
        raise Refused(f"a window of {n} dimensions is not supported; want 1 or 2")
    strides, dilations = strides or [1] * n, dilations or [1] * n
    pads = [*zip(pads[:n], pads[n:])] if pads else [(0, 0)] * n
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            less, more = total // 2, total - total // 2
            pads.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    first = 2 - n
    return ((1,) * first + tuple(kernel), (1,) * first + tuple(strides),
            ((0, 0),) * first + tuple(map(tuple, pads)), (1,) * first + tuple(dilations))


def _image(x):
    """Returns a sequence (N, C, L) as an image (N, C, 1, L). An image is returned unchanged."""
    return x.unsqueeze(2) if x.ndim == 3 else x


def _like(y, x):
    """If x was a sequence (N, C, L), returns y (N, C, 1, L) as (N, C, L). Else returns y."""
    return y.squeeze(2) if x.ndim == 3 else y


def Conv(x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None,
         strides=None):
    _, stride, padding, dilation = _window(x, w.shape[2:], auto_pad, pads, strides, dilations)
    return _like(Conv2d.apply(_image(x), _image(w), b, stride=stride, padding=padding,
                              dilation=dilation, groups=group), x)


def ConvTranspose(x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
                  output_padding=None, output_shape=None, pads=None, strides=None):
    kernel, stride, padding, dilation = _window(x, w.shape[2:], "NOTSET", pads, strides, dilations)
    extra, image = [0] * (4 - x.ndim) + list(output_padding or [0] * (x.ndim - 2)), _image(x)
    full = [(n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in zip(
        image.shape[2:], stride, dilation, kernel, extra, strict=True)]
    if output_shape or auto_pad.startswith("SAME"):
        size = [1] * (4 - x.ndim) + list(output_shape or [
            n * s for n, s in zip(x.shape[2:], stride[4 - x.ndim:])])
        total = [max(f - n, 0) for f, n in zip(full, size, strict=True)]
        padding = tuple((t - t // 2, t // 2) if auto_pad != "SAME_UPPER" else (t // 2, t - t // 2)
                        for t in total)
    else:
        size = [f - sum(p) for f, p in zip(full, padding, strict=True)]
    return _like(ConvTranspose2d.apply(image, _image(w), b, stride=stride, padding=padding,
                                       dilation=dilation, groups=group, size=tuple(size)), x)


def MaxPool(x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None,
            storage_order=0, strides=None, _n=1):
    kernel, stride, padding, dilation = _window(x, kernel_shape, auto_pad, pads, strides, dilations)
    y = MaxPool2d.apply(_image(x), kernel=kernel, stride=stride, padding=padding,
                        dilation=dilation, ceil_mode=bool(ceil_mode), indices=_n > 1)
    if _n == 1:
        return _like(y, x)
    shape = _image(x).shape
    return _like(y[0], x), _like(_offset(y[1], shape=shape, by_column=bool(storage_order)), x)


@from_arrays
def _offset(at, *, shape, by_column):
    """Returns indices in the whole array (N, C, H, W) for indices `at` in one channel (H, W). If
    by_column is True, the returned indices count the pixels of a channel column by column."""
    n, c, h, w = shape
    at = at % w * h + at // w if by_column else at
    return at + (np.arange(n * c) * h * w).reshape(n, c, 1, 1)


def AveragePool(x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0,
                dilations=None, pads=None, strides=None):
    kernel, stride, padding, dilation = _window(x, kernel_shape, auto_pad, pads, strides, dilations)
    if dilation != (1, 1):
        raise Refused(f"got the dilations {dilations}; want only dilations of 1")
    return _like(AvgPool2d.apply(
        _image(x), kernel=kernel, stride=stride, padding=padding, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad), divisor=None), x)


def _places(x):
    """Returns the dimensions of x after batch and channels."""
    return tuple(range(2, x.ndim))


def GlobalAveragePool(x):
    return F.adaptive_avg_pool2d(x, 1) if x.ndim == 4 else m.mean(x, _places(x), True)


def GlobalMaxPool(x):
    return m.amax(x, _places(x), True)


# ---- norms ----


def BatchNormalization(x, scale, bias, mean: Raw, var: Raw, *, epsilon=1e-5, momentum=0.9,
                       training_mode=0, spatial=1):
    if training_mode or not spatial:
        raise Refused("want training_mode=0 and spatial=1, because a graph is for inference, with "
                      f"statistics for each channel; got training_mode={training_mode}, "
                      f"spatial={spatial}")
    if all(isinstance(v, np.ndarray) and v.dtype == x.dtype for v in (mean, var)):
        return F.batch_norm(x, mean, var, scale, bias, eps=epsilon)
    shape = (-1, *[1] * (x.ndim - 2))
    mean, var = (Tensor(v) if isinstance(v, np.ndarray) else v for v in (mean, var))
    y = (x - mean.reshape(shape)) / m.sqrt(var + epsilon).reshape(shape)
    return cast(y * scale.reshape(shape) + bias.reshape(shape), x.dtype)


def InstanceNormalization(x, scale, bias, *, epsilon=1e-5):
    return F.group_norm(x, x.shape[1], scale, bias, epsilon)


def GroupNormalization(x, scale, bias, *, num_groups, epsilon=1e-5, stash_type=1, _opset=21):
    if _opset < 21:
        scale, bias = (v.repeat_interleave(x.shape[1] // num_groups) for v in (scale, bias))
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def LayerNormalization(x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1, _n=1):
    axis %= x.ndim
    if _n == 1 and x.dtype == np.float32 and scale.shape == x.shape[axis:]:
        return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)
    y, mean, rstd = _standard(x.float(), tuple(range(axis, x.ndim)), epsilon)
    y = cast(y, x.dtype) * scale
    return (y if bias is None else y + bias), mean, rstd


def _standard(x, dims, epsilon):
    """Returns (x with mean 0 and variance 1 over dims, the mean, 1 / the standard deviation)."""
    mean = m.mean(x, dims, True)
    rstd = m.rsqrt(m.mean((x - mean) ** 2.0, dims, True) + epsilon)
    return (x - mean) * rstd, mean, rstd


def RMSNormalization(x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    axis %= x.ndim
    if x.dtype == np.float32 and scale.shape == x.shape[axis:]:
        return F.rms_norm(x, x.shape[axis:], scale, epsilon)
    wide = x.float()
    rms = m.rsqrt(m.mean(wide * wide, tuple(range(axis, x.ndim)), True) + epsilon)
    return cast(wide * rms, x.dtype) * scale


def LRN(x, *, size, alpha=1e-4, beta=0.75, bias=1.0):
    """Divides each element by a power of a sum of squares. The sum is over the `size` channels
    around the element's channel."""
    n, c = x.shape[:2]
    if not 1 <= size <= 1024:  # the graph gets a line for each channel of the window
        raise Refused(f"a window of {size} channels is not supported; want 1 to 1,024")
    before = (size - 1) // 2
    square = F.pad(x * x, [0, 0] * (x.ndim - 2) + [before, size - 1 - before], value=0.0)
    total = sum((square[:, i:i + c] for i in range(1, size)), square[:, :c])
    return x / (total * (alpha / size) + bias) ** beta


# ---- attention ----


def RotaryEmbedding(x, cos, sin, at=None, *, interleaved=0, num_heads=None,
                    rotary_embedding_dim=0):
    flat = x.ndim == 3
    if flat:
        x = x.reshape(*x.shape[:2], num_heads, -1)
    else:
        x = x.permute(0, 2, 1, 3)  # (B, T, heads, E)
    width = rotary_embedding_dim or x.shape[3]
    turned, rest = x[..., :width], x[..., width:]
    if at is not None:
        cos, sin = (gather(v, at, axis=0) for v in (cos, sin))
    cos, sin = (v[..., :width // 2].unsqueeze(2) for v in (cos, sin))
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else m.chunk(turned, 2, -1)
    a, b = a * cos - b * sin, a * sin + b * cos
    y = m.stack([a, b], -1).reshape(turned.shape) if interleaved else m.cat([a, b], -1)
    y = m.cat([y, rest], -1)
    return y.reshape(*y.shape[:2], -1) if flat else y.permute(0, 2, 1, 3)


def Attention(q, k, v, mask=None, past_k=None, past_v=None, n_keys: Known = None, *, is_causal=0,
              kv_num_heads=None, left_window_size=-1, q_num_heads=None, qk_matmul_output_mode=0,
              right_window_size=-1, scale=None, softcap=0.0, softmax_precision=None, _n=1):
    """Computes softmax(scale q k^T + mask) v. The softmax is computed in the dtype
    softmax_precision. Several heads of q may share one head of k and v. If the mask hides all keys
    from a query, the result for this query is 0."""
    if flat := q.ndim == 3:
        q, k, v = (x.reshape(*x.shape[:2], n, -1).permute(0, 2, 1, 3) for x, n in (
            (q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    first = 0 if n_keys is None else n_keys.reshape(-1, 1, 1, 1) - q.shape[2]
    if past_k is not None:
        first = past_k.shape[2]
        k, v = m.cat([past_k, k], 2), m.cat([past_v, v], 2)
    present, n_shared = (k, v), q.shape[1] // k.shape[1]
    if n_shared > 1:
        k, v = (x.repeat_interleave(n_shared, 1) for x in (k, v))
    root = q.dtype.type(math.sqrt(scale or 1 / math.sqrt(q.shape[-1]))).item()
    steps = [(q * root) @ (k * root).permute(0, 1, 3, 2)]
    steps.append(m.tanh(steps[0] / softcap) * softcap if softcap else steps[0])
    bias = _bias(mask, q.shape[2], k.shape[2], first, n_keys, is_causal, left_window_size,
                 right_window_size, q.dtype)
    steps.append(steps[1] if bias is None else steps[1] + bias)
    s = steps[2] if softmax_precision is None else cast(steps[2], dtype_of(softmax_precision))
    p = F.softmax(s, -1)
    if bias is not None:
        p = m.where(m.amax(bias, -1, True) == -math.inf, 0.0, p)
    steps.append(cast(p, q.dtype))
    y = steps[3] @ v
    y = y.permute(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1) if flat else y
    return (y, *present, *([steps[qk_matmul_output_mode]] if _n > 3 else []))


def _bias(mask, n_rows, n_keys, first, n_valid, causal, left, right, dtype):
    """Returns the bias that is added to the scores. The bias is -inf where a query must not see a
    key. Elsewhere it is the mask, or 0 if there is no mask. Returns None if the bias is 0
    everywhere.

    first: the position of the first query. n_valid: for each text the number of its keys, or None
    if all keys count. left, right: a query sees this many keys before and after its position. A
    negative number means all keys."""
    at, key = first + np.arange(n_rows)[:, None], np.arange(n_keys)
    seen = (key <= at) | (not causal)
    seen = seen & ((key >= at - left) | (left < 0)) & ((key <= at + right) | (right < 0))
    if n_valid is not None:
        seen = seen & (key < n_valid.reshape(-1, 1, 1, 1))
    if mask is None and seen.all():
        return None
    bias = Tensor(np.where(seen, 0, -np.inf).astype(dtype))
    if mask is None:
        return bias
    if mask.shape[-1] < n_keys:
        mask = F.pad(mask, [0, n_keys - mask.shape[-1]],
                     value=False if mask.dtype == bool else -math.inf)
    if mask.dtype == bool:
        mask = m.where(mask, m.zeros(1, dtype=dtype), -math.inf)
    return bias + mask


TABLE = operators(globals())
