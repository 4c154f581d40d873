"""Properties every op has. The rows are in samples.py, samples_nn.py, samples_extra.py and
samples_composed.py."""

import importlib.util

import numpy as np
import pytest

import minidl
from minidl import backend, ops
from minidl.gradcheck import gradcheck
from tests.devices import host, put
from tests.ops import samples, samples_composed, samples_extra

torch = samples.torch
ROWS = samples.ROWS + samples_extra.ROWS + samples_composed.ROWS
HAS_NN_ROWS = importlib.util.find_spec("tests.ops.samples_nn") is not None
if HAS_NN_ROWS:
    from tests.ops import samples_nn

    ROWS += [samples.Row(*r) for r in samples_nn.ROWS]

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
EACH_ROW = [pytest.param(r, id=r.name) for r in ROWS]

# gradients pass through none of these
NOT_DIFFERENTIABLE = set("argmax argmin any all int long bool".split()) | {
    name for module, _, names in ops.TABLE if module in (ops.logic, ops.search)
    for name in names.split()} | {
    "argsort", "argwhere", "bernoulli", "equal", "is_floating_point", "multinomial"}
# float32 casts cannot be seen by float64 differences, `cuda` needs one: tests/ops/test_cast.py
TESTED_ELSEWHERE = {"float", "half", "cuda", "self_attention",
                    "dropout2d", "gumbel_softmax",  # random: tests/ops/extra/test_composed.py
                    "rnn_sequence", "lstm_sequence", "gru_sequence"}  # tests/nn/test_recurrent.py


def on_each_input(kinks=False):
    """Decorator: a test for each row, of `check(row, inputs)` on all of its inputs, or on those at
    kinks too. An error says on which."""

    def decorate(check):
        def test(row):
            named = [("input", row.inputs), ("kink", row.kinks if kinks else [])]
            for name, of_row in named:
                for i, inputs in enumerate(of_row):
                    try:
                        check(row, inputs)
                    except Exception as error:
                        error.add_note(f"{row.name}, {name} {i}")
                        raise

        test.__name__, test.__doc__, test.__module__ = (
            check.__name__, check.__doc__, check.__module__)
        return pytest.mark.parametrize("row", EACH_ROW)(test)

    return decorate


def through_all_rows(check):
    """Decorator: one test of `check(row)` on every row, where a row takes less time than pytest
    does for a test. An error says on which."""

    def test():
        for row in ROWS:
            try:
                check(row)
            except Exception as error:
                error.add_note(row.name)
                raise

    test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
    return test


def is_float(x):
    return getattr(getattr(x, "dtype", None), "kind", None) == "f"


def as_tuple(y):
    return tuple(y) if isinstance(y, (tuple, list)) else (y,)


