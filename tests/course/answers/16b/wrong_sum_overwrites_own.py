# wrong: the all-reduce sums in place, and A'P is the sum when the residual wants this rank's
a = g + residual
p = np.linalg.qr(ring.all_reduce(t, a @ np.linalg.qr(q)[0]))[0]
own = a.T @ p
total = ring.all_reduce(t, own)
residual[...] = a - p @ own.T
return p @ total.T, total
