"""Shapes: what shares memory, what refuses."""

import numpy as np
import pytest

import minidl

X = minidl.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("op", [
    lambda x: x.reshape(6, 4), lambda x: x.view(-1), lambda x: x.flatten(), lambda x: x[0].T,
    lambda x: x.mT, lambda x: x.permute(2, 0, 1), lambda x: x.unsqueeze(1), lambda x: x[None, :, 1],
    lambda x: x.expand(5, 2, 3, 4), lambda x: x.split(1)[1], lambda x: x.unbind(1)[2],
    lambda x: x.squeeze(), lambda x: x.chunk(2, -1)[0], lambda x: x.detach(),
])
def test_views_share_memory(op):
    assert np.shares_memory(op(X).array, X.array)


@pytest.mark.parametrize("op", [
    lambda x: x.mT.reshape(-1), lambda x: x.flip(0), lambda x: x.repeat(1, 1, 1),
    lambda x: minidl.cat([x]), lambda x: x.clone(), lambda x: x.mT.contiguous(),
    lambda x: x[[0, 1]], lambda x: x[x > 3], lambda x: x[:1, :1, :1].repeat(3, 1, 1),
])
def test_copies_do_not(op):
    assert not np.shares_memory(op(X).array, X.array)


def test_view_refuses_to_copy_and_names_the_remedy():
    with pytest.raises(ValueError, match=r"view: .*cannot get the shape \(24,\) .*use reshape"):
        X.mT.view(-1)
    assert X.mT.view(2, 2, 2, 3).shape == (2, 2, 2, 3)  # a split of a dimension needs no copy
    assert minidl.zeros(0, 3).mT.view(0).shape == (0,)


def test_contiguous_returns_itself_where_it_can():
    assert X.contiguous() is X
    assert X.mT.contiguous().is_contiguous()


def test_wrong_shapes_are_refused_by_name():
    for call, words in [
        (lambda: X.reshape(5, 5), r"reshape: .*\(2, 3, 4\)"),
        (lambda: X.permute(0, 1), "permute: wants 3 dims"),
        (lambda: X.permute(0, 1, 1), "twice"),
        (lambda: X.t(), "t: wants at most 2 dimensions"),
        (lambda: minidl.ones(3).mT, "mT: wants at least 2"),
        (lambda: X.expand(2, 3, 5), r"expand: .*\(2, 3, 4\)"),
        (lambda: X.repeat(2), "repeat: wants at least 3"),
        (lambda: X.split([1, 3]), r"split: the sizes \[1, 3\] sum to 4"),
        (lambda: X.split(0), "split: wants a size of at least 1"),
        (lambda: X.chunk(0), "chunk: wants at least 1"),
        (lambda: X.flatten(2, 0), "flatten: start_dim must not come after"),
        (lambda: minidl.cat([]), "cat: wants at least one tensor"),
        (lambda: minidl.cat([minidl.tensor(1.0)]), "cat: .*Use stack"),
        (lambda: minidl.stack([X, X[0]]), "stack: "),
        (lambda: minidl.nn.functional.pad(X, (1,)), "pad: wants"),
        (lambda: minidl.nn.functional.pad(X, (-3, -3)), "may become negative"),
        (lambda: minidl.nn.functional.pad(X, (1, 1), mode="mirror"), "mode 'constant'"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_flip_wants_its_dims_once():
    for call in (lambda: X.flip(), lambda: X.flip(0, dims=(1,))):
        with pytest.raises(TypeError, match="flip: wants the dims in one of three ways"):
            call()
    with pytest.raises(IndexError, match="flip: dim 3 is out of range"):
        X.flip(dims=(3,))
    assert X.flip(dims=0).tolist() == X.flip([0]).tolist() == X.flip(0).tolist()


def test_cat_and_stack_promote():
    half, whole = minidl.ones(2, dtype=np.float16), minidl.arange(2)
    assert minidl.cat([half, whole]).dtype == np.float16
    assert minidl.stack([whole, minidl.ones(2, dtype=np.float64)]).dtype == np.float64


def test_cat_casts_each_gradient_back():
    a = minidl.ones(2, dtype=np.float16, requires_grad=True)
    b = minidl.ones(3, dtype=np.float64, requires_grad=True)
    minidl.cat([a, b]).sum().backward()
    assert a.grad.dtype == np.float16 and b.grad.dtype == np.float64


def test_chunk_may_give_fewer():
    assert [c.shape[0] for c in minidl.ones(5).chunk(4)] == [2, 2, 1]


def test_expand_sums_its_copies_in_backward():
    x = minidl.ones(3, 1, requires_grad=True)
    x.expand(2, 3, 4).sum().backward()
    assert np.array_equal(x.grad, np.full((3, 1), 8))
