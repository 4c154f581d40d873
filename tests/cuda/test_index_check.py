"""minidl/cuda/index_check.py: on a GPU a bad index is found late, but found, and reads no memory of
others; on the CPU the ops find it at once."""

import numpy as np
import pytest

import minidl
from minidl import cuda
from minidl.cuda import index_check
from minidl.nn import functional as F
from tests.devices import host, put


@pytest.mark.parametrize("ignored", [None, -100, 3])
@pytest.mark.parametrize("dtype", ["i8", "i4", "i2", "u1", "u8"])
@pytest.mark.parametrize("bad", [[], [7], [200, 9]])
def test_the_kernel_makes_indices_safe_and_notes_one(bad, dtype, ignored, needs_compiler):
    index = np.r_[np.arange(5).repeat(9), bad, [4]].astype(dtype)
    if ignored is not None and ignored < 0 and dtype[0] == "i":
        index[[0, 7]] = ignored if dtype != "u1" else 0
    out, note = np.empty(len(index), np.int64), np.zeros(2, np.uint64)
    kernel = index_check._kernel(index_check.C_TYPES[index.dtype.name])
    other = index_check.NOBODY if ignored is None else ignored
    kernel(1, 256, (out, note, index, len(index), 0, 5, other, ignored or 0, 17))
    safe, first = index_check.reference(index.astype(np.int64), 5, ignored, ignored or 0)
    np.testing.assert_array_equal(out, safe)
    assert note.tolist() in ([[17, b] for b in bad] if bad else [[0, 0]])
    assert (first is None) == (not bad)


OPS = {
    "embedding": (lambda i: F.embedding(i, weight(i)), "embedding: .* from 0 to 4; got 7"),
    "cross_entropy": (lambda i: F.cross_entropy(weight(i)[:i.numel()], i), "cross_entropy: "),
    "nll_loss": (lambda i: F.nll_loss(weight(i)[:i.numel()], i), "nll_loss: "),
    "gather": (lambda i: minidl.gather(weight(i)[:i.numel()], 1, i.reshape(-1, 1)), "gather: "),
    "index_select": (lambda i: minidl.index_select(weight(i), 0, i), "index_select: "),
    "scatter": (lambda i: minidl.scatter(weight(i), 1, i.reshape(1, -1), weight(i)), "scatter: "),
    "scatter_add": (lambda i: minidl.scatter_add(weight(i), 1, i.reshape(1, -1), weight(i)),
                    "scatter_add: "),
    "index_add": (lambda i: minidl.index_add(weight(i), 0, i, weight(i)[:i.numel()]),
                  "index_add: "),
    "index_copy": (lambda i: minidl.index_copy(weight(i), 0, i, weight(i)[:i.numel()]),
                   "index_copy: "),
    "index_fill": (lambda i: minidl.index_fill(weight(i), 0, i, 2.0), "index_fill: "),
}


def weight(like):
    w = np.random.default_rng(0).standard_normal((5, 5)).astype("f4")
    return minidl.Tensor(put(w, str(like.device)), requires_grad=True)


@pytest.mark.gpu
@pytest.mark.parametrize("wait", ["item", "tolist", "cpu", "repr", "synchronize"])
def test_a_bad_index_is_raised_by_whoever_waits_and_only_once(wait):
    waits = {"item": lambda y: y.sum().item(), "tolist": lambda y: y.tolist(),
             "cpu": lambda y: y.cpu(), "repr": repr, "synchronize": lambda y: cuda.synchronize()}
    index = minidl.Tensor(put(np.array([1, 7, 0]), "cuda"))
    y = F.embedding(index, weight(index))  # no error yet: nobody has waited
    with pytest.raises(IndexError, match="embedding: wanted indices from 0 to 4; got 7"):
        waits[wait](y)
    waits[wait](y)
    assert (host(y)[1] == host(y)[2]).all()  # 0 stands in its place: no memory of others is read


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("bad", [7, -1, 2**40, -2**40])
def test_every_op_with_indices_finds_a_bad_one(name, bad):
    op, words = OPS[name]
    good = minidl.Tensor(put(np.array([1, 4, 0]), "cuda"))
    op(good).sum().backward()
    op(good).sum().item()
    y = op(minidl.Tensor(put(np.array([1, bad, 0]), "cuda"))).sum()
    y.backward()
    with pytest.raises(IndexError, match=words.replace("7", str(bad))):
        y.item()


@pytest.mark.gpu
def test_an_ignored_target_is_no_bad_index():
    targets = np.array([1, -100, 3])
    values = {}
    for device in "cpu", "cuda":
        target = minidl.Tensor(put(targets, device))
        x = weight(target)
        loss = F.cross_entropy(x[:3], target)
        loss.backward()
        values[device] = loss.item(), host(x.grad)
    assert values["cuda"][0] == pytest.approx(values["cpu"][0], rel=1e-6)
    np.testing.assert_allclose(values["cuda"][1], values["cpu"][1], rtol=1e-5, atol=1e-7)


