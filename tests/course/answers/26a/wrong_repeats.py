# wrong: fills up with the last batch again
batches = list(batches)
while len(batches) % size:
    batches.append(batches[-1])
order = rng.permutation(len(batches) // size)
return [[batches[g * size + r] for g in order] for r in range(size)]
