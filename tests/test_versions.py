"""Tests that backward raises an error if a saved array was changed. The change may come through any
tensor with the same memory."""

import numpy as np
import pytest

import minidl
from minidl.memory.recompute import recompute, recompute_sequential
from minidl.nn import functional as F

X = np.array([[0.5, 1.0, 2.0], [3.0, 0.25, 4.0]], np.float32)

# ---- views: another tensor with the same memory is changed ----

VIEWS = {
    "itself": lambda x: x,
    "slice": lambda x: x[:1],
    "column": lambda x: x[:, 1],
    "element": lambda x: x[0, 1],
    "None": lambda x: x[None],
    "view": lambda x: x.view(6),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.flatten(),
    "T": lambda x: x.T,
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "split": lambda x: x.split(1)[0],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(0)[1],
    "detach": lambda x: x.detach(),
    "view of detach": lambda x: x.detach().view(6)[2:],
    "view of view": lambda x: x.T[1:].unsqueeze(0),
    "iterated": lambda x: list(x)[1],
}
CHANGES = {
    "zero_": lambda v: v.zero_(),
    "fill_": lambda v: v.fill_(7.0),
    "copy_": lambda v: v.copy_(v + 1),
    "+=": lambda v: v.__iadd__(1.0),
    "*=": lambda v: v.__imul__(3.0),
    "[]=": lambda v: v.__setitem__(..., 5.0),
}


def saved_by(kind):
    """Returns (leaf, a tensor that a product has saved, the sum of this product)."""
    leaf = minidl.tensor(X, requires_grad=True)
    x = leaf if kind == "leaf" else leaf * 1.0
    return leaf, x, (x * x).sum()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["leaf", "result"])
def test_a_write_through_a_view_of_what_is_saved(kind, view, change):
    _, x, y = saved_by(kind)
    with minidl.no_grad():
        CHANGES[change](VIEWS[view](x))
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_was_made_before(view):
    leaf = minidl.tensor(X, requires_grad=True)
    x = leaf * 1.0
    with minidl.no_grad():
        seen = VIEWS[view](x)
    y = (x * x).sum()
    with minidl.no_grad():
        seen.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


@pytest.mark.parametrize("view", VIEWS)
def test_the_base_of_a_view_that_is_saved(view):
    leaf = minidl.tensor(X, requires_grad=True)
    x = leaf * 1.0
    v = VIEWS[view](x)
    if not v.requires_grad:  # after detach the product needs another leaf
        w = minidl.tensor(v.numpy().copy(), requires_grad=True)
        y = (v * w).sum()
    else:
        y = (v * v).sum()
    with minidl.no_grad():
        x.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_another_view_of_the_same_base():
    x = minidl.tensor(X, requires_grad=True) * 1.0
    y = (x[:1] * x[:1]).sum()
    with minidl.no_grad():
        x.view(6)[1:2].zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


@pytest.mark.parametrize("view", ["itself", "slice", "T", "detach", "view of view"])
def test_a_constant_that_is_saved(view):
    w, c = minidl.tensor(X, requires_grad=True), minidl.tensor(X)
    y = (w * c).sum()
    VIEWS[view](c).zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_a_copy_may_be_written():
    for copy in (lambda x: x.clone(), lambda x: x[[0, 1]], lambda x: x + 0.0):
        leaf, x, y = saved_by("result")
        with minidl.no_grad():
            copy(x).zero_()
        y.backward()
        np.testing.assert_array_equal(leaf.grad, 2 * X)


def test_what_nobody_has_saved_may_be_written():
    leaf = minidl.tensor(X, requires_grad=True)
    x = leaf * 1.0
    y = (x + 1.0).sum()
    with minidl.no_grad():
        x.T.zero_()
    y.backward()
    np.testing.assert_array_equal(leaf.grad, np.ones_like(X))


# ---- saved results ----

RESULTS = {
    "relu": lambda x: (x - 1.0).relu(), "exp": lambda x: x.exp(), "sigmoid": lambda x: x.sigmoid(),
    "tanh": lambda x: x.tanh(), "sqrt": lambda x: x.sqrt(), "rsqrt": lambda x: x.rsqrt(),
    "reciprocal": lambda x: x.reciprocal(), "tan": lambda x: x.tan(),
    "expm1": lambda x: x.expm1(), "exp2": lambda x: x.exp2(), "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(1), "amin": lambda x: x.amin(1), "norm": lambda x: x.norm(),
    "norm of rows": lambda x: x.norm(2, 1), "std": lambda x: x.std(1),
    "softmax": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, 1),
    "logsumexp": lambda x: x.logsumexp(1), "elu": lambda x: F.elu(x - 1.0),
    "selu": lambda x: F.selu(x - 1.0), "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)), "gelu": lambda x: F.gelu(x),
    "silu": lambda x: F.silu(x), "normalize": lambda x: F.normalize(x),
    "clamp": lambda x: x.clamp(0.4, 2.5), "abs": lambda x: x.abs(), "sin": lambda x: x.sin(),
    "softplus": lambda x: F.softplus(x), "pow": lambda x: x ** 3.0, "cumsum": lambda x: x.cumsum(1),
}
NOT_SAVED = set("prod elu selu layer_norm rms_norm gelu silu normalize clamp abs sin softplus pow "
                "cumsum".split())


def gradient(f, change):
    """Computes f, and changes its result before backward. Returns the gradient, or "error" if
    backward raises an error."""
    leaf = minidl.tensor(X, requires_grad=True)
    y = f(leaf * 1.0)
    loss = (y * minidl.tensor(np.arange(1.0, 1 + y.numel(), dtype="f4").reshape(y.shape))).sum()
    with minidl.no_grad():
        change(y)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "changed in place" in str(error)
        return "error"
    return leaf.grad.array.tolist()


