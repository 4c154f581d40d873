# wrong: the next layer comes home before this one goes: two at home
inputs = []
layers[0].gather()
for i, layer in enumerate(layers):
    inputs.append(x)
    if i + 1 < len(layers):
        layers[i + 1].gather()
    x = np.tanh(x @ layer.whole)
    layer.free()
gx = 2 * (x - target) / x.size
for layer, before in zip(reversed(layers), reversed(inputs), strict=True):
    g = gx * (1 - x * x)
    layer.scatter(before.T @ g)
    layer.gather()
    gx = g @ layer.whole.T
    layer.free()
    x = before