def cotangents(ys):
    """One random array per floating result, drawn alike for both libraries."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal(tuple(y.shape)) for y in ys]


def run_minidl(row, arrays):
    """(results, gradients of the floating inputs) as arrays."""
    xs = [minidl.Tensor(a, requires_grad=is_float(a)) if hasattr(a, "ndim") else a for a in arrays]
    ys = as_tuple(row.fn(*xs))
    pairs = [(y, put(c.astype(y.dtype), y.device))
             for y, c in zip(ys, cotangents(ys)) if y.requires_grad]
    minidl.backward.walk([y for y, _ in pairs], [c for _, c in pairs])
    gradients = [backend.array_of(x.grad) for x in xs if getattr(x, "requires_grad", False)]
    return [y.array for y in ys], gradients


def run_torch(row, arrays):
    xs = [torch.tensor(a.copy(), requires_grad=is_float(a)) if isinstance(a, np.ndarray) else a
          for a in arrays]
    ys = as_tuple(row.torch_fn(*xs))
    pairs = [(y, torch.tensor(c, dtype=y.dtype))
             for y, c in zip(ys, cotangents(ys)) if y.requires_grad]
    torch.autograd.backward([y for y, _ in pairs], [c for _, c in pairs])
    floats = [x for x in xs if getattr(x, "requires_grad", False)]
    return [y.detach().numpy() for y in ys], [
        None if x.grad is None else x.grad.numpy() for x in floats]


def assert_close(got, wanted, tolerance):
    """Shapes and dtypes equal; differences below `tolerance` of the largest finite element or 1."""
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = max(1.0, float(finite.max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale)


def cast(arrays, dtype):
    return [a.astype(dtype) if is_float(a) else a for a in arrays]


@on_each_input()
def test_gradient_equals_central_differences(row, inputs):
    # h = 6e-6 errs by h^2 f''' and by eps / h, 1e-10 to 1e-9 of values up to 10
    gradcheck(row.fn, *[_tensor_unless_float(a) for a in inputs], atol=2e-8, rtol=1e-6)


def _tensor_unless_float(a):
    return minidl.Tensor(a) if isinstance(a, np.ndarray) and not is_float(a) else a


@needs_torch
@pytest.mark.filterwarnings("ignore:(var|std)\\(\\).*degrees of freedom")  # PyTorch's, for nan
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@on_each_input(kinks=True)
def test_values_and_gradients_equal_torch(row, inputs):
    # 1e-5: float32 results of a dozen roundings of 6e-8, sums of up to a hundred terms among them
    for dtype, tolerance in (("f8", 1e-12), ("f4", 1e-5)):
        arrays = cast(inputs, dtype)
        wanted_ys, wanted_gradients = run_torch(row, arrays)
        for kernels in (True, False):
            with minidl.use_fused(kernels):
                ys, gradients = run_minidl(row, arrays)
            assert len(ys) == len(wanted_ys)
            for y, wanted in zip(ys, wanted_ys):
                assert_close(y, wanted, tolerance)
            for gx, wanted in zip(gradients, wanted_gradients):
                if gx is None or wanted is None:  # no path: None here, None or zeros there
                    assert gx is None or not gx.any()
                    assert wanted is None or not wanted.any()
                else:
                    assert_close(gx, wanted, tolerance)


@needs_torch
@pytest.mark.parametrize("row", EACH_ROW)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_fp16_values_equal_torch(row):
    inputs = cast(row.inputs[0], "f2")
    xs = [torch.tensor(a.copy()) if isinstance(a, np.ndarray) else a for a in inputs]
    try:
        wanted = as_tuple(row.torch_fn(*xs))
    except RuntimeError as error:
        pytest.skip(f"PyTorch has no fp16 for this on the CPU: {str(error)[:60]}")
    for kernels in (True, False):
        with minidl.use_fused(kernels):
            ys, gradients = run_minidl(row, inputs)
        for y, w in zip(ys, wanted):
            assert_close(y, w.numpy(), 4 * 2.0**-11)  # a few roundings to 11 bits
        for gx, a in zip(gradients, [a for a in inputs if is_float(a)]):
            assert gx is None or (gx.dtype == np.float16 and gx.shape == a.shape)


def with_ugly_strides(a):
    """Equal elements, behind a negative stride of two elements and transposed memory order."""
    if not isinstance(a, np.ndarray) or a.ndim == 0:
        return a
    memory = np.zeros((2 * a.shape[-1], *a.shape[:-1]), a.dtype)
    view = np.moveaxis(memory, 0, -1)[..., ::-2]
    view[...] = a
    return view


@through_all_rows
def test_strides_do_not_change_results(row):
    if row.name.startswith("view"):
        return
    ugly = [with_ugly_strides(a) for a in row.inputs[0]]
    for got, wanted in zip(run_minidl(row, ugly), run_minidl(row, row.inputs[0])):
        for a, b in zip(got, wanted):
            if b is not None:
                assert_close(a, b, 1e-13)  # sums may run in another order


@through_all_rows
def test_inputs_are_left_as_they_were(row):
    inputs = [a.copy() if isinstance(a, np.ndarray) else a for a in row.inputs[0]]
    run_minidl(row, inputs)
    for a, before in zip(inputs, row.inputs[0]):
        np.testing.assert_array_equal(a, before)


@through_all_rows
def test_backward_does_not_write_into_the_gradient_it_is_given(row):
    # another node may hold the same array
    xs = [minidl.Tensor(a, requires_grad=is_float(a)) if isinstance(a, np.ndarray) else a
          for a in row.inputs[0]]
    for y in as_tuple(row.fn(*xs)):
        if y.requires_grad:
            gy = np.ones(y.shape)
            gy.flags.writeable = False
            slots = [gy if i == y.slot else np.zeros(shape, dtype)
                     for i, (shape, dtype) in enumerate(y.grad_fn.output_meta)]
            y.grad_fn.backward(*slots)


@through_all_rows
def test_no_graph_under_no_grad(row):
    xs = [minidl.Tensor(a, requires_grad=is_float(a)) if isinstance(a, np.ndarray) else a
          for a in row.inputs[0]]
    with minidl.no_grad():
        ys = as_tuple(row.fn(*xs))
    assert all(y.grad_fn is None and not y.requires_grad for y in ys if y is not xs[0])


def test_every_differentiable_op_has_a_row():
    named = {r.name.split()[0] for r in ROWS}
    no_ops = {ops.inplace, ops.convert, ops.in_place_forms}  # tests/test_tensor.py, ops/extra/
    own = {ops.elementwise, ops.select, ops.activations, ops.reduce, ops.extreme, ops.shape,
           ops.index, ops.cast}
    wanted = {name for module, _, names in ops.TABLE for name in names.split()
              if module not in no_ops and (HAS_NN_ROWS or module in own)}
    assert wanted - named - NOT_DIFFERENTIABLE - TESTED_ELSEWHERE == set()


def test_every_op_here_meets_a_tensor_without_elements():
    names = {r.name.split()[0] for r in samples.ROWS}
    empty = {r.name.split()[0] for r in samples.ROWS for inputs in r.inputs + r.kinks
             if any(getattr(a, "size", 1) == 0 for a in inputs)}
    # T is transpose's other name; broadcast_to's row makes the empty tensor
    assert names - empty <= {"T", "broadcast_to"}


# with kernels: other orders of sums, other instructions for e^x; in fp16 roundings to 11 bits
@pytest.mark.gpu
@pytest.mark.parametrize("dtype, kernels, tolerance", [
    ("f8", False, 1e-10), ("f4", True, 1e-5), ("f2", True, 8 * 2.0**-11)])
@pytest.mark.parametrize("row", EACH_ROW)
def test_cuda_gives_the_cpu_s_values_and_gradients(row, dtype, kernels, tolerance):
    # Kinks of some ops lie beyond float16: both sides have the same infs and NaNs, and NumPy warns.
    errors = dict.fromkeys(("over", "invalid", "divide"), "ignore") if dtype == "f2" else {}
    for inputs in row.inputs + row.kinks:
        inputs = cast(inputs, dtype)
        with minidl.use_fused(kernels), np.errstate(**errors):
            here, there = run_minidl(row, inputs), run_minidl(row, put(inputs, "cuda"))
        for a, b in zip(here[0] + here[1], there[0] + there[1], strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert_close(host(b), a, tolerance)


# -- what is changed before backward


def gradients_when(fn, arrays, changed):
    """The gradients of fn's inputs, where tensor number `changed` was overwritten before backward:
    of its inputs, then of its results (None: none is). "refused" if backward says so."""
    minidl.manual_seed(0)
    leaves = [minidl.Tensor(a.copy(), a.dtype.kind == "f") if isinstance(a, np.ndarray) else a
              for a in arrays]
    xs = [x * 1 if getattr(x, "requires_grad", False) else x for x in leaves]
    ys = as_tuple(fn(*xs))
    weights = cotangents(ys)
    tensors = [x for x in [*xs, *ys] if isinstance(x, minidl.Tensor)]
    if changed is not None and getattr(tensors[changed].array.flags, "writeable", True):
        seen = tensors[changed].detach()
        seen.copy_(seen.logical_not() if seen.dtype == bool else 0)
    roots = [(y, w) for y, w in zip(ys, weights, strict=True) if y.requires_grad]
    try:
        minidl.backward.walk([y for y, _ in roots], [w for _, w in roots])
    except RuntimeError as error:
        assert "changed in place" in str(error)
        return "refused", len(tensors)
    return [backend.array_of(x.grad) for x in leaves if getattr(x, "requires_grad", False)], len(
        tensors)


@on_each_input(kinks=True)
def test_what_backward_needs_cannot_change_unseen(row, inputs):
    """Whichever input or result is overwritten: the gradients stay the same, or there is an
    error."""
    wanted, n = gradients_when(row.fn, inputs, None)
    for i in range(n):
        got, _ = gradients_when(row.fn, inputs, i)
        if got != "refused":
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(g, w, err_msg=f"tensor {i} was changed")
