"""The page and the real one: the same bits of weights and masters, the same bytes on the link."""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.parallel import Offload
from minidl.plain import offload

N_STEPS = 4


def network():
    minidl.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)).half()


def adam(params):
    return optim.AdamW(params, lr=1e-2)


def backward(model, step):
    """fp16 gradients, large enough not to vanish."""
    rng = np.random.default_rng(step)
    x, y = minidl.tensor(rng.normal(size=(4, 9)).astype("f2")), minidl.tensor([0, 1, 2, 1])
    (F.cross_entropy(model(x).float(), y) * 64).backward()


def test_weights_and_masters_have_the_bits_of_the_real_one():
    model = network()
    optimizer = Offload(adam(model.parameters()), bucket_bytes=1)  # a piece for each parameter
    for step in range(N_STEPS):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()

    engine, link = network(), offload.Link()
    params = list(engine.parameters())
    weights = [p.detach().numpy().copy() for p in params]
    masters = [w.astype(np.float32) for w in weights]
    leaves = [nn.Parameter(minidl.tensor(w.copy())) for w in masters]
    optimizers = [adam([leaf]) for leaf in leaves]

    def update(i, w, g):
        leaves[i].grad = minidl.tensor(g)
        optimizers[i].step()
        w[...] = leaves[i].detach().numpy()

    for step in range(N_STEPS):
        def gradients(weights, step=step):
            for p, w in zip(params, weights):
                p.data = minidl.tensor(w.copy())
            engine.zero_grad()
            backward(engine, step)
            yield from (p.grad.numpy().copy() for p in reversed(params))

        offload.step(link, weights, masters, gradients, update)

    for mine, p, start in zip(weights, model.parameters(), network().parameters(), strict=True):
        np.testing.assert_array_equal(mine, p.detach().numpy(), strict=True)
        assert (mine != start.detach().numpy()).any()
    for mine, p in zip(masters, optimizer.parameters(), strict=True):
        np.testing.assert_array_equal(mine, p.detach().numpy())
    for way in ("down", "up"):
        n_bytes = sum(n for direction, n in link.copies if direction == way)
        assert n_bytes == optimizer.lanes.bytes[way] == N_STEPS * 2 * sum(w.size for w in weights)
    optimizer.close()
