"""What ops need beside their inputs and results: formula and counter are equal."""

import tracemalloc

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim
from minidl.memory.predict import predict
from minidl.memory.workspace import workspace
from minidl.nn import functional as F
from minidl.precision import amp
from tests.devices import put

# input, weight, options: no padding, strides, groups, dilation; 1 x 1, whose columns are the image
# itself, and 1 x 1 over a stride, whose are not; a kernel as large as the image; a long batch
CASES = {
    "3x3": ((3, 4, 9, 8), (6, 4, 3, 3), {}),
    "padded": ((3, 4, 9, 8), (6, 4, 3, 3), dict(padding=1)),
    "strides": ((2, 4, 11, 9), (2, 4, 3, 2), dict(padding=(2, 1), stride=(2, 3))),
    "groups": ((5, 6, 7, 7), (4, 3, 3, 3), dict(groups=2, dilation=2, padding=2)),
    "same": ((2, 4, 9, 8), (6, 4, 4, 2), dict(padding="same")),
    "1x1": ((3, 8, 6, 6), (5, 8, 1, 1), {}),
    "1x1 padded": ((3, 8, 6, 6), (5, 8, 1, 1), dict(padding=1)),
    "1x1 stride": ((3, 8, 6, 6), (5, 8, 1, 1), dict(stride=2)),
    "whole image": ((3, 8, 5, 4), (5, 8, 5, 4), {}),
    "blocks": ((37, 8, 20, 20), (16, 8, 3, 3), dict(padding=1)),
}
TRANSPOSED = {
    "3x3": ((3, 4, 9, 8), (4, 6, 3, 3), {}),
    "strides": ((3, 4, 5, 5), (4, 3, 3, 2), dict(padding=1, stride=2, output_padding=1, groups=2)),
    "1x1": ((3, 8, 6, 6), (8, 5, 1, 1), {}),
    "blocks": ((37, 8, 16, 16), (8, 16, 3, 3), dict(padding=1)),
}


def counted(op, case, dtype, needs):
    """(the ledger's most bytes, the formula's) of forward and backward."""
    x_shape, w_shape, options = case
    rng = np.random.default_rng(0)
    x, w = (minidl.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=need)
            for shape, need in zip((x_shape, w_shape), needs))
    b = minidl.tensor(np.ones(w_shape[0] if op is F.conv2d else w_shape[1] * options.get(
        "groups", 1), dtype), requires_grad=True)
    with memory.record() as ledger:
        y = op(x, w, b, **options)
        formula = workspace(y)
        # not sum().backward(): its gradient is one number in many places, whose patches are views
        y.backward(np.full(y.shape, 1e-3, dtype))
    assert ledger.now["workspace"] == 0, "all of it is freed"
    return ledger.most("workspace"), formula


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_the_formula_of_convolution_equals_the_counter(name, dtype):
    for needs in ((True, True), (False, True), (True, False), (False, False)):
        got, formula = counted(F.conv2d, CASES[name], dtype, needs)
        assert got == formula, (needs, got, formula)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_the_formula_of_transposed_convolution_equals_the_counter(name, dtype):
    for needs in ((True, True), (False, True), (True, False)):
        got, formula = counted(F.conv_transpose2d, TRANSPOSED[name], dtype, needs)
        assert got == formula, (needs, got, formula)


@pytest.mark.parametrize("kernels, batches", [(False, (12, 48)), (True, (100, 400))])
def test_blocks_keep_it_small_whatever_the_batch(kernels, batches):
    with minidl.use_fused(kernels):
        few, many = (counted(F.conv2d, ((n, 8, 20, 20), (16, 8, 3, 3), {}), np.float32,
                             (True, True)) for n in batches)
    assert few == many


def counted_of(op, *inputs, **options):
    """(the ledger's most bytes, the formula's) of forward and backward of op(*inputs)."""
    with memory.record() as ledger:
        y = op(*inputs, **options)
        formula = workspace(y)
        y.backward(np.full(y.shape, 1e-3, y.dtype))
    assert ledger.now["workspace"] == 0, "all of it is freed"
    return ledger.most("workspace"), formula


