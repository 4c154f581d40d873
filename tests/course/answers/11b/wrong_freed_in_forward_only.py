# wrong: backward gathers, and keeps what it has gathered
inputs = []
for layer in layers:
    inputs.append(x)
    layer.gather()
    x = np.tanh(x @ layer.whole)
    layer.free()
gx = 2 * (x - target) / x.size
for layer, before in zip(reversed(layers), reversed(inputs), strict=True):
    g = gx * (1 - x * x)
    layer.scatter(before.T @ g)
    layer.gather()
    gx = g @ layer.whole.T
    x = before
