# right: np.split at the cumulated sizes; new arrays in p.grad
sizes = [p.grad.array.size for p in parameters]
flat = np.hstack([p.grad.array.ravel() for p in parameters])
all_reduce(t, flat)
for p, piece in zip(parameters, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
    p.grad = (piece / t.size).reshape(p.grad.shape).astype(p.grad.dtype)
