# wrong: the smallest peak there is, although the budget would allow to run fewer layers twice
n, best = len(sizes) - 1, (budget + 1, None)

def extend(segments):
    nonlocal best
    start = segments[-1][1] if segments else 0
    if start == n and peak_bytes(sizes, segments) < best[0]:
        best = peak_bytes(sizes, segments), segments
    for stop in range(start + 1, n + 1):
        extend([*segments, (start, stop, False)])
        extend([*segments, (start, stop, True)])

extend([])
return best[1]
