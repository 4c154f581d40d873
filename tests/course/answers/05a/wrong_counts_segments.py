# wrong: as few recomputed segments as possible, not as few layers
n, best = len(sizes) - 1, (len(sizes) + 1, None)

def extend(segments, n_again):
    nonlocal best
    start = segments[-1][1] if segments else 0
    if start == n and n_again < best[0] and peak_bytes(sizes, segments) <= budget:
        best = n_again, segments
    for stop in range(start + 1, n + 1):
        extend([*segments, (start, stop, False)], n_again)
        extend([*segments, (start, stop, True)], n_again + 1)

extend([], 0)
return best[1]
