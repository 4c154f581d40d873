# right: results in place of inputs are kept, and two helpers
def forward(layer, x):
    layer.gather()
    y = np.tanh(np.matmul(x, layer.whole))
    layer.free()
    return y

def backward(layer, before, y, gy):
    g = gy * (1 - np.square(y))
    layer.scatter(np.matmul(before.T, g))
    layer.gather()
    gx = np.matmul(g, layer.whole.T)
    layer.free()
    return gx

results = [x]
for layer in layers:
    results.append(forward(layer, results[-1]))
gy = (results[-1] - target) * 2 / target.size
while layers and len(results) > 1:
    y = results.pop()
    gy = backward(layers[len(results) - 1], results[-1], y, gy)
