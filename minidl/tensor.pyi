"""minidl.tensor as editors see it. `make stubs` writes this file."""

from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

from numpy import dtype as _dtype
from numpy import generic, ndarray
from numpy.typing import DTypeLike

from minidl import backend as backend
from minidl.backend import DEFAULT_FLOAT as DEFAULT_FLOAT
from minidl.backend import is_floating as is_floating
from minidl.backward import refuse_create_graph as refuse_create_graph
from minidl.backward import walk as walk
from minidl.mode import is_grad_enabled as is_grad_enabled
from minidl.ops.extra.sort import KthvalueResult, MedianResult, SortResult, TopkResult
from minidl.ops.extreme import MaxResult, MinResult
from minidl.random import Generator
from minidl.saved import Memory as Memory

class Absent:
    """Base class of objects that replace an array or a gradient if this rank does not hold it
    now (ZeRO)."""
class Handle:
    """The result of adding a hook. handle.remove() or handle() removes the hook."""
    def __init__(self, remove: Any) -> None: ...
    def remove(self) -> None: ...
    __call__ = remove
class LeafHook:
    """A hook on the gradient of a leaf."""
    def change(self, gradient: Tensor | ndarray) -> Any:
        """Backward calls change() when the gradient is complete."""
    def gradient_ready(self, leaf: Any) -> Any:
        """Backward calls gradient_ready() after it has added the gradient to `leaf.grad`."""
    def cleared(self, leaf: Any) -> Any:
        """zero_grad() calls cleared() after it has cleared `leaf.grad`."""
class Size(tuple):
    """A shape: a tuple of integers."""
    def numel(self) -> Any: ...
    def __getitem__(self, index: Any) -> Any: ...
    def __add__(self, other: Tensor | ndarray | generic | float) -> Any: ...
    def __radd__(self, other: Tensor | ndarray | generic | float) -> Any: ...
    def __mul__(self, times: Any) -> Any: ...
    __rmul__ = __mul__
    def __repr__(self) -> str: ...
