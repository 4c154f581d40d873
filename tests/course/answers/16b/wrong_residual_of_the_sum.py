# wrong: the residual is this rank's A less everybody's update
a = g + residual
p = np.linalg.qr(ring.all_reduce(t, a @ np.linalg.qr(q)[0]))[0]
total = ring.all_reduce(t, a.T @ p)
residual[...] = a - p @ total.T
return p @ total.T, total
