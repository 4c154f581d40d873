# right: forward on the way down, backward on the way up
def through(k, x):
    if k == len(layers):
        return 2 * (x - target) / x.size
    layer = layers[k]
    layer.gather()
    y = np.tanh(x @ layer.whole)
    layer.free()
    g = through(k + 1, y) * (1 - y * y)
    layer.gather()
    gx = g @ layer.whole.T
    layer.free()
    layer.scatter(x.T @ g)
    return gx

through(0, x)
