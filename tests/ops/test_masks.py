"""Where a mask shuts a slope off, the gradient is 0, whatever comes from behind: inf, too."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops import masks
from tests.devices import host, put

X = np.array([-1.0, 0.0, 4.0, 0.5])

OPS = {  # {name: (library, its functional, x) -> a result whose slope is a mask}
    "relu": lambda L, F, x: F.relu(x),
    "clamp below": lambda L, F, x: x.clamp(min=0),
    "clamp above": lambda L, F, x: x.clamp(max=0),
    "clamp": lambda L, F, x: x.clamp(0, 1),
    "clamp by tensors": lambda L, F, x: L.clamp(x, L.zeros_like(x), L.ones_like(x)),
    "maximum": lambda L, F, x: L.maximum(x, L.zeros_like(x)),
    "minimum": lambda L, F, x: L.minimum(x, L.zeros_like(x)),
    "abs": lambda L, F, x: x.abs(),
    "where": lambda L, F, x: L.where(x > 0, x, L.zeros_like(x)),
    "masked_fill": lambda L, F, x: x.masked_fill(x <= 0, 0.0),
    "tril": lambda L, F, x: (x.reshape(4, 1) * L.ones_like(x)).tril(),
    "amax": lambda L, F, x: x.amax(0),
    "max along": lambda L, F, x: x.max(0)[0],
    "max_pool1d": lambda L, F, x: F.max_pool1d(x.reshape(1, 1, 4), 2, 1),
    "leaky_relu": lambda L, F, x: F.leaky_relu(x, 0.0),
    "elu": lambda L, F, x: F.elu(x),
    "floor": lambda L, F, x: x.floor(),
}
BEHIND = {"sqrt": lambda y: y.sqrt(), "log": lambda y: y.log(), "1 / y": lambda y: 1 / y,
          "y ** 0.5": lambda y: y**0.5, "rsqrt": lambda y: y.rsqrt()}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the numbers are meant to overflow
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("op", OPS)
def test_gradients_are_pytorchs_where_a_slope_behind_is_infinite(op, behind):
    torch = pytest.importorskip("torch", reason="the oracle")

    def gradient(library, functional):
        x = library.tensor(X, requires_grad=True)
        BEHIND[behind](OPS[op](library, functional, x)).sum().backward()
        return np.asarray(x.grad)

    np.testing.assert_allclose(gradient(minidl, F), gradient(torch, torch.nn.functional),
                               rtol=1e-12)  # a few roundings of float64


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (1009,), (3, 5, 7)])
def test_what_is_selected_has_the_same_bits_and_the_rest_is_zero(shape, dtype, device):
    rng = np.random.default_rng(3)
    gy = np.asarray(rng.standard_normal(shape)).astype(dtype)
    gy.reshape(-1)[::3] = np.inf
    gy.reshape(-1)[1::3] = np.nan
    mask = np.asarray(rng.random(shape) < 0.5)
    wanted = np.where(mask, gy, 0)
    found = host(masks.select(put(gy, device), put(mask, device)))
    assert found.dtype == gy.dtype and found.tobytes() == wanted.astype(dtype).tobytes()


def test_a_transposed_gradient_and_mask_are_selected_in_place():
    gy, mask = np.arange(12.0).reshape(3, 4).T, np.eye(4, 3, dtype=bool)
    np.testing.assert_array_equal(masks.select(gy, mask), gy * mask)
