# wrong: v as a moving average
d = w - np.mean(replicas, axis=0)
v = momentum * v + (1 - momentum) * d
return w - lr * (d + momentum * v), v
