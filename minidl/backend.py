"""Which array library, which device, which dtype: the array decides.

    NumPy array -> numpy, on the CPU        CuPy array -> cupy, on its CUDA device

An op has one body for both: it asks `xp_of(arrays)` once and writes `xp.exp(x)`. CuPy is imported
only when somebody names a CUDA device.      Test: tests/test_backend.py
"""

import ctypes
import os
import sys
from contextlib import contextmanager, nullcontext

import numpy as np

DEFAULT_FLOAT = np.dtype(np.float32)  # PyTorch's default dtype, for Python floats and int -> float

# bool < integer < floating < complex; V: bfloat16, which is foreign to NumPy (bf16.py)
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def xp_of(arrays, op="this operation"):
    """The module (numpy or cupy) that owns `arrays`; anything that is no array is skipped.

    TypeError when both kinds are present: a silent copy across the bus would hide the cost."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return np
    found = np
    n_host = 0
    for a in arrays:
        if isinstance(a, cupy.ndarray):
            found = cupy
        elif isinstance(a, np.ndarray):
            n_host += 1
    if found is not np and n_host:
        raise TypeError(f"{op} got arrays on two devices, cpu and cuda; move one with .to('cpu') "
                        "or .to('cuda')")
    return found


NO_GPU = nullcontext()


def using_device_of(arrays):
    """`with using_device_of(arrays):` makes their GPU CuPy's current device, on which it computes;
    on a CPU nothing happens. ValueError where the arrays are on several GPUs."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return NO_GPU
    found = {a.data.device_id for a in arrays if isinstance(a, cupy.ndarray)}
    if not found or found == {current := cupy.cuda.runtime.getDevice()}:
        return NO_GPU
    if len(found) > 1:
        raise ValueError(f"arrays on several GPUs, {sorted(found)}; move them to one with "
                         f".to('cuda:{current}')")
    return cupy.cuda.Device(*found)


def an_array(y):
    """y as CuPy's array; one is left as it is, where it is (cupy.asarray would bring it here)."""
    cupy = sys.modules["cupy"]
    return y if isinstance(y, cupy.ndarray) else cupy.asarray(y)


def library_of(x):
    """The module that made the device array x: cupy."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def device_of(array):
    """The Device of a NumPy or CuPy array."""
    return CPU if isinstance(array, np.ndarray) else Device(f"cuda:{array.device.id}")


class Device(str):
    """The name of a device, 'cpu' or 'cuda:0', which knows its two parts: type and index. It is
    equal to the same text."""

    def __new__(cls, type, index=None):
        """device("cuda:1") and device("cuda", 1) are the same."""
        name = str(type) if index is None else f"{type}:{index}"
        kind, colon, number = name.partition(":")
        if kind not in ("cpu", "cuda") or colon and not number.isdigit():
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:<index>', got {name!r}")
        return super().__new__(cls, name)

    @property
    def type(self):
        return str(self).partition(":")[0]

    @property
    def index(self):
        number = str(self).partition(":")[2]
        return int(number) if number else None

    def __repr__(self):
        number = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{number})"

    def __reduce__(self):
        return Device, (str(self),)


CPU = Device("cpu")


def buffer_of(array):
    """The array that owns the memory of `array`."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


# An ndarray begins with Python's object header, then the data pointer (PyArrayObject in NumPy's
# C-API). Reading it there takes 0.2 us, `a.ctypes.data` 1.5 us: a table of a step has hundreds.
_DATA = object.__basicsize__
_word_at = ctypes.c_void_p.from_address
_probe = np.empty(3)
_BY_HEADER = _word_at(id(_probe) + _DATA).value == _probe.ctypes.data  # not in every Python


def address(array):
    """Where the array's first element is, on its device."""
    if _BY_HEADER and isinstance(array, np.ndarray):
        return _word_at(id(array) + _DATA).value
    interface = getattr(array, "__array_interface__", None) or array.__cuda_array_interface__
    return interface["data"][0]


