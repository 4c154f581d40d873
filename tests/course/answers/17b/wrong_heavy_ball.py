# wrong: plain momentum
d = w - np.mean(replicas, axis=0)
v = momentum * v + d
return w - lr * v, v
