# wrong: the caller's list is cut
while len(batches) % size:
    k = max(range(len(batches)), key=lambda i: len(batches[i]))
    b = batches[k]
    batches[k : k + 1] = [b[: len(b) // 2], b[len(b) // 2 :]]
order = rng.permutation(len(batches) // size)
return [[batches[size * g + r] for g in order] for r in range(size)]
