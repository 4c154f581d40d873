# right: a stack, and the factors multiplied out
d = (w[None] - np.stack(replicas)).mean(0)
new = momentum * v + d
return w - lr * (1 + momentum) * d - lr * momentum**2 * v, new
