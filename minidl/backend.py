"""The arrays of an op decide which library, which device and which dtype the op uses.

    NumPy array -> numpy, on the CPU        CuPy array -> cupy, on its CUDA device

An op has one body for both libraries: it calls `xp_of(arrays)` once and writes `xp.exp(x)`. CuPy is
imported only when a program names a CUDA device.      Test: tests/test_backend.py
"""

import ctypes
import os
import sys
from contextlib import contextmanager, nullcontext

import numpy as np

DEFAULT_FLOAT = np.dtype(np.float32)  # the dtype of floats, and of ints that become floats

# The order of promotion: bool < integer < floating < complex. The letters are NumPy's
# kinds. V is bfloat16, which NumPy does not know as a floating dtype (bf16.py).
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def xp_of(arrays, op="this operation"):
    """Returns the module (numpy or cupy) that owns `arrays`. Skips everything that is not an array.

    Raises TypeError if arrays of both libraries are given. minidl does not copy an array to another
    device by itself, because such a copy is slow. op: the op's name, for the error message."""
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
    """`with using_device_of(arrays):` makes the GPU of these arrays CuPy's current device. CuPy
    computes on its current device. On a CPU the block does nothing. Raises ValueError if the arrays
    are on several GPUs."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return NO_GPU
    found = {a.data.device_id for a in arrays if isinstance(a, cupy.ndarray)}
    if not found or found == {current := cupy.cuda.runtime.getDevice()}:
        return NO_GPU
    if len(found) > 1:
        raise ValueError(f"got arrays on several GPUs, {sorted(found)}; move them to one GPU with "
                         f".to('cuda:{current}')")
    return cupy.cuda.Device(*found)


def an_array(y):
    """Returns y as a CuPy array. If y is a CuPy array already, returns y itself, because
    cupy.asarray would copy y to the current device."""
    cupy = sys.modules["cupy"]
    return y if isinstance(y, cupy.ndarray) else cupy.asarray(y)


def library_of(x):
    """Returns the module that made the array x on a GPU: cupy, or the module that replaces cupy in
    a test."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def device_of(array):
    """Returns the device of a NumPy or CuPy array."""
    return CPU if isinstance(array, np.ndarray) else device(f"cuda:{array.device.id}")


class device(str):
    """The name of a device, 'cpu' or 'cuda:0'. Its attributes are `type`, such as 'cuda', and
    `index`, such as 0. `index` is None if the name has no number. A device equals the string of its
    name."""

    def __new__(cls, type, index=None):
        """Makes a device from its name: device("cuda:1"), or device("cuda", 1) for the same device.
        Raises ValueError if the name is not the name of a device."""
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
        return device, (str(self),)


CPU = device("cpu")


def buffer_of(array):
    """Returns the array that owns the memory of `array`: `array` itself if it is not a view."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


# An ndarray begins with Python's object header. The data pointer follows it (PyArrayObject in
# NumPy's C API). Reading the pointer there takes 0.2 us, and `a.ctypes.data` takes 1.5 us. An
# optimizer step makes tables of hundreds of addresses.
_DATA = object.__basicsize__
_word_at = ctypes.c_void_p.from_address
_probe = np.empty(3)
# True if the data pointer of an array is at id(array) + _DATA. In some versions of Python the
# pointer is at another place.
_BY_HEADER = _word_at(id(_probe) + _DATA).value == _probe.ctypes.data


def address(array):
    """Returns the address of the array's first element in the memory of its device, an int."""
    if _BY_HEADER and isinstance(array, np.ndarray):
        return _word_at(id(array) + _DATA).value
    interface = getattr(array, "__array_interface__", None) or array.__cuda_array_interface__
    return interface["data"][0]


def is_reshaped(view, array):
    """Returns whether `view` has all elements of `array`, in the same memory and order, perhaps in
    another shape."""
    return (getattr(view, "base", None) is not None and type(view) is type(array)
            and view.size == array.size and view.dtype == array.dtype and view.flags.c_contiguous
            and array.flags.c_contiguous and address(view) == address(array))


def same_memory(a, b):
    """Returns whether a and b are one array, or views of one buffer. Returns False for None and
    numbers."""
    if a is None or b is None or a is b:
        return a is not None and a is b
    base_a, base_b = getattr(a, "base", None), getattr(b, "base", None)
    return base_a is b or base_b is a or (base_a is not None and base_a is base_b)


def is_device(name):
    """Returns whether `name` looks like a device: 'cpu', 'cuda' or 'cuda:<index>'."""
    return isinstance(name, str) and name.partition(":")[0] in ("cpu", "cuda")


def as_dtype(name):
    """Returns the NumPy dtype of this name. Raises TypeError if `name` is no dtype, for example if
    it is a misspelt device."""
    try:
        return np.dtype(name)
    except TypeError:
        raise TypeError(f"want a dtype, such as 'float16', or a device ('cpu', 'cuda' or "
                        f"'cuda:<index>'); got {name!r}") from None


def full_name(device):
    """Returns 'cpu' or 'cuda:i'. The name 'cuda' means the current device, as in PyTorch
    (minidl.cuda.set_device). Raises ValueError for another name."""
    kind, _, index = str(device).partition(":")
    if device == "cpu":
        return "cpu"
    if kind != "cuda" or not (index or "0").isdigit():
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:<index>', got {device!r}")
    return f"cuda:{int(index)}" if index else f"cuda:{import_cupy().cuda.runtime.getDevice()}"


