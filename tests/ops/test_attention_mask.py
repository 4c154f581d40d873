"""Attention's kernels with a mask and with dropout: every rung against whole matrices in float64,
and the op with and without kernels. The draws are the generator's, whoever makes them."""

import numpy as np
import pytest

import minidl
from minidl import cuda
from minidl.cuda import dispatch
from minidl.nn import functional as F
from minidl.ops import attention_kernel
from tests.kernel_arrays import with_and_without
from tests.ops.test_attention_kernel import (
    FORWARD, TOLERANCE, WRITTEN, qkvg, reference, reference_backward,
)

if not dispatch.cpu_compiler():
    pytest.skip("no C++ compiler: kernels cannot run without a GPU", allow_module_level=True)

DROPOUT = 0.3, (4, 2, 17)  # p, and a generator's (seed, stream, counter)
RNG = np.random.default_rng(0)


def mask_of(kind, n_queries, n_keys, lead=(2, 3)):
    """A mask that broadcasts to (*lead, L, S); query 0 of "rows" sees no key."""
    seen = RNG.random((*lead, n_queries, n_keys)) < 0.7
    if kind == "keys":  # (B, 1, 1, S), of padding: a view that is broadcast twice
        seen = seen[:, :1, :1]
    if kind == "rows":
        seen[:, :, 0] = False
    if kind in ("added", "half"):
        added = np.where(seen, RNG.standard_normal(seen.shape), -np.inf)
        return added.astype(np.float32 if kind == "added" else np.float16)
    return seen


def check(rung, arrays, is_causal, mask, dropout, scale=0.3):
    """Both passes of a rung against the formula."""
    q, k, v, go = arrays
    if mask is not None:
        mask = attention_kernel.mask_view(mask, (*q.shape[:3], k.shape[2]))
    options = dict(mask=mask, dropout=dropout)
    o, lse = attention_kernel.by_kernel(q, k, v, is_causal, scale, rung, **options)
    grads = attention_kernel.by_kernel_backward(
        go, q, k, v, o, lse, is_causal, scale, rung, **options)
    wanted, wanted_lse = reference(q, k, v, is_causal, scale, **options)
    tol = TOLERANCE[q.dtype.type]
    np.testing.assert_allclose(o, wanted, rtol=tol, atol=tol)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-6, atol=1e-5)
    wanted = reference_backward(go, q, k, v, is_causal, scale, **options)
    for name, a, b in zip(("gq", "gk", "gv"), grads, wanted, strict=True):
        # 1 / (1 - p) and a mask that leaves few keys make gradients of up to 8
        np.testing.assert_allclose(a, b, rtol=2 * tol, atol=4 * tol, err_msg=name)


