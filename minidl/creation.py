"""Functions that make new tensors: from data, from one value, from a range, from random numbers.

dtype: Python floats become float32 (PyTorch's default), ints become int64, bools become bool.
Arrays keep their dtype. zeros, ones, rand and randn make float32.
device: 'cpu' (the default), 'cuda' or 'cuda:<index>'.
generator: a minidl.Generator for random numbers. The default is random.default_generator(). The
numbers are drawn on the device, and they are the same on all devices. (The numbers of `randn` may
differ by a rounding error of float64.)
Test: tests/test_creation.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.cuda.philox import bits as bits_on_gpu
from minidl.ops.dims import sizes
from minidl.random import default_generator
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from typing import Any

    from minidl.hints import Device, DType, Number, Sizes
    from minidl.random import Generator


def _tensor(array, dtype, device, requires_grad):
    if dtype is not None:
        array = array.astype(backend.as_dtype(dtype), copy=False)
    if device is not None:
        array = backend.to_device(array, device)
    return Tensor(array, requires_grad)


def _array(data):
    """Returns `data` as an array. If `data` is an array or a Tensor, the result has the same
    memory. Python floats become float32. Raises ValueError for text, and for lists of different
    lengths."""
    if isinstance(data, Tensor):
        return data.array
    if hasattr(data, "ndim") and hasattr(data, "dtype") and not isinstance(data, np.generic):
        return data if hasattr(data, "__cuda_array_interface__") else np.asarray(data)
    try:
        array = np.array(data)
    except ValueError:  # rows of different lengths
        array = np.array(data, object)
    if array.dtype.kind in "OSU":
        raise ValueError(f"tensor: wants numbers, in lists of equal length; got {str(data)[:40]!r}")
    if isinstance(data, np.generic) or array.dtype != np.float64:
        return array
    return array.astype(backend.DEFAULT_FLOAT)


def tensor(data: Any, *, dtype: DType | None = None, device: Device | None = None,
           requires_grad: bool = False) -> Tensor:
    """Returns a tensor with a copy of `data`: a number, nested lists, an array or a Tensor."""
    if isinstance(data, (int, float, list, tuple)) and dtype is not None:
        return _tensor(np.array(data, dtype=dtype), None, device, requires_grad)
    given = backend.array_of(data)
    result = _tensor(_array(data), dtype, device, requires_grad)
    return Tensor(result.array.copy(), requires_grad) if result.array is given else result


def FloatTensor(data: Any) -> Tensor:
    """Returns a float32 tensor with a copy of a list or an array. PyTorch has this old name,
    too."""
    return tensor(data, dtype=backend.DEFAULT_FLOAT)


def LongTensor(data: Any) -> Tensor:
    """Returns an int64 tensor with a copy of a list or an array."""
    return tensor(data, dtype=np.int64)


def as_tensor(data: Any, dtype: DType | None = None, device: Device | None = None) -> Tensor:
    """Does the same as `tensor`, but copies only if dtype or device must change."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    return _tensor(_array(data), dtype, device, False)


def from_numpy(array: np.ndarray) -> Tensor:
    """Returns a tensor that shares the memory of `array`. Raises TypeError for anything else."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: wants a NumPy array, got {type(array).__name__}")
    return Tensor(array)


def from_dlpack(ext_tensor: Any) -> Tensor:
    """Returns a tensor that shares the memory of another library's tensor (PyTorch, CuPy, JAX)."""
    on_cuda = ext_tensor.__dlpack_device__()[0] in (2, 13)  # kDLCUDA, kDLCUDAManaged
    library = backend.import_cupy() if on_cuda else np
    return Tensor(library.from_dlpack(ext_tensor))


