# right: the residual by the projection on P, with einsum for the products
a = residual + g
p, _ = np.linalg.qr(ring.all_reduce(t, np.einsum("nm,mr->nr", a, np.linalg.qr(q)[0])))
total = ring.all_reduce(t, np.einsum("nm,nr->mr", a, p))
residual[:] = a - p @ (p.T @ a)
return np.einsum("nr,mr->nm", p, total), total
