# wrong: `residual` becomes the name of a new array, the caller's is not changed
a = g + residual
p = np.linalg.qr(ring.all_reduce(t, a @ np.linalg.qr(q)[0]))[0]
own = a.T @ p
residual = a - p @ own.T
total = ring.all_reduce(t, own.copy())
return p @ total.T, total
