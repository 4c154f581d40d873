# wrong: not divided by the ranks
d = sum(w - r for r in replicas)
v = momentum * v + d
return w - lr * (d + momentum * v), v
