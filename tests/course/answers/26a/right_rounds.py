# right: NumPy cuts the longest batches beforehand, all at once
pieces = [[k, list(b)] for k, b in enumerate(batches)]
for _ in range(-len(batches) % size):
    at = int(np.argmax([len(b) for _, b in pieces]))
    k, b = pieces.pop(at)
    pieces.insert(at, [k, b[len(b) // 2:]])
    pieces.insert(at, [k, b[: len(b) // 2]])
shares = [[] for _ in range(size)]
for g in rng.permutation(len(pieces) // size):
    for rank in range(size):
        shares[rank].append(pieces[g * size + rank][1])
return shares
