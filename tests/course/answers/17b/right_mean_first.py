# right: the mean of the weights first
d = w - sum(replicas) / len(replicas)
v = d + momentum * v
return w - lr * d - lr * momentum * v, v