@pytest.mark.parametrize("view", ["itself", "slice", "detach", "unsqueeze", "view of view"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_changed_is_an_error_or_was_not_needed(name, view):
    def change(y):
        seen = VIEWS[view](y) if y.ndim > 1 or view in ("itself", "detach") else y.unsqueeze(0)
        seen.fill_(9.0)

    assert gradient(RESULTS[name], change) in ("error", gradient(RESULTS[name], lambda y: None))


@pytest.mark.parametrize("name", RESULTS)
def test_torch_refuses_it_too(name):
    torch = pytest.importorskip("torch", reason="what PyTorch refuses")
    torch_f = {"softmax": torch.nn.functional.softmax, "log_softmax": torch.log_softmax}
    if name in NOT_SAVED:
        return
    x = torch.tensor(X, requires_grad=True) * 1.0
    y = torch_f[name](x, 1) if name in torch_f else RESULTS[name](x)
    with torch.no_grad():
        y.detach().fill_(9.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- segments that run again ----

def changed_input(how, tensor):
    """Runs a segment with recompute. Returns (the input `tensor` of the segment, the loss)."""
    x, w = (minidl.tensor(X, requires_grad=True) for _ in range(2))
    h, k = x * 1.0, w * 1.0
    c = minidl.tensor(X)

    def f(h, *args, k=None, c=None, nest=None):
        k, c = (k, c) if nest is None else (nest["k"], nest["rest"][0])
        return (h * k).tanh() * c

    y = {"keyword": lambda: recompute(f, h, k=k, c=c),
         "nest": lambda: recompute(f, h, nest={"k": k, "rest": [c]}),
         "position": lambda: recompute(lambda h, k, c: f(h, k=k, c=c), h, k, c),
         "sequence": lambda: recompute_sequential([lambda t: f(t[0], k=t[1], c=t[2])],
                                                  (h, k, c), 1)}[how]()
    return {"h": h, "k": k, "c": c}[tensor], y.sum()


@pytest.mark.parametrize("view", ["itself", "slice", "T", "detach", "unsqueeze"])
@pytest.mark.parametrize("tensor", ["h", "k", "c"])
@pytest.mark.parametrize("how", ["keyword", "nest", "position", "sequence"])
def test_an_input_of_a_recomputed_segment(how, tensor, view):
    changed, loss = changed_input(how, tensor)
    with minidl.no_grad():
        VIEWS[view](changed).zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("view", ["itself", "slice", "detach"])
def test_a_weight_of_a_recomputed_segment(view):
    w, x = minidl.tensor(X, requires_grad=True), minidl.tensor(X, requires_grad=True)
    y = recompute(lambda x: (x * w).tanh(), x).sum()
    with minidl.no_grad():
        VIEWS[view](w).zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_an_input_of_which_the_segment_takes_only_the_value():
    w, x = (minidl.tensor(X, requires_grad=True) for _ in range(2))
    h = x * 1.0
    y = recompute(lambda h: w * h.detach(), h).sum()
    with minidl.no_grad():
        h.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


# ---- assignments that the graph records ----

def test_a_view_made_before_a_recorded_assignment():
    """PyTorch computes the gradient with the assigned element. An error is also right, but another
    gradient is wrong."""
    x, f = minidl.ones(3, requires_grad=True), minidl.tensor(5.0, requires_grad=True)
    y = x * 1.0
    view = y[1:]
    y[1] = f
    try:
        view.sum().backward()
    except RuntimeError:
        return
    assert x.grad.array.tolist() == [0, 0, 1] and f.grad == 1


# ---- indices and masks ----

PLACES = {
    "x[i]": (lambda x, i: x[i], [1, 0, 1]),
    "x[:, i]": (lambda x, i: x[:, i], [1, 0, 1]),
    "x[mask]": (lambda x, i: x[:, i], [True, False, True]),
    "x[i] = y": (lambda x, i: written(x * 1.0, i, x[:1] * 2.0), [1]),
    "gather": (lambda x, i: x.gather(0, i), [[1, 0, 1]]),
    "index_select": (lambda x, i: x.index_select(0, i), [1, 0, 1]),
    "scatter": (lambda x, i: (x * 1.0).scatter(0, i, x * 2.0), [[1, 0, 1]]),
    "scatter_add": (lambda x, i: (x * 1.0).scatter_add(0, i, x * 2.0), [[1, 0, 1]]),
    "index_add": (lambda x, i: (x * 1.0).index_add(0, i, x * 2.0), [1, 0]),
    "index_copy": (lambda x, i: (x * 1.0).index_copy(0, i, x * 2.0), [1, 0]),
    "index_fill": (lambda x, i: x.index_fill(0, i, 0.0), [1]),
    "masked_select": (lambda x, i: x.masked_select(i), [True, False, True]),
    "embedding": (lambda x, i: F.embedding(i, x), [1, 0, 1]),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), [1, 0]),
    "where": (lambda x, i: minidl.where(i, x, x * 0.0), [True, False, True]),
    "masked_fill": (lambda x, i: x.masked_fill(i, 0.0), [True, False, True]),
}


def written(x, index, value):
    x[index] = value
    return x


@pytest.mark.parametrize("name", PLACES)
def test_an_index_that_is_changed(name):
    f, index = PLACES[name]
    index = minidl.tensor(index)
    y = f(minidl.tensor(X, requires_grad=True) * 1.0, index)
    index.copy_(1 - index if index.dtype != bool else index.logical_not())
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()
