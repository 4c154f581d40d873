"""Attention's kernels, every rung, against whole matrices in float64; the op with and without."""

import math

import numpy as np
import pytest

import minidl
from minidl import cuda, memory
from minidl.cuda import dispatch
from minidl.nn import functional as F
from minidl.ops import attention_kernel
from minidl.ops import dropout as dropout_op
from tests.kernel_arrays import with_and_without


def reference(q, k, v, is_causal=False, scale=None, mask=None, dropout=None):
    """(o, lse) in float64, with all of P."""
    p, lse, kept = _probabilities(q, k, is_causal, scale, mask, dropout)
    return p * kept @ np.asarray(v, np.float64), lse


def reference_backward(go, q, k, v, is_causal=False, scale=None, mask=None, dropout=None):
    """(gq, gk, gv) in float64."""
    p, _, kept = _probabilities(q, k, is_causal, scale, mask, dropout)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    go, q, k, v = (np.asarray(a, np.float64) for a in (go, q, k, v))
    gp = kept * (go @ v.swapaxes(-1, -2))
    gs = p * (gp - (gp * p).sum(-1, keepdims=True)) * scale
    return gs @ k, gs.swapaxes(-1, -2) @ q, (p * kept).swapaxes(-1, -2) @ go


def _probabilities(q, k, is_causal, scale, mask, dropout):
    """(P, lse, kept); a query that sees no key has P 0 and lse 0."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    s = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        s = s + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float64))
    if is_causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    top[top == -np.inf] = 0
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    total[total == 0] = 1
    kept = 1.0
    if dropout is not None:
        ones, (p_drop, state) = np.ones(s.shape, np.float64), dropout
        kept = dropout_op.by_numpy(ones, p_drop, state)
    return p / total, (top + np.log(total))[..., 0], kept


if not dispatch.cpu_compiler():
    pytest.skip("no C++ compiler: kernels cannot run without a GPU", allow_module_level=True)

# L, S around the tiles' borders: 32 and 64 keys, 16, 64 and 256 rows
SIZES = [(1, 1), (7, 5), (64, 64), (65, 63), (16, 129)]
# fp32: sums of up to 300 products of order 1 in another order than float64's; fp16: q, k, v are
# exact in both, each result is rounded once (2^-11), and gradients may be of order 4
TOLERANCE = {np.float32: 2e-5, np.float16: 4e-3}
FORWARD = BACKWARD = ["naive", "shared", "warp", "tile"]


def qkvg(n_queries, n_keys, width=16, lead=(2, 3), dtype=np.float32, seed=0):
    """q, k, v and go as attention layers have them: (B, H, L, E) views of (B, L, H, E) memory."""
    rng = np.random.default_rng(seed)
    n_batch, n_heads = lead
    return [rng.standard_normal((n_batch, n, n_heads, width)).astype(dtype).swapaxes(1, 2)
            for n in (n_queries, n_keys, n_keys, n_queries)]


def thirds(n_batch, length, n_heads, width, dtype=np.float32):
    """q, k, v as views of one projection, (B, L, 3, H, E) in memory."""
    x = np.random.default_rng(3).standard_normal((n_batch, length, 3, n_heads, width)).astype(dtype)
    return [x[:, :, i].swapaxes(1, 2) for i in range(3)]


def check_forward(q, k, v, is_causal, rung, scale=0.3, atol=None):
    o, lse = attention_kernel.by_kernel(q, k, v, is_causal, scale, rung)
    wanted, wanted_lse = reference(q, k, v, is_causal, scale)
    np.testing.assert_allclose(o, wanted, rtol=0, atol=atol or TOLERANCE[q.dtype.type])
    # float32 also for fp16
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-6, atol=1e-5)
    assert o.dtype == q.dtype and o.swapaxes(1, 2).flags.c_contiguous  # merging heads is free


def check_backward(q, k, v, go, is_causal, rung, scale=0.3, atol=None):
    o, lse = attention_kernel.by_kernel(q, k, v, is_causal, scale)
    got = attention_kernel.by_kernel_backward(go, q, k, v, o, lse, is_causal, scale, rung)
    wanted = reference_backward(go, q, k, v, is_causal, scale)
    tol = TOLERANCE[q.dtype.type]
    for name, a, b in zip(("gq", "gk", "gv"), got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tol, atol=atol or 2 * tol, err_msg=name)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_queries, n_keys", SIZES)
@pytest.mark.parametrize("rung", FORWARD)
def test_every_rung_equals_the_formula(rung, n_queries, n_keys, is_causal):
    q, k, v, _ = qkvg(n_queries, n_keys)
    check_forward(q, k, v, is_causal, rung)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_queries, n_keys", SIZES)
@pytest.mark.parametrize("rung", BACKWARD)
def test_every_rung_has_the_gradient_of_the_formula(rung, n_queries, n_keys, is_causal):
    check_backward(*qkvg(n_queries, n_keys), is_causal, rung)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_queries, n_keys", [(257, 300), (300, 257), (512, 70)])
def test_groups_of_tiles_meet(n_queries, n_keys, is_causal):
    """Over 256 rows: several threads a head in forward, several parts of gq in backward."""
    q, k, v, go = qkvg(n_queries, n_keys, lead=(1, 2))
    check_forward(q, k, v, is_causal, "tile")
    check_backward(q, k, v, go, is_causal, "tile")


@pytest.mark.parametrize("rung, width", [("tile", 1), ("tile", 20), ("tile", 128), ("warp", 33)])
def test_any_width_up_to_128(rung, width):
    """Widths that fill no whole vector, no whole warp; 128 makes groups of two tiles."""
    q, k, v, go = qkvg(70, 150, width, lead=(1, 1))
    check_forward(q, k, v, True, rung, 1 / math.sqrt(width))
    check_backward(q, k, v, go, True, rung, 1 / math.sqrt(width))


@pytest.mark.parametrize("width", [33, 64, 128])
def test_the_tiles_fit_a_fibre(width, monkeypatch):
    """A thread of the CPU's rung holds up to 450 KiB of tiles, and a fibre's stack has room."""
    make = dispatch.kernel
    kinds = dict(form="fibre", order="descending")
    monkeypatch.setattr(dispatch, "kernel", lambda file, name, dtype, **defines: cuda.kernel(
        file, name, defines={"T": dispatch.C_TYPES[np.dtype(dtype)], **defines}, **kinds)
        if name.startswith("attention_tile") else make(file, name, dtype, **defines))
    q, k, v, go = qkvg(70, 300, width, lead=(1, 1))
    check_forward(q, k, v, True, "tile", 1 / math.sqrt(width))
    check_backward(q, k, v, go, True, "tile", 1 / math.sqrt(width))


@pytest.mark.parametrize("rung", FORWARD)
def test_half_is_computed_in_float(rung):
    q, k, v, go = qkvg(33, 65, dtype=np.float16)
    check_forward(q, k, v, True, rung)
    if rung in BACKWARD:
        check_backward(q, k, v, go, True, rung)


@pytest.mark.parametrize("n_queries, n_keys, width, is_causal", [
    (1, 1, 16, False), (65, 63, 16, False), (70, 130, 16, True), (7, 9, 33, True),
    (40, 70, 128, True),  # over 96: k and v stay in shared memory
])
def test_tensor_cores_equal_the_formula(n_queries, n_keys, width, is_causal):
    """Rows of 33 halves begin at no multiple of 16 bytes, and fill no fragment."""
    q, k, v, go = qkvg(n_queries, n_keys, width, dtype=np.float16)
    check_forward(q, k, v, is_causal, "mma", 1 / math.sqrt(width))
    check_backward(q, k, v, go, is_causal, "mma", 1 / math.sqrt(width))
    if width == 33:
        check_forward(*thirds(2, 20, 3, width, np.float16), is_causal, "mma", 0.1)


@pytest.mark.parametrize("rung", FORWARD)
def test_a_projection_is_read_through_its_strides(rung):
    q, k, v = thirds(2, 70, 3, 16)
    check_forward(q, k, v, True, rung)
    if rung in BACKWARD:
        check_backward(q, k, v, thirds(2, 70, 3, 16)[0], False, rung)


@pytest.fixture
def launches(monkeypatch):
    """"forward" or "backward" for each time that the kernels run."""
    seen = []

    def watch(name, function):
        run = getattr(attention_kernel, function)
        monkeypatch.setattr(attention_kernel, function,
                            lambda *args, **options: seen.append(name) or run(*args, **options))

    watch("forward", "by_kernel")
    watch("backward", "by_kernel_backward")
    return seen


def both(arrays, go, **options):
    """[[o, gq, gk, gv] with kernels, the same without]."""
    return [[o, *grads] for o, grads in with_and_without(F.scaled_dot_product_attention, arrays, go,
                                                         **options)]


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 2, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}])
def test_the_op_equals_the_op_without_kernels(lead, options, launches):
    rng = np.random.default_rng(1)
    *arrays, go = (rng.standard_normal((*lead, n, 16)).astype(np.float32) for n in (9, 13, 13, 9))
    for a, b in zip(*both(arrays, go, **options), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)  # both float32
    assert launches == ["forward", "backward"]


@pytest.mark.parametrize("view", ["transposed", "reversed", "every other", "broadcast"])
def test_any_view_of_memory(view, launches):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 3, 16, 16)).astype(np.float32)
    x = {"transposed": x.swapaxes(-1, -2), "reversed": x[::-1], "every other": x[:, :, ::2],
         "broadcast": np.broadcast_to(x[:1], x.shape)}[view]
    go = rng.standard_normal(x.shape).astype(np.float32)
    for a, b in zip(*both((x, x, x), go), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert launches == ["forward", "backward"]


def test_a_later_key_does_not_change_an_earlier_output():
    q, k, v, _ = qkvg(100, 100)
    before, _ = attention_kernel.by_kernel(q, k, v, True, 1.0)
    k[:, :, 40:] += 1
    v[:, :, 40:] = 1e38  # times a probability that is not exactly 0, it would be seen
    after, _ = attention_kernel.by_kernel(q, k, v, True, 1.0)
    np.testing.assert_array_equal(before[:, :, :40], after[:, :, :40])


@pytest.mark.parametrize("rung", FORWARD)
def test_large_scores_do_not_overflow(rung):
    q, k, v, go = qkvg(20, 70)
    # scores of some thousands: float32 knows them to 3e-4, which is P's relative error
    check_forward(100 * q, k, v, False, rung, 3.0, atol=2e-3)
    if rung in BACKWARD:
        o, lse = attention_kernel.by_kernel(100 * q, k, v, False, 3.0)
        grads = attention_kernel.by_kernel_backward(go, 100 * q, k, v, o, lse, False, 3.0, rung)
        assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("rung", BACKWARD)
def test_very_negative_scores_leave_no_trace_in_the_padding(rung):
    """lse of -200: a key past the end, whose score is 0, would get exp(200) = inf."""
    q, k, v, go = qkvg(20, 70)
    q, k = 5 + 0 * q, -10 + 0.1 * k
    check_forward(q, k, v, False, rung)
    # float32 knows such scores, and so P, to 2e-5; gq sums P times a k of 10
    check_backward(q, k, v, go, False, rung, atol=5e-4)


def test_nan_is_not_hidden():
    """Loss scaling finds an overflow by its NaN."""
    q, k, v, _ = qkvg(5, 70)
    q[0, 1, 3] = np.nan
    o, _ = attention_kernel.by_kernel(q, k, v, False, 1.0)
    assert np.isnan(o[0, 1, 3]).all() and np.isnan(o).sum() == 16


def test_threads_do_not_change_the_bits():
    q, k, v, go = qkvg(300, 600, lead=(2, 2))
    results = []
    for n in (1, 3):
        before = cuda.set_threads(n)
        o, lse = attention_kernel.by_kernel(q, k, v, False, 1.0)
        grads = attention_kernel.by_kernel_backward(go, q, k, v, o, lse, False, 1.0)
        results.append([o, lse, *grads])
        cuda.set_threads(before)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_scores_are_not_kept():
    x = [minidl.Tensor(a, requires_grad=True) * 1.0 for a in qkvg(100, 100)[:3]]
    y = F.scaled_dot_product_attention(*x, is_causal=True)
    kept = sum(a.nbytes for a in y.grad_fn.saved if a is not None)
    assert kept == sum(t.nbytes for t in x) + y.nbytes + 2 * 3 * 100 * 4  # lse: a number a row


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8)])
def test_nothing_to_do(shape):
    q, k = np.zeros(shape, np.float32), np.ones((*shape[:2], 4, 8), np.float32)
    (y, gq, gk, gv), _ = both((q, k, k), q)
    assert y.shape == gq.shape == shape and gk.shape == gv.shape == k.shape
    assert not gk.any() and not gv.any()


@pytest.mark.parametrize("ours", [True, False])
def test_the_op_knows_what_the_kernels_can_do(ours, launches):
    x = np.zeros((2, 3, 4, 8), np.float32)
    wide, none = np.zeros((2, 3, 4, 129), np.float32), x[:, :, :0]
    calls = {
        True: [((x, x, x), {}), ((x, x, x), dict(is_causal=True, scale=0.5)),
               ((x[..., :2, :], x, x), {}), ((x[0, 0], x[0, 0], x[0, 0]), {}),
               ((x, x, x), dict(attn_mask=np.ones((4, 4), bool), dropout_p=0.1))],
        False: [((x, x, x[..., :4]), {}), ((x[0], x, x), {}), ((x, x[:1], x[:1]), {}),
                ((wide,) * 3, {}), ((x, none, none), {})],
    }
    for arrays, options in calls[ours]:
        launches.clear()
        tensors = [minidl.Tensor(a, requires_grad=True) for a in arrays]
        F.scaled_dot_product_attention(*tensors, **options).sum().backward()
        assert launches == (["forward", "backward"] if ours else [])


@pytest.fixture
def reports(monkeypatch):
    """{kernel: report of the check form} of all launches, which run watched; nothing is found."""
    found = {}

    def watched(file, name, dtype, **defines):
        def launch(grid, block, args):
            defined = {"T": dispatch.C_TYPES[dtype], **defines}
            report = cuda.check(file, grid, block, args, name=name, defines=defined,
                                outputs=WRITTEN[name])
            assert not report.findings, report
            found[name] = report
        return launch

    monkeypatch.setattr(dispatch, "kernel", watched)
    return found


WRITTEN = {"attention_row_dot": ["out"], "attention_tile_row_dot": ["out"],
           "attention_tile_backward": ["gq", "gk", "gv"],
           **{f"attention_{rung}": ["o", "lse"] for rung in [*FORWARD, "mma"]},
           **{f"attention_grad_q_{rung}": ["gq"] for rung in [*BACKWARD, "mma"]},
           **{f"attention_grad_kv_{rung}": ["gk", "gv"] for rung in [*BACKWARD, "mma"]}}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_part_of_gq_sums_several_groups_of_keys(monkeypatch, parts, is_causal):
    """Five groups; of texts with more than PARTS groups each part has several."""
    monkeypatch.setattr(attention_kernel, "PARTS", parts)
    check_backward(*qkvg(1100, 1100, 5, lead=(1, 2)), is_causal, "tile", atol=1e-4)


def test_parts_of_gq_are_watched(reports, monkeypatch):
    monkeypatch.setattr(attention_kernel, "PARTS", 1)
    check_backward(*qkvg(3, 300, 5, lead=(1, 1)), False, "tile")
    assert "attention_tile_backward" in reports


def test_the_workspace_of_backward_grows_as_the_text(monkeypatch):
    """Not as its square, which a part of gq for each group of keys would."""
    monkeypatch.setattr(attention_kernel, "PARTS", 2)

    def workspace(length):
        q, k, v, go = qkvg(length, length, 8, lead=(1, 1))
        tensors = [minidl.Tensor(a, requires_grad=True) for a in (q, k, v)]
        with memory.record() as ledger:
            F.scaled_dot_product_attention(*tensors).backward(go)
        return ledger.most("workspace")

    short, long = workspace(1024), workspace(2048)  # 4 and 8 groups
    assert short >= 2 * 1024 * 8 * 4  # two parts of gq
    assert long <= 2.05 * short


@pytest.mark.parametrize("rung", FORWARD)
def test_watched_kernels_have_no_races(reports, rung):
    """Nor accesses out of bounds, nor elements left unwritten; the same bits in any order."""
    q, k, v, go = qkvg(19, 35, 5, lead=(1, 2))
    check_forward(q, k, v, True, rung)
    if rung in BACKWARD:
        check_backward(q, k, v, go, True, rung)


@pytest.mark.parametrize("rung, rows", [("naive", 1), ("shared", 64), ("warp", 16), ("tile", 256)])
def test_keys_come_from_memory_once_for_so_many_rows(reports, rung, rows):
    """What the header says a rung saves, counted."""
    L, S, E = 70, 10, 5
    q, k, v, _ = qkvg(L, S, E, lead=(1, 1))
    attention_kernel.by_kernel(q, k, v, False, 1.0, rung)
    ledger = reports[f"attention_{rung}"].ledger
    once = -(-L // rows) * S * E * 4
    assert ledger["v"].load_bytes == once
    assert ledger["k"].load_bytes == once * (2 if rung == "naive" else 1)


@pytest.mark.parametrize("rung, rows", [("naive", 1), ("shared", 64), ("warp", 16)])
def test_gradients_read_the_other_side_once_for_so_many_rows(reports, rung, rows):
    L, S, E = 70, 10, 5
    q, k, v, go = qkvg(L, S, E, lead=(1, 1))
    o, lse = attention_kernel.by_kernel(q, k, v, False, 1.0, "tile")
    attention_kernel.by_kernel_backward(go, q, k, v, o, lse, False, 1.0, rung)
    by_q, by_kv = (reports[f"attention_grad_{what}_{rung}"].ledger for what in ("q", "kv"))
    twice = {"naive": 2, "shared": 1, "warp": 1}[rung]  # for a score, then for the sum
    assert by_q["k"].load_bytes == twice * -(-L // rows) * S * E * 4
    assert by_q["v"].load_bytes == -(-L // rows) * S * E * 4
    assert by_kv["go"].load_bytes == twice * -(-S // rows) * L * E * 4
    assert by_kv["q"].load_bytes == -(-S // rows) * L * E * 4 * (1 if rung == "shared" else 2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", [(2, 1, 3, 32), (1, 65, 2, 32), (2, 257, 1, 32), (1, 300, 3, 72)])
def test_self_attention_of_a_projection_is_that_of_its_thirds(shape, dtype, is_causal):
    """Lengths on both sides of a tile and of a group of tiles, where gq comes in parts. Both ways
    the kernels do the same additions: the same bits, forward and backward."""
    n_batch, length, n_heads, width = shape
    rng = np.random.default_rng(0)
    data = rng.standard_normal((n_batch, length, 3 * n_heads * width)).astype(dtype)
    g = rng.standard_normal((n_batch, length, n_heads * width)).astype(dtype)
    qkv = minidl.Tensor(data, requires_grad=True)
    y = F.self_attention(qkv, n_heads, is_causal=is_causal)
    y.backward(g)
    parts = data.reshape(n_batch, length, 3, n_heads, width).transpose(2, 0, 3, 1, 4)
    q, k, v = (minidl.Tensor(a, requires_grad=True) for a in parts)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    o.backward(g.reshape(n_batch, length, n_heads, width).swapaxes(1, 2))
    np.testing.assert_array_equal(y.array, o.array.swapaxes(1, 2).reshape(g.shape))
    got = qkv.grad.array.reshape(n_batch, length, 3, n_heads, width).transpose(2, 0, 3, 1, 4)
    for a, b in zip(got, (q.grad, k.grad, v.grad), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 3, 32), (1, 65, 2, 20), (0, 5, 2, 8), (2, 0, 2, 8)])
def test_self_attention_equals_the_op_without_kernels(shape, is_causal):
    n_batch, length, n_heads, width = shape
    rng = np.random.default_rng(4)
    qkv = rng.standard_normal((n_batch, length, 3 * n_heads * width)).astype("f4")
    g = rng.standard_normal((n_batch, length, n_heads * width)).astype("f4")
    (y, (gx,)), (plain_y, (plain_gx,)) = with_and_without(
        lambda x: F.self_attention(x, n_heads, is_causal=is_causal), [qkv], g)
    np.testing.assert_allclose(y, plain_y, rtol=0, atol=1e-5)
    np.testing.assert_allclose(gx, plain_gx, rtol=0, atol=1e-5)


def test_self_attention_with_dropout_runs_the_kernels(launches):
    qkv = minidl.Tensor(np.ones((1, 4, 12), "f4"), requires_grad=True)
    F.self_attention(qkv, 2).sum().backward()
    assert launches == ["forward", "backward"]
    F.self_attention(qkv, 2, dropout_p=0.5).sum().backward()
    assert launches == ["forward", "backward"] * 2
