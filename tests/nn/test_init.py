"""Initial values have PyTorch's distributions, and equal seeds give equal weights."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.nn import init

# 4 standard errors of the sample standard deviation of n draws, Gaussian or uniform: below
# 4 / sqrt(2n)
N_OUT, N_IN = 200, 300
TOLERANCE = 4 / math.sqrt(2 * N_OUT * N_IN)


@pytest.mark.parametrize("fill, std", [
    (init.kaiming_normal_, math.sqrt(2 / N_IN)),
    (init.kaiming_uniform_, math.sqrt(2 / N_IN)),
    (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / N_OUT)),
    (init.xavier_normal_, math.sqrt(2 / (N_IN + N_OUT))),
    (init.xavier_uniform_, math.sqrt(2 / (N_IN + N_OUT))),
    (lambda t: init.normal_(t, std=0.02), 0.02),
    (lambda t: init.uniform_(t, -1, 1), 1 / math.sqrt(3)),
])
def test_standard_deviation_is_the_formulas(fill, std):
    minidl.manual_seed(3)
    w = nn.Parameter(np.empty((N_OUT, N_IN), np.float32))
    fill(w)
    assert w.array.std() == pytest.approx(std, rel=TOLERANCE)
    # 4 standard errors of the mean
    assert abs(w.array.mean()) < 4 * std / math.sqrt(N_OUT * N_IN)


def test_a_truncated_normal_has_the_moments_of_one():
    """Of [a, b] = [-2 s, 2 s] the variance is s^2 (1 - 4 phi(2) / (2 Phi(2) - 1))."""
    minidl.manual_seed(3)
    phi = math.exp(-2) / math.sqrt(2 * math.pi)
    std = 0.02 * math.sqrt(1 - 4 * phi / math.erf(math.sqrt(2)))
    w = init.trunc_normal_(nn.Parameter(np.empty((N_OUT, N_IN), np.float32)), std=0.02, a=-0.04,
                           b=0.04)
    assert abs(w.array).max() <= 0.04
    assert w.array.std() == pytest.approx(std, rel=TOLERANCE)
    assert abs(w.array.mean()) < 4 * std / math.sqrt(N_OUT * N_IN)
    with pytest.raises(ValueError, match="at most 2 std outside"):
        init.trunc_normal_(w, mean=9.0)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (2, 3, 2, 2), (1, 7)])
def test_orthogonal_rows_or_columns(shape):
    w = init.orthogonal_(minidl.empty(*shape), gain=1.5)
    m = w.array.reshape(shape[0], -1).astype("f8")
    product = m @ m.T if m.shape[0] <= m.shape[1] else m.T @ m
    np.testing.assert_allclose(product, 1.5**2 * np.eye(min(m.shape)), atol=1e-6)
    with pytest.raises(ValueError, match=r"orthogonal_ wants at least 2 .* got shape \(3,\)"):
        init.orthogonal_(minidl.empty(3))


def test_fans_count_the_kernel():
    assert init.fans(nn.Conv2d(4, 6, (3, 5)).weight) == (4 * 15, 6 * 15)
    with pytest.raises(ValueError, match="got \\(3,\\)"):
        init.fans(nn.Parameter(np.ones(3, np.float32)))


@pytest.mark.parametrize("layer", [lambda: nn.Linear(50, 400), lambda: nn.Conv2d(5, 400, 3)])
def test_default_bounds_are_one_over_the_root_of_fan_in(layer):
    minidl.manual_seed(1)
    layer = layer()
    bound = 1 / math.sqrt(init.fans(layer.weight)[0])
    for p in layer.parameters():
        # uniform: of 400 draws one in 800,000,000 seeds has none in the last twentieth
        assert 0.95 * bound < abs(p.array).max() <= bound


def test_equal_seeds_give_equal_weights_and_a_generator_is_used_alone():
    def weights(**options):
        return nn.Linear(5, 5, **options).weight.array

    minidl.manual_seed(0)
    a = weights()
    minidl.manual_seed(0)
    b = weights(generator=minidl.Generator(9))
    c = weights()  # the default generator has not moved
    np.testing.assert_array_equal(a, c)
    assert (a != b).any()


def test_the_padding_row_of_an_embedding_starts_at_zero():
    w = nn.Embedding(5, 3, padding_idx=2).weight.array
    assert (w != 0).any(axis=1).tolist() == [True, True, False, True, True]


def test_writing_initial_values_between_forward_and_backward_is_detected():
    net = nn.Linear(3, 4)
    loss = net(minidl.ones(2, 3, requires_grad=True)).sum()
    init.ones_(net.weight)
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        loss.backward()


def test_gain_of_an_unknown_nonlinearity_is_an_error():
    with pytest.raises(ValueError, match="unknown nonlinearity 'swish'"):
        init.calculate_gain("swish")
