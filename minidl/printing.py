"""The text of a tensor. It is the same text that PyTorch prints.

    tensor([[ 1.5000, -2.0000],
            [ 0.2500, 30.0000]])

All elements have the same format and the same width:
    1.          if all elements are whole numbers
    1.5000e+00  if an element is above 1e8, below 1e-4, or more than 1000 times another element
    1.5000      in all other cases: four digits after the point

A tensor of more than 1000 elements shows only the first three and the last three elements of each
dimension. set_printoptions changes these numbers.      Test: tests/test_printing.py
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from minidl import backend


@dataclass(frozen=True)
class Options:
    """precision: the number of digits after the point. threshold: a tensor with more elements shows
    only the edges of each dimension. edgeitems: the number of elements at an edge. linewidth: the
    number of characters in a line. sci_mode: True if floats have an exponent, False if not. If
    None, the sizes of the elements decide."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {"default": Options(), "short": Options(precision=2, edgeitems=2),
             "full": Options(threshold=float("inf"))}
_options = ContextVar("minidl.printing.options", default=_PROFILES["default"])


def set_printoptions(precision: int | None = None, threshold: int | None = None,
                     edgeitems: int | None = None, linewidth: int | None = None,
                     profile: str | None = None, sci_mode: bool | None = None) -> None:
    """Changes how tensors are printed from now on. If an argument is None, this option does not
    change. There is one exception: if sci_mode is None, the sizes of the elements decide. profile:
    "default", "short" or "full". If given, all options are first set to the values of this
    profile."""
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"set_printoptions: profile must be one of {[*_PROFILES]}; got "
                         f"{profile!r}")
    given = dict(precision=precision, threshold=threshold, edgeitems=edgeitems, linewidth=linewidth)
    changes = {name: value for name, value in given.items() if value is not None}
    start = _PROFILES[profile] if profile else _options.get()
    _options.set(replace(start, sci_mode=sci_mode, **changes))


@contextmanager
def printoptions(**changes):
    """Does the same as set_printoptions, but only inside the `with` block."""
    before = _options.get()
    set_printoptions(**changes)
    try:
        yield
    finally:
        _options.set(before)


def text(array, notes=(), prefix="tensor("):
    """Returns the text 'tensor([1., 2.], note, note)' for a NumPy array."""
    options = _options.get()
    indent = len(prefix)
    if array.size == 0:
        lines = prefix + "[]"
    else:
        if backend.is_floating(array.dtype):
            array = array.astype(np.float64)  # the cast is exact, and Python can format float64
        short = array.size > options.threshold
        form, width = _form(_edges(array, options.edgeitems) if short else array, options)
        lines = prefix + _nested(array, indent, form, width, options, short)
    last = len(lines) - lines.rfind("\n") + 1  # the length of the last line, with ", "
    for note in notes:  # adds the note to the last line if there is room
        if last + len(note) + 2 > options.linewidth:
            lines += ",\n" + " " * indent + note
            last = indent + len(note)
        else:
            lines += ", " + note
            last += len(note) + 2
    return lines + ")"


def _edges(array, n):
    """Returns an array with only the first and the last n elements of each dimension."""
    for dim, size in enumerate(array.shape):
        if size > 2 * n:
            array = array.take([*range(n), *range(size - n, size)], dim)
    return array


def _form(array, options):
    """Returns (write, width). write(element) returns a text of `width` characters."""
    values = array.reshape(-1)
    if array.dtype.kind != "f":
        write, extra = str, 0
        shown = values.tolist()
    else:
        shown = values[np.isfinite(values) & (values != 0)].tolist()
        write, extra = _float_form(shown, options)
    width = max((len(write(v)) + extra for v in shown), default=1)
    if extra:  # a point follows whole numbers ("1."), but not "inf" or "nan"
        return (lambda v: (write(v) + "." * bool(np.isfinite(v))).rjust(width)), width
    return (lambda v: write(v).rjust(width)), width


def _float_form(values, options):
    """Returns (write, n_points). write(float) returns a text. n_points is 1 if a point must follow
    this text, otherwise 0. values: the finite elements that are not zero."""
    sizes = [abs(v) for v in values]
    exponent = options.sci_mode
    if exponent is None:
        exponent = bool(sizes) and (max(sizes) / min(sizes) > 1000.0 or max(sizes) > 1e8
                                    or min(sizes) < 1e-4)
    if not sizes:
        return "{:.0f}".format, 1
    if exponent:
        return f"{{:.{options.precision}e}}".format, 0
    if all(v.is_integer() for v in values):
        return "{:.0f}".format, 1
    return f"{{:.{options.precision}f}}".format, 0


def _nested(array, indent, form, width, options, short):
    """Returns the text of the elements, with one pair of brackets for each dimension. indent: the
    number of characters before the first bracket."""
    if array.ndim == 0:
        return form(array.item())
    n = options.edgeitems
    cut = short and len(array) > 2 * n
    rows = [*array[:n], *array[len(array) - n:]] if cut else [*array]
    if array.ndim > 1:
        parts = [_nested(row, indent + 1, form, width, options, short) for row in rows]
        if cut:
            parts.insert(n, "...")
        return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"
    parts = [form(v.item()) for v in rows]
    if cut:
        parts.insert(n, " ...")
    per_line = max(1, (options.linewidth - indent) // (width + 2))
    lines = [", ".join(parts[i:i + per_line]) for i in range(0, len(parts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