def to_device(array, device):
    """Returns `array` on `device` ('cpu', 'cuda' or 'cuda:i'). Returns the same object if it is on
    that device already."""
    if device == "cpu":
        if isinstance(array, np.ndarray):
            return array
        with array.device:  # the copy then runs on the stream that wrote the array
            return array.get()
    name = full_name(device)
    cupy = import_cupy()
    if is_bfloat16(array.dtype) and int(cupy.__version__.partition(".")[0]) < 14:
        raise TypeError(f"bfloat16 on {device} needs CuPy 14 or newer; got CuPy "
                        f"{cupy.__version__}. Upgrade CuPy, or use float16")
    if not isinstance(array, np.ndarray) and device_of(array) == name:
        return array
    with cupy.cuda.Device(int(name.partition(":")[2])):
        return cupy.asarray(array)


def import_cupy():
    """Returns the module cupy. Raises ImportError if cupy is not installed. The message tells how
    to install it."""
    with optional("a CUDA device, to match its driver", "cuda12", "cuda13"):
        import cupy
    return cupy


def overwrite(array, source, casting="unsafe"):
    """Copies `source` into `array`: array[...] = source. source: an array on any device, or an
    array of another library that NumPy can read. Raises TypeError if `casting` (as in NumPy)
    forbids the cast."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(source, cupy.ndarray):
        source = np.asarray(source)
    if not np.can_cast(source.dtype, array.dtype, casting):
        raise TypeError(f"cannot copy {source.dtype} into {array.dtype}: cast the source first")
    source = to_device(source, device_of(array))
    with nullcontext() if isinstance(array, np.ndarray) else array.device:
        array[...] = source


@contextmanager
def optional(what, *extras):
    """A `with` block that imports an optional package: `with optional("ranks as processes", "mpi"):
    import mpi4py`. If the package is missing, raises ImportError. The message has `what`, the
    feature that needs the package. It also has `extras`, the extras of setup.cfg that install the
    package."""
    try:
        yield
    except ImportError as error:
        ways = " or ".join(f"pip install 'minidl[{extra}]'" for extra in extras)
        raise ImportError(f"{what}: {error.name} is not installed. Run {ways}") from error


def array_of(x):
    """Returns the array of a Tensor. Returns any other object unchanged.

    This file cannot import Tensor, so it looks for a private attribute of Tensor. The attribute
    `array` is not enough, because objects of other libraries may have an attribute of this name."""
    return x.array if hasattr(x, "_requires_grad") else x


def plain_array(x):
    """Returns the array of a Tensor or of a torch.Tensor. Returns any other object unchanged."""
    x = array_of(x)
    if hasattr(x, "detach"):  # a torch.Tensor. NumPy can read only a detached tensor on the CPU
        x = np.asarray(x.detach().cpu())
    return x


def accumulate_dtype(dtype):
    """Returns the dtype in which a sum of `dtype` elements is computed: float32 for float16 and
    bfloat16, else `dtype`."""
    dtype = np.dtype(dtype)
    return DEFAULT_FLOAT if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def by_dtype(arrays):
    """Returns {dtype: [array, ...]}. The dtypes are in the order in which they first appear.
    arrays: arrays or Tensors."""
    groups = {}
    for x in arrays:
        groups.setdefault(x.dtype, []).append(x)
    return groups


def is_floating(dtype):
    """Returns whether `dtype` is a floating dtype of NumPy, or bfloat16. Returns False for None."""
    return dtype is not None and (np.dtype(dtype).kind == "f" or is_bfloat16(dtype))


def is_bfloat16(dtype):
    """Returns whether `dtype` is bfloat16 of the package ml_dtypes. Compares names, so that the
    package need not be imported."""
    if dtype is None or "ml_dtypes" not in sys.modules:
        return False
    dtype = np.dtype(dtype)
    return dtype.kind == "V" and dtype.type.__name__ == "bfloat16"


def promote_types(a, b):
    """Returns the dtype for a result of two dtypes, by PyTorch's rules. If the categories differ,
    the dtype of the higher category wins: int64 with float16 gives float16 (NumPy gives float64).
    In one category the wider dtype wins. float16 with bfloat16 gives float32, because float16
    cannot hold all values of bfloat16, and bfloat16 cannot hold all values of float16."""
    a, b = np.dtype(a), np.dtype(b)
    if _CATEGORY[a.kind] == _CATEGORY[b.kind]:
        if a != b and (is_bfloat16(a) or is_bfloat16(b)):
            return max(a, b, DEFAULT_FLOAT, key=lambda dtype: dtype.itemsize)
        return np.promote_types(a, b)
    return a if _CATEGORY[a.kind] > _CATEGORY[b.kind] else b


def result_dtype(operands):
    """Returns the dtype of an op's result, by PyTorch's rules. There are four categories: bool,
    integer, float, complex, from low to high. There are three tiers, in this order: arrays with
    dimensions, 0-d arrays, Python scalars. The first tier that has an operand decides the dtype. A
    later tier changes the dtype only if the later tier has a higher category: an int array times
    2.5 gives float32. Raises TypeError for other operands.
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
    """Returns the operands, with every array cast to the `result_dtype` of the operands. Python
    scalars are not cast. to_float: if True, and the `result_dtype` is an integer or bool, the
    arrays are cast to float32 instead. `torch.exp(int_tensor)` does the same."""
    a, b = operands[0], operands[-1]
    if len(operands) <= 2 and hasattr(a, "dtype") and hasattr(b, "dtype"):
        if a.dtype is b.dtype and a.dtype.kind == "f":  # the most frequent case: nothing to do
            return operands
    common = None
    for x in operands:  # if all are Python numbers or have one floating dtype, no cast is needed
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


def cores():
    """Returns a set: the numbers of the cores that this process may use. Under taskset or a batch
    system these can be fewer than the cores of the machine. On macOS a process cannot be limited to
    some cores, so the set has all cores."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def n_cores():
    """Returns how many cores this process may use."""
    return len(cores())
