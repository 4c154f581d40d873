"""bfloat16: the upper half of a float32. Arrays are in bfloat16; ops compute in float32.

    float32    s eeeeeeee mmmmmmm mmmmmmmmmmmmmmmm     8 bits of exponent, 23 of fraction
    bfloat16   s eeeeeeee mmmmmmm                      the same range, steps of 2^-7: 2 digits
    float16    s eeeee mmmmmmmmmm                      3 digits, between 6e-8 and 65504

    x, w (bfloat16) ─ widen ─► float32 ─ forward ─► float32 ─ round ─► y (bfloat16)
                                 saved ─ round ─► held, 2 bytes an element, ─ widen ─► backward

Widening appends 16 zero bits to a number, which is exact. Each op rounds its result once, to the
nearest number, ties to even. Sums inside an op are kept in float32. Gradients are also computed in
float32. Then they are rounded to the dtype of the input that they belong to.

bfloat16 has the range of float32, so it needs no loss scaling. But an update smaller than half a
step, 2^-9 to 2^-8 of the weight, is lost: use master weights (optim/master.py).

Ops have no code for bfloat16. `Function.apply` calls `forward` below, which widens the arrays and
calls the op's own forward. Backward widens the gradients. An op that only moves elements
(`arithmetic` is False) rounds nothing.

NumPy has no bfloat16. The package ml_dtypes adds it; it is imported when `minidl.bfloat16` is first
used.
Source: Kalamkar et al. 2019 (arXiv 1905.12322).
Test: tests/precision/test_bf16.py   Tutorial: tutorials/04_float.py
"""

import numpy as np

from minidl import backend
from minidl.backend import is_bfloat16
from minidl.saved import Pack

WIDE = np.dtype(np.float32)


def dtype():
    """Returns minidl.bfloat16, a NumPy dtype. Raises ImportError if the package ml_dtypes is not
    installed. The message says what to install."""
    with backend.optional("bfloat16, which NumPy does not have", "bfloat16"):
        import ml_dtypes
    return np.dtype(ml_dtypes.bfloat16)


def widen(x):
    """Returns x as a float32 array if x is a bfloat16 array. Returns anything else unchanged."""
    return x.astype(WIDE) if is_bfloat16(getattr(x, "dtype", None)) else x


def involved(arrays, options):
    """Returns True if an op gets a bfloat16 array, or if the op's option `dtype` is bfloat16."""
    for x in arrays:  # written for speed, because every op calls `involved`
        if hasattr(x, "dtype") and x.dtype.kind == "V" and is_bfloat16(x.dtype):
            return True
    return "dtype" in options and is_bfloat16(options["dtype"])


def forward(node, *arrays, **options):
    """Calls node.forward with widened arrays. Returns its results, rounded to the dtype that the
    caller expects. Also rounds the arrays that forward saved (see `_held`)."""
    dtypes = [x.dtype for x in arrays if backend.is_floating(getattr(x, "dtype", None))]
    # The dtypes are checked before the call, because node.forward gets only float32 arrays.
    if node.precision == "white" and len(set(dtypes)) > 1:
        raise TypeError(f"wants inputs of one dtype; got {' and '.join(map(str, dtypes))}. Cast "
                        "the inputs with .to(...)")
    wide = [widen(x) for x in arrays]
    result = node.forward(*wide, **options)
    target = np.dtype(options.get("dtype") or dtypes[0])  # inputs were promoted to one dtype
    outputs = result if type(result) is tuple else (result,)
    rounded = [y.astype(target) if is_bfloat16(target) and y.dtype == WIDE else y for y in outputs]
    known = [*zip(wide, arrays, strict=True), *zip(outputs, rounded, strict=True)]
    held = [_held(s, known) for s in node._saved]
    node._saved = tuple(Pack((s, widen)) if is_bfloat16(getattr(s, "dtype", None)) else s
                        for s in held)
    return tuple(rounded) if type(result) is tuple else rounded[0]


def _held(saved, known):
    """Returns the array to keep in place of `saved`, which forward saved. known: a list of pairs (a
    float32 array, the caller's array of the same numbers). The list has the inputs first, then the
    results of forward. If `saved` is one of these float32 arrays, returns the caller's array.
    Otherwise rounds `saved` to bfloat16. But an array with fewer elements than the first input is
    kept in float32: it may be the sum or mean of a row. An error in this number changes the whole
    row."""
    if getattr(saved, "dtype", None) != WIDE:
        return saved
    for inside, outside in known:
        if saved is inside:
            return outside
        if backend.same_memory(saved, inside):
            view = saved if inside is outside else _view_as(saved, inside, outside)
            if view is not None:
                return view
    n_elems = next(x.size for x, _ in known if getattr(x, "dtype", None) == WIDE)
    return saved.astype(dtype()) if saved.size >= n_elems else saved


def _view_as(view, inside, outside):
    """`view` is a view of the float32 array `inside`. Returns the same view of the bfloat16 array
    `outside`. Returns None if `inside` and `outside` have different orders in memory, or if the
    view reaches beyond `inside`."""
    start = (backend.address(view) - backend.address(inside)) // 2
    if not (inside.flags.c_contiguous and outside.flags.c_contiguous):
        same = not start and (view.shape, view.strides) == (inside.shape, inside.strides)
        return outside if same else None
    strides = [stride // 2 for stride in view.strides]
    try:
        if not isinstance(outside, np.ndarray):
            return _view_on_device(outside, view.shape, start, strides)
        return np.ndarray(view.shape, outside.dtype, outside, start, strides)
    except ValueError:  # the view reaches beyond `inside`, which is a view itself
        return None


def _view_on_device(array, shape, start, strides):
    """Returns a view of a contiguous CuPy array. The view begins `start` bytes after the array's
    start. Raises ValueError if the view would reach beyond the array."""
    reach = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if min(strides, default=0) < 0 or not 0 <= reach < array.nbytes:
        raise ValueError("the view would reach beyond the array")
    tail = array.reshape(-1)[start // array.itemsize:]
    return backend.library_of(array).lib.stride_tricks.as_strided(tail, shape, strides)
