# wrong: each rank gets a block of the sorted batches
n = len(batches) // size
while len(batches) % size:
    k = max(range(len(batches)), key=lambda i: len(batches[i]))
    b = batches[k]
    batches = batches[:k] + [b[: len(b) // 2], b[len(b) // 2 :]] + batches[k + 1 :]
n = len(batches) // size
return [[batches[r * n + k] for k in rng.permutation(n)] for r in range(size)]