def is_reshaped(view, array):
    """Whether `view` is all of `array`, in another shape."""
    return (getattr(view, "base", None) is not None and type(view) is type(array)
            and view.size == array.size and view.dtype == array.dtype and view.flags.c_contiguous
            and array.flags.c_contiguous and address(view) == address(array))


def same_memory(a, b):
    """Whether array a is b or a view of the same buffer; False for None and numbers."""
    if a is None or b is None or a is b:
        return a is not None and a is b
    base_a, base_b = getattr(a, "base", None), getattr(b, "base", None)
    return base_a is b or base_b is a or (base_a is not None and base_a is base_b)


def is_device(name):
    """Whether a user who writes this means a device: 'cpu', 'cuda' or 'cuda:<index>'."""
    return isinstance(name, str) and name.partition(":")[0] in ("cpu", "cuda")


def as_dtype(name):
    """The NumPy dtype of this name, or a TypeError (a misspelt device comes here, too)."""
    try:
        return np.dtype(name)
    except TypeError:
        raise TypeError(f"{name!r} is neither a dtype, such as 'float16', nor a device: 'cpu', "
                        "'cuda' or 'cuda:<index>'") from None


def full_name(device):
    """'cpu' or 'cuda:i': 'cuda' is the current device, as in PyTorch (minidl.cuda.set_device)."""
    kind, _, index = str(device).partition(":")
    if device == "cpu":
        return "cpu"
    if kind != "cuda" or not (index or "0").isdigit():
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:<index>', got {device!r}")
    return f"cuda:{int(index)}" if index else f"cuda:{import_cupy().cuda.runtime.getDevice()}"


def to_device(array, device):
    """`array` on `device` ('cpu', 'cuda' or 'cuda:i'); the same object if it is there already."""
    if device == "cpu":
        if isinstance(array, np.ndarray):
            return array
        with array.device:  # on its stream, which wrote it
            return array.get()
    name = full_name(device)
    cupy = import_cupy()
    if is_bfloat16(array.dtype) and int(cupy.__version__.partition(".")[0]) < 14:
        raise TypeError(f"bfloat16 on {device} needs CuPy 14 or newer, this is "
                        f"{cupy.__version__}; upgrade it, or use float16")
    if not isinstance(array, np.ndarray) and device_of(array) == name:
        return array
    with cupy.cuda.Device(int(name.partition(":")[2])):
        return cupy.asarray(array)


def import_cupy():
    """The module cupy; ImportError, with the remedy, where it is not installed."""
    with optional("a CUDA device, to match its driver", "cuda12", "cuda13"):
        import cupy
    return cupy


def overwrite(array, source, casting="unsafe"):
    """array[...] = source, an array on whatever device or of a library that NumPy can read."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(source, cupy.ndarray):
        source = np.asarray(source)
    if not np.can_cast(source.dtype, array.dtype, casting):
        raise TypeError(f"cannot copy {source.dtype} into {array.dtype}: cast it first")
    source = to_device(source, device_of(array))
    with nullcontext() if isinstance(array, np.ndarray) else array.device:
        array[...] = source


@contextmanager
def optional(what, *extras):
    """`with optional("ranks as processes", "mpi"): import ...`: an import of what comes with these
    extras of setup.cfg. Raises ImportError, naming them, where it is not installed."""
    try:
        yield
    except ImportError as error:
        ways = " or ".join(f"pip install 'minidl[{extra}]'" for extra in extras)
        raise ImportError(f"{what}: {error.name} is not installed: {ways}") from error


def array_of(x):
    """Returns the array of a Tensor. Returns anything else as it is.

    (This file cannot import Tensor, so it asks for a private name. Objects of other libraries may
    have an attribute `array`, too.)"""
    return x.array if hasattr(x, "_requires_grad") else x


def plain_array(x):
    """Returns the array of a Tensor or of a torch.Tensor. Returns anything else as it is."""
    x = array_of(x)
    if hasattr(x, "detach"):  # a torch.Tensor: NumPy reads it on the CPU, outside of its graph
        x = np.asarray(x.detach().cpu())
    return x


def accumulate_dtype(dtype):
    """The dtype in which a reduction over `dtype` sums: float32 for fp16 and bf16, else `dtype`."""
    dtype = np.dtype(dtype)
    return DEFAULT_FLOAT if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def by_dtype(arrays):
    """{dtype: [array, ...]} in order of first appearance; tensors, too."""
    groups = {}
    for x in arrays:
        groups.setdefault(x.dtype, []).append(x)
    return groups


def is_floating(dtype):
    """Whether these are floating numbers, NumPy's or bfloat16; of None, no dtype, they are not."""
    return dtype is not None and (np.dtype(dtype).kind == "f" or is_bfloat16(dtype))


