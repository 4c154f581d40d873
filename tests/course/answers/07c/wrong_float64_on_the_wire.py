# wrong: float64: twice the bytes
flat = np.concatenate([p.grad.reshape(-1) for p in parameters], dtype=np.float64)
all_reduce(t, flat)
flat /= t.size
start = 0
for p in parameters:
    p.grad[...] = flat[start : start + p.grad.array.size].reshape(p.grad.shape)
    start += p.grad.array.size
