# right: a function that cuts one batch and calls itself
def whole(some):
    if len(some) % size == 0:
        return some
    k = max(range(len(some)), key=lambda i: (len(some[i]), i))
    b = some[k]
    return whole([*some[:k], b[: len(b) // 2], b[len(b) // 2 :], *some[k + 1 :]])

some = whole([list(b) for b in batches])
groups = rng.permutation(len(some) // size) * size
return [[some[g + r] for g in groups] for r in range(size)]
