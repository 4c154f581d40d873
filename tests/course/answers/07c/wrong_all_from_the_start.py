# wrong: every piece is taken from the front of the flat array
flat = np.concatenate([p.grad.reshape(-1) for p in parameters])
all_reduce(t, flat)
flat /= t.size
for p in parameters:
    p.grad[...] = flat[: p.grad.array.size].reshape(p.grad.shape)
