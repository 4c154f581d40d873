"""Kernel and NumPy are two bodies of one Function: every form of a call takes the same way, both
save the same arrays, and what one way made in forward the other can differentiate."""

import inspect
import re
import tracemalloc

import numpy as np
import pytest

import minidl
from minidl import ops, random
from minidl.cuda import dispatch
from minidl.cuda.run import Kernel
from minidl.forward import op_name
from minidl.function import Function
from minidl.nn import functional as F
from minidl.ops import attention, linear
from minidl.precision import amp
from minidl.tensor import Tensor

pytestmark = pytest.mark.usefixtures("needs_compiler")

X, W, IDS = (6, 7), (7,), np.array([[2, 0, 2], [1, 4, 2]])
HEADS = (2, 3, 5, 8)  # (B, H, L, E)
IMAGES = (2, 3, 6, 7)
CLASSES = np.array([3, -100, 0, 6, -100, 2])


def g():
    return random.Generator(seed=5)


# op: (shapes of its inputs, the forms of one and the same call)
FORMS = {
    "gelu": ([X], [
        lambda x: F.gelu(x),
        lambda x: F.gelu(x, "none"),
        lambda x: F.gelu(input=x, approximate="none")]),
    "dropout": ([X], [
        lambda x: F.dropout(x, 0.3, True, generator=g()),
        lambda x: F.dropout(x, 0.3, generator=g()),
        lambda x: F.dropout(input=x, p=0.3, training=True, generator=g())]),
    "softmax": ([X], [
        lambda x: F.softmax(x, -1),
        lambda x: F.softmax(x, 1),
        lambda x: F.softmax(input=x, dim=-1),
        lambda x: x.softmax(-1),
        lambda x: x.softmax(dim=1),
        lambda x: minidl.softmax(x, dim=-1, dtype=None)]),
    "log_softmax": ([X], [
        lambda x: F.log_softmax(x, -1),
        lambda x: F.log_softmax(input=x, dim=-1),
        lambda x: x.log_softmax(1),
        lambda x: minidl.log_softmax(x, dim=-1)]),
    "layer_norm": ([X, W, W], [
        lambda x, w, b: F.layer_norm(x, 7, w, b),
        lambda x, w, b: F.layer_norm(x, [7], w, b, 1e-5),
        lambda x, w, b: F.layer_norm(input=x, normalized_shape=(7,), weight=w, bias=b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x, (7,), bias=b, weight=w)]),
    "rms_norm": ([X, W], [
        lambda x, w: F.rms_norm(x, (7,), w),
        lambda x, w: F.rms_norm(input=x, normalized_shape=7, weight=w, eps=None)]),
    "cross_entropy": ([X], [
        lambda x: F.cross_entropy(x, CLASSES),
        lambda x: F.cross_entropy(x, CLASSES, None),
        lambda x: F.cross_entropy(x, Tensor(CLASSES), reduction="mean"),
        lambda x: F.cross_entropy(input=x, target=CLASSES),
        lambda x: F.cross_entropy(target=CLASSES, input=x, weight=None, ignore_index=-100)]),
    "embedding": ([X], [
        lambda w: F.embedding(IDS, w),
        lambda w: F.embedding(IDS, weight=w),
        lambda w: F.embedding(Tensor(IDS), w, None),
        lambda w: F.embedding(input=IDS.astype(np.int32), weight=w, padding_idx=None)]),
    "linear": ([X, (4, 7), (4,)], [
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: F.linear(x, w, bias=b),
        lambda x, w, b: F.linear(input=x, weight=w, bias=b)]),
    "relu": ([X], [
        lambda x: F.relu(x),
        lambda x: F.relu(input=x),
        lambda x: x.relu(),
        lambda x: minidl.relu(x)]),
    "batch_norm": ([IMAGES, (3,), (3,)], [
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: F.batch_norm(x, None, None, weight=w, bias=b, training=True, eps=1e-5),
        lambda x, w, b: F.batch_norm(input=x, running_mean=None, running_var=None, weight=w,
                                     bias=b, training=True, momentum=0.1)]),
    "max_pool2d": ([IMAGES], [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(x, (2, 2), 2),
        lambda x: F.max_pool2d(input=x, kernel_size=2, stride=None, padding=0)]),
    "avg_pool2d": ([IMAGES], [
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(input=x, kernel_size=(2, 2), stride=None)]),
    "conv2d": ([IMAGES, (4, 3, 3, 3), (4,)], [
        lambda x, w, b: F.conv2d(x, w, b, 1, 1),
        lambda x, w, b: F.conv2d(x, w, bias=b, padding=(1, 1)),
        lambda x, w, b: F.conv2d(input=x, weight=w, bias=b, stride=(1, 1), padding=1)]),
    "conv_transpose2d": ([IMAGES, (3, 4, 3, 2), (4,)], [
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2),
        lambda x, w, b: F.conv_transpose2d(input=x, weight=w, bias=b, stride=(2, 2))]),
    "scaled_dot_product_attention": ([HEADS] * 3, [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=None,
                                                       dropout_p=0.0, is_causal=True, scale=None)]),
    "self_attention": ([(2, 5, 24)], [
        lambda x: F.self_attention(x, 2, True),
        lambda x: F.self_attention(qkv=x, n_heads=2, is_causal=True, dropout_p=0.0)]),
}
# one rounding of the result, and of what was saved for backward; sums over six rows
CLOSE = {"f4": dict(rtol=1e-5, atol=1e-5), "f2": dict(rtol=4e-3, atol=8e-3)}


