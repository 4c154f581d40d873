# wrong: what is left over is added to the batches before it
batches = [list(b) for b in batches]
while len(batches) % size and len(batches) > size:
    last = batches.pop()
    batches[-1] = batches[-1] + last
order = rng.permutation(len(batches) // size)
return [[batches[g * size + r] for g in order] for r in range(size)]