def written(i):
    x = weight(i).detach()
    x[i] = 7.0
    return x


PLACES = {  # each with an index tensor of one dimension; the first dimension has 5 places
    "x[i]": (lambda i: weight(i)[i], "x.index.: wanted indices from -5 to 4; got BAD"),
    "x[:, i]": (lambda i: weight(i)[:, i], "x.index.: wanted indices from .*; got BAD"),
    "x[..., i]": (lambda i: weight(i)[..., i], "x.index.: wanted indices from .*; got BAD"),
    "x[None, i, 1]": (lambda i: weight(i)[None, i, 1], "x.index.: wanted indices from .*; got BAD"),
    "x[i, i]": (lambda i: weight(i)[i, i], "x.index.: wanted indices from .*; got BAD"),
    "x[i] = y": (written, "x.index. = y: wanted indices from .*; got BAD"),
}


@pytest.mark.parametrize("name", PLACES)
def test_an_index_in_brackets_may_count_from_the_end(name, device):
    op, words = PLACES[name]
    good = minidl.Tensor(put(np.array([-5, 4, 0, -1, 3]), device))
    want = op(minidl.Tensor(np.array([-5, 4, 0, -1, 3])))
    np.testing.assert_array_equal(host(op(good)), host(want))
    for bad in (5, -6, 2**40):
        index = minidl.Tensor(put(np.array([1, bad, 0]), device))
        with pytest.raises(IndexError, match=words.replace("BAD", str(bad))
                           if device == "cuda" else "index"):
            op(index).sum().item()


def test_a_mask_beside_an_index_takes_its_own_dimensions(device):
    x = np.arange(60.0).reshape(3, 4, 5)
    mask, index = np.array([[1, 0, 1, 0], [0, 0, 0, 1], [0] * 4], bool), np.array([4, 0, -5])
    parts = tuple(minidl.Tensor(put(a, device)) for a in (mask, index))
    got = minidl.Tensor(put(x, device))[parts]
    np.testing.assert_array_equal(host(got), x[mask, index])
    with pytest.raises(IndexError, match="index 5 is out|from 0 to 5, but dimension 2"):
        minidl.Tensor(put(x, device))[..., [0, 5]]


@pytest.mark.gpu
def test_no_indexing_waits_for_the_gpu():
    try:
        from cupy import stand_in
    except ImportError:  # the real CuPy does not count
        return
    index = minidl.Tensor(put(np.array([1, 4, 0]), "cuda"))
    for op, _ in [*OPS.values(), *PLACES.values()]:
        op(index)
        with stand_in.counting() as count:
            op(index)
        assert not count.waits


@pytest.mark.gpu
def test_an_index_into_nothing_is_an_error_at_once():
    with pytest.raises(IndexError, match="3 indices into a dimension of size 0"):
        minidl.Tensor(put(np.empty((0, 2)), "cuda"))[minidl.Tensor(put(np.arange(3), "cuda"))]


def test_brackets_on_the_stand_in(strict_cupy, needs_compiler):
    x = minidl.Tensor(put(np.arange(5.0), "cuda"))
    assert x[minidl.Tensor(put(np.array([-5, 4]), "cuda"))].tolist() == [0, 4]
    y = x[minidl.Tensor(put(np.array([1, 5]), "cuda"))]
    with pytest.raises(IndexError, match="x.index.: wanted indices from -5 to 4; got 5"):
        y.tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("make", [np.array, minidl.tensor, list])
@pytest.mark.parametrize("values", [[2, 0, 2], [True, False, True]])
@pytest.mark.parametrize("before", [(), (slice(1, 3),), (0,)])
def test_an_index_on_the_host_is_brought_to_the_gpu(before, values, make):
    x = np.arange(18, dtype="f4").reshape(3, 3, 2)
    index, plain = (*before, make(values)), (*before, np.array(values))
    here = minidl.tensor(x, requires_grad=True)
    there = minidl.Tensor(put(x, "cuda"), requires_grad=True)
    wanted, y = here[plain], there[index]
    np.testing.assert_array_equal(host(y), host(wanted))
    wanted.sum().backward()
    y.sum().backward()
    np.testing.assert_array_equal(host(there.grad), here.grad)
    written = there.detach().clone()
    written[index] = minidl.tensor(host(y) + 1)  # a value on the host, too
    np.testing.assert_array_equal(host(written[index]), host(y) + 1)


@pytest.mark.gpu
def test_a_bad_index_on_the_host_is_found_at_once():
    x = minidl.Tensor(put(np.ones((3, 4), "f4"), "cuda"))
    with pytest.raises(IndexError, match="from 0 to 3, but dimension 0"):
        x[[3, 0]]
    with pytest.raises(IndexError, match="index is on a GPU, but the tensor is on the CPU"):
        minidl.ones(3, 4)[x[0].long()]
