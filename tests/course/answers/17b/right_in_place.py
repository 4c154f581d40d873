# right: v in place, w anew
d = w.copy()
for r in replicas:
    d -= r / len(replicas)
v *= momentum
v += d
return w - lr * (d + momentum * v), v
