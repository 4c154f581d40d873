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
    "embedding": (lambda i: F.embedding(i, weight(i)), "embedding: .*, 7, is none of 0 to 4"),
    "cross_entropy": (lambda i: F.cross_entropy(weight(i)[:i.numel()], i), "cross_entropy: "),
    "nll_loss": (lambda i: F.nll_loss(weight(i)[:i.numel()], i), "nll_loss: "),
    "gather": (lambda i: minidl.gather(weight(i)[:i.numel()], 1, i.reshape(-1, 1)), "gather: "),
    "index_select": (lambda i: minidl.index_select(weight(i), 0, i), "index_select: "),
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
    with pytest.raises(IndexError, match="embedding: an index, 7, is none of 0 to 4"):
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
