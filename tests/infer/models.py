"""Models and random graphs that the tests of minidl/infer share."""

import numpy as np

import minidl
from minidl import backend, nn
from minidl.nn import functional as F

TOLERANCE = 2e-6  # of the largest number: float32 sums of some hundreds, in another order


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def cnn(width=8):
    """Three convolutions, with every pooling, a residual and a strided one; statistics that are
    not 0 and 1."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.na = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.b, self.nb = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
            self.c = nn.Conv2d(width, 70, (3, 2), stride=(2, 1), padding=(0, 1))
            self.out = nn.Linear(70, 5)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.na(self.a(x))), 3, stride=2, padding=1)
            x = F.relu(self.nb(self.b(x)) + x)
            x = F.avg_pool2d(F.gelu(self.c(x)), 2)
            return self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))

    minidl.manual_seed(0)
    net = Net()
    with minidl.no_grad():
        net(minidl.tensor(array(16, 3, 12, 13, seed=1) * 2 + 1))
    return net.eval()


def same(y, want, tolerance=TOLERANCE):
    """Equal to `tolerance` of the largest number."""
    y, want = (np.asarray(backend.array_of(a)) for a in (y, want))
    assert y.shape == want.shape and y.dtype == want.dtype
    scale = np.abs(want).max(initial=1e-30)
    np.testing.assert_allclose(y, want, rtol=0, atol=tolerance * scale)


UNARY = [F.relu, F.sigmoid, F.tanh, F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"),
         lambda x: F.leaky_relu(x, 0.1), lambda x: -x, abs, lambda x: x * 1.0, lambda x: x + 0,
         lambda x: (x * 0.1).exp(), lambda x: x ** 2, lambda x: x.abs().sqrt(),
         lambda x: x.permute(0, 2, 1).permute(0, 2, 1), lambda x: x.reshape(-1).reshape(*x.shape),
         lambda x: F.softmax(x, -1), lambda x: F.layer_norm(x, x.shape[-1:]),
         lambda x: x.permute(0, 2, 1).reshape(*x.shape), lambda x: x - x.mean(-1, keepdim=True),
         lambda x: minidl.cat([x[:, 1:], x[:, :1]], 1)]
BINARY = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, minidl.maximum,
          lambda a, b: a / (b.abs() + 1.0), minidl.minimum]


def random_model(seed, n_ops=10):
    """(a function of a tensor (2, 3, 8), the names of no ops): n_ops random operations, products
    among them, on random results before."""
    rng = np.random.default_rng(seed)
    plan = [(int(rng.integers(10)), *map(int, rng.integers(0, 1000, 3))) for _ in range(n_ops)]
    weights = {k: minidl.tensor(array(8, 8, seed=k) / 4) for k in range(4)}
    vectors = {k: minidl.tensor(array(*shape, seed=9)) for k, shape in enumerate(
        [(8,), (1,), (3, 1), (2, 1, 8)])}

    def model(x):
        values = [x]
        for kind, i, j, k in plan:
            a, b = values[-1 - i % min(2, len(values))], values[j % len(values)]
            if kind < 4:
                y = UNARY[k % len(UNARY)](a)
            elif kind < 7:
                y = BINARY[k % len(BINARY)](a, b)
            elif kind < 8:
                y = BINARY[k % 3](a, vectors[j % 4])
            else:
                y = F.linear(a, weights[k % 4], vectors[0] if j % 2 else None)
            values.append(y)
        return values[-1] + values[len(values) // 2]

    return model