class Tensor:
    """An array, its gradient, and the Function that made it."""
    def __init__(
        self, data: Any, requires_grad: _bool = False, *sizes: _int | Sequence[_int]
    ) -> None:
        """data: an array."""
    @property
    def data(self) -> Tensor: ...
    @data.setter
    def data(self, value: Any) -> None: ...
    def array_to_change(self, who: Any) -> Any:
        """Returns the array of this tensor."""
    @property
    def memory(self) -> Memory:
        """Returns the Memory object (saved.py) that this tensor shares with its views."""
    @property
    def version(self) -> int:
        """Returns the number of writes in place into this tensor's memory: through this tensor,
        its views, or the results of detach()."""
    @version.setter
    def version(self, value: Any) -> None: ...
    @property
    def grad(self) -> Tensor: ...
    @grad.setter
    def grad(self, value: Any) -> None: ...
    def add_to_grad(self, gradient: Tensor | ndarray) -> None:
        """Adds a gradient array to `grad`."""
    @property
    def requires_grad(self) -> bool: ...
    @requires_grad.setter
    def requires_grad(self, value: Any) -> None: ...
    def requires_grad_(self, requires_grad: _bool = True) -> Tensor: ...
    @property
    def shape(self) -> tuple[_int, ...]: ...
    @property
    def dtype(self) -> _dtype[Any]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def is_leaf(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def numel(self) -> int: ...
    nelement = numel
    def backward(
        self, gradient: Tensor | ndarray | None = None, retain_graph: _bool = False,
        create_graph: _bool = False
    ) -> None:
        """Computes gradients."""
    def on_grad_ready(self, hook: Any) -> Handle:
        """Adds a hook to this leaf."""
    register_post_accumulate_grad_hook = on_grad_ready
    def register_hook(self, hook: Any) -> Handle:
        """Adds a hook that may change the gradient of this tensor."""
    def add_leaf_hook(self, hook: Any) -> Handle:
        """Adds a LeafHook to this leaf."""
    def retain_grad(self) -> None:
        """Makes backward keep the gradient of this tensor in `grad`."""
    def detach(self) -> Tensor:
        """Returns a tensor with the same memory, outside the graph."""
    def __deepcopy__(self, memo: Any) -> Any:
        """Returns a leaf with a copy of the array and of the gradient, and without hooks."""
    def __getstate__(self) -> Any:
        """Returns the part of a tensor that copy and pickle keep: the values."""
    def __hash__(self) -> int:
        """Return hash(self)."""
    array: Any
    grad_fn: Any
    slot: _int


    # minidl/ops/__init__.py
    def __abs__(self) -> Tensor:
        """|x|, with slope 0 at 0."""
    def __add__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __and__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: Any = None) -> ndarray: ...
    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **options: Any) -> Tensor:
        """NumPy calls this method for a * x, where a is an array and x is a Tensor."""
    def __bool__(self) -> bool: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[_int, _int]: ...
    def __eq__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __float__(self) -> float: ...
    def __floordiv__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __format__(self, spec: Any) -> str: ...
    def __ge__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __getitem__(self, index: Any) -> Tensor:
        """input[index]."""
    def __gt__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __iadd__(self, value: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __imul__(self, value: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __index__(self) -> int: ...
    def __int__(self) -> int: ...
    def __invert__(self) -> Tensor:
        """~input."""
    def __isub__(self, value: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __itruediv__(self, value: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __le__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __len__(self) -> int: ...
    def __lt__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __matmul__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __mod__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __mul__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __ne__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __neg__(self) -> Tensor:
        """-x."""
    def __or__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __pow__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __radd__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rand__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __repr__(self) -> str: ...
    def __rfloordiv__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rmatmul__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rmod__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rmul__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __ror__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __round__(self, digits: Any = None) -> Tensor: ...
    def __rpow__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rsub__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rtruediv__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __rxor__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __setitem__(self, index: Any, value: Tensor | ndarray | generic | _float) -> None:
        """self[index] = value, in place."""
    def __sub__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __truediv__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def __xor__(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...


    # minidl/ops/activations.py
    def relu(self) -> Tensor: ...
    def sigmoid(self) -> Tensor: ...
    def tanh(self) -> Tensor: ...


    # minidl/ops/cast.py
    def bool(self) -> Tensor:
        """Returns x.to(bool)."""
    def clone(self) -> Tensor:
        """Returns a copy."""
    def contiguous(self) -> Tensor:
        """Returns x itself if it is in row-major order, else a copy in row-major order."""
    def cpu(self) -> Tensor: ...
    def cuda(self, device: str | _int = 'cuda') -> Tensor:
        """Returns x on a GPU. device: the name or the number of the GPU."""
    def double(self) -> Tensor:
        """Returns x.to(float64)."""
    def float(self) -> Tensor:
        """Returns x.to(float32)."""
    def half(self) -> Tensor:
        """Returns x.to(float16)."""
    def int(self) -> Tensor:
        """Returns x.to(int32)."""
    def long(self) -> Tensor:
        """Returns x.to(int64)."""
    def to(
        self, *args: Any, dtype: DTypeLike | None = None, device: str | _int | None = None,
        non_blocking: _bool = False, copy: _bool = False
    ) -> Tensor:
        """Returns x in another dtype, on another device, or both."""
    def type(self, dtype: DTypeLike) -> Tensor: ...


    # minidl/ops/convert.py
    def dim(self) -> int: ...
    def element_size(self) -> int:
        """Returns the number of bytes of an element."""
    def is_contiguous(self) -> bool: ...
    def item(self) -> Any:
        """Returns the only element as a Python number."""
    def numpy(self) -> ndarray:
        """Returns the NumPy array itself, without a copy."""
    @overload
    def size(self, dim: None = None) -> tuple[_int, ...]:
        """Returns the shape if dim is None, else the size of dimension `dim`."""
    @overload
    def size(self, dim: _int) -> int:
        """Returns the shape if dim is None, else the size of dimension `dim`."""
    @overload
    def size(self, dim: Any = None) -> Any:
        """Returns the shape if dim is None, else the size of dimension `dim`."""
    def tolist(self) -> Any: ...


    # minidl/ops/elementwise.py
    def abs(self) -> Tensor:
        """|x|, with slope 0 at 0."""
    def add(self, other: Tensor | ndarray | generic | _float, *, alpha: _float = 1) -> Tensor:
        """input + alpha * other."""
    def ceil(self) -> Tensor:
        """The smallest integer >= the element."""
    def cos(self) -> Tensor:
        """The cosine of x in radians."""
    def div(
        self, other: Tensor | ndarray | generic | _float, *, rounding_mode: str | None = None
    ) -> Tensor:
        """input / other. rounding_mode: None, "floor" (rounds down) or "trunc" (rounds towards
        zero)."""
    def exp(self) -> Tensor:
        """y = e^x."""
    def floor(self) -> Tensor:
        """The largest integer <= the element."""
    def fmod(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """a - b * trunc(a / b), which has the sign of a."""
    def log(self) -> Tensor:
        """The natural logarithm."""
    def mul(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """a * b."""
    def neg(self) -> Tensor:
        """-x."""
    def pow(self, exponent: Tensor | ndarray | generic | _float) -> Tensor: ...
    def remainder(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """a - b * floor(a / b), which has the sign of b."""
    def round(self, *, decimals: _int = 0) -> Tensor:
        """Rounds to the nearest integer. decimals: rounds to this number of digits after the
        decimal point instead."""
    def rsqrt(self) -> Tensor:
        """y = x^(-1/2)."""
    def sign(self) -> Tensor:
        """The sign of the element: 1, 0 or -1."""
    def sin(self) -> Tensor:
        """The sine of x in radians."""
    def sqrt(self) -> Tensor:
        """y = x^(1/2)."""
    def sub(self, other: Tensor | ndarray | generic | _float, *, alpha: _float = 1) -> Tensor:
        """input - alpha * other."""


    # minidl/ops/extra/composed.py
    def addmm(
        self, mat1: Tensor | ndarray, mat2: Tensor | ndarray, *, beta: _float = 1, alpha: _float = 1
    ) -> Tensor:
        """beta * input + alpha * (mat1 @ mat2). input broadcasts to (n, m)."""
    def argwhere(self) -> Tensor:
        """Returns the index of each element that is not zero: (n, ndim) int64, where n is the
        number of these elements."""
    def clip(
        self, min: Tensor | ndarray | generic | _float | None = None,
        max: Tensor | ndarray | generic | _float | None = None
    ) -> Tensor:
        """Another name of clamp."""
    def cumprod(self, dim: _int, *, dtype: DTypeLike | None = None) -> Tensor:
        """y[i] = x[0] x[1] ... x[i] along `dim`."""
    def diff(
        self, n: _int = 1, dim: _int = -1, prepend: Any = None, append: Any = None
    ) -> Tensor:
        """y[i] = x[i + 1] - x[i] along `dim`, repeated n times."""
    def equal(self, other: Tensor | ndarray | generic | _float) -> bool:
        """Returns True if input and other have the same shape and the same elements."""
    def expand_as(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...
    def fliplr(self) -> Tensor: ...
    def flipud(self) -> Tensor: ...
    def is_floating_point(self) -> bool:
        """Returns True if the dtype is floating."""
    def lerp(self, end: Tensor | ndarray, weight: Tensor | ndarray | generic | _float) -> Tensor:
        """input + weight * (end - input)."""
    def mm(self, mat2: Tensor | ndarray) -> Tensor:
        """The matrix product (n, k), (k, m) -> (n, m)."""
    def movedim(self, source: Any, destination: Any) -> Tensor:
        """Moves the dimensions `source` to the places `destination`."""
    def mv(self, vec: Tensor | ndarray) -> Tensor:
        """A matrix times a vector: (n, k), (k,) -> (n,)."""
    def nan_to_num(
        self, nan: _float = 0.0, posinf: _float | None = None, neginf: _float | None = None
    ) -> Tensor:
        """Replaces nan and the infinities by numbers."""
    def narrow(self, dim: _int, start: Any, length: _int) -> Tensor:
        """Returns a view of `length` slices of dimension `dim`, from `start` on."""
    def new_ones(
        self, *size: _int | Sequence[_int], dtype: DTypeLike | None = None,
        device: str | _int | None = None, requires_grad: _bool = False
    ) -> Tensor:
        """Returns ones of shape `size`. dtype, device: the defaults are the dtype and the device
        of `input`."""
    def new_zeros(
        self, *size: _int | Sequence[_int], dtype: DTypeLike | None = None,
        device: str | _int | None = None, requires_grad: _bool = False
    ) -> Tensor:
        """Returns zeros of shape `size`. dtype, device: the defaults are the dtype and the device
        of `input`."""
    def trunc(self) -> Tensor:
        """Rounds towards zero."""
    def type_as(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Returns the input in the dtype, and on the device, of `other`."""
    def unflatten(self, dim: _int, sizes: _int | Sequence[_int]) -> Tensor:
        """Splits one dimension into several dimensions of these sizes."""
    def unfold(self, dimension: _int, size: _int, step: _int) -> Tensor:
        """Returns windows of `size` elements along a dimension."""
    def view_as(self, other: Tensor | ndarray | generic | _float) -> Tensor: ...


    # minidl/ops/extra/distance.py
    def norm(
        self, p: _float | str = 'fro', dim: _int | Sequence[_int] | None = None, keepdim: _bool = False,
        *, dtype: DTypeLike | None = None
    ) -> Tensor:
        """The p-norm of the whole tensor, or of the vectors along `dim`. p: a number, inf, -inf,
        or "fro", which is 2."""


    # minidl/ops/extra/in_place_forms.py
    def abs_(self) -> Tensor:
        """Writes x.abs(...) into x."""
    def add_(self, other: Tensor | ndarray | generic | _float, *, alpha: _float = 1) -> Tensor:
        """Writes x.add(...) into x."""
    def bernoulli_(
        self, p: Tensor | ndarray | generic | _float | None = None, *,
        generator: Generator | None = None
    ) -> Tensor:
        """Writes x.bernoulli(...) into x."""
    def ceil_(self) -> Tensor:
        """Writes x.ceil(...) into x."""
    def clamp_(
        self, min: Tensor | ndarray | generic | _float | None = None,
        max: Tensor | ndarray | generic | _float | None = None
    ) -> Tensor:
        """Writes x.clamp(...) into x."""
    def cos_(self) -> Tensor:
        """Writes x.cos(...) into x."""
    def cumsum_(self, dim: _int, *, dtype: DTypeLike | None = None) -> Tensor:
        """Writes x.cumsum(...) into x."""
    def div_(
        self, other: Tensor | ndarray | generic | _float, *, rounding_mode: str | None = None
    ) -> Tensor:
        """Writes x.div(...) into x."""
    def erf_(self) -> Tensor:
        """Writes x.erf(...) into x."""
    def exp2_(self) -> Tensor:
        """Writes x.exp2(...) into x."""
    def exp_(self) -> Tensor:
        """Writes x.exp(...) into x."""
    def expm1_(self) -> Tensor:
        """Writes x.expm1(...) into x."""
    def floor_(self) -> Tensor:
        """Writes x.floor(...) into x."""
    def floor_divide_(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Writes x.floor_divide(...) into x."""
    def index_add_(
        self, dim: _int, index: Tensor | ndarray, source: Tensor | ndarray, *, alpha: _float = 1
    ) -> Tensor:
        """Writes x.index_add(...) into x."""
    def index_copy_(
        self, dim: _int, index: Tensor | ndarray, source: Tensor | ndarray
    ) -> Tensor:
        """Writes x.index_copy(...) into x."""
    def index_fill_(
        self, dim: _int, index: Tensor | ndarray, value: Tensor | ndarray | generic | _float
    ) -> Tensor:
        """Writes x.index_fill(...) into x."""
    def log10_(self) -> Tensor:
        """Writes x.log10(...) into x."""
    def log1p_(self) -> Tensor:
        """Writes x.log1p(...) into x."""
    def log2_(self) -> Tensor:
        """Writes x.log2(...) into x."""
    def log_(self) -> Tensor:
        """Writes x.log(...) into x."""
    def logical_and_(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Writes x.logical_and(...) into x."""
    def logical_not_(self) -> Tensor:
        """Writes x.logical_not(...) into x."""
    def logical_or_(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Writes x.logical_or(...) into x."""
    def masked_fill_(
        self, mask: Tensor | ndarray, value: Tensor | ndarray | generic | _float
    ) -> Tensor:
        """Writes x.masked_fill(...) into x."""
    def mul_(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Writes x.mul(...) into x."""
    def neg_(self) -> Tensor:
        """Writes x.neg(...) into x."""
    def normal_(
        self, mean: _float = 0.0, std: _float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Overwrites the tensor with random numbers from a normal distribution."""
    def pow_(self, exponent: Tensor | ndarray | generic | _float) -> Tensor:
        """Writes x.pow(...) into x."""
    def reciprocal_(self) -> Tensor:
        """Writes x.reciprocal(...) into x."""
    def relu_(self) -> Tensor:
        """Writes x.relu(...) into x."""
    def remainder_(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Writes x.remainder(...) into x."""
    def round_(self, *, decimals: _int = 0) -> Tensor:
        """Writes x.round(...) into x."""
    def rsqrt_(self) -> Tensor:
        """Writes x.rsqrt(...) into x."""
    def scatter_(
        self, dim: _int, index: Tensor | ndarray,
        src: Tensor | ndarray | generic | _float | None = None, *,
        value: Tensor | ndarray | generic | _float | None = None, reduce: str | None = None
    ) -> Tensor:
        """Writes x.scatter(...) into x."""
    def scatter_add_(self, dim: _int, index: Tensor | ndarray, src: Tensor | ndarray) -> Tensor:
        """Writes x.scatter_add(...) into x."""
    def sigmoid_(self) -> Tensor:
        """Writes x.sigmoid(...) into x."""
    def sign_(self) -> Tensor:
        """Writes x.sign(...) into x."""
    def sin_(self) -> Tensor:
        """Writes x.sin(...) into x."""
    def sqrt_(self) -> Tensor:
        """Writes x.sqrt(...) into x."""
    def square_(self) -> Tensor:
        """Writes x.square(...) into x."""
    def sub_(self, other: Tensor | ndarray | generic | _float, *, alpha: _float = 1) -> Tensor:
        """Writes x.sub(...) into x."""
    def tanh_(self) -> Tensor:
        """Writes x.tanh(...) into x."""
    def tril_(self, diagonal: _int = 0) -> Tensor:
        """Writes x.tril(...) into x."""
    def triu_(self, diagonal: _int = 0) -> Tensor:
        """Writes x.triu(...) into x."""
    def uniform_(
        self, from_: _float = 0.0, to: _float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Overwrites the tensor with random numbers, uniform in [from_, to)."""


    # minidl/ops/extra/rearrange.py
    def diagonal(self, offset: _int = 0, dim1: _int = 0, dim2: _int = 1) -> Tensor:
        """Returns a view whose last dimension is a diagonal of dim1 and dim2."""
    def repeat_interleave(
        self, repeats: _int | Sequence[_int] | Tensor | ndarray | None = None, dim: _int | None = None,
        *, output_size: _int | Sequence[_int] | None = None
    ) -> Tensor:
        """Repeats each element (or each slice along `dim`) several times in a row. repeats: one
        int for all elements, or a tensor with a count for each element.
        repeat_interleave(counts) returns counts[i] copies of each index i."""
    def roll(
        self, shifts: _int | Sequence[_int], dims: _int | Sequence[_int] | None = None
    ) -> Tensor:
        """Shifts elements along dims."""


    # minidl/ops/extra/sampling.py
    def bernoulli(
        self, p: Tensor | ndarray | generic | _float | None = None, *,
        generator: Generator | None = None
    ) -> Tensor:
        """Returns 0 or 1 for each element, in the input's dtype."""
    def multinomial(
        self, num_samples: _int, replacement: _bool = False, *, generator: Generator | None = None
    ) -> Tensor:
        """Draws num_samples indices for each row of weights `input`, (n,) or (rows, n)."""


    # minidl/ops/extra/scatter.py
    def index_add(
        self, dim: _int, index: Tensor | ndarray, source: Tensor | ndarray, *, alpha: _float = 1
    ) -> Tensor:
        """Returns a copy of `input` to which slices of `source` are added: alpha times slice j is
        added to slice index[j] along `dim`."""
    def index_copy(self, dim: _int, index: Tensor | ndarray, source: Tensor | ndarray) -> Tensor:
        """Returns a copy of `input` into which the slices of `source` are written: slice j is
        written at place index[j] of `dim`."""
    def index_fill(
        self, dim: _int, index: Tensor | ndarray, value: Tensor | ndarray | generic | _float
    ) -> Tensor:
        """Returns a copy of `input` into which `value` is written at the places `index` of `dim`.
        value: a number or a 0-d tensor."""
    def masked_select(self, mask: Tensor | ndarray) -> Tensor:
        """Returns a vector of the elements where the bool tensor `mask` is True. input and mask
        broadcast."""
    def scatter(
        self, dim: _int, index: Tensor | ndarray,
        src: Tensor | ndarray | generic | _float | None = None, *,
        value: Tensor | ndarray | generic | _float | None = None, reduce: str | None = None
    ) -> Tensor:
        """Returns a copy of `input` into which the elements of src are written: src[i, j] is
        written at place index[i, j] of `dim`."""
    def scatter_add(self, dim: _int, index: Tensor | ndarray, src: Tensor | ndarray) -> Tensor:
        """Returns a copy of `input` to which the elements of src are added: src[i, j] is added at
        place index[i, j] of `dim`."""
    def scatter_reduce(
        self, dim: _int, index: Tensor | ndarray, src: Tensor | ndarray, reduce: str, *,
        include_self: _bool = True
    ) -> Tensor:
        """Reduces all src[i, j] that have the same place index[i, j] of `dim`."""


    # minidl/ops/extra/search.py
    def allclose(
        self, other: Tensor | ndarray | generic | _float, rtol: _float = 1e-05, atol: _float = 1e-08,
        equal_nan: _bool = False
    ) -> bool:
        """Returns a Python bool: True if isclose holds for all elements."""
    def bincount(self, weights: Tensor | ndarray | None = None, minlength: _int = 0) -> Tensor:
        """Returns how many times each integer from 0 to the largest element occurs in a vector.
        weights: if given, returns the sum of the weights of each integer instead. minlength:
        the least length of the result."""
    def isclose(
        self, other: Tensor | ndarray | generic | _float, rtol: _float = 1e-05, atol: _float = 1e-08,
        equal_nan: _bool = False
    ) -> Tensor:
        """Returns True where |input - other| <= atol + rtol |other|, for each element."""
    @overload
    def nonzero(self, *, as_tuple: Literal[False] = False) -> Tensor:
        """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if
        True, returns a tuple instead, with one vector for each dimension."""
    @overload
    def nonzero(self, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]:
        """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if
        True, returns a tuple instead, with one vector for each dimension."""
    @overload
    def nonzero(self, *, as_tuple: Any = False) -> Any:
        """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if
        True, returns a tuple instead, with one vector for each dimension."""
    def unique(
        self, sorted: _bool = True, return_inverse: _bool = False, return_counts: _bool = False,
        dim: _int | None = None
    ) -> Any:
        """Returns the different values in order."""


    # minidl/ops/extra/sort.py
    def argsort(self, dim: _int = -1, descending: _bool = False, stable: _bool = False) -> Tensor:
        """Returns the indices that sort `input` along `dim`."""
    def kthvalue(self, k: _int, dim: _int = -1, keepdim: _bool = False) -> KthvalueResult:
        """Returns the named tuple (values, indices) of the k-th smallest element along `dim`. k
        counts from 1."""
    @overload
    def median(self, dim: None = None, keepdim: _bool = False) -> Tensor:
        """median(x) is the middle element, or the lower one of two middle elements. median(x, dim)
        is the named tuple (values, indices) of the medians along `dim`."""
    @overload
    def median(self, dim: _int, keepdim: _bool = False) -> MedianResult:
        """median(x) is the middle element, or the lower one of two middle elements. median(x, dim)
        is the named tuple (values, indices) of the medians along `dim`."""
    @overload
    def median(self, dim: Any = None, keepdim: _bool = False) -> Any:
        """median(x) is the middle element, or the lower one of two middle elements. median(x, dim)
        is the named tuple (values, indices) of the medians along `dim`."""
    def sort(self, dim: _int = -1, descending: _bool = False, stable: _bool = False) -> SortResult:
        """Returns the named tuple (values, indices), sorted along `dim`."""
    def topk(
        self, k: _int, dim: _int = -1, largest: _bool = True, sorted: _bool = True
    ) -> TopkResult:
        """Returns the named tuple (values, indices) of the k largest (or smallest) elements along
        `dim`, in order."""


    # minidl/ops/extra/unary.py
    def acos(self) -> Tensor:
        """The arc cosine, between 0 and pi."""
    def asin(self) -> Tensor:
        """The arc sine, between -pi/2 and pi/2."""
    def atan(self) -> Tensor:
        """The arc tangent, between -pi/2 and pi/2."""
    def cosh(self) -> Tensor:
        """(e^x + e^-x) / 2."""
    def erf(self) -> Tensor:
        """The error function."""
    def exp2(self) -> Tensor:
        """2^x."""
    def expm1(self) -> Tensor:
        """e^x - 1, exact near 0."""
    def log10(self) -> Tensor:
        """The logarithm to base 10."""
    def log1p(self) -> Tensor:
        """log(1 + x), exact near 0."""
    def log2(self) -> Tensor:
        """The logarithm to base 2."""
    def reciprocal(self) -> Tensor:
        """1 / x."""
    def sinh(self) -> Tensor:
        """(e^x - e^-x) / 2."""
    def square(self) -> Tensor:
        """x * x, in the dtype of x."""
    def tan(self) -> Tensor:
        """The tangent of x in radians."""


    # minidl/ops/extreme.py
    def amax(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """The largest element over `dim`."""
    def amin(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """The smallest element over `dim`."""
    def argmax(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """The index of the first largest element."""
    def argmin(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """The index of the first smallest element."""
    @overload
    def max(self, dim: None = None, keepdim: _bool = False) -> Tensor:
        """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
        largest elements along `dim`. max(x, y) is maximum(x, y)."""
    @overload
    def max(self, dim: _int, keepdim: _bool = False) -> MaxResult:
        """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
        largest elements along `dim`. max(x, y) is maximum(x, y)."""
    @overload
    def max(self, dim: Any = None, keepdim: _bool = False) -> Any:
        """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
        largest elements along `dim`. max(x, y) is maximum(x, y)."""
    @overload
    def min(self, dim: None = None, keepdim: _bool = False) -> Tensor:
        """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
        smallest elements along `dim`. min(x, y) is minimum(x, y)."""
    @overload
    def min(self, dim: _int, keepdim: _bool = False) -> MinResult:
        """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
        smallest elements along `dim`. min(x, y) is minimum(x, y)."""
    @overload
    def min(self, dim: Any = None, keepdim: _bool = False) -> Any:
        """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
        smallest elements along `dim`. min(x, y) is minimum(x, y)."""


    # minidl/ops/index.py
    def gather(self, dim: _int, index: Tensor | ndarray) -> Tensor:
        """Returns y, which has the shape of `index`: y[i, j, k] = input[i, index[i, j, k], k] for
        dim 1."""
    def index_select(self, dim: _int, index: Tensor | ndarray) -> Tensor:
        """Returns the slices along `dim` at the places in `index`, a 1-d integer tensor."""
    def tril(self, diagonal: _int = 0) -> Tensor:
        """Returns the input with zeros above a diagonal. diagonal: 0 is the main diagonal, 1 is
        the diagonal above it, -1 is the diagonal below it."""
    def triu(self, diagonal: _int = 0) -> Tensor:
        """Returns the input with zeros below a diagonal. diagonal: as in tril."""


    # minidl/ops/inplace.py
    def copy_(self, source: Tensor | ndarray | generic | _float) -> Tensor:
        """Overwrites the tensor with `source`, a Tensor, array or number."""
    def fill_(self, value: Tensor | ndarray | generic | _float) -> Tensor: ...
    def zero_(self) -> Tensor: ...


    # minidl/ops/logic.py
    def bitwise_and(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input & other."""
    def bitwise_not(self) -> Tensor:
        """~input."""
    def bitwise_or(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input | other."""
    def bitwise_xor(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input ^ other."""
    def eq(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input == other."""
    def floor_divide(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input // other, rounded down."""
    def ge(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input >= other."""
    def gt(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input > other."""
    def isfinite(self) -> Tensor:
        """True where the element is finite."""
    def isinf(self) -> Tensor:
        """True where the element is inf or -inf."""
    def isnan(self) -> Tensor:
        """True where the element is nan."""
    def le(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input <= other."""
    def logical_and(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """True where both elements are not zero."""
    def logical_not(self) -> Tensor:
        """True where the element is zero."""
    def logical_or(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """True where at least one element is not zero."""
    def lt(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input < other."""
    def ne(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input != other."""


    # minidl/ops/matmul.py
    def matmul(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """input @ other. 1-d operands and batches follow the rules of NumPy and PyTorch."""


    # minidl/ops/products.py
    def bmm(self, mat2: Tensor | ndarray) -> Tensor:
        """Returns y[i] = input[i] @ mat2[i] for a batch of matrices: (b, n, k), (b, k, m) -> (b,
        n, m)."""
    def dot(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """Returns a 0-d tensor: the sum of input[i] * other[i]."""
    def outer(self, vec2: Tensor | ndarray) -> Tensor:
        """Returns (n, m): the product of every element of the first vector with every element of
        the second."""


    # minidl/ops/reduce.py
    def all(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """True if no element is zero."""
    def any(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """True if at least one element is not zero."""
    def cumsum(self, dim: _int, *, dtype: DTypeLike | None = None) -> Tensor: ...
    def logsumexp(self, dim: _int | Sequence[_int], keepdim: _bool = False) -> Tensor: ...
    def mean(
        self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *,
        dtype: DTypeLike | None = None
    ) -> Tensor: ...
    def prod(
        self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *,
        dtype: DTypeLike | None = None
    ) -> Tensor: ...
    def std(
        self, dim: _int | Sequence[_int] | None = None, unbiased: _bool = True, keepdim: _bool = False,
        *, correction: _int | None = None
    ) -> Tensor:
        """The standard deviation, the square root of `var`."""
    def sum(
        self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *,
        dtype: DTypeLike | None = None
    ) -> Tensor: ...
    def var(
        self, dim: _int | Sequence[_int] | None = None, unbiased: _bool = True, keepdim: _bool = False,
        *, correction: _int | None = None
    ) -> Tensor:
        """The variance over `dim`."""


    # minidl/ops/select.py
    def clamp(
        self, min: Tensor | ndarray | generic | _float | None = None,
        max: Tensor | ndarray | generic | _float | None = None
    ) -> Tensor:
        """Limits the elements to the range from `min` to `max`."""
    def masked_fill(
        self, mask: Tensor | ndarray, value: Tensor | ndarray | generic | _float
    ) -> Tensor:
        """Returns `value`, a number or a 0-d tensor, where the bool tensor `mask` is True, and
        input elsewhere."""
    def maximum(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """The larger of a and b."""
    def minimum(self, other: Tensor | ndarray | generic | _float) -> Tensor:
        """The smaller of a and b."""


    # minidl/ops/shape.py
    @property
    def T(self) -> Tensor:
        """Returns the transpose of a matrix."""
    def broadcast_to(self, shape: _int | Sequence[_int]) -> Tensor: ...
    def chunk(self, chunks: _int, dim: _int = 0) -> tuple[Tensor, ...]:
        """Returns a tuple of views along `dim`, each of size ceil(n / chunks)."""
    def expand(self, *shape: _int | Sequence[_int]) -> Tensor:
        """Returns a view in which dimensions of size 1 are repeated to `shape`."""
    def flatten(self, start_dim: _int = 0, end_dim: _int = -1) -> Tensor:
        """Joins the dimensions from start_dim to end_dim into one."""
    def flip(self, *args: Any, dims: _int | Sequence[_int] | None = None) -> Tensor:
        """Returns a copy with the order along the dims reversed."""
    @property
    def mT(self) -> Tensor:
        """x.mT: x with the last two dimensions swapped."""
    def permute(self, *dims: _int | Sequence[_int]) -> Tensor: ...
    def repeat(self, *repeats: _int | Sequence[_int]) -> Tensor:
        """Returns the input, repeated repeats[i] times along each dimension i."""
    def reshape(self, *shape: _int | Sequence[_int]) -> Tensor: ...
    def split(self, split_size_or_sections: Any, dim: _int = 0) -> tuple[Tensor, ...]:
        """Returns a tuple of views along `dim`. split_size_or_sections: the size of each view (the
        last view may be smaller), or a list with the sizes of all views."""
    def squeeze(self, dim: _int | None = None) -> Tensor:
        """Removes all dimensions of size 1, or only the dimensions in `dim` if they have size 1."""
    def swapaxes(self, dim0: _int, dim1: _int) -> Tensor:
        """Swaps two dimensions."""
    def t(self) -> Tensor:
        """Returns the transpose of a matrix."""
    def transpose(self, dim0: _int, dim1: _int) -> Tensor:
        """Swaps two dimensions."""
    def unbind(self, dim: _int = 0) -> tuple[Tensor, ...]:
        """Returns a tuple of all slices along `dim`, without that dimension."""
    def unsqueeze(self, dim: _int) -> Tensor:
        """Adds a dimension of size 1 at position `dim` of the result."""
    def view(self, *shape: _int | Sequence[_int]) -> Tensor:
        """Does the same as reshape, but the result always shares the memory of the input."""


    # minidl/ops/softmax.py
    def log_softmax(self, dim: _int, *, dtype: DTypeLike | None = None) -> Tensor:
        """log(softmax(input, dim))."""
    def softmax(self, dim: _int, *, dtype: DTypeLike | None = None) -> Tensor:
        """exp(input) / sum(exp(input)) along `dim`. dtype: if given, casts the input to this dtype
        first."""
def wrapped(x: Tensor | ndarray) -> Tensor:
    """Returns x if it is a Tensor."""
class GradientHook(LeafHook):
    """The hook of Tensor.register_hook."""
    def __init__(self, hook: Any) -> None: ...
    def change(self, gradient: Tensor | ndarray) -> Any:
        """Calls the user's hook with `gradient`."""
class ReadyHook(LeafHook):
    """The hook of Tensor.on_grad_ready."""
    def __init__(self, hook: Any) -> None: ...
    def gradient_ready(self, leaf: Any) -> Any: ...
