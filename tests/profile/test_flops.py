"""Operations are the sums of 2 m n k, exactly; bytes are those of the arrays."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.profile import flops, peaks


def counted(p, phase=None):
    return sum(flops.operations(s[1], s[0], s[5]) for s in p.record.lanes["main"]
               if s[0] in ("forward", "backward") and phase in (None, s[0]))


def test_a_gpts_step_is_the_sum_of_its_products():
    B, T, C, L, V, H = 2, 16, 32, 3, 64, 4
    model = nn.GPT(V, T, L, H, C)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    ids = np.random.default_rng(0).integers(0, V, (B, T))
    with minidl.profile() as p:
        loss = F.cross_entropy(model(minidl.Tensor(ids)).reshape(-1, V), minidl.Tensor(ids.ravel()))
        loss.backward()
        optimizer.step()
    rows = B * T
    products = [(rows, 3 * C, C), (rows, C, C), (rows, 4 * C, C), (rows, C, 4 * C)] * L
    products.append((rows, V, C))
    linear = sum(2 * m * n * k for m, n, k in products)
    pairs = B * T * (T + 1) // 2  # of a query and a key that it sees, times C over all heads
    assert counted(p, "forward") == linear + L * 2 * pairs * 2 * C
    assert counted(p, "backward") == 2 * linear + L * 2 * pairs * 5 * C
    assert sum(op["flops"] for op in p.summary["operators"]) == counted(p)


@pytest.mark.parametrize("run, forward, backward", [
    (lambda a: a @ minidl.ones(5, 7), 2 * 3 * 5 * 7, 2 * 3 * 5 * 7),  # one gradient is wanted
    (lambda a: a.reshape(1, 1, 3, 5) @ minidl.ones(2, 4, 5, 6, requires_grad=True),
     2 * 8 * 3 * 5 * 6, 4 * 8 * 3 * 5 * 6),
    (lambda a: F.linear(a, minidl.ones(4, 5, requires_grad=True)), 120, 240),
    (lambda a: F.conv2d(a.reshape(1, 1, 3, 5), minidl.ones(2, 1, 2, 2, requires_grad=True)),
     2 * (2 * 2 * 4) * 4, 4 * (2 * 2 * 4) * 4),
    (lambda a: (a * 2).tanh(), 0, 0),
])
def test_operations_of_one_operator(run, forward, backward):
    a = minidl.ones(3, 5, requires_grad=True)
    with minidl.profile() as p:
        run(a).sum().backward()
    assert counted(p, "forward") == forward and counted(p, "backward") == backward


def test_attention_between_two_texts_and_with_wider_values():
    q, k = minidl.randn(2, 3, 6, 8, requires_grad=True), minidl.randn(2, 3, 9, 8)
    v = minidl.randn(2, 3, 9, 16)
    with minidl.profile() as p:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    pairs = 2 * 3 * 6 * 9
    assert counted(p, "forward") == 2 * pairs * (8 + 16)
    assert counted(p, "backward") == 2 * pairs * (3 * 8 + 2 * 16)


def test_bytes_are_each_array_once():
    x = minidl.ones(10, 20, requires_grad=True)
    with minidl.profile() as p:
        (x * x.detach()).sum().backward()
    sizes = {(s[1], s[0]): flops.n_bytes(s[0], s[5]) for s in p.record.lanes["main"]}
    assert sizes["mul", "forward"] == 3 * 800
    assert sizes["mul", "backward"] == 2 * 800 + 800 + 800  # both factors, gy, one gradient
    assert sizes["sum", "forward"] == 804


def test_peaks_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path))
    assert peaks.stored() is None
    text = peaks.store(n=64, n_bytes=1 << 16, seconds=0.01)
    found = peaks.stored()
    assert "GFLOP/s" in text and found["float32"] > 0 and found["bandwidth"] > 0
    assert peaks.file_of().parent.parent == tmp_path
    assert peaks.file_of("cuda") != peaks.file_of()
    negative = peaks.file_of().read_text().replace('"float32": ', '"float32": -')
    for text in ("", "{}", "[]", '{"threads": 1}', "[" * 100000, negative):
        peaks.file_of().write_text(text)
        with pytest.warns(RuntimeWarning, match="`minidl doctor --peaks` measures again"):
            assert peaks.stored() is None  # damaged: as if it had not been measured