def zeros(*size: Sizes, dtype: DType | None = None, device: Device | None = None,
          requires_grad: bool = False) -> Tensor:
    return full(sizes(size), 0.0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones(*size: Sizes, dtype: DType | None = None, device: Device | None = None,
         requires_grad: bool = False) -> Tensor:
    return full(sizes(size), 1.0, dtype=dtype, device=device, requires_grad=requires_grad)


def full(size: Sizes, fill_value: Number, *, dtype: DType | None = None,
         device: Device | None = None, requires_grad: bool = False) -> Tensor:
    """Returns a tensor with `fill_value` in every element. The default dtype is the dtype of the
    value."""
    dtype = backend.result_dtype([fill_value]) if dtype is None else backend.as_dtype(dtype)
    return _tensor(np.full(sizes((size,)), fill_value, dtype), None, device, requires_grad)


def empty(*size: Sizes, dtype: DType | None = None, device: Device | None = None,
          requires_grad: bool = False) -> Tensor:
    """Returns a tensor whose elements have no defined value: write them before you read them."""
    array = np.empty(sizes(size), dtype or backend.DEFAULT_FLOAT)
    return _tensor(array, None, device, requires_grad)


def arange(start: float, end: float | None = None, step: float = 1, *, dtype: DType | None = None,
           device: Device | None = None, requires_grad: bool = False) -> Tensor:
    """Returns start, start + step, and so on, without `end`. arange(n) returns 0, 1, ..., n - 1.
    The default dtype is int64 if all arguments are integers, else float32."""
    start, end = (0, start) if end is None else (start, end)
    dtype = np.dtype(backend.result_dtype([start, end, step]) if dtype is None else dtype)
    if dtype == np.int64:
        start, end, step = int(start), int(end), int(step)
    n = math.ceil((end - start) / step) if step else -1
    if n < 0:
        raise ValueError(f"arange: steps of {step} do not lead from {start} to {end}")
    if dtype.kind in "iu":  # PyTorch cuts start and step to integers before it counts
        start, step = int(start), int(step)
    return _tensor(start + step * np.arange(n), dtype, device, requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype: DType | None = None,
             device: Device | None = None, requires_grad: bool = False) -> Tensor:
    """Returns `steps` numbers at equal distances from `start` to `end`, both included."""
    dtype = np.dtype(dtype or backend.DEFAULT_FLOAT)
    if dtype.kind == "b":
        raise TypeError("linspace: wants a dtype of numbers, got bool")
    start, end = ((int if dtype.kind in "iu" else float)(x) for x in (start, end))
    i = np.arange(steps)
    step = (end - start) / max(steps - 1, 1)
    # The first half is computed from `start`, the second half from `end`, as in PyTorch.
    array = np.where(i < steps // 2, start + step * i, end - step * (steps - 1 - i))
    return _tensor(array if steps > 1 else np.full(steps, start), dtype, device, requires_grad)


def eye(n: int, m: int | None = None, *, dtype: DType | None = None, device: Device | None = None,
        requires_grad: bool = False) -> Tensor:
    """Returns an (n, m) tensor of zeros with ones on the diagonal. The default of m is n."""
    dtype = dtype or backend.DEFAULT_FLOAT
    return _tensor(np.eye(n, m, dtype=dtype), None, device, requires_grad)


def rand(*size: Sizes, generator: Generator | None = None, dtype: DType | None = None,
         device: Device | None = None, requires_grad: bool = False) -> Tensor:
    """Returns random numbers, uniform in [0, 1)."""
    dtype = dtype or backend.DEFAULT_FLOAT
    array = _drawn(generator, "uniform", device, sizes(size), dtype=dtype)
    return Tensor(array, requires_grad)


def randn(*size: Sizes, generator: Generator | None = None, dtype: DType | None = None,
          device: Device | None = None, requires_grad: bool = False) -> Tensor:
    """Returns random numbers from the normal distribution with mean 0 and standard deviation 1."""
    dtype = dtype or backend.DEFAULT_FLOAT
    return Tensor(_drawn(generator, "normal", device, sizes(size), dtype=dtype), requires_grad)


def randint(low: int, high: int | Sizes, size: Sizes | None = None, *,
            generator: Generator | None = None, dtype: DType | None = None,
            device: Device | None = None, requires_grad: bool = False) -> Tensor:
    """Returns random integers in [low, high). randint(high, size) draws from [0, high)."""
    low, high, size = (0, low, high) if size is None else (low, high, size)
    array = _drawn(generator, "integers", device, low, high, sizes((size,)),
                   dtype=dtype or np.int64)
    return Tensor(array, requires_grad)


def randperm(n: int, *, generator: Generator | None = None, dtype: DType | None = None,
             device: Device | None = None) -> Tensor:
    """Returns the integers 0 to n - 1 in random order."""
    return _tensor(_drawn(generator, "permutation", device, n), dtype, None, False)


def _drawn(generator, what, device, *args, **options):
    """Returns an array of random numbers, drawn on the device. `what` names the method of the
    generator, such as "uniform"."""
    draw = getattr(generator or default_generator(), what)
    if device is None or device == "cpu":
        return draw(*args, **options)
    index = int(backend.full_name(device).removeprefix("cuda:"))
    with backend.import_cupy().cuda.Device(index):
        return draw(*args, draw=bits_on_gpu, **options)


def _like(create):
    """Returns the function `create_like(input, ...)`. It calls `create` with the shape of `input`.
    The defaults of dtype and device are also taken from `input`."""
    def like(input: Tensor, *value: Any, dtype: DType | None = None,
             device: Device | None = None, **options: Any) -> Tensor:
        return create(input.shape, *value, dtype=input.dtype if dtype is None else dtype,
                      device=input.device if device is None else device, **options)
    like.__name__ = f"{create.__name__}_like"
    like.__doc__ = f"As `{create.__name__}`, with the shape, dtype and device of `input`."
    return like


zeros_like, ones_like, full_like = _like(zeros), _like(ones), _like(full)
empty_like, rand_like, randn_like = _like(empty), _like(rand), _like(randn)