@pytest.fixture(autouse=True)
def _every_product_is_ours(monkeypatch):
    monkeypatch.setattr(linear, "BEATS_BLAS", True)
    monkeypatch.setattr(linear, "MIN_WORK", 0)


@pytest.fixture
def asked(monkeypatch):
    """[(may the kernel run, the arrays' floating dtypes)] for each time that an op asks."""
    seen, pick = [], dispatch.pick

    def watched(kernel, reference, *arrays):
        found = {a.dtype.str[1:] for a in arrays if a.dtype.kind == "f"}
        seen.append((pick(True, False, *arrays), found))
        return kernel if seen[-1][0] else reference

    for module in vars(ops).values():
        if hasattr(module, "pick"):
            monkeypatch.setattr(module, "pick", watched)
    monkeypatch.setattr(attention, "usable", lambda *arrays: watched(True, False, *arrays))
    return seen


@pytest.fixture
def launched(monkeypatch):
    """The name of each kernel that is launched."""
    seen, launch = [], Kernel.__call__

    def watched(kernel, *args, **options):
        seen.append(kernel.name)
        return launch(kernel, *args, **options)

    monkeypatch.setattr(Kernel, "__call__", watched)
    return seen


def inputs(op, dtype="f4"):
    rng = np.random.default_rng(1)
    return [Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
            for shape in FORMS[op][0]]


def run(form, tensors, forward=True, backward=True):
    """(saved arrays, output and gradients) with the kernels on or off in each of the two."""
    with minidl.use_fused(forward):
        y = form(*tensors)
    saved = y.grad_fn.saved
    gy = np.random.default_rng(2).standard_normal(y.shape).astype(y.dtype)
    with minidl.use_fused(backward):
        y.backward(gy)
    return saved, [y.array, *(t.grad.array for t in tensors)]


def test_the_forms_are_of_every_op_with_a_kernel():
    """Of the operator table: those whose Function, or what it derives from, asks dispatch.py."""
    asking = set()
    for module, _, _ in ops.TABLE:
        for cls in vars(module).values():
            if inspect.isclass(cls) and issubclass(cls, Function) and cls is not Function:
                bodies = [inspect.getsource(c) for c in cls.__mro__[:-1] if c is not Function]
                if any(re.search(r"\b(pick|usable|by)\(", body) for body in bodies):
                    asking.add(op_name(cls))
    assert asking == set(FORMS)


@pytest.mark.parametrize("op", FORMS)
def test_a_name_is_one_function_wherever_it_is_found(op):
    tables = [ops.namespace(home) for home in "fmt"]
    found = [table[op] for table in tables if op in table]
    there = [getattr(place, op) for place in (F, Tensor, minidl) if hasattr(place, op)]
    assert found and len(there) == len(found) and all(f is found[0] for f in found + there)


