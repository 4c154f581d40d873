# wrong: the mean stays in the flat array
flat = np.concatenate([p.grad.reshape(-1) for p in parameters])
all_reduce(t, flat)
flat /= t.size
