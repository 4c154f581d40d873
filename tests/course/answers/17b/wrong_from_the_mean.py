# wrong: steps from the averaged weights
mean = np.mean(replicas, axis=0)
d = w - mean
v = momentum * v + d
return mean - lr * (d + momentum * v), v
