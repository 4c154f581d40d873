# wrong: a copy of every weight is kept for backward, which then needs no gather
inputs, weights = [], []
for layer in layers:
    inputs.append(x)
    layer.gather()
    weights.append(layer.whole.copy())
    x = np.tanh(x @ layer.whole)
    layer.free()
gx = 2 * (x - target) / x.size
for layer, before, w in zip(reversed(layers), reversed(inputs), reversed(weights), strict=True):
    g = gx * (1 - x * x)
    layer.scatter(before.T @ g)
    gx = g @ w.T
    x = before
