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
    """softmax(scale * query @ key.T + mask) @ value. query (..., L, E), key (..., S, E), value
    (..., S, Ev) -> (..., L, Ev)."""
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
    """Normalises each channel of input (N, C, ...) to mean 0 and variance 1, then computes *
    weight + bias."""


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
    """-log softmax(input)[target]. input: logits (N, C, d1, ...) or (C,), C classes."""
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
    """Sets elements to zero with probability p, and multiplies the others by 1 / (1 - p)."""


# minidl/ops/embedding.py
def embedding(
    input: Tensor | ndarray, weight: Tensor | ndarray, padding_idx: int | None = None
) -> Tensor:
    """weight[input]. input: integer indices (...) -> (..., embedding_dim)."""


# minidl/ops/extra/activations.py
def glu(input: Tensor | ndarray, dim: int = -1) -> Tensor:
    """a * sigmoid(b) where a and b are the halves of input along `dim`."""
def mish(input: Tensor | ndarray) -> Tensor: ...
def prelu(input: Tensor | ndarray, weight: Tensor | ndarray) -> Tensor:
    """input where positive, else weight * input; weight (1,) or (channels,)."""
def selu(input: Tensor | ndarray) -> Tensor:
    """scale * (input where positive, else alpha (e^input - 1))."""


# minidl/ops/extra/columns.py
def fold(
    input: Tensor | ndarray, output_size: int | Sequence[int], kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1
) -> Tensor:
    """Images of `output_size` from columns (N, C kh kw, L) or (C kh kw, L)."""
def unfold(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1
) -> Tensor:
    """The windows of images (N, C, H, W) or (C, H, W), as columns (N, C kh kw, L)."""


# minidl/ops/extra/composed.py
def celu(input: Tensor | ndarray, alpha: float = 1.0) -> Tensor:
    """alpha elu(x / alpha): smooth at 0 for any alpha."""
def dropout2d(
    input: Tensor | ndarray, p: float = 0.5, training: bool = True, *,
    generator: Generator | None = None
) -> Tensor:
    """Zero whole channels of (N, C, H, W) or (N, C, L) with probability p and scale the others
    by 1 / (1 - p); the input itself when not training."""
def gumbel_softmax(
    logits: Any, tau: Any = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1, *,
    generator: Generator | None = None
) -> Tensor:
    """A random class in a form that has a gradient: softmax((logits + g) / tau), g =
    -log(-log(u)). hard: 1 at the largest and 0 elsewhere, with the gradient of the soft
    one. eps: not used."""
def hardsigmoid(input: Tensor | ndarray) -> Tensor:
    """A sigmoid of three straight lines: relu6(x + 3) / 6."""
def hardswish(input: Tensor | ndarray) -> Tensor:
    """x hardsigmoid(x)."""
def hardtanh(
    input: Tensor | ndarray, min_val: float = -1.0, max_val: float = 1.0
) -> Tensor:
    """clamp, but with no gradient at the two ends themselves."""
def logsigmoid(input: Tensor | ndarray) -> Tensor:
    """log(1 / (1 + exp(-x))), without an overflow."""
def pixel_shuffle(input: Tensor | ndarray, upscale_factor: int) -> Tensor:
    """(..., c r r, h, w) -> (..., c, h r, w r): channels become pixels."""
def relu6(input: Tensor | ndarray) -> Tensor:
    """min(max(0, x), 6)."""
