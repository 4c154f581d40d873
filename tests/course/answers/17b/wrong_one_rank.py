# wrong: the first rank alone
d = w - replicas[0]
v = momentum * v + d
return w - lr * (d + momentum * v), v
