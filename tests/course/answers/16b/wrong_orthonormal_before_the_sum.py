# wrong: every rank makes its own P orthonormal, and the sum of them is not
a = g + residual
p = np.linalg.qr(a @ np.linalg.qr(q)[0])[0]
ring.all_reduce(t, p)
own = a.T @ p
residual[...] = a - p @ own.T
total = ring.all_reduce(t, own.copy())
return p @ total.T, total