def softmin(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """softmax(-x). dtype: cast -x to it first."""
def softsign(input: Tensor | ndarray) -> Tensor:
    """x / (1 + |x|)."""
def threshold(
    input: Tensor | ndarray, threshold: float, value: Tensor | ndarray | generic | float
) -> Tensor:
    """x where it is above the threshold, else value."""
def triplet_margin_loss(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-06, swap: bool = False, *, reduction: str = 'mean'
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin). swap: the negative is
    compared with the positive instead, where that is nearer."""


# minidl/ops/extra/conv_transpose.py
def conv_transpose1d(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1
) -> Tensor:
    """Sequences (N, C, L) or (C, L) with weight (C, O / groups, k) to (N, O, L')."""
def conv_transpose2d(
    input: Tensor | ndarray, weight: Tensor | ndarray, bias: Tensor | ndarray | None = None,
    stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1
) -> Tensor:
    """Images (N, C, H, W) or (C, H, W) with weight (C, O / groups, kh, kw) to (N, O, H', W'),
    H' = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1."""


# minidl/ops/extra/distance.py
def cosine_similarity(
    x1: Tensor | ndarray, x2: Tensor | ndarray, dim: int = 1, eps: float = 1e-08
) -> Tensor:
    """The cosine of the angle between the vectors along `dim`: x1 . x2 / (|x1| |x2|), the
    lengths at least eps."""
def normalize(
    input: Tensor | ndarray, p: float = 2.0, dim: int = 1, eps: float = 1e-12
) -> Tensor:
    """The vectors along `dim` with length 1: input / max(|input|_p, eps)."""
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
    """(bags, width) from indices `input` (bags, n), or from a vector of them and where each
    bag starts in it. mode: "sum", "mean", "max"; per_sample_weights: factors of the rows,
    for "sum"; a bag does not count its padding_idx, and one without indices is zeros."""


# minidl/ops/extra/instance_norm.py
def instance_norm(
    input: Tensor | ndarray, running_mean: Tensor | ndarray | None = None,
    running_var: Tensor | ndarray | None = None, weight: Tensor | ndarray | None = None,
    bias: Tensor | ndarray | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-05
) -> Tensor:
    """Mean 0 and variance 1 over each channel of each sample of input (N, C, ...), then *
    weight + bias."""


# minidl/ops/extra/interpolate.py
def interpolate(
    input: Tensor | ndarray, size: int | Sequence[int] | None = None, scale_factor: Any = None,
    mode: str = 'nearest', align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False
) -> Tensor:
    """input (N, C, ...) with other sizes after the first two: `size`, or `scale_factor` times
    theirs, rounded down; a number for all or one each. mode: nearest, nearest-exact, linear
    (N, C, L), bilinear or bicubic (N, C, H, W), trilinear (N, C, D, H, W), area."""


# minidl/ops/extra/rearrange.py
def pad(
    input: Tensor | ndarray, pad: Sequence[int], mode: str = 'constant',
    value: Tensor | ndarray | generic | float | None = None
) -> Tensor:
    """Borders around the last dimensions: `pad` lists (left, right) of the last one first, as
    torch.nn.functional.pad; negative widths crop. mode: "constant", of `value`, 0 unless
    given; "replicate", the element at the edge; "reflect", the elements behind it in
    reverse; "circular", the elements of the other end."""


# minidl/ops/extra/recurrent.py
def gru_sequence(
    x: Tensor | ndarray, h: Tensor | ndarray, w: Tensor | ndarray, b: Tensor | ndarray
) -> tuple[Tensor, Tensor]:
    """(results of all steps, the last state) of Gru."""
def lstm_sequence(
    x: Tensor | ndarray, h: Tensor | ndarray, c: Tensor | ndarray, w: Tensor | ndarray,
    b: Tensor | ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """(results of all steps, the last h, the last c) of Lstm."""
def rnn_sequence(
    x: Tensor | ndarray, h: Tensor | ndarray, w: Tensor | ndarray, b: Tensor | ndarray,
    nonlinearity: str = 'tanh'
) -> tuple[Tensor, Tensor]:
    """(results of all steps (T, N, H), the last state (N, H)) of Rnn."""


# minidl/ops/extra/search.py
def one_hot(input: Tensor | ndarray, num_classes: int = -1) -> Tensor:
    """(..., num_classes) int64, a row of zeros and a one for each integer; -1: the largest +
    1."""


# minidl/ops/gelu.py
def gelu(input: Tensor | ndarray, approximate: str = 'none') -> Tensor: ...


# minidl/ops/layer_norm.py
def layer_norm(
    input: Tensor | ndarray, normalized_shape: int | Sequence[int],
    weight: Tensor | ndarray | None = None, bias: Tensor | ndarray | None = None,
    eps: float = 1e-05
) -> Tensor:
    """Normalises the last dimensions to mean 0 and variance 1, then computes * weight + bias.
    normalized_shape: the sizes of these dimensions, and the shape of weight and bias."""
def rms_norm(
    input: Tensor | ndarray, normalized_shape: int | Sequence[int],
    weight: Tensor | ndarray | None = None, eps: Any = None
) -> Tensor:
    """input / sqrt(mean(input^2) + eps) * weight, with the mean over the last dimensions.
    normalized_shape: their sizes. eps: the default is the machine epsilon of the dtype of
    the sums, which is float32 for float16."""


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
    """-[t log p + (1 - t) log(1 - p)], where p = input are probabilities and t = target."""
def binary_cross_entropy_with_logits(
    input: Tensor | ndarray, target: Tensor | ndarray, weight: Tensor | ndarray | None = None,
    *, reduction: str = 'mean', pos_weight: Tensor | ndarray | None = None
) -> Tensor:
    """-[t log s + (1 - t) log(1 - s)], where s = sigmoid(input) and t = target. weight
    multiplies the losses, and pos_weight multiplies their first term."""
def huber_loss(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean',
    delta: float = 1.0
) -> Tensor:
    """(input - target)^2 / 2 where the two differ by less than delta."""
def kl_div(
    input: Tensor | ndarray, target: Tensor | ndarray, *, reduction: str = 'mean',
    log_target: bool = False
) -> Tensor:
    """target (log target - input): how much the distribution `target` differs from another
    one, whose logarithms are `input`. log_target: if True, `target` has logarithms, too.
    reduction "batchmean" divides the sum by the number of rows, as the definition does.
    "mean" divides it by the number of elements."""
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
    """huber_loss with delta=beta, divided by beta, so that the slope beyond beta is 1. beta=0
    is l1_loss."""


# minidl/ops/norm.py
def group_norm(
    input: Tensor | ndarray, num_groups: int, weight: Tensor | ndarray | None = None,
    bias: Tensor | ndarray | None = None, eps: float = 1e-05
) -> Tensor:
    """Normalises each group of channels of each sample to mean 0 and variance 1, then computes
    * weight + bias. input (N, C, ...); weight and bias (C,), or None."""


# minidl/ops/pool.py
def adaptive_avg_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None]
) -> Tensor:
    """Returns the mean of each of output_size parts of the image. output_size: (height,
    width), or an int for both; None keeps the size of a dimension."""
@overload
def adaptive_max_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False
) -> Tensor:
    """Returns the largest element of each of output_size parts of the image."""
