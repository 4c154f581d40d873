"""NumPy's numbers as options change no dtype, and NumPy's arrays go in where Tensors do."""

from types import SimpleNamespace

import numpy as np
import pytest

import minidl
from minidl import ops
from tests.ops.test_every_op import ROWS, as_tuple, is_float

CALLS = [pytest.param(row, id=row.name) for row in ROWS if row.of_library is not None]


def called_by(change):
    """(minidl, its functional module) whose ops get change(argument) for each argument."""

    def wrapped(op):
        return lambda *args, **options: op(*map(change, args),
                                           **{name: change(x) for name, x in options.items()})

    library, functional = (
        {name: wrapped(op) for name, op in ops.namespace(home).items()} for home in "tf")
    others = {name: x for name, x in vars(minidl).items() if name not in library}
    return SimpleNamespace(**library, **others), SimpleNamespace(**functional)


def as_numpys_number(x):
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        return x
    return np.float64(x) if isinstance(x, float) else np.int64(x)


def as_array(x):
    return x.array if type(x) is minidl.Tensor else x


def results(row, library, functional, dtype):
    """(values, gradients) of the row's first inputs, floats in this dtype."""
    arrays = [a.astype(dtype) if is_float(a) else a for a in row.inputs[0]]
    xs = [minidl.tensor(a, requires_grad=is_float(a)) if hasattr(a, "ndim") else a for a in arrays]
    ys = as_tuple(row.of_library(library, functional, *xs))
    if not all(isinstance(y, minidl.Tensor) for y in ys):
        pytest.skip("it calls NumPy's method of this name")
    return ys


@pytest.mark.parametrize("row", CALLS)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_an_option_that_is_numpys_number_changes_nothing(row, dtype):
    plain = results(row, *called_by(lambda x: x), dtype)
    numpys = results(row, *called_by(as_numpys_number), dtype)
    for y, wanted in zip(numpys, plain, strict=True):
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y.numpy(), wanted.numpy())


@pytest.mark.parametrize("row", CALLS)
def test_a_numpy_array_goes_in_where_a_tensor_does(row):
    plain = results(row, *called_by(lambda x: x), "f4")
    with minidl.no_grad():
        arrays = results(row, *called_by(as_array), "f4")
    for y, wanted in zip(arrays, plain, strict=True):
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y.numpy(), wanted.numpy())
