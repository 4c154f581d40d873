# right: a context manager that gathers and frees
from contextlib import contextmanager

@contextmanager
def at_home(layer):
    layer.gather()
    try:
        yield layer.whole
    finally:
        layer.free()

xs = [x]
for layer in layers:
    with at_home(layer) as w:
        xs.append(np.tanh(xs[-1] @ w))
    del w
gx = 2 * (xs[-1] - target) / xs[-1].size
for k in range(len(layers) - 1, -1, -1):
    g = gx * (1 - xs[k + 1] ** 2)
    with at_home(layers[k]) as w:
        gx = g @ w.T
    del w
    layers[k].scatter(xs[k].T @ g)