@overload
def adaptive_max_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None],
    return_indices: Literal[True]
) -> tuple[Tensor, Tensor]:
    """Returns the largest element of each of output_size parts of the image."""
@overload
def adaptive_max_pool2d(
    input: Tensor | ndarray, output_size: int | Sequence[int | None],
    return_indices: Any = False
) -> Any:
    """Returns the largest element of each of output_size parts of the image."""
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
    """As max_pool2d, for sequences (N, C, L) or (C, L)."""
@overload
def max_pool1d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]
) -> tuple[Tensor, Tensor]:
    """As max_pool2d, for sequences (N, C, L) or (C, L)."""
@overload
def max_pool1d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Any = False
) -> Any:
    """As max_pool2d, for sequences (N, C, L) or (C, L)."""
@overload
def max_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
    return_indices: Literal[False] = False
) -> Tensor:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the
    default is kernel_size. padding: the width of a border of -inf, at most half the kernel.
    ceil_mode: adds a last window that is partly outside (see `fit`). return_indices: also
    returns the places, h W + w."""
@overload
def max_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]
) -> tuple[Tensor, Tensor]:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the
    default is kernel_size. padding: the width of a border of -inf, at most half the kernel.
    ceil_mode: adds a last window that is partly outside (see `fit`). return_indices: also
    returns the places, h W + w."""
@overload
def max_pool2d(
    input: Tensor | ndarray, kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Any = False
) -> Any:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the
    default is kernel_size. padding: the width of a border of -inf, at most half the kernel.
    ceil_mode: adds a last window that is partly outside (see `fit`). return_indices: also
    returns the places, h W + w."""


# minidl/ops/softmax.py
def log_softmax(
    input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None
) -> Tensor:
    """log(softmax(input, dim)), computed without the error of a logarithm of rounded small
    numbers. dtype: as in softmax."""
def softmax(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """exp(input) / sum(exp(input)) along `dim`. dtype: if given, the input is cast to it
    first."""
