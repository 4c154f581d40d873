"""minidl/ops/extra/composed.py: what it refuses, and ends that rows of samples do not reach."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F


def test_lerp_reaches_both_ends_exactly():
    start, end = minidl.tensor([0.1, 1e8]), minidl.tensor([0.3, -1.7])
    for weight in (minidl.tensor(1.0), 1.0):
        assert start.lerp(end, weight).tolist() == end.tolist()
    for weight in (minidl.tensor(0.0), 0.0):
        assert start.lerp(end, weight).tolist() == start.tolist()


def test_the_gradient_of_cumprod_is_right_where_there_are_zeros():
    x = minidl.tensor([2.0, 0.0, 3.0], requires_grad=True)
    x.cumprod(0).sum().backward()
    assert x.grad.tolist() == [1 + 0 + 0, 2 + 2 * 3, 0]


def test_a_narrowed_tensor_is_a_view():
    x = minidl.zeros(3, 4)
    x.narrow(1, 1, 2).fill_(1)
    assert x.sum().item() == 6 and x.version == 1


def test_new_tensors_have_the_dtype_of_the_old_one_or_another():
    x = minidl.zeros(2, dtype=np.float64)
    assert x.new_ones(3).dtype == np.float64
    assert x.new_zeros(2, 2, dtype=np.int64).dtype == np.int64
    assert x.is_floating_point() and not minidl.arange(2).is_floating_point()


@pytest.mark.parametrize("call, words", [
    (lambda x: x.mm(x[0]), r"mm: wants 2 dimensions here, got shape \(4,\)"),
    (lambda x: x.mv(x), r"mv: wants 1 dimensions here, got shape \(3, 4\)"),
    (lambda x: minidl.tensordot(x, x, 1), "tensordot: dimensions .* differ"),
    (lambda x: x.movedim((0, 1), 0), "movedim: wants as many sources as destinations"),
    (lambda x: x.unflatten(1, (3, -1)), "unflatten: sizes .* do not multiply to 4"),
    (lambda x: x.narrow(0, 2, 2), r"narrow: 2 slices from 2 on, but dimension 0 .* has 3"),
    (lambda x: x.unfold(0, 4, 1), r"unfold: windows of 4 every 1, but dimension 0 .* has 3"),
    (lambda x: F.pixel_shuffle(x[None], 2), r"pixel_shuffle: 1 channels are no multiple of 2 \* 2"),
])
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises((ValueError, IndexError), match=words):
        call(minidl.ones(3, 4))
