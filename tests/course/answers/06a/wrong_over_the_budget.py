# wrong: returns the smallest peak there is, even where it is over the budget: None was asked for
n, best = len(sizes) - 1, None

def extend(segments):
    nonlocal best
    start = segments[-1][1] if segments else 0
    if start == n:
        peak = peak_bytes(sizes, segments)
        twice = sum(b - a for a, b, again in segments if again)
        key = (0, twice) if peak <= budget else (peak, twice)
        if best is None or key < best[0]:
            best = key, segments
        return
    for stop in range(start + 1, n + 1):
        extend([*segments, (start, stop, False)])
        extend([*segments, (start, stop, True)])

extend([])
return best[1]
