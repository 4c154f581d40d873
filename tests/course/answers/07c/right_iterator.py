# right: pieces are taken off the front of a view
flat = np.concatenate([p.grad.flatten() for p in parameters])
all_reduce(t, flat)
np.divide(flat, t.size, out=flat)
rest = flat
for p in parameters:
    piece, rest = rest[: p.grad.array.size], rest[p.grad.array.size :]
    p.grad.reshape(-1)[:] = piece
