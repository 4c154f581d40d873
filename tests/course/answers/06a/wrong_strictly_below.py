# wrong: < in place of <=: a plan that needs exactly the budget is refused
n, best = len(sizes) - 1, (len(sizes), None)

def extend(segments, twice):
    nonlocal best
    start = segments[-1][1] if segments else 0
    if start == n and twice < best[0] and peak_bytes(sizes, segments) < budget:
        best = twice, segments
    for stop in range(start + 1, n + 1):
        extend([*segments, (start, stop, False)], twice)
        extend([*segments, (start, stop, True)], twice + stop - start)

extend([], 0)
return best[1]
