"""minidl.nn.functional as editors see it. `make stubs` writes this file."""

from collections.abc import Sequence
from typing import Any, Literal, overload

from numpy import generic, ndarray
from numpy.typing import DTypeLike

from minidl import ops as ops
from minidl.random import Generator
from minidl.tensor import Tensor

# minidl/ops/activations.py
def elu(input: Tensor | ndarray, alpha: float = 1.0) -> Tensor: ...
def leaky_relu(input: Tensor | ndarray, negative_slope: float = 0.01) -> Tensor: ...
def relu(input: Tensor | ndarray) -> Tensor: ...
def sigmoid(input: Tensor | ndarray) -> Tensor: ...
def silu(input: Tensor | ndarray) -> Tensor: ...
def softplus(input: Tensor | ndarray, beta: float = 1.0, threshold: float = 20.0) -> Tensor: ...
def tanh(input: Tensor | ndarray) -> Tensor: ...


# minidl/ops/attention.py
def scaled_dot_product_attention(
    query: Tensor | ndarray, key: Tensor | ndarray, value: Tensor | ndarray,
    attn_mask: Tensor | ndarray | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Returns softmax(scale * query @ key.T + mask) @ value. query (..., L, E), key (..., S,
    E), value (..., S, Ev) -> (..., L, Ev)."""
def self_attention(
    qkv: Tensor | ndarray, n_heads: int, is_causal: bool = False, dropout_p: float = 0.0, *,
    attn_mask: Tensor | ndarray | None = None, generator: Generator | None = None
) -> Tensor:
    """Attention among the positions of each sequence. qkv (B, L, 3 C) -> (B, L, C)."""


# minidl/ops/batch_norm.py
def batch_norm(
    input: Tensor | ndarray, running_mean: Tensor | ndarray | None,
    running_var: Tensor | ndarray | None, weight: Tensor | ndarray | None = None,
    bias: Tensor | ndarray | None = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-05
) -> Tensor:
    """Normalises each channel of input (N, C, ...) to mean 0 and variance 1, then multiplies
    by weight and adds bias."""


# minidl/ops/conv.py
def conv1d(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1
) -> Tensor:
    """Cross-correlation of sequences (N, C, L) or (C, L) with weight (O, C / groups, k)."""
def conv2d(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1
) -> Tensor:
    """Cross-correlation of images (N, C, H, W) or (C, H, W) with weight (O, C / groups, kh,
    kw)."""


# minidl/ops/cross_entropy.py
def cross_entropy(
    input: Tensor | ndarray, target: Tensor | ndarray, weight: Tensor | ndarray | None = None,
    *, ignore_index: int = -100, reduction: str = 'mean', label_smoothing: float = 0.0
) -> Tensor:
    """Returns -log softmax(input)[target]. input: logits (N, C, d1, ...) or (C,), where C is
    the number of classes."""
def nll_loss(
    input: Tensor | ndarray, target: Tensor | ndarray, weight: Tensor | ndarray | None = None,
    *, ignore_index: int = -100, reduction: str = 'mean'
) -> Tensor:
    """-input[target]. input: log probabilities (N, C, d1, ...). target: classes (N, d1, ...)."""


# minidl/ops/dropout.py
def dropout(
    input: Tensor | ndarray, p: float = 0.5, training: bool = True, *,
    generator: Generator | None = None
) -> Tensor:
    """Sets elements to zero with probability p, and multiplies all other elements by 1 / (1 -
    p)."""


# minidl/ops/embedding.py
def embedding(
    input: Tensor | ndarray, weight: Tensor | ndarray, padding_idx: int | None = None
) -> Tensor:
    """weight[input]. input: integer indices (...) -> (..., embedding_dim)."""


# minidl/ops/extra/activations.py
def glu(input: Tensor | ndarray, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the two halves of input along `dim`."""
def mish(input: Tensor | ndarray) -> Tensor: ...
def prelu(input: Tensor | ndarray, weight: Tensor | ndarray) -> Tensor:
    """x where x is positive, else weight * x, for x = input. weight: (1,) or (channels,)."""
def selu(input: Tensor | ndarray) -> Tensor:
    """scale * (x where x is positive, else alpha (e^x - 1)), for x = input."""


# minidl/ops/extra/columns.py
def fold(
    input: Tensor | ndarray, output_size: int | Sequence[int], kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1
) -> Tensor:
    """Returns images of `output_size` from columns: (N, C kh kw, L) -> (N, C, *output_size),
    or (C kh kw, L) -> (C, *output_size)."""
def unfold(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1
) -> Tensor:
    """Returns the windows of images as columns: (N, C, H, W) -> (N, C kh kw, L), or (C, H, W)
    -> (C kh kw, L)."""


# minidl/ops/extra/composed.py
def celu(input: Tensor | ndarray, alpha: float = 1.0) -> Tensor:
    """alpha * elu(x / alpha)."""
def dropout2d(
    input: Tensor | ndarray, p: float = 0.5, training: bool = True, *,
    generator: Generator | None = None
) -> Tensor:
    """Sets whole channels of (N, C, H, W) or (N, C, L) to zero with probability p."""
def gumbel_softmax(
    logits: Any, tau: Any = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1, *,
    generator: Generator | None = None
) -> Tensor:
    """softmax((logits + g) / tau), where g = -log(-log(u)) and u is uniform in (0, 1)."""
def hardsigmoid(input: Tensor | ndarray) -> Tensor:
    """relu6(x + 3) / 6, a sigmoid that is made of three straight lines."""
def hardswish(input: Tensor | ndarray) -> Tensor:
    """x * hardsigmoid(x)."""
def hardtanh(
    input: Tensor | ndarray, min_val: float = -1.0, max_val: float = 1.0
) -> Tensor:
    """Limits elements to the range from min_val to max_val."""
def logsigmoid(input: Tensor | ndarray) -> Tensor:
    """log(1 / (1 + exp(-x))), in a form that cannot overflow."""
def pixel_shuffle(input: Tensor | ndarray, upscale_factor: int) -> Tensor:
    """Turns channels into pixels: (..., c r r, h, w) -> (..., c, h r, w r), where r is
    upscale_factor."""
def relu6(input: Tensor | ndarray) -> Tensor:
    """min(max(0, x), 6)."""
def softmin(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """softmax(-x) along `dim`. dtype: if given, -x is cast to it first."""
def softsign(input: Tensor | ndarray) -> Tensor:
    """x / (1 + |x|)."""
def threshold(
    input: Tensor | ndarray, threshold: float, value: Tensor | ndarray | generic | float
) -> Tensor:
    """x where x is above the threshold, else value."""
def triplet_margin_loss(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-06, swap: bool = False, *, reduction: str = 'mean'
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin). |v| is the p-norm of v.
    swap: if True, the second norm is the smaller of |anchor - negative| and |positive -
    negative|."""


# minidl/ops/extra/conv_transpose.py
def conv_transpose1d(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1
) -> Tensor:
    """Transposed convolution of sequences (N, C, L) or (C, L) with weight (C, O / groups, k)."""
def conv_transpose2d(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1
) -> Tensor:
    """Transposed convolution of images (N, C, H, W) or (C, H, W) with weight (C, O / groups,
    kh, kw)."""


# minidl/ops/extra/distance.py
def cosine_similarity(
    x1: Tensor | ndarray, x2: Tensor | ndarray, dim: int = 1, eps: float = 1e-08
) -> Tensor:
    """The cosine of the angle between vectors along `dim`: x1 . x2 / (|x1| |x2|)."""
def normalize(
    input: Tensor | ndarray, p: float = 2.0, dim: int = 1, eps: float = 1e-12
) -> Tensor:
    """Divides the vectors along `dim` by their length: input / max(|input|_p, eps)."""
def pairwise_distance(
    x1: Tensor | ndarray, x2: Tensor | ndarray, p: float = 2.0, eps: float = 1e-06,
    keepdim: bool = False
) -> Tensor:
    """|x1 - x2 + eps|_p along the last dimension."""


# minidl/ops/extra/embedding_bag.py
def embedding_bag(
    input: Tensor | ndarray, weight: Tensor | ndarray, offsets: Tensor | ndarray | None = None,
    *, mode: str = 'mean', per_sample_weights: Tensor | ndarray | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None
) -> Tensor:
    """Returns the sum, the mean or the maximum of the rows of `weight` for each bag of
    indices: (bags, width)."""


# minidl/ops/extra/instance_norm.py
def instance_norm(
    input: Tensor | ndarray, running_mean: Tensor | ndarray | None = None,
    running_var: Tensor | ndarray | None = None, weight: Tensor | ndarray | None = None,
    bias: Tensor | ndarray | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-05
) -> Tensor:
    """Normalises each channel of each sample of input (N, C, ...) to mean 0 and variance 1,
    then multiplies by weight and adds bias."""


# minidl/ops/extra/interpolate.py
def interpolate(
    input: Tensor | ndarray, size: int | Sequence[int] | None = None, scale_factor: Any = None,
    mode: str = 'nearest', align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False
) -> Tensor:
    """Resizes all but the first two dimensions of input (N, C, ...)."""


# minidl/ops/extra/rearrange.py
def pad(
    input: Tensor | ndarray, pad: Sequence[int], mode: str = 'constant',
    value: Tensor | ndarray | generic | float | None = None
) -> Tensor:
    """Adds borders to the last dimensions. pad: (left, right) of the last dimension, then of
    the dimension before it, and so on, as in torch.nn.functional.pad."""


# minidl/ops/extra/recurrent.py
def gru_sequence(
    x: Tensor | ndarray, h: Tensor | ndarray, w: Tensor | ndarray, b: Tensor | ndarray
) -> tuple[Tensor, Tensor]:
    """Runs a Gru over a sequence."""
def lstm_sequence(
    x: Tensor | ndarray, h: Tensor | ndarray, c: Tensor | ndarray, w: Tensor | ndarray,
    b: Tensor | ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs an Lstm over a sequence."""
def rnn_sequence(
    x: Tensor | ndarray, h: Tensor | ndarray, w: Tensor | ndarray, b: Tensor | ndarray,
    nonlinearity: str = 'tanh'
) -> tuple[Tensor, Tensor]:
    """Runs an Rnn over a sequence."""


# minidl/ops/extra/search.py
def one_hot(input: Tensor | ndarray, num_classes: int = -1) -> Tensor:
    """Returns (..., num_classes) int64: for each integer a row of zeros, with a 1 at the place
    of the integer. num_classes=-1 means the largest integer + 1."""


# minidl/ops/gelu.py
def gelu(input: Tensor | ndarray, approximate: str = 'none') -> Tensor: ...


# minidl/ops/layer_norm.py
def layer_norm(
    input: Tensor | ndarray, normalized_shape: int | Sequence[int],
    weight: Tensor | ndarray | None = None, bias: Tensor | ndarray | None = None,
    eps: float = 1e-05
) -> Tensor:
    """Normalises the last dimensions to mean 0 and variance 1, then multiplies by weight and
    adds bias. normalized_shape: the sizes of these dimensions. weight and bias have this
    shape, too."""
def rms_norm(
    input: Tensor | ndarray, normalized_shape: int | Sequence[int],
    weight: Tensor | ndarray | None = None, eps: Any = None
) -> Tensor:
    """input / sqrt(mean(input^2) + eps) * weight, with the mean over the last dimensions.
    normalized_shape: the sizes of these dimensions. eps: the default is the machine epsilon
    of the dtype in which the sums are computed."""


# minidl/ops/linear.py
def linear(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None
) -> Tensor:
    """input @ weight.T + bias. input (..., in_features), weight (out_features, in_features),
    bias (out_features,) or None."""


# minidl/ops/loss.py
def binary_cross_entropy(
    input: Tensor | ndarray, target: Tensor | ndarray, weight: Tensor | ndarray | None = None,
    *, reduction: str = 'mean'
) -> Tensor:
    """-[t log p + (1 - t) log(1 - p)], where p = input is a probability and t = target."""
def binary_cross_entropy_with_logits(
    input: Tensor | ndarray, target: Tensor | ndarray, weight: Tensor | ndarray | None = None,
    *, reduction: str = 'mean', pos_weight: Tensor | ndarray | None = None
) -> Tensor:
    """-[t log s + (1 - t) log(1 - s)], where s = sigmoid(input) and t = target. weight
    multiplies the losses, and pos_weight multiplies the term t log s. weight and pos_weight
    broadcast and get no gradient."""
def huber_loss(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean',
    delta: float = 1.0
) -> Tensor:
    """(input - target)^2 / 2 where |input - target| < delta."""
def kl_div(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean',
    log_target: bool = False
) -> Tensor:
    """target (log target - input): how much the distribution `target` differs from the
    distribution exp(input)."""
def l1_loss(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean'
) -> Tensor:
    """|input - target|, reduced by `reduction`."""
def mse_loss(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean'
) -> Tensor:
    """(input - target)^2, reduced by `reduction`."""
def smooth_l1_loss(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean',
    beta: float = 1.0
) -> Tensor:
    """huber_loss with delta=beta, divided by beta."""


# minidl/ops/norm.py
def group_norm(
    input: Tensor | ndarray, num_groups: int, weight: Tensor | ndarray | None = None,
    bias: Tensor | ndarray | None = None, eps: float = 1e-05
) -> Tensor:
    """Normalises each group of channels of each sample to mean 0 and variance 1, then
    multiplies by weight and adds bias. input (N, C, ...); weight and bias (C,), or None."""


# minidl/ops/pool.py
def adaptive_avg_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None]
) -> Tensor:
    """Divides the image into height x width parts, and returns the mean of each part."""
