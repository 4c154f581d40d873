"""Tests that a tensor prints the same text as in PyTorch."""

import itertools

import numpy as np
import pytest

import minidl
from minidl.printing import printoptions, set_printoptions

SHAPES = [(), (1,), (30,), (1001,), (3, 4), (2, 3, 4), (40, 40), (7, 7, 50), (0,), (0, 3),
          (2, 2, 0)]
KINDS = {  # kinds of numbers on which the printed form depends
    "gaussian": lambda a: a, "whole": lambda a: np.round(a * 10), "large": lambda a: a * 1e6,
    "small": lambda a: a * 1e-6, "zero": lambda a: a * 0, "far apart": lambda a: np.exp(a * 5),
    "not a number": lambda a: np.where(a > 0.5, np.nan, np.where(a < -0.5, np.inf, np.round(a))),
    "infinite": lambda a: np.where(a > 1, -np.inf, a)}


def arrays():
    rng = np.random.default_rng(0)
    for shape, kind in itertools.product(SHAPES, KINDS.values()):
        a = np.asarray(kind(rng.standard_normal(shape)))
        for dtype in ("float16", "float32", "float64"):
            with np.errstate(over="ignore"):  # 1e6 in float16 is inf, which is printed, too
                yield a.astype(dtype)
    for shape in SHAPES:
        for dtype in ("int8", "int32", "int64", "uint8", "bool"):
            yield rng.integers(0, 100, shape).astype(dtype)


def test_the_text_is_pytorchs():
    torch = pytest.importorskip("torch", reason="it prints the text to be compared")
    for a in arrays():
        assert repr(minidl.tensor(a)) == repr(torch.tensor(a)), (a.dtype, a.shape)


@pytest.mark.parametrize("changes", [
    dict(precision=2), dict(sci_mode=True), dict(sci_mode=False), dict(linewidth=40),
    dict(threshold=10, edgeitems=2), dict(profile="short"), dict(profile="full")])
def test_print_options_do_what_pytorchs_do(changes):
    torch = pytest.importorskip("torch", reason="it prints the text to be compared")
    a = np.random.default_rng(0).standard_normal((5, 30)).astype(np.float32)
    try:
        torch.set_printoptions(**changes)
        wanted = repr(torch.tensor(a))
    finally:
        torch.set_printoptions(profile="default")
    with printoptions(**changes):
        assert repr(minidl.tensor(a)) == wanted
    assert repr(minidl.tensor(a)) == repr(torch.tensor(a))


def test_a_note_goes_to_a_new_line_where_the_line_is_full():
    torch = pytest.importorskip("torch", reason="it prints the text to be compared")
    for n in range(1, 20):
        a = np.full(n, 0.5)
        assert repr(minidl.tensor(a)) == repr(torch.tensor(a))
        assert (repr(minidl.tensor(a, requires_grad=True))
                == repr(torch.tensor(a, requires_grad=True)))


def test_an_unknown_profile_is_refused():
    with pytest.raises(ValueError, match="profile must be one of .*; got 'tiny'"):
        set_printoptions(profile="tiny")


def test_a_shape_prints_as_pytorchs_and_is_a_tuple():
    x = minidl.zeros(2, 3, 4)
    assert str(x.shape) == f"{x.size()}" == "torch.Size([2, 3, 4])"
    assert repr(x.shape[1:]) == "torch.Size([3, 4])" and x.shape[1:] == (3, 4)
    assert repr((1,) + x.shape) == "torch.Size([1, 2, 3, 4])"
    assert repr(x.shape + (1,)) == "torch.Size([2, 3, 4, 1])"
    assert repr(x.shape * 2) == "torch.Size([2, 3, 4, 2, 3, 4])"
    assert x.shape == minidl.Size([2, 3, 4]) == (2, 3, 4) and x.shape.numel() == 24


def test_a_device_has_a_type_and_an_index():
    d = minidl.zeros(1).device
    assert (str(d), repr(d), d.type, d.index) == ("cpu", "device(type='cpu')", "cpu", None)
    d = minidl.device("cuda", 1)
    assert (d, repr(d), d.type, d.index) == (
        "cuda:1", "device(type='cuda', index=1)", "cuda", 1)
    assert minidl.device(d) == d
    for wrong in ("gpu", "cuda:", "cuda:x"):
        with pytest.raises(ValueError, match="device must be"):
            minidl.device(wrong)
