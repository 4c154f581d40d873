# wrong: the order of the groups is forgotten
batches = [list(b) for b in batches]
while len(batches) % size:
    k = max(range(len(batches)), key=lambda i: len(batches[i]))
    b = batches[k]
    batches[k : k + 1] = [b[: len(b) // 2], b[len(b) // 2 :]]
return [batches[r::size] for r in range(size)]
