"""minidl as editors see it. `make stubs` writes this file."""

from collections.abc import Sequence
from typing import Any, Literal, overload

from numpy import dtype, generic, ndarray
from numpy.typing import DTypeLike

from minidl import accelerator as accelerator
from minidl import backend as backend
from minidl import backends as backends
from minidl import backward as backward
from minidl import comm as comm
from minidl import creation as creation
from minidl import cuda as cuda
from minidl import data as data
from minidl import elastic as elastic
from minidl import function as function
from minidl import gradcheck as gradcheck
from minidl import infer as infer
from minidl import memory as memory
from minidl import mode as mode
from minidl import nn as nn
from minidl import ops as ops
from minidl import optim as optim
from minidl import parallel as parallel
from minidl import precision as precision
from minidl import printing as printing
from minidl import random as random
from minidl import snapshot as snapshot
from minidl.backend import device as device
from minidl.backward import leaf_uses as leaf_uses
from minidl.creation import FloatTensor as FloatTensor
from minidl.creation import LongTensor as LongTensor
from minidl.creation import arange as arange
from minidl.creation import as_tensor as as_tensor
from minidl.creation import empty as empty
from minidl.creation import empty_like as empty_like
from minidl.creation import eye as eye
from minidl.creation import from_dlpack as from_dlpack
from minidl.creation import from_numpy as from_numpy
from minidl.creation import full as full
from minidl.creation import full_like as full_like
from minidl.creation import linspace as linspace
from minidl.creation import ones as ones
from minidl.creation import ones_like as ones_like
from minidl.creation import rand as rand
from minidl.creation import rand_like as rand_like
from minidl.creation import randint as randint
from minidl.creation import randn as randn
from minidl.creation import randn_like as randn_like
from minidl.creation import randperm as randperm
from minidl.creation import tensor as tensor
from minidl.creation import zeros as zeros
from minidl.creation import zeros_like as zeros_like
from minidl.cuda.cuda_graph import graphed as graphed
from minidl.cuda.device import get_float32_matmul_precision as get_float32_matmul_precision
from minidl.cuda.device import set_float32_matmul_precision as set_float32_matmul_precision
from minidl.cuda.fuse import fuse as fuse
from minidl.cuda.run import kernel as kernel
from minidl.function import Function as Function
from minidl.gradcheck import grad as grad
from minidl.mode import enable_grad as enable_grad
from minidl.mode import inference_mode as inference_mode
from minidl.mode import is_grad_enabled as is_grad_enabled
from minidl.mode import no_grad as no_grad
from minidl.mode import set_grad_enabled as set_grad_enabled
from minidl.mode import use_fused as use_fused
from minidl.ops.extra.sort import KthvalueResult, MedianResult, SortResult, TopkResult
from minidl.ops.extreme import MaxResult, MinResult
from minidl.precision import amp as amp
from minidl.precision.amp import autocast as autocast
from minidl.printing import printoptions as printoptions
from minidl.printing import set_printoptions as set_printoptions
from minidl.profile import _Callable
from minidl.random import Generator as Generator
from minidl.random import manual_seed as manual_seed
from minidl.snapshot.one_file import load as load
from minidl.snapshot.one_file import save as save
from minidl.tensor import Size as Size
from minidl.tensor import Tensor as Tensor

__version__: str
bfloat16: dtype[Any]
bool: dtype[Any]
bool_: dtype[Any]
def compile(model: Any, **options: Any) -> Any:
    """Returns the model unchanged, so that a program written for PyTorch runs."""
double: dtype[Any]
float: dtype[Any]
float16: dtype[Any]
float32: dtype[Any]
float64: dtype[Any]
half: dtype[Any]
int: dtype[Any]
int16: dtype[Any]
int32: dtype[Any]
int64: dtype[Any]
int8: dtype[Any]
long: dtype[Any]
profile: _Callable
short: dtype[Any]
uint8: dtype[Any]


# minidl/ops/activations.py
def relu(input: Tensor | ndarray) -> Tensor: ...
def sigmoid(input: Tensor | ndarray) -> Tensor: ...
def tanh(input: Tensor | ndarray) -> Tensor: ...


# minidl/ops/cast.py
def clone(input: Tensor | ndarray) -> Tensor:
    """Returns a copy."""


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


# minidl/ops/elementwise.py
def abs(input: Tensor | ndarray) -> Tensor:
    """|x|, with slope 0 at 0."""