@overload
def adaptive_max_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False
) -> Tensor:
    """Divides the image into parts, as adaptive_avg_pool2d does, and returns the largest
    element of each part. return_indices: if True, also returns the place of each largest
    element, as in max_pool2d."""
@overload
def adaptive_max_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None],
    return_indices: Literal[True]
) -> tuple[Tensor, Tensor]:
    """Divides the image into parts, as adaptive_avg_pool2d does, and returns the largest
    element of each part. return_indices: if True, also returns the place of each largest
    element, as in max_pool2d."""
@overload
def adaptive_max_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None],
    return_indices: Any = False
) -> Any:
    """Divides the image into parts, as adaptive_avg_pool2d does, and returns the largest
    element of each part. return_indices: if True, also returns the place of each largest
    element, as in max_pool2d."""
def avg_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None
) -> Tensor:
    """Returns the mean of each window. count_include_pad: True if the padding counts as zeros,
    False if only elements of the image count. divisor_override: divides the sum by this
    number instead."""
@overload
def max_pool1d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
    return_indices: Literal[False] = False
) -> Tensor:
    """Does the same as max_pool2d, for sequences (N, C, L) or (C, L)."""
@overload
def max_pool1d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]
) -> tuple[Tensor, Tensor]:
    """Does the same as max_pool2d, for sequences (N, C, L) or (C, L)."""
@overload
def max_pool1d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Any = False
) -> Any:
    """Does the same as max_pool2d, for sequences (N, C, L) or (C, L)."""
@overload
def max_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
    return_indices: Literal[False] = False
) -> Tensor:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the
    default is kernel_size. padding: the width of a border of -inf, at most half the kernel.
    ceil_mode: if True, adds a last window that is partly outside of the image (see `fit`).
    return_indices: if True, also returns the place of each largest element."""
@overload
def max_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]
) -> tuple[Tensor, Tensor]:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the
    default is kernel_size. padding: the width of a border of -inf, at most half the kernel.
    ceil_mode: if True, adds a last window that is partly outside of the image (see `fit`).
    return_indices: if True, also returns the place of each largest element."""
@overload
def max_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Any = False
) -> Any:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the
    default is kernel_size. padding: the width of a border of -inf, at most half the kernel.
    ceil_mode: if True, adds a last window that is partly outside of the image (see `fit`).
    return_indices: if True, also returns the place of each largest element."""


# minidl/ops/softmax.py
def log_softmax(
    input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None
) -> Tensor:
    """log(softmax(input, dim))."""
def softmax(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """exp(input) / sum(exp(input)) along `dim`. dtype: if given, casts the input to this dtype
    first."""