def is_bfloat16(dtype):
    """Whether it is ml_dtypes' bfloat16, known by its name: nothing is imported to ask."""
    if dtype is None or "ml_dtypes" not in sys.modules:
        return False
    dtype = np.dtype(dtype)
    return dtype.kind == "V" and dtype.type.__name__ == "bfloat16"


def promote_types(a, b):
    """PyTorch's promotion of two dtypes: the higher category wins whole (int64 with float16 is
    float16; NumPy would say float64); inside a category the wider one wins, and neither of
    float16 and bfloat16 holds the other: float32."""
    a, b = np.dtype(a), np.dtype(b)
    if _CATEGORY[a.kind] == _CATEGORY[b.kind]:
        if a != b and (is_bfloat16(a) or is_bfloat16(b)):
            return max(a, b, DEFAULT_FLOAT, key=lambda dtype: dtype.itemsize)
        return np.promote_types(a, b)
    return a if _CATEGORY[a.kind] > _CATEGORY[b.kind] else b


def result_dtype(operands):
    """PyTorch's result dtype. Arrays with dimensions count first, then 0-d arrays, then Python
    scalars; a later tier matters only if its category is higher (int array * 2.5 is float32).
    Source: the rules under `torch.dtype` in PyTorch's documentation, "tensor attributes"."""
    tiers = [None, None, None]
    for x in operands:
        if hasattr(x, "ndim") and not isinstance(x, np.generic):
            tier, dtype = (0 if x.ndim else 1), x.dtype
        elif isinstance(x, (bool, np.bool_)):
            tier, dtype = 2, np.dtype(bool)
        elif isinstance(x, (int, np.integer)):
            tier, dtype = 2, np.dtype(np.int64)
        elif isinstance(x, (float, np.floating)) or is_bfloat16(getattr(x, "dtype", None)):
            tier, dtype = 2, DEFAULT_FLOAT
        else:
            raise TypeError(f"expected a Tensor, an array or a number, got {type(x).__name__}")
        tiers[tier] = dtype if tiers[tier] is None else promote_types(tiers[tier], dtype)
    result = None
    for dtype in tiers:
        if result is None:
            result = dtype
        elif dtype is not None and _CATEGORY[dtype.kind] > _CATEGORY[result.kind]:
            result = dtype
    return result


def promote(operands, to_float=False):
    """The operands with every array cast to `result_dtype`; Python scalars stay scalars.
    `to_float`: an integer or bool result becomes float32, as in `torch.exp(int_tensor)`."""
    a, b = operands[0], operands[-1]
    if len(operands) <= 2 and hasattr(a, "dtype") and hasattr(b, "dtype"):
        if a.dtype is b.dtype and a.dtype.kind == "f":  # most often: nothing to do
            return operands
    common = None
    for x in operands:  # one floating dtype and Python numbers: nothing to do
        if type(x) is float or type(x) is int:
            continue
        dtype = getattr(x, "dtype", None)
        if common is None and dtype is not None and dtype.kind == "f":
            common = dtype
        elif dtype is None or dtype is not common:
            break
    else:
        if common is not None:
            return operands
    dtype = result_dtype(operands)
    if to_float and dtype.kind in "bui":
        dtype = DEFAULT_FLOAT
    return [x.item() if isinstance(x, np.generic) else
            x.astype(dtype, copy=False) if hasattr(x, "dtype") else x for x in operands]


def n_cores():
    """Cores that this process may use: under taskset or a batch system fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
