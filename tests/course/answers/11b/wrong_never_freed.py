# wrong: gathered, and never freed
inputs = []
for layer in layers:
    inputs.append(x)
    layer.gather()
    x = np.tanh(x @ layer.whole)
gx = 2 * (x - target) / x.size
for layer, before in zip(reversed(layers), reversed(inputs), strict=True):
    g = gx * (1 - x * x)
    layer.scatter(before.T @ g)
    gx = g @ layer.whole.T
    x = before
