# wrong: where the ranks went
d = np.mean(replicas, axis=0) - w
v = momentum * v + d
return w - lr * (d + momentum * v), v