def leaf(*shape, dtype=np.float32, needs=True, seed=0):
    array = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return minidl.tensor(array, requires_grad=needs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("kernels", [True, False])
def test_the_formula_of_a_linear_layer_equals_the_counter(dtype, kernels):
    with minidl.use_fused(kernels):  # shapes below and above the size from which a kernel runs
        for shape, out in ((5, 7, 12), 9), ((3, 130, 100), 121), ((257, 160), 200):
            for needs in ((True, True), (False, True), (True, False)):
                x = leaf(*shape, dtype=dtype, needs=needs[0])
                w = leaf(out, shape[-1], dtype=dtype, needs=needs[1])
                b = leaf(out, dtype=dtype)
                got, formula = counted_of(F.linear, x, w, b)
                assert got == formula, (shape, needs, got, formula)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("kernels", [True, False])
def test_the_formula_of_cross_entropy_equals_the_counter(dtype, kernels):
    target = np.arange(6) % 5
    with minidl.use_fused(kernels):
        for weight in None, minidl.tensor(np.ones(5, dtype)):
            for smoothing in 0.0, 0.1:
                x = leaf(6, 5, dtype=dtype)
                got, formula = counted_of(F.cross_entropy, x, minidl.tensor(target), weight,
                                          label_smoothing=smoothing)
                assert got == formula, (weight, smoothing, got, formula)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.25},
                                     {"is_causal": True, "dropout_p": 0.25}])
def test_the_formula_of_attention_equals_the_counter(dtype, kernels, options):
    with minidl.use_fused(kernels):
        # one group of keys and three; blocks that are not full; keys over which no kernel runs
        for heads, length, n_keys, e, ev in ((2, 70, 70, 8, 8), (3, 64, 600, 16, 16),
                                             (1, 100, 40, 8, 12)):
            q, k, v = (leaf(2, heads, n, width, dtype=dtype, seed=i) for i, (n, width) in
                       enumerate(((length, e), (n_keys, e), (n_keys, ev))))
            got, formula = counted_of(F.scaled_dot_product_attention, q, k, v, **options)
            assert got == formula, (heads, length, n_keys, got, formula)
        for length in 70, 300:
            qkv = leaf(2, length, 3 * 24, dtype=dtype)
            got, formula = counted_of(F.self_attention, qkv, 3, **options)
            assert got == formula, (length, got, formula)


def test_the_formula_of_attention_over_many_keys_equals_the_counter(needs_compiler):
    """The gradient of q has at most 16 parts."""
    for n_keys in 4096, 4097, 4400:
        q, k, v = (leaf(1, 2, n, 8, seed=i) for i, n in enumerate((10, n_keys, n_keys)))
        got, formula = counted_of(F.scaled_dot_product_attention, q, k, v)
        assert got == formula > 16 * q.nbytes, (n_keys, got, formula)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_formula_of_attention_on_device_arrays_equals_the_counter(dtype):
    """Apart: only a projection's gradient is made in parts and then put together."""
    for length, n_keys in (70, 70), (20, 90):
        q, k, v = (there(leaf(2, 2, n, 8, dtype=dtype, seed=i))
                   for i, n in enumerate((length, n_keys, n_keys)))
        got, formula = counted_of(F.scaled_dot_product_attention, q, k, v)
        assert got == formula, (length, got, formula)
    got, formula = counted_of(F.self_attention, there(leaf(2, 70, 3 * 24, dtype=dtype)), 3)
    assert got == formula > 0, (got, formula)


def there(x):
    """The tensor as a leaf on the device."""
    return minidl.Tensor(put(x.array, "cuda"), requires_grad=True)


def cnn():
    minidl.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(256, 10))


def images(rows):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((rows, 3, 16, 16), dtype=np.float32), rng.integers(0, 10, rows))


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_the_prediction_from_two_rows_equals_the_counter_of_a_step(level):
    model, batch = cnn(), images(33)
    predicted = predict(model, batch, lambda m, x, y: F.cross_entropy(m(x), y), level, "sgd")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, scaler = amp.initialize(model, optimizer, level)
    with memory.record(model, optimizer) as ledger:
        x, y = (minidl.tensor(array) for array in batch)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
    assert ledger.most("workspace") == predicted["workspace"] > 0
    assert predicted["total"] == sum(n for kind, n in predicted.items() if kind != "total")


def test_the_recorded_peak_of_a_convolution_is_what_python_allocates():
    rng = np.random.default_rng(0)
    x = minidl.tensor(rng.standard_normal((16, 8, 32, 32), dtype=np.float32), requires_grad=True)
    w = minidl.tensor(rng.standard_normal((16, 8, 3, 3), dtype=np.float32), requires_grad=True)

    def step():
        x.grad = w.grad = None
        F.conv2d(x, w, padding=1).sum().backward()

    step()
    x.grad = w.grad = None
    with memory.record() as ledger:
        memory.note(x.array, "inputs")
        memory.note(w.array, "inputs")
        step()
    x.grad = w.grad = None
    tracemalloc.start()
    step()
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    seen = ledger.peak_bytes - x.nbytes - w.nbytes
    assert ledger.peak["workspace"] > 0
    # Python's objects, and NumPy's buffers of a reduction
    assert 0 <= traced - seen < 100_000, (traced, seen)
