# wrong: right numbers, but an all-reduce for every parameter: one for all was asked for
for p in parameters:
    flat = p.grad.array.reshape(-1).copy()
    all_reduce(t, flat)
    p.grad.array[...] = (flat / t.size).reshape(p.grad.shape)