CASES = {  # mask, dropout, causal, L, S: draws of a row begin anywhere in a block of eight
    "dropout": (None, DROPOUT, False, 65, 63),
    "causal dropout": (None, DROPOUT, True, 70, 70),
    "mask": ("all", None, False, 33, 70),
    "a query that sees no key": ("rows", DROPOUT, False, 20, 17),
    "padding": ("keys", None, True, 40, 40),
    "added, dropout": ("added", DROPOUT, True, 19, 65),
    "everything goes": (None, (1.0, (4, 2, 17)), False, 9, 8),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rung", FORWARD)
def test_every_rung_equals_the_formula(rung, case):
    kind, dropout, is_causal, n_queries, n_keys = CASES[case]
    mask = kind and mask_of(kind, n_queries, n_keys)
    check(rung, qkvg(n_queries, n_keys), is_causal, mask, dropout)


@pytest.mark.parametrize("rung", ["warp", "tile", "mma"])
def test_half(rung):
    check(rung, qkvg(20, 37, dtype=np.float16), True, mask_of("half", 20, 37), DROPOUT)


def test_groups_of_tiles_meet():
    """Over 256 rows: several threads a head in forward, several parts of gq in backward."""
    check("tile", qkvg(300, 257), True, mask_of("all", 300, 257), DROPOUT)


def test_counters_beyond_32_bits():
    check("warp", qkvg(9, 12), False, None, (0.5, (2**63 + 1, 2**40, 2**35 + 5)))
    check("tile", qkvg(9, 12), False, None, (0.5, (2**63 + 1, 2**40, 2**35 + 5)))


@pytest.mark.parametrize("options", [
    dict(dropout_p=0.4), dict(dropout_p=0.4, is_causal=True),
    dict(attn_mask=mask_of("all", 9, 13)), dict(attn_mask=mask_of("rows", 9, 13)[0, 0]),
    dict(attn_mask=mask_of("added", 9, 13), dropout_p=0.1),
    dict(attn_mask=mask_of("keys", 9, 13).astype(np.int64) - 1.0),  # float64, from outside
    dict(attn_mask=mask_of("all", 9, 13)[:, ::-1, :, ::-1]),
])
def test_the_op_equals_the_op_without_kernels(options, monkeypatch):
    """And the kernels do run. The generator moves on as far."""
    launched = []
    run = attention_kernel.by_kernel
    monkeypatch.setattr(attention_kernel, "by_kernel",
                        lambda *a, **o: launched.append(1) or run(*a, **o))
    rng = np.random.default_rng(1)
    *arrays, go = (rng.standard_normal((2, 3, n, 16)).astype("f4") for n in (9, 13, 13, 9))
    counters = []

    def op(*tensors, **given):
        generator = minidl.Generator(5)
        y = F.scaled_dot_product_attention(*tensors, **given, generator=generator)
        counters.append(generator.counter)
        return y

    (o, grads), (wanted, wanted_grads) = with_and_without(op, arrays, go, **options)
    for a, b in zip([o, *grads], [wanted, *wanted_grads], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)  # both float32
    assert launched == [1] and counters[0] == counters[1]


def test_self_attention_drops_in_the_kernel(monkeypatch):
    """As a GPT trains: no draw on the host, nothing of L x S kept, the gradient the same."""
    monkeypatch.setattr("minidl.ops.attention.keep_mask", None)
    rng = np.random.default_rng(2)
    x, g = rng.standard_normal((2, 70, 96)), rng.standard_normal((2, 70, 32))
    qkv = minidl.Tensor(x.astype("f4"), requires_grad=True)
    y = F.self_attention(qkv, 2, is_causal=True, dropout_p=0.2, generator=minidl.Generator(9))
    kept = sum(a.nbytes for a in y.grad_fn.saved if a is not None)
    y.backward(g.astype("f4"))
    assert kept == qkv.array.nbytes + y.array.nbytes + 2 * 2 * 70 * 4
    q, k, v = x.astype("f4").reshape(2, 70, 3, 2, 16).transpose(2, 0, 3, 1, 4)
    go = g.reshape(2, 70, 2, 16).swapaxes(1, 2)
    wanted, _ = reference(q, k, v, True, dropout=(0.2, (9, 0, 0)))
    np.testing.assert_allclose(y.array, wanted.swapaxes(1, 2).reshape(2, 70, 32), atol=2e-5)
    grads = reference_backward(go, q, k, v, True, dropout=(0.2, (9, 0, 0)))
    got = qkv.grad.array.reshape(2, 70, 3, 2, 16).transpose(2, 0, 3, 1, 4)
    for a, b in zip(got, grads, strict=True):
        np.testing.assert_allclose(a, b, atol=4e-5)


def test_a_mask_that_wants_a_gradient_stays_with_the_plain_op():
    q = np.ones((1, 1, 3, 4), np.float32)
    mask = minidl.Tensor(np.zeros((3, 3), np.float32), requires_grad=True)
    F.scaled_dot_product_attention(*[minidl.Tensor(q)] * 3, mask).sum().backward()
    assert mask.grad.shape == (3, 3)


def test_a_saved_mask_is_the_one_given():
    """Not one of the size of the scores, which a mask of keys would become."""
    x = [minidl.Tensor(a, requires_grad=True) for a in qkvg(20, 30)[:3]]
    mask = mask_of("keys", 20, 30)
    y = F.scaled_dot_product_attention(*x, mask)
    assert sum(a.nbytes for a in y.grad_fn.saved if a.dtype == bool) == mask.nbytes == 60


@pytest.mark.parametrize("rung", [*FORWARD, "mma"])
def test_watched_kernels_have_no_races(rung, monkeypatch):
    """Nor accesses out of bounds, nor elements left unwritten; the same bits in any order."""
    def watched(file, name, dtype, **defines):
        def launch(grid, block, args):
            report = cuda.check(file, grid, block, args, name=name, outputs=WRITTEN[name],
                                defines={"T": dispatch.C_TYPES[dtype], **defines})
            assert not report.findings, report
        return launch

    monkeypatch.setattr(dispatch, "kernel", watched)
    arrays = qkvg(19, 35, 5, lead=(1, 2), dtype=np.float16 if rung == "mma" else np.float32)
    check(rung, arrays, True, mask_of("all", 19, 35, (1, 2)), DROPOUT)
