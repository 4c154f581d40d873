# wrong: drop_last, as loaders do
n = len(batches) - len(batches) % size
order = rng.permutation(n // size)
return [[batches[g * size + r] for g in order] for r in range(size)]