def add(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float, *, alpha: float = 1
) -> Tensor:
    """input + alpha * other."""
def ceil(input: Tensor | ndarray) -> Tensor:
    """The smallest integer >= the element."""
def cos(input: Tensor | ndarray) -> Tensor:
    """The cosine of x in radians."""
def div(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float, *,
    rounding_mode: str | None = None
) -> Tensor:
    """input / other. rounding_mode: None, "floor" (rounds down) or "trunc" (rounds towards
    zero)."""
def exp(input: Tensor | ndarray) -> Tensor:
    """y = e^x."""
def floor(input: Tensor | ndarray) -> Tensor:
    """The largest integer <= the element."""
def fmod(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """a - b * trunc(a / b), which has the sign of a."""
def log(input: Tensor | ndarray) -> Tensor:
    """The natural logarithm."""
def mul(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """a * b."""
def neg(input: Tensor | ndarray) -> Tensor:
    """-x."""
def pow(input: Tensor | ndarray, exponent: Tensor | ndarray | generic | float) -> Tensor: ...
def remainder(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """a - b * floor(a / b), which has the sign of b."""
def round(input: Tensor | ndarray, *, decimals: int = 0) -> Tensor:
    """Rounds to the nearest integer. decimals: rounds to this number of digits after the
    decimal point instead."""
def rsqrt(input: Tensor | ndarray) -> Tensor:
    """y = x^(-1/2)."""
def sign(input: Tensor | ndarray) -> Tensor:
    """The sign of the element: 1, 0 or -1."""
def sin(input: Tensor | ndarray) -> Tensor:
    """The sine of x in radians."""
def sqrt(input: Tensor | ndarray) -> Tensor:
    """y = x^(1/2)."""
def sub(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float, *, alpha: float = 1
) -> Tensor:
    """input - alpha * other."""


# minidl/ops/extra/composed.py
def addmm(
    input: Tensor | ndarray, mat1: Tensor | ndarray, mat2: Tensor | ndarray, *, beta: float = 1,
    alpha: float = 1
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2). input broadcasts to (n, m)."""
def argwhere(input: Tensor | ndarray) -> Tensor:
    """Returns the index of each element that is not zero: (n, ndim) int64, where n is the
    number of these elements."""
def clip(
    input: Tensor | ndarray, min: Tensor | ndarray | generic | float | None = None,
    max: Tensor | ndarray | generic | float | None = None
) -> Tensor:
    """Another name of clamp."""
def concat(tensors: Sequence[Tensor | ndarray], dim: int = 0) -> Tensor:
    """Another name of cat."""
def cumprod(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """y[i] = x[0] x[1] ... x[i] along `dim`."""
def diff(
    input: Tensor | ndarray, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Tensor:
    """y[i] = x[i + 1] - x[i] along `dim`, repeated n times."""
def equal(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> bool:
    """Returns True if input and other have the same shape and the same elements."""
def fliplr(input: Tensor | ndarray) -> Tensor: ...
def flipud(input: Tensor | ndarray) -> Tensor: ...
def hstack(tensors: Sequence[Tensor | ndarray]) -> Tensor:
    """Joins tensors along dimension 1."""
def is_floating_point(input: Tensor | ndarray) -> bool:
    """Returns True if the dtype is floating."""
def lerp(
    input: Tensor | ndarray, end: Tensor | ndarray, weight: Tensor | ndarray | generic | float
) -> Tensor:
    """input + weight * (end - input)."""
def mm(input: Tensor | ndarray, mat2: Tensor | ndarray) -> Tensor:
    """The matrix product (n, k), (k, m) -> (n, m)."""
def movedim(input: Tensor | ndarray, source: Any, destination: Any) -> Tensor:
    """Moves the dimensions `source` to the places `destination`."""
def mv(input: Tensor | ndarray, vec: Tensor | ndarray) -> Tensor:
    """A matrix times a vector: (n, k), (k,) -> (n,)."""
def nan_to_num(
    input: Tensor | ndarray, nan: float = 0.0, posinf: float | None = None,
    neginf: float | None = None
) -> Tensor:
    """Replaces nan and the infinities by numbers."""
def narrow(input: Tensor | ndarray, dim: int, start: Any, length: int) -> Tensor:
    """Returns a view of `length` slices of dimension `dim`, from `start` on."""
def tensordot(a: Tensor | ndarray, b: Tensor | ndarray, dims: Any = 2) -> Tensor:
    """The sum of products over the last `dims` dimensions of a and the first `dims` dimensions
    of b. dims may also be a pair: (dimensions of a, dimensions of b)."""
def trunc(input: Tensor | ndarray) -> Tensor:
    """Rounds towards zero."""
def unflatten(input: Tensor | ndarray, dim: int, sizes: int | Sequence[int]) -> Tensor:
    """Splits one dimension into several dimensions of these sizes."""
def vstack(tensors: Sequence[Tensor | ndarray]) -> Tensor:
    """Joins tensors along dimension 0."""


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
def norm(
    input: Tensor | ndarray, p: float | str = 'fro', dim: int | Sequence[int] | None = None,
    keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The p-norm of the whole tensor, or of the vectors along `dim`. p: a number, inf, -inf,
    or "fro", which is 2."""


# minidl/ops/extra/einsum.py
def einsum(equation: str, *operands: Any) -> Tensor:
    """Returns the sum of products that `equation` describes. "..." stands for dimensions that
    broadcast."""


# minidl/ops/extra/rearrange.py
def diagonal(
    input: Tensor | ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Returns a view whose last dimension is a diagonal of dim1 and dim2."""
def meshgrid(
    *tensors: Tensor | ndarray | Sequence[Tensor | ndarray], indexing: str = 'ij'
) -> tuple[Tensor, ...]:
    """Returns the coordinates of a grid: one view for each vector."""
def repeat_interleave(
    input: Tensor | ndarray, repeats: int | Sequence[int] | Tensor | ndarray | None = None,
    dim: int | None = None, *, output_size: int | Sequence[int] | None = None
) -> Tensor:
    """Repeats each element (or each slice along `dim`) several times in a row. repeats: one
    int for all elements, or a tensor with a count for each element.
    repeat_interleave(counts) returns counts[i] copies of each index i."""
def roll(
    input: Tensor | ndarray, shifts: int | Sequence[int],
    dims: int | Sequence[int] | None = None
) -> Tensor:
    """Shifts elements along dims."""


# minidl/ops/extra/sampling.py
def bernoulli(
    input: Tensor | ndarray, p: Tensor | ndarray | generic | float | None = None, *,
    generator: Generator | None = None
) -> Tensor:
    """Returns 0 or 1 for each element, in the input's dtype."""
def multinomial(
    input: Tensor | ndarray, num_samples: int, replacement: bool = False, *,
    generator: Generator | None = None
) -> Tensor:
    """Draws num_samples indices for each row of weights `input`, (n,) or (rows, n)."""


# minidl/ops/extra/scatter.py
def index_add(
    input: Tensor | ndarray, dim: int, index: Tensor | ndarray, source: Tensor | ndarray, *,
    alpha: float = 1
) -> Tensor:
    """Returns a copy of `input` to which slices of `source` are added: alpha times slice j is
    added to slice index[j] along `dim`."""
def index_copy(
    input: Tensor | ndarray, dim: int, index: Tensor | ndarray, source: Tensor | ndarray
) -> Tensor:
    """Returns a copy of `input` into which the slices of `source` are written: slice j is
    written at place index[j] of `dim`."""
def index_fill(
    input: Tensor | ndarray, dim: int, index: Tensor | ndarray,
    value: Tensor | ndarray | generic | float
) -> Tensor:
    """Returns a copy of `input` into which `value` is written at the places `index` of `dim`.
    value: a number or a 0-d tensor."""
def masked_select(input: Tensor | ndarray, mask: Tensor | ndarray) -> Tensor:
    """Returns a vector of the elements where the bool tensor `mask` is True. input and mask
    broadcast."""
def scatter(
    input: Tensor | ndarray, dim: int, index: Tensor | ndarray,
    src: Tensor | ndarray | generic | float | None = None, *,
    value: Tensor | ndarray | generic | float | None = None, reduce: str | None = None
) -> Tensor:
    """Returns a copy of `input` into which the elements of src are written: src[i, j] is
    written at place index[i, j] of `dim`."""
def scatter_add(
    input: Tensor | ndarray, dim: int, index: Tensor | ndarray, src: Tensor | ndarray
) -> Tensor:
    """Returns a copy of `input` to which the elements of src are added: src[i, j] is added at
    place index[i, j] of `dim`."""
def scatter_reduce(
    input: Tensor | ndarray, dim: int, index: Tensor | ndarray, src: Tensor | ndarray,
    reduce: str, *, include_self: bool = True
) -> Tensor:
    """Reduces all src[i, j] that have the same place index[i, j] of `dim`."""


# minidl/ops/extra/search.py
def allclose(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float, rtol: float = 1e-05,
    atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Returns a Python bool: True if isclose holds for all elements."""
def bincount(
    input: Tensor | ndarray, weights: Tensor | ndarray | None = None, minlength: int = 0
) -> Tensor:
    """Returns how many times each integer from 0 to the largest element occurs in a vector.
    weights: if given, returns the sum of the weights of each integer instead. minlength:
    the least length of the result."""
def bucketize(
    input: Tensor | ndarray | generic | float, boundaries: Tensor | ndarray, *,
    out_int32: bool = False, right: bool = False
) -> Tensor:
    """Returns the index of the bucket of each element: searchsorted(boundaries, input)."""
def isclose(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float, rtol: float = 1e-05,
    atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Returns True where |input - other| <= atol + rtol |other|, for each element."""
@overload
def nonzero(input: Tensor | ndarray, *, as_tuple: Literal[False] = False) -> Tensor:
    """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if
    True, returns a tuple instead, with one vector for each dimension."""
@overload
def nonzero(input: Tensor | ndarray, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]:
    """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if
    True, returns a tuple instead, with one vector for each dimension."""
@overload
def nonzero(input: Tensor | ndarray, *, as_tuple: Any = False) -> Any:
    """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if
    True, returns a tuple instead, with one vector for each dimension."""
def searchsorted(
    sorted_sequence: Tensor | ndarray, input: Tensor | ndarray | generic | float, *,
    out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | ndarray | None = None
) -> Tensor:
    """Returns for each value v of input the index i with sequence[i-1] < v <= sequence[i]."""
def unique(
    input: Tensor | ndarray, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False, dim: int | None = None
) -> Any:
    """Returns the different values in order."""


# minidl/ops/extra/sort.py
def argsort(
    input: Tensor | ndarray, dim: int = -1, descending: bool = False, stable: bool = False
) -> Tensor:
    """Returns the indices that sort `input` along `dim`."""
def kthvalue(
    input: Tensor | ndarray, k: int, dim: int = -1, keepdim: bool = False
) -> KthvalueResult:
    """Returns the named tuple (values, indices) of the k-th smallest element along `dim`. k
    counts from 1."""
@overload
def median(input: Tensor | ndarray, dim: None = None, keepdim: bool = False) -> Tensor:
    """median(x) is the middle element, or the lower one of two middle elements. median(x, dim)
    is the named tuple (values, indices) of the medians along `dim`."""
@overload
def median(input: Tensor | ndarray, dim: int, keepdim: bool = False) -> MedianResult:
    """median(x) is the middle element, or the lower one of two middle elements. median(x, dim)
    is the named tuple (values, indices) of the medians along `dim`."""
@overload
def median(input: Tensor | ndarray, dim: Any = None, keepdim: bool = False) -> Any:
    """median(x) is the middle element, or the lower one of two middle elements. median(x, dim)
    is the named tuple (values, indices) of the medians along `dim`."""
def sort(
    input: Tensor | ndarray, dim: int = -1, descending: bool = False, stable: bool = False
) -> SortResult:
    """Returns the named tuple (values, indices), sorted along `dim`."""
def topk(
    input: Tensor | ndarray, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> TopkResult:
    """Returns the named tuple (values, indices) of the k largest (or smallest) elements along
    `dim`, in order."""


# minidl/ops/extra/unary.py
def acos(input: Tensor | ndarray) -> Tensor:
    """The arc cosine, between 0 and pi."""
def asin(input: Tensor | ndarray) -> Tensor:
    """The arc sine, between -pi/2 and pi/2."""
def atan(input: Tensor | ndarray) -> Tensor:
    """The arc tangent, between -pi/2 and pi/2."""
def cosh(input: Tensor | ndarray) -> Tensor:
    """(e^x + e^-x) / 2."""
def erf(input: Tensor | ndarray) -> Tensor:
    """The error function."""
def exp2(input: Tensor | ndarray) -> Tensor:
    """2^x."""
def expm1(input: Tensor | ndarray) -> Tensor:
    """e^x - 1, exact near 0."""
def log10(input: Tensor | ndarray) -> Tensor:
    """The logarithm to base 10."""
def log1p(input: Tensor | ndarray) -> Tensor:
    """log(1 + x), exact near 0."""
def log2(input: Tensor | ndarray) -> Tensor:
    """The logarithm to base 2."""
def reciprocal(input: Tensor | ndarray) -> Tensor:
    """1 / x."""
def sinh(input: Tensor | ndarray) -> Tensor:
    """(e^x - e^-x) / 2."""
def square(input: Tensor | ndarray) -> Tensor:
    """x * x, in the dtype of x."""
def tan(input: Tensor | ndarray) -> Tensor:
    """The tangent of x in radians."""


# minidl/ops/extreme.py
def amax(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """The largest element over `dim`."""
def amin(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """The smallest element over `dim`."""
def argmax(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """The index of the first largest element."""
def argmin(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """The index of the first smallest element."""
@overload
def max(input: Tensor | ndarray, dim: None = None, keepdim: bool = False) -> Tensor:
    """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
    largest elements along `dim`. max(x, y) is maximum(x, y)."""
@overload
def max(input: Tensor | ndarray, dim: int, keepdim: bool = False) -> MaxResult:
    """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
    largest elements along `dim`. max(x, y) is maximum(x, y)."""
@overload
def max(input: Tensor | ndarray, dim: Any = None, keepdim: bool = False) -> Any:
    """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
    largest elements along `dim`. max(x, y) is maximum(x, y)."""
@overload
def min(input: Tensor | ndarray, dim: None = None, keepdim: bool = False) -> Tensor:
    """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
    smallest elements along `dim`. min(x, y) is minimum(x, y)."""
@overload
def min(input: Tensor | ndarray, dim: int, keepdim: bool = False) -> MinResult:
    """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
    smallest elements along `dim`. min(x, y) is minimum(x, y)."""
@overload
def min(input: Tensor | ndarray, dim: Any = None, keepdim: bool = False) -> Any:
    """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
    smallest elements along `dim`. min(x, y) is minimum(x, y)."""


# minidl/ops/index.py
def gather(input: Tensor | ndarray, dim: int, index: Tensor | ndarray) -> Tensor:
    """Returns y, which has the shape of `index`: y[i, j, k] = input[i, index[i, j, k], k] for
    dim 1."""
def index_select(input: Tensor | ndarray, dim: int, index: Tensor | ndarray) -> Tensor:
    """Returns the slices along `dim` at the places in `index`, a 1-d integer tensor."""
def tril(input: Tensor | ndarray, diagonal: int = 0) -> Tensor:
    """Returns the input with zeros above a diagonal. diagonal: 0 is the main diagonal, 1 is
    the diagonal above it, -1 is the diagonal below it."""
def triu(input: Tensor | ndarray, diagonal: int = 0) -> Tensor:
    """Returns the input with zeros below a diagonal. diagonal: as in tril."""


# minidl/ops/logic.py
def bitwise_and(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float
) -> Tensor:
    """input & other."""
def bitwise_not(input: Tensor | ndarray) -> Tensor:
    """~input."""
def bitwise_or(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float
) -> Tensor:
    """input | other."""
def bitwise_xor(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float
) -> Tensor:
    """input ^ other."""
def eq(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input == other."""
def floor_divide(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float
) -> Tensor:
    """input // other, rounded down."""
def ge(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input >= other."""
def gt(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input > other."""
def isfinite(input: Tensor | ndarray) -> Tensor:
    """True where the element is finite."""
def isinf(input: Tensor | ndarray) -> Tensor:
    """True where the element is inf or -inf."""
def isnan(input: Tensor | ndarray) -> Tensor:
    """True where the element is nan."""
def le(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input <= other."""
def logical_and(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float
) -> Tensor:
    """True where both elements are not zero."""
def logical_not(input: Tensor | ndarray) -> Tensor:
    """True where the element is zero."""
def logical_or(
    input: Tensor | ndarray, other: Tensor | ndarray | generic | float
) -> Tensor:
    """True where at least one element is not zero."""
def lt(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input < other."""
def ne(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input != other."""


# minidl/ops/matmul.py
def matmul(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """input @ other. 1-d operands and batches follow the rules of NumPy and PyTorch."""


# minidl/ops/products.py
def bmm(input: Tensor | ndarray, mat2: Tensor | ndarray) -> Tensor:
    """Returns y[i] = input[i] @ mat2[i] for a batch of matrices: (b, n, k), (b, k, m) -> (b,
    n, m)."""
def dot(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """Returns a 0-d tensor: the sum of input[i] * other[i]."""
def outer(input: Tensor | ndarray, vec2: Tensor | ndarray) -> Tensor:
    """Returns (n, m): the product of every element of the first vector with every element of
    the second."""


# minidl/ops/reduce.py
def all(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """True if no element is zero."""
def any(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """True if at least one element is not zero."""
def cumsum(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor: ...
def logsumexp(
    input: Tensor | ndarray, dim: int | Sequence[int], keepdim: bool = False
) -> Tensor: ...
def mean(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DTypeLike | None = None
) -> Tensor: ...
def prod(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DTypeLike | None = None
) -> Tensor: ...
def std(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, unbiased: bool = True,
    keepdim: bool = False, *, correction: int | None = None
) -> Tensor:
    """The standard deviation, the square root of `var`."""
def sum(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DTypeLike | None = None
) -> Tensor: ...
def var(
    input: Tensor | ndarray, dim: int | Sequence[int] | None = None, unbiased: bool = True,
    keepdim: bool = False, *, correction: int | None = None
) -> Tensor:
    """The variance over `dim`."""


# minidl/ops/select.py
def clamp(
    input: Tensor | ndarray, min: Tensor | ndarray | generic | float | None = None,
    max: Tensor | ndarray | generic | float | None = None
) -> Tensor:
    """Limits the elements to the range from `min` to `max`."""
def masked_fill(
    input: Tensor | ndarray, mask: Tensor | ndarray, value: Tensor | ndarray | generic | float
) -> Tensor:
    """Returns `value`, a number or a 0-d tensor, where the bool tensor `mask` is True, and
    input elsewhere."""
def maximum(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """The larger of a and b."""
def minimum(input: Tensor | ndarray, other: Tensor | ndarray | generic | float) -> Tensor:
    """The smaller of a and b."""
def where(
    condition: Tensor | ndarray, input: Tensor | ndarray | generic | float | None = None,
    other: Tensor | ndarray | generic | float | None = None
) -> Tensor:
    """Returns input where the bool tensor `condition` is True, and other elsewhere."""


# minidl/ops/shape.py
def broadcast_to(input: Tensor | ndarray, shape: int | Sequence[int]) -> Tensor: ...
def cat(tensors: Sequence[Tensor | ndarray], dim: int = 0) -> Tensor:
    """Joins tensors one after another along `dim`."""
def chunk(input: Tensor | ndarray, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Returns a tuple of views along `dim`, each of size ceil(n / chunks)."""
def flatten(input: Tensor | ndarray, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Joins the dimensions from start_dim to end_dim into one."""
def flip(
    input: Tensor | ndarray, *args: Any, dims: int | Sequence[int] | None = None
) -> Tensor:
    """Returns a copy with the order along the dims reversed."""
def permute(input: Tensor | ndarray, *dims: int | Sequence[int]) -> Tensor: ...
def reshape(input: Tensor | ndarray, *shape: int | Sequence[int]) -> Tensor: ...
def split(
    tensor: Tensor | ndarray, split_size_or_sections: Any, dim: int = 0
) -> tuple[Tensor, ...]:
    """Returns a tuple of views along `dim`. split_size_or_sections: the size of each view (the
    last view may be smaller), or a list with the sizes of all views."""
def squeeze(input: Tensor | ndarray, dim: int | None = None) -> Tensor:
    """Removes all dimensions of size 1, or only the dimensions in `dim` if they have size 1."""
def stack(tensors: Sequence[Tensor | ndarray], dim: int = 0) -> Tensor: ...
def swapaxes(input: Tensor | ndarray, dim0: int, dim1: int) -> Tensor:
    """Swaps two dimensions."""
def t(input: Tensor | ndarray) -> Tensor:
    """Returns the transpose of a matrix."""
def transpose(input: Tensor | ndarray, dim0: int, dim1: int) -> Tensor:
    """Swaps two dimensions."""
def unbind(input: Tensor | ndarray, dim: int = 0) -> tuple[Tensor, ...]:
    """Returns a tuple of all slices along `dim`, without that dimension."""
def unsqueeze(input: Tensor | ndarray, dim: int) -> Tensor:
    """Adds a dimension of size 1 at position `dim` of the result."""


# minidl/ops/softmax.py
def log_softmax(
    input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None
) -> Tensor:
    """log(softmax(input, dim))."""
def softmax(input: Tensor | ndarray, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """exp(input) / sum(exp(input)) along `dim`. dtype: if given, casts the input to this dtype
    first."""