@pytest.mark.parametrize("op", FORMS)
def test_every_form_of_a_call_runs_the_kernels_and_gives_the_same_bits(op, asked, launched):
    first = None
    for form in FORMS[op][1]:
        asked.clear()
        launched.clear()
        _, results = run(form, inputs(op))
        assert launched and asked and all(may for may, _ in asked)
        first = first or (asked[:], launched[:], results)
        assert (asked, launched) == first[:2]
        for a, b in zip(results, first[2], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", FORMS)
def test_every_form_of_a_call_runs_numpy_where_kernels_are_off(op, asked, launched):
    for form in FORMS[op][1]:
        run(form, inputs(op), False, False)
    assert asked and not any(may for may, _ in asked) and launched == []


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("op", FORMS)
def test_both_ways_save_the_same_arrays(op, dtype):
    form = FORMS[op][1][0]
    saved, plain = (run(form, inputs(op, dtype), on)[0] for on in (True, False))
    for a, b in zip(saved, plain, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.shape, a.dtype, a.nbytes) == (b.shape, b.dtype, b.nbytes)
            if op != "cross_entropy" or a.shape != CLASSES.shape:
                np.testing.assert_allclose(a, b, **CLOSE[dtype])
            else:  # the kernel does not read an ignored row, whose lse nobody wants
                np.testing.assert_allclose(a[CLASSES >= 0], b[CLASSES >= 0], **CLOSE[dtype])


@pytest.mark.parametrize("forward, backward", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("op", FORMS)
def test_what_one_way_saved_the_other_can_use(op, dtype, forward, backward):
    form = FORMS[op][1][0]
    _, want = run(form, inputs(op, dtype))
    _, got = run(form, inputs(op, dtype), forward, backward)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype == np.dtype(dtype) and a.shape == b.shape
        np.testing.assert_allclose(a, b, **CLOSE[dtype])


# op, dtypes of its inputs, the dtype of the arrays when the op decides
UNDER_AUTOCAST = [
    ("linear", "f4 f4 f4", "f2"), ("linear", "f2 f4 f4", "f2"),
    ("scaled_dot_product_attention", "f4 f4 f4", "f2"),
    ("scaled_dot_product_attention", "f2 f4 f2", "f2"), ("self_attention", "f4", "f2"),
    ("softmax", "f2", "f4"), ("cross_entropy", "f2", "f4"), ("layer_norm", "f2 f4 f4", "f4"),
    ("rms_norm", "f2 f4", "f4"), ("gelu", "f2", "f2"), ("gelu", "f4", "f4"),
]


@pytest.mark.parametrize("op, dtypes, wanted", UNDER_AUTOCAST)
def test_under_autocast_an_op_decides_after_the_cast(op, dtypes, wanted, asked):
    """Inputs of two dtypes become one, and then the kernel can run."""
    arrays = [Tensor(t.array.astype(d), requires_grad=True)
              for t, d in zip(inputs(op), dtypes.split(), strict=True)]
    with amp.autocast():
        y = FORMS[op][1][0](*arrays)
    assert asked == [(True, {wanted})]
    y.sum().backward()
    assert all(may for may, _ in asked) and all(t.grad.dtype == t.dtype for t in arrays)


def test_bfloat16_is_widened_before_the_op_decides(asked):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16")
    x = minidl.ones(5, 7, dtype=minidl.bfloat16, requires_grad=True)
    y = F.gelu(x)
    y.sum().backward()
    assert asked == [(True, {"f4"})] * 2 and y.dtype == x.grad.dtype == minidl.bfloat16


def test_double_precision_and_two_dtypes_are_numpys(asked):
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    F.softmax(x, -1).sum().backward()
    assert asked == [(False, {"f8"})] * 2
    asked.clear()
    F.layer_norm(Tensor(np.ones((3, 4), "f4")), 4, Tensor(np.ones(4, "f2")))
    assert asked == [(False, {"f2", "f4"})]


@pytest.mark.parametrize("kernels", [True, False])
def test_looking_up_rows_of_a_bfloat16_table_makes_no_wide_copy_of_it(kernels):
    """32 rows of 512 bytes, of a table of 10 MB, which is 20 MB in float32."""
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16")
    table = minidl.zeros(20480, 256, dtype=minidl.bfloat16, requires_grad=True)
    assert table.nbytes == 10 * 2**20
    ids = np.arange(32)
    with minidl.use_fused(kernels):
        F.embedding(ids, table)  # what is imported and compiled once is not meant
        tracemalloc.start()
        try:
            y = F.embedding(ids, table)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert y.dtype == minidl.bfloat16 and y.nbytes == 32 * 512
    assert peak < 2**17  # measured: 17 KB
